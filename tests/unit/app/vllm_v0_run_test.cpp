// Preset vllm-v0 in a run: its keys, what swapping costs, and what it refuses or stops at.

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "unit/app/cli.hpp"

using namespace kvsim::test;
using Json = nlohmann::ordered_json;

namespace {

/// More than its KV holds at once.
constexpr std::string_view scenario =
    "name: v0\nmodel: meta-llama/Llama-3.1-8B-Instruct\nhardware: {gpu: H100-SXM-80GB}\n"
    "engine: {preset: vllm-v0, num_gpu_blocks_override: 90, max_model_len: 600, max_num_seqs: 32, async_output_processing: "
    "false}\n"
    "step_time: {model: affine, c0: 5ms, per_token: 20us, per_sequence: 50us}\n"
    "workload:\n  requests: 80\n  arrivals: {process: poisson, rate: 20/s}\n"
    "  prompt_tokens: {distribution: uniform, min: 20, max: 200}\n"
    "  output_tokens: {distribution: uniform, min: 10, max: 80}\n";

Json summary(const TemporaryFolder& folder, std::vector<std::string> sets, const std::string& out) {
    std::vector<std::string> args{"v0.yaml", "--quiet", "--out", out};
    for (const std::string& set : sets) {
        args.emplace_back("--set");
        args.push_back("engine." + set);
    }
    const Finished done = run_in(folder, args);
    REQUIRE_MESSAGE(done.exit == 0, done.err);
    return Json::parse(slurp(folder.path() / out / "summary.json"));
}

}  // namespace

TEST_CASE("vllm-v0: every request completes under recompute, swap, chunking and caching, and swapping takes time") {
    const TemporaryFolder folder;
    folder.write("v0.yaml", scenario);
    const Json recompute = summary(folder, {}, "recompute");
    const Json fast = summary(folder, {"preemption=swap", "swap_bandwidth_gb_s=1000000"}, "fast");
    const Json slow = summary(folder, {"preemption=swap", "swap_bandwidth_gb_s=0.5"}, "slow");
    const Json hidden = summary(folder, {"preemption=swap", "swap_bandwidth_gb_s=0.5", "swap_overlap=true"}, "hidden");
    for (const Json* s : {&recompute, &fast, &slow, &hidden}) CHECK(s->at("completed") == 80);
    CHECK(recompute.at("kvsim").at("preemptions") > 0);
    CHECK(recompute.at("kvsim").at("recomputed_tokens") > 0);
    CHECK(recompute.at("kvsim").at("swapped_tokens") == 0);
    CHECK(fast.at("kvsim").at("recomputed_tokens") == 0);
    CHECK(fast.at("kvsim").at("swapped_tokens") > 0);
    CHECK(slow.at("duration") > fast.at("duration"));
    CHECK(slow.at("duration") > hidden.at("duration"));
    const Json chunked = summary(folder, {"enable_chunked_prefill=true", "enable_prefix_caching=true"}, "chunked");
    CHECK(chunked.at("completed") == 80);
    const Json async = summary(folder, {"async_output_processing=true"}, "async");
    CHECK(async.at("completed") == 80);
    CHECK(async.at("kvsim").at("steps") >= recompute.at("kvsim").at("steps"));
}

TEST_CASE("vllm-v0: requests still come after the engine was left empty by one that ended at max_model_len") {
    const TemporaryFolder folder;
    folder.write("v0.yaml", scenario);
    for (const char* n : {"1", "2"}) {
        CAPTURE(n);
        const Finished done = run_in(folder, {"v0.yaml", "--quiet", "--out", n, "--steps", "steps.jsonl", "--set",
                                              "engine.async_output_processing=true", "--set", "engine.max_model_len=64",
                                              "--set", "workload.prompt_tokens=50", "--set", "workload.output_tokens=40",
                                              "--set", "workload.arrivals.rate=1/s", "--set", std::string("workload.n=") + n});
        REQUIRE_MESSAGE(done.exit == 0, done.err);
        CHECK(Json::parse(slurp(folder.path() / n / "summary.json")).at("completed") == 80);
        const std::string log = slurp(folder.path() / "steps.jsonl");
        const Json end = Json::parse(log.substr(log.rfind('\n', log.size() - 2) + 1));
        CHECK(end.at("finished") == 80 * std::stoi(n));  // each once
    }
}

TEST_CASE("vllm-v0: other presets tell that they do not read its keys") {
    const TemporaryFolder folder;
    folder.write("v0.yaml", scenario);
    const Finished done = run_in(folder, {"v0.yaml", "--set", "engine.preset=vllm-v1", "--set", "engine.swap_overlap=true"});
    CHECK(done.exit == 0);
    CHECK(done.out.find("swap_overlap has no effect") != std::string::npos);
}

TEST_CASE("vllm-v0: a run stops with a report where the engine itself would die") {
    const TemporaryFolder folder;
    folder.write("v0.yaml", scenario);
    const Finished done =
        run_in(folder, {"v0.yaml", "--set", "engine.preemption=swap", "--set", "engine.num_cpu_blocks_override=1"});
    CHECK(done.exit == 2);
    CHECK(done.err.find("is to be swapped out and the CPU has too few free blocks") != std::string::npos);
    const Finished partial = run_in(folder, {"v0.yaml", "--set", "engine.max_num_partial_prefills=2"});
    CHECK(partial.exit == 2);
    CHECK(partial.err.find("needs enable_chunked_prefill") != std::string::npos);
}
