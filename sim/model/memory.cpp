#include "kvsim/model/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace kvsim {
namespace {

std::string gib(double bytes) {
    return fmt::format("{:.2f} GiB", bytes / static_cast<double>(GiB));
}
std::string gib(std::int64_t bytes) {
    return gib(static_cast<double>(bytes));
}

/// Weights of one layer's attention on one rank, and what stays in 16 bit there.
struct LayerWeights {
    std::int64_t linear = 0;  ///< quantized when the model is
    std::int64_t kept = 0;    ///< norms, biases
};

LayerWeights attention_weights(const ModelSpec& m, std::int64_t tp) {
    LayerWeights w;
    const std::int64_t heads = m.heads / tp;
    if (m.is_mla()) {
        const MlaSpec& a = m.mla;
        const std::int64_t qk = a.qk_nope_head_dim + a.qk_rope_head_dim;
        if (a.q_lora_rank > 0) {
            w.linear += m.hidden * a.q_lora_rank + a.q_lora_rank * heads * qk;
            w.kept += a.q_lora_rank;
        } else {
            w.linear += m.hidden * heads * qk;
        }
        w.linear += m.hidden * (a.kv_lora_rank + a.qk_rope_head_dim);
        w.linear += a.kv_lora_rank * heads * (a.qk_nope_head_dim + a.v_head_dim);
        w.linear += heads * a.v_head_dim * m.hidden;
        w.kept += a.kv_lora_rank;
    } else {
        const std::int64_t kv_heads = kv_heads_per_rank(m, tp);
        w.linear += m.hidden * (2 * heads + 2 * kv_heads) * m.head_dim;
        if (m.qkv_bias) w.kept += (heads + 2 * kv_heads) * m.head_dim;
        if (m.qk_norm) w.kept += 2 * m.head_dim;
    }
    w.kept += 2 * m.hidden;
    return w;
}

std::int64_t mlp_matrices(const ModelSpec& m) {
    return m.mlp == "plain" ? 2 : 3;
}

/// One rank's share of a whole: vLLM pads odd sizes up.
std::int64_t share(std::int64_t whole, std::int64_t tp) {
    return ceil_div(whole, tp);
}

struct RankParameters {
    std::int64_t linear = 0;
    std::int64_t experts = 0;
    std::int64_t kept = 0;  ///< embeddings, head, router, norms
};

RankParameters rank_parameters(const ModelSpec& m, std::int64_t tp, std::int64_t pp) {
    // The heaviest stage: as many layers as any, MoE ones first (they are the larger), and one of embedding and head.
    const std::int64_t layers = ceil_div(m.layers, pp);
    const std::int64_t moe_layers = std::min(m.moe_layers(), layers);
    const std::int64_t dense_layers = pp == 1 ? m.dense_layers() : layers - moe_layers;
    RankParameters p;
    const LayerWeights attention = attention_weights(m, tp);
    p.linear += layers * attention.linear;
    p.kept += layers * attention.kept;
    p.linear += dense_layers * mlp_matrices(m) * m.hidden * share(m.intermediate, tp);
    p.linear += moe_layers * 3 * m.hidden * share(m.moe.shared_intermediate, tp);
    p.experts += moe_layers * m.moe.experts * 3 * m.hidden * share(m.moe.intermediate, tp);
    p.kept += moe_layers * m.moe.experts * m.hidden;
    const std::int64_t table = share(m.vocab, tp) * m.hidden;
    p.kept += (m.tie_embeddings || pp > 1 ? table : 2 * table) + m.hidden;
    if (m.learned_positions) p.kept += (m.max_context + 2) * m.hidden;
    return p;
}

struct Rule {
    double bytes;
    std::string text;
};

/// Fitted to 37 start-up logs that print the term (vLLM 0.6 to ~0.13; 25 of them within 10 %).
Rule activation_rule(const MemoryOptions& o, const ModelSpec& m) {
    const double sampler =
        9.7 * static_cast<double>(o.max_num_seqs) * static_cast<double>(m.vocab) * static_cast<double>(sizeof(float));
    const std::int64_t width = std::max(m.intermediate, m.moe.top_k * m.moe.intermediate + m.moe.shared_intermediate);
    const double layer = 6.0 * static_cast<double>(o.max_num_batched_tokens) * static_cast<double>(width + m.hidden) /
                         static_cast<double>(o.tensor_parallel_size);
    if (sampler >= layer) {
        return {sampler, fmt::format("sampler: 9.7 x max_num_seqs {} x vocab {} x 4 B", o.max_num_seqs, m.vocab)};
    }
    return {layer, fmt::format("layer: 6 B x max_num_batched_tokens {} x (intermediate {} + hidden {}) / TP {}",
                               o.max_num_batched_tokens, width, m.hidden, o.tensor_parallel_size)};
}

/// Medians of start-up logs: 0.13 GiB (0.01-0.35) on one GPU, 0.25-0.55 on two, about 1.4 on four, 0.2-7.2 on eight.
Rule non_torch_rule(std::int64_t tp) {
    const double amount = tp == 1 ? 0.13 : tp == 2 ? 0.40 : tp <= 4 ? 1.4 : 2.1;
    return {amount * static_cast<double>(GiB), fmt::format("median of start-up logs at TP {}", tp)};
}

class Lines {
public:
    explicit Lines(std::vector<std::string>& out) : out_(out) {}
    void add(std::string_view term, const std::string& value, const std::string& rule) {
        out_.push_back(fmt::format("{:<26}{:>16}  {}", term, value, rule));
    }

private:
    std::vector<std::string>& out_;
};

bool check_parallelism(const MemoryOptions& o, const ModelSpec& m, const config::Mark& at, config::Diagnostics& diagnostics) {
    const std::int64_t tp = o.tensor_parallel_size;
    if (m.heads > 0 && m.heads % tp != 0) {
        diagnostics.error(
            at, fmt::format("tensor_parallel_size {} does not divide the {} attention heads of {}", tp, m.heads, m.name));
        return false;
    }
    const bool even = m.kv_heads >= tp ? m.kv_heads % tp == 0 : tp % m.kv_heads == 0;
    if (!m.is_mla() && !even) {
        diagnostics.error(
            at, fmt::format("tensor_parallel_size {} and the {} KV heads of {} do not divide", tp, m.kv_heads, m.name));
        return false;
    }
    if (o.pipeline_parallel_size > m.layers) {
        diagnostics.error(at, fmt::format("pipeline_parallel_size {} exceeds the {} layers of {}", o.pipeline_parallel_size,
                                          m.layers, m.name));
        return false;
    }
    return true;
}

}  // namespace

std::optional<std::int64_t> kv_element_bytes(std::string_view kv_cache_dtype, std::string_view dtype) {
    if (kv_cache_dtype == "auto") return dtype == "float32" ? 4 : 2;
    if (kv_cache_dtype == "bfloat16" || kv_cache_dtype == "float16" || kv_cache_dtype == "half") return 2;
    if (kv_cache_dtype == "fp8" || kv_cache_dtype == "fp8_e4m3" || kv_cache_dtype == "fp8_e5m2") return 1;
    return std::nullopt;
}

std::int64_t kv_heads_per_rank(const ModelSpec& model, std::int64_t tensor_parallel_size) {
    return std::max<std::int64_t>(1, model.kv_heads / tensor_parallel_size);
}

std::int64_t kv_bytes_per_token(const ModelSpec& model, std::int64_t tensor_parallel_size, std::int64_t pipeline_parallel_size,
                                std::int64_t element_bytes) {
    const std::int64_t layers = ceil_div(model.layers, pipeline_parallel_size);
    if (model.is_mla()) return layers * (model.mla.kv_lora_rank + model.mla.qk_rope_head_dim) * element_bytes;
    return layers * 2 * kv_heads_per_rank(model, tensor_parallel_size) * model.head_dim * element_bytes;
}

std::int64_t KvGroup::blocks_per_table(std::int64_t tokens, std::int64_t in_flight) const {
    if (kind == "linear") return state_blocks;
    if (kind == "sliding") return ceil_div(std::min(window - 1 + in_flight, tokens), block_size) + 1;
    if (kind == "chunked") return ceil_div(std::min(window + in_flight, tokens), block_size);
    return ceil_div(tokens, block_size);
}

std::int64_t blocks_in(std::int64_t kv_bytes, std::int64_t bytes_per_token, std::int64_t block_size) {
    return kv_bytes <= 0 ? 0 : kv_bytes / (bytes_per_token * block_size);
}

std::int64_t parameter_count(const ModelSpec& model) {
    if (model.parameters > 0) return model.parameters;
    const RankParameters p = rank_parameters(model, 1, 1);
    return p.linear + p.experts + p.kept;
}

double bytes_per_weight(std::string_view dtype) {
    if (dtype == "float32") return 4;
    if (dtype == "fp8" || dtype == "int8") return 1;
    if (dtype == "awq" || dtype == "gptq") return (4.0 + (16.0 + 4.0) / 128) / 8;
    if (dtype == "mxfp4") return (4.0 + 8.0 / 32) / 8;
    return 2;
}

std::int64_t weight_bytes(const ModelSpec& m, std::int64_t tensor_parallel_size, std::int64_t pipeline_parallel_size) {
    const bool only_experts = m.dtype == "mxfp4";
    const double expert = bytes_per_weight(m.dtype);
    const double linear = only_experts ? 2 : expert;
    const double kept = m.dtype == "float32" ? 4 : 2;
    if (m.parameters > 0) {
        const auto ranks = static_cast<double>(tensor_parallel_size * pipeline_parallel_size);
        return std::llround(static_cast<double>(m.parameters) * expert / ranks);
    }
    const RankParameters p = rank_parameters(m, tensor_parallel_size, pipeline_parallel_size);
    return std::llround(static_cast<double>(p.linear) * linear + static_cast<double>(p.experts) * expert +
                        static_cast<double>(p.kept) * kept);
}

std::optional<KvBudget> derive_kv_budget(const MemoryOptions& o, const config::Mark& at, config::Diagnostics& diagnostics) {
    KvBudget b;
    b.block_size = o.block_size;
    b.max_model_len = o.max_model_len > 0 ? o.max_model_len : (o.model ? o.model->max_context : 0);
    Lines lines(b.lines);

    if (o.model) {
        const ModelSpec& m = *o.model;
        if (const std::string why = m.unsupported(); !why.empty()) {
            diagnostics.error(at, "model " + m.name + ": " + why + "; not supported by this version");
            return std::nullopt;
        }
        if (!check_parallelism(o, m, at, diagnostics)) return std::nullopt;
        const auto element = kv_element_bytes(o.kv_cache_dtype, m.dtype);
        if (!element) {
            diagnostics.error(at, "kv_cache_dtype '" + o.kv_cache_dtype +
                                      "' is not supported (auto, bfloat16, float16, fp8, fp8_e4m3, fp8_e5m2)");
            return std::nullopt;
        }
        const std::int64_t layers = ceil_div(m.layers, o.pipeline_parallel_size);
        b.kv_bytes_per_token = kv_bytes_per_token(m, o.tensor_parallel_size, o.pipeline_parallel_size, *element);
        KvGroup group;
        group.kind = m.is_mla() ? "mla" : "full";
        group.layers = layers;
        group.bytes_per_token = b.kv_bytes_per_token;
        group.block_size = o.block_size;
        b.groups.push_back(std::move(group));
        b.block_bytes = b.kv_bytes_per_token * o.block_size;
        const std::string rule =
            m.is_mla() ? fmt::format("{} layers x (kv_lora_rank {} + qk_rope_head_dim {}) x {} B, the same on every TP rank",
                                     layers, m.mla.kv_lora_rank, m.mla.qk_rope_head_dim, *element)
                       : fmt::format("{} layers x 2 x {} KV heads per rank{} x head_dim {} x {} B", layers,
                                     kv_heads_per_rank(m, o.tensor_parallel_size),
                                     m.kv_heads < o.tensor_parallel_size ? " (replicated)" : "", m.head_dim, *element);
        lines.add("KV bytes per token", fmt::format("{} B", b.kv_bytes_per_token), rule);
        if (m.parameters > 0 || m.missing_shape().empty()) {
            b.weights_bytes = weight_bytes(m, o.tensor_parallel_size, o.pipeline_parallel_size);
        }
    }

    const std::string weights_rule =
        o.model ? fmt::format("{:.3f} B parameters, {}, TP {}{}", static_cast<double>(parameter_count(*o.model)) / 1e9,
                              o.model->dtype, o.tensor_parallel_size,
                              o.pipeline_parallel_size > 1 ? fmt::format(", PP {}", o.pipeline_parallel_size) : "")
                : "";
    if (o.num_gpu_blocks_override) {
        b.num_gpu_blocks = *o.num_gpu_blocks_override;
        if (b.kv_bytes_per_token > 0) b.kv_bytes = b.num_gpu_blocks * b.block_size * b.kv_bytes_per_token;
        if (b.kv_bytes) lines.add("KV cache", gib(*b.kv_bytes), "the blocks below");
        lines.add("blocks", fmt::format("{}", b.num_gpu_blocks), "num_gpu_blocks_override");
    } else {
        if (!o.model) {
            diagnostics.error(at, "the KV budget needs `model` (or engine.num_gpu_blocks_override)");
            return std::nullopt;
        }
        if (o.kv_cache_memory_bytes) {
            b.kv_bytes = o.kv_cache_memory_bytes->count();
            lines.add("KV cache", gib(*b.kv_bytes), "kv_cache_memory_bytes");
        } else {
            if (!o.gpu || o.gpu->memory.count() <= 0) {
                diagnostics.error(at, o.gpu ? "GPU " + o.gpu->name + " does not state its memory"
                                            : "the KV budget needs `hardware.gpu` (or engine.kv_cache_memory_bytes, or "
                                              "engine.num_gpu_blocks_override from the engine's log)");
                return std::nullopt;
            }
            const std::vector<std::string> missing = o.model->missing_shape();
            if (!b.weights_bytes || (!missing.empty() && !o.activation_memory_bytes)) {
                std::string names;
                for (const std::string& name : missing) names += (names.empty() ? "" : ", ") + name;
                diagnostics.error(at, "model " + o.model->name + ": weights and activations need " + names +
                                          " (or parameters and engine.activation_memory_bytes)");
                return std::nullopt;
            }
            b.total_bytes = o.gpu->memory.count();
            const Rule activation = o.activation_memory_bytes ? Rule{static_cast<double>(o.activation_memory_bytes->count()),
                                                                     "activation_memory_bytes"}
                                                              : activation_rule(o, *o.model);
            const Rule non_torch = o.non_torch_memory_bytes
                                       ? Rule{static_cast<double>(o.non_torch_memory_bytes->count()), "non_torch_memory_bytes"}
                                       : non_torch_rule(o.tensor_parallel_size);
            b.activation_bytes = std::llround(activation.bytes);
            b.non_torch_bytes = std::llround(non_torch.bytes);
            const auto budget = static_cast<std::int64_t>(static_cast<double>(*b.total_bytes) * o.gpu_memory_utilization);
            b.kv_bytes = budget - *b.weights_bytes - *b.activation_bytes - *b.non_torch_bytes;
            lines.add("GPU memory", gib(*b.total_bytes), o.gpu->name + ", as the engine sees it");
            lines.add("budget", gib(budget), fmt::format("x gpu_memory_utilization {}", o.gpu_memory_utilization));
            lines.add("- weights", gib(*b.weights_bytes), weights_rule);
            lines.add("- activation peak", gib(*b.activation_bytes), activation.text);
            lines.add("- non-torch", gib(*b.non_torch_bytes), non_torch.text);
            lines.add("= KV cache", gib(*b.kv_bytes), "per rank");
            if (*b.kv_bytes <= 0) {
                diagnostics.error(
                    at,
                    fmt::format("{} does not fit on {}: {} x {} = {} less weights {}, activation {} and non-torch {} leaves "
                                "no KV cache; {} too little",
                                o.model->name, o.gpu->name, gib(*b.total_bytes), o.gpu_memory_utilization, gib(budget),
                                gib(*b.weights_bytes), gib(*b.activation_bytes), gib(*b.non_torch_bytes), gib(-*b.kv_bytes)));
                return std::nullopt;
            }
        }
        b.num_gpu_blocks = blocks_in(*b.kv_bytes, b.kv_bytes_per_token, b.block_size);
        lines.add("blocks", fmt::format("{}", b.num_gpu_blocks),
                  fmt::format("floor(KV cache / ({} B x block_size {}))", b.kv_bytes_per_token, b.block_size));
        if (b.num_gpu_blocks == 0) {
            diagnostics.error(at, fmt::format("{} of KV cache is less than one block of {} B", gib(*b.kv_bytes),
                                              b.kv_bytes_per_token * b.block_size));
            return std::nullopt;
        }
    }
    b.tokens = b.num_gpu_blocks * b.block_size;
    lines.add("tokens", fmt::format("{}", b.tokens), fmt::format("blocks x block_size {}", b.block_size));
    if (b.max_model_len > 0) {
        b.concurrency = static_cast<double>(b.num_gpu_blocks) / static_cast<double>(ceil_div(b.max_model_len, b.block_size));
        lines.add("concurrency", fmt::format("{:.2f}x", b.concurrency),
                  fmt::format("requests of max_model_len {} that fit at once", b.max_model_len));
        if (b.tokens < b.max_model_len) {
            b.warnings.push_back(
                fmt::format("max_model_len {} is larger than the {} tokens the KV cache holds ({} blocks of {}); the engine "
                            "would refuse to start",
                            b.max_model_len, b.tokens, b.num_gpu_blocks, b.block_size));
        }
    }
    return b;
}

std::string memory_table(const KvBudget& budget) {
    std::string out;
    for (const std::string& line : budget.lines) out += line + "\n";
    return out;
}

std::string memory_json(const KvBudget& b) {
    using Json = nlohmann::ordered_json;
    const auto optional = [](const std::optional<std::int64_t>& value) { return value ? Json(*value) : Json(); };
    Json out;
    out["kv_bytes_per_token"] = b.kv_bytes_per_token > 0 ? Json(b.kv_bytes_per_token) : Json();
    out["weights_bytes"] = optional(b.weights_bytes);
    out["activation_bytes"] = optional(b.activation_bytes);
    out["non_torch_bytes"] = optional(b.non_torch_bytes);
    out["kv_bytes"] = optional(b.kv_bytes);
    out["block_size"] = b.block_size;
    out["num_gpu_blocks"] = b.num_gpu_blocks;
    out["tokens"] = b.tokens;
    out["concurrency"] = b.max_model_len > 0 ? Json(b.concurrency) : Json();
    out["groups"] = Json::array();
    for (const KvGroup& group : b.groups) {
        out["groups"].push_back(
            {{"kind", group.kind}, {"layers", group.layers}, {"kv_bytes_per_token", group.bytes_per_token}});
    }
    return out.dump(2) + "\n";
}

}  // namespace kvsim
