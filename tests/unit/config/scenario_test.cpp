#include "kvsim/config/scenario.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "unit/config/helpers.hpp"

using namespace kvsim;
using namespace kvsim::config;
using namespace kvsim::config::test;
using namespace std::chrono_literals;

namespace {

constexpr std::string_view long_context = R"(# Which batch policy keeps 8K-100K-token prompts from starving chats on one H100?
name: long_context
seed: 1
model: meta-llama/Llama-3.1-8B-Instruct      # catalogue name
hardware: {gpu: H100-SXM-80GB, tensor_parallel_size: 1}
engine:
  preset: vllm-v1
  max_model_len: 131072
  max_num_seqs: 256
  max_num_batched_tokens: 8192
  block_size: 16
  gpu_memory_utilization: 0.92               # or num_gpu_blocks_override, or kv_cache_memory_bytes
  enable_prefix_caching: true
  kv_cache_dtype: auto
  scheduling_policy: fcfs
step_time: {model: fitted}                   # constant | affine | roofline (datasheet) | fitted (per GPU) | table
workload:
  requests: 2000                             # or duration: 20min
  arrivals: {process: poisson, rate: 1/s}
  prompt_tokens: {distribution: lognormal, p50: 8000, p90: 48000, max: 100000}
  output_tokens: {distribution: lognormal, p50: 300, p90: 700, max: 2000}
slo: {ttft: 10s, tpot: 60ms}
measure: {warmup: none}                      # none | 60s | 200 requests
)";

const std::string workload = "workload: {requests: 1, arrivals: x, prompt_tokens: 1, output_tokens: 1}\n";

// What is wrong with a scenario that is fine but for `section`.
std::string section_complaints(const std::string& section) {
    return read_text(workload + section).complaints;
}

std::string workload_complaints(const std::string& text) {
    return read_text("workload: " + text + "\n").complaints;
}

}  // namespace

TEST_CASE("the design's example reads as it is meant") {
    const Reading reading = read_text(long_context, "scenarios/other.yaml");
    REQUIRE(reading.complaints.empty());
    CHECK(reading.warnings.empty());
    const Scenario& s = reading.scenario;
    CHECK(s.file == "scenarios/other.yaml");
    CHECK(s.name == "long_context");
    CHECK(s.seed == 1);
    CHECK(s.model.scalar == "meta-llama/Llama-3.1-8B-Instruct");
    CHECK(s.hardware.gpu.scalar == "H100-SXM-80GB");
    CHECK(s.hardware.tensor_parallel_size == 1);
    CHECK(s.hardware.replicas == 1);
    CHECK(s.router.name == "round_robin");
    CHECK(s.router.params.is_null());
    CHECK(s.engine.preset == "vllm-v1");
    CHECK(s.engine.max_model_len == 131072);
    CHECK(s.engine.max_num_seqs == 256);
    CHECK(s.engine.max_num_batched_tokens == 8192);
    CHECK(s.engine.block_size == 16);
    CHECK(s.engine.gpu_memory_utilization == 0.92);
    CHECK(s.engine.enable_prefix_caching == true);
    CHECK(s.engine.kv_cache_dtype == "auto");
    CHECK(s.engine.scheduling_policy.name == "fcfs");
    CHECK_FALSE(s.engine.watermark.has_value());
    CHECK_FALSE(s.engine.enable_chunked_prefill.has_value());
    CHECK(s.step_time.name == "fitted");
    CHECK(s.step_time.name_mark.line == 16);
    CHECK(s.step_time.params.is_map());
    CHECK(s.workload.requests == 2000);
    CHECK_FALSE(s.workload.duration.has_value());
    CHECK(s.workload.rate_scale == 1);
    CHECK(s.workload.mark.line == 17);
    CHECK(s.workload.arrivals.find("rate")->scalar == "1/s");
    CHECK(s.workload.prompt_tokens.find("p90")->scalar == "48000");
    CHECK(s.workload.output_tokens.find("max")->scalar == "2000");
    CHECK(s.workload.prefix.is_null());
    CHECK(s.workload.trace.is_null());
    CHECK(s.slo.ttft == 10s);
    CHECK(s.slo.tpot == 60ms);
    CHECK_FALSE(s.slo.e2e.has_value());
    CHECK_FALSE(s.measure.warmup_time.has_value());
    CHECK_FALSE(s.measure.warmup_requests.has_value());
    CHECK(s.metrics.exact_percentiles);
    CHECK(s.output.requests);
    CHECK(s.output.timeline_interval == 1s);
}

TEST_CASE("every other key reads too") {
    const Reading reading = read_text(R"(
hardware: {pipeline_parallel_size: 2, data_parallel_size: 3, replicas: 4}
router: least_requests
engine:
  dtype: bfloat16
  quantization: fp8
  num_gpu_blocks_override: 1000
  activation_memory_bytes: 0
  non_torch_memory_bytes: 1.5GiB
  enable_chunked_prefill: false
  long_prefill_token_threshold: 4
  async_scheduling: false
  scheduler_reserve_full_isl: true
  watermark: 0.01
  api: 2ms
  preemption: recompute
step_time: constant
workload: {duration: 20min, rate_scale: 0.5, max_concurrency: 8, trace: {path: a.jsonl}}
slo: {e2e: 1min, queue: 1s}
measure: {warmup: 200 requests}
metrics: {percentiles: histogram}
output: {requests: false, timeline: false, timeline_interval: 100ms}
)");
    REQUIRE(reading.complaints.empty());
    const Scenario& s = reading.scenario;
    CHECK(s.name == "t");
    CHECK(s.hardware.pipeline_parallel_size == 2);
    CHECK(s.hardware.data_parallel_size == 3);
    CHECK(s.hardware.replicas == 4);
    CHECK(s.router.name == "least_requests");
    CHECK(s.engine.dtype == "bfloat16");
    CHECK(s.engine.quantization == "fp8");
    CHECK(s.engine.num_gpu_blocks_override == 1000);
    CHECK(s.engine.activation_memory_bytes == Bytes(0));
    CHECK(s.engine.non_torch_memory_bytes == Bytes(1'610'612'736));
    CHECK(s.engine.enable_chunked_prefill == false);
    CHECK(s.engine.long_prefill_token_threshold == 4);
    CHECK(s.engine.async_scheduling == false);
    CHECK(s.engine.scheduler_reserve_full_isl == true);
    CHECK(s.engine.watermark == 0.01);
    CHECK(s.engine.api == 2ms);
    CHECK(s.step_time.name == "constant");
    CHECK(s.step_time.params.is_null());
    CHECK(s.workload.duration == 20min);
    CHECK(s.workload.rate_scale == 0.5);
    CHECK(s.workload.max_concurrency == 8);
    CHECK(s.workload.trace.find("path")->scalar == "a.jsonl");
    CHECK(s.slo.e2e == 1min);
    CHECK(s.slo.queue == 1s);
    CHECK(s.measure.warmup_requests == 200);
    CHECK_FALSE(s.metrics.exact_percentiles);
    CHECK_FALSE(s.output.requests);
    CHECK_FALSE(s.output.timeline);
    CHECK(s.output.timeline_interval == 100ms);
    CHECK(read_text(workload + "measure: {warmup: 60s}").scenario.measure.warmup_time == 60s);
    CHECK(read_text(workload + "measure: {warmup: 1 request}").scenario.measure.warmup_requests == 1);
    const config::MeasureConfig all =
        read_text(workload + "measure: {warmup: 12.5%, cooldown: 3 requests, window: 500ms}").scenario.measure;
    CHECK(all.warmup_share == 0.125);
    CHECK_FALSE(all.warmup_auto);
    CHECK(all.cooldown_requests == 3);
    CHECK(all.window == 500ms);
    CHECK(read_text(workload + "measure: {warmup: auto}").scenario.measure.warmup_auto);
    CHECK(read_text(workload + "measure: {cooldown: 0 %}").scenario.measure.cooldown_share == 0);
    CHECK(read_text(workload + "measure: {cooldown: 5s}").scenario.measure.cooldown_time == 5s);
    CHECK(read_text(workload + "engine: {kv_cache_memory_bytes: 12.3GiB}").scenario.engine.kv_cache_memory_bytes ==
          Bytes(13'207'024'435));
}

TEST_CASE("all errors of a file come in one pass, with place, line, caret and the nearest name") {
    const Reading reading = read_text(R"(name: ../x
engine:
  max_num_seqs: 0
  block_size: 010
  max_num_seqs: 64
  requeue: frnt
  max_num_batched_token: 1
hardware: {gpu: H100, replicas: '2'}
slo: {ttft: 10, tpot: -5ms}
workload: {requests: 1e3, arrivals: x, prompt_tokens: 1}
step_tme: constant
)");
    CHECK(reading.complaints ==
          R"(t.yaml:1:7: error: name becomes a folder: use letters, digits, '.', '_' and '-', not a leading '.', at most 200
name: ../x
      ^
t.yaml:3:17: error: max_num_seqs must be at least 1, got 0
  max_num_seqs: 0
                ^
t.yaml:4:15: error: block_size has a leading zero, which YAML may read as octal; write 10
  block_size: 010
              ^
t.yaml:5:3: error: duplicate key 'max_num_seqs'; it first stands at line 3, column 3
  max_num_seqs: 64
  ^
t.yaml:6:12: error: unknown requeue 'frnt'; did you mean 'front'?
  requeue: frnt
           ^
t.yaml:7:3: error: unknown key 'max_num_batched_token' in engine; did you mean 'max_num_batched_tokens'?
  max_num_batched_token: 1
  ^
t.yaml:8:33: error: replicas must be an integer, got text; remove the quotes around '2'
hardware: {gpu: H100, replicas: '2'}
                                ^
t.yaml:9:13: error: ttft needs a unit: write `10s`
slo: {ttft: 10, tpot: -5ms}
            ^
t.yaml:9:23: error: tpot must be greater than 0, got -5ms
slo: {ttft: 10, tpot: -5ms}
                      ^
t.yaml:10:11: error: workload lacks 'output_tokens' (or a trace)
workload: {requests: 1e3, arrivals: x, prompt_tokens: 1}
          ^
t.yaml:10:22: error: requests must be an integer, got 1e3; write 1000
workload: {requests: 1e3, arrivals: x, prompt_tokens: 1}
                     ^
t.yaml:11:1: error: unknown key 'step_tme' in the scenario; did you mean 'step_time'?
step_tme: constant
^)");
}

TEST_CASE("the root must be a map with a workload") {
    CHECK(read_text("hello\n").complaints ==
          "t.yaml:1:1: error: the scenario must be a map of keys, got a single value\nhello\n^");
    CHECK(read_text("[1]\n").complaints == "t.yaml:1:1: error: the scenario must be a map of keys, got a list\n[1]\n^");
    CHECK(read_text("seed: 1\n").complaints ==
          "t.yaml:1:1: error: the scenario lacks the key 'workload' (map: what the clients send)\nseed: 1\n^");
    CHECK(read_text(",").complaints == "t.yaml:1:1: error: unexpected text after the end of the document\n,\n^");
    CHECK(read_text("").complaints == "t.yaml: error: nothing in it but blanks and comments");
}

TEST_CASE("ranges are checked where they are written") {
    const std::vector<std::pair<std::string, std::string>> table{
        {"seed: -1", "seed must be at least 0, got -1"},
        {"seed: 9223372036854775808", "seed does not fit 64 bits"},
        {"hardware: {tensor_parallel_size: 0}", "tensor_parallel_size must be at least 1, got 0"},
        {"hardware: {tensor_parallel_size: 1025}", "tensor_parallel_size must be at most 1024, got 1025"},
        {"hardware: {replicas: 65536}", "replicas must be at most 65535, got 65536"},
        {"engine: {max_num_seqs: 1000001}", "max_num_seqs must be at most 1000000, got 1000001"},
        {"engine: {max_model_len: 0}", "max_model_len must be at least 1, got 0"},
        {"engine: {block_size: -16}", "block_size must be at least 1, got -16"},
        {"engine: {gpu_memory_utilization: 0}", "gpu_memory_utilization must be greater than 0, got 0"},
        {"engine: {gpu_memory_utilization: 1.5}", "gpu_memory_utilization must be at most 1, got 1.5"},
        {"engine: {gpu_memory_utilization: .nan}", "gpu_memory_utilization must be a finite number, got .nan"},
        {"engine: {kv_cache_memory_bytes: 0}", "kv_cache_memory_bytes must be greater than 0, got 0"},
        {"engine: {num_gpu_blocks_override: 0}", "num_gpu_blocks_override must be at least 2, got 0"},
        {"engine: {long_prefill_token_threshold: -1}", "long_prefill_token_threshold must be at least 0, got -1"},
        {"engine: {watermark: 1}", "watermark must be less than 1, got 1"},
        {"engine: {api: -1ms}", "api must be at least 0, got -1ms"},
        {"engine: {enable_prefix_caching: yes}", "must be true or false, got yes; write true"},
        {"engine: {kv_cache_dtype: fp9}", "unknown kv_cache_dtype 'fp9'; did you mean 'fp8'?"},
        {"engine: {dtype: int8}", "unknown dtype 'int8'"},
        {"engine: {preset: [a]}", "preset must be text, got a list"},
        {"slo: {ttft: 0s}", "ttft must be greater than 0, got 0s"},
        {"output: {timeline_interval: 0s}", "timeline_interval must be greater than 0, got 0s"},
        {"metrics: {percentiles: p2}", "unknown percentiles 'p2'"},
        {"name: .hidden", "name becomes a folder"},
        {"name: a/b", "name becomes a folder"},
        {"name: ''", "name must not be empty"},
        {"model:", "model has no value"},
    };
    for (const auto& row : table) {
        const std::string& section = row.first;
        const std::string& message = row.second;
        const std::string said = section_complaints(section);
        CHECK_MESSAGE(contains(said, message), section << " -> " << said);
        CHECK_MESSAGE(said.starts_with("t.yaml:2:"), said);
    }
    CHECK(contains(workload_complaints("{requests: 0, trace: x}"), "requests must be at least 1, got 0"));
    CHECK(contains(workload_complaints("{requests: 1000000001, trace: x}"), "requests must be at most 1000000000"));
    CHECK(contains(workload_complaints("{duration: 0s, trace: x}"), "duration must be greater than 0"));
    CHECK(contains(workload_complaints("{rate_scale: 0, trace: x}"), "rate_scale must be greater than 0"));
    CHECK(contains(workload_complaints("{rate_scale: inf, trace: x}"), "rate_scale must be a finite number"));
    CHECK(workload_complaints("{requests: 5, max_concurrency: 2, prompt_tokens: 1, output_tokens: 1}").empty());
    CHECK(contains(workload_complaints("{max_concurrency: 0, trace: x}"), "max_concurrency must be at least 1"));
}

TEST_CASE("what this version lacks is an error, never ignored") {
    for (const std::string key : {"speculative_config", "cpu_offload_gb"}) {
        CHECK(section_complaints("engine: {" + key + ": x}")
                  .starts_with("t.yaml:2:10: error: engine." + key + " is not supported by this version\n"));
    }
    CHECK(contains(section_complaints("engine: {tensor_parallel_size: 2}"),
                   "engine.tensor_parallel_size belongs under hardware"));
    CHECK(contains(section_complaints("measure: {warmup: 100%}"), "warmup must be "));
    CHECK(contains(section_complaints("measure: {warmup: -1%}"), "warmup must be "));
    CHECK(contains(section_complaints("measure: {cooldown: auto}"), "cooldown must be none, a duration"));
    CHECK(contains(section_complaints("measure: {window: 0s}"), "window must be greater than 0, got 0s"));
    CHECK(contains(section_complaints("measure: {window: 30}"), "window needs a unit: write `30s`"));
    CHECK(contains(section_complaints("measure: {warmup: some}"), "warmup must be none, a duration"));
    CHECK(contains(section_complaints("measure: {warmup: 200}"), "warmup needs a unit: write `200s`"));
    CHECK(contains(section_complaints("measure: {warmup: 1.5 requests}"), "warmup must be an integer, got 1.5"));
    CHECK(contains(workload_complaints("{classes: []}"), "classes must be a list of maps, each with a name"));
}

TEST_CASE("keys vLLM has dropped warn and change nothing") {
    const Reading reading =
        read_text(workload + "engine:\n  swap_space: 4\n  max_num_partial_prefills: 1\n  max_long_partial_prefills: 1\n");
    CHECK(reading.complaints.empty());
    REQUIRE(reading.warnings.size() == 3);
    CHECK(reading.warnings[0] ==
          "t.yaml:3:3: warning: swap_space has no effect: vLLM removed it on 2026-03-07; preemption recomputes\n"
          "  swap_space: 4\n  ^");
}

TEST_CASE("rules across keys") {
    CHECK(contains(section_complaints("engine: {num_gpu_blocks_override: 5, kv_cache_memory_bytes: 1GiB}"),
                   "t.yaml:2:38: error: num_gpu_blocks_override and kv_cache_memory_bytes both fix the KV size; keep one"));
    CHECK(workload_complaints("{trace: {path: a}}").empty());
    CHECK(workload_complaints("{trace: {path: a}, arrivals: x}").empty());
    CHECK(contains(workload_complaints("{trace: {path: a}, output_tokens: 5}"),
                   "t.yaml:1:30: error: output_tokens cannot stand beside trace, which already gives it"));
    CHECK(contains(workload_complaints("{trace: {path: a}, prefix: x}"), "prefix cannot stand beside trace"));
    CHECK(contains(workload_complaints("{}"), "workload lacks 'arrivals', 'prompt_tokens', 'output_tokens' (or a trace)"));
    CHECK(contains(workload_complaints("{}"), "workload needs an end: give 'requests', 'duration' or both"));
    CHECK(contains(workload_complaints("5"), "workload must be a map of keys, got a single value"));
}

TEST_CASE("choices are a name or a map that names") {
    const Scenario s = read_text(workload + "router: {policy: power_of_two}\nstep_time: {model: affine, c0: 1ms}\n").scenario;
    CHECK(s.router.name == "power_of_two");
    CHECK(s.step_time.params.find("c0")->scalar == "1ms");
    CHECK(read_text(workload).scenario.step_time.name.empty());
    CHECK(contains(section_complaints("router: {polcy: x}"),
                   "t.yaml:2:10: error: router lacks the key 'policy'; is 'polcy' meant?"));
    CHECK(contains(section_complaints("router: {}"), "t.yaml:2:9: error: router lacks the key 'policy'"));
    CHECK(contains(section_complaints("router: [a]"), "router must be a name or a map with the key 'policy'"));
    CHECK(contains(section_complaints("router: {policy: [a]}"), "router.policy must be text, got a list"));
}

TEST_CASE("the default name is the file's stem, made a folder name") {
    CHECK(read_text(workload, "dir/chat.v2.yaml").scenario.name == "chat.v2");
    CHECK(read_text(workload, "my chat (1).yaml").scenario.name == "my_chat__1_");
    CHECK(read_text(workload, ".yaml").scenario.name == "_yaml");
    CHECK(read_text(workload, "").scenario.name == "scenario");
}

TEST_CASE("equal runs have equal hashes, others have not") {
    const auto hash = [](const std::string& text) { return read_text(text).scenario.hash; };
    const std::string base = hash(workload + "seed: 1\nslo: {ttft: 1s, tpot: 2s}\n");
    CHECK(base.size() == 16);
    CHECK(base ==
          hash("# note\nslo:\n  tpot: '2s'\n  ttft: 1s\nseed: 1\n" + workload + "name: other\noutput: {requests: false}\n"));
    CHECK(base != hash(workload + "seed: 2\nslo: {ttft: 1s, tpot: 2s}\n"));
    CHECK(base != hash(workload + "seed: 1\nslo: {ttft: 2s, tpot: 1s}\n"));
    CHECK(hash("model: {name: a}\n") != hash("model: {name: b}\n"));  // only the top level's name is left out
    CHECK(hash("a: [[b], c]\n") != hash("a: [b, [c]]\n"));
    // FNV-1a of {4:seeds1:1}. Pinned: results of earlier versions stay comparable.
    CHECK(hash("seed: 1\n") == "623ccd3018c4ebaf");
}

TEST_CASE("--set overlays count: values, errors and hash") {
    Diagnostics diagnostics;
    Value root = parse_yaml(long_context, "t.yaml", diagnostics);
    const std::string before = read_scenario(root, "t.yaml", diagnostics).hash;
    apply_set(root, "engine.max_num_seqs=64", diagnostics);
    apply_set(root, "output.requests=false", diagnostics);
    const Scenario s = read_scenario(root, "t.yaml", diagnostics);
    REQUIRE(complaints(diagnostics).empty());
    CHECK(s.engine.max_num_seqs == 64);
    CHECK_FALSE(s.output.requests);
    CHECK(s.hash != before);
    apply_set(root, "engine.max_num_seqs=0", diagnostics);
    read_scenario(root, "t.yaml", diagnostics);
    CHECK(complaints(diagnostics) ==
          "--set engine.max_num_seqs=0:1:21: error: max_num_seqs must be at least 1, got 0\nengine.max_num_seqs=0\n" +
              std::string(20, ' ') + "^");
}

TEST_CASE("engine: of vLLM's and SGLang's name of one thing the later holds, and the other is told to have no effect") {
    const Reading vllm_last = read_text(workload + "engine: {preset: sglang, page_size: 1, block_size: 32}\n");
    CHECK(vllm_last.complaints.empty());
    CHECK(vllm_last.scenario.engine.block_size == 32);
    REQUIRE(vllm_last.warnings.size() == 1);
    CHECK(vllm_last.warnings[0].find("page_size has no effect") != std::string::npos);
    const Reading sglang_last =
        read_text(workload + "engine: {preset: sglang, enable_prefix_caching: true, disable_radix_cache: true}\n");
    CHECK(sglang_last.complaints.empty());
    CHECK(sglang_last.scenario.engine.enable_prefix_caching == false);
}

TEST_CASE("engine.swap_bandwidth_gb_s: nothing so slow that a step would outlast simulated time") {
    CHECK(section_complaints("engine: {preset: vllm-v0, swap_bandwidth_gb_s: 1e-300}\n").find("at least 0.001") !=
          std::string::npos);
    CHECK(section_complaints("engine: {preset: vllm-v0, swap_bandwidth_gb_s: 0.001}\n").empty());
}
