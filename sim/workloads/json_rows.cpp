#include "json_rows.hpp"

#include <algorithm>
#include <utility>

#include "kvsim/base/text.hpp"

namespace kvsim {

void UnknownKeys::add(const JsonParser& parser, std::string_view key, const char* mark) {
    if (std::find(row_.begin(), row_.end(), key) != row_.end()) parser.fail(mark, "duplicate key '" + std::string(key) + "'");
    row_.emplace_back(key);
    constexpr std::size_t enough = 16;
    if (all_.size() < enough && std::find(all_.begin(), all_.end(), key) == all_.end()) all_.emplace_back(key);
}

std::size_t JsonRows::require_name(const std::string& name) {
    const auto known = std::find(names_.begin(), names_.end(), name);
    const auto k = static_cast<std::size_t>(known - names_.begin());
    if (known == names_.end()) names_.push_back(own_names_.emplace_back(name));
    required_ |= std::uint32_t{1} << k;
    return k;
}

bool JsonRows::next(TraceRow& row) {
    if (more(row)) return true;
    std::string_view line;
    while (lines_->next(line)) {
        if (line.find_first_not_of(" \t") == std::string_view::npos) {
            if (blank_ == 0) blank_ = lines_->line_number();
            continue;
        }
        if (blank_ != 0) {
            lines_->again();
            lines_->fail(1, "a row after blank line " + std::to_string(std::exchange(blank_, 0)));
        }
        if (!parse(line, row)) continue;
        any_row_ = true;
        return true;
    }
    if (!any_row_) lines_->fail_trace(1, "the trace has no rows");
    return false;
}

bool JsonRows::parse(std::string_view line, TraceRow& row) {
    row.reset();
    unknown_.start_row();
    JsonParser& p = parser_;
    p.start(line);
    p.skip_space();
    const std::uint32_t seen = p.object(
        names_, scratch_, [&](std::size_t k) { value(k, row); },
        [&](std::string_view key, const char* mark) { unknown_.add(p, key, mark); });
    p.skip_space();
    if (!p.at_end()) p.fail(p.here(), "text after the object");
    if ((seen & required_) != required_) {
        std::size_t k = 0;
        while ((required_ >> k & 1U) == 0 || (seen >> k & 1U) != 0) ++k;
        lines_->fail(1, "missing key '" + std::string(names_[k]) + "'");
    }
    return finish(seen, row);
}

void JsonRows::check_sorted(const TraceRow& row, const char* mark) {
    if (row.time < last_)
        parser_.fail(mark, "timestamp " + decimals(to_ms(row.time.time_since_epoch()), 6) + " is before the previous row's " +
                               decimals(to_ms(last_.time_since_epoch()), 6) + "; rows must be sorted");
    last_ = row.time;
}

}  // namespace kvsim
