#include "kvsim/model/trace.hpp"

#include <vector>

#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"
#include "line_reader.hpp"

namespace kvsim {

namespace {

std::unique_ptr<TraceReader> open(std::unique_ptr<LineReader> lines, std::string_view format, const TraceOptions& options,
                                  const std::string& name) {
    if (options.trace_block_size < 1) throw UserError(name + ": error: trace_block_size must be at least 1");
    if (format.empty()) {
        const std::string_view first = lines->peek();
        const std::size_t start = first.find_first_not_of(" \t\r");
        const bool object = start != std::string_view::npos && first[start] == '{';
        if (!object && first.substr(0, 9) != "TIMESTAMP")
            throw UserError(name + ":1:1: error: " +
                            (first.empty()
                                 ? "the trace is empty or starts with a blank line"
                                 : "neither a Mooncake trace (JSON lines) nor an Azure one (CSV with TIMESTAMP first)"));
        format = object ? "mooncake" : "azure";
    }
    std::vector<std::string_view> names;
    for (const Entry<OpenTrace>& entry : trace_formats()) {
        if (entry.name == format) return entry.make(std::move(lines), options);
        names.push_back(entry.name);
    }
    const std::string_view near = nearest(format, names);
    throw UserError(name + ": error: unknown trace format '" + std::string(format) + "'" +
                    (near.empty() ? "" : "; did you mean '" + std::string(near) + "'?"));
}

}  // namespace

std::unique_ptr<TraceReader> open_trace(const std::filesystem::path& path, std::string_view format,
                                        const TraceOptions& options) {
    return open(std::make_unique<LineReader>(path), format, options, path.string());
}

std::unique_ptr<TraceReader> open_trace_text(std::string name, std::string text, std::string_view format,
                                             const TraceOptions& options) {
    return open(std::make_unique<LineReader>(name, std::move(text)), format, options, name);
}

}  // namespace kvsim
