#include <doctest/doctest.h>

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
