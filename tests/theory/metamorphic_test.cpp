// Two runs whose results must be related, though neither's is known.

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "oracle/random_scenarios.hpp"
#include "support.hpp"

namespace kvsim::theory {
namespace {

const char* const chats =
    "{requests: 600, arrivals: {process: poisson, rate: 14/s}, prompt_tokens: {distribution: lognormal, p50: 200, p90: 900, "
    "max: "
    "3000}, output_tokens: {distribution: lognormal, p50: 150, p90: 400, max: 1000}}";
const char* const affine = "{model: affine, c0: 5ms, per_token: 20us, per_sequence: 10us, per_context_token: 100ns}";

SimulationOptions small_engine(std::int64_t blocks) {
    SimulationOptions options = plain_options();
    options.engine.max_model_len = 4096;
    options.engine.max_num_seqs = 64;
    options.engine.max_num_batched_tokens = 512;
    options.engine.num_gpu_blocks = blocks;
    return options;
}

bool same(const RequestRecord& a, const RequestRecord& b) {
    return a.arrival == b.arrival && a.queue == b.queue && a.ttft == b.ttft && a.e2e == b.e2e &&
           a.prompt_tokens == b.prompt_tokens && a.output_tokens == b.output_tokens && a.preemptions == b.preemptions &&
           a.replica == b.replica && a.finish == b.finish;
}

/// The same requests, times and counters.
void check_same(const Outcome& a, const Outcome& b) {
    CHECK(a.counters == b.counters);
    CHECK(a.end == b.end);
    REQUIRE(a.requests.size() == b.requests.size());
    std::size_t different = 0;
    for (std::size_t i = 0; i < a.requests.size(); ++i) {
        const bool as_one = same(a.requests[i], b.requests[i]) && a.cached_prompt_tokens[i] == b.cached_prompt_tokens[i] &&
                            a.recomputed_tokens[i] == b.recomputed_tokens[i];
        different += as_one ? 0U : 1U;
    }
    CHECK(different == 0);
    CHECK(a.integrals.blocks_used_dt == b.integrals.blocks_used_dt);
}

}  // namespace

TEST_CASE("theory: more KV blocks mean fewer preemptions") {
    // Averaged over seeds: one run may have a preemption more with a few blocks more, because who runs with whom changes.
    const auto model = step_time(affine);
    double before = 1e9;
    for (const std::int64_t blocks : {300, 450, 600, 800, 1'000, 1'300, 4'000}) {
        CAPTURE(blocks);
        double preemptions = 0;
        for (std::uint64_t seed = 1; seed <= 4; ++seed) {
            const auto requests = workload(chats, seed);
            preemptions += static_cast<double>(run(small_engine(blocks), *model, *requests).counters.preemptions);
        }
        CHECK(preemptions <= before);
        before = preemptions;
    }
    CHECK(before == 0);
}

TEST_CASE("theory: scaling every time scales every latency") {
    // Whole times, so that no step is rounded: exact.
    static constexpr std::int64_t factor = 7;
    std::int64_t scaled = 0;
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        oracle::Scenario scenario = oracle::random_scenario(seed);
        for (double* part : {&scenario.step_time.c0, &scenario.step_time.per_token, &scenario.step_time.per_sequence,
                             &scenario.step_time.per_context, &scenario.step_time.per_sampled, &scenario.step_time.per_window})
            *part = std::ceil(*part);
        scenario.options.cold_start = {};
        oracle::Scenario slow = scenario;
        for (double* part : {&slow.step_time.c0, &slow.step_time.per_token, &slow.step_time.per_sequence,
                             &slow.step_time.per_context, &slow.step_time.per_sampled, &slow.step_time.per_window})
            *part *= static_cast<double>(factor);
        for (Arrival& a : slow.arrivals) {
            a.time = SimTime(a.time.time_since_epoch() * factor);
            for (SimDuration* limit : {&a.timeout, &a.ttft_timeout, &a.cancel_after}) *limit *= factor;
        }
        slow.think *= factor;
        slow.options.api *= factor;
        if (slow.options.warmup_time) *slow.options.warmup_time *= factor;
        slow.options.timeline_interval *= factor;
        const oracle::Run fast_run = oracle::run(scenario, simulate);
        if (fast_run.refused || fast_run.endless) continue;
        ++scaled;
        INFO(oracle::describe(scenario));
        const Outcome a = oracle::run_without_records(scenario, simulate).outcome;
        const Outcome b = oracle::run_without_records(slow, simulate).outcome;
        REQUIRE(a.requests.size() == b.requests.size());
        const auto times = [](SimDuration d) { return d < SimDuration::zero() ? d : d * factor; };
        for (std::size_t i = 0; i < a.requests.size(); ++i) {
            CHECK(b.requests[i].queue == times(a.requests[i].queue));
            CHECK(b.requests[i].ttft == times(a.requests[i].ttft));
            CHECK(b.requests[i].e2e == times(a.requests[i].e2e));
        }
        CHECK(a.counters.timed_out == b.counters.timed_out);
        CHECK(a.counters.wasted_tokens == b.counters.wasted_tokens);
        CHECK(a.counters.steps == b.counters.steps);
        CHECK(a.counters.preemptions == b.counters.preemptions);
        CHECK(a.timeline.size() == b.timeline.size());
    }
    CHECK(scaled > 150);
}

TEST_CASE("theory: watching a run changes nothing") {
    const auto model = step_time(affine);
    for (const bool async : {false, true}) {
        SimulationOptions options = small_engine(600);
        options.engine.async_scheduling = async;
        auto requests = workload(chats, 5);
        const Outcome plain = run(options, *model, *requests);
        CHECK(plain.counters.preemptions > 0);

        options.timeline_interval = std::chrono::milliseconds(10);
        requests = workload(chats, 5);
        const Outcome sampled = run(options, *model, *requests);
        CHECK(sampled.timeline.size() > 1'000);
        check_same(plain, sampled);

        std::int64_t records = 0;
        options.on_step = [&records](std::int64_t, const StepRecord&) { ++records; };
        requests = workload(chats, 5);
        check_same(plain, run(options, *model, *requests));
        CHECK(records >= plain.counters.steps);
    }
}

TEST_CASE("theory: prefix caching without anything shared changes nothing while nothing is preempted") {
    const auto model = step_time(affine);
    SimulationOptions options = small_engine(20'000);
    auto requests = workload(chats, 6);
    const Outcome off = run(options, *model, *requests);
    CHECK(off.counters.preemptions == 0);
    options.engine.enable_prefix_caching = true;
    requests = workload(chats, 6);
    check_same(off, run(options, *model, *requests));
}

TEST_CASE("theory: prefix hits save time, not only counters") {
    const auto model = step_time(affine);
    const char* const shared =
        "{requests: 400, arrivals: {process: poisson, rate: 3/s}, prefix: {groups: 2, tokens: 1600}, prompt_tokens: 100, "
        "output_tokens: 20}";
    SimulationOptions options = small_engine(20'000);
    options.engine.max_num_batched_tokens = 4096;
    auto requests = workload(shared, 7);
    const Outcome off = run(options, *model, *requests);
    options.engine.enable_prefix_caching = true;
    requests = workload(shared, 7);
    const Outcome on = run(options, *model, *requests);
    CHECK(on.counters.hit_tokens_first > 390 * 1600);
    // Each hit saves 1,600 tokens of 20 us, alone or in somebody else's step.
    CHECK(mean_e2e(off) - mean_e2e(on) > 0.8 * 1600 * 20e-6);
}

TEST_CASE("theory: twice the replicas at twice the rate leave the latency alone") {
    // Dealt out in turn, a Poisson stream becomes more regular; constant gaps stay constant.
    const auto model = step_time(affine);
    std::vector<double> differences;
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
        SimulationOptions options = small_engine(4'000);
        const auto text = [](int requests, int rate) {
            return "{requests: " + std::to_string(requests) + ", arrivals: {process: constant, rate: " + std::to_string(rate) +
                   "/s}, prompt_tokens: {distribution: exponential, mean: 300, max: 3000}, output_tokens: {distribution: "
                   "geometric, mean: 150, max: 1000}}";
        };
        const auto one = workload(text(1'500, 6), seed);
        const double alone = mean_e2e(run(options, *model, *one));
        options.replicas = 2;
        const auto two = workload(text(3'000, 12), 100 + seed);
        differences.push_back(mean_e2e(run(options, *model, *two)) / alone);
    }
    check_known("mean time in system, two replicas to one", 1.0, differences, 0.05);
}

}  // namespace kvsim::theory
