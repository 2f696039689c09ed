// The naive engine checked against what must hold in every run, whatever the rules.

#include <doctest/doctest.h>

#include <map>
#include <set>

#include "compare.hpp"
#include "naive_simulation.hpp"
#include "random_scenarios.hpp"

namespace kvsim::oracle {
namespace {

Run naive_run(const Scenario& scenario) {
    return run(scenario, [](const SimulationOptions& o, const StepTimeModel& s, Router& r, Workload& w) {
        return naive_simulate(o, s, r, w);
    });
}

void check_steps(const Scenario& scenario, const Run& run) {
    const EngineArgs& args = scenario.options.engine;
    std::map<RequestId, std::int64_t> received;
    std::set<RequestId> finished;
    for (const auto& [replica, steps] : run.steps) {
        SimTime busy_until{};
        SimTime last_start{};
        std::int64_t step = 0;
        for (const StepRecord& record : steps) {
            REQUIRE(record.step == step++);
            REQUIRE(record.total_tokens <= args.max_num_batched_tokens);
            REQUIRE(static_cast<std::int64_t>(record.running.size()) <= args.max_num_seqs);
            // Async: a schedule() without rows runs while the batch before it executes.
            REQUIRE(record.start >= (record.scheduled.empty() ? last_start : busy_until));
            last_start = record.start;
            REQUIRE((record.duration > SimDuration::zero()) == !record.scheduled.empty());
            if (!record.scheduled.empty()) busy_until = record.start + record.duration;
            for (const RequestId id : record.received) {
                REQUIRE(finished.count(id) == 0);
                ++received[id];
            }
            for (const RequestId id : record.finished) REQUIRE(finished.insert(id).second);
        }
    }
    for (RequestId id = 0; id < run.outcome.requests.size(); ++id) {
        const RequestRecord& record = run.outcome.requests[id];
        REQUIRE(record.output_tokens == received[id]);
        REQUIRE((record.finish == FinishReason::length) == (finished.count(id) == 1));
        if (record.finish != FinishReason::length) continue;
        const std::int64_t expected =
            std::min(scenario.arrivals[id].output_tokens, args.max_model_len - scenario.arrivals[id].prompt_tokens);
        REQUIRE(record.output_tokens == expected);
        REQUIRE(record.queue >= SimDuration::zero());
        REQUIRE(record.ttft > record.queue);
        REQUIRE(record.e2e >= record.ttft);
    }
}

void check_sums(const Scenario& scenario, const Run& run) {
    const std::int64_t slots_per_block = NaiveEngine(scenario.options.engine).slots_per_block();
    const Outcome& out = run.outcome;
    const Integrals& sums = out.integrals;
    const SimDuration span = out.end - out.first_arrival;
    SimDuration bounds{};
    for (const SimDuration d : sums.bound) bounds += d;
    REQUIRE(bounds == out.replicas * span);
    REQUIRE(sums.slots_token_dt >= 0);
    REQUIRE(sums.slots_token_dt + sums.slots_reserved_dt + sums.slots_internal_dt == sums.blocks_used_dt * slots_per_block);
    REQUIRE(sums.blocks_used_dt * slots_per_block <= sums.slots_busy_dt);
    REQUIRE(sums.blocks_used_peak <= out.usable_blocks);
    const std::int64_t gave_up = out.counters.timed_out + out.counters.cancelled;
    REQUIRE(static_cast<std::int64_t>(run.left.size()) == out.counters.completed + out.counters.rejected + gave_up);
    if (!out.stall_report.empty()) return;

    // Little's law, exactly: the area under the number in the system is the sum of the times in it.
    Int128 sojourns = 0;
    std::int64_t gaps = 0;
    for (RequestId id = 0; id < out.requests.size(); ++id) {
        const RequestRecord& record = out.requests[id];
        const auto gone = out.unfinished_after.find(id);
        if (record.finish == FinishReason::rejected && gone == out.unfinished_after.end()) continue;
        sojourns += gone == out.unfinished_after.end() ? record.e2e.count() : gone->second.count();
        gaps += record.measured ? std::max(0, record.output_tokens - 1) : 0;
    }
    REQUIRE(sums.in_system_dt == sojourns);
    REQUIRE(out.itl.count() == gaps);
    REQUIRE(out.counters.completed + out.counters.rejected + gave_up == out.counters.arrivals);
    REQUIRE(sums.idle + sums.stepping == out.replicas * span);
}

TEST_CASE("oracle: what must hold in every run of the naive engine") {
    std::int64_t stalls = 0;
    std::int64_t rejected = 0;
    std::int64_t preemptions = 0;
    std::int64_t hits = 0;
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
        const Scenario scenario = random_scenario(seed);
        INFO(describe(scenario));
        const Run run = naive_run(scenario);
        if (run.refused || run.endless) continue;
        check_steps(scenario, run);
        check_sums(scenario, run);
        stalls += run.outcome.stall_report.empty() ? 0 : 1;
        rejected += run.outcome.counters.rejected;
        preemptions += run.outcome.counters.preemptions;
        hits += run.outcome.counters.hit_tokens_first + run.outcome.counters.hit_tokens_resume;
    }
    // The scenarios reach what they are meant to reach.
    CHECK(stalls > 0);
    CHECK(stalls < 60);
    CHECK(rejected > 20);
    CHECK(preemptions > 300);
    CHECK(hits > 1000);
}

TEST_CASE("oracle: a scenario follows from its seed, and the comparison accepts equal runs") {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        CHECK(describe(random_scenario(seed)) == describe(random_scenario(seed)));
        CHECK(first_difference(naive_run(random_scenario(seed)), naive_run(random_scenario(seed))) == "");
    }
}

}  // namespace
}  // namespace kvsim::oracle
