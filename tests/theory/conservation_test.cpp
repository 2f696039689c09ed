// What must hold in every run, whatever the policy: nothing is lost, nothing is made twice, and Little's law.

#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "oracle/random_scenarios.hpp"
#include "support.hpp"

namespace kvsim::theory {
namespace {

struct Totals {
    Int128 sojourn = 0;
    std::int64_t completed = 0;
    std::int64_t rejected = 0;
    std::int64_t unfinished = 0;
    std::int64_t gave_up = 0;
    std::int64_t first_tokens = 0;
    std::int64_t outputs = 0;
    std::int64_t to_compute = 0;  ///< prompt and outputs but the last, which is never computed
    std::int64_t recomputed = 0;
    std::int64_t preemptions = 0;
    std::int64_t cached = 0;
};

Totals totals(const Outcome& outcome) {
    Totals t;
    for (RequestId id = 0; id < outcome.requests.size(); ++id) {
        const RequestRecord& r = outcome.requests[id];
        t.cached += outcome.cached_prompt_tokens[id];
        t.outputs += r.output_tokens;
        t.first_tokens += r.output_tokens > 0;
        if (r.finish == FinishReason::timed_out || r.finish == FinishReason::cancelled) {
            ++t.gave_up;
            t.sojourn += outcome.unfinished_after.at(id).count();
        }
        t.recomputed += outcome.recomputed_tokens[id];
        t.preemptions += r.preemptions;
        if (r.finish == FinishReason::rejected) {
            ++t.rejected;
            // Turned away by a full queue behind the front end.
            if (const auto gone = outcome.unfinished_after.find(id); gone != outcome.unfinished_after.end())
                t.sojourn += gone->second.count();
        }
        if (r.finish == FinishReason::unfinished) {
            ++t.unfinished;
            t.sojourn += (outcome.end - r.arrival).count();
        }
        if (r.finish != FinishReason::length) continue;
        ++t.completed;
        t.sojourn += r.e2e.count();
        t.to_compute += r.prompt_tokens + r.output_tokens - 1;
    }
    return t;
}

/// Times are whole nanoseconds and the integral is exact, so Little's law is an identity here, not an approximation.
void check_conservation(const SimulationOptions& options, const Outcome& outcome) {
    const Totals t = totals(outcome);
    const Counters& c = outcome.counters;
    CHECK(outcome.integrals.in_system_dt == t.sojourn);

    CHECK(c.arrivals == static_cast<std::int64_t>(outcome.requests.size()));
    CHECK(c.completed == t.completed);
    CHECK(c.rejected == t.rejected);
    CHECK(c.timed_out + c.cancelled == t.gave_up);
    CHECK(c.arrivals == t.completed + t.rejected + t.gave_up + t.unfinished);
    CHECK(outcome.stall_report.empty() == (t.unfinished == 0));
    CHECK(c.recomputed_tokens == t.recomputed);
    CHECK(c.preemptions == t.preemptions);
    CHECK(outcome.usable_blocks == options.engine.usable_blocks());

    SimDuration bounds{};
    for (const SimDuration d : outcome.integrals.bound) bounds += d;
    CHECK(bounds == outcome.replicas * (outcome.end - outcome.first_arrival));
    CHECK(outcome.integrals.stepping + outcome.integrals.idle == bounds);
    CHECK(outcome.integrals.slots_token_dt + outcome.integrals.slots_reserved_dt + outcome.integrals.slots_internal_dt <=
          outcome.integrals.slots_busy_dt);
    if (t.unfinished > 0) return;

    // A first token each, then one gap each.
    const bool cut = options.warmup_time.has_value() || options.warmup_requests.has_value();
    CHECK((cut ? outcome.itl_all : outcome.itl).count() + t.first_tokens == t.outputs);
    CHECK(c.hit_tokens_first == t.cached);
    CHECK(c.wasted_tokens <= c.tokens);
    if (t.gave_up > 0) return;
    // What a step computes is new, or done again after a preemption. A resume may hit blocks that others computed further than
    // it had come itself: that much less is new.
    const std::int64_t all = t.to_compute - c.hit_tokens_first + c.recomputed_tokens;
    CHECK(c.tokens <= all);
    CHECK(c.tokens >= all - c.hit_tokens_resume);
    if (!options.engine.enable_prefix_caching) CHECK(c.tokens == all);
}

/// KV in use after the last event: the sample at the run's end. With the same interval as its length there is one.
std::int64_t blocks_at_end(SimulationOptions options, const oracle::Scenario& scenario, SimTime end) {
    options.timeline_interval = end.time_since_epoch();
    oracle::VectorWorkload workload(scenario.arrivals, scenario.users, scenario.think);
    oracle::TestRouter router(scenario.fewest_tokens);
    const Outcome outcome = simulate(options, scenario.step_time, router, workload);
    std::int64_t used = 0;
    std::int64_t seen = 0;
    for (const TimelineSample& s : outcome.timeline) {
        if (s.at != end) continue;
        used += s.kv_blocks_used;
        ++seen;
    }
    CHECK(seen == options.replicas);
    return used;
}

}  // namespace

TEST_CASE("theory: conservation and Little's law on random scenarios, both engine forms") {
    std::map<std::string, std::int64_t> seen;
    for (std::uint64_t seed = 50'000; seed < 50'300; ++seed) {
        const oracle::Scenario scenario = oracle::random_scenario(seed);
        INFO(oracle::describe(scenario));
        // Under priority two requests can preempt each other for ever; run() cuts those.
        const oracle::Run recorded = oracle::run(scenario, simulate);
        if (recorded.refused || recorded.endless) continue;
        check_conservation(scenario.options, recorded.outcome);
        const oracle::Run automatic = oracle::run_without_records(scenario, simulate);
        check_conservation(scenario.options, automatic.outcome);

        const bool stalled = !automatic.outcome.stall_report.empty();
        if (!stalled && automatic.outcome.end > SimTime{})
            CHECK(blocks_at_end(scenario.options, scenario, automatic.outcome.end) == 0);
        ++seen[stalled ? "stalled" : "drained"];
        if (automatic.outcome.counters.preemptions > 0) ++seen["preempting"];
        if (automatic.outcome.counters.hit_tokens_first > 0) ++seen["hitting"];
        if (automatic.outcome.counters.rejected > 0) ++seen["rejecting"];
        if (scenario.options.engine.async_scheduling) ++seen["async"];
    }
    for (const char* kind : {"stalled", "drained", "preempting", "hitting", "rejecting", "async"}) {
        CAPTURE(kind);
        CHECK(seen[kind] >= 5);
    }
}

TEST_CASE("theory: conservation under load, both forms alike") {
    struct Case {
        const char* name;
        const char* workload;
        bool caching;
        bool async;
        bool reserve;
    };
    const char* const mixed =
        "{requests: 1500, arrivals: {process: gamma, rate: 60/s, burstiness: 0.4}, prompt_tokens: {distribution: lognormal, "
        "p50: 200, p90: 900, max: 3000}, output_tokens: {distribution: lognormal, p50: 150, p90: 400, max: 1000}}";
    const char* const shared =
        "{requests: 1500, arrivals: {process: poisson, rate: 60/s}, prefix: {groups: 5, share: 0.8, tokens: {distribution: "
        "uniform, min: 50, max: 700}}, prompt_tokens: {distribution: exponential, mean: 150, max: 2000}, output_tokens: "
        "{distribution: geometric, mean: 120, max: 900}}";
    for (const Case& c : {Case{"no cache, sync", mixed, false, false, true}, Case{"no cache, async", mixed, false, true, false},
                          Case{"cache, sync", shared, true, false, false}, Case{"cache, async", shared, true, true, true}}) {
        INFO(std::string(c.name));
        SimulationOptions options = plain_options();
        EngineArgs& e = options.engine;
        e.enable_prefix_caching = c.caching;
        e.async_scheduling = c.async;
        e.scheduler_reserve_full_isl = c.reserve;
        e.max_model_len = 4096;
        e.max_num_seqs = 64;
        e.max_num_batched_tokens = 512;
        e.num_gpu_blocks = 700;
        options.replicas = 2;
        const auto model = step_time("{model: affine, c0: 5ms, per_token: 20us, per_sequence: 10us, per_context_token: 0.1us}");
        std::vector<Outcome> outcomes;
        for (const EngineForm form : {EngineForm::per_request, EngineForm::fast}) {
            options.form = form;
            const auto requests = workload(c.workload, 3);
            outcomes.push_back(run(options, *model, *requests));
            check_conservation(options, outcomes.back());
        }
        CHECK(outcomes[0].counters == outcomes[1].counters);
        CHECK(outcomes[0].end == outcomes[1].end);
        CHECK(outcomes[0].counters.completed == 1500);
        CHECK(outcomes[0].counters.preemptions > 100);
        if (c.caching) CHECK(outcomes[0].counters.hit_tokens_first > 10'000);
        // L = lambda W over the whole run, in the rounding of doubles.
        const double span = to_seconds(outcomes[1].end - outcomes[1].first_arrival);
        const double l = static_cast<double>(outcomes[1].integrals.in_system_dt) * 1e-9 / span;
        CHECK(l == doctest::Approx(1500 / span * mean_e2e(outcomes[1])).epsilon(1e-9));
    }
}

}  // namespace kvsim::theory
