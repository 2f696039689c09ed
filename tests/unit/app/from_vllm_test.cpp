#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "cli.hpp"

using namespace kvsim::test;
using nlohmann::json;

namespace {

Finished from(const std::string& command, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words{"from-vllm", command};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
}

bool has(const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("from-vllm: flags in every spelling become the scenario's keys") {
    const Finished done = from(
        "HF_HOME=/x vllm serve \"meta-llama/Llama-3.1-8B-Instruct\" -tp 2 --max_model_len 16k --max-num-seqs=64 \\\n"
        "  --max-num-batched-tokens 4K --gpu-memory-utilization 0.85 --no-enable-prefix-caching --enforce-eager "
        "--kv-cache-dtype fp8 --scheduling-policy priority --port 8000 --served-model-name chat "
        "--speculative-config '{\"method\": \"eagle\", \"num_speculative_tokens\": 3}'",
        {"--gpu", "H100"});
    CAPTURE(done.err);
    REQUIRE(done.exit == 0);
    for (const char* line :
         {"model: meta-llama/Llama-3.1-8B-Instruct", "tensor_parallel_size: 2", "gpu: H100", "max_model_len: 16000",
          "max_num_seqs: 64", "max_num_batched_tokens: 4096", "gpu_memory_utilization: 0.85", "enable_prefix_caching: false",
          "enforce_eager: true", "kv_cache_dtype: fp8", "scheduling_policy: priority", "num_speculative_tokens: 3",
          "draft_layers: 1"}) {
        CHECK_MESSAGE(has(done.out, line), line);
    }
    CHECK_FALSE(has(done.out, "port:"));
    const TemporaryFolder folder;
    const std::string file = folder.write("s.yaml", done.out).string();
    CHECK(run_program({"check", file}).exit == 0);
}

TEST_CASE("from-vllm: the start-up log's figures replace the estimates") {
    const TemporaryFolder folder;
    // vLLM 0.6.4 on an RTX 3090.
    const std::string v0 = folder
                               .write("v0.log",
                                      "INFO api_server.py] vLLM API server version 0.6.4\n"
                                      "INFO Loading model weights took 14.9888 GB\n"
                                      "INFO worker.py] the current vLLM instance can use total_gpu_memory (23.58GiB) x "
                                      "gpu_memory_utilization (0.90) = 21.22GiB\n"
                                      "INFO worker.py] model weights take 14.99GiB; non_torch_memory takes 0.35GiB; PyTorch "
                                      "activation peak memory takes 2.07GiB; the rest of the memory reserved for KV Cache is "
                                      "3.81GiB.\n"
                                      "INFO # GPU blocks: 1952, # CPU blocks: 2048\n"
                                      "INFO # GPU blocks: 1951, # CPU blocks: 2048\n")
                               .string();
    Finished done = from("vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 20000", {"--log", v0});
    CAPTURE(done.err);
    REQUIRE(done.exit == 0);
    CHECK(has(done.out, "num_gpu_blocks_override: 1951"));  // one line a rank: the least
    CHECK(has(done.out, "weights_memory_bytes: 14.99GiB"));
    CHECK(has(done.out, "activation_memory_bytes: 2.07GiB"));
    CHECK(has(done.out, "non_torch_memory_bytes: 0.35GiB"));
    CHECK(has(done.out, "version: vllm-0.6.4"));
    // V1 prints tokens.
    const std::string v1 = folder
                               .write("v1.log",
                                      "INFO Initializing a V1 LLM engine (v0.11.0) with config: max_seq_len=16000\n"
                                      "INFO Model loading took 14.9889 GiB and 5.2 seconds\n"
                                      "INFO Available KV cache memory: 51.38 GiB\n"
                                      "INFO GPU KV cache size: 420,864 tokens\n")
                               .string();
    done = from("vllm serve meta-llama/Llama-3.1-8B-Instruct --block-size 128", {"--log", v1});
    REQUIRE(done.exit == 0);
    CHECK(has(done.out, "num_gpu_blocks_override: 3288"));
    CHECK(has(done.out, "max_model_len: 16000"));
    // The tokens of several tables do not tell the blocks: the bytes do.
    done = from("vllm serve google/gemma-3-27b-it", {"--log", v1});
    REQUIRE(done.exit == 0);
    CHECK(has(done.out, "kv_cache_memory_bytes: 51.38GiB"));
    CHECK_FALSE(has(done.out, "num_gpu_blocks_override"));
    // A log with nothing in it is said to have nothing in it.
    done = from("vllm serve meta-llama/Llama-3.1-8B-Instruct", {"--log", folder.write("none.log", "hello\n").string()});
    CHECK(done.exit == 0);
    CHECK(has(done.err, "prints no blocks"));
}

TEST_CASE("from-vllm: what is not a command line is refused") {
    for (const char* command :
         {"", "sglang", "vllm", "vllm bench", "vllm serve", "vllm serve nosuch/model", "vllm serve 'x",
          "vllm serve Llama-3.1-8B --max-num-seqs x", "vllm serve Llama-3.1-8B --max-num-seqs",
          "vllm serve Llama-3.1-8B --max-num-seqs 1.5", "vllm serve Llama-3.1-8B --block-size 1k",
          "vllm serve Llama-3.1-8B --kv-cache-dtype nothing", "vllm serve Llama-3.1-8B second", "python x.py",
          "vllm serve Llama-3.1-8B --speculative-config {", "vllm serve Llama-3.1-8B --enforce-eager=3"}) {
        const Finished done = from(command);
        CHECK_MESSAGE(done.exit == 2, command);
        CHECK_MESSAGE(done.out.empty(), command);
    }
    CHECK(from("vllm serve meta-llama/Llama-3.1-8B -tp 3", {"--gpu", "H100"}).exit == 2);
    CHECK(from("vllm serve meta-llama/Llama-3.1-8B", {"--log", "/no/such.log"}).exit == 2);
    const Finished odd = from("vllm serve meta-llama/Llama-3.1-8B --max-num-seq 3");
    CHECK(odd.exit == 0);
    CHECK(has(odd.err, "did you mean --max-num-seqs"));
    CHECK(has(odd.err, "name the GPU"));
}

TEST_CASE("from-vllm: launchers, container images and shell operators around the command") {
    for (const char* command : {"nohup vllm serve Qwen/Qwen3-8B --max-num-seqs 64 > server.log 2>&1 &",
                                "sudo -E uv run vllm serve Qwen/Qwen3-8B --max-num-seqs 64 | tee server.log",
                                "A=1 B=2 /opt/env/bin/vllm serve Qwen/Qwen3-8B --max-num-seqs=64 && echo done",
                                "CUDA_VISIBLE_DEVICES=0 python3 -u -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-8B "
                                "--max-num-seqs 64",
                                "docker run --gpus all -p 8000:8000 --ipc=host vllm/vllm-openai:latest --model Qwen/Qwen3-8B "
                                "--max-num-seqs 64",
                                "docker run --rm vllm/vllm-openai:v0.11.0 Qwen/Qwen3-8B --max-num-seqs 64",
                                "docker run --rm vllm/vllm-openai vllm serve Qwen/Qwen3-8B --max-num-seqs 64"}) {
        const Finished done = from(command, {"--gpu", "H100"});
        CAPTURE(command);
        CAPTURE(done.err);
        REQUIRE(done.exit == 0);
        CHECK(done.err.empty());
        CHECK(has(done.out, "\nmodel: Qwen/Qwen3-8B "));
        CHECK(has(done.out, "  max_num_seqs: 64 "));
        CHECK(has(done.out, "  version: vllm-0.11.0 ") == has(command, ":v0.11.0"));
    }
    CHECK(from("docker run --gpus all ollama/ollama").exit == 2);
    CHECK(has(from("vllm bench serve --model x").err, "vllm serve MODEL"));
    const Finished automatic = from("vllm serve Qwen/Qwen3-8B --max-model-len auto", {"--gpu", "H100"});
    CHECK(automatic.exit == 0);
    CHECK_FALSE(has(automatic.out, "  max_model_len:"));
    CHECK(has(automatic.err, "the model's own length"));
}

TEST_CASE("from-vllm: a coloured log, its device and the smallest rank") {
    const TemporaryFolder folder;
    const auto log = [&](const char* text) { return folder.write("own.log", text).string(); };
    const std::string command = "vllm serve google/gemma-3-27b-it --max-model-len 32768";
    const Finished hybrid =
        from(command,
             {"--log", log("\x1b[1;36m(EngineCore pid=9)\x1b[0;0m INFO Initializing a V1 LLM engine (v0.11.2) with config\n"
                           "INFO Using configuration from E=128,N=768,device_name=NVIDIA_H100_80GB_HBM3.json for MoE layer.\n"
                           "INFO Model loading took \x1b[32m25.60\x1b[0m GiB and 12.1 seconds\n"
                           "INFO Available KV cache memory: 9.98 GiB\nINFO Available KV cache memory: 10.02 GiB\n")});
    CAPTURE(hybrid.err);
    REQUIRE(hybrid.exit == 0);
    for (const char* line :
         {"gpu: H100-80GB-HBM3 ", "weights_memory_bytes: 25.6GiB ", "kv_cache_memory_bytes: 9.98GiB ", "version: vllm-0.11.2 "})
        CHECK_MESSAGE(has(hybrid.out, line), line);
    // A card of another size is not guessed at.
    const Finished other = from(command, {"--log", log("device_name=NVIDIA_A100-PCIE-40GB.json\n# GPU blocks: 3000\n")});
    CHECK(other.exit == 0);
    CHECK_FALSE(has(other.out, "  gpu:"));

    // 10,000 blocks; 1,000 tokens take 63 of them: 0.21 prints floor(10,000 / 63 x 1,000).
    const std::string shorter = "vllm serve Qwen/Qwen3-8B --max-model-len 1000";
    CHECK(has(
        from(shorter, {"--gpu", "H100", "--log", log("vLLM API server version 0.22.0\nGPU KV cache size: 158,730 tokens\n")})
            .out,
        "num_gpu_blocks_override: 10000 "));
    CHECK(has(
        from(shorter, {"--gpu", "H100", "--log", log("vLLM API server version 0.11.0\nGPU KV cache size: 160,000 tokens\n")})
            .out,
        "num_gpu_blocks_override: 10000 "));
    // Two ranks share a context: their tokens are printed together.
    CHECK(has(from("vllm serve Qwen/Qwen3-8B -tp 16 -dcp 2",
                   {"--gpu", "H100", "--log", log("vLLM API server version 0.11.0\nGPU KV cache size: 320,000 tokens\n")})
                  .out,
              "num_gpu_blocks_override: 10000 "));
}
