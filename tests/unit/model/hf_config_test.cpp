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
    CHECK(refusal(R"({"model_type": "rwkv"})").find("layers, hidden, intermediate") != std::string::npos);
    CHECK(refusal(R"({"model_type": "gemma2"})").find("num_hidden_layers") != std::string::npos);
    CHECK(refusal(R"({"model_type": "jamba", "num_hidden_layers": 1000000000000})").find("beyond any") != std::string::npos);
    json other = llama;
    other["text_config"] = {{"model_type", "rwkv"}};
    CHECK(refusal(other.dump()).find("rwkv") != std::string::npos);
    CHECK(refusal("{}").find("no model_type") != std::string::npos);
    CHECK(refusal("[1]").find("not a JSON object") != std::string::npos);
    CHECK(refusal("{\"model_type\": ").find("not a config.json") != std::string::npos);
    json odd = llama;
    odd["num_key_value_heads"] = 5;
    CHECK(refusal(odd.dump()).find("multiple") != std::string::npos);
    odd["num_key_value_heads"] = -8;
    CHECK(refusal(odd.dump()).find("num_key_value_heads") != std::string::npos);
    odd["num_key_value_heads"] = 0;
    CHECK(refusal(odd.dump()).find("num_key_value_heads must be positive") != std::string::npos);
    odd = llama;
    odd["quantization_config"] = {{"quant_method", "aqlm"}};
    CHECK(refusal(odd.dump()).find("quantization_config") != std::string::npos);
}

namespace {

void check_groups(const ModelSpec& a, const ModelSpec& b) {
    check_same(a, b);
    for (const char* kind : {"full", "sliding", "chunked", "linear", "mla", "sparse_mla", "none"}) {
        CHECK_MESSAGE(a.layers_of(kind) == b.layers_of(kind), kind);
    }
    CHECK(state_bytes_per_layer(a, 2) == state_bytes_per_layer(b, 2));
}

json part(json base, const json& more) {
    base.update(more);
    return base;
}

}  // namespace

TEST_CASE("config.json of windowed, chunked, recurrent and sparse models gives the catalogue's groups") {
    // As published: what equals the class's defaults is left out.
    const json gemma3{{"model_type", "gemma3"},
                      {"text_config",
                       {{"model_type", "gemma3_text"},
                        {"head_dim", 128},
                        {"hidden_size", 5376},
                        {"intermediate_size", 21504},
                        {"num_attention_heads", 32},
                        {"num_hidden_layers", 62},
                        {"num_key_value_heads", 16},
                        {"sliding_window", 1024},
                        {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}}}}};
    const ModelSpec g = read(gemma3);
    CHECK(g.layers_of("sliding") == 52);
    CHECK(g.layers_of("full") == 10);
    CHECK(g.max_context == 131072);
    CHECK(static_cast<double>(parameter_count(g)) == doctest::Approx(27.008e9).epsilon(0.003));
    check_groups(read({{"model_type", "gemma2"},
                       {"head_dim", 256},
                       {"hidden_size", 3584},
                       {"intermediate_size", 14336},
                       {"num_attention_heads", 16},
                       {"num_hidden_layers", 42},
                       {"num_key_value_heads", 8},
                       {"vocab_size", 256000},
                       {"max_position_embeddings", 8192},
                       {"sliding_window", 4096}}),
                 model("gemma-2-9b-it"));
    const json gpt_oss{{"model_type", "gpt_oss"},
                       {"head_dim", 64},
                       {"hidden_size", 2880},
                       {"intermediate_size", 2880},
                       {"num_attention_heads", 64},
                       {"num_hidden_layers", 24},
                       {"num_key_value_heads", 8},
                       {"num_local_experts", 32},
                       {"num_experts_per_tok", 4},
                       {"experts_per_token", 4},
                       {"vocab_size", 201088},
                       {"max_position_embeddings", 131072},
                       {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 32.0}, {"original_max_position_embeddings", 4096}}},
                       {"sliding_window", 128},
                       {"tie_word_embeddings", false},
                       {"quantization_config", {{"quant_method", "mxfp4"}}}};
    check_groups(read(gpt_oss), model("gpt-oss-20b"));
    const json scout{{"model_type", "llama4"},
                     {"text_config",
                      {{"model_type", "llama4_text"},
                       {"attention_chunk_size", 8192},
                       {"head_dim", 128},
                       {"hidden_size", 5120},
                       {"interleave_moe_layer_step", 1},
                       {"intermediate_size", 8192},
                       {"intermediate_size_mlp", 16384},
                       {"max_position_embeddings", 10485760},
                       {"num_attention_heads", 40},
                       {"num_experts_per_tok", 1},
                       {"num_hidden_layers", 48},
                       {"num_key_value_heads", 8},
                       {"num_local_experts", 16},
                       {"vocab_size", 202048}}}};
    check_groups(read(scout), model("Llama-4-Scout-17B-16E-Instruct"));
    json maverick = scout["text_config"];
    maverick.update({{"interleave_moe_layer_step", 2}, {"num_local_experts", 128}, {"max_position_embeddings", 1048576}});
    check_groups(read(maverick), model("Llama-4-Maverick-17B-128E-Instruct"));
    const json next{{"model_type", "qwen3_next"},
                    {"decoder_sparse_step", 1},
                    {"full_attention_interval", 4},
                    {"head_dim", 256},
                    {"hidden_size", 2048},
                    {"intermediate_size", 5120},
                    {"linear_conv_kernel_dim", 4},
                    {"linear_key_head_dim", 128},
                    {"linear_num_key_heads", 16},
                    {"linear_num_value_heads", 32},
                    {"linear_value_head_dim", 128},
                    {"max_position_embeddings", 262144},
                    {"mlp_only_layers", json::array()},
                    {"moe_intermediate_size", 512},
                    {"num_attention_heads", 16},
                    {"num_experts", 512},
                    {"num_experts_per_tok", 10},
                    {"num_hidden_layers", 48},
                    {"num_key_value_heads", 2},
                    {"shared_expert_intermediate_size", 512},
                    {"vocab_size", 151936}};
    check_groups(read(next), model("Qwen3-Next-80B-A3B-Instruct"));
    json sparse{{"model_type", "deepseek_v32"},
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
                {"kv_lora_rank", 512},
                {"qk_rope_head_dim", 64},
                {"qk_nope_head_dim", 128},
                {"v_head_dim", 128},
                {"q_lora_rank", 1536},
                {"index_head_dim", 128},
                {"index_n_heads", 64},
                {"num_nextn_predict_layers", 1},
                {"quantization_config", {{"quant_method", "fp8"}}}};
    check_groups(read(sparse), model("DeepSeek-V3.2"));
    CHECK(read(sparse).draft_layers == 1);
    sparse.erase("index_n_heads");
    CHECK(refusal(sparse.dump()).find("index_n_heads") != std::string::npos);
    check_groups(read({{"model_type", "jamba"},
                       {"attn_layer_offset", 4},
                       {"attn_layer_period", 8},
                       {"expert_layer_offset", 1},
                       {"expert_layer_period", 2},
                       {"hidden_size", 4096},
                       {"intermediate_size", 14336},
                       {"mamba_d_conv", 4},
                       {"mamba_d_state", 16},
                       {"mamba_dt_rank", 256},
                       {"mamba_expand", 2},
                       {"max_position_embeddings", 262144},
                       {"num_attention_heads", 32},
                       {"num_experts", 16},
                       {"num_experts_per_tok", 2},
                       {"num_hidden_layers", 32},
                       {"num_key_value_heads", 8},
                       {"vocab_size", 65536}}),
                 model("AI21-Jamba-Mini-1.5"));
    json nemotron{{"model_type", "nemotron_h"},
                  {"attention_head_dim", 128},
                  {"conv_kernel", 4},
                  {"hidden_size", 4096},
                  {"hybrid_override_pattern", "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"},
                  {"intermediate_size", 21504},
                  {"mamba_head_dim", 64},
                  {"mamba_num_heads", 128},
                  {"max_position_embeddings", 8192},
                  {"n_groups", 8},
                  {"num_attention_heads", 32},
                  {"num_hidden_layers", 52},
                  {"num_key_value_heads", 8},
                  {"ssm_state_size", 128},
                  {"vocab_size", 131072}};
    check_groups(read(nemotron), model("Nemotron-H-8B-Base-8K"));
    CHECK(static_cast<double>(parameter_count(read(nemotron))) == doctest::Approx(8.1e9).epsilon(0.01));
    nemotron["num_hidden_layers"] = 51;
    CHECK(refusal(nemotron.dump()).find("52 layers") != std::string::npos);
    const ModelSpec mamba = read({{"model_type", "mamba"},
                                  {"hidden_size", 4096},
                                  {"num_hidden_layers", 64},
                                  {"state_size", 16},
                                  {"conv_kernel", 4},
                                  {"intermediate_size", 8192},
                                  {"vocab_size", 65024}});
    CHECK(mamba.layers_of("linear") == 64);
    CHECK(mamba.missing_shape().size() <= 1);
    CHECK(kv_bytes_per_token(mamba, 1, 1, 2) == 0);
    // Falcon-Mamba-7B's shape.
    CHECK(static_cast<double>(parameter_count(mamba)) == doctest::Approx(7.27e9).epsilon(0.05));
}

TEST_CASE("config.json: layer_types rule where they are given, and must be complete") {
    json typed = part(llama, {{"model_type", "qwen3"}, {"sliding_window", 4096}});
    typed["layer_types"] = json::array();
    for (int l = 0; l < 32; ++l) typed["layer_types"].push_back(l % 4 == 3 ? "full_attention" : "sliding_attention");
    CHECK(read(typed).layers_of("sliding") == 24);
    CHECK(read(typed).attention.front().window == 4096);
    typed.erase("sliding_window");
    CHECK(refusal(typed.dump()).find("sliding_window") != std::string::npos);
    typed["layer_types"].push_back("full_attention");
    CHECK(refusal(typed.dump()).find("33 entries") != std::string::npos);
    typed["layer_types"] = 5;
    CHECK(refusal(typed.dump()).find("layer_types must be a list") != std::string::npos);
    typed["layer_types"] = json::array({"fourier"});
    CHECK(refusal(typed.dump()).find("fourier") != std::string::npos);
    // Layers that use earlier layers' keys and values keep none: Gemma 3n and 4.
    json shared = part(llama, {{"model_type", "gemma4_text"}, {"sliding_window", 512}, {"num_kv_shared_layers", 8}});
    shared["global_head_dim"] = 512;
    CHECK(read(shared).layers_of("none") == 8);
    CHECK(read(shared).attention.back().kind == "none");
    shared["num_kv_shared_layers"] = 32;
    CHECK(refusal(shared.dump()).find("num_kv_shared_layers") != std::string::npos);
}

TEST_CASE("config.json: quantization methods") {
    const auto dtype = [](const json& method) { return read(part(llama, {{"quantization_config", method}})).dtype; };
    CHECK(dtype({{"quant_method", "mxfp4"}}) == "mxfp4");
    CHECK(dtype({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}) == "nvfp4");
    CHECK(dtype({{"quant_method", "modelopt"}, {"quant_algo", "FP8"}}) == "fp8");
    CHECK(dtype({{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}}) == "bitsandbytes");
    CHECK(dtype({{"quant_method", "bitsandbytes"}, {"load_in_8bit", true}}) == "int8");
    CHECK(dtype({{"quant_method", "auto-round"}, {"bits", 4}}) == "gptq");
    CHECK(dtype({{"quant_method", "compressed-tensors"},
                 {"config_groups", {{"g", {{"weights", {{"num_bits", 4}, {"type", "float"}}}}}}}}) == "nvfp4");
    CHECK(refusal(part(llama, {{"quantization_config", {{"quant_method", "gptq"}, {"bits", 3}}}}).dump())
              .find("quantization_config") != std::string::npos);
    // Embeddings and head keep 16 bit.
    ModelSpec m = read(llama);
    m.dtype = "bitsandbytes";
    CHECK(weight_bytes(m, 1, 1) > 2 * 2 * 128256LL * 4096);
}

TEST_CASE("a sliding window in config.json makes sliding layers") {
    json windowed = llama;
    windowed["model_type"] = "mistral";
    windowed["sliding_window"] = 4096;
    CHECK(read(windowed).attention.at(0).kind == "sliding");
    CHECK(read(windowed).attention.at(0).window == 4096);
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

TEST_CASE("config.json: parameters of further families against the published totals") {
    struct Case {
        double billion;
        std::int64_t kv_bytes;  // a token, 16 bit, one rank
        json config;
    };
    // Totals as the model cards or the safetensors index give them.
    const std::vector<Case> cases{{0.1244,
                                   12 * 2 * 768 * 2,
                                   {{"model_type", "gpt2"},
                                    {"n_layer", 12},
                                    {"n_embd", 768},
                                    {"n_head", 12},
                                    {"n_positions", 1024},
                                    {"vocab_size", 50257}}},
                                  {20.55,
                                   44 * 2 * 6144 * 2,
                                   {{"model_type", "gpt_neox"},
                                    {"num_hidden_layers", 44},
                                    {"hidden_size", 6144},
                                    {"intermediate_size", 24576},
                                    {"num_attention_heads", 64},
                                    {"max_position_embeddings", 2048},
                                    {"vocab_size", 50432},
                                    {"tie_word_embeddings", false}}},
                                  {6.92,
                                   32 * 2 * 64 * 2,
                                   {{"model_type", "falcon"},
                                    {"num_hidden_layers", 32},
                                    {"hidden_size", 4544},
                                    {"num_attention_heads", 71},
                                    {"multi_query", true},
                                    {"new_decoder_architecture", false},
                                    {"vocab_size", 65024}}},
                                  {41.3,
                                   60 * 2 * 8 * 64 * 2,
                                   {{"model_type", "falcon"},
                                    {"num_hidden_layers", 60},
                                    {"hidden_size", 8192},
                                    {"num_attention_heads", 128},
                                    {"num_kv_heads", 8},
                                    {"multi_query", true},
                                    {"new_decoder_architecture", true},
                                    {"vocab_size", 65024}}},
                                  {34.98,
                                   40 * 2 * 8192 * 2,
                                   {{"model_type", "cohere"},
                                    {"num_hidden_layers", 40},
                                    {"hidden_size", 8192},
                                    {"intermediate_size", 22528},
                                    {"num_attention_heads", 64},
                                    {"num_key_value_heads", 64},
                                    {"max_position_embeddings", 8192},
                                    {"model_max_length", 131072},
                                    {"vocab_size", 256000}}},
                                  {8.03,
                                   32 * 2 * 8 * 128 * 2,
                                   {{"model_type", "cohere2"},
                                    {"num_hidden_layers", 32},
                                    {"hidden_size", 4096},
                                    {"intermediate_size", 14336},
                                    {"num_attention_heads", 32},
                                    {"num_key_value_heads", 8},
                                    {"head_dim", 128},
                                    {"sliding_window", 4096},
                                    {"sliding_window_pattern", 4},
                                    {"max_position_embeddings", 8192},
                                    {"vocab_size", 256000}}},
                                  {41.87,
                                   32 * 2 * 8 * 128 * 2,
                                   {{"model_type", "phimoe"},
                                    {"num_hidden_layers", 32},
                                    {"hidden_size", 4096},
                                    {"intermediate_size", 6400},
                                    {"num_attention_heads", 32},
                                    {"num_key_value_heads", 8},
                                    {"num_local_experts", 16},
                                    {"num_experts_per_tok", 2},
                                    {"max_position_embeddings", 131072},
                                    {"vocab_size", 32064},
                                    {"attention_bias", true}}},
                                  {9.4,
                                   40 * 2 * 2 * 128 * 2,
                                   {{"model_type", "glm4"},
                                    {"num_hidden_layers", 40},
                                    {"hidden_size", 4096},
                                    {"intermediate_size", 13696},
                                    {"num_attention_heads", 32},
                                    {"num_key_value_heads", 2},
                                    {"head_dim", 128},
                                    {"max_position_embeddings", 32768},
                                    {"vocab_size", 151552}}},
                                  {15.96,
                                   40 * 2 * 4 * 128 * 2,
                                   {{"model_type", "starcoder2"},
                                    {"num_hidden_layers", 40},
                                    {"hidden_size", 6144},
                                    {"intermediate_size", 24576},
                                    {"num_attention_heads", 48},
                                    {"num_key_value_heads", 4},
                                    {"max_position_embeddings", 16384},
                                    {"vocab_size", 49152},
                                    {"tie_word_embeddings", false}}}};
    for (const Case& c : cases) {
        const ModelSpec m = read(c.config);
        CAPTURE(c.config["model_type"].dump());
        CHECK(static_cast<double>(parameter_count(m)) / 1e9 == doctest::Approx(c.billion).epsilon(0.003));
        CHECK(kv_bytes_per_token(m, 1, 1, 2) == c.kv_bytes);
    }
    CHECK(read(cases[4].config).max_context == 131072);
    CHECK(read(cases[5].config).layers_of("sliding") == 24);
}

TEST_CASE("config.json: a list that leaves out the attention keeps it in 16 bit") {
    // Llama-3.1-405B-Instruct-FP8 leaves out every attention matrix (and two layers' MLPs): 57.75 GiB a rank at TP 8.
    json config =
        part(llama,
             {{"num_hidden_layers", 126}, {"hidden_size", 16384}, {"intermediate_size", 53248}, {"num_attention_heads", 128}});
    json left_out = json::array({"lm_head"});
    for (int l = 0; l < 126; ++l) {
        for (const char* p : {"q", "k", "v", "o"})
            left_out.push_back("model.layers." + std::to_string(l) + ".self_attn." + p + "_proj");
    }
    const auto rank_gib = [&](const json& quantization) {
        return static_cast<double>(weight_bytes(read(part(config, {{"quantization_config", quantization}})), 8, 1)) /
               static_cast<double>(GiB);
    };
    CHECK(rank_gib({{"quant_method", "fbgemm_fp8"}, {"modules_to_not_convert", left_out}}) ==
          doctest::Approx(56.1).epsilon(0.002));
    CHECK(rank_gib({{"quant_method", "modelopt"}, {"quant_algo", "FP8"}, {"exclude_modules", {"model.layers.*.self_attn*"}}}) ==
          doctest::Approx(56.1).epsilon(0.002));
    // The head alone, one layer, one projection, or a tower's attention: the decoder's is quantised.
    for (const char* name : {"lm_head", "model.layers.3.self_attn", "re:.*self_attn.kv_b_proj", "vision_tower.*.self_attn*"})
        CHECK(rank_gib({{"quant_method", "fbgemm_fp8"}, {"modules_to_not_convert", {name}}}) ==
              doctest::Approx(47.74).epsilon(0.002));
}

TEST_CASE("config.json: ModelOpt's spellings, a merger beside the tower, contradictions by name") {
    const auto dtype = [](const json& quantization) {
        return read(part(llama, {{"quantization_config", quantization}})).dtype;
    };
    CHECK(dtype({{"quant_method", "modelopt"}, {"quantization", {{"quant_algo", "FP8"}}}}) == "fp8");
    CHECK(dtype({{"quant_method", "modelopt_fp4"}}) == "nvfp4");
    CHECK(dtype({{"producer", {{"name", "modelopt"}}}, {"quant_algo", "NVFP4"}}) == "nvfp4");
    // Qwen2.5-VL-7B: 8.29 B with its tower and merger.
    const ModelSpec vl = read({{"model_type", "qwen2_5_vl"},
                               {"num_hidden_layers", 28},
                               {"hidden_size", 3584},
                               {"intermediate_size", 18944},
                               {"num_attention_heads", 28},
                               {"num_key_value_heads", 4},
                               {"max_position_embeddings", 128000},
                               {"vocab_size", 152064},
                               {"tie_word_embeddings", false},
                               {"vision_config",
                                {{"model_type", "qwen2_5_vl"},
                                 {"depth", 32},
                                 {"hidden_size", 1280},
                                 {"intermediate_size", 3420},
                                 {"out_hidden_size", 3584}}}});
    CHECK(static_cast<double>(parameter_count(vl) + vl.encoder_parameters) / 1e9 == doctest::Approx(8.29).epsilon(0.001));

    const auto says = [](const json& change, const char* word) {
        CHECK_MESSAGE(refusal(part(llama, change).dump()).find(word) != std::string::npos, word);
    };
    says({{"rope_scaling", "yarn"}}, "rope_scaling");
    says({{"text_config", "llama"}}, "text_config");
    says({{"num_key_value_heads", 0}}, "num_key_value_heads");
    says({{"num_key_value_heads", 7}}, "num_key_value_heads 7");
    says({{"quantization_config", {{"quant_method", 5}}}}, "quantization_config");
    const json experts{{"model_type", "glm4_moe"}, {"n_routed_experts", 8},         {"num_experts_per_tok", 9},
                       {"head_dim", 128},          {"moe_intermediate_size", 1408}, {"first_k_dense_replace", 33}};
    says(experts, "num_experts_per_tok 9");
    says(experts, "first_k_dense_replace 33");
}
