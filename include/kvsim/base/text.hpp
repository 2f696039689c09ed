#pragma once
// Small text functions shared by messages and writers. No locale is ever consulted.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace kvsim {

/// The fewest digits that read back as the same double, with an exponent only outside [1e-5, 1e16) ("0.1", "100000", "1e+30").
/// `value` is finite: "nan" and "inf" never reach a file (InternalError).
std::string shortest(double value);

/// At most `digits` decimals, trailing zeros dropped ("12.5", "3"); never "-0". digits in [0, 9]; `value` is finite.
std::string decimals(double value, int digits);

/// The candidate with the smallest edit distance to `word` (case-insensitive), if that is at most 3 and less than the
/// word's length; otherwise empty.
std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates);

/// User text made safe for a one-line message: control characters and bytes that are not UTF-8 as '?', cut after `max_bytes`
/// (at a character) with "...".
std::string excerpt(std::string_view text, std::size_t max_bytes = 60);

/// Where the first byte that is not valid UTF-8 stands; npos if all are.
std::size_t find_invalid_utf8(std::string_view text);

/// Lower-cased, letters and digits only: the form in which GPU and model names are compared.
std::string fold_name(std::string_view name);

/// Without blanks and tabs at its ends.
std::string_view trimmed(std::string_view text);

/// FNV-1a of 64 bits, as 16 hexadecimal digits: names a text, protects nothing.
std::string fnv1a_hex(std::string_view text);

}  // namespace kvsim
