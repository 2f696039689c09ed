#include <algorithm>
#include <cmath>

#include "arrivals_params.hpp"
#include "kvsim/base/check.hpp"

namespace kvsim {

namespace {

struct RampUpParams {
    std::string process;
    std::string strategy;
    config::Rate start;
    config::Rate end;
    std::int64_t requests = 1;
    double burstiness = 1;
};

const config::Schema<RampUpParams>& schema() {
    using P = RampUpParams;
    static const config::Range rate{0, 1e9, true};
    static const config::Schema<P> table{
        process_field<P>(),
        config::field("ramp_up_strategy", &P::strategy, "how the rate grows with the request's number")
            .one_of({"linear", "exponential"})
            .need(),
        config::field("ramp_up_start_rps", &P::start, "rate before the first request", rate).need(),
        config::field("ramp_up_end_rps", &P::end, "rate before the last one, and from there on", rate).need(),
        config::field("requests", &P::requests, "how many requests the ramp takes (--num-prompts)", config::Range{1, 1e9})
            .need(),
        config::field("burstiness", &P::burstiness, "gamma shape of the gaps; 1: Poisson", config::Range{1e-3, 1e6})
            .by_default("1")};
    return table;
}

/// vllm bench serve --ramp-up-strategy: gap i is a gamma gap of the rate at progress i / (n - 1). Nothing is rescaled there.
class RampUp final : public ArrivalProcess {
public:
    RampUp(const ArrivalInfo& info, const RampUpParams& p, double rate_scale, std::uint64_t seed)
        : ArrivalProcess(info),
          unit_(gamma_gaps(1, p.burstiness, false, seed)),
          exponential_(p.strategy == "exponential"),
          start_(p.start.per_second * rate_scale),
          end_(p.end.per_second * rate_scale),
          last_(static_cast<double>(std::max<std::int64_t>(p.requests - 1, 1))) {}
    [[nodiscard]] double gap_ns(std::uint64_t i) const override { return unit_->gap_ns(i) / rate(static_cast<double>(i)); }
    [[nodiscard]] double rate(double index) const {
        const double progress = std::min(1.0, index / last_);
        return exponential_ ? start_ * std::pow(end_ / start_, progress) : start_ + (end_ - start_) * progress;
    }

private:
    std::unique_ptr<ArrivalProcess> unit_;  // at 1/s
    bool exponential_;
    double start_, end_;
    double last_;
};

}  // namespace

std::vector<config::FieldDoc> ramp_up_arrivals_docs() {
    return schema().docs();
}

std::unique_ptr<ArrivalProcess> make_ramp_up_arrivals(const config::Value& params, double rate_scale, std::uint64_t seed,
                                                      config::Diagnostics& diagnostics) {
    RampUpParams p;
    const std::size_t before = diagnostics.error_count();
    schema().read(params, p, "arrivals", diagnostics);
    if (diagnostics.error_count() != before) return nullptr;
    ArrivalInfo info;
    info.rate = std::max(p.start.per_second, p.end.per_second) * rate_scale;  // bounds the number of arrivals
    info.burstiness = p.burstiness;
    return std::make_unique<RampUp>(info, p, rate_scale, seed);
}

}  // namespace kvsim
