// Batching styles and admission rules, worked out by hand (docs/policies.md).

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kvsim/base/check.hpp"
#include "kvsim/engine/engine.hpp"
#include "kvsim/engine/policy.hpp"
#include "kvsim/model/deployment.hpp"
#include "policy_run.hpp"
#include "support.hpp"

namespace kvsim {
std::function<std::unique_ptr<AdmissionRule>(Engine&)> read_expected_admission(const PieceSource&, config::Diagnostics&);
std::function<std::unique_ptr<AdmissionRule>(Engine&)> read_past_future_admission(const PieceSource&, config::Diagnostics&);
std::function<std::unique_ptr<AdmissionRule>(Engine&)> read_optimistic_admission(const PieceSource&, config::Diagnostics&);
}  // namespace kvsim

namespace kvsim::engine_test {
namespace {

SimulationOptions styled(const std::string& batching, bool async = false) {
    SimulationOptions options = roomy(async);
    options.engine.batching = batching;
    options.engine.scheduler_reserve_full_isl = false;
    options.engine.num_gpu_blocks = 1000;
    options.engine.null_blocks = 0;
    return options;
}

template <class Read>
void admit_by(SimulationOptions& options, const std::string& name, Read read) {
    static const config::Choice choice;
    static const config::Scenario scenario;
    static const Deployment deployment;
    config::Diagnostics diagnostics;
    options.engine.policy.admission = {name, read({choice, scenario, deployment}, diagnostics)};
}

/// "id:tokens@computed" of every row.
std::string rows(const StepRecord& record) {
    std::string out;
    for (const ScheduledRow& row : record.scheduled) {
        if (!out.empty()) out.append(" ");
        out.append(std::to_string(row.id)).append(":").append(std::to_string(row.tokens)).append("@");
        out.append(std::to_string(row.computed));
    }
    return out;
}

std::vector<std::string> steps(const SimulationOptions& options, const std::vector<Spec>& specs) {
    std::vector<std::string> out;
    for (const StepRecord& record : records(options, specs)) out.push_back(rows(record));
    return out;
}

using Steps = std::vector<std::string>;

}  // namespace

TEST_CASE("static: nobody joins or leaves while a batch runs") {
    SimulationOptions options = styled("static");
    options.engine.max_num_seqs = 2;
    const std::vector<Spec> specs{{0, 4, 2}, {0, 6, 5}, {0, 3, 1}, {15, 2, 2}};
    CHECK(steps(options, specs) ==
          Steps{"0:4@0 1:6@0", "1:1@6", "1:1@7", "1:1@8", "0:1@4 1:1@9", "2:2@0 3:2@0", "2:1@2 3:1@2"});
    const std::vector<StepRecord> all = records(options, specs);
    CHECK(all[1].total_tokens == 2);  // the idle row costs its token
    Requests requests(specs);
    const Outcome outcome = run(options, requests);
    CHECK(requests.left[0] == 50);
    CHECK(requests.left[1] == 50);
    CHECK(requests.left[2] == 70);
    CHECK(requests.left[3] == 70);
    CHECK(outcome.counters.rows == 14);
    CHECK(outcome.counters.recomputed_tokens == 0);
    CHECK(ns(outcome.requests[0].ttft) == 10);
    // While a batch runs the queue waits for its end, which stands as seats.
    CHECK(outcome.integrals.bound[static_cast<std::size_t>(Bound::seats)] > SimDuration(40));
}

TEST_CASE("static: a request of one token waits with the last token of its prompt") {
    SimulationOptions options = styled("static");
    CHECK(steps(options, {{0, 3, 1}, {0, 1, 1}, {0, 4, 3}}) == Steps{"0:2@0 2:4@0", "2:1@4", "0:1@2 1:1@0 2:1@5"});
    CHECK(records(options, {{0, 3, 1}, {0, 1, 1}, {0, 4, 3}})[0].total_tokens == 7);
    CHECK(steps(options, {{0, 3, 1}, {0, 1, 1}}) == Steps{"0:3@0 1:1@0"});
}

TEST_CASE("static: blocks close a batch, and who is preempted runs in the next") {
    SimulationOptions options = styled("static");
    options.engine.num_gpu_blocks = 3;
    // The first takes a second block from the third, the second finds none but its own.
    Requests requests({{0, 4, 4}, {0, 4, 4}, {0, 4, 1}});
    const Outcome outcome = run(options, requests);
    CHECK(outcome.counters.preemptions == 2);
    CHECK(outcome.counters.completed == 3);
    CHECK(requests.left[0] < requests.left[1]);
}

TEST_CASE("iteration: requests join at every step with their whole prompts, whatever the token budget") {
    SimulationOptions options = styled("iteration");
    options.engine.max_num_batched_tokens = 4;
    options.engine.max_num_seqs = 3;
    CHECK(steps(options, {{0, 9, 3}, {0, 2, 1}, {5, 8, 2}, {5, 3, 1}}) ==
          Steps{"0:9@0 1:2@0", "0:1@9 2:8@0 3:3@0", "0:1@10 2:1@8"});
}

TEST_CASE("decode-first: decodes, then running prompts, then the queue, within the budget") {
    SimulationOptions options = styled("decode-first");
    options.engine.max_num_batched_tokens = 8;
    const std::vector<Spec> specs{{0, 20, 2}, {0, 2, 4}, {0, 30, 1}};
    CHECK(steps(options, specs) ==
          Steps{"0:8@0", "0:8@8", "0:4@16 1:2@0 2:2@0", "0:1@20 1:1@2 2:6@2", "1:1@3 2:7@8", "1:1@4 2:7@15", "2:8@22"});
    // vLLM goes by the order of admission: a prompt in progress takes the budget from decodes behind it.
    const std::vector<Spec> late{{0, 3, 9}, {5, 20, 1}, {5, 1, 9}};
    options.engine.max_num_batched_tokens = 4;
    CHECK(steps(options, late)[1] == "0:1@3 1:3@0");
    for (const std::string& step : steps(options, late)) {
        if (step.find("1:") != std::string::npos && step.find("2:") != std::string::npos)
            CHECK((step.find("2:1@0") != std::string::npos || step.find("2:") < step.find("1:")));
    }
    options.engine.enable_chunked_prefill = false;
    options.engine.max_num_batched_tokens = 8;
    CHECK(steps(options, {{0, 6, 3}, {0, 3, 1}, {0, 7, 1}}) == Steps{"0:6@0", "0:1@6 1:3@0", "0:1@7 2:7@0"});
}

TEST_CASE("decode-first in async scheduling gives the same rows") {
    for (const bool async : {false, true}) {
        SimulationOptions options = styled("decode-first", async);
        options.engine.max_num_batched_tokens = 8;
        Requests requests({{0, 20, 2}, {0, 2, 4}, {0, 30, 1}});
        const Outcome outcome = run(options, requests);
        CHECK(outcome.counters.completed == 3);
        CHECK(outcome.counters.tokens == 20 + 1 + 2 + 3 + 30);
    }
}

TEST_CASE("no-evict: the head waits until all that run, and it, have room to their ends") {
    SimulationOptions options = styled("no-evict");
    options.engine.num_gpu_blocks = 10;  // of 4 tokens
    // Ends: 16 + 8 - 1 = 23 tokens, 6 blocks; 4 + 9 - 1 = 12, 3 blocks; 4 + 2 - 1 = 5, 2 blocks.
    const std::vector<Spec> specs{{0, 16, 8}, {0, 4, 9}, {0, 4, 2}, {0, 4, 1}};
    const Steps all = steps(options, specs);
    CHECK(all[0] == "0:16@0 1:4@0");  // the third would need 2 of the 1 left, and the fourth stands behind it
    Requests requests(specs);
    const Outcome outcome = run(options, requests);
    CHECK(outcome.counters.preemptions == 0);
    CHECK(outcome.counters.completed == 4);
    CHECK(requests.left[2] == 100);  // admitted when the first has left, at 80
    // vLLM's own style takes all at once.
    options.engine.batching = "vllm-v1";
    CHECK(steps(options, specs)[0] == "0:16@0 1:4@0 2:4@0 3:4@0");
    // What clients ask for counts, not what they get.
    options.engine.batching = "no-evict";
    options.engine.sglang.max_new_tokens = 17;
    CHECK(steps(options, specs)[0] == "0:16@0");
    // Who could never be given room is refused.
    CHECK(run(options, {{0, 28, 2}, {0, 4, 1}}).counters.rejected == 1);
    options.engine.sglang.max_new_tokens = 0;
    CHECK(run(options, {{0, 28, 2}, {0, 4, 1}}).counters.rejected == 0);
    CHECK(run(options, {{0, 28, 14}, {0, 4, 1}}).counters.rejected == 1);
}

TEST_CASE("no-evict: over contiguous ranges only those that nobody outgrows") {
    const auto engine = [](const std::string& keys) {
        return test::policy(
            "engine: {batching: no-evict, num_gpu_blocks_override: 40, block_size: 4, max_model_len: 100, "
            "max_num_seqs: 8, max_num_batched_tokens: 100, " +
            keys + "}\nstep_time: {model: constant, step: 10ns}\n");
    };
    for (const char* kv : {"contiguous-pow2", "contiguous-exact"}) {
        const std::string keys = std::string("kv_policy: ") + kv;
        const auto refused = engine(keys + ", length_predictor: {policy: noisy, sd: 1}");
        REQUIRE(refused.errors.size() == 1);
        CHECK(refused.errors.front().find("batching no-evict does not go with ranges of predicted lengths") !=
              std::string::npos);
        CHECK(engine(keys).errors.empty());
    }
    // A range of 100 of the 160 slots for each: one at a time.
    const auto longest = engine("kv_policy: contiguous-max, length_predictor: {policy: noisy, sd: 1}");
    REQUIRE(longest.errors.empty());
    const Outcome o = test::run_policy(longest, {test::arrival(0, 4, 20), test::arrival(0, 4, 20)}).outcome;
    CHECK(o.counters.completed == 2);
    CHECK(o.counters.preemptions == 0);
    CHECK(o.integrals.blocks_used_peak == 100);
}

TEST_CASE("max-utilization: room for the step is enough, and the last started is paused") {
    SimulationOptions options = styled("max-utilization");
    options.engine.num_gpu_blocks = 10;
    const std::vector<Spec> specs{{0, 16, 8}, {0, 4, 9}, {0, 12, 2}, {0, 9, 1}};
    const std::vector<StepRecord> all = records(options, specs);
    CHECK(rows(all[0]) == "0:16@0 1:4@0 2:12@0");  // the fourth needs 3 blocks, and 2 are left
    std::vector<RequestId> paused;
    for (const StepRecord& record : all) {
        paused.insert(paused.end(), record.preempted.begin(), record.preempted.end());
        if (!record.preempted.empty()) {
            for (const ScheduledRow& row : record.scheduled) CHECK(row.kind == ScheduledRow::Kind::running);
        }
    }
    REQUIRE(!paused.empty());
    CHECK(paused[0] == 2);
    // Of a prompt in chunks the first is enough.
    options.engine.num_gpu_blocks = 6;
    CHECK(steps(options, {{0, 8, 9}, {10, 17, 1}})[1] == "0:1@8");
    options.engine.max_num_batched_tokens = 8;
    CHECK(steps(options, {{0, 8, 9}, {10, 17, 1}})[1] == "0:1@8 1:7@0");
}

TEST_CASE("equal progress: each prompt in turn gets a block, those that start here too") {
    SimulationOptions options = styled("no-evict");
    options.engine.max_num_batched_tokens = 13;
    const std::vector<Spec> specs{{0, 20, 1}, {0, 3, 1}, {0, 9, 1}};
    CHECK(steps(options, specs) == Steps{"0:13@0", "0:7@13 1:3@0 2:3@0", "2:6@3"});
    options.engine.policy.equal_progress = true;
    CHECK(steps(options, specs) == Steps{"0:6@0 1:3@0 2:4@0", "0:8@6 2:5@4", "0:6@14"});
}

TEST_CASE("past-future: prompts and decodes in steps of their own") {
    SimulationOptions options = styled("past-future");
    options.engine.max_num_batched_tokens = 10;
    options.engine.max_num_seqs = 3;
    CHECK(steps(options, {{0, 4, 3}, {0, 12, 2}, {15, 5, 1}, {15, 5, 1}}) ==
          Steps{"0:4@0 1:6@0", "1:6@6", "2:5@0", "3:5@0", "0:1@4 1:1@12", "0:1@5"});
}

TEST_CASE("admission expected: the believed ends of all that run, and of the head") {
    SimulationOptions options = styled("vllm-v1");
    options.engine.num_gpu_blocks = 10;
    admit_by(options, "expected", read_expected_admission);
    const std::vector<Spec> specs{{0, 16, 8}, {0, 4, 9}, {0, 4, 2}};
    CHECK(steps(options, specs)[0] == "0:16@0 1:4@0");
    CHECK(run(options, specs).counters.preemptions == 0);
    admit_by(options, "optimistic", read_optimistic_admission);
    CHECK(steps(options, specs)[0] == "0:16@0 1:4@0 2:4@0");
}

TEST_CASE("admission past-future: the predicted peak") {
    SimulationOptions options = styled("vllm-v1");
    options.engine.block_size = 1;
    admit_by(options, "past-future", read_past_future_admission);
    // A has 10 tokens and 5 to come, B 4 and 2: while both are there 14 + 2 x 2 = 18, at A's end 10 + 5 = 15.
    options.engine.num_gpu_blocks = 18;
    CHECK(steps(options, {{0, 10, 5}, {0, 4, 2}})[0] == "0:10@0 1:4@0");
    options.engine.num_gpu_blocks = 17;
    CHECK(steps(options, {{0, 10, 5}, {0, 4, 2}})[0] == "0:10@0");
    // Two steps later A has 12 and 3 to come: 16 + 2 x 2 = 20 is no less; it is alone until its end.
    CHECK(steps(options, {{0, 10, 5}, {0, 4, 2}}).size() == 7);
    // An empty engine takes anybody.
    options.engine.num_gpu_blocks = 14;
    CHECK(run(options, {{0, 10, 5}}).counters.completed == 1);
}

TEST_CASE("max_live_tokens bounds what runs when another is admitted") {
    SimulationOptions options = styled("iteration");
    options.engine.policy.max_live_tokens = 20;
    CHECK(steps(options, {{0, 12, 3}, {0, 8, 1}, {0, 1, 1}}) == Steps{"0:12@0 1:8@0", "0:1@12 2:1@0", "0:1@13"});
    CHECK(steps(options, {{0, 40, 1}}).size() == 1);
}

}  // namespace kvsim::engine_test
