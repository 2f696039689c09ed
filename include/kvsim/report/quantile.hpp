#pragma once
// Exact quantiles of a column of values. The definition is base/rank.hpp's.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvsim/base/histogram.hpp"

namespace kvsim {

/// The quantiles `qs` (each in [0, 1], any order) of `column` (doubles: below 2^63), exact. 0 for an empty column. Counts into
/// bins, then selects inside the few bins that matter: two linear passes, far below the cost of sorting; with a negative value
/// it sorts.
std::vector<double> quantiles(std::span<const std::int64_t> column, std::span<const double> qs);
std::vector<double> quantiles(std::span<const double> column, std::span<const double> qs);

/// Of all values, ascending: those from one share on up to another, each in [0, 1].
struct ShareRange {
    double low = 0, high = 0;
};

/// Monotone bins of values >= 0: the exponent of value + 1 >= 1 as a double and the leading bits of its mantissa.
struct QuantileBins {
    static constexpr int shift = 52 - 7;
    static constexpr std::uint64_t first = std::uint64_t{1023} << 7;  // of 1, shifted
    static constexpr std::size_t count = std::size_t{64 + 1} << 7;    // up to 2^64
    template <class T>
    static std::size_t of(T value) {
        return static_cast<std::size_t>((std::bit_cast<std::uint64_t>(static_cast<double>(value) + 1) >> shift) - first);
    }
};

/// By bin: how many values there were, and how many of them in the batch in progress.
struct BinCounters {
    std::uint32_t* all;
    std::uint32_t* batch;
    void count(std::size_t bin) const {
        ++all[bin];
        ++batch[bin];
    }
};

/// The same over values that pass by twice instead of standing in a column: count() each, want() the quantiles, collect() each
/// again, values(); then want() others, and collect() each once more. Keeps only the values of the bins that hold an order
/// statistic, some hundredths of all. All values >= 0, fewer than 2^32.
template <class T>
class QuantilePasses {
public:
    /// `batches`: into which the values are cut as they come, where each one's share below a quantile will be asked for.
    explicit QuantilePasses(std::size_t batches = 0)
        : batches_(batches), counts_(bins * std::max(batches + 1, std::size_t{2})) {}
    void count(T value) { counters().count(QuantileBins::of(value)); }
    /// For a caller that finds the bins itself.
    [[nodiscard]] BinCounters counters() { return {counts_.data(), counts_.data() + batch_}; }
    void end_batch() { batch_ += bins; }  ///< of counted values

    /// All of the `total` values that were counted lie in these shares of them.
    void want(std::int64_t total, std::span<const ShareRange> shares);
    [[gnu::always_inline]] void collect(T value) { collect(value, window_of_[QuantileBins::of(value)]); }
    [[gnu::always_inline]] void collect(T value, std::uint16_t window) {
        if (window != 0) kept_[next_[window]++] = value;
    }
    /// By bin, for a caller that finds the bins itself: 0 where its values are not kept. One more may be read.
    [[nodiscard]] const std::uint16_t* windows() const { return window_of_.data(); }
    /// In the order of `qs`, all of which were wanted.
    [[nodiscard]] std::vector<double> values(std::span<const double> qs) const;
    [[nodiscard]] bool wanted(double q) const;

    /// Of each of `qs`, ascending, and each batch: about how many values lie at or below that quantile. Before any is wanted.
    [[nodiscard]] std::vector<std::vector<double>> about_below(std::int64_t total, std::span<const double> qs);
    /// How many lie at or below each of `limits`, ascending, each between two neighbouring order statistics that were
    /// collected.
    [[nodiscard]] std::vector<std::vector<double>> at_or_below(std::span<const double> limits) const;

private:
    static constexpr std::size_t bins = QuantileBins::count;
    // Neighbouring bins whose values are kept.
    struct Window {
        std::size_t begin = 0, end = 0;  // bins
        std::int64_t before = 0;         // values in lower bins
        std::uint32_t first = 0;         // its values in kept_, in the order they are collected
        std::uint32_t count = 0;
    };
    [[nodiscard]] const std::uint32_t* batch(std::size_t index) const { return counts_.data() + bins * (index + 1); }
    void skip_empty_bins();
    /// Values of each batch in bins below each of `ends`, which ascend.
    [[nodiscard]] std::vector<std::vector<double>> in_bins_below(std::span<const std::size_t> ends) const;

    std::size_t batches_;
    Counters32 counts_;         // of all values, then of each batch
    std::size_t batch_ = bins;  // where those of the batch in progress begin
    std::size_t lowest_ = 0;    // bin with a value, once skip_empty_bins() was called
    std::int64_t total_ = 0;
    std::vector<Window> windows_;
    std::vector<std::uint16_t> window_of_;  // by bin: one more than the index of its window, or 0; and one more
    std::vector<std::uint32_t> next_;       // by window_of_: where its next value goes in kept_
    std::unique_ptr<T[]> kept_;
};

/// Exact quantiles of whole numbers that are mostly small, as lengths are: counted one by one.
class NumberCounts {
public:
    NumberCounts() : counts_(direct) {}
    void count(std::int32_t value) {  // >= 0
        if (value < direct) {
            ++counts_[static_cast<std::size_t>(value)];
        } else {
            large_.push_back(value);
        }
    }
    /// By number below `direct`, for a caller that counts itself.
    [[nodiscard]] std::int64_t* counters() { return counts_.data(); }
    static constexpr std::int32_t direct = 1 << 16;
    /// `total`: how many were counted, > 0.
    [[nodiscard]] std::vector<double> quantiles(std::int64_t total, std::span<const double> qs) const;
    /// Sum of the squared distances from `centre`.
    [[nodiscard]] double squares(std::int64_t total, std::int64_t centre) const;

private:
    /// take(value, how many) of all, ascending.
    template <class Take>
    void each(std::int64_t total, Take&& take) const;
    Counters64 counts_;
    std::vector<std::int32_t> large_;
};

}  // namespace kvsim
