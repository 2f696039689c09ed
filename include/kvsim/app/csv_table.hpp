#pragma once
// A CSV file with a header line as rows of cells, kept as text until somebody asks for a number.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim::app {

/// RFC 4180; LF or CRLF; a byte order mark is skipped. Cells are at most 16 MiB together.
class CsvTable {
public:
    struct Row {
        std::int64_t line = 0;  ///< where it begins, from 1
        std::vector<std::string> cells;
    };

    /// Throws UserError `name:line: error: ...`: no header, a quote that never closes, a row with more or fewer cells than the
    /// header, a column named twice.
    CsvTable(std::string name, std::string_view text);

    [[nodiscard]] const std::string& name() const { return name_; }
    [[nodiscard]] const std::vector<Row>& rows() const { return rows_; }
    [[nodiscard]] const std::vector<std::string>& columns() const { return columns_; }
    [[nodiscard]] bool has(std::string_view column) const { return index(column) >= 0; }
    /// Throws UserError with the nearest column unless all of them are there.
    void need(std::initializer_list<std::string_view> columns) const;

    /// The cell, without surrounding blanks; empty when the file has no such column.
    [[nodiscard]] std::string text(const Row& row, std::string_view column) const;
    /// nullopt for an empty cell. Throws UserError with line and column for anything that is no finite number.
    [[nodiscard]] std::optional<double> number(const Row& row, std::string_view column) const;
    /// number() that must be whole and in [min, max].
    [[nodiscard]] std::optional<std::int64_t> integer(const Row& row, std::string_view column, std::int64_t min,
                                                      std::int64_t max) const;

private:
    [[nodiscard]] int index(std::string_view column) const;
    [[noreturn]] void refuse(const Row& row, std::string_view column, const std::string& message) const;
    std::string name_;
    std::vector<std::string> columns_;
    std::vector<Row> rows_;
};

}  // namespace kvsim::app
