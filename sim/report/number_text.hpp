#pragma once
// Appending numbers and JSON texts to a buffer, shared by the writers.

#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace kvsim {

/// Enough for any int64 in either form below.
inline constexpr std::size_t number_room = 32;

/// "00" to "99", one after the other.
inline constexpr std::array<char, 200> digit_pairs = [] {
    std::array<char, 200> pairs{};
    for (std::size_t i = 0; i < 100; ++i) {
        pairs[2 * i] = static_cast<char>('0' + i / 10);
        pairs[2 * i + 1] = static_cast<char>('0' + i % 10);
    }
    return pairs;
}();

/// Most numbers here are small; the others go to the library.
inline char* put_integer(char* to, std::int64_t value) {
    if (value < 0 || value > 99'999'999) return std::to_chars(to, to + number_room, value).ptr;
    const auto pair = [&to](std::uint32_t two) {
        std::memcpy(to, digit_pairs.data() + std::size_t{2} * two, 2);
        to += 2;
    };
    auto rest = static_cast<std::uint32_t>(value);
    if (rest >= 10'000) {
        const std::uint32_t high = rest / 10'000;  // what follows the leading pair is written whole
        rest %= 10'000;
        if (high >= 100) {
            if (high < 1'000) {
                *to++ = static_cast<char>('0' + high / 100);
            } else {
                pair(high / 100);
            }
            pair(high % 100);
        } else if (high < 10) {
            *to++ = static_cast<char>('0' + high);
        } else {
            pair(high);
        }
        pair(rest / 100);
    } else if (rest >= 100) {
        if (rest < 1'000) {
            *to++ = static_cast<char>('0' + rest / 100);
        } else {
            pair(rest / 100);
        }
    } else if (rest < 10) {
        *to++ = static_cast<char>('0' + rest);
        return to;
    }
    pair(rest % 100);
    return to;
}

/// value / 10^digits exactly, trailing zeros and a bare point dropped; value >= 0, digits in [1, 9].
inline char* put_scaled(char* to, std::int64_t value, int digits) {
    std::int64_t scale = 1;
    for (int i = 0; i < digits; ++i) scale *= 10;
    to = put_integer(to, value / scale);
    std::int64_t fraction = value % scale;
    if (fraction == 0) return to;
    *to++ = '.';
    while (fraction != 0) {
        scale /= 10;
        *to++ = static_cast<char>('0' + fraction / scale);
        fraction %= scale;
    }
    return to;
}

inline void append_integer(std::string& out, std::int64_t value) {
    char text[number_room];
    out.append(text, put_integer(text, value));
}
inline void append_scaled(std::string& out, std::int64_t value, int digits) {
    char text[number_room];
    out.append(text, put_scaled(text, value, digits));
}

/// A JSON string with its quotes; `text` is UTF-8.
void append_json_string(std::string& out, std::string_view text);

}  // namespace kvsim
