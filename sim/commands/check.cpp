// kvsim check: everything a run would refuse, without running.

#include "kvsim/base/check.hpp"

#include <array>

#include "kvsim/app/command.hpp"
#include "kvsim/app/prepare.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/model/trace.hpp"
#include "kvsim/model/trace_filters.hpp"
#include "kvsim/model/trace_stats.hpp"

namespace kvsim::app {

int check_command(const std::vector<std::string>& args) {
    const Usage usage{"check",
                      "kvsim check [SCENARIO.yaml...] [options]",
                      "Validates scenarios and lists everything that is wrong with them; describes traces.",
                      {{"set", "KEY.PATH=VALUE", "change a key of the scenarios first", true},
                       {"overlay", "FILE.yaml", "lay this file over the scenarios first", true},
                       {"catalog", "DIR", "own models.yaml and gpus.yaml, asked before the shipped ones"},
                       {"stats", "TRACE", "print what a trace holds: lengths, arrivals, prefix reuse", true},
                       {"trace-format", "FORMAT", "of the trace; by default its content tells"},
                       {"trace-block-size", "N", "tokens per hash id (the format's)"},
                       {"cache-blocks", "N", "a capacity of the prefix-hit curve, in blocks of the trace", true},
                       {"on-error", "fail|skip", "what a wrong row of the trace does: end, or be left out and counted (fail)"}},
                      "a scenario file",
                      0,
                      static_cast<std::size_t>(-1)};
    const std::optional<Arguments> given = parse(usage, args);
    if (!given) return exit_done;
    const std::vector<std::string> traces = given->all("stats");
    if (given->positional.empty() && traces.empty()) throw UserError("error: name a scenario file, or a trace with --stats");
    TraceOptions options;
    options.trace_block_size = given->integer("trace-block-size", 1, 1'000'000);
    static constexpr std::array<std::string_view, 2> on_errors{"fail", "skip"};
    const bool skip = given->choice("on-error", on_errors) == "skip";
    const std::vector<std::int64_t> capacities = given->integers("cache-blocks", 1, std::int64_t{1} << 40);
    for (const std::string& trace : traces) {
        std::unique_ptr<TraceReader> reader = open_trace(trace, given->text("trace-format").value_or(""), options);
        if (skip) reader = skip_wrong_rows(std::move(reader));
        print(render(trace_stats(*reader, capacities.empty() ? default_cache_capacities : capacities)));
    }
    int code = exit_done;
    for (const std::string& file : given->positional) {
        try {
            config::Diagnostics diagnostics;
            const Prepared prepared =
                prepare(file, given->all("set"), diagnostics, given->text("catalog").value_or(""), given->all("overlay"));
            for (const std::string& warning : diagnostics.warnings()) log_diagnostic(warning);
            diagnostics.throw_if_errors();
            for (const std::string& warning : prepared.deployment.warnings) log_warning(file + ": " + warning);
            print(file + ": ok\n");
        } catch (const UserError& e) {
            print_error(e.what());
            code = exit_bad_input;
        }
    }
    return code;
}

}  // namespace kvsim::app
