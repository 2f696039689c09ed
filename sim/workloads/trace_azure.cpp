// The Azure LLM inference traces: `TIMESTAMP,ContextTokens,GeneratedTokens`, timestamps as `2023-11-16 18:15:46.6805900` (up
// to nine fractional digits; the 2024 files add `+00:00`). The first row arrives at 0. Content is unknown: nothing is shared.

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "kvsim/model/token_ids.hpp"
#include "kvsim/model/trace.hpp"
#include "line_reader.hpp"

namespace kvsim {

namespace {

constexpr std::string_view header = "TIMESTAMP,ContextTokens,GeneratedTokens";
constexpr std::int64_t ns_per_s = 1'000'000'000;

constexpr bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

constexpr bool is_leap(int year) {
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

/// Days since 1970-01-01 of a proleptic Gregorian date.
constexpr std::int64_t days_from_civil(int year, int month, int day) {
    const std::int64_t y = month <= 2 ? year - 1 : year;
    const std::int64_t era = y / 400;  // years are 0000 to 9999; year 0 before March is refused
    const std::int64_t of_era = y - era * 400;
    const std::int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146'097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719'468;
}
static_assert(days_from_civil(1970, 1, 1) == 0 && days_from_civil(2024, 3, 1) == 19'783);

class Azure : public TraceReader {
public:
    explicit Azure(std::unique_ptr<LineReader> lines) : lines_(std::move(lines)) {}

    [[nodiscard]] std::string_view format() const override { return "azure"; }

    bool next(TraceRow& row) override {
        if (!headed_) {
            if (!lines_->next(line_)) return end();
            if (line_ != header) lines_->fail(1, "the header must be '" + std::string(header) + "'");
            headed_ = true;
        }
        if (!lines_->next(line_)) return end();
        if (line_.empty()) {
            const std::int64_t blank = lines_->line_number();
            while (lines_->next(line_)) {
                if (!line_.empty()) lines_->fail(1, "a row after blank line " + std::to_string(blank));
            }
            return end();
        }
        row = TraceRow{};
        at_ = 0;
        const std::int64_t seconds = date_and_time();
        const std::int64_t fraction = fraction_ns();
        zone();
        comma();
        row.input_length = tokens("ContextTokens");
        comma();
        row.output_length = tokens("GeneratedTokens");
        if (at_ != line_.size()) lines_->fail(at_ + 1, "text after the third field");
        if (!first_s_) first_s_ = seconds;
        // Two dates at most 146 years apart, so the difference fits; the first row's fraction is subtracted at the end.
        const std::int64_t since_s = seconds - *first_s_;
        if (since_s > INT64_MAX / 2 / ns_per_s) lines_->fail(1, "timestamp too far from the first row's");
        if (since_s < 0) unsorted();
        if (first_fraction_ < 0) first_fraction_ = fraction;
        const std::int64_t t = since_s * ns_per_s + fraction - first_fraction_;
        if (t < last_) unsorted();
        last_ = t;
        row.time = SimTime(SimDuration(t));
        return true;
    }

private:
    bool end() const {
        if (!first_s_) lines_->fail(1, "the trace has no rows");
        return false;
    }
    [[noreturn]] void unsorted() const { lines_->fail(1, "timestamp before the previous row's; rows must be sorted"); }
    [[nodiscard]] char peek() const { return at_ < line_.size() ? line_[at_] : '\0'; }

    void comma() {
        if (peek() != ',')
            lines_->fail(at_ + 1, at_ >= line_.size() ? "the line ends early; is the file truncated?" : "expected ','");
        ++at_;
    }

    std::int64_t date_and_time() {
        // `d` a digit, anything else itself.
        constexpr std::string_view shape = "dddd-dd-dd dd:dd:dd";
        std::array<int, 6> part{};
        std::size_t field = 0;
        for (std::size_t i = 0; i < shape.size(); ++i, ++at_) {
            const char c = peek();
            if (shape[i] == 'd' ? !is_digit(c) : c != shape[i])
                lines_->fail(at_ + 1, "expected a timestamp like 2023-11-16 18:15:46.6805900");
            if (shape[i] == 'd') {
                part[field] = part[field] * 10 + (c - '0');
            } else {
                ++field;
            }
        }
        const auto [year, month, day, hour, minute, second] = part;
        constexpr std::array<int, 12> lengths{31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
        const bool good = year >= 1 && month >= 1 && month <= 12 && day >= 1 &&
                          day <= lengths[static_cast<std::size_t>(month - 1)] + (month == 2 && is_leap(year) ? 1 : 0) &&
                          hour < 24 && minute < 60 && second < 60;
        if (!good) lines_->fail(1, "no such date or time");
        return days_from_civil(year, month, day) * 86'400 + hour * 3'600 + minute * 60 + second;
    }

    std::int64_t fraction_ns() {
        if (peek() != '.') return 0;
        ++at_;
        std::int64_t ns = 0;
        int digits = 0;
        for (; is_digit(peek()); ++at_, ++digits) {
            if (digits == 9) lines_->fail(at_ + 1, "more than nine fractional digits");
            ns = ns * 10 + (peek() - '0');
        }
        if (digits == 0) lines_->fail(at_ + 1, "expected fractional digits");
        for (; digits < 9; ++digits) ns *= 10;
        return ns;
    }

    void zone() {
        for (const std::string_view utc : {std::string_view("+00:00"), std::string_view("Z")}) {
            if (line_.substr(at_, utc.size()) == utc) {
                at_ += utc.size();
                return;
            }
        }
    }

    std::int64_t tokens(std::string_view column) {
        const std::size_t from = at_;
        std::int64_t value = 0;
        for (; is_digit(peek()); ++at_) value = std::min(max_request_tokens + 1, value * 10 + (peek() - '0'));
        if (at_ == from || (peek() != ',' && peek() != '\0'))
            lines_->fail(from + 1, std::string(column) + " must be a whole number");
        if (value < 1 || value > max_request_tokens)
            lines_->fail(from + 1, std::string(column) + " " + std::string(line_.substr(from, at_ - from)) +
                                       " is outside [1, " + std::to_string(max_request_tokens) + "]");
        return value;
    }

    std::unique_ptr<LineReader> lines_;
    bool headed_ = false;
    std::string_view line_;
    std::size_t at_ = 0;
    std::optional<std::int64_t> first_s_;
    std::int64_t first_fraction_ = -1;
    std::int64_t last_ = 0;
};

}  // namespace

std::vector<config::FieldDoc> azure_docs() {
    return {};
}

std::unique_ptr<TraceReader> open_azure(std::unique_ptr<LineReader> lines, const TraceOptions&) {
    return std::make_unique<Azure>(std::move(lines));
}

}  // namespace kvsim
