#include "rate_driven.hpp"

#include <cmath>
#include <limits>

#include "kvsim/random/distribution.hpp"

namespace kvsim {

RateDriven::RateDriven(const ArrivalInfo& info, bool constant, std::uint64_t seed)
    : ArrivalProcess(info), constant_(constant), key_(seed, "arrivals") {}

double RateDriven::gap_ns(std::uint64_t i) const {
    if (i == 0) {
        units_ = time_ = 0;
        restart();
    }
    units_ += constant_ ? 1 : exponential_quantile(key_.first_uniform(i), 1);
    const double before = time_;
    time_ = time_of(units_);
    return std::isfinite(time_) ? (time_ - before) * 1e9 : std::numeric_limits<double>::infinity();
}

void SegmentRates::restart() const {
    next_ = 0;
    segment_ = {};
    start_ = before_ = 0;
}

double SegmentRates::time_of(double units) const {
    const auto area = [](const Segment& s) {
        if (std::isfinite(s.seconds)) return s.seconds * (s.first_rate + s.last_rate) / 2;
        return s.first_rate > 0 ? std::numeric_limits<double>::infinity() : 0;
    };
    // A constant spacing may end exactly with a segment; sums of areas are rounded.
    const double slack = 1e-12 * units;
    while (units > before_ + area(segment_) + slack) {
        if (next_ > 0 && !std::isfinite(segment_.seconds)) return std::numeric_limits<double>::infinity();
        before_ += area(segment_);
        start_ += segment_.seconds;
        if (!segment(next_, segment_)) { segment_ = {std::numeric_limits<double>::infinity(), 0, 0}; }
        ++next_;
    }
    // first x + (last - first) / (2 T) x^2 = rest, in the form that does not cancel.
    const double rest = std::max(0.0, units - before_);
    const double slope = std::isfinite(segment_.seconds) && segment_.seconds > 0
                             ? (segment_.last_rate - segment_.first_rate) / segment_.seconds
                             : 0;
    const double root = std::sqrt(std::max(0.0, segment_.first_rate * segment_.first_rate + 2 * slope * rest));
    const double sum = segment_.first_rate + root;
    return start_ + (sum > 0 ? std::min(2 * rest / sum, segment_.seconds) : 0);
}

}  // namespace kvsim
