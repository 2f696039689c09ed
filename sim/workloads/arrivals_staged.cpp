#include "rate_driven.hpp"

namespace kvsim {

namespace {

struct Stage {
    SimDuration duration{};
    config::Rate rate;
};

const config::Schema<Stage>& stage_schema() {
    static const config::Schema<Stage> table{
        config::field("duration", &Stage::duration, "how long the stage lasts", segment_time).need(),
        config::field("rate", &Stage::rate, "requests per second during it", some_rate).need()};
    return table;
}

struct StagedParams : RateDrivenParams {
    config::Value stages;
};

const config::Schema<StagedParams>& schema() {
    using P = StagedParams;
    static const config::Schema<P> table{
        process_field<P>(),
        config::custom<P>("stages", "list of {duration, rate}",
                          "one after the other; nothing arrives after the last, so neither requests nor duration is needed",
                          [](P& into, const config::Value& value, config::Diagnostics& d) {
                              return config::decode(value, into.stages, "stages", config::any, d);
                          })
            .need(),
        spacing_field<P>()};
    return table;
}

}  // namespace

std::vector<config::FieldDoc> staged_arrivals_docs() {
    return schema().docs();
}

std::unique_ptr<ArrivalProcess> make_staged_arrivals(const config::Value& params, double rate_scale, std::uint64_t seed,
                                                     config::Diagnostics& diagnostics) {
    StagedParams p;
    const std::size_t before = diagnostics.error_count();
    schema().read(params, p, "arrivals", diagnostics);
    if (diagnostics.error_count() != before) return nullptr;
    if (!p.stages.is_list() || p.stages.list.empty()) {
        diagnostics.error(p.stages.mark, "arrivals.stages must be a list of {duration: 600s, rate: 8/s}");
        return nullptr;
    }
    std::vector<SegmentRates::Segment> segments;
    double seconds = 0;
    double expected = 0;
    for (const config::Value& item : p.stages.list) {
        Stage stage;
        stage_schema().read(item, stage, "the stage", diagnostics);
        const double rate = stage.rate.per_second * rate_scale;
        segments.push_back({to_seconds(stage.duration), rate, rate});
        seconds += to_seconds(stage.duration);
        expected += to_seconds(stage.duration) * rate;
    }
    if (diagnostics.error_count() != before) return nullptr;
    if (expected <= 0) {
        diagnostics.error(p.stages.mark, "arrivals: no stage sends anything");
        return nullptr;
    }
    ArrivalInfo info;
    info.rate = expected / seconds;
    info.ends = true;
    info.expected = expected;
    return std::make_unique<ListedRates>(info, p.spacing == "constant", seed, std::move(segments), false);
}

}  // namespace kvsim
