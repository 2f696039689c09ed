#pragma once
// Arrival times as sums of gaps.

#include <cstdint>

#include "kvsim/base/check.hpp"

namespace kvsim {

/// Half of what int64 nanoseconds hold: the run goes on after the last arrival.
inline constexpr double latest_arrival_ns = 4.6e18;

/// A sum of gaps kept as whole nanoseconds and a fraction below 1: the rounding error of a step stays that of one gap, however
/// far the sum has come.
class GapSum {
public:
    void add(double gap_ns) {
        fraction_ += gap_ns;
        if (!(static_cast<double>(whole_) + fraction_ <= latest_arrival_ns))  // also when it is no number: 0 x infinity
            throw UserError("an arrival would lie more than 146 years after the start; is the rate too low?");
        const auto carry = static_cast<std::int64_t>(fraction_);  // gaps are >= 0
        whole_ += carry;
        fraction_ -= static_cast<double>(carry);
    }
    [[nodiscard]] std::int64_t rounded() const { return whole_ + (fraction_ >= 0.5 ? 1 : 0); }

private:
    std::int64_t whole_ = 0;
    double fraction_ = 0;
};

}  // namespace kvsim
