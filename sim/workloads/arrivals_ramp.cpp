#include <algorithm>
#include <limits>

#include "rate_driven.hpp"

namespace kvsim {

namespace {

struct RampParams : RateDrivenParams {
    config::Rate from;
    config::Rate to;
    SimDuration over{};
};

const config::Schema<RampParams>& schema() {
    using P = RampParams;
    static const config::Schema<P> table{
        process_field<P>(), config::field("from", &P::from, "rate at the start", some_rate).need(),
        config::field("to", &P::to, "rate at the end of the ramp and after it", some_rate).need(),
        config::field("over", &P::over, "how long the rate takes from one to the other", segment_time).need(),
        spacing_field<P>()};
    return table;
}

}  // namespace

std::vector<config::FieldDoc> ramp_arrivals_docs() {
    return schema().docs();
}

std::unique_ptr<ArrivalProcess> make_ramp_arrivals(const config::Value& params, double rate_scale, std::uint64_t seed,
                                                   config::Diagnostics& diagnostics) {
    RampParams p;
    const std::size_t before = diagnostics.error_count();
    schema().read(params, p, "arrivals", diagnostics);
    if (diagnostics.error_count() != before) return nullptr;
    const double from = p.from.per_second * rate_scale;
    const double to = p.to.per_second * rate_scale;
    if (from <= 0 && to <= 0) {
        diagnostics.error(params.mark, "arrivals: a ramp from 0/s to 0/s sends nothing");
        return nullptr;
    }
    ArrivalInfo info;
    info.rate = std::max(from, to);
    info.ends = to <= 0;
    std::vector<SegmentRates::Segment> segments{{to_seconds(p.over), from, to},
                                                {std::numeric_limits<double>::infinity(), to, to}};
    return std::make_unique<ListedRates>(info, p.spacing == "constant", seed, std::move(segments), false);
}

}  // namespace kvsim
