#pragma once
// Integer log-linear histogram: exact counts, bounded relative error, no logarithm, so the same on every machine.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "kvsim/base/check.hpp"
#include "kvsim/base/units.hpp"

namespace kvsim {

/// Binary logarithm of the width of the bin of value >= 0, as below.
constexpr int log_linear_shift(std::int64_t value, int bits) {
    return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(value) | (std::uint64_t{1} << bits))) - 1 - bits;
}
/// Monotone bin of value >= 0: one bin per value below 2^(bits+1), above that 2^bits equal bins per power of two.
constexpr std::size_t log_linear_bin(std::int64_t value, int bits) {
    const int shift = log_linear_shift(value, bits);
    return (static_cast<std::size_t>(shift) << bits) + static_cast<std::size_t>(static_cast<std::uint64_t>(value) >> shift);
}
/// How many bins cover every int64 >= 0.
constexpr std::size_t log_linear_bins(int bits) {
    return static_cast<std::size_t>(64 - bits) << bits;
}

/// A fixed number of counters, int64 or uint32, that start at 0. The kernel zeroes a page when it is first touched: most never
/// are.
template <class T>
class CounterArray {
public:
    CounterArray() = default;
    explicit CounterArray(std::size_t size);
    CounterArray(const CounterArray& other);
    CounterArray(CounterArray&&) noexcept = default;
    CounterArray& operator=(CounterArray other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~CounterArray() = default;
    [[nodiscard]] std::size_t size() const { return size_; }
    [[nodiscard]] T* data() { return data_.get(); }
    [[nodiscard]] const T* data() const { return data_.get(); }
    [[nodiscard]] T& operator[](std::size_t i) { return data_.get()[i]; }
    [[nodiscard]] T operator[](std::size_t i) const { return data_.get()[i]; }

private:
    struct Free {
        void operator()(T* data) const;
    };
    std::unique_ptr<T, Free> data_;
    std::size_t size_ = 0;
};
using Counters64 = CounterArray<std::int64_t>;
using Counters32 = CounterArray<std::uint32_t>;

/// Values are int64 >= 0. Below 2048 every value has its own bin; above, 1024 bins per power of two, so a reported order
/// statistic is within 2^-11 (0.049 %) relative of the true one. Bins are reported as midpoints, clamped to the exact minimum
/// and maximum. Memory is allocated once: 432 KiB of counters.
class LogLinearHistogram {
public:
    static constexpr int bits = 10;

    LogLinearHistogram() : counts_(log_linear_bins(bits)) {}

    void add(std::int64_t value, std::int64_t count = 1) {
        KVSIM_DCHECK(value >= 0 && count >= 0, "histograms take values >= 0");
        counts_[log_linear_bin(value, bits)] += count;
        total_ += count;
        sum_ += static_cast<Int128>(value) * count;
        if (value < min_) min_ = value;
        if (value > max_) max_ = value;
    }
    void merge(const LogLinearHistogram& other);

    /// add() for each of `values` with the same `count`. The caller knows their `sum`, and `low` and `high` between which all
    /// of them lie and which are the least and the greatest.
    void add_each(std::span<const std::int32_t> values, std::int64_t count, std::int64_t sum, std::int32_t low,
                  std::int32_t high) {
        if (count == 0) return;
        total_ += static_cast<std::int64_t>(values.size()) * count;
        sum_ += static_cast<Int128>(sum) * count;
        if (low < min_) min_ = low;
        if (high > max_) max_ = high;
        // Within a power of two, bins are as wide as each other.
        const int shift = log_linear_shift(low, bits);
        if (shift == log_linear_shift(high, bits)) {
            std::int64_t* const counts = counts_.data() + (static_cast<std::size_t>(shift) << bits);
            const auto add_one = [=](std::int32_t value) { counts[static_cast<std::uint32_t>(value) >> shift] += count; };
            std::size_t i = 0;
            for (; i + 4 <= values.size(); i += 4) {
                add_one(values[i]);
                add_one(values[i + 1]);
                add_one(values[i + 2]);
                add_one(values[i + 3]);
            }
            for (; i < values.size(); ++i) add_one(values[i]);
        } else {
            for (const std::int32_t value : values) counts_[log_linear_bin(value, bits)] += count;
        }
    }

    [[nodiscard]] std::int64_t count() const { return total_; }
    [[nodiscard]] double mean() const;                ///< exact sum / count; 0 when empty
    [[nodiscard]] double standard_deviation() const;  ///< population, from the bins; 0 when empty
    [[nodiscard]] std::int64_t min() const { return total_ ? min_ : 0; }
    [[nodiscard]] std::int64_t max() const { return total_ ? max_ : 0; }
    /// As base/rank.hpp defines it; q in [0, 1]; 0 when empty.
    [[nodiscard]] double quantile(double q) const;

private:
    [[nodiscard]] double midpoint(std::size_t bin) const;
    Counters64 counts_;
    std::int64_t total_ = 0;
    Int128 sum_ = 0;
    std::int64_t min_ = INT64_MAX;
    std::int64_t max_ = 0;
};

}  // namespace kvsim
