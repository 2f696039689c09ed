#include <algorithm>

#include "kvsim/random/distribution.hpp"
#include "rate_driven.hpp"

namespace kvsim {

namespace {

struct MmppParams : RateDrivenParams {
    config::Rate on_rate;
    config::Rate off_rate;
    SimDuration on_time{};
    SimDuration off_time{};
};

const config::Schema<MmppParams>& schema() {
    using P = MmppParams;
    static const config::Schema<P> table{
        process_field<P>(),
        config::field("on_rate", &P::on_rate, "requests per second in a burst", config::Range{0, 1e9, true}).need(),
        config::field("off_rate", &P::off_rate, "requests per second between bursts", some_rate).by_default("0/s"),
        config::field("on_time", &P::on_time, "mean length of a burst; exponential", segment_time).need(),
        config::field("off_time", &P::off_time, "mean time between bursts; exponential", segment_time).need(),
        spacing_field<P>()};
    return table;
}

/// Markov-modulated Poisson process with two states; starts in either with its share of the time.
class Mmpp final : public SegmentRates {
public:
    Mmpp(const ArrivalInfo& info, const MmppParams& p, double rate_scale, std::uint64_t seed)
        : SegmentRates(info, p.spacing == "constant", seed),
          key_(seed, "arrival_states"),
          on_{to_seconds(p.on_time), p.on_rate.per_second * rate_scale, 0},
          off_{to_seconds(p.off_time), p.off_rate.per_second * rate_scale, 0} {
        starts_on_ = StreamKey(seed, "arrival_first_state").first_uniform(0) < on_.seconds / (on_.seconds + off_.seconds);
    }

private:
    bool segment(std::uint64_t k, Segment& out) const override {
        const Segment& state = ((k % 2 == 0) == starts_on_) ? on_ : off_;
        out = {std::max(1e-9, exponential_quantile(key_.first_uniform(k), state.seconds)), state.first_rate, state.first_rate};
        return true;
    }
    StreamKey key_;
    Segment on_;
    Segment off_;
    bool starts_on_ = false;
};

}  // namespace

std::vector<config::FieldDoc> mmpp_arrivals_docs() {
    return schema().docs();
}

std::unique_ptr<ArrivalProcess> make_mmpp_arrivals(const config::Value& params, double rate_scale, std::uint64_t seed,
                                                   config::Diagnostics& diagnostics) {
    MmppParams p;
    const std::size_t before = diagnostics.error_count();
    schema().read(params, p, "arrivals", diagnostics);
    if (diagnostics.error_count() != before) return nullptr;
    const double on = to_seconds(p.on_time);
    const double off = to_seconds(p.off_time);
    ArrivalInfo info;
    info.rate = (p.on_rate.per_second * on + p.off_rate.per_second * off) / (on + off) * rate_scale;
    return std::make_unique<Mmpp>(info, p, rate_scale, seed);
}

}  // namespace kvsim
