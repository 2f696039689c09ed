#pragma once
// Integer log-linear histogram: exact counts, bounded relative error, no logarithm, so the same on every machine.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "kvsim/base/check.hpp"
#include "kvsim/base/units.hpp"

namespace kvsim {

/// Monotone bin of value >= 0: one bin per value below 2^(bits+1), above that 2^bits equal bins per power of two.
constexpr std::size_t log_linear_bin(std::int64_t value, int bits) {
    const auto v = static_cast<std::uint64_t>(value);
    const int shift = static_cast<int>(std::bit_width(v | (std::uint64_t{1} << bits))) - 1 - bits;
    return (static_cast<std::size_t>(shift) << bits) + static_cast<std::size_t>(v >> shift);
}
/// How many bins cover every int64 >= 0.
constexpr std::size_t log_linear_bins(int bits) {
    return static_cast<std::size_t>(64 - bits) << bits;
}

/// A fixed number of counters that start at 0. The kernel zeroes a page when it is first touched: most never are.
class Counters64 {
public:
    Counters64() = default;
    explicit Counters64(std::size_t size);
    Counters64(const Counters64& other);
    Counters64(Counters64&&) noexcept = default;
    Counters64& operator=(Counters64 other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~Counters64() = default;
    [[nodiscard]] std::size_t size() const { return size_; }
    [[nodiscard]] std::int64_t& operator[](std::size_t i) { return data_.get()[i]; }
    [[nodiscard]] std::int64_t operator[](std::size_t i) const { return data_.get()[i]; }

private:
    struct Free {
        void operator()(std::int64_t* data) const;
    };
    std::unique_ptr<std::int64_t, Free> data_;
    std::size_t size_ = 0;
};

/// Values are int64 >= 0. Below 2^(bits+1) every value has its own bin; above, 2^bits bins per power of two, so a reported
/// order statistic is within 2^-(bits+1) relative of the true one (bits = 10: 0.049 %). Bins are reported as midpoints, clamped
/// to the exact minimum and maximum. Memory is allocated once: (64 - bits) * 2^bits counters, 432 KiB for bits = 10.
class LogLinearHistogram {
public:
    explicit LogLinearHistogram(int bits = 10);  ///< bits in [1, 20]

    void add(std::int64_t value, std::int64_t count = 1) {
        KVSIM_DCHECK(value >= 0 && count >= 0, "histograms take values >= 0");
        counts_[log_linear_bin(value, bits_)] += count;
        total_ += count;
        sum_ += static_cast<Int128>(value) * count;
        if (value < min_) min_ = value;
        if (value > max_) max_ = value;
    }
    void merge(const LogLinearHistogram& other);  ///< same bits

    /// A sequence of values that hardly change from one to the next, each counted `count` times. What they share is added once
    /// at the end: tell close() how many there were, their sum, and two values between which all of them lie.
    class Slow {
    public:
        Slow(LogLinearHistogram& into, std::int64_t count) : into_(into), count_(count) {}
        void add(std::int64_t value) {
            if (value < low_ || value > high_) [[unlikely]]
                turn(value);
            ++in_bin_;
        }
        void close(std::int64_t values, Int128 sum, std::int64_t a, std::int64_t b) {
            turn(0);
            if (values == 0 || count_ == 0) return;
            into_.total_ += values * count_;
            into_.sum_ += sum * count_;
            into_.min_ = std::min({into_.min_, a, b});
            into_.max_ = std::max({into_.max_, a, b});
        }

    private:
        void turn(std::int64_t value) {
            into_.counts_[bin_] += in_bin_ * count_;
            in_bin_ = 0;
            bin_ = log_linear_bin(value, into_.bits_);
            const int shift = std::max(0, static_cast<int>(bin_ >> into_.bits_) - 1);
            low_ = (value >> shift) << shift;
            high_ = low_ + (std::int64_t{1} << shift) - 1;
        }
        LogLinearHistogram& into_;
        std::int64_t count_;
        std::int64_t low_ = 0;  // bounds of the bin last met
        std::int64_t high_ = -1;
        std::size_t bin_ = 0;
        std::int64_t in_bin_ = 0;
    };

    [[nodiscard]] std::int64_t count() const { return total_; }
    [[nodiscard]] double mean() const;                ///< exact sum / count; 0 when empty
    [[nodiscard]] double standard_deviation() const;  ///< population, from the bins; 0 when empty
    [[nodiscard]] std::int64_t min() const { return total_ ? min_ : 0; }
    [[nodiscard]] std::int64_t max() const { return total_ ? max_ : 0; }
    /// As base/rank.hpp defines it; q in [0, 1]; 0 when empty.
    [[nodiscard]] double quantile(double q) const;

private:
    [[nodiscard]] double midpoint(std::size_t bin) const;
    int bits_;
    Counters64 counts_;
    std::int64_t total_ = 0;
    Int128 sum_ = 0;
    std::int64_t min_ = INT64_MAX;
    std::int64_t max_ = 0;
};

}  // namespace kvsim
