#pragma once
// THE definition of a quantile in kvsim, used for exact columns and histograms alike: linear interpolation between the two
// order statistics around rank (n - 1) * q, counted from 0, as numpy.percentile and `vllm bench serve` do.

#include <algorithm>
#include <cstdint>

namespace kvsim {

struct Rank {
    std::int64_t below = 0;  ///< index of the order statistic at or below the rank, in [0, n)
    double fraction = 0;     ///< how far towards the next one, in [0, 1)
};

/// n >= 1, q in [0, 1].
constexpr Rank quantile_rank(std::int64_t n, double q) {
    const double rank = static_cast<double>(n - 1) * q;
    const std::int64_t below = std::clamp(static_cast<std::int64_t>(rank), std::int64_t{0}, n - 1);
    return {below, rank - static_cast<double>(below)};
}

/// numpy's form: exact at both ends and monotone in `fraction`.
constexpr double interpolate(double low, double high, double fraction) {
    return fraction < 0.5 ? low + (high - low) * fraction : high - (high - low) * (1 - fraction);
}

}  // namespace kvsim
