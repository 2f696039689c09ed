#include <nlohmann/json.hpp>

#include "model_fixture.hpp"

using namespace kvsim;
using namespace kvsim::test;
using nlohmann::json;

namespace {

const json llama = {{"model_type", "llama"},
                    {"num_hidden_layers", 32},
                    {"hidden_size", 4096},
                    {"intermediate_size", 14336},
                    {"num_attention_heads", 32},
                    {"num_key_value_heads", 8},
                    {"vocab_size", 128256},
                    {"max_position_embeddings", 131072},
                    {"torch_dtype", "bfloat16"},
                    {"tie_word_embeddings", false},
                    {"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}, {"original_max_position_embeddings", 8192}}}};

ModelSpec read(const json& config) {
    config::Diagnostics diagnostics;
    auto m = read_hf_config(config.dump(), "config.json", {}, diagnostics);
    for (const std::string& error : diagnostics.errors()) FAIL_CHECK(error);
    REQUIRE(m.has_value());
    return *m;
}

std::string refusal(const std::string& text) {
    config::Diagnostics diagnostics;
    CHECK_FALSE(read_hf_config(text, "config.json", {}, diagnostics).has_value());
    REQUIRE(diagnostics.errors().size() == 1);
    return diagnostics.errors()[0];
}

/// Same shape, hence the same KV, weights and step times.
void check_same(const ModelSpec& a, const ModelSpec& b) {
    CHECK(parameter_count(a) == parameter_count(b));
    CHECK(kv_bytes_per_token(a, 1, 1, 2) == kv_bytes_per_token(b, 1, 1, 2));
    CHECK(weight_bytes(a, 2, 1) == weight_bytes(b, 2, 1));
    CHECK(a.max_context == b.max_context);
    CHECK(a.moe_layers() == b.moe_layers());
    CHECK(a.head_dim == b.head_dim);
}

}  // namespace

TEST_CASE("config.json of plain, expert, latent and OPT models gives the catalogue's shape") {
    check_same(read(llama), model("Llama-3.1-8B"));
    check_same(read({{"model_type", "qwen3"},
                     {"num_hidden_layers", 64},
                     {"hidden_size", 5120},
                     {"intermediate_size", 25600},
                     {"num_attention_heads", 64},
                     {"num_key_value_heads", 8},
                     {"head_dim", 128},
                     {"vocab_size", 151936},
                     {"max_position_embeddings", 40960},
                     {"use_sliding_window", false},
                     {"sliding_window", nullptr}}),
               model("Qwen3-32B"));
    check_same(read({{"model_type", "qwen2"},
                     {"num_hidden_layers", 28},
                     {"hidden_size", 3584},
                     {"intermediate_size", 18944},
                     {"num_attention_heads", 28},
                     {"num_key_value_heads", 4},
                     {"vocab_size", 152064},
                     {"max_position_embeddings", 32768},
                     {"use_sliding_window", false},
                     {"sliding_window", 131072}}),
               model("Qwen2.5-7B-Instruct"));
    check_same(read({{"model_type", "mixtral"},
                     {"num_hidden_layers", 32},
                     {"hidden_size", 4096},
                     {"intermediate_size", 14336},
                     {"num_attention_heads", 32},
                     {"num_key_value_heads", 8},
                     {"vocab_size", 32000},
                     {"max_position_embeddings", 32768},
                     {"num_local_experts", 8},
                     {"num_experts_per_tok", 2}}),
               model("mistralai/Mixtral-8x7B-v0.1"));
    check_same(read({{"model_type", "qwen3_moe"},
                     {"num_hidden_layers", 48},
                     {"hidden_size", 2048},
                     {"intermediate_size", 6144},
                     {"num_attention_heads", 32},
                     {"num_key_value_heads", 4},
                     {"head_dim", 128},
                     {"vocab_size", 151936},
                     {"max_position_embeddings", 40960},
                     {"num_experts", 128},
                     {"num_experts_per_tok", 8},
                     {"moe_intermediate_size", 768},
                     {"decoder_sparse_step", 1},
                     {"mlp_only_layers", json::array()}}),
               model("Qwen/Qwen3-30B-A3B"));
    check_same(read({{"model_type", "deepseek_v3"},
                     {"num_hidden_layers", 61},
                     {"hidden_size", 7168},
                     {"intermediate_size", 18432},
                     {"num_attention_heads", 128},
                     {"num_key_value_heads", 128},
                     {"vocab_size", 129280},
                     {"max_position_embeddings", 163840},
                     {"n_routed_experts", 256},
                     {"num_experts_per_tok", 8},
                     {"moe_intermediate_size", 2048},
                     {"n_shared_experts", 1},
                     {"first_k_dense_replace", 3},
                     {"moe_layer_freq", 1},
                     {"kv_lora_rank", 512},
                     {"qk_rope_head_dim", 64},
                     {"qk_nope_head_dim", 128},
                     {"v_head_dim", 128},
                     {"q_lora_rank", 1536},
                     {"torch_dtype", "bfloat16"},
                     {"rope_scaling", {{"type", "yarn"}, {"factor", 40}, {"original_max_position_embeddings", 4096}}},
                     {"quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}}}),
               model("DeepSeek-V3"));
    check_same(read({{"model_type", "opt"},
                     {"num_hidden_layers", 40},
                     {"hidden_size", 5120},
                     {"ffn_dim", 20480},
                     {"num_attention_heads", 40},
                     {"vocab_size", 50272},
                     {"max_position_embeddings", 2048},
                     {"word_embed_proj_dim", 5120},
                     {"torch_dtype", "float16"}}),
               model("opt-13b"));
}

TEST_CASE("config.json: nesting, quantization, rope scaling") {
    CHECK(parameter_count(read({{"model_type", "mistral3"}, {"text_config", llama}})) == parameter_count(read(llama)));
    json quantized = llama;
    quantized["quantization_config"] = {{"quant_method", "awq"}, {"bits", 4}};
    CHECK(read(quantized).dtype == "awq");
    quantized["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 8}};
    CHECK(read(quantized).dtype == "int8");
    quantized["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                        {"config_groups", {{"group_0", {{"weights", {{"num_bits", 8}, {"type", "float"}}}}}}}};
    CHECK(read(quantized).dtype == "fp8");
    json stretched = llama;
    stretched["max_position_embeddings"] = 32768;
    stretched["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
    CHECK(read(stretched).max_context == 131072);
}

TEST_CASE("config.json: what is wrong is named, all at once") {
    const std::string missing = refusal(R"({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 2.5})");
    for (const char* key : {"num_attention_heads", "vocab_size", "intermediate_size", "max_position_embeddings",
                            "num_hidden_layers must be a whole number"}) {
        CHECK_MESSAGE(missing.find(key) != std::string::npos, key);
    }
    CHECK(refusal(R"({"model_type": "mamba"})").find("layers, hidden, intermediate") != std::string::npos);
    CHECK(refusal(R"({"model_type": "gemma2"})").find("sliding-window") != std::string::npos);
    CHECK(refusal("{}").find("no model_type") != std::string::npos);
    CHECK(refusal("[1]").find("not a JSON object") != std::string::npos);
    CHECK(refusal("{\"model_type\": ").find("not a config.json") != std::string::npos);
    json odd = llama;
    odd["num_key_value_heads"] = 5;
    CHECK(refusal(odd.dump()).find("multiple") != std::string::npos);
    odd["num_key_value_heads"] = -8;
    CHECK(refusal(odd.dump()).find("num_key_value_heads") != std::string::npos);
    odd["num_key_value_heads"] = 0;
    CHECK(refusal(odd.dump()).find("kv_heads") != std::string::npos);
    odd = llama;
    odd["quantization_config"] = {{"quant_method", "aqlm"}};
    CHECK(refusal(odd.dump()).find("quantization_config") != std::string::npos);
}

TEST_CASE("a sliding window in config.json makes sliding layers") {
    json windowed = llama;
    windowed["model_type"] = "mistral";
    windowed["sliding_window"] = 4096;
    CHECK(read(windowed).attention.at(0).kind == "sliding");
    CHECK(read(windowed).attention.at(0).window == 4096);
    CHECK(read(windowed).unsupported() == "");
}

TEST_CASE("a scenario's model may be the path of a config.json or of its folder") {
    const auto folder = std::filesystem::temp_directory_path() / "kvsim_hf_test" / "own-model";
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "config.json") << llama.dump();
    config::Diagnostics diagnostics;
    const auto base = folder.parent_path();
    CHECK(resolve_model(yaml("own-model/config.json"), base, catalog(), diagnostics)->layers == 32);
    CHECK(resolve_model(yaml("./own-model"), base, catalog(), diagnostics)->layers == 32);
    CHECK(diagnostics.ok());
    std::filesystem::remove_all(base);
}
