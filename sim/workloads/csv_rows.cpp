#include "csv_rows.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "decimal.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/model/token_ids.hpp"

namespace kvsim {

namespace {

bool is_ascii(std::string_view text) {
    unsigned char any = 0;
    for (const char c : text) any |= static_cast<unsigned char>(c);
    return any < 0x80;
}

bool split_quoted(std::string_view line, std::vector<std::string_view>& fields, std::string& unquoted, std::size_t& bad) {
    unquoted.clear();
    unquoted.reserve(line.size());  // views into it stay valid
    std::size_t at = 0;
    for (;;) {
        if (at < line.size() && line[at] == '"') {
            const std::size_t open = at++;
            const std::size_t from = unquoted.size();
            for (;;) {
                if (at >= line.size()) {
                    bad = open;
                    return false;
                }
                if (line[at] == '"') {
                    if (at + 1 >= line.size() || line[at + 1] != '"') break;
                    ++at;
                }
                unquoted.push_back(line[at++]);
            }
            ++at;
            if (at < line.size() && line[at] != ',') {
                bad = at;
                return false;
            }
            fields.emplace_back(unquoted.data() + from, unquoted.size() - from);
        } else {
            const std::size_t comma = std::min(line.find(',', at), line.size());
            fields.push_back(line.substr(at, comma - at));
            at = comma;
        }
        if (at >= line.size()) return true;
        ++at;
    }
}

}  // namespace

bool split_csv(std::string_view line, std::vector<std::string_view>& fields, std::string& unquoted, std::size_t& bad) {
    fields.clear();
    if (line.find('"') != std::string_view::npos) return split_quoted(line, fields, unquoted, bad);
    const char* from = line.data();
    const char* const end = from + line.size();
    for (const char* p = from; p != end; ++p) {
        if (*p != ',') continue;
        fields.emplace_back(from, static_cast<std::size_t>(p - from));
        from = p + 1;
    }
    fields.emplace_back(from, static_cast<std::size_t>(end - from));
    return true;
}

CsvRows::CsvRows(std::unique_ptr<LineReader> lines, std::string_view format, std::span<const CsvColumn> columns)
    : lines_(std::move(lines)), format_(format), columns_(columns) {
    std::size_t bad = 0;
    if (!lines_->next(line_)) lines_->fail_trace(1, "the trace has no rows");
    if (!split_csv(line_, fields_, unquoted_, bad)) lines_->fail_trace(bad + 1, "malformed quotes in the header");
    width_ = fields_.size();
    const auto find = [this](std::string_view wanted) {
        int found = -1;
        for (std::size_t i = 0; i < fields_.size(); ++i) {
            std::string name(trimmed(fields_[i]));
            for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
            if (name != wanted) continue;
            if (found >= 0) lines_->fail_trace(1, "the header has the column '" + name + "' twice");
            found = static_cast<int>(i);
        }
        return found;
    };
    std::string missing;
    for (const CsvColumn& column : columns_) {
        const int found = find(column.name);
        if (found < 0 && column.required) missing += (missing.empty() ? "'" : ", '") + std::string(column.name) + "'";
        where_.push_back(found);
    }
    tenant_ = find("tenant");
    if (!missing.empty()) lines_->fail_trace(1, "the header lacks " + missing);
}

bool CsvRows::next(TraceRow& row) {
    while (lines_->next(line_)) {
        if (trimmed(line_).empty()) {
            if (blank_ == 0) blank_ = lines_->line_number();
            continue;
        }
        if (blank_ != 0) {
            lines_->again();
            lines_->fail(1, "a row after blank line " + std::to_string(std::exchange(blank_, 0)));
        }
        if (!is_ascii(line_)) {
            const std::size_t bad = find_invalid_utf8(line_);
            if (bad != std::string_view::npos) lines_->fail(bad + 1, "not UTF-8");
        }
        std::size_t bad = 0;
        if (!split_csv(line_, fields_, unquoted_, bad))
            lines_->fail(bad + 1, line_[bad] == '"' ? "a quote without its end" : "text after a closing quote");
        if (fields_.size() < width_)
            lines_->fail(line_.size() + 1, "the line ends early: " + std::to_string(fields_.size()) +
                                               " fields, the header has " + std::to_string(width_) +
                                               "; is the file truncated?");
        if (fields_.size() > width_)
            lines_->fail(1, std::to_string(fields_.size()) + " fields, the header has " + std::to_string(width_));
        row.reset();
        if (!parse(row)) {
            ++left_out_;
            continue;
        }
        if (tenant_ >= 0) row.tenant = fields_[static_cast<std::size_t>(tenant_)];
        any_row_ = true;
        return true;
    }
    if (!any_row_) lines_->fail_trace(1, "the trace has no rows");
    return false;
}

std::vector<std::string> CsvRows::notes() const {
    if (left_out_ == 0) return {};
    return {std::to_string(left_out_) + " " + std::string(left_out()) + " left out"};
}

void CsvRows::fail(std::size_t column, std::size_t offset, const std::string& message) const {
    const char* const at = field(column).data();
    const bool in_line = at >= line_.data() && at <= line_.data() + line_.size();
    lines_->fail(in_line ? static_cast<std::size_t>(at - line_.data()) + offset + 1 : 1, message);
}

std::int64_t CsvRows::tokens(std::size_t column, std::int64_t low) const {
    const std::string_view text = field(column);
    const char* p = text.data();
    const char* const end = p + text.size();
    std::int64_t value = 0;
    for (; p != end && is_digit(*p); ++p) value = std::min(max_request_tokens + 1, value * 10 + (*p - '0'));
    bool whole = p != text.data();
    if (p != end && *p == '.') {
        ++p;
        while (p != end && *p == '0') ++p;
    }
    whole = whole && p == end;
    if (!whole) fail(column, 0, std::string(columns_[column].name) + " must be a whole number");
    if (value < low || value > max_request_tokens)
        fail(column, 0,
             std::string(columns_[column].name) + " " + std::string(text) + " is outside [" + std::to_string(low) + ", " +
                 std::to_string(max_request_tokens) + "]");
    return value;
}

std::int64_t CsvRows::seconds(std::size_t column) const {
    const std::string_view text = field(column);
    const char* p = text.data();
    const char* const end = p + text.size();
    Decimal d;
    if (!read_decimal(p, end, d) || p != end)
        fail(column, 0, std::string(columns_[column].name) + " must be a number of seconds >= 0");
    const std::optional<std::int64_t> ns = to_nanoseconds(d, 9);
    if (!ns) fail(column, 0, std::string(columns_[column].name) + " is too large");
    return *ns;
}

void CsvRows::check_sorted(const TraceRow& row, std::size_t column) {
    if (row.time < last_) fail(column, 0, "timestamp before the previous row's; rows must be sorted");
    last_ = row.time;
}

}  // namespace kvsim
