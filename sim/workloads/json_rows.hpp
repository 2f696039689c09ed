#pragma once
// What the formats with one JSON object per line share.

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "json_parser.hpp"
#include "kvsim/model/trace.hpp"
#include "line_reader.hpp"

namespace kvsim {

/// Keys nobody knows: each is remembered once (the first 16), and refused twice in one row.
class UnknownKeys {
public:
    void start_row() { row_.clear(); }
    void add(const JsonParser& parser, std::string_view key, const char* mark);
    [[nodiscard]] const std::vector<std::string>& all() const { return all_; }

private:
    std::vector<std::string> row_;
    std::vector<std::string> all_;
};

/// Blank lines may only stand at the end; byte order mark, CRLF and a missing last newline are LineReader's.
class JsonRows : public TraceReader {
public:
    bool next(TraceRow& row) final;
    [[nodiscard]] std::string_view format() const final { return format_; }
    [[nodiscard]] std::vector<std::string> unknown_keys() const final { return unknown_.all(); }

protected:
    /// `required`: bit k for names[k].
    JsonRows(std::unique_ptr<LineReader> lines, std::string_view format, std::span<const std::string_view> names,
             std::uint32_t required)
        : lines_(std::move(lines)),
          parser_(*lines_),
          format_(format),
          names_(names.begin(), names.end()),
          required_(required) {}

    /// One more key, which must be there; its number.
    std::size_t require_name(const std::string& name);
    /// A further row of the line that gave the last one.
    virtual bool more(TraceRow& row) {
        static_cast<void>(row);
        return false;
    }

    /// The cursor is at the value of names[k].
    virtual void value(std::size_t k, TraceRow& row) = 0;
    /// After the last key; `seen` has bit k for names[k]. False: the row is left out.
    virtual bool finish(std::uint32_t seen, TraceRow& row) = 0;
    /// Refuses a time before the previous row's; `mark` is where the time stands. Called last: it remembers the time.
    void check_sorted(const TraceRow& row, const char* mark);
    [[nodiscard]] LineReader& lines() { return *lines_; }
    [[nodiscard]] JsonParser& parser() { return parser_; }
    [[nodiscard]] std::string& scratch() { return scratch_; }

private:
    bool parse(std::string_view line, TraceRow& row);
    std::unique_ptr<LineReader> lines_;
    JsonParser parser_;
    std::string_view format_;
    std::vector<std::string_view> names_;
    std::deque<std::string> own_names_;
    std::uint32_t required_;
    bool any_row_ = false;
    std::int64_t blank_ = 0;  ///< a line without a row before the current one
    SimTime last_{};
    std::string scratch_;
    UnknownKeys unknown_;
};

}  // namespace kvsim
