#pragma once
// Appending numbers and JSON texts to a buffer, shared by the writers.

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvsim {

/// Enough for any int64 in either form below.
inline constexpr std::size_t number_room = 32;

inline char* put_integer(char* to, std::int64_t value) {
    return std::to_chars(to, to + number_room, value).ptr;
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
