#pragma once
// A result as text for standard output.

#include <string>
#include <string_view>

#include "kvsim/report/run_info.hpp"
#include "kvsim/report/summary.hpp"

namespace kvsim {

enum class Format { table, vllm, json, csv, markdown };

/// table | vllm | json | csv | markdown; anything else is a UserError with the nearest name.
Format parse_format(std::string_view name);

struct RenderOptions {
    bool colour = false;  ///< ANSI; table only
    bool e2el = true;     ///< vllm: the End-to-end Latency section (there: --percentile-metrics ttft,tpot,itl,e2el)
};

/// table: for reading, at most 100 columns unless a name is longer. vllm: the console block of `vllm bench serve`, all
/// completed requests. json / csv: what summary.json / summary.csv hold. markdown: for a pull request or a CI job summary. Ends
/// with a line end.
std::string render(Format format, const RunInfo& info, const Outcome& outcome, const Summary& summary,
                   const RenderOptions& options = {});

}  // namespace kvsim
