// Hugging Face config.json -> ModelSpec.

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kvsim/base/text.hpp"
#include "kvsim/model/catalog.hpp"

namespace kvsim {
namespace {

using nlohmann::json;

enum class Family { dense, mixtral, qwen_moe, routed, mla, opt };

struct Known {
    std::string_view type;
    Family family;
    bool qkv_bias;
    bool qk_norm;
};
constexpr std::array<Known, 14> known_types{{{"llama", Family::dense, false, false},
                                             {"mistral", Family::dense, false, false},
                                             {"ministral", Family::dense, false, false},
                                             {"phi3", Family::dense, false, false},
                                             {"qwen2", Family::dense, true, false},
                                             {"qwen3", Family::dense, false, true},
                                             {"mixtral", Family::mixtral, false, false},
                                             {"qwen2_moe", Family::qwen_moe, true, false},
                                             {"qwen3_moe", Family::qwen_moe, false, true},
                                             {"glm4_moe", Family::routed, false, false},
                                             {"deepseek_v2", Family::mla, false, false},
                                             {"deepseek_v3", Family::mla, false, false},
                                             {"kimi_k2", Family::mla, false, false},
                                             {"opt", Family::opt, true, false}}};

struct Refused {
    std::string_view type;
    std::string_view why;
};
constexpr std::array<Refused, 9> refused_types{{{"gemma2", "sliding-window layers"},
                                                {"gemma3", "sliding-window layers"},
                                                {"gemma3_text", "sliding-window layers"},
                                                {"gpt_oss", "sliding-window layers"},
                                                {"llama4", "chunked-attention layers"},
                                                {"llama4_text", "chunked-attention layers"},
                                                {"qwen3_next", "linear-attention layers"},
                                                {"deepseek_v32", "sparse latent attention with an indexer"},
                                                {"glm_moe_dsa", "sparse latent attention with an indexer"}}};

/// Looks keys up in text_config first, then at the top, and remembers every problem.
class Reader {
public:
    Reader(const json& top, const json& inner) : top_(top), inner_(inner) {}

    [[nodiscard]] const json* find(const char* key) const {
        for (const json* object : {&inner_, &top_}) {
            const auto it = object->find(key);
            if (it != object->end() && !it->is_null()) return &*it;
        }
        return nullptr;
    }
    /// The first of the keys that is present; nullopt (without a complaint) when none is.
    std::optional<std::int64_t> maybe(std::initializer_list<const char*> keys) {
        for (const char* key : keys) {
            const json* value = find(key);
            if (value == nullptr) continue;
            if (!value->is_number_integer() || value->get<std::int64_t>() < 0 || value->get<std::int64_t>() > (1LL << 40)) {
                wrong.emplace_back(std::string(key) + " must be a whole number, is " + value->dump());
                return 1;
            }
            return value->get<std::int64_t>();
        }
        return std::nullopt;
    }
    std::int64_t need(std::initializer_list<const char*> keys) {
        if (const auto value = maybe(keys)) {
            if (*value > 0) return *value;
            wrong.emplace_back(std::string(*keys.begin()) + " must be positive");
            return 1;
        }
        missing.emplace_back(*keys.begin());
        return 1;
    }
    bool flag(const char* key, bool otherwise) {
        const json* value = find(key);
        if (value == nullptr) return otherwise;
        if (value->is_boolean()) return value->get<bool>();
        wrong.emplace_back(std::string(key) + " must be true or false");
        return otherwise;
    }
    std::string text(const char* key) {
        const json* value = find(key);
        return value != nullptr && value->is_string() ? value->get<std::string>() : "";
    }

    std::vector<std::string> missing;
    std::vector<std::string> wrong;

private:
    const json& top_;
    const json& inner_;
};

std::string joined(const std::vector<std::string>& words) {
    std::string out;
    for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
    return out;
}

/// Storage of the linear layers; "" when the method is not known.
std::string weight_dtype(const json* quantization, const std::string& plain) {
    if (quantization == nullptr) return plain;
    if (!quantization->is_object()) return "";
    const std::string method = quantization->value("quant_method", std::string());
    const auto bits = [&](const json& object, const char* key, int otherwise) {
        const auto it = object.find(key);
        return it != object.end() && it->is_number_integer() ? it->get<int>() : otherwise;
    };
    if (method == "fp8" || method == "fbgemm_fp8") return "fp8";
    if (method == "mxfp4") return "mxfp4";
    if (method == "awq" || method == "gptq" || method == "awq_marlin" || method == "gptq_marlin") {
        const int n = bits(*quantization, "bits", bits(*quantization, "w_bit", 4));
        if (n == 8) return "int8";
        return n == 4 ? method.substr(0, method.find('_')) : "";
    }
    if (method == "compressed-tensors") {
        const json& all = *quantization;
        const auto groups = all.find("config_groups");
        if (groups == all.end() || !groups->is_object() || groups->empty()) return "";
        const json& group = groups->begin().value();
        if (!group.is_object() || !group.contains("weights") || !group["weights"].is_object()) return "";
        const json& weights = group["weights"];
        const int n = bits(weights, "num_bits", 0);
        if (n == 8) return weights.value("type", std::string()) == "float" ? "fp8" : "int8";
        return n == 4 ? "awq" : "";
    }
    return "";
}

bool is_dtype(std::string_view name) {
    constexpr std::array<std::string_view, 6> plain{"bfloat16", "float16", "half", "float32", "float", "auto"};
    return std::find(plain.begin(), plain.end(), name) != plain.end() || name.starts_with("float8");
}

/// vLLM stretches the declared length by the rope factor unless the scaling is llama3's or longrope's.
std::int64_t scaled_context(std::int64_t declared, const json* scaling) {
    if (scaling == nullptr || !scaling->is_object()) return declared;
    const std::string type = scaling->value("rope_type", scaling->value("type", std::string()));
    const auto factor = scaling->find("factor");
    if (type.empty() || type == "default" || type == "llama3" || type == "longrope" || type == "su" || type == "mrope") {
        return declared;
    }
    if (factor == scaling->end() || !factor->is_number()) return declared;
    double base = static_cast<double>(declared);
    const auto original = scaling->find("original_max_position_embeddings");
    if (type == "yarn" && original != scaling->end() && original->is_number()) base = original->get<double>();
    const double length = base * factor->get<double>();
    return length >= 1 && length < 1e12 ? std::llround(length) : declared;
}

}  // namespace

std::optional<ModelSpec> read_hf_config(std::string_view text, std::string name, const config::Mark& at,
                                        config::Diagnostics& diagnostics) {
    const auto fail = [&](const std::string& message) {
        diagnostics.error(at, name + ": " + message);
        return std::nullopt;
    };
    try {
        const json top = json::parse(text);
        if (!top.is_object()) return fail("not a JSON object");
        const auto nested = top.find("text_config");
        const json inner = nested != top.end() && nested->is_object() ? *nested : json::object();
        Reader r(top, inner);

        const std::string type = r.text("model_type");
        for (const Refused& refused : refused_types) {
            if (type == refused.type) {
                return fail("model_type " + type + " has " + std::string(refused.why) + "; not supported by this version");
            }
        }
        const auto known = std::find_if(known_types.begin(), known_types.end(), [&](const Known& k) { return k.type == type; });
        if (known == known_types.end()) {
            std::string names;
            for (const Known& k : known_types) names += (names.empty() ? "" : ", ") + std::string(k.type);
            return fail((type.empty() ? "no model_type" : "unknown model_type '" + type + "'") + " (known: " + names +
                        "); write the facts in the scenario instead: model: {layers, hidden, intermediate, heads, kv_heads, "
                        "head_dim, vocab, max_context}");
        }

        ModelSpec m;
        m.name = name;
        m.source = name;
        const Family family = known->family;
        const bool opt = family == Family::opt;
        m.layers = r.need({"num_hidden_layers"});
        m.hidden = r.need({"hidden_size"});
        m.heads = r.need({"num_attention_heads"});
        m.vocab = r.need({"vocab_size"});
        m.max_context = scaled_context(r.need({"max_position_embeddings"}), r.find("rope_scaling"));
        if (opt) {
            m.intermediate = r.need({"ffn_dim"});
            m.kv_heads = m.heads;
            m.mlp = "plain";
            m.learned_positions = true;
            if (const auto width = r.maybe({"word_embed_proj_dim"}); width && *width != m.hidden) {
                r.wrong.emplace_back("word_embed_proj_dim other than hidden_size is not supported");
            }
        } else if (type == "llama" || type == "phi3" || family == Family::mla) {
            m.kv_heads = r.maybe({"num_key_value_heads"}).value_or(m.heads);
        } else {
            m.kv_heads = r.need({"num_key_value_heads"});
        }
        if (family == Family::mixtral) {
            m.moe.intermediate = r.need({"intermediate_size"});
            m.moe.experts = r.need({"num_local_experts"});
            m.moe.top_k = r.need({"num_experts_per_tok"});
        } else if (!opt) {
            m.intermediate = r.need({"intermediate_size"});
        }
        if (family == Family::qwen_moe) {
            m.moe.experts = r.need({"num_experts"});
            m.moe.top_k = r.need({"num_experts_per_tok"});
            m.moe.intermediate = r.need({"moe_intermediate_size"});
            m.moe.shared_intermediate = r.maybe({"shared_expert_intermediate_size"}).value_or(0);
            m.moe.layer_step = std::max<std::int64_t>(1, r.maybe({"decoder_sparse_step"}).value_or(1));
            if (const json* only = r.find("mlp_only_layers"); only != nullptr && only->is_array() && !only->empty()) {
                r.wrong.emplace_back("mlp_only_layers is not supported");
            }
        }
        // A DeepSeek-style checkpoint without routed experts is dense.
        if (family == Family::routed || (family == Family::mla && r.find("n_routed_experts") != nullptr)) {
            m.moe.experts = r.need({"n_routed_experts"});
            m.moe.top_k = r.need({"num_experts_per_tok"});
            m.moe.intermediate = r.need({"moe_intermediate_size"});
            m.moe.shared_intermediate = r.maybe({"n_shared_experts"}).value_or(0) * m.moe.intermediate;
            m.moe.first_dense_layers = r.maybe({"first_k_dense_replace"}).value_or(0);
            m.moe.layer_step = std::max<std::int64_t>(1, r.maybe({"moe_layer_freq"}).value_or(1));
        }
        if (family == Family::mla) {
            m.mla.kv_lora_rank = r.need({"kv_lora_rank"});
            m.mla.qk_rope_head_dim = r.need({"qk_rope_head_dim"});
            m.mla.qk_nope_head_dim = r.need({"qk_nope_head_dim"});
            m.mla.v_head_dim = r.need({"v_head_dim"});
            m.mla.q_lora_rank = r.maybe({"q_lora_rank"}).value_or(0);
            m.head_dim = m.mla.qk_nope_head_dim + m.mla.qk_rope_head_dim;
        } else if (const auto head_dim = r.maybe({"head_dim"})) {
            m.head_dim = *head_dim;
        } else if (r.missing.empty()) {
            if (m.hidden % m.heads != 0) r.wrong.emplace_back("hidden_size is not a multiple of num_attention_heads");
            m.head_dim = m.hidden / m.heads;
        }
        m.tie_embeddings = r.flag("tie_word_embeddings", opt);
        m.qkv_bias = r.flag("attention_bias", known->qkv_bias);
        m.qk_norm = r.flag("use_qk_norm", known->qk_norm);

        std::string plain;
        for (const char* key : {"dtype", "torch_dtype"}) {  // newer files say dtype; the older key wins
            const json* written = r.find(key);
            if (written == nullptr) continue;
            plain = r.text(key);
            if (!is_dtype(plain)) r.wrong.push_back(std::string(key) + " is no element type: " + excerpt(written->dump(), 40));
        }
        plain = plain == "float16" || plain == "half" ? "float16" : "bfloat16";  // vLLM's `auto` runs float32 in 16 bit
        m.dtype = weight_dtype(r.find("quantization_config"), plain);
        if (m.dtype.empty()) {
            r.wrong.emplace_back("quantization_config is not one of fp8, awq, gptq, compressed-tensors (4 or 8 bit)");
        }

        std::int64_t window = 0;
        if (r.flag("use_sliding_window", true)) window = r.maybe({"sliding_window"}).value_or(0);
        if (window >= m.max_context) window = 0;
        m.attention.push_back({m.is_mla() ? "mla" : (window > 0 ? "sliding" : "full"), m.layers, window, 0, 0});

        if (r.missing.empty() && r.wrong.empty()) {
            if (std::string problem = m.problem(); !problem.empty()) r.wrong.push_back(std::move(problem));
        }
        if (!r.missing.empty()) r.wrong.insert(r.wrong.begin(), "missing " + joined(r.missing));
        if (!r.wrong.empty()) return fail(joined(r.wrong));
        return m;
    } catch (const json::exception& error) {
        std::string_view what = error.what();  // "[json.exception.KIND.NUMBER] ..."
        if (const std::size_t end = what.find("] "); what.starts_with('[') && end != std::string_view::npos)
            what.remove_prefix(end + 2);
        return fail("not a config.json: " + excerpt(what, 300));
    }
}

}  // namespace kvsim
