// Blocks of real hybrid and latent-attention models over a request's life, counted by hand from their config and the block
// rules; catalogue, memory budget and engine run as in `kvsim SCENARIO`.

#include <doctest/doctest.h>

#include <filesystem>

#include "kvsim/config/load.hpp"
#include "kvsim/model/deployment.hpp"
#include "support.hpp"

namespace kvsim::theory {
namespace {

Deployment deployment(const std::string& model, const std::string& engine) {
    config::Diagnostics diagnostics;
    const config::Scenario scenario = config::read_scenario(
        config::parse_yaml("model: " + model + "\nengine: {async_scheduling: false, " + engine +
                               "}\nworkload: {requests: 1, arrivals: {process: poisson, rate: 1/s}, prompt_tokens: 1, "
                               "output_tokens: 1}\n",
                           "test.yaml", diagnostics),
        "test.yaml", diagnostics);
    const Catalog catalog(std::filesystem::path(KVSIM_SOURCE_DIR) / "scenarios" / "catalog");
    Deployment d = resolve_deployment(scenario, catalog, diagnostics);
    for (const std::string& error : diagnostics.errors()) FAIL_CHECK(error);
    CHECK(d.unsupported_run() == "");
    return d;
}

struct Life {
    std::vector<std::int64_t> used;  ///< blocks after each schedule()
    Outcome outcome;
};

Life live(const Deployment& d, std::int64_t requests, std::int64_t prompt, std::int64_t output) {
    Life life;
    SimulationOptions options;
    options.engine = d.engine;
    options.on_step = [&](std::int64_t, const StepRecord& record) {
        life.used.push_back(d.engine.usable_blocks() - record.free_after_schedule);
    };
    const auto all = workload("{requests: " + std::to_string(requests) + ", arrivals: {process: all_at_once}, prompt_tokens: " +
                                  std::to_string(prompt) + ", output_tokens: " + std::to_string(output) + "}",
                              1);
    life.outcome = run(options, *step_time("{model: constant, step: 10ms}"), *all);
    return life;
}

}  // namespace

TEST_CASE("theory: gemma-3-27b, 52 layers of 1,024-token windows in 6 tables and 10 full layers in one") {
    const std::string engine = "max_model_len: 8192, max_num_batched_tokens: 2048, max_num_seqs: 8, num_gpu_blocks_override: ";
    const Deployment d = deployment("google/gemma-3-27b-it", engine + "4000");
    REQUIRE(d.engine.kv_groups.size() == 2);
    CHECK(d.engine.kv_groups[0].tables == 6);
    CHECK(d.engine.kv_groups[1].tables == 1);
    const Life life = live(d, 1, 5000, 100);
    REQUIRE(life.used.size() == 102);
    CHECK(life.used[0] == 7 * 128);
    // 2,048 computed: the next token sees from 1,025 on, so 64 blocks went; up to 4,096 there are 256.
    CHECK(life.used[1] == 6 * (256 - 64) + 256);
    // 4,096 computed, from 3,073 on: 192 went; up to 5,000 there are 313.
    CHECK(life.used[2] == 6 * (313 - 192) + 313);
    // 5,000 computed, from 3,977 on: 248 went. A decoding request keeps 64 or 65 blocks of a window.
    CHECK(life.used[3] == 6 * 65 + 313);
    // 5,008 computed, from 3,985 on: 249 went, and token 5,008 opens block 314.
    CHECK(life.used[11] == 6 * 65 + 314);
    // 5,007 computed, from 3,984 on: 249 went, no block was opened.
    CHECK(life.used[10] == 6 * 64 + 313);
    // The 100th output follows from 5,098 computed tokens: 254 went, 319 there are.
    CHECK(life.used[101] == 0 + 6 * 65 + 319);

    // Admission counts ceil((1,023 + 2,048) / 16) + 1 = 193 blocks of a window: 6 x 193 + 313 = 1,471, and the null block.
    CHECK(live(deployment("google/gemma-3-27b-it", engine + "1472"), 1, 5000, 100).outcome.counters.completed == 1);
    CHECK_THROWS_AS(live(deployment("google/gemma-3-27b-it", engine + "1471"), 1, 5000, 100), UserError);
}

TEST_CASE("theory: gpt-oss-20b, 32 requests of 8,192 tokens take 12.00 GiB whole and 6.09 GiB windowed") {
    // All prompts in one step keep everything; in the step after, each decodes its 8,192nd token with 128 tokens in the window.
    const Deployment d = deployment("openai/gpt-oss-20b",
                                    "max_model_len: 8300, max_num_batched_tokens: 262144, max_num_seqs: 32, "
                                    "num_gpu_blocks_override: 40000");
    CHECK(d.budget.block_bytes == 12 * 2 * 8 * 64 * 2 * 16);
    const Life life = live(d, 32, 8191, 2);
    REQUIRE(life.used.size() == 2);
    const auto gib = [&](std::int64_t blocks) {
        return static_cast<double>(blocks * d.budget.block_bytes) / static_cast<double>(GiB);
    };
    CHECK(life.used[0] == 32 * 2 * 512);
    CHECK(gib(life.used[0]) == 12.0);
    CHECK(life.used[1] == 32 * (512 + 8));
    CHECK(gib(life.used[1]) == doctest::Approx(6.09).epsilon(0.001));
}

TEST_CASE("theory: Qwen3-Next, three tables of one state block and one of full attention with 544-token blocks") {
    const Deployment d = deployment("Qwen/Qwen3-Next-80B-A3B-Instruct",
                                    "max_model_len: 8192, max_num_batched_tokens: 2048, max_num_seqs: 8, "
                                    "num_gpu_blocks_override: 100");
    // 32 value heads x 128 x 128 and 3 x (32 x 128 + 2 x 16 x 128) of convolution, 2 bytes each: 1,097,728 B, which 536 tokens
    // of 2 x 2 x 256 x 2 B would hold; rounded up to 16.
    CHECK(d.engine.block_size == 544);
    CHECK_FALSE(d.engine.enable_prefix_caching);
    const Life life = live(d, 1, 3000, 300);
    REQUIRE(life.used.size() == 301);
    CHECK(life.used[0] == 3 + 4);  // 2,048 tokens
    CHECK(life.used[1] == 3 + 6);  // 3,000
    // 6 blocks hold 3,264 tokens: token 3,264 is computed 264 steps after the first decode step's token 3,000.
    CHECK(life.used[2 + 263] == 3 + 6);
    CHECK(life.used[2 + 264] == 3 + 7);
    CHECK(life.outcome.counters.completed == 1);
}

TEST_CASE("theory: latent attention takes one table, fp8 halves its blocks") {
    // 61 layers x 576 x 2 B x 16 tokens = 1,124,352 B: floor(1 GiB / that) = 954; fp8 1,909. One block is the null block.
    const std::string engine =
        "max_model_len: 8192, max_num_batched_tokens: 65536, max_num_seqs: 64, kv_cache_memory_bytes: 1GiB, kv_cache_dtype: ";
    for (const char* model : {"deepseek-ai/DeepSeek-V3", "moonshotai/Kimi-K2-Instruct"}) {
        CAPTURE(model);
        const Deployment bf16 = deployment(model, engine + "auto");
        const Deployment fp8 = deployment(model, engine + "fp8");
        CHECK(bf16.engine.kv_groups.empty());
        CHECK(bf16.budget.kv_bytes_per_token == 70'272);
        CHECK(fp8.budget.kv_bytes_per_token == 35'136);
        CHECK(bf16.engine.num_gpu_blocks == 954);
        CHECK(fp8.engine.num_gpu_blocks == 1'909);
        // 1,000 tokens are 63 blocks: 15 prompts fit in 953, 30 in 1,908. The last token computed is 1,007: no further block.
        CHECK(live(bf16, 40, 1000, 8).outcome.integrals.blocks_used_peak == 15 * 63);
        CHECK(live(fp8, 40, 1000, 8).outcome.integrals.blocks_used_peak == 30 * 63);
    }
}

TEST_CASE("theory: fp8 KV doubles the blocks of a windowed model and changes nothing of what a request takes") {
    const std::string engine =
        "max_model_len: 8192, max_num_batched_tokens: 8192, max_num_seqs: 8, kv_cache_memory_bytes: "
        "2GiB, kv_cache_dtype: ";
    const Deployment bf16 = deployment("openai/gpt-oss-20b", engine + "auto");
    const Deployment fp8 = deployment("openai/gpt-oss-20b", engine + "fp8");
    CHECK(bf16.engine.num_gpu_blocks == 2 * GiB / 393'216);
    CHECK(fp8.engine.num_gpu_blocks == 2 * GiB / 196'608);
    CHECK(live(bf16, 1, 2000, 20).used == live(fp8, 1, 2000, 20).used);
}

TEST_CASE("theory: what a run does not simulate is said, not approximated") {
    config::Diagnostics diagnostics;
    const auto why = [&](const std::string& text) {
        const config::Scenario scenario = config::read_scenario(
            config::parse_yaml(text + "\nworkload: {requests: 1, arrivals: {process: poisson, rate: 1/s}, prompt_tokens: 1, "
                                      "output_tokens: 1}\n",
                               "test.yaml", diagnostics),
            "test.yaml", diagnostics);
        return resolve_deployment(scenario, Catalog(std::filesystem::path(KVSIM_SOURCE_DIR) / "scenarios" / "catalog"),
                                  diagnostics)
            .unsupported_run();
    };
    const std::string engine = "engine: {kv_cache_memory_bytes: 4GiB, max_model_len: 8192, ";
    const std::string next = "model: Qwen/Qwen3-Next-80B-A3B-Instruct\n" + engine;
    CHECK(why(next + "enable_prefix_caching: false}") == "");
    CHECK(why(next + "enable_prefix_caching: true}").find("recurrent layers") != std::string::npos);
    CHECK(why("model: google/gemma-3-27b-it\n" + engine + "version: sglang}").find("separate pools") != std::string::npos);
    CHECK(diagnostics.ok());
}

}  // namespace kvsim::theory
