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

const std::string small =
    "  prompt_tokens: {distribution: lognormal, p50: 90, p90: 300, max: 800}\n"
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

TEST_CASE("round trip: tenants, whose fair shares depend on them") {
    round_trip(
        ", scheduling_policy: vtc",
        "  classes:\n"
        "    - {name: a, tenant: \"x, \\\"y\\\"\", requests: 70, arrivals: {process: poisson, rate: 20/s}, prompt_tokens: 200, "
        "output_tokens: 30}\n"
        "    - {name: b, tenant: z, requests: 40, arrivals: {process: poisson, rate: 9/s}, prompt_tokens: 90, output_tokens: "
        "90}\n"
        "    - {name: c, tenant: z, requests: 40, arrivals: {process: poisson, rate: 9/s}, prompt_tokens: 9, output_tokens: "
        "50}\n");
}

TEST_CASE("a replayed trace keeps its tenants where clients are added to it, unless the scenario names one") {
    const TemporaryFolder folder;
    folder.write("t.jsonl", "{\"timestamp\": 0, \"input_length\": 9, \"output_length\": 2, \"tenant\": \"acme\"}\n");
    for (const auto& [more, tenant] :
         {std::pair{"", ",acme,"}, std::pair{", timeout: 9s", ",acme,"}, std::pair{", tenant: other", ",other,"}}) {
        folder.write("a.yaml", engine("") + "workload: {trace: {path: t.jsonl}" + more + "}\n");
        REQUIRE(run_in(folder, {"a.yaml", "--out", "a", "--quiet"}).exit == 0);
        CHECK(slurp(folder.path() / "a/requests.csv").find(tenant) != std::string::npos);
    }
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

TEST_CASE("round trip: sessions with the hits of generated blocks, thinking users, chains of tool calls") {
    const std::string chat = "  requests: 150\n  arrivals: {process: poisson, rate: 3/s}\n" + small +
                             "  sessions: {turns: {distribution: geometric, mean: 5, max: 20}, think_time: {distribution: "
                             "exponential, mean: 500ms}, max_context: 3000}\n  prefix: {groups: 3, tokens: 100}\n";
    round_trip(", enable_prefix_caching: true", chat);
    round_trip(", enable_prefix_caching: true", chat, "", {"--trace-block-size", "8"});
    round_trip(", enable_prefix_caching: false", chat);
    round_trip(", enable_prefix_caching: true", chat + "  max_concurrency: 3\n", "  max_concurrency: 3\n");
    round_trip("", "  requests: 100\n  users: {count: 20, think_time: 1s}\n" + lengths);
    round_trip(", enable_prefix_caching: true",
               "  requests: 100\n  arrivals: {process: poisson, rate: 2/s}\n  reasoning_tokens: 30\n  timeout: 8s\n" + small +
                   "  sessions: {steps: [{name: plan}, {name: tool, delay: 700ms, repeat: 3}, {name: end}]}\n");
    // Steps of one length: requests of different classes come in the same nanosecond.
    round_trip(", enable_prefix_caching: true",
               "  requests: 150\n  prompt_tokens: 60\n  output_tokens: 20\n  classes:\n"
               "    - {name: b, users: {count: 9, think_time: 300ms}}\n"
               "    - {name: a, arrivals: {process: constant, rate: 10/s}, sessions: {turns: 4, think_time: 300ms}}\n"
               "    - {name: c, users: {count: 3, think_time: 300ms}, prefix: {groups: 2, tokens: 200}}\n");
}

TEST_CASE("round trip: users who never think, and max_concurrency alone, with what clients share") {
    round_trip("", "  requests: 100\n  users: {count: 5}\n" + lengths, "  max_concurrency: 5\n");
    round_trip(", enable_prefix_caching: true",
               "  requests: 100\n  max_concurrency: 7\n  reasoning_tokens: 20\n  documents: {count: 4, tokens: 90}\n" + lengths,
               "  max_concurrency: 7\n");
}

TEST_CASE("sessions written under one engine follow their answers under another") {
    const TemporaryFolder folder;
    const std::string workload = small +
                                 "  arrivals: {process: poisson, rate: 3/s}\n  sessions: {turns: 5, count: 25, think_time: "
                                 "{distribution: exponential, mean: 500ms}}\n";
    folder.write("a.yaml", engine(", enable_prefix_caching: true") + "workload:\n" + workload);
    folder.write("b.yaml", engine(", enable_prefix_caching: true") + "workload: {trace: {path: t.jsonl}}\n");
    REQUIRE(run_in(folder, {"workload", "a.yaml", "--out", "t.jsonl"}).exit == 0);
    std::string before;
    for (const std::string step : {"1ms", "5ms", "40ms"}) {
        const std::string set = "step_time.c0=" + step;
        REQUIRE(run_in(folder, {"a.yaml", "--out", "a" + step, "--set", set, "--quiet"}).exit == 0);
        REQUIRE(run_in(folder, {"b.yaml", "--out", "b" + step, "--set", set, "--quiet"}).exit == 0);
        const std::string requests = slurp(folder.path() / ("a" + step) / "requests.csv");
        CHECK(requests != before);
        CHECK(slurp(folder.path() / ("b" + step) / "requests.csv") == requests);
        before = requests;
    }
}

TEST_CASE("a session's later prompt finds the blocks it generated, by output_hash_id alone") {
    const TemporaryFolder folder;
    // 40 + 24 tokens are 4 blocks; the last token is never computed, so 3 of them are there.
    const std::string second =
        "{\"timestamp\": 0, \"input_length\": 80, \"output_length\": 5, \"hash_ids\": [0, 1, 7, 8, 9], "
        "\"session_id\": \"s\", \"think_ms\": 10}\n";
    const auto row = [](std::string_view key) {
        return "{\"timestamp\": 0, \"input_length\": 40, \"output_length\": 24, \"hash_ids\": [0, 1, 7], " + std::string(key) +
               "\"trace_block_size\": 16, \"session_id\": \"s\", \"think_ms\": null}\n";
    };
    folder.write("b.yaml", engine(", enable_prefix_caching: true") + "workload: {trace: {path: t.jsonl}}\n");
    for (const auto& [key, cached] : {std::pair{"\"output_hash_id\": 7, ", ",80,5,48,"}, std::pair{"", ",80,5,32,"}}) {
        folder.write("t.jsonl", row(key) + second);
        REQUIRE(run_in(folder, {"b.yaml", "--out", "b", "--quiet"}).exit == 0);
        CHECK(slurp(folder.path() / "b/requests.csv").find(cached) != std::string::npos);
    }
    for (const auto& [key, what] : {std::pair{"\"output_hash_id\": 8, ", "so output_hash_id must be its last hash id, 7"},
                                    std::pair{"\"output_hash_id\": -1, ", "output_hash_id -1"},
                                    std::pair{"\"order\": -1, ", "order -1"}, std::pair{"\"order\": 1.5, ", "order"}}) {
        folder.write("t.jsonl", row(key) + second);
        const Finished refused = run_in(folder, {"b.yaml", "--out", "c", "--quiet"});
        CHECK(refused.exit == 2);
        CHECK(refused.err.find("t.jsonl:1:") != std::string::npos);
        CHECK(refused.err.find(what) != std::string::npos);
    }
}

TEST_CASE("requests that wait in ways a trace cannot say are refused with the reason") {
    for (const auto& [more, what] :
         {std::pair{"  users: {count: 3}\n  timeout: 3s\n", "have no session_id to follow"},
          std::pair{"  users: {count: 3, ramp_up: 1s}\n", "have no session_id to follow"},
          std::pair{"  users: {count: 3, think_time: 1s}\n  sessions: {turns: 2}\n", "a user's sessions follow one another"},
          std::pair{"  arrivals: {process: poisson, rate: 1/s}\n  sessions: {steps: [{name: a}, {name: b, copies: 2}]}\n",
                    "copies of step 'b' are sent side by side"},
          std::pair{"  arrivals: {process: poisson, rate: 1/s}\n  sessions: {steps: [{name: a}, {name: b}, {name: c, after: "
                    "[a]}]}\n",
                    "step 'c' waits for other requests than the one before it"},
          std::pair{"  classes: [{name: k, max_concurrency: 2, arrivals: {process: poisson, rate: 1/s}}]\n",
                    "class 'k': a limit of its concurrency holds requests back"}}) {
        const std::string keys = more;
        CAPTURE(keys);
        const TemporaryFolder folder;
        folder.write("a.yaml", engine("") + "workload:\n  requests: 30\n" + small + keys);
        const Finished refused = run_in(folder, {"workload", "a.yaml", "--out", "t.jsonl"});
        CHECK(refused.exit == 2);
        CHECK(refused.err.find("cannot be written as a trace: ") != std::string::npos);
        CHECK(refused.err.find(what) != std::string::npos);
        CHECK(folder.files() == std::vector<std::string>{"a.yaml"});
    }
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
    for (const auto& [keys, what] : {std::pair{"  timeout: {ttft: 1s}\n", "a timeout of the first token"},
                                     std::pair{"  cancel: {share: 1, after: 1s}\n", "a cancellation"}}) {
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
