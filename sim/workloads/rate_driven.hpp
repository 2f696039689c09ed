#pragma once
// Arrivals at a rate that varies over time: the k-th comes when the integral of the rate reaches the k-th point of a process of
// rate 1 (Cinlar, Introduction to Stochastic Processes, 1975, chapter 4.7). Points: Poisson, or 1, 2, 3, ...

#include <cstdint>
#include <string>
#include <vector>

#include "arrivals_params.hpp"
#include "kvsim/random/stream.hpp"

namespace kvsim {

/// What every process of this kind has.
struct RateDrivenParams {
    std::string process;
    std::string spacing = "poisson";
};

template <class P>
config::Field<P> spacing_field() {
    return config::field<P, std::string>("spacing", &P::spacing,
                                         "poisson: independent arrivals; constant: as even as the rate allows")
        .one_of({"poisson", "constant"})
        .by_default("poisson");
}

/// A time at least, so that a cycle of segments gets somewhere.
inline constexpr config::Range segment_time{1e-6, 366.0 * 86'400};
inline constexpr config::Range some_rate{0, 1e9};

class RateDriven : public ArrivalProcess {
public:
    RateDriven(const ArrivalInfo& info, bool constant, std::uint64_t seed);
    [[nodiscard]] double gap_ns(std::uint64_t i) const final;

protected:
    /// Back to time 0.
    virtual void restart() const = 0;
    /// Seconds at which the integral of the rate reaches `units` (asked in ascending order); infinite: never.
    virtual double time_of(double units) const = 0;

private:
    bool constant_;
    StreamKey key_;
    mutable double units_ = 0;
    mutable double time_ = 0;
};

/// Rates in segments, linear within each.
class SegmentRates : public RateDriven {
public:
    using RateDriven::RateDriven;

    struct Segment {
        double seconds = 0;  ///< > 0, may be infinite in the last one
        double first_rate = 0;
        double last_rate = 0;  ///< of an infinite one: the same
    };

protected:
    /// Segment k, in the order k = 0, 1, ...; false: no rate from here on.
    virtual bool segment(std::uint64_t k, Segment& out) const = 0;
    void restart() const final;
    double time_of(double units) const final;

private:
    mutable std::uint64_t next_ = 0;
    mutable Segment segment_;
    mutable double start_ = 0;   // of the segment, s
    mutable double before_ = 0;  // integral of the rate up to its start
};

/// Given segments, once or over and over.
class ListedRates final : public SegmentRates {
public:
    ListedRates(const ArrivalInfo& info, bool constant, std::uint64_t seed, std::vector<Segment> segments, bool repeat)
        : SegmentRates(info, constant, seed), segments_(std::move(segments)), repeat_(repeat) {}

private:
    bool segment(std::uint64_t k, Segment& out) const override {
        if (k >= segments_.size() && !repeat_) return false;
        out = segments_[static_cast<std::size_t>(k % segments_.size())];
        return true;
    }
    std::vector<Segment> segments_;
    bool repeat_;
};

}  // namespace kvsim
