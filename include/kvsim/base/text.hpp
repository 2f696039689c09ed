#pragma once
// Small text helpers shared by messages and writers. No locale is ever consulted.

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// The shortest decimal that reads back as the same double ("0.1", "1e+30"); "nan"/"inf" never reach a file.
std::string shortest(double value);

/// At most `digits` decimals, trailing zeros dropped ("12.5", "3"). digits in [0, 9].
std::string decimals(double value, int digits);

/// The candidate with the smallest edit distance to `word` (case-insensitive), if that is at most 3 and less than the
/// word's length; otherwise empty.
std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates);

/// Lower-cased, letters and digits only: the form in which GPU and model names are compared.
std::string fold_name(std::string_view name);

}  // namespace kvsim
