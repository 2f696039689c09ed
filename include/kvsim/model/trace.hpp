#pragma once
// Recorded requests, read row by row: a file is never held as a whole.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvsim/base/units.hpp"
#include "kvsim/model/registry.hpp"

namespace kvsim {

struct TraceRow {
    SimTime time{};
    std::int64_t input_length = 0;        ///< tokens, [1, max_request_tokens]
    std::int64_t output_length = 0;       ///< tokens, [1, max_request_tokens]
    std::vector<std::uint64_t> hash_ids;  ///< one per block of the prompt, the last one partial; empty: content unknown
    std::int64_t priority = 0;
    std::string request_id;
    std::string request_class;
    std::string session_id;
    bool operator==(const TraceRow&) const = default;
};

struct TraceOptions {
    std::int64_t trace_block_size = 512;  ///< tokens per hash id; independent of the engine's block_size
};

class TraceReader {
public:
    virtual ~TraceReader() = default;
    /// The next row into `row` (reusing its storage), false at the end. Times never decrease. Whatever is wrong with the file
    /// throws UserError `path:line:column: error: ...`.
    virtual bool next(TraceRow& row) = 0;
    [[nodiscard]] virtual std::string_view format() const = 0;
    /// Keys the format does not know, met so far; they are ignored.
    [[nodiscard]] virtual std::vector<std::string> unknown_keys() const { return {}; }
};

class LineReader;  // sim/workloads/line_reader.hpp

using OpenTrace = std::unique_ptr<TraceReader> (*)(std::unique_ptr<LineReader>, const TraceOptions&);
std::span<const Entry<OpenTrace>> trace_formats();

/// `format` empty: found by content (a line starting with `{` is mooncake, the Azure header azure). An unknown format or an
/// unreadable file throws UserError.
std::unique_ptr<TraceReader> open_trace(const std::filesystem::path& path, std::string_view format, const TraceOptions&);
/// The same over bytes in memory; `name` stands for the path in messages.
std::unique_ptr<TraceReader> open_trace_text(std::string name, std::string text, std::string_view format, const TraceOptions&);

}  // namespace kvsim
