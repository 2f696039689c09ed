// The production engine against the naive one, field by field. KVSIM_ORACLE_SCENARIOS: how many random scenarios;
// KVSIM_ORACLE_SEED: the first seed.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>

#include "compare.hpp"
#include "dice.hpp"
#include "kvsim/engine/simulation.hpp"
#include "kvsim/model/token_ids.hpp"
#include "naive_simulation.hpp"
#include "random_scenarios.hpp"

namespace kvsim::oracle {
namespace {

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
    const char* value = std::getenv(name);
    return value == nullptr ? otherwise : std::stoull(value);
}

Outcome one_by_one(const SimulationOptions& options, const StepTimeModel& step_time, Router& router, Workload& workload) {
    SimulationOptions plain = options;
    plain.form = EngineForm::per_request;
    return simulate(plain, step_time, router, workload);
}

/// What the fast form takes, most of it where blocks are only counted; long enough for steps that pass at once.
void make_plain(Dice& dice, Scenario& s) {
    SimulationOptions& options = s.options;
    EngineArgs& engine = options.engine;
    engine.scheduling_policy = QueueOrder::fcfs;
    engine.long_prefill_token_threshold = 0;
    if (dice.percent(70)) engine.enable_prefix_caching = false;
    if (dice.percent(60)) options.replicas = 1;
    options.itl_per_request = false;
    s.users = 0;
    s.plain = dice.percent(70);
    const std::int64_t longer = engine.max_model_len > 160 ? 1 : std::int64_t{1} << dice.range(0, 3);
    engine.max_model_len *= longer;
    if (!engine.enable_chunked_prefill)
        engine.max_num_batched_tokens = std::max(engine.max_num_batched_tokens, engine.max_model_len);
    engine.num_gpu_blocks = 1 + (engine.num_gpu_blocks - 1) * dice.range(longer, longer + 2);
    for (std::size_t i = 0; i < s.arrivals.size(); ++i) {
        const Arrival drawn = std::exchange(s.arrivals[i], {});
        Arrival& a = s.arrivals[i];
        a.time = drawn.time;
        a.prompt_tokens = drawn.prompt_tokens;
        a.output_tokens = drawn.output_tokens * longer;
        a.output_base = own_output_base(static_cast<RequestId>(i));
    }
}

/// random_scenario(), some with window marks and some made plain.
Scenario wider_scenario(std::uint64_t seed) {
    Scenario s = random_scenario(seed);
    Dice dice(seed * 0xd6e8feb86659fd93ULL + 9);
    if (seed % 5 == 4 && s.options.engine.kv_groups.empty()) make_plain(dice, s);
    if (dice.percent(25)) {
        const auto unit = static_cast<std::int64_t>(std::ceil(s.step_time.c0));
        s.options.window = SimDuration(std::max<std::int64_t>(1, unit * dice.range(1, 60) / 2));
    }
    return s;
}

/// Between the naive engine and each form of the production one; empty: none.
std::string difference_between_forms(const Scenario& scenario) {
    const Run naive = run(scenario, [](const SimulationOptions& o, const StepTimeModel& s, Router& r, Workload& w) {
        return naive_simulate(o, s, r, w);
    });
    try {
        std::string difference = first_difference(naive, run(scenario, simulate));
        if (!difference.empty()) return difference;
        difference = first_difference(naive, run(scenario, one_by_one));
        if (!difference.empty()) return "one by one: " + difference;
        if (naive.endless) return {};
        difference = first_difference(naive, run_without_records(scenario, simulate));
        if (!difference.empty()) return "without step records: " + difference;
    } catch (const std::exception& e) { return std::string("simulate() threw: ") + e.what(); }
    return {};
}

TEST_CASE("oracle: simulate() equals the naive engine on random scenarios") {
    const std::uint64_t first = from_environment("KVSIM_ORACLE_SEED", 0);
    const std::uint64_t count = from_environment("KVSIM_ORACLE_SCENARIOS", 400);
    std::uint64_t differing = 0;
    for (std::uint64_t seed = first; seed < first + count && differing < 5; ++seed) {
        const Scenario scenario = wider_scenario(seed);
        INFO(describe(scenario));
        const std::string difference = difference_between_forms(scenario);
        if (!difference.empty()) ++differing;
        CHECK_MESSAGE(difference.empty(), difference);
    }
}

TEST_CASE("oracle: simulate() equals the naive engine where ends lie a turn of the ring of ends apart") {
    constexpr std::int64_t turn = 4096;  // FastEngine::ends_in_sight
    for (const bool async : {false, true}) {
        Scenario scenario;
        EngineArgs& args = scenario.options.engine;
        args.block_size = 32;
        args.max_model_len = turn + 200;
        args.max_num_seqs = 4;
        args.max_num_batched_tokens = 64;
        args.num_gpu_blocks = 400;
        args.enable_prefix_caching = false;
        args.async_scheduling = async;
        scenario.step_time.c0 = 1000;
        scenario.step_time.per_context = 0.01;
        // All start to decode in one batch.
        for (const std::int64_t outputs : {turn + 20, std::int64_t{20}, turn + 90, std::int64_t{91}}) {
            Arrival& arrival = scenario.arrivals.emplace_back();
            arrival.prompt_tokens = 3;
            arrival.output_tokens = outputs;
            arrival.output_base = own_output_base(static_cast<RequestId>(scenario.arrivals.size() - 1));
        }
        CAPTURE(async);
        const std::string difference = difference_between_forms(scenario);
        CHECK_MESSAGE(difference.empty(), difference);
    }
}

}  // namespace
}  // namespace kvsim::oracle
