#pragma once
// Exact quantiles of a column of values. The definition is base/rank.hpp's.

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// The quantiles `qs` (each in [0, 1], any order) of `column` (doubles: below 2^63), exact. 0 for an empty column. Counts into
/// bins, then selects inside the few bins that matter: two linear passes, far below the cost of sorting; with a negative value
/// it sorts.
std::vector<double> quantiles(std::span<const std::int64_t> column, std::span<const double> qs);
std::vector<double> quantiles(std::span<const double> column, std::span<const double> qs);

/// The same over values that pass by twice instead of standing in a column: count() each, want() the quantiles, collect() each
/// again, values(); then want() others, and collect() each once more. Keeps only the values of the bins that hold an order
/// statistic, some hundredths of all. All values >= 0.
template <class T>
class QuantilePasses {
public:
    QuantilePasses() : counts_(bins) {}
    void count(T value) { ++counts_[bin_of(value)]; }
    /// `total`: how many were counted, below 2^32.
    void want(std::int64_t total, std::span<const double> qs);
    void collect(T value) {
        const std::uint16_t part = parts_[bin_of(value)];
        const std::uint32_t at = ends_[part]++;
        if (part % 2 != 0) kept_[at] = value;
    }
    [[nodiscard]] std::vector<double> values() const;  ///< in the order of the quantiles wanted

    /// Ends a batch of collected values.
    void end_batch() { batches_.insert(batches_.end(), ends_.begin(), ends_.end()); }
    /// How many values of each batch lie at or below `limit`, which is between two neighbouring order statistics that were
    /// wanted.
    [[nodiscard]] std::vector<std::int64_t> at_or_below(T limit) const;

private:
    /// Monotone: the exponent of value + 1 >= 1 as a double and the leading bits of its mantissa.
    static std::size_t bin_of(T value) {
        return static_cast<std::size_t>((std::bit_cast<std::uint64_t>(static_cast<double>(value) + 1) >> (52 - bits)) -
                                        first_bin);
    }
    static constexpr int bits = 8;
    static constexpr std::uint64_t first_bin = std::uint64_t{1023} << bits;  // of 1
    static constexpr std::size_t bins = std::size_t{64 + 1} << bits;         // up to 2^64
    // A bin that holds order statistics.
    struct Wanted {
        std::int64_t before = 0;  // values in lower bins
        std::uint32_t first = 0;  // its values in kept_, in the order they are collected
        std::uint32_t count = 0;
        std::vector<std::int64_t> ranks;
    };
    std::vector<std::uint32_t> counts_;
    // The wanted bins cut the others into parts: part 2 i + 1 is the bin wanted_[i], part 2 i what lies between it and the one
    // before.
    std::vector<std::uint16_t> parts_;    // by bin
    std::vector<std::uint32_t> ends_;     // by part: where the next value goes in kept_, or how many have passed
    std::vector<std::uint32_t> begins_;   // ends_ before any was collected
    std::vector<std::uint32_t> batches_;  // ends_ at the end of each batch, one after the other
    std::vector<Wanted> wanted_;
    std::vector<T> kept_;
    std::vector<double> qs_;
    std::vector<std::int64_t> ranks_;  // ascending, distinct
    std::int64_t total_ = 0;
};

}  // namespace kvsim
