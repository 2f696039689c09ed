#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cli.hpp"

using namespace kvsim::test;
using nlohmann::json;

namespace {

constexpr const char* llama = "meta-llama/Llama-3.1-8B-Instruct";  // 32 layers, 8 KV heads of 128, bf16: 128 KiB a token

Finished run_memory(const std::vector<std::string>& args, bool json_wanted) {
    std::vector<std::string> words{"memory"};
    for (const std::string& arg : args) words.push_back(arg);
    if (json_wanted) words.emplace_back("--format=json");
    return run_program(words);
}

json memory(const std::vector<std::string>& args) {
    const Finished done = run_memory(args, true);
    CAPTURE(done.err);
    REQUIRE(done.exit == 0);
    return json::parse(done.out);
}

int exit_of(const std::vector<std::string>& args) {
    const Finished done = run_memory(args, false);
    CHECK(done.err.empty() == (done.exit == 0));
    return done.exit;
}

}  // namespace

TEST_CASE("memory: KV bytes are enough, no GPU is needed") {
    const json got =
        memory({"--model", llama, "--kv-cache-memory-bytes", "4GiB", "--max-model-len", "4096", "--tokens", "1000"});
    CHECK(got["kv_bytes_per_token"] == 131072);
    CHECK(got["num_gpu_blocks"] == 2048);
    CHECK(got["tokens"] == 32768);
    CHECK(got["concurrency"] == 8.0);
    CHECK(got["requests"][0]["fit"] == 32);  // 63 blocks each
    CHECK(memory({"--model", llama, "--kv-cache-memory-bytes", "4294967296", "--max-model-len", "4096"})["num_gpu_blocks"] ==
          2048);
}

TEST_CASE("memory: from users to bytes") {
    const json got = memory({"--model", llama, "--users", "64", "--tokens", "8192"});
    CHECK(got["users_kv_bytes"] == 64LL * 8192 * 131072);  // 64 GiB
    CHECK(got["users_blocks"] == 64 * 512);
    CHECK(got["kv_bytes"].is_null());
    CHECK(memory({"--model", llama, "--users", "1", "--tokens", "17"})["users_blocks"] == 2);
    const json fits = memory({"--model", llama, "--users", "2", "--tokens", "4096", "--kv-cache-memory-bytes", "1GiB"});
    CHECK(fits["users_fit"] == true);
    CHECK(memory({"--model", llama, "--users", "3", "--tokens", "4096", "--kv-cache-memory-bytes", "1GiB"})["users_fit"] ==
          false);
}

TEST_CASE("memory: options replace a scenario's keys") {
    const TemporaryFolder folder;
    const std::string file = folder.write("s.yaml", small_scenario()).string();
    CHECK(memory({file})["num_gpu_blocks"] == 400);
    CHECK(memory({file, "--num-gpu-blocks", "500"})["num_gpu_blocks"] == 500);
}

TEST_CASE("memory: the table shows the derivation") {
    const Finished done = run_program({"memory", "--model", llama, "--gpu", "H100", "--tp", "2"});
    CAPTURE(done.err);
    CHECK(done.exit == 0);
    CHECK(done.out.find("weights") != std::string::npos);
    CHECK(done.out.find("blocks") != std::string::npos);
}

TEST_CASE("memory: what cannot be derived is refused") {
    CHECK(exit_of({"--model", llama}) == 2);
    CHECK(exit_of({"--model", "no-such-model", "--gpu", "H100"}) == 2);
    CHECK(exit_of({"--model", llama, "--gpu", "H1000"}) == 2);
    CHECK(exit_of({"--model", llama, "--gpu", "H100", "--tp", "3"}) == 2);
    CHECK(exit_of({"--model", llama, "--gpu", "H100", "--tp", "0"}) == 2);
    CHECK(exit_of({"--model", llama, "--gpu", "H100", "--gpu-memory-utilization", "0.1"}) == 2);
    CHECK(exit_of({"--model", llama, "--gpu", "H100", "--block-size", "-16"}) == 2);
    CHECK(exit_of({"--model", llama, "--users", "0", "--tokens", "10"}) == 2);
    CHECK(exit_of({"--model", llama, "--users", "1000000000000", "--tokens", "1000000000000"}) == 2);
    CHECK(exit_of({"--model", llama, "--kv-cache-memory-bytes", "4GiB", "--max-model-len", "4096", "--tokens", "0"}) == 2);
}

TEST_CASE("memory: the lesson's lengths, in one list or several") {
    const json got = memory({"--model", llama, "--kv-cache-memory-bytes", "12GiB", "--tokens", "1k,8k,32k"});
    CHECK(got["tokens"] == 98304);
    CHECK(got["requests"][0]["fit"] == 96);
    CHECK(got["requests"][1]["fit"] == 12);
    CHECK(got["requests"][2]["fit"] == 3);
    CHECK(memory({"--model", llama, "--kv-cache-memory-bytes", "12GiB", "--tokens", "1024", "--tokens", "8K"})["requests"]
              .size() == 2);
    // 40 layers of the same shape: 160 KiB a token, 20 GiB hold 131,072.
    CHECK(memory({"--model", "mistralai/Mistral-Nemo-Instruct-2407", "--kv-cache-memory-bytes", "20GiB"})["tokens"] == 131072);
    CHECK(exit_of({"--model", llama, "--kv-cache-memory-bytes", "12GiB", "--tokens", "1k,,2k"}) == 2);
    CHECK(exit_of({"--model", llama, "--kv-cache-memory-bytes", "12GiB", "--tokens", "8q"}) == 2);
}

TEST_CASE("memory: waste by block size and the grid") {
    const json got =
        memory({"--model", llama, "--kv-cache-memory-bytes", "12GiB", "--max-model-len", "8192", "--tokens", "1000"});
    std::map<int, double> waste;
    for (const json& row : got["waste"]) waste[row["block_size"]] = row["wasted_tokens_per_request"];
    CHECK(waste[1] == 0);
    CHECK(waste[16] == 8);    // 63 blocks of 16
    CHECK(waste[128] == 24);  // 8 of 128
    CHECK(waste[256] == 24);
    double fp8 = 0;
    for (const json& row : got["grid"]) {
        if (row["kv_cache_dtype"] == "fp8" && row["tensor_parallel_size"] == 2) fp8 = row["tokens"];
    }
    CHECK(fp8 == 4 * 98304);
    // A GPU the model does not fit on alone stays in the grid as such.
    const json large = memory({"--model", "meta-llama/Llama-3.1-70B", "--gpu", "H100", "--tp", "4"});
    CHECK(large["grid"][0]["fits"] == false);
    CHECK(large["grid"][2]["tokens"] == large["tokens"]);
}

TEST_CASE("memory: backwards with a GPU names the knobs that are enough") {
    const json got = memory({"--model", llama, "--gpu", "H100", "--users", "100", "--tokens", "8k"});
    CHECK(got["users_kv_bytes"] == 100LL * 8192 * 131072);
    CHECK(got["users_fit"] == false);
    CHECK(got["smallest_tensor_parallel_size"] == 2);
    const std::int64_t longest = got["longest_tokens"];
    // 100 requests of that length fit, of one block more they do not.
    const auto fit = [&](std::int64_t tokens) {
        return memory({"--model", llama, "--gpu", "H100", "--tokens", std::to_string(tokens)})["requests"][0]["fit"]
            .get<std::int64_t>();
    };
    CHECK(fit(longest) >= 100);
    CHECK(fit(longest + 1) < 100);
    bool enough = false;
    for (const json& knob : got["knobs"]) {
        if (knob["knob"] == "kv_cache_dtype fp8") enough = knob["enough"];
    }
    CHECK(enough);
    // One GPU does not hold this model: what the users need is still answered.
    const json large = memory({"--model", "meta-llama/Llama-3.1-70B", "--gpu", "H100", "--users", "10", "--tokens", "8k"});
    CHECK(large["tensor_parallel_size"] == 2);
    CHECK(large["users_fit"] == false);
    CHECK(large["smallest_tensor_parallel_size"] == 4);
    CHECK(large["gpus"] == 4);
    CHECK(exit_of({"--model", "meta-llama/Llama-3.1-70B", "--gpu", "H100", "--tp", "1", "--users", "10", "--tokens", "8k"}) ==
          2);
    // Every flag reaches the arithmetic.
    const auto bytes = [](const std::string& flag, const char* model) {
        std::vector<std::string> words{"--model", model, "--gpu", "H200", "--tp", "8"};
        if (!flag.empty()) words.push_back(flag);
        return memory(words);
    };
    CHECK(bytes("--enable-expert-parallel", "DeepSeek-R1")["weights_bytes"] == bytes("", "DeepSeek-R1")["weights_bytes"]);
    CHECK(bytes("--enforce-eager", "DeepSeek-R1")["cuda_graph_bytes"] == 0);
    CHECK(bytes("--disable-hybrid-kv-cache-manager", "gpt-oss-20b")["groups"].size() == 1);
    const json windowed = memory({"--model", "openai/gpt-oss-20b", "--users", "32", "--tokens", "8192"});
    CHECK(windowed["users_kv_bytes_without_windows"] == 12LL << 30);
    CHECK(windowed["users_kv_bytes"] == (6LL << 30) + 32 * 8 * 393216);
}

TEST_CASE("memory: a scenario's own length mix") {
    const TemporaryFolder folder;
    const std::string file = folder.write("s.yaml", small_scenario()).string();
    const json got = memory({file});
    CHECK(got["length_mix"]["sampled"] > 0);
    CHECK(got["length_mix"]["fit"] > 0);
    CHECK_FALSE(got.contains("requests"));
}

TEST_CASE("memory: every format says the same") {
    const std::vector<std::string> asked{"memory", "--model", llama, "--gpu", "H100", "--tokens", "8k"};
    const auto in = [&](const char* format) {
        std::vector<std::string> words = asked;
        words.emplace_back("--format");
        words.emplace_back(format);
        const Finished done = run_program(words);
        CAPTURE(done.err);
        REQUIRE(done.exit == 0);
        return done.out;
    };
    const std::string blocks = json::parse(in("json"))["num_gpu_blocks"].dump();
    CHECK(in("table").find(blocks) != std::string::npos);
    CHECK(in("markdown").find("| tokens each |") != std::string::npos);
    const std::string csv = in("csv");
    CHECK(csv.starts_with("model,gpu,engine,tensor_parallel_size,kv_cache_dtype,kv_bytes_per_token,"));
    CHECK(csv.find("," + blocks + ",") != std::string::npos);
    const std::string head = csv.substr(0, csv.find('\n'));
    for (std::size_t at = 0; at < csv.size();) {
        const std::string row = csv.substr(at, csv.find('\n', at) - at);
        CHECK(std::count(row.begin(), row.end(), ',') == std::count(head.begin(), head.end(), ','));
        at += row.size() + 1;
    }
}

TEST_CASE("memory: engines and versions, terms can be given") {
    const auto kv = [](const std::vector<std::string>& more) {
        std::vector<std::string> words{"--model",
                                       llama,
                                       "--gpu",
                                       "H100",
                                       "--weights-memory-bytes",
                                       "15GiB",
                                       "--activation-memory-bytes",
                                       "4GiB",
                                       "--non-torch-memory-bytes",
                                       "1GiB",
                                       "--cuda-graph-memory-bytes",
                                       "2GiB"};
        words.insert(words.end(), more.begin(), more.end());
        return static_cast<double>(memory(words)["kv_bytes"].get<std::int64_t>()) / static_cast<double>(1LL << 30);
    };
    CHECK(kv({"--engine", "vllm-0.11.0"}) == doctest::Approx(79.18 * 0.9 - 20));
    CHECK(kv({}) == doctest::Approx(79.18 * 0.92 - 22));
    CHECK(kv({"--engine", "vllm-v1-2026-01"}) == doctest::Approx(79.18 * 0.9 - 20));
    CHECK(kv({"--engine", "sglang"}) == doctest::Approx(79.18 * 0.88 - 16));
    CHECK(kv({"--engine", "trtllm"}) == doctest::Approx((79.18 - 20) * 0.9));
    CHECK(kv({"--engine", "vllm-v0"}) == doctest::Approx(79.18 * 0.9 - 20));
    CHECK(kv({"--engine", "trtllm-no-evict"}) == doctest::Approx((79.18 - 20) * 0.9));
    CHECK(kv({"--gpu-memory-utilization", "0.5"}) == doctest::Approx(79.18 * 0.5 - 22));
    // vLLM V0 profiles a whole prompt, not 8,192 tokens.
    const json v0 = memory({"--model", llama, "--gpu", "H100", "--engine", "vllm-0.6.4", "--max-model-len", "32768"});
    CHECK(v0["activation_bytes"] == 6LL * 32768 * (14336 + 4096));
    for (const char* bad : {"0", "1.1", "-1", "nan"}) {
        CHECK_MESSAGE(exit_of({"--model", llama, "--gpu", "H100", "--gpu-memory-utilization", bad}) == 2, bad);
    }
    CHECK(exit_of({"--model", llama, "--gpu", "H100", "--engine", "vllm-x"}) == 2);
    CHECK(exit_of({"--model", llama, "--gpu", "H100", "--quantization", "aqlm"}) == 2);
    CHECK(exit_of({"--model", llama, "--gpu", "H100", "--kv-cache-dtype", "int3"}) == 2);
}

TEST_CASE("memory: own entries stand before the shipped ones") {
    const TemporaryFolder folder;
    folder.write("models.yaml",
                 "lab/Tiny-1B:\n  layers: 2\n  kv_heads: 1\n  head_dim: 64\n  max_context: 4096\n"
                 "meta-llama/Llama-3.1-8B:\n  layers: 3\n  kv_heads: 1\n  head_dim: 64\n  max_context: 4096\n");
    const std::string own = folder.path().string();
    CHECK(memory({"--catalog", own, "--model", "tiny-1b", "--num-gpu-blocks", "10"})["kv_bytes_per_token"] == 2 * 2 * 64 * 2);
    CHECK(memory({"--catalog", own, "--model", "Llama-3.1-8B", "--num-gpu-blocks", "10"})["kv_bytes_per_token"] ==
          3 * 2 * 64 * 2);
    CHECK(memory({"--catalog", own, "--model", "Llama-3.1-70B", "--num-gpu-blocks", "10"})["kv_bytes_per_token"] == 327680);
    CHECK(exit_of({"--catalog", own + "/none", "--model", llama, "--num-gpu-blocks", "10"}) == 2);
    CHECK(run_program({"memory", "--catalog", own, "--model", "Tiny-2B", "--num-gpu-blocks", "10"}).err.find("Tiny-1B") !=
          std::string::npos);
}
