#include <limits>
#include <optional>

#include "rate_driven.hpp"

namespace kvsim {

namespace {

struct Point {
    SimDuration at{};
    config::Rate rate;
};

const config::Schema<Point>& point_schema() {
    static const config::Schema<Point> table{
        config::field("at", &Point::at, "time since the start", config::Range{0, 366.0 * 86'400}).need(),
        config::field("rate", &Point::rate, "requests per second at that time", some_rate).need()};
    return table;
}

struct PiecewiseParams : RateDrivenParams {
    config::Value points;
    std::optional<SimDuration> period;
};

const config::Schema<PiecewiseParams>& schema() {
    using P = PiecewiseParams;
    static const config::Schema<P> table{
        process_field<P>(),
        config::custom<P>("points", "list of {at, rate}",
                          "the rate, linear in between; the first holds before it, the last after it; two points of one time "
                          "make a jump",
                          [](P& into, const config::Value& value, config::Diagnostics& d) {
                              return config::decode(value, into.points, "points", config::any, d);
                          })
            .need(),
        config::field("period", &P::period, "repeat after this time, e.g. 24h; not before the last point", segment_time),
        spacing_field<P>()};
    return table;
}

}  // namespace

std::vector<config::FieldDoc> piecewise_arrivals_docs() {
    return schema().docs();
}

std::unique_ptr<ArrivalProcess> make_piecewise_arrivals(const config::Value& params, double rate_scale, std::uint64_t seed,
                                                        config::Diagnostics& diagnostics) {
    PiecewiseParams p;
    const std::size_t before = diagnostics.error_count();
    schema().read(params, p, "arrivals", diagnostics);
    if (diagnostics.error_count() != before) return nullptr;
    if (!p.points.is_list() || p.points.list.empty()) {
        diagnostics.error(p.points.mark, "arrivals.points must be a list of {at: 0s, rate: 8/s}");
        return nullptr;
    }
    std::vector<SegmentRates::Segment> segments;
    SimDuration last{};
    double rate = 0;
    double expected = 0;
    const auto until = [&](SimDuration at, double next) {
        if (at <= last) return;
        segments.push_back({to_seconds(at - last), rate, next});
        expected += to_seconds(at - last) * (rate + next) / 2;
        last = at;
    };
    bool first = true;
    for (const config::Value& item : p.points.list) {
        Point point;
        point_schema().read(item, point, "the point", diagnostics);
        if (point.at < last) {
            diagnostics.error(item.mark, "arrivals.points must be in the order of time");
            return nullptr;
        }
        const double next = point.rate.per_second * rate_scale;
        if (first) rate = next;
        first = false;
        until(point.at, next);
        rate = next;
    }
    if (diagnostics.error_count() != before) return nullptr;
    ArrivalInfo info;
    if (p.period) {
        if (*p.period < last) {
            diagnostics.error(params.find("period")->mark, "arrivals.period ends before the last point");
            return nullptr;
        }
        until(*p.period, rate);
        info.rate = expected / to_seconds(*p.period);
    } else {
        segments.push_back({std::numeric_limits<double>::infinity(), rate, rate});
        info.ends = rate <= 0;
        if (info.ends) info.expected = expected;
        info.rate = last > SimDuration::zero() ? expected / to_seconds(last) : rate;
    }
    if (expected <= 0 && rate <= 0) {
        diagnostics.error(p.points.mark, "arrivals: the rate is 0 throughout");
        return nullptr;
    }
    if (info.rate <= 0) info.rate = rate;
    return std::make_unique<ListedRates>(info, p.spacing == "constant", seed, std::move(segments), p.period.has_value());
}

}  // namespace kvsim
