// The written forms of scalars. The grammar stands in kvsim/config/schema.hpp.

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "kvsim/base/text.hpp"
#include "kvsim/config/schema.hpp"

namespace kvsim::config {

namespace {

struct Unit {
    std::string_view name;
    double factor;
};
constexpr std::array<Unit, 6> durations{// in nanoseconds
                                        {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"min", 60e9}, {"h", 3600e9}}};
constexpr std::array<Unit, 3> rates{{{"/s", 1}, {"/min", 60}, {"/h", 3600}}};  // events per second: divided by
constexpr std::array<Unit, 9> sizes{{{"B", 1},
                                     {"kB", 1e3},
                                     {"MB", 1e6},
                                     {"GB", 1e9},
                                     {"TB", 1e12},
                                     {"KiB", 1024.0},
                                     {"MiB", 1024.0 * 1024},
                                     {"GiB", 1024.0 * 1024 * 1024},
                                     {"TiB", 1024.0 * 1024 * 1024 * 1024}}};

constexpr double int64_limit = 9223372036854775808.0;  // 2^63, the first double that does not fit

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

std::string limit_text(double value) {
    return std::fabs(value) < 1e15 ? decimals(value, 9) : shortest(value);
}

std::string kind_name(const Value& value) {
    return value.is_list() ? "a list" : value.is_map() ? "a map" : "nothing";
}

std::string got(const Value& value) {
    return ", got " + (value.is_scalar() ? excerpt(value.scalar) : kind_name(value));
}

bool fail(const Value& value, std::string_view key, const std::string& what, Diagnostics& diagnostics) {
    diagnostics.error(value.mark, std::string(key) + " " + what);
    return false;
}

// A plain scalar; `form` is "an integer", "a duration such as `10s`", ...
bool plain_scalar(const Value& value, std::string_view key, const std::string& form, Diagnostics& diagnostics) {
    if (!value.is_scalar()) return fail(value, key, "must be " + form + got(value), diagnostics);
    if (value.quoted) {
        return fail(value, key, "must be " + form + ", got text; remove the quotes around '" + excerpt(value.scalar) + "'",
                    diagnostics);
    }
    return true;
}

template <class N>  // double or int64_t
bool in_range(const Value& value, N number, std::string_view key, const Range& range, std::string_view unit,
              Diagnostics& diagnostics) {
    const auto x = static_cast<double>(number);
    const auto with_unit = [&](double limit) { return limit_text(limit) + (limit == 0 ? "" : std::string(unit)); };
    if (range.open_min ? x <= range.min : x < range.min) {
        return fail(value, key,
                    (range.open_min ? "must be greater than " : "must be at least ") + with_unit(range.min) + got(value),
                    diagnostics);
    }
    if (range.open_max ? x >= range.max : x > range.max) {
        return fail(value, key,
                    (range.open_max ? "must be less than " : "must be at most ") + with_unit(range.max) + got(value),
                    diagnostics);
    }
    return true;
}

std::string_view without_sign(std::string_view text) {
    if (!text.empty() && (text[0] == '+' || text[0] == '-')) text.remove_prefix(1);
    return text;
}

bool all_digits(std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), is_digit);
}

// 010: decimal here, octal in YAML 1.1. The text to write instead, or empty.
std::string without_leading_zeros(std::string_view text) {
    const std::string_view digits = without_sign(text);
    std::size_t zeros = 0;
    while (zeros + 1 < digits.size() && digits[zeros] == '0' && is_digit(digits[zeros + 1])) ++zeros;
    if (zeros == 0) return "";
    return std::string(text.substr(0, text.size() - digits.size())) + std::string(digits.substr(zeros));
}

bool refuse_leading_zeros(const Value& value, std::string_view key, Diagnostics& diagnostics) {
    const std::string clean = without_leading_zeros(value.scalar);
    if (clean.empty()) return false;
    fail(value, key, "has a leading zero, which YAML may read as octal; write " + excerpt(clean), diagnostics);
    return true;
}

enum class Scan { ok, none, too_large };

// A decimal number at the start of `text`; `rest` is what follows. Never "inf", "nan" or hexadecimal.
Scan scan_number(std::string_view text, double& number, std::string_view& rest) {
    std::string_view digits = text;
    if (!digits.empty() && digits[0] == '+') digits.remove_prefix(1);
    const std::string_view unsigned_digits = without_sign(text);
    const bool starts =
        !unsigned_digits.empty() && (is_digit(unsigned_digits[0]) ||
                                     (unsigned_digits[0] == '.' && unsigned_digits.size() > 1 && is_digit(unsigned_digits[1])));
    if (!starts) return Scan::none;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (result.ec == std::errc::invalid_argument) return Scan::none;
    rest = digits.substr(static_cast<std::size_t>(result.ptr - digits.data()));
    return result.ec == std::errc::result_out_of_range ? Scan::too_large : Scan::ok;
}

// number [blank] unit. `form` as in plain_scalar; `example` shows how a bare number would be written.
bool quantity(const Value& value, double& number, double& factor, std::span<const Unit> units, std::string_view key,
              const std::string& form, std::string_view example_unit, Diagnostics& diagnostics) {
    if (!plain_scalar(value, key, form, diagnostics)) return false;
    if (refuse_leading_zeros(value, key, diagnostics)) return false;
    std::string_view unit;
    const Scan scan = scan_number(value.scalar, number, unit);
    if (scan == Scan::none) return fail(value, key, "must be " + form + got(value), diagnostics);
    if (scan == Scan::too_large) return fail(value, key, "is out of range" + got(value), diagnostics);
    const std::string_view written = std::string_view(value.scalar).substr(0, value.scalar.size() - unit.size());
    if (unit.empty()) {
        return fail(value, key, "needs a unit: write `" + excerpt(written) + std::string(example_unit) + "`", diagnostics);
    }
    while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
    for (const Unit& candidate : units) {
        if (candidate.name == unit) {
            factor = candidate.factor;
            return true;
        }
    }
    std::string names;
    for (const Unit& candidate : units) names += (names.empty() ? "" : ", ") + std::string(candidate.name);
    std::string message = "has the unknown unit '" + excerpt(unit) + "'";
    for (const Unit& candidate : units) {
        const bool same_but_case = candidate.name.size() == unit.size() && fold_name(unit) == fold_name(candidate.name);
        if (same_but_case) {
            return fail(value, key, message + "; did you mean '" + std::string(candidate.name) + "'? (one of: " + names + ")",
                        diagnostics);
        }
    }
    return fail(value, key, message + " (one of: " + names + ")", diagnostics);
}

// What `text` means as a whole number when it was written as 1e3, 3.0 or 1_000; empty if it is none.
std::string as_integer(std::string_view text) {
    std::string digits(text);
    digits.erase(std::remove_if(digits.begin(), digits.end(), [](char c) { return c == '_' || c == ','; }), digits.end());
    double number = 0;
    std::string_view rest;
    if (scan_number(digits, number, rest) != Scan::ok || !rest.empty()) return "";
    if (std::floor(number) != number || std::fabs(number) >= 1e15) return "";
    return decimals(number, 0);
}

}  // namespace

bool decode(const Value& value, bool& out, std::string_view key, const Range&, Diagnostics& diagnostics) {
    if (!plain_scalar(value, key, "true or false", diagnostics)) return false;
    const std::string_view text = value.scalar;
    if (text == "true" || text == "false") {
        out = text == "true";
        return true;
    }
    const std::string folded = fold_name(text);
    for (const std::string_view word : {"yes", "y", "on", "1", "true"}) {
        if (folded == word) return fail(value, key, "must be true or false" + got(value) + "; write true", diagnostics);
    }
    for (const std::string_view word : {"no", "n", "off", "0", "false"}) {
        if (folded == word) return fail(value, key, "must be true or false" + got(value) + "; write false", diagnostics);
    }
    return fail(value, key, "must be true or false" + got(value), diagnostics);
}

bool decode(const Value& value, std::int64_t& out, std::string_view key, const Range& range, Diagnostics& diagnostics) {
    if (!plain_scalar(value, key, "an integer", diagnostics)) return false;
    std::string_view text = value.scalar;
    if (!all_digits(without_sign(text))) {
        const std::string whole = as_integer(text);
        return fail(value, key, "must be an integer" + got(value) + (whole.empty() ? "" : "; write " + whole), diagnostics);
    }
    if (refuse_leading_zeros(value, key, diagnostics)) return false;
    if (text[0] == '+') text.remove_prefix(1);
    std::int64_t number = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc{}) {
        const bool negative = text[0] == '-';
        const double limit = negative ? range.min : range.max;
        if (std::isfinite(limit)) return in_range(value, negative ? -int64_limit : int64_limit, key, range, "", diagnostics);
        return fail(value, key, "does not fit 64 bits" + got(value), diagnostics);
    }
    if (!in_range(value, number, key, range, "", diagnostics)) return false;
    out = number;
    return true;
}

bool decode(const Value& value, Number& out, std::string_view key, const Range& range, Diagnostics& diagnostics) {
    if (!plain_scalar(value, key, "a number", diagnostics)) return false;
    if (refuse_leading_zeros(value, key, diagnostics)) return false;
    double number = 0;
    std::string_view rest;
    const Scan scan = scan_number(value.scalar, number, rest);
    if (scan == Scan::too_large) return fail(value, key, "is out of range" + got(value), diagnostics);
    if (scan == Scan::ok && rest == "%") {
        return fail(value, key, "must be a number" + got(value) + "; write " + shortest(number / 100), diagnostics);
    }
    if (scan == Scan::none || !rest.empty()) return fail(value, key, "must be a finite number" + got(value), diagnostics);
    if (!in_range(value, number, key, range, "", diagnostics)) return false;
    out = number;
    return true;
}

bool decode(const Value& value, std::string& out, std::string_view key, const Range&, Diagnostics& diagnostics) {
    if (!value.is_scalar()) return fail(value, key, "must be text" + got(value), diagnostics);
    if (value.scalar.empty()) return fail(value, key, "must not be empty", diagnostics);
    out = value.scalar;
    return true;
}

bool decode(const Value& value, SimDuration& out, std::string_view key, const Range& range, Diagnostics& diagnostics) {
    double number = 0;
    double factor = 0;
    if (!quantity(value, number, factor, durations, key, "a duration such as `10s`", "s", diagnostics)) return false;
    const double ns = std::round(number * factor);
    if (std::fabs(ns) >= int64_limit) {
        return fail(value, key, "is out of range: simulated time ends at 292 years" + got(value), diagnostics);
    }
    if (ns == 0 && number != 0) return fail(value, key, "is below the resolution of 1ns" + got(value), diagnostics);
    if (!in_range(value, ns / 1e9, key, range, "s", diagnostics)) return false;
    out = SimDuration(static_cast<std::int64_t>(ns));
    return true;
}

bool decode(const Value& value, FineDuration& out, std::string_view key, const Range& range, Diagnostics& diagnostics) {
    double number = 0;
    double factor = 0;
    if (!quantity(value, number, factor, durations, key, "a duration such as `10ms`", "ms", diagnostics)) return false;
    const double ns = number * factor;
    if (std::fabs(ns) >= int64_limit) {
        return fail(value, key, "is out of range: simulated time ends at 292 years" + got(value), diagnostics);
    }
    if (!in_range(value, ns / 1e9, key, range, "s", diagnostics)) return false;
    out.ns = ns;
    return true;
}

bool decode(const Value& value, Rate& out, std::string_view key, const Range& range, Diagnostics& diagnostics) {
    if (value.is_scalar() && !value.quoted && (value.scalar == "inf" || value.scalar == ".inf")) {
        if (std::isfinite(range.max)) return fail(value, key, "must be a finite rate such as `5/s`" + got(value), diagnostics);
        out.per_second = std::numeric_limits<double>::infinity();
        return true;
    }
    double number = 0;
    double factor = 0;
    if (!quantity(value, number, factor, rates, key, "a rate such as `5/s`", "/s", diagnostics)) return false;
    const double per_second = number / factor;
    if (!in_range(value, per_second, key, range, "/s", diagnostics)) return false;
    out.per_second = per_second;
    return true;
}

bool decode(const Value& value, Bytes& out, std::string_view key, const Range& range, Diagnostics& diagnostics) {
    if (key.ends_with("_bytes") && value.is_scalar() && !value.quoted && all_digits(without_sign(value.scalar))) {
        std::int64_t count = 0;
        if (!decode(value, count, key, range, diagnostics)) return false;
        out = Bytes(count);
        return true;
    }
    double number = 0;
    double factor = 0;
    if (!quantity(value, number, factor, sizes, key, "a size such as `12.3GiB`", "GiB", diagnostics)) return false;
    const double bytes = std::round(number * factor);
    if (std::fabs(bytes) >= int64_limit) return fail(value, key, "is out of range" + got(value), diagnostics);
    if (!in_range(value, bytes, key, range, "B", diagnostics)) return false;
    out = Bytes(static_cast<std::int64_t>(bytes));
    return true;
}

bool decode(const Value& value, Value& out, std::string_view key, const Range&, Diagnostics& diagnostics) {
    if (value.is_null()) return fail(value, key, "has no value", diagnostics);
    out = value;
    return true;
}

}  // namespace kvsim::config
