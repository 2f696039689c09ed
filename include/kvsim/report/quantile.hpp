#pragma once
// Exact quantiles of a column of values. The definition is base/rank.hpp's.

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// The quantiles `qs` (each in [0, 1], any order) of `column`, exact. All values >= 0 (doubles also < 2^63). 0 for an empty
/// column. Counts into bins, then selects inside the few bins that matter: two linear passes, far below the cost of sorting.
std::vector<double> quantiles(std::span<const std::int64_t> column, std::span<const double> qs);
std::vector<double> quantiles(std::span<const double> column, std::span<const double> qs);

}  // namespace kvsim
