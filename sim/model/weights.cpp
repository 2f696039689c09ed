// Parameters and bytes of a model's weights, whole and per rank.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "kvsim/model/memory.hpp"

namespace kvsim {
namespace {

/// Weights of a part of the model on one rank: what quantization reaches, and what stays in 16 bit.
struct Weights {
    std::int64_t linear = 0;
    std::int64_t experts = 0;
    std::int64_t kept = 0;  ///< norms, biases, router, embeddings, head
    void add(const Weights& other, std::int64_t times) {
        linear += times * other.linear;
        experts += times * other.experts;
        kept += times * other.kept;
    }
};

/// One rank's share of a whole: vLLM pads odd sizes up.
std::int64_t share(std::int64_t whole, std::int64_t ranks) {
    return ceil_div(whole, ranks);
}

std::int64_t round_up(std::int64_t n, std::int64_t to) {
    return ceil_div(n, to) * to;
}

Weights latent_attention(const ModelSpec& m, std::int64_t tp, bool indexer) {
    Weights w;
    const MlaSpec& a = m.mla;
    const std::int64_t heads = m.heads / tp;
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
    if (indexer) {
        // DeepSeek sparse attention: every rank holds the whole indexer.
        w.linear += (a.q_lora_rank > 0 ? a.q_lora_rank : m.hidden) * m.index_heads * m.index_head_dim;
        w.linear += m.hidden * m.index_head_dim;
        w.kept += m.hidden * m.index_heads + 2 * m.index_head_dim;
    }
    return w;
}

Weights head_attention(const ModelSpec& m, const AttentionGroup& group, std::int64_t tp) {
    Weights w;
    const std::int64_t heads = m.heads / tp;
    const std::int64_t head_dim = group.head_dim > 0 ? group.head_dim : m.head_dim;
    const std::int64_t kv_heads = std::max<std::int64_t>(1, (group.kv_heads > 0 ? group.kv_heads : m.kv_heads) / tp);
    w.linear += m.hidden * ((m.attention_gate ? 3 : 2) * heads + 2 * kv_heads) * head_dim;
    if (m.qkv_bias) w.kept += (heads + 2 * kv_heads) * head_dim;
    if (m.qk_norm) w.kept += 2 * head_dim;
    return w;
}

Weights recurrent_layer(const ModelSpec& m, std::int64_t tp) {
    Weights w;
    const StateSpec& s = m.state;
    const std::int64_t heads = share(s.heads, tp);
    const std::int64_t inner = heads * s.head_dim;
    const std::int64_t keys = share(s.groups, tp) * s.state_size;
    if (s.kind == "mamba1") {
        const std::int64_t rank = share(m.hidden, 16);  // time-step projection, hidden / 16 wide
        w.linear += m.hidden * 2 * inner + inner * (rank + 2 * s.state_size) + rank * inner + inner * m.hidden;
        w.kept += inner * (s.conv_kernel + 1) + inner * s.state_size + 2 * inner;
    } else if (s.kind == "mamba2") {
        w.linear += m.hidden * (2 * inner + 2 * keys + heads) + inner * m.hidden;
        w.kept += (inner + 2 * keys) * (s.conv_kernel + 1) + 3 * heads + inner;
    } else {
        w.linear += m.hidden * (2 * keys + 2 * inner) + inner * m.hidden;
        w.kept += m.hidden * 2 * heads + (inner + 2 * keys) * s.conv_kernel + 2 * heads + s.head_dim;
    }
    return w;
}

Weights mixer(const ModelSpec& m, const AttentionGroup& group, std::int64_t tp) {
    if (group.kind == "mla" || group.kind == "sparse_mla") return latent_attention(m, tp, group.kind == "sparse_mla");
    if (group.kind == "linear") return recurrent_layer(m, tp);
    if (group.kind == "none") return {};
    return head_attention(m, group, tp);
}

Weights rank_weights(const ModelSpec& m, const Parallelism& p) {
    const std::int64_t tp = p.tensor;
    const std::int64_t moe_ranks = tp * p.data;  // vLLM spreads experts over the data-parallel ranks too
    // The heaviest stage: as many layers as any, MoE ones first (they are the larger), and one of embedding and head.
    const std::int64_t layers = ceil_div(m.layers, p.pipeline);
    const std::int64_t moe_layers = std::min(m.moe_layers(), layers);
    const std::int64_t dense_layers = p.pipeline == 1    ? m.dense_layers()
                                      : m.mlp_layers > 0 ? share(m.dense_layers(), p.pipeline)
                                                         : layers - moe_layers;
    Weights w;
    for (const AttentionGroup& group : m.layer_groups()) {
        Weights layer = mixer(m, group, tp);
        if (!m.attention_quantized && group.kind != "linear") layer.kept += std::exchange(layer.linear, 0);
        w.add(layer, share(group.layers, p.pipeline));
    }
    w.kept += layers * 2 * m.hidden;  // norms
    w.linear += dense_layers * (m.mlp == "plain" ? 2 : 3) * m.hidden * share(m.intermediate, tp);
    if (moe_layers > 0) {
        const std::int64_t matrices = m.mlp == "plain" ? 2 : 3;
        w.linear += moe_layers * matrices * m.hidden * share(m.moe.shared_intermediate, tp);
        const std::int64_t experts = p.experts ? share(m.moe.experts, moe_ranks) : m.moe.experts;
        const std::int64_t width = p.experts ? m.moe.intermediate : share(m.moe.intermediate, moe_ranks);
        w.experts += moe_layers * experts * matrices * m.hidden * width;
        w.kept += moe_layers * m.moe.experts * m.hidden;
    }
    const std::int64_t table = share(m.vocab, tp) * m.hidden;
    w.kept += (m.tie_embeddings || p.pipeline > 1 ? table : 2 * table) + m.hidden;
    if (m.learned_positions) w.kept += (m.max_context + 2) * m.hidden;
    return w;
}

struct Storage {
    std::string_view name;
    double bytes;
    bool tables = false;        ///< embeddings and head are stored so too
    bool only_experts = false;  ///< everything else is 16 bit
};
// Group scales counted in. awq, gptq: 4 bit, a 16-bit scale and a 4-bit zero point per 128. mxfp4: an 8-bit scale per 32;
// nvfp4: per 16. bitsandbytes: NF4 with scales per 64, measured on loaded checkpoints. gguf: q8_0 is 34 bytes per 32 weights;
// q4_k_m mixes 4.5 and 6.6 bit.
constexpr std::array<Storage, 12> storages{{{"bfloat16", 2},
                                            {"float16", 2},
                                            {"float32", 4, true},
                                            {"fp8", 1},
                                            {"int8", 1},
                                            {"awq", (4.0 + (16.0 + 4.0) / 128) / 8},
                                            {"gptq", (4.0 + (16.0 + 4.0) / 128) / 8},
                                            {"mxfp4", (4.0 + 8.0 / 32) / 8, false, true},
                                            {"nvfp4", (4.0 + 8.0 / 16) / 8},
                                            {"bitsandbytes", 0.53},
                                            {"gguf_q8_0", 34.0 / 32, true},
                                            {"gguf_q4_k_m", 4.85 / 8, true}}};

const Storage& storage(std::string_view dtype) {
    const auto* found = std::find_if(storages.begin(), storages.end(), [&](const Storage& s) { return s.name == dtype; });
    return found == storages.end() ? storages[0] : *found;
}

}  // namespace

std::int64_t parameter_count(const ModelSpec& model) {
    if (model.parameters > 0) return model.parameters;
    const Weights w = rank_weights(model, {});
    return w.linear + w.experts + w.kept;
}

double bytes_per_weight(std::string_view dtype) {
    return storage(dtype).bytes;
}

std::int64_t weight_bytes(const ModelSpec& m, const Parallelism& p) {
    const Storage& s = storage(m.dtype);
    const double kept = s.tables ? s.bytes : 2;
    const double encoder = 2.0 * static_cast<double>(m.encoder_parameters);
    if (m.parameters > 0) {
        const auto ranks = static_cast<double>(p.tensor * p.pipeline);
        return std::llround((static_cast<double>(m.parameters) * s.bytes + encoder) / ranks);
    }
    Weights w = rank_weights(m, p);
    if (s.only_experts && m.is_moe() && m.hidden > 0) {
        // vLLM pads mxfp4 experts to whole kernel tiles: hidden to 256, a rank's width to 128 (quantization/mxfp4.py).
        const std::int64_t width = p.experts ? m.moe.intermediate : share(m.moe.intermediate, p.tensor * p.data);
        w.experts = w.experts / (m.hidden * width) * (round_up(m.hidden, 256) * round_up(width, 128));
    }
    return std::llround(static_cast<double>(w.linear) * (s.only_experts ? 2 : s.bytes) +
                        static_cast<double>(w.experts) * s.bytes + static_cast<double>(w.kept) * kept +
                        encoder / static_cast<double>(p.tensor));
}

std::int64_t weight_bytes(const ModelSpec& model, std::int64_t tensor_parallel_size, std::int64_t pipeline_parallel_size) {
    Parallelism p;
    p.tensor = tensor_parallel_size;
    p.pipeline = pipeline_parallel_size;
    return weight_bytes(model, p);
}

}  // namespace kvsim
