#pragma once
// Integer log-linear histogram: exact counts, bounded relative error, no logarithm, so the same on every machine.

#include <cstdint>
#include <vector>

#include "kvsim/base/units.hpp"

namespace kvsim {

/// Values are int64 >= 0. Below 2^bits every value has its own bin; above, 2^bits bins per power of two, so a reported
/// value is within 2^-(bits+1) relative of the true one (bits = 10: 0.049 %). Bins are midpoints. Memory is allocated once.
class LogLinearHistogram {
public:
    explicit LogLinearHistogram(int bits = 10);

    void add(std::int64_t value, std::int64_t count = 1) {
        counts_[index(value)] += count;
        total_ += count;
        sum_ += static_cast<Int128>(value) * count;
        if (value < min_) min_ = value;
        if (value > max_) max_ = value;
    }
    void merge(const LogLinearHistogram& other);  ///< same bits

    [[nodiscard]] std::int64_t count() const { return total_; }
    [[nodiscard]] double mean() const;                ///< exact; 0 when empty
    [[nodiscard]] double standard_deviation() const;  ///< population, from the bins
    [[nodiscard]] std::int64_t min() const { return total_ ? min_ : 0; }
    [[nodiscard]] std::int64_t max() const { return total_ ? max_ : 0; }
    /// Linear interpolation between order statistics at rank (n - 1) * q, as numpy; q in [0, 1]; 0 when empty.
    [[nodiscard]] double quantile(double q) const;

private:
    [[nodiscard]] std::size_t index(std::int64_t value) const;
    [[nodiscard]] double midpoint(std::size_t bin) const;
    int bits_;
    std::vector<std::int64_t> counts_;
    std::int64_t total_ = 0;
    Int128 sum_ = 0;
    std::int64_t min_ = INT64_MAX;
    std::int64_t max_ = 0;
};

}  // namespace kvsim
