#pragma once
// Decimal numbers as exact nanoseconds.

#include <cstdint>
#include <optional>

namespace kvsim {

constexpr bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/// digits * 10^exponent; 19 significant digits are kept, the rest cannot move a nanosecond.
struct Decimal {
    std::uint64_t digits = 0;
    int exponent = 0;
};

/// Digits, perhaps a fraction, perhaps an exponent; no sign. False, with `p` where it goes wrong, when that is not what stands
/// there.
inline bool read_decimal(const char*& p, const char* end, Decimal& d) {
    constexpr std::uint64_t full = 1'000'000'000'000'000'000ULL;
    const auto take = [&](bool fraction) {
        const char* from = p;
        for (; p != end && is_digit(*p); ++p) {
            if (d.digits < full) {
                d.digits = d.digits * 10 + static_cast<std::uint64_t>(*p - '0');
                if (fraction) --d.exponent;
            } else if (!fraction) {
                ++d.exponent;
            }
        }
        return p != from;
    };
    if (!take(false)) return false;
    if (p != end && *p == '.') {
        ++p;
        if (!take(true)) return false;
    }
    if (p != end && (*p == 'e' || *p == 'E')) {
        ++p;
        const bool negative = p != end && *p == '-';
        if (p != end && (*p == '-' || *p == '+')) ++p;
        if (p == end || !is_digit(*p)) return false;
        int exponent = 0;
        for (; p != end && is_digit(*p); ++p) exponent = exponent >= 1000 ? 10'000 : exponent * 10 + (*p - '0');
        d.exponent += negative ? -exponent : exponent;
    }
    return true;
}

/// In units of 10^`unit` ns (9: seconds), to the nearest nanosecond, half up; nullopt above 2^62 ns (146 years: there is room
/// for the run after the last arrival).
inline std::optional<std::int64_t> to_nanoseconds(const Decimal& d, int unit) {
    constexpr std::uint64_t limit = std::uint64_t{1} << 62;
    std::uint64_t ns = d.digits;
    int exponent = d.exponent + unit;
    for (; exponent > 0 && ns != 0; --exponent) {
        if (ns > limit / 10) return std::nullopt;
        ns *= 10;
    }
    bool up = false;
    for (; exponent < 0 && (ns != 0 || up); ++exponent) {
        up = ns % 10 >= 5;
        ns /= 10;
    }
    if (ns > limit) return std::nullopt;
    return static_cast<std::int64_t>(ns + (up ? 1 : 0));
}

}  // namespace kvsim
