// Hugging Face config.json -> ModelSpec.

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "kvsim/base/text.hpp"
#include "kvsim/model/catalog.hpp"

namespace kvsim {
namespace {

using nlohmann::json;

/// Where the experts' figures stand.
enum class Experts { none, mixtral, qwen, routed, llama4, gpt_oss, jamba, gemma4, granite };
/// What the layers attend to when the file has no layer_types.
enum class Mix { plain, mla, every_second, every_fourth, gemma3, llama4, gated_delta, jamba, nemotron_h, mamba, opt, classic };

struct Known {
    std::string_view type;
    Mix mix;
    Experts experts = Experts::none;
    bool qkv_bias = false;
    bool qk_norm = false;
    bool tied = false;
};
constexpr std::array known_types{Known{"llama", Mix::plain},
                                 Known{"mistral", Mix::plain},
                                 Known{"ministral", Mix::plain},
                                 Known{"phi3", Mix::plain},
                                 Known{"granite", Mix::plain},
                                 Known{"gemma", Mix::plain, Experts::none, false, false, true},
                                 Known{"qwen2", Mix::plain, Experts::none, true},
                                 Known{"qwen2_vl", Mix::plain, Experts::none, true},
                                 Known{"qwen2_vl_text", Mix::plain, Experts::none, true},
                                 Known{"qwen2_5_vl", Mix::plain, Experts::none, true},
                                 Known{"qwen2_5_vl_text", Mix::plain, Experts::none, true},
                                 Known{"qwen3", Mix::plain, Experts::none, false, true},
                                 Known{"qwen3_vl", Mix::plain, Experts::none, false, true},
                                 Known{"qwen3_vl_text", Mix::plain, Experts::none, false, true},
                                 Known{"mixtral", Mix::plain, Experts::mixtral},
                                 Known{"qwen2_moe", Mix::plain, Experts::qwen, true},
                                 Known{"qwen3_moe", Mix::plain, Experts::qwen, false, true},
                                 Known{"qwen3_vl_moe", Mix::plain, Experts::qwen, false, true},
                                 Known{"qwen3_vl_moe_text", Mix::plain, Experts::qwen, false, true},
                                 Known{"glm4_moe", Mix::plain, Experts::routed},
                                 Known{"minimax_m2", Mix::plain, Experts::mixtral, false, true},
                                 Known{"deepseek_v2", Mix::mla, Experts::routed},
                                 Known{"deepseek_v3", Mix::mla, Experts::routed},
                                 Known{"deepseek_v32", Mix::mla, Experts::routed},
                                 Known{"glm_moe_dsa", Mix::mla, Experts::routed},
                                 Known{"kimi_k2", Mix::mla, Experts::routed},
                                 Known{"kimi_k25", Mix::mla, Experts::routed},
                                 Known{"gemma2", Mix::every_second, Experts::none, false, false, true},
                                 Known{"gemma3", Mix::gemma3, Experts::none, false, true, true},
                                 Known{"gemma3_text", Mix::gemma3, Experts::none, false, true, true},
                                 Known{"gemma4", Mix::gemma3, Experts::gemma4, false, true, true},
                                 Known{"gemma4_text", Mix::gemma3, Experts::gemma4, false, true, true},
                                 Known{"gpt_oss", Mix::every_second, Experts::gpt_oss, true},
                                 Known{"llama4", Mix::llama4, Experts::llama4},
                                 Known{"llama4_text", Mix::llama4, Experts::llama4},
                                 Known{"qwen3_next", Mix::gated_delta, Experts::qwen, false, true},
                                 Known{"qwen3_5", Mix::gated_delta, Experts::none, false, true},
                                 Known{"qwen3_5_text", Mix::gated_delta, Experts::none, false, true},
                                 Known{"qwen3_5_moe", Mix::gated_delta, Experts::qwen, false, true},
                                 Known{"qwen3_5_moe_text", Mix::gated_delta, Experts::qwen, false, true},
                                 Known{"jamba", Mix::jamba, Experts::jamba},
                                 Known{"bamba", Mix::mamba, Experts::none},
                                 Known{"granitemoehybrid", Mix::mamba, Experts::granite},
                                 Known{"nemotron_h", Mix::nemotron_h},
                                 Known{"mamba", Mix::mamba},
                                 Known{"mamba2", Mix::mamba},
                                 Known{"glm4_moe_lite", Mix::mla, Experts::routed},
                                 Known{"phimoe", Mix::plain, Experts::mixtral, true},
                                 Known{"glm4", Mix::plain},
                                 Known{"olmo2", Mix::plain, Experts::none, false, true},
                                 Known{"seed_oss", Mix::plain, Experts::none, true},
                                 Known{"smollm3", Mix::plain, Experts::none, false, false, true},
                                 Known{"cohere", Mix::plain, Experts::none, false, false, true},
                                 Known{"cohere2", Mix::every_fourth, Experts::none, false, false, true},
                                 Known{"gpt2", Mix::classic, Experts::none, true, false, true},
                                 Known{"gpt_bigcode", Mix::classic, Experts::none, true, false, true},
                                 Known{"gpt_neox", Mix::classic, Experts::none, true},
                                 Known{"falcon", Mix::classic, Experts::none, false, false, true},
                                 Known{"starcoder2", Mix::classic, Experts::none, true, false, true},
                                 Known{"opt", Mix::opt, Experts::none, true, false, true}};

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
    const auto word = [](const json& object, const char* key) {
        const auto it = object.find(key);
        return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
    };
    const std::string method = word(*quantization, "quant_method");
    const auto bits = [&](const json& object, const char* key, int otherwise) {
        const auto it = object.find(key);
        return it != object.end() && it->is_number_integer() ? it->get<int>() : otherwise;
    };
    if (method == "fp8" || method == "fbgemm_fp8" || method == "ptpc_fp8") return "fp8";
    if (method == "mxfp4") return "mxfp4";
    if (method == "bitsandbytes") {
        const auto on = [&](const char* key) {
            const auto it = quantization->find(key);
            return it != quantization->end() && it->is_boolean() && it->get<bool>();
        };
        return on("load_in_8bit") || on("_load_in_8bit") ? "int8" : "bitsandbytes";
    }
    if (method.empty() || method.starts_with("modelopt") || method == "nvfp4") {
        // ModelOpt writes the algorithm at the top or below `quantization`, and not always a method.
        std::string algorithm = word(*quantization, "quant_algo");
        const auto nested = quantization->find("quantization");
        if (algorithm.empty() && nested != quantization->end() && nested->is_object()) algorithm = word(*nested, "quant_algo");
        if (algorithm.empty() && (method == "nvfp4" || method == "modelopt_fp4")) algorithm = "NVFP4";
        return algorithm == "NVFP4" ? "nvfp4" : algorithm == "FP8" ? "fp8" : "";
    }
    if (method == "awq" || method == "gptq" || method == "awq_marlin" || method == "gptq_marlin" || method == "auto-round") {
        const int n = bits(*quantization, "bits", bits(*quantization, "w_bit", 4));
        if (n == 8) return "int8";
        return n != 4 ? "" : method == "auto-round" ? "gptq" : method.substr(0, method.find('_'));
    }
    if (method == "compressed-tensors") {
        const json& all = *quantization;
        const auto groups = all.find("config_groups");
        if (groups == all.end() || !groups->is_object() || groups->empty()) return "";
        const json& group = groups->begin().value();
        if (!group.is_object() || !group.contains("weights") || !group["weights"].is_object()) return "";
        const json& weights = group["weights"];
        const int n = bits(weights, "num_bits", 0);
        if (n == 8) return word(weights, "type") == "float" ? "fp8" : "int8";
        return n != 4 ? "" : word(weights, "type") == "float" ? "nvfp4" : "awq";
    }
    return "";
}

/// Whether the list of what quantization left out names the attention of every layer: by one pattern, or layer by layer.
bool attention_left_out(const json* quantization, std::int64_t layers) {
    if (quantization == nullptr || !quantization->is_object()) return false;
    constexpr std::string_view attention = "self_attn";
    std::set<std::string> numbers;
    for (const char* key : {"modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules"}) {
        const auto list = quantization->find(key);
        if (list == quantization->end() || !list->is_array()) continue;
        for (const json& item : *list) {
            if (!item.is_string()) continue;
            const auto name = item.get<std::string>();
            const std::size_t found = name.find(attention);
            if (found == std::string::npos || name.find("vis") != std::string::npos) continue;
            const std::string before = name.substr(0, found);
            const std::size_t digit = before.find_first_of("0123456789");
            if (digit != std::string::npos) {
                numbers.insert(before.substr(digit, before.find_first_not_of("0123456789", digit) - digit));
            } else if (name.find_first_not_of("*.$", found + attention.size()) == std::string::npos) {
                return true;
            }
        }
    }
    return static_cast<std::int64_t>(numbers.size()) >= layers;
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

/// Counts layers by kind and by the order they first appear in.
class LayerCount {
public:
    void add(std::string_view kind, std::int64_t window = 0, std::int64_t count = 1) {
        for (AttentionGroup& group : groups_) {
            if (group.kind == kind && group.window == window) {
                group.layers += count;
                return;
            }
        }
        AttentionGroup group;
        group.kind = std::string(kind);
        group.layers = count;
        group.window = window;
        groups_.push_back(std::move(group));
    }
    [[nodiscard]] std::vector<AttentionGroup> take() { return std::move(groups_); }

private:
    std::vector<AttentionGroup> groups_;
};

/// The kinds of the layers, one name each, from layer_types or layers_block_type; empty: the file has neither.
std::vector<std::string> written_layer_types(Reader& r, std::int64_t layers) {
    const json* list = r.find("layer_types");
    if (list == nullptr) list = r.find("layers_block_type");
    std::vector<std::string> out;
    if (list == nullptr) return out;
    if (!list->is_array()) {
        r.wrong.emplace_back("layer_types must be a list");
        return out;
    }
    for (const json& item : *list) {
        const std::string name = item.is_string() ? item.get<std::string>() : item.dump();
        if (name == "full_attention" || name == "attention" || name == "global") {
            out.emplace_back("full");
        } else if (name == "sliding_attention" || name == "local") {
            out.emplace_back("sliding");
        } else if (name == "chunked_attention") {
            out.emplace_back("chunked");
        } else if (name == "linear_attention" || name == "mamba" || name == "mamba2") {
            out.emplace_back("linear");
        } else if (name == "mlp" || name == "moe") {
            out.emplace_back("none");
        } else {
            r.wrong.push_back("layer_types has an unknown kind " + excerpt(name, 40));
            return {};
        }
    }
    if (static_cast<std::int64_t>(out.size()) != layers) {
        r.wrong.push_back("layer_types has " + std::to_string(out.size()) + " entries, num_hidden_layers is " +
                          std::to_string(layers));
        return {};
    }
    return out;
}

void read_experts(Reader& r, const Known& known, ModelSpec& m) {
    MoeSpec& moe = m.moe;
    switch (known.experts) {
        case Experts::none:
            return;
        case Experts::mixtral:
        case Experts::gpt_oss:
            moe.intermediate = r.need({"intermediate_size"});
            moe.experts = r.need({"num_local_experts", "num_experts"});
            moe.top_k = r.need({"num_experts_per_tok", "experts_per_token"});
            return;
        case Experts::granite:
            moe.experts = r.maybe({"num_local_experts"}).value_or(0);
            m.intermediate = 0;
            if (moe.experts == 0) {
                m.intermediate = r.maybe({"shared_intermediate_size"}).value_or(0);
                if (m.intermediate == 0) m.intermediate = r.need({"intermediate_size"});
                return;
            }
            moe.intermediate = r.need({"intermediate_size"});
            moe.top_k = r.need({"num_experts_per_tok"});
            moe.shared_intermediate = r.maybe({"shared_intermediate_size"}).value_or(0);
            return;
        case Experts::qwen:
            moe.experts = r.need({"num_experts"});
            moe.top_k = r.need({"num_experts_per_tok"});
            moe.intermediate = r.need({"moe_intermediate_size"});
            moe.shared_intermediate = r.maybe({"shared_expert_intermediate_size"}).value_or(0);
            moe.layer_step = std::max<std::int64_t>(1, r.maybe({"decoder_sparse_step"}).value_or(1));
            if (const json* only = r.find("mlp_only_layers"); only != nullptr && only->is_array() && !only->empty()) {
                moe.layers = std::max<std::int64_t>(1, m.layers / moe.layer_step - static_cast<std::int64_t>(only->size()));
            }
            return;
        case Experts::routed:
            // A DeepSeek-style checkpoint without routed experts is dense.
            if (known.mix == Mix::mla && r.find("n_routed_experts") == nullptr) return;
            moe.experts = r.need({"n_routed_experts"});
            moe.top_k = r.need({"num_experts_per_tok"});
            moe.intermediate = r.need({"moe_intermediate_size"});
            moe.shared_intermediate = r.maybe({"n_shared_experts"}).value_or(0) * moe.intermediate;
            moe.first_dense_layers = r.maybe({"first_k_dense_replace"}).value_or(0);
            moe.layer_step = std::max<std::int64_t>(1, r.maybe({"moe_layer_freq"}).value_or(1));
            return;
        case Experts::llama4:
            moe.experts = r.need({"num_local_experts"});
            moe.top_k = r.need({"num_experts_per_tok"});
            moe.intermediate = r.need({"intermediate_size"});
            moe.shared_intermediate = moe.intermediate;
            moe.layer_step = std::max<std::int64_t>(1, r.maybe({"interleave_moe_layer_step"}).value_or(1));
            m.intermediate = moe.layer_step > 1 ? r.need({"intermediate_size_mlp"}) : 0;
            return;
        case Experts::jamba: {
            moe.experts = r.maybe({"num_experts"}).value_or(1);
            if (moe.experts <= 1) {
                moe.experts = 0;
                return;
            }
            moe.top_k = r.need({"num_experts_per_tok"});
            moe.intermediate = r.need({"intermediate_size"});
            const std::int64_t period = std::max<std::int64_t>(1, r.maybe({"expert_layer_period"}).value_or(2));
            const std::int64_t offset = r.maybe({"expert_layer_offset"}).value_or(1);
            for (std::int64_t l = offset; l < m.layers; l += period) ++moe.layers;
            return;
        }
        case Experts::gemma4:
            // The dense MLP runs beside the experts.
            if (!r.flag("enable_moe_block", false)) return;
            moe.experts = r.need({"num_experts"});
            moe.top_k = r.need({"top_k_experts", "num_experts_per_tok"});
            moe.intermediate = r.need({"moe_intermediate_size", "expert_intermediate_size"});
            moe.shared_intermediate = m.intermediate;
            m.intermediate = 0;
            return;
    }
}

void read_latent(Reader& r, ModelSpec& m) {
    m.mla.kv_lora_rank = r.need({"kv_lora_rank"});
    m.mla.qk_rope_head_dim = r.need({"qk_rope_head_dim"});
    m.mla.qk_nope_head_dim = r.need({"qk_nope_head_dim"});
    m.mla.v_head_dim = r.need({"v_head_dim"});
    m.mla.q_lora_rank = r.maybe({"q_lora_rank"}).value_or(0);
    m.head_dim = m.mla.qk_nope_head_dim + m.mla.qk_rope_head_dim;
    if (const auto width = r.maybe({"index_head_dim"})) {
        m.index_head_dim = *width;
        m.index_heads = r.need({"index_n_heads"});
    }
    AttentionGroup group;
    group.kind = m.index_head_dim > 0 ? "sparse_mla" : "mla";
    group.layers = m.layers;
    m.attention = {group};
}

void read_state(Reader& r, const Known& known, const std::string& type, ModelSpec& m) {
    StateSpec& s = m.state;
    const std::string dtype = r.text("mamba_ssm_dtype");
    if (dtype == "float32") s.dtype = dtype;
    if (known.mix == Mix::gated_delta) {
        s.kind = "gated_delta";
        s.heads = r.need({"linear_num_value_heads"});
        s.head_dim = r.need({"linear_value_head_dim"});
        s.groups = r.need({"linear_num_key_heads"});
        s.state_size = r.need({"linear_key_head_dim"});
        s.conv_kernel = r.maybe({"linear_conv_kernel_dim"}).value_or(4);
        if (dtype.empty() && type.starts_with("qwen3_5")) s.dtype = "float32";
        m.attention_gate = true;
    } else if (type == "jamba" || type == "mamba") {
        s.kind = "mamba1";
        const std::int64_t expand = r.maybe({"mamba_expand", "expand"}).value_or(2);
        s.heads = type == "mamba" ? r.maybe({"intermediate_size"}).value_or(expand * m.hidden) : expand * m.hidden;
        s.head_dim = 1;
        s.state_size = r.maybe({"mamba_d_state", "state_size"}).value_or(16);
        s.conv_kernel = r.maybe({"mamba_d_conv", "conv_kernel"}).value_or(4);
    } else {
        s.kind = "mamba2";
        s.heads = r.need({"mamba_num_heads", "mamba_n_heads", "num_heads"});
        s.head_dim = r.need({"mamba_head_dim", "mamba_d_head", "head_dim"});
        s.state_size = r.need({"ssm_state_size", "mamba_d_state", "state_size"});
        s.groups = r.need({"n_groups", "mamba_n_groups", "mamba_num_groups"});
        s.conv_kernel = r.maybe({"conv_kernel", "mamba_d_conv"}).value_or(4);
    }
}

/// Nemotron-H: M = Mamba 2, * = attention, - = MLP, E = experts; a layer is one of them.
void read_pattern(Reader& r, ModelSpec& m) {
    const std::string pattern = r.text("hybrid_override_pattern");
    LayerCount count;
    std::int64_t mlps = 0;
    if (pattern.empty()) {
        const std::vector<std::string> types = written_layer_types(r, m.layers);
        if (types.empty() && r.wrong.empty()) r.missing.emplace_back("hybrid_override_pattern");
        for (const std::string& kind : types) {
            count.add(kind);
            if (kind == "none") ++mlps;
        }
    } else {
        std::int64_t letters = 0;
        for (const char c : pattern) {
            if (c == '|') continue;  // a pipeline boundary
            ++letters;
            if (c == 'M') {
                count.add("linear");
            } else if (c == '*') {
                count.add("full");
            } else if (c == '-' || c == 'E') {
                count.add("none");
                ++mlps;
                if (c == 'E') ++m.moe.layers;
            } else {
                r.wrong.push_back(std::string("hybrid_override_pattern has an unknown letter '") + excerpt(std::string(1, c)) +
                                  "' (M, *, -, E)");
                return;
            }
        }
        if (letters != m.layers) {
            r.wrong.push_back("hybrid_override_pattern has " + std::to_string(letters) + " layers, num_hidden_layers is " +
                              std::to_string(m.layers));
        }
    }
    m.mlp = "plain";
    m.mlp_layers = mlps > 0 ? mlps : ModelSpec::no_mlp;
    if (m.moe.layers > 0) {
        m.moe.experts = r.need({"n_routed_experts"});
        m.moe.top_k = r.need({"num_experts_per_tok"});
        m.moe.intermediate = r.need({"moe_intermediate_size"});
        m.moe.shared_intermediate = r.maybe({"moe_shared_expert_intermediate_size"}).value_or(0);
    }
    m.attention = count.take();
}

void read_layers(Reader& r, const Known& known, const std::string& type, ModelSpec& m) {
    if (known.mix == Mix::nemotron_h) {
        read_state(r, known, type, m);
        return read_pattern(r, m);
    }
    if (known.mix == Mix::mla) return read_latent(r, m);
    std::int64_t window = 0;
    if (r.flag("use_sliding_window", true)) window = r.maybe({"sliding_window"}).value_or(known.mix == Mix::gemma3 ? 4096 : 0);
    if (known.mix == Mix::llama4) window = r.need({"attention_chunk_size"});
    std::vector<std::string> types = written_layer_types(r, m.layers);
    if (types.empty()) {
        const auto fill = [&](std::string_view usual, auto is_full) {
            for (std::int64_t l = 0; l < m.layers; ++l) types.emplace_back(is_full(l) ? "full" : usual);
        };
        // A key of 0 was reported; dividing by it would end the report.
        const auto interval = [&](std::initializer_list<const char*> keys, std::int64_t otherwise) {
            return std::max<std::int64_t>(1, r.maybe(keys).value_or(otherwise));
        };
        switch (known.mix) {
            case Mix::every_second:
                fill("sliding", [](std::int64_t l) { return l % 2 == 1; });
                break;
            case Mix::every_fourth: {
                const std::int64_t pattern = interval({"sliding_window_pattern"}, 4);
                fill("sliding", [&](std::int64_t l) { return (l + 1) % pattern == 0; });
                break;
            }
            case Mix::gemma3: {
                const std::int64_t pattern = interval({"sliding_window_pattern", "_sliding_window_pattern"}, 6);
                fill("sliding", [&](std::int64_t l) { return (l + 1) % pattern == 0; });
                break;
            }
            case Mix::llama4: {
                const std::int64_t step = interval({"no_rope_layer_interval"}, 4);
                const json* list = r.find("no_rope_layers");  // 1: rotary, hence chunked
                if (list != nullptr && list->is_array() && list->size() == static_cast<std::size_t>(m.layers)) {
                    fill("chunked", [&](std::int64_t l) { return (*list)[static_cast<std::size_t>(l)] == 0; });
                } else {
                    fill("chunked", [&](std::int64_t l) { return (l + 1) % step == 0; });
                }
                break;
            }
            case Mix::gated_delta: {
                const std::int64_t step = interval({"full_attention_interval"}, 4);
                fill("linear", [&](std::int64_t l) { return (l + 1) % step == 0; });
                break;
            }
            case Mix::jamba: {
                const std::int64_t period = interval({"attn_layer_period"}, 8);
                const std::int64_t offset = r.maybe({"attn_layer_offset"}).value_or(4);
                fill("linear", [&](std::int64_t l) { return l % period == offset % period; });
                break;
            }
            case Mix::mamba: {
                const json* indices = r.find("attn_layer_indices");
                fill("linear", [&](std::int64_t l) {
                    return indices != nullptr && indices->is_array() &&
                           std::find(indices->begin(), indices->end(), l) != indices->end();
                });
                break;
            }
            default: {
                // Qwen2: the first max_window_layers attend to everything.
                const std::int64_t whole = known.type.starts_with("qwen") ? r.maybe({"max_window_layers"}).value_or(0) : 0;
                fill(window > 0 ? "sliding" : "full", [&](std::int64_t l) { return l < whole; });
            }
        }
    }
    // Layers at the end may use the keys and values of earlier ones (Gemma 3n and 4).
    const std::int64_t shared = r.maybe({"num_kv_shared_layers"}).value_or(0);
    if (shared >= m.layers && shared > 0) r.wrong.emplace_back("num_kv_shared_layers is not below num_hidden_layers");
    LayerCount count;
    bool recurrent = false;
    for (std::size_t l = 0; l < types.size(); ++l) {
        std::string kind = types[l];
        if (static_cast<std::int64_t>(l) >= m.layers - shared && shared < m.layers) kind = "none";
        const bool windowed = kind == "sliding" || kind == "chunked";
        if (windowed && window == 0) r.missing.emplace_back(kind == "sliding" ? "sliding_window" : "attention_chunk_size");
        if (windowed && window == 0) return;
        if (windowed && window >= m.max_context) kind = "full";
        count.add(kind, kind == "sliding" || kind == "chunked" ? window : 0);
        recurrent = recurrent || kind == "linear";
    }
    m.attention = count.take();
    if (recurrent) read_state(r, known, type, m);
    const bool wide = known.experts == Experts::gemma4;
    for (AttentionGroup& group : m.attention) {
        if (!wide || group.kind != "full") continue;
        group.head_dim = r.maybe({"global_head_dim"}).value_or(0);
        if (r.flag("attention_k_eq_v", false)) group.kv_heads = r.maybe({"num_global_key_value_heads"}).value_or(0);
    }
}

/// A vision tower: four attention matrices and an MLP a layer. Patches are small beside it.
std::int64_t encoder_parameters(const json& top) {
    const auto vision = top.find("vision_config");
    if (vision == top.end() || !vision->is_object()) return 0;
    const auto number = [&](std::initializer_list<const char*> keys) {
        for (const char* key : keys) {
            const auto it = vision->find(key);
            if (it != vision->end() && it->is_number_integer() && it->get<std::int64_t>() > 0 &&
                it->get<std::int64_t>() < 1'000'000) {
                return it->get<std::int64_t>();
            }
        }
        return std::int64_t{0};
    };
    const std::int64_t layers = number({"num_hidden_layers", "depth"});
    const std::int64_t hidden = number({"hidden_size", "embed_dim"});
    const std::int64_t wide = number({"intermediate_size"});
    const std::string type = vision->value("model_type", std::string());
    const std::int64_t matrices = type == "pixtral" || type == "qwen2_5_vl" ? 3 : 2;
    if (layers > 1000) return 0;
    std::int64_t sum = layers * (4 * hidden * hidden + matrices * hidden * (wide > 0 ? wide : 4 * hidden));
    // Qwen: an MLP takes 2 x 2 merged patches to the decoder's width; with deepstack several do.
    if (const std::int64_t out = number({"out_hidden_size"}); out > 0) {
        const auto deep = vision->find("deepstack_visual_indexes");
        const std::int64_t mergers =
            1 + (deep != vision->end() && deep->is_array() ? static_cast<std::int64_t>(deep->size()) : 0);
        const std::int64_t merged = 4 * hidden;
        if (mergers <= layers) sum += mergers * merged * (merged + out);
    }
    return sum;
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
        if (nested != top.end() && !nested->is_null() && !nested->is_object())
            r.wrong.emplace_back("text_config must be an object");

        const auto lookup = [](const std::string& wanted) {
            return std::find_if(known_types.begin(), known_types.end(), [&](const Known& k) { return k.type == wanted; });
        };
        std::string type = r.text("model_type");
        const auto* known = lookup(type);
        if (known == known_types.end() && top.contains("model_type") && top["model_type"].is_string()) {
            const auto outer = top["model_type"].get<std::string>();
            known = lookup(outer);
            // The outer name speaks for an inner one that is missing or a variant of it, not for another architecture.
            if (known != known_types.end() && !type.starts_with(outer) && !type.empty()) known = known_types.end();
            if (known != known_types.end()) type = outer;
        }
        if (known == known_types.end()) {
            std::string names;
            for (const Known& k : known_types) names += (names.empty() ? "" : ", ") + std::string(k.type);
            return fail((type.empty() ? "no model_type" : "unknown model_type '" + excerpt(type) + "'") + " (known: " + names +
                        "); write the facts in the scenario instead: model: {layers, hidden, intermediate, heads, kv_heads, "
                        "head_dim, vocab, max_context}, and moe, mla, state, attention where the model has them");
        }

        ModelSpec m;
        m.name = name;
        m.source = name;
        const bool opt = known->mix == Mix::opt;
        const bool gemma3 = known->mix == Mix::gemma3;
        const bool pure_state = type == "mamba" || type == "mamba2";
        // Gemma 3 files leave out what equals the class's defaults.
        const auto need_or = [&](std::initializer_list<const char*> keys, std::int64_t gemma_default) {
            return gemma3 ? r.maybe(keys).value_or(gemma_default) : r.need(keys);
        };
        const bool classic = known->mix == Mix::classic;
        m.layers = r.need({"num_hidden_layers", "n_layer"});
        if (m.layers > 100'000) {
            // Nothing below may count that far.
            r.wrong.push_back("num_hidden_layers " + std::to_string(m.layers) + " is beyond any model");
            return fail(joined(r.wrong));
        }
        m.hidden = r.need({"hidden_size", "d_model", "n_embd"});
        m.vocab = need_or({"vocab_size"}, 262208);
        std::int64_t declared = 0;
        if (pure_state || type == "falcon") {
            declared = r.maybe({"max_position_embeddings"}).value_or(2048);
        } else if (type.starts_with("cohere")) {  // vLLM asks for Cohere's own key first
            declared = r.need({"model_max_length", "max_position_embeddings"});
        } else {
            declared = need_or({"max_position_embeddings", "n_positions"}, 131072);
        }
        const json* scaling = r.find("rope_scaling");
        if (scaling == nullptr) scaling = r.find("rope_parameters");
        if (scaling != nullptr && !scaling->is_object()) r.wrong.emplace_back("rope_scaling must be an object");
        m.max_context = gemma3 ? declared : scaled_context(declared, scaling);
        if (pure_state) {
            read_state(r, *known, type, m);
            m.heads = m.state.heads;
            m.kv_heads = 1;
            m.head_dim = 1;
            m.mlp_layers = ModelSpec::no_mlp;
            AttentionGroup group;
            group.kind = "linear";
            group.layers = m.layers;
            m.attention = {group};
        } else {
            m.heads = need_or({"num_attention_heads", "n_head"}, 8);
            if (classic) {
                const bool one = r.flag("multi_query", type == "falcon" || type == "gpt_bigcode") &&
                                 !r.flag("new_decoder_architecture", false);
                const bool shared = type == "falcon" || type == "gpt_bigcode";
                m.kv_heads = shared && one ? 1 : r.maybe({"num_key_value_heads", "num_kv_heads"}).value_or(m.heads);
            } else if (opt) {
                m.kv_heads = m.heads;
            } else if (type == "llama" || type == "phi3" || known->mix == Mix::mla) {
                m.kv_heads = r.maybe({"num_key_value_heads"}).value_or(m.heads);
            } else {
                m.kv_heads = need_or({"num_key_value_heads"}, 4);
            }
            const bool own_width = known->experts == Experts::mixtral || known->experts == Experts::gpt_oss ||
                                   known->experts == Experts::llama4 || known->experts == Experts::granite;
            if (opt) {
                m.intermediate = r.need({"ffn_dim"});
                m.mlp = "plain";
                m.learned_positions = true;
                if (const auto width = r.maybe({"word_embed_proj_dim"}); width && *width != m.hidden) {
                    r.wrong.emplace_back("word_embed_proj_dim other than hidden_size is not supported");
                }
            } else if (classic) {
                m.intermediate = r.maybe({"intermediate_size", "n_inner", "ffn_hidden_size"}).value_or(4 * m.hidden);
                m.mlp = "plain";
                m.learned_positions = type.starts_with("gpt2") || type == "gpt_bigcode";
            } else if (type.starts_with("qwen3_5_moe") || (known->mix == Mix::nemotron_h)) {
                m.intermediate = r.maybe({"intermediate_size"}).value_or(0);
            } else if (!own_width) {
                m.intermediate = r.need({"intermediate_size"});
            }
            read_experts(r, *known, m);
            if (m.kv_heads < 1) r.wrong.emplace_back("num_key_value_heads must be positive");
            if (m.kv_heads >= 1 && m.heads >= 1 && m.heads % m.kv_heads != 0) {
                r.wrong.push_back("num_attention_heads " + std::to_string(m.heads) +
                                  " is not a multiple of num_key_value_heads " + std::to_string(m.kv_heads));
            }
            if (m.moe.top_k > m.moe.experts) {
                r.wrong.push_back("num_experts_per_tok " + std::to_string(m.moe.top_k) + " exceeds the " +
                                  std::to_string(m.moe.experts) + " experts");
            }
            if (m.moe.first_dense_layers > m.layers) {
                r.wrong.push_back("first_k_dense_replace " + std::to_string(m.moe.first_dense_layers) +
                                  " exceeds num_hidden_layers " + std::to_string(m.layers));
            }
            if (known->mix != Mix::mla) {
                const std::initializer_list<const char*> keys = {"head_dim", "attention_head_dim"};
                if (const auto head_dim = r.maybe(keys)) {
                    m.head_dim = *head_dim;
                } else if (gemma3) {
                    m.head_dim = 256;
                } else if (r.missing.empty()) {
                    if (m.hidden % m.heads != 0) r.wrong.emplace_back("hidden_size is not a multiple of num_attention_heads");
                    m.head_dim = m.hidden / m.heads;
                }
            }
            read_layers(r, *known, type, m);
        }
        m.tie_embeddings = r.flag("tie_word_embeddings", known->tied);
        m.qkv_bias = r.flag("attention_bias", known->qkv_bias);
        m.qk_norm = r.flag("use_qk_norm", known->qk_norm);
        m.draft_layers = r.maybe({"num_nextn_predict_layers", "mtp_num_hidden_layers"}).value_or(0);
        m.encoder_parameters = encoder_parameters(top);

        std::string plain;
        for (const char* key : {"dtype", "torch_dtype"}) {  // newer files say dtype; the older key wins
            const json* written = r.find(key);
            if (written == nullptr) continue;
            plain = r.text(key);
            if (!is_dtype(plain)) r.wrong.push_back(std::string(key) + " is no element type: " + excerpt(written->dump(), 40));
        }
        plain = plain == "float16" || plain == "half" ? "float16" : "bfloat16";  // vLLM's `auto` runs float32 in 16 bit
        m.dtype = weight_dtype(r.find("quantization_config"), plain);
        m.attention_quantized = !attention_left_out(r.find("quantization_config"), m.layers);
        if (m.dtype.empty()) {
            r.wrong.emplace_back(
                "quantization_config is not one of fp8, awq, gptq, mxfp4, nvfp4 (modelopt), bitsandbytes, "
                "compressed-tensors (4 or 8 bit)");
        }

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
