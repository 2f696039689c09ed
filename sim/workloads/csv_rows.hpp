#pragma once
// What the CSV formats share: columns found by the header's names, in any order, further ones ignored.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvsim/model/trace.hpp"
#include "line_reader.hpp"

namespace kvsim {

/// The fields of a line; a field in quotes may hold commas, and two quotes for one. Fields are views into the line or
/// `unquoted`. Nullopt, with `bad` where it goes wrong: a quote without its end, or text behind one.
bool split_csv(std::string_view line, std::vector<std::string_view>& fields, std::string& unquoted, std::size_t& bad);

struct CsvColumn {
    std::string_view name;  ///< in lower case; the header's is compared without case
    bool required = true;
};

class CsvRows : public TraceReader {
public:
    bool next(TraceRow& row) final;
    [[nodiscard]] std::string_view format() const final { return format_; }
    [[nodiscard]] std::vector<std::string> notes() const override;

protected:
    CsvRows(std::unique_ptr<LineReader> lines, std::string_view format, std::span<const CsvColumn> columns);

    /// Fields are at hand. False: the row is left out.
    virtual bool parse(TraceRow& row) = 0;
    /// What left_out rows are, in words, for the notes.
    [[nodiscard]] virtual std::string_view left_out() const { return ""; }

    [[nodiscard]] bool has(std::size_t column) const { return where_[column] >= 0; }
    [[nodiscard]] std::string_view field(std::size_t column) const { return fields_[static_cast<std::size_t>(where_[column])]; }
    /// A whole number in [low, max_request_tokens]; `374.0` will do.
    [[nodiscard]] std::int64_t tokens(std::size_t column, std::int64_t low = 1) const;
    /// Seconds >= 0 as exact nanoseconds.
    [[nodiscard]] std::int64_t seconds(std::size_t column) const;
    /// Refuses a time before the previous row's; called last: it remembers the time.
    void check_sorted(const TraceRow& row, std::size_t column);
    [[noreturn]] void fail(std::size_t column, std::size_t offset, const std::string& message) const;

private:
    std::unique_ptr<LineReader> lines_;
    std::string_view format_;
    std::span<const CsvColumn> columns_;
    std::vector<int> where_;  ///< by column: index of its field, -1: not there
    int tenant_ = -1;         ///< the same of the column `tenant`, which every format may have
    std::size_t width_ = 0;   ///< fields of the header
    std::string_view line_;
    std::vector<std::string_view> fields_;
    std::string unquoted_;
    bool any_row_ = false;
    std::int64_t blank_ = 0;
    std::int64_t left_out_ = 0;
    SimTime last_{};
};

}  // namespace kvsim
