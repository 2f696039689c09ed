// Steady decoding passed over at once against single steps, under the policies that only the per-request engine has: all that
// is known of a run, and every file, byte for byte. KVSIM_ORACLE_SCENARIOS: how many random scenarios of each policy;
// KVSIM_ORACLE_SEED: the first seed.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "compare.hpp"
#include "kvsim/engine/simulation.hpp"
#include "kvsim/report/summary.hpp"
#include "kvsim/report/writers.hpp"
#include "random_scenarios.hpp"
#include "unit/app/cli.hpp"

namespace kvsim::oracle {
namespace {

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
    const char* value = std::getenv(name);
    return value == nullptr ? otherwise : std::stoull(value);
}

/// SplitMix64.
class Dice {
public:
    explicit Dice(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ULL + 77) {}
    std::int64_t range(std::int64_t low, std::int64_t high) {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
        z ^= z >> 31;
        return low + static_cast<std::int64_t>(z % static_cast<std::uint64_t>(high - low + 1));
    }
    bool percent(std::int64_t share) { return range(0, 99) < share; }

private:
    std::uint64_t state_;
};

/// random_scenario() with the arguments of another policy, and outputs long enough for stretches of nothing but decoding.
Scenario scenario_of(const std::string& policy, std::uint64_t seed) {
    Scenario s = random_scenario(seed);
    Dice dice(seed);
    EngineArgs& args = s.options.engine;
    args.batching = policy;
    args.kv_groups.clear();
    args.num_gpu_blocks -= std::exchange(args.null_blocks, 0);
    s.step_time.per_window = 0;
    s.step_time.has_line = true;
    if (seed % 5 == 3 && dice.percent(60)) s.options.cold_start = {};
    const std::int64_t longer = dice.range(1, 6);
    args.max_model_len *= longer;
    args.num_gpu_blocks = 1 + (args.num_gpu_blocks - 1) * dice.range(std::max<std::int64_t>(1, longer - 2), longer + 2);
    for (Arrival& a : s.arrivals) a.output_tokens *= longer;
    if (dice.percent(30))
        s.options.window = SimDuration(std::max<std::int64_t>(1, s.arrivals.front().time.time_since_epoch().count() + 1000));
    if (s.options.window.count() > 0 && s.step_time.c0 > 100)
        s.options.window = SimDuration(static_cast<std::int64_t>(s.step_time.c0 * 7));
    if (policy == "sglang") {
        SglangArgs& g = args.sglang;
        g.enable_mixed_chunk = dice.percent(30);
        g.schedule_conservativeness = dice.percent(50) ? 1 : static_cast<double>(dice.range(0, 3)) / 10;
        g.new_token_ratio_decay_steps = dice.percent(50) ? 600 : dice.range(2, 30);
        g.retract_decode_steps = dice.range(1, 20);
        g.evict_shortfall = dice.percent(40);
        g.max_prefill_tokens = dice.percent(70) ? 16384 : dice.range(8, 64);
        if (dice.percent(30)) g.clip_max_new_tokens = dice.range(1, 10);
        const QueueOrder orders[] = {QueueOrder::fcfs, QueueOrder::fcfs, QueueOrder::lpm, QueueOrder::dfs_weight,
                                     QueueOrder::lof};
        args.scheduling_policy = orders[dice.range(0, 4)];
        if (dice.percent(40)) args.block_size = 1;
        if (args.block_size == 1)
            args.num_gpu_blocks = std::max<std::int64_t>(args.num_gpu_blocks, args.max_model_len + dice.range(0, 40));
        args.enable_chunked_prefill = args.enable_chunked_prefill || dice.percent(60);
        args.long_prefill_token_threshold = 0;
    } else {
        VllmV0Args& v = args.v0;
        args.async_scheduling = false;
        v.release = dice.percent(70) ? VllmV0Args::Release::v0_8_5 : VllmV0Args::Release::v0_6_3;
        v.async_output_processing = dice.percent(60);
        if (dice.percent(30)) {
            v.num_cpu_blocks = dice.range(1, 400);
            v.preemption = VllmV0Args::Preemption::swap;
            v.swap_ns_per_block = dice.percent(50) ? s.step_time.c0 / 3 : 0;
            v.swap_overlaps = dice.percent(50);
            v.async_output_processing = v.async_output_processing && dice.percent(20);
        }
        if (dice.percent(15)) v.delay_factor = static_cast<double>(dice.range(1, 8)) / 2;
        if (args.enable_chunked_prefill && dice.percent(25)) v.max_num_partial_prefills = dice.range(2, 3);
        if (dice.percent(50)) args.enable_chunked_prefill = false;
        if (!args.enable_chunked_prefill && dice.percent(80))
            args.max_num_batched_tokens = std::max(args.max_num_batched_tokens, args.max_model_len);
        if (args.enable_prefix_caching && dice.percent(50)) args.enable_prefix_caching = false;
        args.watermark = dice.percent(50) ? 0.01 : 0;
        args.num_gpu_blocks = std::max(args.num_gpu_blocks, 2 + (args.max_model_len - 1) / args.block_size);
    }
    return s;
}

struct Files {
    std::string summary, requests, timeline;
    bool operator==(const Files&) const = default;
};

Files files_of(const test::TemporaryFolder& folder, const Scenario& scenario, const Outcome& outcome) {
    write_requests_csv(folder.path() / "requests.csv", outcome, scenario.options.slo);
    write_timeline_csv(folder.path() / "timeline.csv", outcome);
    return {summary_csv_row(summarize(RunInfo{}, outcome)), test::slurp(folder.path() / "requests.csv"),
            test::slurp(folder.path() / "timeline.csv")};
}

struct Seen {
    std::int64_t steps = 0;
    std::int64_t preemptions = 0;
    std::int64_t hits = 0;
    std::int64_t gave_up = 0;
    std::int64_t swapped = 0;
    std::int64_t stalled = 0;
    std::int64_t livelocked = 0;
};

Seen compare_forms(const std::string& policy) {
    const test::TemporaryFolder folder;
    const std::uint64_t first = from_environment("KVSIM_ORACLE_SEED", 0);
    const std::uint64_t count = from_environment("KVSIM_ORACLE_SCENARIOS", 400);
    Seen seen;
    std::uint64_t differing = 0;
    for (std::uint64_t seed = first; seed < first + count && differing < 5; ++seed) {
        const Scenario scenario = scenario_of(policy, seed);
        INFO(describe(scenario));
        const auto one_by_one = [](const SimulationOptions& o, const StepTimeModel& s, Router& r, Workload& w) {
            SimulationOptions plain = o;
            plain.form = EngineForm::per_request;
            return simulate(plain, s, r, w);
        };
        const Run plain = run_without_records(scenario, one_by_one);
        const Run jumps = run_without_records(scenario, simulate);
        // A run that preempts for ever is cut where the event loop happens to look.
        const auto livelocked = [](const Run& run) {
            return run.outcome.stall_report.find("without ever receiving a token") != std::string::npos;
        };
        if (livelocked(plain) || plain.endless) {
            CHECK(plain.endless == jumps.endless);
            CHECK(livelocked(plain) == livelocked(jumps));
            ++seen.livelocked;
            continue;
        }
        std::string difference = first_difference(plain, jumps);
        if (difference.empty() && plain.outcome.stall_report != jumps.outcome.stall_report)
            difference = plain.outcome.stall_report + " against " + jumps.outcome.stall_report;
        if (difference.empty() && plain.outcome.integrals.recompute_ns != jumps.outcome.integrals.recompute_ns)
            difference = "recompute_ns";
        if (difference.empty() && !plain.refused && !plain.endless &&
            !(files_of(folder, scenario, plain.outcome) == files_of(folder, scenario, jumps.outcome)))
            difference = "files";
        if (!difference.empty()) ++differing;
        CHECK_MESSAGE(difference.empty(), difference);
        const Counters& c = plain.outcome.counters;
        seen.steps += c.steps;
        seen.preemptions += c.preemptions;
        seen.hits += c.hit_tokens_first;
        seen.gave_up += c.timed_out + c.cancelled;
        seen.swapped += c.swapped_tokens;
        seen.stalled += plain.outcome.stall_report.empty() ? 0 : 1;
    }
    MESSAGE(policy << ": steps " << seen.steps << " preemptions " << seen.preemptions << " hits " << seen.hits << " gave up "
                   << seen.gave_up << " swapped " << seen.swapped << " stalled " << seen.stalled << " livelocked "
                   << seen.livelocked);
    return seen;
}

TEST_CASE("oracle: SGLang's steady decoding at once leaves what single steps leave") {
    compare_forms("sglang");
}

TEST_CASE("oracle: vLLM V0's steady decoding at once leaves what single steps leave") {
    compare_forms("vllm-v0");
}

}  // namespace
}  // namespace kvsim::oracle
