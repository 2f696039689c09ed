// Who is let in: lengths, the null block, the watermark, reservation of the whole prompt; and what happens when nobody is.

#include <algorithm>

#include "kvsim/base/check.hpp"
#include "kvsim/config/load.hpp"
#include "kvsim/config/scenario.hpp"
#include "kvsim/model/deployment.hpp"
#include "support.hpp"

using namespace kvsim;
using namespace kvsim::engine_test;

namespace {

std::vector<RequestId> scheduled(const StepRecord& record) {
    std::vector<RequestId> ids;
    for (const ScheduledRow& row : record.scheduled) ids.push_back(row.id);
    return ids;
}

EngineArgs preset(const std::string& name, const std::string& more = "") {
    config::Diagnostics diagnostics;
    const config::Value root = config::parse_yaml(
        "engine: {preset: " + name +
            ", num_gpu_blocks_override: 17, block_size: 4, max_model_len: 60, max_num_seqs: 4, max_num_batched_tokens: 8, "
            "enable_prefix_caching: false, async_scheduling: false" +
            more +
            "}\nworkload: {requests: 1, arrivals: all_at_once, "
            "prompt_tokens: 1, output_tokens: 1}\n",
        "t.yaml", diagnostics);
    const config::Scenario scenario = config::read_scenario(root, "t.yaml", diagnostics);
    const Catalog catalog(std::filesystem::path(KVSIM_SOURCE_DIR) / "scenarios" / "catalog");
    const Deployment deployment = resolve_deployment(scenario, catalog, diagnostics);
    diagnostics.throw_if_errors();
    return deployment.engine;
}

}  // namespace

TEST_CASE("admission: a prompt must leave room for one token below max_model_len, and outputs are cut to it") {
    SimulationOptions options = roomy();
    options.engine.max_model_len = 20;
    in_both_forms(options, {{0, 19, 5}, {0, 20, 5}, {0, 21, 5}, {0, 18, 5}, {0, 10, 5}}, [](const Outcome& o) {
        CHECK(o.requests[0].finish == FinishReason::length);
        CHECK(o.requests[0].output_tokens == 1);
        CHECK(o.requests[1].finish == FinishReason::rejected);
        CHECK(o.requests[2].finish == FinishReason::rejected);
        CHECK(o.requests[3].output_tokens == 2);
        CHECK(o.requests[4].output_tokens == 5);
        CHECK(o.counters.rejected == 2);
        CHECK(ns(o.requests[1].queue) == -1);
        CHECK(ns(o.requests[1].e2e) == -1);
        REQUIRE(o.warnings.size() == 1);
        CHECK(o.warnings[0].find("request 1 was rejected: its prompt of 20 tokens needs max_model_len > 20 (it is 20)") !=
              std::string::npos);
    });
}

TEST_CASE("admission: one block is the null block and cannot be used") {
    // 16 tokens are 4 blocks; of 5 all but one can be used.
    SimulationOptions options = roomy();
    options.engine.num_gpu_blocks = 5;
    in_both_forms(options, {{0, 15, 2}, {0, 16, 2}}, [](const Outcome& o) {
        CHECK(o.usable_blocks == 4);
        CHECK(o.requests[0].finish == FinishReason::length);
        CHECK(o.requests[1].finish == FinishReason::rejected);
        CHECK(o.integrals.blocks_used_peak == 4);
    });
    options.engine.num_gpu_blocks = 4;
    for (const EngineForm form : {EngineForm::per_request, EngineForm::fast}) {
        options.form = form;
        CHECK_THROWS_AS(run(options, {{0, 15, 2}}), UserError);
    }
    // Block 0 is never given out.
    options = roomy();
    options.engine.num_gpu_blocks = 6;
    const auto steps = records(options, {{0, 17, 3}});
    REQUIRE(steps.front().scheduled.size() == 1);
    CHECK(steps.front().scheduled[0].blocks == std::vector<std::int64_t>{1, 2, 3, 4, 5});
    CHECK(steps.front().free_after_schedule == 0);
}

TEST_CASE("admission: nobody fits is the user's error, with the numbers") {
    SimulationOptions options = roomy();
    try {
        run(options, {{0, 500, 1}, {3, 128, 1}});
        FAIL("expected a UserError");
    } catch (const UserError& e) {
        const std::string what = e.what();
        CHECK(what.find("2 requests") != std::string::npos);
        CHECK(what.find("max_model_len 128") != std::string::npos);
        CHECK(what.find("1000 usable KV blocks of 4 tokens") != std::string::npos);
    }
}

TEST_CASE("admission: the watermark keeps floor(watermark x num_gpu_blocks) blocks from new requests only") {
    // 20 usable blocks, prompts of 4 blocks. 0.1 of 21 is 2.1: 2 blocks are kept, so the fifth must wait; 0.04 of 21 is 0.84:
    // 0.
    SimulationOptions options = roomy();
    options.engine.num_gpu_blocks = 21;
    options.engine.max_num_batched_tokens = 128;
    const std::vector<Spec> specs(5, Spec{0, 16, 1});
    CHECK(scheduled(records(options, specs)[0]).size() == 5);
    options.engine.watermark = 0.1;
    CHECK(scheduled(records(options, specs)[0]).size() == 4);
    options.engine.watermark = 0.04;
    CHECK(scheduled(records(options, specs)[0]).size() == 5);

    // Four that run may grow into the kept blocks: 4 x 5 = 20.
    options.engine.watermark = 0.1;
    const std::vector<Spec> growing(4, Spec{0, 16, 4});
    in_both_forms(options, growing, [](const Outcome& o) {
        CHECK(o.counters.preemptions == 0);
        CHECK(o.integrals.blocks_used_peak == 20);
    });
}

TEST_CASE("admission: vllm-v1 wants room for the whole prompt, vllm-v1-2026-01 for the first chunk only") {
    // 16 usable blocks. Request 0 holds 10 when request 1 comes, whose prompt needs 8 but whose first chunk of 7 tokens
    // needs 2.
    const std::vector<Spec> specs{{0, 37, 5}, {45, 30, 1}};
    SimulationOptions options;
    const auto admitted = [&](const std::string& name) {
        options.engine = preset(name);
        for (const StepRecord& step : records(options, specs)) {
            for (const ScheduledRow& row : step.scheduled) {
                if (row.id == 1) return ns(step.start);
            }
        }
        return std::int64_t{-1};
    };
    // Prefill of 37 tokens in steps of 8 ends at 50, and its five tokens come at 50 to 90.
    CHECK(admitted("vllm-v1-2026-01") == 50);
    CHECK(admitted("vllm-v1") == 90);
    CHECK(preset("vllm-v1").scheduler_reserve_full_isl);
    CHECK_FALSE(preset("vllm-v1-2026-01").scheduler_reserve_full_isl);
}

TEST_CASE("admission: whom an empty engine would not start for the watermark is refused, and those behind it run") {
    // 10 usable blocks, 5 of them kept: a prompt of 6 blocks is never admitted, one of 5 is.
    SimulationOptions options = roomy();
    options.engine.num_gpu_blocks = 11;
    options.engine.watermark = 0.5;
    in_both_forms(options, {{0, 4, 2}, {1, 21, 1}, {2, 1, 1}, {3, 20, 1}}, [](const Outcome& o) {
        CHECK(o.stall_report.empty());
        CHECK(o.counters.completed == 3);
        CHECK(o.counters.rejected == 1);
        CHECK(o.requests[1].finish == FinishReason::rejected);
        REQUIRE(o.warnings.size() == 1);
        CHECK(o.warnings[0].find("6 blocks (10 are usable, of which engine.watermark keeps 5 free when a request starts)") !=
              std::string::npos);
    });
    // A first chunk of 5 blocks is let in where only it is asked for.
    options.engine.scheduler_reserve_full_isl = false;
    options.engine.max_num_batched_tokens = 20;
    in_both_forms(options, {{0, 24, 2}}, [](const Outcome& o) { CHECK(o.counters.completed == 1); });
    options.engine.max_num_batched_tokens = 24;
    CHECK_THROWS_WITH_AS(run(options, {{0, 24, 2}}), doctest::Contains("engine.watermark keeps 5 free"), UserError);
    options.engine.long_prefill_token_threshold = 20;
    CHECK(run(options, {{0, 24, 2}}).counters.completed == 1);
}

TEST_CASE("admission: the watermark stalls no preset with prompts that are too long for it") {
    const std::vector<Spec> specs{{0, 9, 3}, {5, 48, 3}, {7, 9, 3}, {700, 30, 3}};
    for (const char* name : {"vllm-v1", "vllm-v1-2026-01", "vllm-v0", "sglang", "sarathi", "trtllm-no-evict",
                             "trtllm-max-utilization", "lightllm", "vtc"}) {
        CAPTURE(name);
        SimulationOptions options;
        const bool v0 = std::string(name) == "vllm-v0";
        options.engine = preset(name, v0 ? ", watermark: 0.4, enable_chunked_prefill: true" : ", watermark: 0.4");
        const Outcome o = run(options, specs);
        CAPTURE(o.stall_report);
        CHECK(o.stall_report.empty());
        const EngineArgs& e = options.engine;
        const bool whole = v0 || e.scheduler_reserve_full_isl || e.policy.admission.name == "full-input" ||
                           e.batching == "no-evict";  // else a first chunk of 8 tokens
        const bool refused = whole && e.batching != "sglang";
        CHECK(o.counters.completed == (refused ? 3 : 4));
        CHECK(o.counters.rejected + o.counters.dropped == (refused ? 1 : 0));
    }
    for (const char* name : {"static", "orca-max", "orca-pow2", "orca-oracle"}) {
        CAPTURE(name);
        CHECK_THROWS_WITH_AS(preset(name, ", watermark: 0.4"), doctest::Contains("of which engine.watermark keeps"), UserError);
    }
}

TEST_CASE("admission: a head that has grown too large to start again stalls the run, and the report says what it needs") {
    // 10 usable blocks, 5 of them kept from whoever starts: of two that grow alike the second loses its 5 when both want a
    // sixth, and with 6 it is never admitted again, nor is anyone behind it.
    SimulationOptions options = roomy();
    options.engine.num_gpu_blocks = 11;
    options.engine.watermark = 0.5;
    in_both_forms(options, {{0, 4, 30}, {0, 4, 30}, {1000, 1, 1}}, [](const Outcome& o) {
        CHECK(o.requests[0].finish == FinishReason::length);
        CHECK(o.requests[1].finish == FinishReason::unfinished);
        CHECK(o.requests[2].finish == FinishReason::unfinished);
        CHECK(o.counters.completed == 1);
        CHECK(ns(o.end) == 1000);
        for (const char* part : {"2 requests are left", "0 running, 2 waiting, 10 of 10 KV blocks free", "request 1",
                                 "has 21 tokens", "needs 6 blocks", "with 5 kept free (watermark)", "or a smaller watermark"}) {
            CAPTURE(part);
            CAPTURE(o.stall_report);
            CHECK(o.stall_report.find(part) != std::string::npos);
        }
    });
}

TEST_CASE("admission: a request that outgrows the pool keeps its tokens in the stall report") {
    // 5 blocks of 4: 20 tokens computed, the 21st has no slot. It got a token per step from the first, so 20 - 10 + 1.
    SimulationOptions options = roomy();
    options.engine.num_gpu_blocks = 6;
    in_both_forms(options, {{0, 10, 50}}, [](const Outcome& o) {
        CHECK_FALSE(o.stall_report.empty());
        CHECK(o.requests[0].finish == FinishReason::unfinished);
        CHECK(o.requests[0].output_tokens == 11);
        CHECK(o.requests[0].preemptions == 1);
        CHECK(o.stall_report.find("outputs 11 of 50") != std::string::npos);
    });
}
