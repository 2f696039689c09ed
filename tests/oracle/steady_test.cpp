// Steady decoding passed over at once against single steps, under the policies that only the per-request engine has: all that
// is known of a run, and every file, byte for byte. KVSIM_ORACLE_SCENARIOS: how many random scenarios of each policy;
// KVSIM_ORACLE_SEED: the first seed.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "compare.hpp"
#include "dice.hpp"
#include "kvsim/engine/engine.hpp"
#include "kvsim/engine/simulation.hpp"
#include "kvsim/model/deployment.hpp"
#include "kvsim/report/summary.hpp"
#include "kvsim/report/writers.hpp"
#include "random_scenarios.hpp"
#include "unit/app/cli.hpp"

namespace kvsim {
std::function<std::unique_ptr<AdmissionRule>(Engine&)> read_optimistic_admission(const PieceSource&, config::Diagnostics&);
std::function<std::unique_ptr<AdmissionRule>(Engine&)> read_full_input_admission(const PieceSource&, config::Diagnostics&);
std::function<std::unique_ptr<AdmissionRule>(Engine&)> read_expected_admission(const PieceSource&, config::Diagnostics&);
std::function<std::unique_ptr<AdmissionRule>(Engine&)> read_past_future_admission(const PieceSource&, config::Diagnostics&);
}  // namespace kvsim

namespace kvsim::oracle {
namespace {

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
    const char* value = std::getenv(name);
    return value == nullptr ? otherwise : std::stoull(value);
}

/// random_scenario() with the arguments of another policy, and outputs long enough for stretches of nothing but decoding.
Scenario scenario_of(const std::string& policy, std::uint64_t seed) {
    Scenario s = random_scenario(seed);
    Dice dice(seed * 0x9e3779b97f4a7c15ULL + 77);
    EngineArgs& args = s.options.engine;
    args.batching = policy;
    if (dice.percent(80)) s.options.replicas = 1;  // several take single steps
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
    } else if (policy != "vllm-v0") {
        if (policy == "vllm-v1") args.policy.max_live_tokens = std::int64_t{1} << 40;  // else it has a form of its own
        if (policy == "static" || policy == "iteration") args.async_scheduling = args.enable_chunked_prefill = false;
        if (!args.enable_chunked_prefill)
            args.max_num_batched_tokens = std::max(args.max_num_batched_tokens, args.max_model_len);
        if (args.enable_prefix_caching && dice.percent(50)) args.enable_prefix_caching = false;
        if (dice.percent(30)) args.watermark = 0.05;
        args.scheduler_reserve_full_isl = dice.percent(50);
        if (dice.percent(30)) args.policy.max_live_tokens = args.max_model_len * dice.range(1, 3);
        const std::pair<const char*, ReadPiece<AdmissionRule>> rules[] = {{"optimistic", read_optimistic_admission},
                                                                          {"full-input", read_full_input_admission},
                                                                          {"expected", read_expected_admission},
                                                                          {"past-future", read_past_future_admission}};
        if (dice.percent(60)) {
            static const config::Choice choice;
            static const config::Scenario scenario;
            static const Deployment deployment;
            config::Diagnostics diagnostics;
            const auto& [name, read] = rules[dice.range(0, 3)];
            args.policy.admission = {name, read({choice, scenario, deployment}, diagnostics)};
        }
        args.policy.equal_progress = args.enable_chunked_prefill && dice.percent(30);
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
        // With fewer a request preempts itself for ever, without a step.
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
    std::int64_t preemptions = 0;
    std::int64_t hits = 0;
    std::int64_t gave_up = 0;
    std::int64_t swapped = 0;
    std::int64_t head_blocked = 0;  // runs in which it was
};

/// `share`: of the scenarios one in so many.
Seen compare_forms(const std::string& policy, std::uint64_t share = 1) {
    const test::TemporaryFolder folder;
    const std::uint64_t first = from_environment("KVSIM_ORACLE_SEED", 0);
    const std::uint64_t count = from_environment("KVSIM_ORACLE_SCENARIOS", 400) / share;
    Seen seen;
    std::uint64_t differing = 0;
    for (std::uint64_t seed = first; seed < first + count && differing < 5; ++seed) {
        Scenario scenario = scenario_of(policy, seed);
        scenario.options.note_head_blocking = seed % 2 == 1;
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
            continue;
        }
        std::string difference = first_difference(plain, jumps);
        if (difference.empty() && plain.outcome.stall_report != jumps.outcome.stall_report)
            difference = plain.outcome.stall_report + " against " + jumps.outcome.stall_report;
        if (difference.empty() && plain.outcome.integrals.recompute_ns != jumps.outcome.integrals.recompute_ns)
            difference = "recompute_ns";
        if (difference.empty() && plain.outcome.integrals.head_blocking != jumps.outcome.integrals.head_blocking)
            difference = "head_blocking";
        if (difference.empty() && !plain.refused && !plain.endless &&
            !(files_of(folder, scenario, plain.outcome) == files_of(folder, scenario, jumps.outcome)))
            difference = "files";
        if (!difference.empty()) ++differing;
        CHECK_MESSAGE(difference.empty(), difference);
        const Counters& c = plain.outcome.counters;
        seen.preemptions += c.preemptions;
        seen.hits += c.hit_tokens_first;
        seen.gave_up += c.timed_out + c.cancelled;
        seen.swapped += c.swapped_tokens;
        seen.head_blocked += plain.outcome.integrals.head_blocking > SimDuration::zero() ? 1 : 0;
    }
    return seen;
}

/// Counts what an engine tells of its tokens.
struct Heard final : EngineListener {
    std::int64_t tokens = 0;
    SimDuration gaps{};
    void on_next_tokens(std::int64_t count, std::int64_t, SimDuration gap, SimTime) override {
        tokens += count;
        gaps += count * gap;
    }
};

/// Three requests that decode: one engine passes over their steps at once, the other takes each.
void compare_engines(const std::string& policy, bool async) {
    CAPTURE(policy);
    CAPTURE(async);
    EngineArgs args;
    args.batching = policy;
    args.num_gpu_blocks = 40;
    args.null_blocks = 0;
    args.block_size = 4;
    args.max_num_seqs = 8;
    args.max_num_batched_tokens = 64;
    args.max_model_len = 60;
    args.async_scheduling = async;
    const DecodeLine line{1000, 3};
    Heard heard[2];
    Engine engines[2] = {Engine(args, heard[0]), Engine(args, heard[1])};
    Batch batches[2][2];
    SimTime ends[2] = {};
    const auto price = [&line](Batch& batch) {
        batch.duration = round_step(line.base_ns + line.per_context_ns * static_cast<double>(batch.shape.decode_context));
    };
    const auto step = [&](int e) {  // the batch in progress ends, the next one starts, one more is decided
        const SimTime now = ends[e];
        engines[e].update(batches[e][0], now);
        if (async) std::swap(batches[e][0], batches[e][1]);
        Batch& decided = batches[e][async ? 1 : 0];
        engines[e].schedule(decided, now);
        price(decided);
        ends[e] = now + batches[e][0].duration;
    };
    for (int e = 0; e < 2; ++e) {
        for (std::int64_t i = 0; i < 3; ++i) {
            NewRequest request;
            request.id = static_cast<RequestId>(i);
            request.prompt = 5 + i;
            request.max_tokens = 40 - 3 * i;
            request.arrival_rank = i;
            engines[e].enqueue(request);
        }
        for (int b = 0; b < (async ? 2 : 1); ++b) {
            engines[e].schedule(batches[e][b], ends[e]);
            price(batches[e][b]);
        }
        ends[e] += batches[e][0].duration;
        for (int i = 0; i < 4; ++i) step(e);
    }
    const SimTime horizon = ends[0] + SimDuration(20'000);
    const Engine::Ahead passed = engines[0].run_ahead(batches[0][0], async ? &batches[0][1] : nullptr, ends[0], horizon, line);
    CHECK(passed.steps > 10);
    CHECK(passed.rows == 3);
    CHECK(ends[0] >= horizon);
    for (std::int64_t i = 0; i < passed.steps; ++i) step(1);
    const auto same = [&] {
        CHECK(ends[0] == ends[1]);
        CHECK(heard[0].tokens == heard[1].tokens);
        CHECK(heard[0].gaps == heard[1].gaps);
        CHECK(engines[0].free_blocks() == engines[1].free_blocks());
        CHECK(engines[0].held().reserved == engines[1].held().reserved);
        CHECK(engines[0].held().internal == engines[1].held().internal);
        CHECK(engines[0].outstanding_tokens() == engines[1].outstanding_tokens());
        CHECK(batches[0][0].shape.decode_context == batches[1][0].shape.decode_context);
        CHECK(batches[0][0].shape.longest_context == batches[1][0].shape.longest_context);
        CHECK(batches[0][0].step == batches[1][0].step);
    };
    same();
    for (int i = 0; i < 60 && engines[0].unfinished() > 0; ++i) {
        step(0);
        step(1);
        same();
    }
    CHECK(engines[0].unfinished() == 0);
}

TEST_CASE("oracle: one pass over steady decoding is as many single steps") {
    compare_engines("sglang", false);
    compare_engines("sglang", true);
    compare_engines("vllm-v0", false);
    for (const char* style : {"vllm-v1", "static", "iteration", "decode-first", "no-evict", "max-utilization", "past-future"}) {
        compare_engines(style, false);
        if (std::string(style) != "static" && std::string(style) != "iteration") compare_engines(style, true);
    }
}

TEST_CASE("oracle: SGLang's steady decoding at once leaves what single steps leave") {
    const Seen seen = compare_forms("sglang");
    if (from_environment("KVSIM_ORACLE_SCENARIOS", 400) < 400) return;
    CHECK(seen.preemptions > 50);
    CHECK(seen.hits > 1000);
    CHECK(seen.gave_up > 100);
    CHECK(seen.head_blocked > 10);
}

TEST_CASE("oracle: steady decoding at once leaves what single steps leave, in every style") {
    Seen seen;
    for (const char* style : {"vllm-v1", "static", "iteration", "decode-first", "no-evict", "max-utilization", "past-future"}) {
        CAPTURE(style);
        const Seen one = compare_forms(style, 4);
        seen.preemptions += one.preemptions;
        seen.hits += one.hits;
        seen.gave_up += one.gave_up;
    }
    if (from_environment("KVSIM_ORACLE_SCENARIOS", 400) < 400) return;
    CHECK(seen.preemptions > 50);
    CHECK(seen.hits > 1000);
    CHECK(seen.gave_up > 100);
}

TEST_CASE("oracle: vLLM V0's steady decoding at once leaves what single steps leave") {
    const Seen seen = compare_forms("vllm-v0");
    if (from_environment("KVSIM_ORACLE_SCENARIOS", 400) < 400) return;
    CHECK(seen.preemptions > 50);
    CHECK(seen.hits > 1000);
    CHECK(seen.gave_up > 100);
    CHECK(seen.swapped > 1000);
}

}  // namespace
}  // namespace kvsim::oracle
