#include <nlohmann/json.hpp>

#include "model_fixture.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

KvBudget derive(const MemoryOptions& options) {
    config::Diagnostics diagnostics;
    auto budget = derive_kv_budget(options, {}, diagnostics);
    for (const std::string& error : diagnostics.errors()) FAIL_CHECK(error);
    REQUIRE(budget.has_value());
    return *budget;
}

std::string refusal(const MemoryOptions& options) {
    config::Diagnostics diagnostics;
    CHECK_FALSE(derive_kv_budget(options, {}, diagnostics).has_value());
    REQUIRE(diagnostics.errors().size() == 1);
    return diagnostics.errors()[0];
}

MemoryOptions options(const std::string& name, const std::string& card = "") {
    MemoryOptions o;
    o.model = model(name);
    if (!card.empty()) o.gpu = gpu(card);
    return o;
}

}  // namespace

TEST_CASE("KV bytes per token: published values at 16 bit on one GPU") {
    const std::pair<const char*, std::int64_t> expected[] = {
        {"opt-13b", 819200},       {"opt-66b", 2359296},           {"opt-175b", 4718592},
        {"Llama-2-7b-hf", 524288}, {"Llama-3.1-8B", 131072},       {"Llama-2-70b-hf", 327680},
        {"Llama-3.1-70B", 327680}, {"Qwen2.5-7B-Instruct", 57344}, {"Qwen3-32B", 262144},
        {"DeepSeek-V3", 70272},    {"Kimi-K2-Instruct", 70272},    {"Mistral-7B-Instruct-v0.3", 131072}};
    for (const auto& row : expected) CHECK_MESSAGE(kv_bytes_per_token(model(row.first), 1, 1, 2) == row.second, row.first);
}

TEST_CASE("tensor parallelism divides KV heads, then replicates them; latent attention is never divided") {
    const ModelSpec qwen = model("Qwen3-235B-A22B");
    CHECK(kv_bytes_per_token(qwen, 4, 1, 2) == 48128);
    CHECK(kv_bytes_per_token(qwen, 8, 1, 2) == 48128);
    CHECK(kv_bytes_per_token(model("DeepSeek-V3"), 8, 1, 2) == 70272);
    CHECK(kv_bytes_per_token(model("DeepSeek-V3"), 8, 1, 1) == 35136);
    CHECK(kv_bytes_per_token(model("Llama-3.1-8B"), 1, 1, 1) == 65536);
    // 61 layers over two stages: 31 on the larger.
    CHECK(kv_bytes_per_token(model("DeepSeek-V3"), 1, 2, 2) == 31 * 576 * 2);
}

TEST_CASE("slots of the PagedAttention paper's models and block counts of engine logs") {
    CHECK(blocks_in(12 * GiB, 819200, 1) == 15728);
    CHECK(blocks_in(21 * GiB, 2359296, 1) == 9557);
    CHECK(blocks_in(264 * GiB, 4718592, 1) == 60074);
    CHECK(blocks_in(16 * GiB, 57344, 16) == 18724);
    CHECK(blocks_in(12 * GiB, 131072, 1) == 98304);
    CHECK(blocks_in(-1, 131072, 1) == 0);

    MemoryOptions o = options("Qwen2.5-7B-Instruct");
    o.kv_cache_memory_bytes = Bytes(16 * GiB);
    const KvBudget b = derive(o);
    CHECK(b.num_gpu_blocks == 18724);
    CHECK(b.tokens == 299584);
    // gpt-oss-120b at 73,728 B/token: the log prints 5.38 GiB and 78,384 tokens.
    const auto low = blocks_in(static_cast<std::int64_t>(5.375 * GiB), 73728, 16) * 16;
    const auto high = blocks_in(static_cast<std::int64_t>(5.385 * GiB), 73728, 16) * 16;
    CHECK(low <= 78384);
    CHECK(high >= 78384);
}

TEST_CASE("concurrency as the engine logs it") {
    MemoryOptions o;
    o.num_gpu_blocks_override = 50231;
    o.max_model_len = 32768;
    CHECK(derive(o).concurrency == doctest::Approx(24.53).epsilon(0.0005));
    o.num_gpu_blocks_override = 1381;
    o.max_model_len = 2048;
    CHECK(derive(o).concurrency == doctest::Approx(10.79).epsilon(0.0005));
    CHECK(derive(o).tokens == 22096);
    CHECK(derive(o).kv_bytes_per_token == 0);
}

TEST_CASE("the budget adds up, term by term") {
    MemoryOptions o = options("Llama-3.1-8B-Instruct", "H100");
    o.max_num_seqs = 1024;
    o.max_num_batched_tokens = 8192;
    o.gpu_memory_utilization = 0.9;
    const KvBudget b = derive(o);
    const auto budget = static_cast<std::int64_t>(static_cast<double>(*b.total_bytes) * 0.9);
    CHECK(*b.kv_bytes == budget - *b.weights_bytes - *b.activation_bytes - *b.non_torch_bytes);
    CHECK(b.num_gpu_blocks == *b.kv_bytes / (131072 * 16));
    // vLLM 0.11 on this card printed 14.99, 4.76 and 51.38 GiB of KV.
    const auto gib = [](std::int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(GiB); };
    CHECK(gib(*b.weights_bytes) == doctest::Approx(14.99).epsilon(0.005));
    CHECK(gib(*b.activation_bytes) == doctest::Approx(4.76).epsilon(0.02));
    CHECK(gib(*b.kv_bytes) == doctest::Approx(51.38).epsilon(0.01));
    CHECK(b.lines.size() == 10);

    o.activation_memory_bytes = Bytes(GiB);
    o.non_torch_memory_bytes = Bytes(0);
    const KvBudget with = derive(o);
    CHECK(*with.kv_bytes == budget - *b.weights_bytes - GiB);
}

TEST_CASE("weights: ranks, quantization, tied embeddings") {
    const ModelSpec llama = model("Llama-3.1-8B");
    CHECK(weight_bytes(llama, 1, 1) == 2 * parameter_count(llama));
    // Norms alone are not divided.
    CHECK(weight_bytes(llama, 2, 1) == (parameter_count(llama) - 65 * 4096) + 2 * 65 * 4096);
    ModelSpec fp8 = llama;
    fp8.dtype = "fp8";
    const std::int64_t tables = 2 * 128256LL * 4096;
    const std::int64_t norms = 65 * 4096;
    CHECK(weight_bytes(fp8, 1, 1) == parameter_count(llama) + tables + norms);
    // Llama-3.1-8B GPTQ 4 bit: a start-up log printed 5.3767 GiB.
    fp8.dtype = "gptq";
    CHECK(static_cast<double>(weight_bytes(fp8, 1, 1)) / static_cast<double>(GiB) == doctest::Approx(5.3767).epsilon(0.01));
    // KV heads are replicated beyond their number: 8 of 16 ranks hold copies of K and V projections.
    const std::int64_t at8 = weight_bytes(llama, 8, 1);
    CHECK(weight_bytes(llama, 16, 1) > at8 / 2);
    CHECK(parameter_count(model("gemma-2-9b-it")) < 9'300'000'000);
}

TEST_CASE("what does not fit is refused with the amount") {
    const std::string message = refusal(options("Llama-3.1-70B", "H100"));
    CHECK(message.find("does not fit on H100-80GB-SXM") != std::string::npos);
    CHECK(message.find("too little") != std::string::npos);
    MemoryOptions o = options("phi-4", "H100");
    o.tensor_parallel_size = 3;
    CHECK(refusal(o).find("does not divide the 40 attention heads") != std::string::npos);
    o.tensor_parallel_size = 4;
    CHECK(refusal(o).find("10 KV heads") != std::string::npos);
    o = options("phi-4", "H100");
    o.pipeline_parallel_size = 41;
    CHECK(refusal(o).find("exceeds the 40 layers") != std::string::npos);
    o = options("phi-4", "H100");
    o.kv_cache_dtype = "nvfp4";
    CHECK(refusal(o).find("nvfp4") != std::string::npos);
    CHECK(refusal(options("phi-4")).find("hardware.gpu") != std::string::npos);
    CHECK(refusal(MemoryOptions{}).find("model") != std::string::npos);
    o = options("phi-4");
    o.kv_cache_memory_bytes = Bytes(1000);
    CHECK(refusal(o).find("less than one block") != std::string::npos);
}

TEST_CASE("hybrid models are refused by name of the reason") {
    for (const auto& row :
         {std::pair{"gpt-oss-20b", "sliding-window"}, std::pair{"gemma-3-27b-it", "sliding-window"},
          std::pair{"Llama-4-Scout-17B-16E-Instruct", "chunked-attention"},
          std::pair{"Qwen3-Next-80B-A3B-Instruct", "linear-attention"}, std::pair{"DeepSeek-V3.2", "sparse latent"}}) {
        MemoryOptions o = options(row.first, "B200");
        CHECK_MESSAGE(refusal(o).find(row.second) != std::string::npos, row.first);
        o.num_gpu_blocks_override = 1000;
        CHECK_MESSAGE(refusal(o).find("not supported by this version") != std::string::npos, row.first);
    }
}

TEST_CASE("a pool smaller than max_model_len warns with both numbers") {
    MemoryOptions o = options("Qwen2.5-7B-Instruct");
    o.kv_cache_memory_bytes = Bytes(GiB);
    const KvBudget b = derive(o);
    REQUIRE(b.warnings.size() == 1);
    CHECK(b.warnings[0].find("32768") != std::string::npos);
    CHECK(b.warnings[0].find(std::to_string(b.tokens)) != std::string::npos);
}

TEST_CASE("the JSON form has the contract's keys in order") {
    MemoryOptions o = options("Qwen2.5-7B-Instruct");
    o.kv_cache_memory_bytes = Bytes(16 * GiB);
    const auto json = nlohmann::ordered_json::parse(memory_json(derive(o)));
    std::vector<std::string> keys;
    for (const auto& item : json.items()) keys.push_back(item.key());
    CHECK(keys == std::vector<std::string>{"kv_bytes_per_token", "weights_bytes", "activation_bytes", "non_torch_bytes",
                                           "kv_bytes", "block_size", "num_gpu_blocks", "tokens", "concurrency", "groups"});
    CHECK(json["kv_bytes_per_token"] == 57344);
    CHECK(json["activation_bytes"].is_null());
    CHECK(json["num_gpu_blocks"] == 18724);
    CHECK(json["groups"][0]["layers"] == 28);
}

TEST_CASE("block counts of the public H100 runs are met within 3 %") {
    // vLLM 0.15.1, max_model_len 4096, max_num_seqs 128, 2048 batched tokens, utilisation 0.9 (inference-sim data set).
    const std::tuple<const char*, int, std::int64_t> runs[] = {{"Llama-2-7b-hf", 1, 7462},
                                                               {"Llama-2-70b-hf", 4, 31356},
                                                               {"Mixtral-8x7B-v0.1", 2, 27510},
                                                               {"CodeLlama-34b-Instruct-hf", 2, 26602},
                                                               {"Llama-3.1-70B", 4, 30425},
                                                               {"Mistral-Nemo-Instruct-2407", 1, 19251},
                                                               {"Yi-34B", 2, 20793}};
    for (const auto& run : runs) {
        const char* name = std::get<0>(run);
        MemoryOptions o = options(name, "H100");
        o.tensor_parallel_size = std::get<1>(run);
        o.max_num_seqs = 128;
        o.max_model_len = 4096;
        o.gpu_memory_utilization = 0.9;
        const KvBudget b = derive(o);
        CHECK_MESSAGE(
            static_cast<double>(b.num_gpu_blocks) == doctest::Approx(static_cast<double>(std::get<2>(run))).epsilon(0.03),
            name);
    }
}

TEST_CASE("blocks follow from the KV figure of public start-up logs") {
    const auto data = shared_data();
    if (data.empty()) return;
    int rows = 0;
    for (const Row& row : read_csv(data / "kv_capacity_logs.csv")) {
        const auto known = [&](const char* key) { return !row.at(key).empty(); };
        if (!known("kv_gib") || !known("tokens") || !known("bytes_per_token_rank")) continue;
        if (row.at("attn_type").find("SWA") != std::string::npos || row.at("attn_type").find("GDN") != std::string::npos)
            continue;
        // 47: another figure than this rank's; 61: the token line of another rank; 130: K and V rounded apart; 139: capped by a
        // flag.
        if (const std::string& id = row.at("id"); id == "47" || id == "61" || id == "130" || id == "139") continue;
        const std::int64_t block = std::stoll(row.at("block_size"));
        const std::int64_t bytes = std::stoll(row.at("bytes_per_token_rank"));
        const auto tokens = [&](double gib) {
            return blocks_in(static_cast<std::int64_t>(gib * static_cast<double>(GiB)), bytes, block) * block;
        };
        // The log rounds the figure to 0.01 GiB.
        const double kv = std::stod(row.at("kv_gib"));
        const std::int64_t logged = std::stoll(row.at("tokens"));
        INFO(row.at("id"), " ", row.at("model"));
        CHECK(tokens(kv - 0.0051) <= logged);
        CHECK(tokens(kv + 0.0051) >= logged);
        ++rows;
    }
    CHECK(rows >= 29);
}
