#include "kvsim/app/csv_table.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"

namespace kvsim::app {

CsvTable::CsvTable(std::string name, std::string_view text) : name_(std::move(name)) {
    if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
    const auto fail = [&](std::int64_t line, const std::string& message) {
        throw UserError(name_ + ":" + std::to_string(line) + ": error: " + message);
    };
    std::int64_t line = 1;
    Row row{1, {}};
    std::string cell;
    bool quoted = false;
    bool was_quoted = false;
    const auto end_row = [&] {
        row.cells.push_back(std::move(cell));
        cell.clear();
        const bool blank = row.cells.size() == 1 && row.cells[0].empty() && !was_quoted;
        was_quoted = false;
        if (blank) {
            row.cells.clear();
        } else if (columns_.empty()) {
            columns_ = std::move(row.cells);
        } else if (row.cells.size() != columns_.size()) {
            fail(row.line, std::to_string(row.cells.size()) + " cells, the header has " + std::to_string(columns_.size()));
        } else {
            rows_.push_back(std::move(row));
        }
        row = Row{line, {}};
    };
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (c == '\n') ++line;
        if (quoted) {
            if (c != '"') {
                cell += c;
            } else if (i + 1 < text.size() && text[i + 1] == '"') {
                cell += text[++i];
            } else {
                quoted = false;
            }
        } else if (c == '"' && cell.empty()) {
            quoted = was_quoted = true;
        } else if (c == ',') {
            row.cells.push_back(std::move(cell));
            cell.clear();
        } else if (c == '\n') {
            end_row();
        } else if (c != '\r' || (i + 1 < text.size() && text[i + 1] != '\n')) {
            cell += c;
        }
    }
    if (quoted) fail(row.line, "a quoted cell never ends");
    if (!cell.empty() || !row.cells.empty()) end_row();
    if (columns_.empty()) fail(1, "no header line");
    for (std::size_t i = 0; i < columns_.size(); ++i) {
        if (std::find(columns_.begin(), columns_.begin() + static_cast<std::ptrdiff_t>(i), columns_[i]) !=
            columns_.begin() + static_cast<std::ptrdiff_t>(i)) {
            fail(1, "column '" + excerpt(columns_[i]) + "' stands twice in the header");
        }
    }
}

int CsvTable::index(std::string_view column) const {
    const auto at = std::find(columns_.begin(), columns_.end(), column);
    return at == columns_.end() ? -1 : static_cast<int>(at - columns_.begin());
}

void CsvTable::need(std::initializer_list<std::string_view> columns) const {
    const std::vector<std::string_view> known(columns_.begin(), columns_.end());
    for (const std::string_view column : columns) {
        if (has(column)) continue;
        const std::string_view near = nearest(column, known);
        throw UserError(name_ + ":1: error: column '" + std::string(column) + "' is missing" +
                        (near.empty() ? "" : "; is '" + excerpt(near) + "' meant?"));
    }
}

std::string CsvTable::text(const Row& row, std::string_view column) const {
    const int at = index(column);
    if (at < 0) return "";
    const std::string& cell = row.cells[static_cast<std::size_t>(at)];
    const std::size_t first = cell.find_first_not_of(" \t");
    return first == std::string::npos ? "" : cell.substr(first, cell.find_last_not_of(" \t") - first + 1);
}

void CsvTable::refuse(const Row& row, std::string_view column, const std::string& message) const {
    throw UserError(name_ + ":" + std::to_string(row.line) + ": error: " + std::string(column) + ": " + message);
}

std::optional<double> CsvTable::number(const Row& row, std::string_view column) const {
    const std::string cell = text(row, column);
    if (cell.empty()) return std::nullopt;
    double value = 0;
    const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (error != std::errc() || end != cell.data() + cell.size() || !std::isfinite(value)) {
        refuse(row, column, "'" + excerpt(cell) + "' is no number");
    }
    return value;
}

std::optional<std::int64_t> CsvTable::integer(const Row& row, std::string_view column, std::int64_t min,
                                              std::int64_t max) const {
    const std::optional<double> value = number(row, column);
    if (!value) return std::nullopt;
    if (*value != std::floor(*value) || *value < static_cast<double>(min) || *value > static_cast<double>(max)) {
        refuse(
            row, column,
            "must be a whole number from " + std::to_string(min) + " to " + std::to_string(max) + ", is " + shortest(*value));
    }
    return static_cast<std::int64_t>(*value);
}

}  // namespace kvsim::app
