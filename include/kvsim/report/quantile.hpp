#pragma once
// Exact quantiles of a column of values. The definition is base/rank.hpp's.

#include <cstdint>
#include <span>
#include <vector>

#include "kvsim/base/histogram.hpp"

namespace kvsim {

/// The quantiles `qs` (each in [0, 1], any order) of `column`, exact. All values >= 0 (doubles also < 2^63). 0 for an empty
/// column. Counts into bins, then selects inside the few bins that matter: two linear passes, far below the cost of sorting.
std::vector<double> quantiles(std::span<const std::int64_t> column, std::span<const double> qs);
std::vector<double> quantiles(std::span<const double> column, std::span<const double> qs);

/// The same over values that pass by twice instead of standing in a column: count() each, want() the quantiles, collect() each
/// again, values(). Keeps only the values of the bins that hold an order statistic, some hundredths of all.
template <class T>
class QuantilePasses {
public:
    QuantilePasses() : counts_(log_linear_bins(bits)) {}
    void count(T value) { ++counts_[bin_of(value)]; }
    /// `total`: how many were counted, below 2^32.
    void want(std::int64_t total, std::span<const double> qs);
    void collect(T value) {
        // The counts have become places in wanted_.
        if (const std::uint32_t at = counts_[bin_of(value)]; at != nowhere) wanted_[at].values.push_back(value);
    }
    [[nodiscard]] std::vector<double> values();  ///< once, in the order of `qs`

private:
    static constexpr int bits = 8;
    static constexpr std::uint32_t nowhere = 0xffffffff;
    static std::size_t bin_of(T value) { return log_linear_bin(static_cast<std::int64_t>(value), bits); }
    struct Wanted {
        std::int64_t before = 0;  // values in lower bins
        std::vector<T> values;
        std::vector<std::int64_t> ranks;
    };
    std::vector<std::uint32_t> counts_;
    std::vector<Wanted> wanted_;
    std::vector<double> qs_;
    std::vector<std::int64_t> ranks_;  // ascending, distinct
    std::int64_t total_ = 0;
};

}  // namespace kvsim
