// Both forms of the engine leave the same files, over presets, step-time models and KV policies of real scenarios. (The random
// scenarios of oracle_test.cpp have a step time of their own.)

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "kvsim/app/prepare.hpp"
#include "kvsim/report/step_log.hpp"
#include "kvsim/report/summary.hpp"
#include "kvsim/report/writers.hpp"
#include "unit/app/cli.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

constexpr const char* scenario = R"(
model: meta-llama/Llama-3.1-8B-Instruct
hardware: {gpu: H100-SXM-80GB}
engine: {preset: vllm-v1, max_model_len: 4096, max_num_seqs: 32, max_num_batched_tokens: 512, num_gpu_blocks_override: 500}
workload:
  requests: 150
  arrivals: {process: gamma, rate: 60/s, burstiness: 0.5}
  prefix: {groups: 4, share: 0.7, tokens: {distribution: uniform, min: 40, max: 400}}
  prompt_tokens: {distribution: lognormal, p50: 150, p90: 600, max: 2000}
  output_tokens: {distribution: geometric, mean: 120, max: 600}
slo: {ttft: 1s}
output: {timeline_interval: 100ms}
)";

/// Layers of a made-up GPU, for the step-time model `table`.
void write_profile(const TemporaryFolder& folder) {
    std::filesystem::create_directories(folder.path() / "profile");
    std::string dense = "layer,tokens,time_us\n";
    for (const char* layer : {"embedding", "layernorm", "qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn",
                              "down_proj", "final_layernorm"}) {
        dense.append(layer).append(",1,9\n").append(layer).append(",1001,31\n");
    }
    folder.write("profile/dense.csv", dense);
    folder.write("profile/per_sequence.csv",
                 "layer,sequences,time_us\nlm_head,1,100\nlm_head,33,140\nsampler,1,10\nsampler,33,17\n");
    folder.write("profile/attention.csv",
                 "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1,16,8\n0,0,1,4016,38\n0,0,33,16,30\n"
                 "0,0,33,4016,140\n16,0,0,0,12\n1016,0,0,0,112\n16,0,1,16,20\n16,0,1,4016,30\n1016,0,1,16,120\n"
                 "1016,0,1,4016,130\n");
}

struct Files {
    std::string summary, requests, timeline, steps;
    std::int64_t preemptions = 0;
    std::int64_t hits = 0;
};

Files files_of(const TemporaryFolder& folder, const std::vector<std::string>& sets, EngineForm form, bool log_steps) {
    config::Diagnostics diagnostics;
    const app::Prepared p = app::prepare(folder.path() / "busy.yaml", sets, diagnostics);
    REQUIRE(diagnostics.ok());
    SimulationOptions options = p.options;
    options.form = form;
    const auto steps = folder.path() / "steps.jsonl";
    StepLog log(
        steps, [](RequestId id) { return std::to_string(id); }, options.replicas, options.engine.num_gpu_blocks - 1);
    if (log_steps) options.on_step = [&log](std::int64_t replica, const StepRecord& record) { log.add(replica, record); };
    const Outcome outcome = simulate(options, *p.step_time, *p.router, *p.workload);
    log.finish("done", {});
    write_requests_csv(folder.path() / "requests.csv", outcome, p.scenario.slo);
    write_timeline_csv(folder.path() / "timeline.csv", outcome);
    return {summary_csv_row(summarize(p.info, outcome)),
            slurp(folder.path() / "requests.csv"),
            slurp(folder.path() / "timeline.csv"),
            slurp(steps),
            outcome.counters.preemptions,
            outcome.counters.hit_tokens_first};
}

}  // namespace

TEST_CASE("oracle: both forms leave the same files, whatever prices the steps") {
    const TemporaryFolder folder;
    folder.write("busy.yaml", scenario);
    write_profile(folder);
    std::int64_t preemptions = 0;
    std::int64_t hits = 0;
    for (const char* price :
         {"fitted", "roofline", "{model: constant, step: 10ms}", "{model: table, path: profile, extrapolate: true}",
          "{model: affine, c0: 5ms, per_token: 20us, per_sequence: 1us, per_context_token: 0.02us}"}) {
        for (const char* engine :
             {"engine.preset=vllm-v1", "engine.preset=vllm-v1-2026-01", "engine.enable_prefix_caching=false",
              "engine.async_scheduling=false", "engine.scheduler_reserve_full_isl=false", "hardware.replicas=2"}) {
            const std::vector<std::string> sets{std::string("step_time=") + price, engine};
            CAPTURE(sets[0]);
            CAPTURE(sets[1]);
            const Files plain = files_of(folder, sets, EngineForm::per_request, true);
            const Files recorded = files_of(folder, sets, EngineForm::fast, true);
            const Files fast = files_of(folder, sets, EngineForm::fast, false);
            CHECK(plain.steps.size() > 100'000);
            CHECK(recorded.steps == plain.steps);
            for (const Files* other : {&recorded, &fast}) {
                CHECK(other->summary == plain.summary);
                CHECK(other->requests == plain.requests);
                CHECK(other->timeline == plain.timeline);
            }
            preemptions += plain.preemptions;
            hits += plain.hits;
        }
    }
    CHECK(preemptions > 100);
    CHECK(hits > 10'000);
}
