#pragma once
// Every output token passes here once: the gaps between tokens, and the tokens of each second.

#include <algorithm>
#include <cstdint>
#include <span>

#include "kvsim/base/units.hpp"
#include "kvsim/engine/outcome.hpp"

namespace kvsim {

class TokenMeter {
public:
    /// `cut`: some requests are not measured, so the gaps of all are kept apart too.
    TokenMeter(Outcome& out, bool cut) : out_(out), cut_(cut) {}

    void start(SimTime first_arrival) { origin_ = second_end_ = first_arrival; }
    /// Tokens that follow one of the same request; tokens must come second by second.
    void next(std::int64_t count, std::int64_t measured, SimDuration gap, SimTime now) {
        if (cut_) {
            if (measured > 0) out_.itl.add(gap.count(), measured);
            out_.itl_all.add(gap.count(), count);
        } else {
            out_.itl.add(gap.count(), count);
        }
        add(count, now);
    }
    void add(std::int64_t count, SimTime now) {
        if (now >= second_end_) next_second(now);
        in_second_ += count;
    }
    /// next() for each of `gaps` with the same counts, all of them in the second that ends at second_end(); sum, low and high
    /// as LogLinearHistogram::add_each() asks.
    void next_each(std::span<const std::int32_t> gaps, std::int64_t count, std::int64_t measured, std::int64_t sum,
                   std::int32_t low, std::int32_t high) {
        out_.itl.add_each(gaps, measured, sum, low, high);
        if (cut_) out_.itl_all.add_each(gaps, count, sum, low, high);
        in_second_ += static_cast<std::int64_t>(gaps.size()) * count;
    }
    [[nodiscard]] SimTime second_end() const { return second_end_; }
    [[nodiscard]] std::int64_t peak() const { return std::max(peak_, in_second_); }
    /// End of the second, counted from the first arrival, in which `now` falls.
    [[nodiscard]] SimTime end_of_second(SimTime now) const {
        return origin_ + ((now - origin_) / std::chrono::seconds(1) + 1) * std::chrono::seconds(1);
    }

private:
    [[gnu::noinline]] void next_second(SimTime now) {
        peak_ = std::max(peak_, in_second_);
        in_second_ = 0;
        second_end_ = end_of_second(now);
    }

    Outcome& out_;
    bool cut_;
    SimTime origin_{};
    SimTime second_end_{};
    std::int64_t in_second_ = 0;
    std::int64_t peak_ = 0;
};

}  // namespace kvsim
