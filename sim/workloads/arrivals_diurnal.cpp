#include <cmath>

#include "rate_driven.hpp"

namespace kvsim {

namespace {

struct DiurnalParams : RateDrivenParams {
    config::Rate rate;
    double amplitude = 0;
    SimDuration period = std::chrono::hours(24);
    SimDuration phase{};
};

const config::Schema<DiurnalParams>& schema() {
    using P = DiurnalParams;
    static const config::Schema<P> table{
        process_field<P>(),
        config::field("rate", &P::rate, "mean requests per second", config::Range{0, 1e9, true}).need(),
        config::field("amplitude", &P::amplitude, "the rate swings by this share of its mean, as a sine", config::fraction)
            .need(),
        config::field("period", &P::period, "length of a day", segment_time).by_default("24h"),
        config::field("phase", &P::phase,
                      "where in the period the run starts: 0 rising through the mean, a quarter of it the peak",
                      config::Range{0, 366.0 * 86'400})
            .by_default("0s"),
        spacing_field<P>()};
    return table;
}

constexpr double two_pi = 6.283185307179586477;

/// rate(t) = r (1 + a sin w(t + phase)), integral r (t + a / w (cos w phase - cos w(t + phase))).
class Diurnal final : public RateDriven {
public:
    Diurnal(const ArrivalInfo& info, const DiurnalParams& p, std::uint64_t seed)
        : RateDriven(info, p.spacing == "constant", seed),
          amplitude_(p.amplitude),
          omega_(two_pi / to_seconds(p.period)),
          start_(omega_ * to_seconds(p.phase)) {}

private:
    void restart() const override {}
    double time_of(double units) const override {
        const double target = units / info().rate;
        const double swing = amplitude_ / omega_;
        double low = std::max(0.0, target - 2 * swing);
        double high = target + 2 * swing;
        double t = target;
        // Newton, kept within the bracket; the integral never falls.
        for (int i = 0; i < 100; ++i) {
            const double miss = t + swing * (std::cos(start_) - std::cos(start_ + omega_ * t)) - target;
            (miss > 0 ? high : low) = t;
            const double slope = 1 + amplitude_ * std::sin(start_ + omega_ * t);
            double next = slope > 1e-6 ? t - miss / slope : low;
            if (!(next > low && next < high)) next = low + (high - low) / 2;
            if (std::abs(next - t) <= 1e-15 * (1 + t) || high - low <= 1e-15 * (1 + t)) break;
            t = next;
        }
        return t;
    }
    double amplitude_;
    double omega_;
    double start_;
};

}  // namespace

std::vector<config::FieldDoc> diurnal_arrivals_docs() {
    return schema().docs();
}

std::unique_ptr<ArrivalProcess> make_diurnal_arrivals(const config::Value& params, double rate_scale, std::uint64_t seed,
                                                      config::Diagnostics& diagnostics) {
    DiurnalParams p;
    const std::size_t before = diagnostics.error_count();
    schema().read(params, p, "arrivals", diagnostics);
    if (diagnostics.error_count() != before) return nullptr;
    ArrivalInfo info;
    info.rate = p.rate.per_second * rate_scale;
    return std::make_unique<Diurnal>(info, p, seed);
}

}  // namespace kvsim
