// What users of SGLang see of its scheduler, on cases worked out by hand, and where vLLM V1 does otherwise. Every step takes
// 10 ns, pages are single tokens.

#include <algorithm>
#include <string>

#include "kvsim/base/check.hpp"
#include "kvsim/config/load.hpp"
#include "kvsim/config/scenario.hpp"
#include "kvsim/model/deployment.hpp"
#include "support.hpp"

using namespace kvsim;
using namespace kvsim::engine_test;

namespace {

SimulationOptions sglang(std::int64_t tokens, std::int64_t chunk = 64) {
    SimulationOptions options = roomy();
    options.engine.preset = options.engine.batching = "sglang";
    options.engine.null_blocks = 0;
    options.engine.num_gpu_blocks = tokens;
    options.engine.block_size = 1;
    options.engine.max_model_len = 1000;
    options.engine.max_num_batched_tokens = chunk;
    options.engine.enable_chunked_prefill = chunk > 0;
    options.engine.enable_prefix_caching = true;
    return options;
}

using Ids = std::vector<RequestId>;

Ids scheduled(const StepRecord& record) {
    Ids ids;
    for (const ScheduledRow& row : record.scheduled) ids.push_back(row.id);
    return ids;
}

const StepRecord& first_preemption(const std::vector<StepRecord>& steps) {
    const auto found = std::find_if(steps.begin(), steps.end(), [](const StepRecord& s) { return !s.preempted.empty(); });
    REQUIRE(found != steps.end());
    return *found;
}

std::int64_t longest_gap(const std::vector<StepRecord>& steps, RequestId id) {
    std::int64_t last = -1;
    std::int64_t longest = 0;
    for (const StepRecord& step : steps) {
        if (std::find(step.received.begin(), step.received.end(), id) == step.received.end()) continue;
        const std::int64_t now = ns(step.start + step.duration);
        if (last >= 0) longest = std::max(longest, now - last);
        last = now;
    }
    return longest;
}

}  // namespace

TEST_CASE("sglang: decodes stall while prompts are being chunked, except in mixed mode") {
    // Request 0 decodes when the 48 tokens of request 1 arrive: three chunks of 16.
    const std::vector<Spec> specs{{0, 6, 12}, {15, 48, 2}};
    SimulationOptions options = sglang(256, 16);
    const auto apart = records(options, specs);
    CHECK(scheduled(apart[1]) == Ids{0});
    for (std::size_t step = 2; step < 5; ++step) {
        REQUIRE(scheduled(apart[step]) == Ids{1});
        CHECK(apart[step].scheduled[0].tokens == 16);
    }
    CHECK(scheduled(apart[5]) == Ids{0, 1});
    CHECK(longest_gap(apart, 0) == 40);

    // Mixed: the decode takes one token of each chunk, and request 0 never waits.
    options.engine.sglang.enable_mixed_chunk = true;
    const auto mixed = records(options, specs);
    for (std::size_t step = 2; step < 6; ++step) REQUIRE(scheduled(mixed[step]) == Ids{1, 0});
    CHECK(mixed[2].scheduled[0].tokens == 15);
    CHECK(mixed[5].scheduled[0].tokens == 3);
    CHECK(longest_gap(mixed, 0) == 10);

    // vLLM V1 mixes always.
    SimulationOptions vllm = roomy();
    vllm.engine.max_num_batched_tokens = 16;
    CHECK(longest_gap(records(vllm, specs), 0) == 10);
}

TEST_CASE("sglang: a retracted request goes to the back of the queue, in vLLM V1 to its front") {
    // 32 tokens: requests 0 and 1 outgrow them while request 2 waits for one of the two seats.
    const std::vector<Spec> specs{{0, 10, 20}, {10, 8, 10}, {30, 8, 2}};
    SimulationOptions options = sglang(32);
    options.engine.max_num_seqs = 2;
    options.engine.sglang.schedule_conservativeness = 0;
    const auto steps = records(options, specs);
    const StepRecord& retraction = first_preemption(steps);
    CHECK(retraction.preempted == Ids{0});  // as many outputs as request 1, but a longer prompt
    CHECK(scheduled(retraction) == Ids{1});
    CHECK(retraction.waiting == Ids{2, 0});

    SimulationOptions vllm = roomy();
    vllm.engine.num_gpu_blocks = 9;
    vllm.engine.max_num_seqs = 2;
    const StepRecord preemption = first_preemption(records(vllm, specs));
    REQUIRE(preemption.preempted.size() == 1);
    CHECK(preemption.waiting == Ids{preemption.preempted[0], 2});
}

TEST_CASE("sglang: freed memory is not used until a decode step notices the smaller batch (batch_is_full)") {
    // 32 tokens. Requests 0 and 1 are charged 10 + 4 + 1 and 10 + 3 + 1: for request 2 (14) there are 3 left, the batch is
    // full.
    const auto steps = records(sglang(32), {{0, 10, 4}, {0, 10, 3}, {0, 10, 3}});
    CHECK(scheduled(steps[0]) == Ids{0, 1});
    REQUIRE(steps[2].finished == Ids{1});
    CHECK(steps[2].free_after_update == 32 - 12);  // more than 14 and the 0.7 that request 0 is expected to need
    CHECK(scheduled(steps[3]) == Ids{0});
    CHECK(steps[3].waiting == Ids{2});
    CHECK(scheduled(steps[4]) == Ids{2});
    // When the batch becomes empty instead, the pass that notices takes no time: the next request starts where the last ended.
    const Outcome alone = run(sglang(32), {{0, 10, 3}, {0, 12, 12}});
    CHECK(ns(alone.requests[1].queue) == 30);
}

TEST_CASE("sglang: schedule_conservativeness trades admission against retraction") {
    std::vector<Spec> specs;
    for (std::int64_t i = 0; i < 8; ++i) specs.push_back({10 * i, 8, 20});
    std::vector<std::int64_t> preemptions;
    std::vector<std::int64_t> most_running;
    for (const double conservativeness : {0.0, 1.0, 2.0}) {
        SimulationOptions options = sglang(80);
        options.engine.sglang.schedule_conservativeness = conservativeness;
        const auto steps = records(options, specs);
        std::size_t running = 0;
        std::int64_t retracted = 0;
        for (const StepRecord& step : steps) {
            running = std::max(running, step.running.size());
            retracted += static_cast<std::int64_t>(step.preempted.size());
        }
        most_running.push_back(static_cast<std::int64_t>(running));
        preemptions.push_back(retracted);
    }
    CHECK(most_running[0] > most_running[2]);
    CHECK(most_running[0] >= most_running[1]);
    CHECK(preemptions[0] > 0);
    CHECK(preemptions[0] >= preemptions[1]);
    CHECK(preemptions[2] == 0);
}

TEST_CASE("vllm-v1: nobody is admitted in a step that preempted") {
    // 7 usable blocks of 4; two requests of 8 tokens outgrow them.
    std::vector<Spec> specs{{0, 8, 16}, {0, 8, 16}};
    SimulationOptions options = roomy();
    options.engine.num_gpu_blocks = 8;
    const StepRecord alone = first_preemption(records(options, specs));
    // The same with a request of one token that arrives for that step: a block is free for it, and it waits.
    specs.push_back({ns(alone.start), 1, 1});
    const auto steps = records(options, specs);
    const StepRecord& preemption = first_preemption(steps);
    CHECK(preemption.step == alone.step);
    CHECK(preemption.preempted == Ids{1});
    CHECK(scheduled(preemption) == Ids{0});
    CHECK(preemption.free_after_schedule >= 1);
    CHECK(preemption.waiting == Ids{1, 2});
}

TEST_CASE("sglang: an early stop gives nothing back before it happens") {
    // max_new_tokens 20 is reserved though each request ends after 2: 8 + 20 + 1 of 64 leave room for one more, not for two.
    SimulationOptions options = sglang(64);
    const std::vector<Spec> specs(3, Spec{0, 8, 2});
    CHECK(scheduled(records(options, specs)[0]) == Ids{0, 1, 2});
    options.engine.sglang.max_new_tokens = 20;
    CHECK(scheduled(records(options, specs)[0]) == Ids{0, 1});
}

TEST_CASE("sglang: mixed mode takes decodes along without a memory check, and dies, the run ends with a report") {
    SimulationOptions options = sglang(64, 8);
    options.engine.sglang.enable_mixed_chunk = true;
    options.engine.sglang.schedule_conservativeness = 0;
    const Outcome outcome = run(options, {{0, 4, 30}, {10, 4, 30}, {20, 4, 30}, {30, 40, 2}});
    CHECK(outcome.stall_report.find("crashes") != std::string::npos);
    CHECK(outcome.stall_report.find("RuntimeError: Out of memory") != std::string::npos);
    CHECK(outcome.stall_report.find("4 requests are left") != std::string::npos);
    CHECK(outcome.counters.completed == 0);
    CHECK(outcome.requests[0].output_tokens > 0);
    // Apart, the same requests finish.
    options.engine.sglang.enable_mixed_chunk = false;
    const Outcome apart = run(options, {{0, 4, 30}, {10, 4, 30}, {20, 4, 30}, {30, 40, 2}});
    CHECK(apart.stall_report.empty());
    CHECK(apart.counters.completed == 4);
}

TEST_CASE("sglang: a prompt between total - page and total - 7 is accepted and blocks the queue for ever") {
    SimulationOptions options = sglang(4);
    options.engine.block_size = 16;
    options.engine.max_prompt_len = 57;
    const Outcome outcome = run(options, {{0, 48, 4}, {1, 2, 2}});
    CHECK(outcome.stall_report.find("nothing can be scheduled") != std::string::npos);
    CHECK(outcome.stall_report.find("the head of the queue, request 0, has 48 tokens") != std::string::npos);
    // A longer one is refused, and does not.
    const Outcome refused = run(options, {{0, 58, 4}, {1, 2, 2}});
    CHECK(refused.stall_report.empty());
    CHECK(refused.counters.rejected == 1);
    CHECK(refused.counters.completed == 1);
}

TEST_CASE("sglang: overlap takes the same tokens, with a row too many after the last one") {
    const std::vector<Spec> specs{{0, 6, 4}};
    SimulationOptions options = sglang(64);
    const auto sync = records(options, specs);
    options.engine.async_scheduling = true;
    const auto overlap = records(options, specs);
    std::int64_t rows = 0;
    std::int64_t more = 0;
    for (const StepRecord& step : sync) rows += static_cast<std::int64_t>(step.scheduled.size());
    for (const StepRecord& step : overlap) more += static_cast<std::int64_t>(step.scheduled.size());
    CHECK(rows == 4);
    CHECK(more == 5);
    for (const auto& asynchronous : {false, true}) {
        options.engine.async_scheduling = asynchronous;
        const Outcome outcome = run(options, specs);
        CHECK(ns(outcome.requests[0].ttft) == 10);
        CHECK(ns(outcome.requests[0].e2e) == 40);
    }
}

TEST_CASE("sglang: the preset's defaults, and keys under SGLang's own names") {
    const Catalog catalog(std::filesystem::path(KVSIM_SOURCE_DIR) / "scenarios" / "catalog");
    const auto resolve = [&](const std::string& engine, std::string* error = nullptr) {
        config::Diagnostics diagnostics;
        const config::Value root = config::parse_yaml(
            "model: meta-llama/Llama-3.1-8B-Instruct\nhardware: {gpu: H100-SXM-80GB}\n"
            "engine: {" +
                engine +
                "}\nworkload: {requests: 1, arrivals: all_at_once, prompt_tokens: 1, "
                "output_tokens: 1}\n",
            "t.yaml", diagnostics);
        const config::Scenario scenario = config::read_scenario(root, "t.yaml", diagnostics);
        const Deployment deployment = resolve_deployment(scenario, catalog, diagnostics);
        try {
            diagnostics.throw_if_errors();
        } catch (const UserError& e) {
            if (error == nullptr) throw;
            *error = e.what();
        }
        return deployment;
    };
    const Deployment plain = resolve("preset: sglang");
    CHECK(plain.engine.batching == "sglang");
    CHECK(plain.engine.block_size == 1);
    CHECK(plain.engine.null_blocks == 0);
    CHECK(plain.engine.max_num_batched_tokens == 8192);
    CHECK(plain.engine.max_num_seqs == 2048);
    CHECK(plain.engine.sglang.max_prefill_tokens == 16384);
    CHECK(plain.engine.async_scheduling);
    CHECK(plain.gpu_memory_utilization == doctest::Approx(0.88));
    CHECK(plain.engine.max_prompt_len == 131072 - 7);
    CHECK(plain.deviations.empty());

    const Deployment named = resolve(
        "preset: sglang, mem_fraction_static: 0.8, page_size: 16, max_running_requests: 64, chunked_prefill_size: 4096, "
        "schedule_policy: lpm, disable_radix_cache: false, disable_overlap_schedule: true, context_length: 16384, "
        "schedule_conservativeness: 0.3, enable_mixed_chunk: true, evict: shortfall, max_prefill_tokens: 8192");
    CHECK(named.gpu_memory_utilization == doctest::Approx(0.8));
    CHECK(named.engine.block_size == 16);
    CHECK(named.engine.max_num_seqs == 64);
    CHECK(named.engine.max_num_batched_tokens == 4096);
    CHECK(named.engine.scheduling_policy == QueueOrder::lpm);
    CHECK_FALSE(named.engine.async_scheduling);
    CHECK(named.engine.max_model_len == 16384);
    CHECK(named.engine.sglang.schedule_conservativeness == doctest::Approx(0.3));
    CHECK(named.engine.sglang.enable_mixed_chunk);
    CHECK(named.engine.sglang.evict_shortfall);
    CHECK(named.engine.sglang.max_prefill_tokens == 8192);
    CHECK_FALSE(resolve("preset: sglang, chunked_prefill_size: -1").engine.enable_chunked_prefill);

    // What the engine does not read is told, what it does not have is refused.
    const Deployment odd = resolve("preset: vllm-v1, schedule_conservativeness: 0.5");
    REQUIRE(odd.warnings.size() == 1);
    CHECK(odd.warnings[0].find("does not read engine.schedule_conservativeness") != std::string::npos);
    CHECK(resolve("preset: sglang, watermark: 0.01").warnings.size() == 1);
    std::string error;
    resolve("preset: sglang, scheduling_policy: priority", &error);
    CHECK(error.find("preset sglang has no scheduling_policy priority") != std::string::npos);
    resolve("preset: vllm-v0, scheduling_policy: lpm", &error);
    CHECK(error.find("preset vllm-v0 has no scheduling_policy lpm") != std::string::npos);
}
