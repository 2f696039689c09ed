// Random mixes of users, sessions, retries and impatient clients: the workload is the same code on both sides, what the engines
// make of it must be equal.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>

#include "compare.hpp"
#include "kvsim/config/load.hpp"
#include "kvsim/model/pieces.hpp"
#include "kvsim/random/stream.hpp"
#include "naive_simulation.hpp"
#include "random_scenarios.hpp"

namespace kvsim::oracle {
namespace {

/// A class as a scenario writes it; times in units of the step of 1 ms.
std::string random_class(Stream& stream, int index, bool bounded) {
    const auto between = [&](int low, int high) { return low + static_cast<int>(stream.uniform() * (high - low + 1)); };
    const auto percent = [&](int p) { return stream.uniform() * 100 < p; };
    std::string text = fmt::format(
        "{{name: c{}, prompt_tokens: {{distribution: uniform, min: 1, max: {}}}, output_tokens: "
        "{{distribution: uniform, min: 1, max: {}}}, priority: {}",
        index, between(1, 30), between(1, 12), between(0, 2));
    if (percent(50)) {
        text += fmt::format(", users: {{count: {}, think_time: {{distribution: exponential, mean: {}ms}}}}", between(1, 4),
                            between(0, 9));
    } else {
        text += fmt::format(", arrivals: {{process: poisson, rate: {}/s}}", between(20, 400));
        if (percent(40)) text += fmt::format(", max_concurrency: {}", between(1, 3));
    }
    if (percent(40)) {
        text += fmt::format(", sessions: {{turns: {}, think_time: {}ms}}", between(1, 4), between(0, 6));
    } else if (percent(30)) {
        text += fmt::format(
            ", sessions: {{steps: [{{name: a}}, {{name: b, copies: {}, context: none, delay: 2ms}}, {{name: c, after: [a], "
            "repeat: "
            "{}}}, {{name: d, after: [c, b]}}]}}",
            between(1, 3), between(1, 2));
    }
    if (percent(50)) {
        text += fmt::format(", timeout: {}ms", between(1, 60));
        if (percent(60)) text += fmt::format(", retry: {{max_retries: {}, backoff: {}ms}}", between(1, 2), between(0, 9));
    } else if (bounded && percent(60)) {
        text += fmt::format(", retry: {{max_retries: {}, backoff: {}ms}}", between(1, 3), between(0, 9));
    }
    if (percent(30)) text += fmt::format(", cancel: {{share: 0.5, after: {}ms}}", between(1, 30));
    if (percent(40)) text += fmt::format(", prefix: {{groups: 3, tokens: {}, zipf: 1}}", between(1, 20));
    if (percent(30)) text += fmt::format(", documents: {{count: 4, tokens: {}, per_request: 2}}", between(1, 9));
    if (percent(30)) text += ", jitter: 3ms";
    return text + "}";
}

}  // namespace

TEST_CASE("oracle: users, sessions, retries and impatient clients, simulate() equals the naive engine") {
    const char* const more = std::getenv("KVSIM_ORACLE_SCENARIOS");
    // Never fewer: what the mixes must reach is counted below.
    const std::uint64_t count = std::max<std::uint64_t>(150, more == nullptr ? 0 : std::stoull(more) / 4);
    std::int64_t timed_out = 0;
    std::int64_t retries = 0;
    std::int64_t turned_away = 0;
    std::int64_t hits = 0;
    int differing = 0;
    for (std::uint64_t seed = 0; seed < count && differing < 3; ++seed) {
        Scenario scenario = random_scenario(seed);
        scenario.options.engine.max_model_len = std::max<std::int64_t>(scenario.options.engine.max_model_len, 40);
        // Room for the longest request, or they preempt each other for ever.
        EngineArgs& engine = scenario.options.engine;
        engine.num_gpu_blocks = std::max(engine.num_gpu_blocks, 4 * (2 + ceil_div(engine.max_model_len, engine.block_size)));
        Stream stream(seed, "clients_oracle");
        const bool bounded = engine.max_queued_requests >= 0;
        std::string text =
            fmt::format("workload: {{requests: {}, classes: [{}", 10 + seed % 40, random_class(stream, 0, bounded));
        for (int i = 1; i < 1 + static_cast<int>(seed % 3); ++i) text += ", " + random_class(stream, i, bounded);
        text += "]}\n";
        if (bounded) text += fmt::format("engine: {{max_queued_requests: {}}}\n", engine.max_queued_requests);
        INFO(text);
        INFO(describe(scenario));
        AffineStepTime step = scenario.step_time;
        step.c0 = 1e6;
        step.per_token = step.per_token > 0 ? 3e4 : 0;
        step.per_sequence = step.per_context = step.per_sampled = step.per_window = 0;
        if (scenario.options.timeline_interval > SimDuration::zero())
            scenario.options.timeline_interval = std::chrono::milliseconds(5);
        if (scenario.options.api > SimDuration::zero()) scenario.options.api = std::chrono::microseconds(700);
        scenario.options.warmup_time.reset();

        const auto run_as = [&](const Simulate& simulate_as, bool records) {
            config::Diagnostics diagnostics;
            const config::Scenario read =
                config::read_scenario(config::parse_yaml(text, "t.yaml", diagnostics), "t.yaml", diagnostics);
            const auto workload = make_workload(read.workload, seed, {}, diagnostics);
            diagnostics.throw_if_errors();
            Run result;
            result.replicas = scenario.options.replicas;
            result.recorded = records;
            TestRouter router(scenario.fewest_tokens);
            SimulationOptions options = scenario.options;
            std::int64_t steps = 0;
            if (records) {
                options.on_step = [&](std::int64_t replica, const StepRecord& record) {
                    result.steps[replica].push_back(record);
                    if (++steps == 6'000) throw TooManySteps("the run was cut");
                };
            }
            try {
                result.outcome = simulate_as(options, step, router, *workload);
            } catch (const UserError&) { result.refused = true; } catch (const TooManySteps&) {
                result.endless = true;
            }
            result.loads = router.shown();
            return result;
        };
        const Run naive = run_as([](const SimulationOptions& o, const StepTimeModel& s, Router& r,
                                    Workload& w) { return naive_simulate(o, s, r, w); },
                                 true);
        if (naive.endless) continue;
        std::string difference = first_difference(naive, run_as(simulate, true));
        if (difference.empty() && !naive.endless) difference = first_difference(naive, run_as(simulate, false));
        CHECK_MESSAGE(difference.empty(), difference);
        differing += difference.empty() ? 0 : 1;
        timed_out += naive.outcome.counters.timed_out;
        turned_away += naive.outcome.counters.queue_full;
        retries += naive.outcome.counters.retries;
        hits += naive.outcome.counters.hit_tokens_first;
    }
    // The mixes reach what they are meant to reach.
    CHECK(timed_out > static_cast<std::int64_t>(count));
    CHECK(turned_away > static_cast<std::int64_t>(count) / 4);
    CHECK(retries > static_cast<std::int64_t>(count) / 4);
    CHECK(hits > static_cast<std::int64_t>(count) * 10);
}

}  // namespace kvsim::oracle
