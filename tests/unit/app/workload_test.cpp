// kvsim workload: generate, write, replay is the same run.

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

#include "unit/app/cli.hpp"
#include "unit/workload/support.hpp"

namespace kvsim::test {
namespace {

std::string engine(std::string_view more) {
    return "model: meta-llama/Llama-3.1-8B-Instruct\n"
           "engine: {preset: vllm-v1, max_model_len: 4096, max_num_seqs: 16, max_num_batched_tokens: 512, "
           "num_gpu_blocks_override: 300, block_size: 16" +
           std::string(more) +
           "}\n"
           "step_time: {model: affine, c0: 5ms, per_token: 20us, per_sequence: 10us, per_context_token: 1us}\n"
           "slo: {ttft: 1s}\n";
}

void round_trip(std::string_view engine_keys, const std::string& workload, const std::string& replay_more = "",
                const std::vector<std::string>& options = {}) {
    CAPTURE(workload);
    const TemporaryFolder folder;
    folder.write("a.yaml", engine(engine_keys) + "workload:\n" + workload);
    folder.write("b.yaml", engine(engine_keys) + "workload:\n  trace: {path: t.jsonl}\n" + replay_more);
    std::vector<std::string> write{"workload", "a.yaml", "--out", "t.jsonl"};
    write.insert(write.end(), options.begin(), options.end());
    const Finished written = run_in(folder, write);
    CHECK(written.err.empty());
    REQUIRE(written.exit == 0);
    REQUIRE(run_in(folder, {"a.yaml", "--out", "a", "--quiet"}).exit == 0);
    REQUIRE(run_in(folder, {"b.yaml", "--out", "b", "--quiet"}).exit == 0);
    const std::string requests = slurp(folder.path() / "a/requests.csv");
    CHECK(requests.size() > 1000);
    CHECK(slurp(folder.path() / "b/requests.csv") == requests);
}

const std::string lengths =
    "  prompt_tokens: {distribution: lognormal, p50: 200, p90: 800, max: 2000}\n"
    "  output_tokens: {distribution: lognormal, p50: 40, p90: 120, max: 400}\n";

}  // namespace

TEST_CASE("round trip: drawn requests, shared prefixes, concurrency, preemption") {
    round_trip("", "  requests: 60\n  arrivals: {process: poisson, rate: 5/s}\n" + lengths);
    // Prefixes end inside blocks; 100 requests evict one another's.
    const std::string prefixed = "  requests: 100\n  arrivals: {process: gamma, rate: 9/s, burstiness: 0.3}\n" + lengths +
                                 "  prefix: {groups: 3, share: 0.8, tokens: {distribution: uniform, min: 100, max: 900}}\n";
    round_trip(", enable_prefix_caching: true", prefixed);
    round_trip(", enable_prefix_caching: true", prefixed, "", {"--trace-block-size", "4"});
    round_trip(", enable_prefix_caching: false", prefixed);
    round_trip("", "  requests: 80\n  max_concurrency: 7\n" + lengths, "  max_concurrency: 7\n");
    round_trip("", "  requests: 40\n  rate_scale: 3\n  arrivals: {process: poisson, rate: 1/min}\n" + lengths);
}

TEST_CASE("round trip: classes with priorities, varying rates, reasoning, documents and jitter") {
    round_trip(
        ", scheduling_policy: priority, enable_prefix_caching: true",
        "  classes:\n"
        "    - {name: chat, priority: 0, requests: 70, arrivals: {process: mmpp, on_rate: 40/s, on_time: 1s, off_time: 2s}, "
        "prompt_tokens: {distribution: lognormal, p50: 200, p90: 800, max: 2000}, output_tokens: 30, prefix: {groups: 3, "
        "tokens: 100, zipf: 1}}\n"
        "    - {name: \"ba\\\"tch\", priority: 3, requests: 30, arrivals: {process: batches, size: 10, every: 2s}, "
        "prompt_tokens: 500, output_tokens: {distribution: geometric, mean: 40, max: 300}, reasoning_tokens: 20, "
        "documents: {count: 4, tokens: 90, per_request: 2}, jitter: 100ms, timeout: 20s}\n");
}

TEST_CASE("round trip: clients that give up") {
    const std::string impatient = "  requests: 120\n  arrivals: {process: poisson, rate: 40/s}\n" + lengths + "  timeout: 2s\n";
    round_trip("", impatient);
    const TemporaryFolder folder;
    folder.write("a.yaml", engine("") + "workload:\n" + impatient);
    REQUIRE(run_in(folder, {"a.yaml", "--out", "a", "--quiet"}).exit == 0);
    CHECK(slurp(folder.path() / "a/requests.csv").find("timed_out") != std::string::npos);
    // The first row has no limit: readers must still learn of the others.
    folder.write("t.jsonl",
                 "{\"timestamp\": 0, \"input_length\": 9, \"output_length\": 5, \"timeout_ms\": null}\n"
                 "{\"timestamp\": 1, \"input_length\": 9, \"output_length\": 300, \"timeout_ms\": 20.5}\n");
    folder.write("b.yaml", engine("") + "workload: {trace: {path: t.jsonl}}\n");
    REQUIRE(run_in(folder, {"b.yaml", "--out", "b", "--quiet"}).exit == 0);
    const std::string rows = slurp(folder.path() / "b/requests.csv");
    CHECK(rows.find("timed_out") != std::string::npos);
    REQUIRE(run_in(folder, {"workload", "b.yaml", "--out", "again.jsonl"}).exit == 0);
    CHECK(slurp(folder.path() / "again.jsonl") == slurp(folder.path() / "t.jsonl"));
}

TEST_CASE("round trip: a replayed trace, jittered and scaled, with names and priorities") {
    const TemporaryFolder source;
    std::string text;
    for (int i = 0; i < 50; ++i) {
        text += "{\"timestamp\": " + std::to_string(i / 10 * 3000) + ", \"input_length\": 100, \"output_length\": 9, " +
                "\"hash_ids\": [" + std::to_string(i % 3) + ", " + std::to_string(100 + i % 7) + "], \"request_id\": \"r" +
                std::to_string(i) + "\", \"class\": \"c\", \"session_id\": \"s\", \"priority\": " + std::to_string(i % 4) +
                "}\n";
    }
    const auto path = source.write("m.jsonl", text);
    round_trip(", scheduling_policy: priority", "  rate_scale: 2\n  trace: {path: " + path.string() +
                                                    ", trace_block_size: 64, jitter: 3s, sample: 0.999, shuffle: true}\n");
}

TEST_CASE("what no trace can say is refused, and nothing is written") {
    const TemporaryFolder folder;
    folder.write("s.jsonl",
                 R"({"session_id": "s", "arrival_time_ns": 2, "sub_requests": [{"input_toks": 9, "output_toks": 5}]})");
    folder.write("a.yaml", engine("") + "workload:\n  trace: {path: s.jsonl}\n");
    const Finished refused = run_in(folder, {"workload", "a.yaml", "--out", "t.jsonl"});
    CHECK(refused.exit == 2);
    CHECK(refused.err.find("cannot be written as a trace: its requests depend on when others finish") != std::string::npos);
    folder.write("b.yaml", engine("") + "workload:\n  requests: 3\n  arrivals: all_at_once\n" + lengths);
    const Finished block = run_in(folder, {"workload", "b.yaml", "--out", "t.jsonl", "--trace-block-size", "5"});
    CHECK(block.exit == 2);
    CHECK(block.err.find("does not divide the engine's block_size of 16") != std::string::npos);
    CHECK(run_in(folder, {"workload", "b.yaml"}).exit == 2);
    CHECK(run_in(folder, {"workload", "b.yaml", "--out", "none/t.jsonl"}).exit == 2);
    CHECK(folder.files() == std::vector<std::string>{"a.yaml", "b.yaml", "s.jsonl"});
    for (const auto& [keys, what] :
         {std::pair{"  timeout: {ttft: 1s}\n", "a timeout of the first token"},
          std::pair{"  cancel: {share: 1, after: 1s}\n", "a cancellation"}, std::pair{"  tenant: t\n", "a tenant"}}) {
        folder.write("c.yaml",
                     engine("") + "workload:\n  requests: 3\n  arrivals: {process: poisson, rate: 1/s}\n" + lengths + keys);
        const Finished left_out = run_in(folder, {"workload", "c.yaml", "--out", "t.jsonl"});
        CHECK(left_out.exit == 2);
        CHECK(left_out.err.find(what) != std::string::npos);
        CHECK(left_out.err.find("for which the format has no key") != std::string::npos);
    }
}

TEST_CASE("a skipped row is counted in the run's warnings") {
    const TemporaryFolder folder;
    folder.write("t.jsonl",
                 "{\"timestamp\": 0, \"input_length\": 9, \"output_length\": 2}\n{\"timestamp\": 1, \"input_length\": -9}\n");
    folder.write("a.yaml", engine("") + "workload: {trace: {path: t.jsonl, on_error: skip}}\n");
    const Finished run = run_in(folder, {"a.yaml", "--out", "o"});
    CHECK(run.exit == 0);
    CHECK(run.out.find("1 wrong row is skipped, the first: t.jsonl:2:") != std::string::npos);
    const Finished strict = run_in(folder, {"a.yaml", "--set", "workload.trace.on_error=fail", "--out", "p"});
    CHECK(strict.exit == 2);
    CHECK(strict.err.find("t.jsonl:2:34: error: input_length -9") != std::string::npos);
    const Finished stats = run_in(folder, {"check", "--stats", "t.jsonl", "--on-error", "skip", "--cache-blocks", "3"});
    CHECK(stats.exit == 0);
    CHECK(stats.out.find("requests          1\n") != std::string::npos);
    CHECK(run_in(folder, {"check", "--stats", "t.jsonl"}).exit == 2);
}

TEST_CASE("the published traces run whole") {
    for (const auto& [file, rows] :
         {std::pair{"conversation_trace.jsonl", 12'031}, std::pair{"synthetic_trace.jsonl", 3'993},
          std::pair{"AzureLLMInferenceTrace_conv.csv", 19'366}, std::pair{"AzureLLMInferenceTrace_code.csv", 8'819}}) {
        const auto path = shared_trace(file);
        if (!path) return;
        const TemporaryFolder folder;
        folder.write("a.yaml",
                     "model: meta-llama/Llama-3.1-8B-Instruct\nhardware: {gpu: H100-SXM-80GB}\nengine: {preset: vllm-v1, "
                     "max_model_len: 131072}\noutput: {timeline: false}\nworkload: {trace: {path: " +
                         path->string() + "}}\n");
        const Finished run = run_in(folder, {"a.yaml", "--out", "o", "--quiet"});
        CHECK(run.exit == 0);
        const std::string requests = slurp(folder.path() / "o/requests.csv");
        CHECK(std::count(requests.begin(), requests.end(), '\n') == rows + 1);
    }
}

}  // namespace kvsim::test
