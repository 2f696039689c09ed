// The Azure LLM inference traces of 2023 and 2024: CSV with TIMESTAMP, ContextTokens, GeneratedTokens. Timestamps are
// `2023-11-16 18:15:46.6805900` (up to nine fractional digits, or none); the 2024 files add `+00:00`. The first row arrives at
// 0. Content is unknown: nothing is shared.

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "csv_rows.hpp"
#include "decimal.hpp"

namespace kvsim {

namespace {

constexpr std::int64_t ns_per_s = 1'000'000'000;

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

enum Column : std::size_t { timestamp, context, generated };
constexpr std::array<CsvColumn, 3> columns{{{"timestamp"}, {"contexttokens"}, {"generatedtokens"}}};

class Azure final : public CsvRows {
public:
    explicit Azure(std::unique_ptr<LineReader> lines) : CsvRows(std::move(lines), "azure", columns) {}

protected:
    bool parse(TraceRow& row) override {
        text_ = field(timestamp);
        at_ = 0;
        const std::int64_t local_s = date_and_time();
        const std::int64_t fraction = fraction_ns();
        const std::int64_t seconds = local_s - zone_s();
        if (at_ != text_.size()) fail(timestamp, at_, "text after the timestamp");
        row.input_length = tokens(context);
        row.output_length = tokens(generated);
        if (!first_s_) {
            first_s_ = seconds;
            first_fraction_ = fraction;
        }
        // At most 146 years apart, so that nanoseconds fit.
        const std::int64_t since_s = seconds - *first_s_;
        if (since_s > INT64_MAX / 2 / ns_per_s) fail(timestamp, 0, "timestamp too far from the first row's");
        const std::int64_t t = since_s < 0 ? -1 : since_s * ns_per_s + fraction - first_fraction_;
        row.time = SimTime(SimDuration(t));
        check_sorted(row, timestamp);
        return true;
    }

private:
    [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

    std::int64_t date_and_time() {
        // `d` a digit, `_` a blank or a T, anything else itself.
        constexpr std::string_view shape = "dddd-dd-dd_dd:dd:dd";
        std::array<int, 6> part{};
        std::size_t of = 0;
        for (std::size_t i = 0; i < shape.size(); ++i, ++at_) {
            const char c = peek();
            const bool good = shape[i] == 'd' ? is_digit(c) : shape[i] == '_' ? c == ' ' || c == 'T' : c == shape[i];
            if (!good) fail(timestamp, at_, "expected a timestamp like 2023-11-16 18:15:46.6805900");
            if (shape[i] == 'd') {
                part[of] = part[of] * 10 + (c - '0');
            } else {
                ++of;
            }
        }
        const auto [year, month, day, hour, minute, second] = part;
        constexpr std::array<int, 12> lengths{31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
        const bool good = year >= 1 && month >= 1 && month <= 12 && day >= 1 &&
                          day <= lengths[static_cast<std::size_t>(month - 1)] + (month == 2 && is_leap(year) ? 1 : 0) &&
                          hour < 24 && minute < 60 && second < 60;
        if (!good) fail(timestamp, 0, "no such date or time");
        return days_from_civil(year, month, day) * 86'400 + hour * 3'600 + minute * 60 + second;
    }

    std::int64_t fraction_ns() {
        if (peek() != '.') return 0;
        ++at_;
        std::int64_t ns = 0;
        int digits = 0;
        for (; is_digit(peek()); ++at_, ++digits) {
            if (digits == 9) fail(timestamp, at_, "more than nine fractional digits");
            ns = ns * 10 + (peek() - '0');
        }
        if (digits == 0) fail(timestamp, at_, "expected fractional digits");
        for (; digits < 9; ++digits) ns *= 10;
        return ns;
    }

    /// What the zone is ahead of UTC.
    std::int64_t zone_s() {
        const char sign = peek();
        if (sign == 'Z') {
            ++at_;
            return 0;
        }
        if (sign != '+' && sign != '-') return 0;
        ++at_;
        int minutes = 0;
        constexpr std::string_view shape = "dd:dd";
        std::array<int, 2> part{};
        for (std::size_t i = 0; i < shape.size(); ++i, ++at_) {
            const char c = peek();
            if (shape[i] == 'd' ? !is_digit(c) : c != ':') fail(timestamp, at_, "expected a zone like +00:00");
            if (shape[i] == 'd') part[i / 3] = part[i / 3] * 10 + (c - '0');
        }
        minutes = part[0] * 60 + part[1];
        if (part[0] > 23 || part[1] > 59) fail(timestamp, 0, "no such zone");
        return (sign == '-' ? -60 : 60) * static_cast<std::int64_t>(minutes);
    }

    std::string_view text_;
    std::size_t at_ = 0;
    std::optional<std::int64_t> first_s_;
    std::int64_t first_fraction_ = 0;
};

}  // namespace

bool matches_azure(const TraceHead& head) {
    return !head.json && (head.has("contexttokens") || head.text.substr(0, 9) == "TIMESTAMP");
}

std::vector<config::FieldDoc> azure_docs() {
    return {};
}

std::unique_ptr<TraceReader> open_azure(std::unique_ptr<LineReader> lines, const TraceOptions&) {
    return std::make_unique<Azure>(std::move(lines));
}

}  // namespace kvsim
