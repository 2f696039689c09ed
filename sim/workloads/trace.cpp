#include "kvsim/model/trace.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "csv_rows.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"
#include "line_reader.hpp"

namespace kvsim {

namespace {

/// Enough for the keys of a first object, unless one of its values is longer.
constexpr std::size_t head_bytes = std::size_t{1} << 16;

constexpr std::string_view blanks = " \t\r\n";

/// The keys of the first object, as far as the text goes; whatever is wrong with it is the format's to say.
std::vector<std::string> json_keys(std::string_view text) {
    std::vector<std::string> keys;
    int depth = 0;
    std::size_t i = 0;
    while (i < text.size()) {
        const char c = text[i++];
        if (c == '{') {
            ++depth;
        } else if (c == '}') {
            if (--depth <= 0) break;
        } else if (c == '[' && depth > 0) {
            ++depth;
        } else if (c == ']' && depth > 0) {
            --depth;
        } else if (c == '"') {
            const std::size_t from = i;
            while (i < text.size() && text[i] != '"') i += std::size_t{text[i] == '\\' ? 2U : 1U};
            if (i >= text.size()) break;
            const std::string_view word = text.substr(from, i++ - from);
            const std::size_t next = text.find_first_not_of(blanks, i);
            if (depth == 1 && next != std::string_view::npos && text[next] == ':') keys.emplace_back(word);
        }
    }
    return keys;
}

std::vector<std::string> csv_names(std::string_view text) {
    std::string_view line = text.substr(0, text.find_first_of("\r\n"));
    std::vector<std::string_view> fields;
    std::string unquoted;
    std::size_t bad = 0;
    std::vector<std::string> names;
    if (!split_csv(line, fields, unquoted, bad)) return names;
    for (const std::string_view field : fields) {
        const std::size_t from = field.find_first_not_of(blanks);
        std::string name(from == std::string_view::npos ? "" : field.substr(from, field.find_last_not_of(blanks) + 1 - from));
        for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
        names.push_back(std::move(name));
    }
    return names;
}

std::unique_ptr<TraceReader> open(std::unique_ptr<LineReader> lines, std::string_view format, const TraceOptions& options,
                                  const std::string& name) {
    if (options.trace_block_size.value_or(1) < 1) throw UserError(name + ": error: trace_block_size must be at least 1");
    std::vector<std::string_view> names;
    std::string list;
    for (const Entry<TraceFormat>& entry : trace_formats()) {
        if (entry.name == format) return entry.make.open(std::move(lines), options);
        names.push_back(entry.name);
        list += (list.empty() ? "" : ", ") + std::string(entry.name);
    }
    if (!format.empty()) {
        const std::string_view near = nearest(format, names);
        throw UserError(name + ": error: unknown trace format '" + std::string(format) + "'" +
                        (near.empty() ? "" : "; did you mean '" + std::string(near) + "'?"));
    }
    TraceHead head;
    head.text = lines->head(head_bytes);
    const std::size_t start = head.text.find_first_not_of(blanks);
    head.json = start != std::string_view::npos && (head.text[start] == '{' || head.text[start] == '[');
    head.names = head.json ? json_keys(head.text.substr(start)) : csv_names(head.text);
    for (const Entry<TraceFormat>& entry : trace_formats()) {
        if (entry.make.matches(head)) return entry.make.open(std::move(lines), options);
    }
    // A broken first row is kvsim's own format's to explain.
    if (head.json && head.text[start] == '{') return open(std::move(lines), "mooncake", options, name);
    throw UserError(name + ":1:1: error: " +
                    (start == std::string_view::npos || start > 0 ? "the trace is empty or starts with a blank line"
                                                                  : "no known trace format (" + list + ")"));
}

std::vector<std::filesystem::path> files_of(const std::filesystem::path& path) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) return {path};
    std::vector<std::filesystem::path> files;
    for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(path)) {
        const std::string file = entry.path().filename().string();
        const auto ends = [&](std::string_view with) { return file.ends_with(with); };
        if (entry.is_regular_file() && (ends(".json") || ends(".jsonl") || ends(".json.gz") || ends(".jsonl.gz")))
            files.push_back(entry.path());
    }
    if (files.empty()) throw UserError(path.string() + ": error: the folder holds no .json or .jsonl file");
    std::sort(files.begin(), files.end());
    return files;
}

}  // namespace

bool TraceHead::has(std::string_view name) const {
    return std::find(names.begin(), names.end(), name) != names.end();
}

std::unique_ptr<TraceReader> open_trace(const std::filesystem::path& path, std::string_view format,
                                        const TraceOptions& options) {
    std::vector<std::filesystem::path> files = files_of(path);
    const bool several = files.size() > 1;
    std::unique_ptr<TraceReader> reader = open(std::make_unique<LineReader>(std::move(files)), format, options, path.string());
    if (several && reader->times() != TraceTimes::per_session && reader->format() != "sharegpt")
        throw UserError(path.string() + ": error: a folder of " + std::string(reader->format()) +
                        " files; only sessions and conversations are read from several");
    return reader;
}

std::unique_ptr<TraceReader> open_trace_text(std::string name, std::string text, std::string_view format,
                                             const TraceOptions& options) {
    return open(std::make_unique<LineReader>(name, std::move(text)), format, options, name);
}

}  // namespace kvsim
