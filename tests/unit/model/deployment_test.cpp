#include <algorithm>
#include <chrono>

#include "model_fixture.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

Deployment resolve(const std::string& text, config::Diagnostics& diagnostics) {
    const config::Scenario scenario = config::read_scenario(
        yaml(text +
             "\nworkload: {requests: 1, arrivals: {process: poisson, rate: 1/s}, prompt_tokens: 10, output_tokens: 10}\n"),
        "folder/test.yaml", diagnostics);
    if (!diagnostics.ok()) return {};
    return resolve_deployment(scenario, catalog(), diagnostics);
}

Deployment resolve(const std::string& text) {
    config::Diagnostics diagnostics;
    Deployment d = resolve(text, diagnostics);
    for (const std::string& error : diagnostics.errors()) FAIL_CHECK(error);
    return d;
}

std::string refusal(const std::string& text) {
    config::Diagnostics diagnostics;
    static_cast<void>(resolve(text, diagnostics));
    REQUIRE(diagnostics.errors().size() == 1);
    return diagnostics.errors()[0];
}

bool has(const std::vector<std::string>& list, const std::string& text) {
    return std::find(list.begin(), list.end(), text) != list.end();
}

const std::string llama_h100 = "model: meta-llama/Llama-3.1-8B-Instruct\nhardware: {gpu: H100-SXM-80GB}\n";

}  // namespace

TEST_CASE("vllm-v1 defaults on a large GPU, and on an A100 or a small one") {
    const Deployment d = resolve(llama_h100);
    CHECK(d.engine.preset == "vllm-v1");
    CHECK(d.engine.max_num_seqs == 1024);
    CHECK(d.engine.max_num_batched_tokens == 8192);
    CHECK(d.engine.max_model_len == 131072);
    CHECK(d.engine.block_size == 16);
    CHECK(d.engine.enable_prefix_caching);
    CHECK(d.engine.enable_chunked_prefill);
    CHECK(d.engine.async_scheduling);
    CHECK(d.engine.scheduler_reserve_full_isl);
    CHECK(d.engine.watermark == 0);
    CHECK(d.gpu_memory_utilization == 0.92);
    CHECK(d.engine.num_gpu_blocks == d.budget.num_gpu_blocks);
    CHECK(d.deviations.empty());
    CHECK(d.warnings.empty());
    CHECK_FALSE(d.api.has_value());
    CHECK(d.base == "folder");
    for (const char* card : {"A100", "L40S"}) {
        const Deployment small =
            resolve("model: Llama-3.1-8B\nhardware: {gpu: " + std::string(card) + "}\nengine: {max_model_len: 8192}");
        CHECK(small.engine.max_num_seqs == 256);
        CHECK(small.engine.max_num_batched_tokens == 2048);
    }
}

TEST_CASE("vllm-v1-2026-01 differs in utilisation and full-ISL reservation") {
    const Deployment d = resolve(llama_h100 + "engine: {preset: vllm-v1-2026-01}");
    CHECK(d.gpu_memory_utilization == 0.90);
    CHECK_FALSE(d.engine.scheduler_reserve_full_isl);
    CHECK(d.engine.max_num_seqs == 1024);
    CHECK(d.deviations.empty());
}

TEST_CASE("explicit keys win and are written down, unless they say what the preset says") {
    const Deployment d =
        resolve(llama_h100 +
                "engine: {max_num_seqs: 64, max_num_batched_tokens: 8192, block_size: 32, watermark: 0.05, "
                "async_scheduling: false, kv_cache_dtype: fp8, scheduling_policy: priority, max_model_len: 4096, api: 3ms}");
    CHECK(d.engine.max_num_seqs == 64);
    CHECK(has(d.deviations, "max_num_seqs=64 (vllm-v1: 1024)"));
    CHECK(has(d.deviations, "block_size=32 (vllm-v1: 16)"));
    CHECK(has(d.deviations, "watermark=0.05 (vllm-v1: 0)"));
    CHECK(has(d.deviations, "async_scheduling=false (vllm-v1: true)"));
    CHECK(has(d.deviations, "scheduling_policy=priority (vllm-v1: fcfs)"));
    CHECK(has(d.deviations, "max_model_len=4096 (vllm-v1: 131072)"));
    CHECK(d.deviations.size() == 7);
    CHECK(d.engine.scheduling_policy == QueueOrder::priority);
    CHECK(d.budget.kv_bytes_per_token == 65536);
    CHECK(d.kv_element_bytes == 1);
    CHECK(d.api == std::chrono::milliseconds(3));
}

TEST_CASE("batch limits that depend on each other") {
    // A default token budget never exceeds what the seats can hold.
    CHECK(resolve(llama_h100 + "engine: {max_num_seqs: 2, max_model_len: 1000}").engine.max_num_batched_tokens == 2000);
    // Without chunked prefill a whole prompt must fit.
    CHECK(resolve(llama_h100 + "engine: {enable_chunked_prefill: false}").engine.max_num_batched_tokens == 131072);
    CHECK(refusal(llama_h100 + "engine: {enable_chunked_prefill: false, max_num_batched_tokens: 8192}")
              .find("at least max_model_len 131072") != std::string::npos);
    CHECK(refusal(llama_h100 + "engine: {max_num_seqs: 256, max_num_batched_tokens: 128}").find("refuses to start") !=
          std::string::npos);
    const Deployment lowered = resolve(llama_h100 + "engine: {max_num_batched_tokens: 512}");
    CHECK(lowered.engine.max_num_seqs == 512);
    CHECK(has(lowered.deviations, "max_num_seqs=512 (vllm-v1: 1024)"));
    REQUIRE(lowered.warnings.size() == 1);
    CHECK(lowered.warnings[0].find("lowered") != std::string::npos);
}

TEST_CASE("max_model_len: default, limit, and a pool that is too small") {
    CHECK(refusal(llama_h100 + "engine: {max_model_len: 200000}").find("131072") != std::string::npos);
    const Deployment d = resolve("model: Llama-3.1-8B\nhardware: {gpu: L40S}");
    REQUIRE(d.warnings.empty());
    const Deployment small = resolve("model: Llama-3.1-8B\nhardware: {gpu: RTX-4090}");
    REQUIRE(small.warnings.size() == 1);
    CHECK(small.warnings[0].find("max_model_len 131072 is larger than the " + std::to_string(small.budget.tokens)) !=
          std::string::npos);
}

TEST_CASE("an engine without model or GPU needs its blocks and max_model_len") {
    const Deployment d = resolve("engine: {num_gpu_blocks_override: 1000, max_model_len: 2048}");
    CHECK(d.engine.num_gpu_blocks == 1000);
    CHECK(d.engine.max_num_seqs == 256);
    CHECK(d.model_name.empty());
    CHECK(d.gpu_memory_utilization == 0);
    CHECK(refusal("engine: {num_gpu_blocks_override: 1000}").find("max_model_len") != std::string::npos);
    CHECK(refusal("engine: {max_model_len: 1000}").find("needs `model`") != std::string::npos);
    CHECK(refusal("model: Llama-3.1-8B").find("hardware.gpu") != std::string::npos);
    CHECK(resolve("model: Llama-3.1-8B\nengine: {kv_cache_memory_bytes: 12GiB}").budget.tokens == 98304);

    config::Diagnostics diagnostics;
    CHECK(make_step_time({}, d, diagnostics) == nullptr);
    REQUIRE(diagnostics.errors().size() == 1);
    CHECK(diagnostics.errors()[0].find("without model and hardware.gpu") != std::string::npos);
}

TEST_CASE("presets: nearest name") {
    CHECK(refusal("engine: {preset: vllm-v2}").find("vllm-v1") != std::string::npos);
}

TEST_CASE("presets modelled from documentation: what they set, and that they say so") {
    for (const Preset& preset : presets()) {
        CAPTURE(preset.name);
        const Deployment d = resolve(llama_h100 + "engine: {preset: " + std::string(preset.name) + "}");
        CHECK(d.engine.batching == preset.batching);
        CHECK(d.deviations.empty());
        CHECK(d.modelled_from == (preset.recorded ? "" : preset.source));
        CHECK(d.engine.num_gpu_blocks > 1000);
    }
    const Deployment sarathi = resolve(llama_h100 + "engine: {preset: sarathi}");
    CHECK(sarathi.engine.max_num_batched_tokens == 512);
    CHECK(sarathi.engine.max_num_seqs == 128);
    CHECK(sarathi.engine.policy.admission.name == "full-input");
    CHECK(sarathi.engine.watermark == 0.01);
    CHECK(!sarathi.engine.enable_prefix_caching);
    const Deployment trt = resolve(llama_h100 + "engine: {preset: trtllm-no-evict, max_new_tokens: 512}");
    CHECK(trt.engine.block_size == 32);
    CHECK(trt.engine.policy.preemption == PolicyArgs::Preemption::none);
    CHECK(trt.engine.longest_final(100, 5) == 100 + 512 - 1);
    CHECK(has(trt.deviations, "max_new_tokens=512 (trtllm-no-evict: 0)"));
    CHECK(resolve(llama_h100 + "engine: {preset: lightllm}").engine.block_size == 1);
    // A recorded preset with another piece is none any more.
    const Deployment mixed = resolve(llama_h100 + "engine: {batching: decode-first}");
    CHECK(mixed.modelled_from.find("decode-first") != std::string::npos);
    CHECK(has(mixed.deviations, "batching=decode-first (vllm-v1: vllm-v1)"));
    const Deployment ruled = resolve(llama_h100 + "engine: {admission: expected}");
    CHECK(!ruled.modelled_from.empty());
    CHECK(has(ruled.deviations, "admission=expected (vllm-v1: its own)"));
    CHECK(resolve(llama_h100 + "engine: {scheduling_policy: priority}").modelled_from.empty());
}

TEST_CASE("batching static and iteration take whole prompts, one step after the other") {
    for (const std::string style : {"static", "iteration"}) {
        CAPTURE(style);
        const std::string head = llama_h100 + "engine: {batching: " + style;
        const Deployment d = resolve(head + "}");
        CHECK(!d.engine.async_scheduling);
        CHECK(!d.engine.enable_chunked_prefill);
        CHECK(has(d.deviations, "async_scheduling=false (vllm-v1: true)"));
        CHECK(refusal(head + ", async_scheduling: true}").find("goes without async_scheduling") != std::string::npos);
        CHECK(refusal(head + ", enable_chunked_prefill: true}").find("whole prompts") != std::string::npos);
        const Deployment small = resolve(head + ", max_num_batched_tokens: 64}");
        REQUIRE(small.warnings.size() == 1);
        CHECK(small.warnings[0].find("no token budget") != std::string::npos);
        CHECK(refusal("model: google/gemma-3-27b-it\nhardware: {gpu: H100}\nengine: {max_model_len: 8192, batching: " + style +
                      "}")
                  .find("token budget") != std::string::npos);
    }
    CHECK(!resolve("model: google/gemma-3-27b-it\nhardware: {gpu: H100}\nengine: {max_model_len: 8192, batching: no-evict}")
               .engine.kv_groups.empty());
}

TEST_CASE("what makes no sense together is refused with the reason") {
    CHECK(refusal(llama_h100 + "engine: {preemption: none}").find("guarantees room") != std::string::npos);
    CHECK(refusal(llama_h100 + "engine: {preset: trtllm-no-evict, batching: decode-first}").find("guarantees room") !=
          std::string::npos);
    CHECK(resolve(llama_h100 + "engine: {preemption: none, admission: expected}").engine.policy.preemption ==
          PolicyArgs::Preemption::none);
    CHECK(refusal(llama_h100 + "engine: {batching: vllm-v0, admission: expected}").find("decides this itself") !=
          std::string::npos);
    CHECK(refusal(llama_h100 + "engine: {admission: {policy: expected, share: 2}}").find("share") != std::string::npos);
    const Deployment shared = resolve(llama_h100 + "engine: {batching: no-evict, context_chunking: equal_progress}");
    CHECK(shared.engine.policy.equal_progress);
    CHECK(has(shared.deviations, "context_chunking=equal_progress (vllm-v1: first_come_first_served)"));
    CHECK(refusal(llama_h100 + "engine: {batching: iteration, context_chunking: equal_progress}").find("no-evict") !=
          std::string::npos);
    CHECK(resolve(llama_h100 + "engine: {batching: past-future, router_max_wait_tokens: 2}").engine.policy.decodes_between ==
          2);
    CHECK(refusal(llama_h100 + "engine: {router_max_wait_tokens: 2}").find("past-future") != std::string::npos);
    CHECK(refusal(llama_h100 + "engine: {admission: expectd}").find("did you mean 'expected'") != std::string::npos);
    CHECK(refusal(llama_h100 + "engine: {preemption: swp}").find("did you mean 'swap'") != std::string::npos);
    // What is wrong with a piece of the preset stands where the preset is named.
    const std::string of_preset = refusal(llama_h100 + "engine: {preset: fastserve, batching: static}");
    CAPTURE(of_preset);
    CHECK(of_preset.find(":18: error: mlfq: ") != std::string::npos);
}

TEST_CASE("quantization and dtype change the stored weights") {
    const auto weights = [](const std::string& engine) {
        return *resolve("model: Llama-3.1-8B\nhardware: {gpu: H100}\nengine: " + engine).budget.weights_bytes;
    };
    CHECK(weights("{quantization: fp8}") < 0.6 * static_cast<double>(weights("{dtype: auto}")));
    CHECK(weights("{dtype: float32}") == 2 * weights("{dtype: bfloat16}"));
    CHECK(refusal(llama_h100 + "engine: {quantization: aqlm}").find("aqlm") != std::string::npos);
    CHECK(refusal(llama_h100 + "engine: {dtype: fp4}").find("fp4") != std::string::npos);
}

TEST_CASE("every data-parallel rank and every replica is an engine of its own") {
    const Deployment d =
        resolve("model: Llama-3.1-8B\nhardware: {gpu: H100, tensor_parallel_size: 2, data_parallel_size: 3, replicas: 4}");
    CHECK(d.engine_replicas() == 12);
    CHECK(d.budget.kv_bytes_per_token == 65536);
    CHECK(refusal("model: Llama-3.1-8B\nhardware: {gpu: H100, tensor_parallel_size: 3}").find("does not divide") !=
          std::string::npos);
}

TEST_CASE("several unknown names are reported in one pass") {
    config::Diagnostics diagnostics;
    static_cast<void>(resolve("model: Llama-9\nhardware: {gpu: H900}\nengine: {preset: vlm-v1}", diagnostics));
    CHECK(diagnostics.errors().size() == 3);
}
