// Layers -> groups of equal KV pages and block tables, as vLLM's kv_cache_utils, SGLang's and TensorRT-LLM's pools do.

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "kvsim/model/memory.hpp"

namespace kvsim {
namespace {

std::int64_t round_up(std::int64_t n, std::int64_t to) {
    return ceil_div(n, to) * to;
}

/// Bytes one token takes in one layer of the group on one rank.
std::int64_t layer_bytes(const ModelSpec& m, const AttentionGroup& group, std::int64_t tp, std::int64_t element) {
    if (group.kind == "linear" || group.kind == "none") return 0;
    const std::int64_t latent = m.mla.kv_lora_rank + m.mla.qk_rope_head_dim;
    if (group.kind == "mla") return latent * element;
    if (group.kind == "sparse_mla") {
        // fp8_ds_mla: 512 fp8 values, their four 32-bit scales, the rotary part in 16 bit; the indexer: fp8 and a 32-bit scale.
        const std::int64_t kept =
            element == 1 ? m.mla.kv_lora_rank + m.mla.kv_lora_rank / 128 * 4 + 2 * m.mla.qk_rope_head_dim : latent * element;
        return kept + m.index_head_dim + 4;
    }
    const std::int64_t heads = std::max<std::int64_t>(1, (group.kv_heads > 0 ? group.kv_heads : m.kv_heads) / tp);
    return 2 * heads * (group.head_dim > 0 ? group.head_dim : m.head_dim) * element;
}

/// The latent cache of early vLLM: plain padded heads before its MLA kernels (0.7), latents padded to 128 elements until 0.8.2.
std::int64_t early_latent_bytes(const ModelSpec& m, const EngineVersion& v, std::int64_t tp, std::int64_t element) {
    const std::int64_t latent = m.mla.kv_lora_rank + m.mla.qk_rope_head_dim;
    if (!v.at_least(0, 7)) {
        const std::int64_t wide = round_up(m.mla.qk_nope_head_dim + m.mla.qk_rope_head_dim, 128);
        return 2 * std::max<std::int64_t>(1, m.heads / tp) * wide * element;
    }
    return v.at_least(0, 8, 2) ? latent * element : round_up(latent, 128) * element;
}

/// Layers of one kind before they are split over tables.
struct Layers {
    AttentionGroup group;
    std::int64_t count = 0;
    std::int64_t token_bytes = 0;  ///< one layer
    std::int64_t page_bytes = 0;   ///< one layer's block
    std::int64_t block_size = 0;
};

KvGroup describe(const Layers& l, std::int64_t pp) {
    KvGroup group;
    group.kind = l.group.kind;
    group.layers = ceil_div(l.count, pp);
    group.bytes_per_token = group.layers * l.token_bytes;
    group.window = l.group.kind == "sliding" || l.group.kind == "chunked" ? l.group.window : 0;
    group.block_size = l.block_size;
    return group;
}

/// SGLang and TensorRT-LLM: one pool per kind; the shared figures are those of the pool that holds whole contexts.
void separate_pools(KvLayout& layout, const std::vector<Layers>& all, std::int64_t pp) {
    for (const Layers& l : all) {
        layout.groups.push_back(describe(l, pp));
        layout.block_bytes += layout.groups.back().bytes_per_token * layout.block_size;
    }
}

}  // namespace

std::int64_t KvGroup::blocks_per_table(std::int64_t tokens, std::int64_t in_flight) const {
    if (kind == "linear") return state_blocks;
    if (kind == "sliding") return ceil_div(std::min(window - 1 + in_flight, tokens), block_size) + 1;
    if (kind == "chunked") return ceil_div(std::min(window + in_flight, tokens), block_size);
    return ceil_div(tokens, block_size);
}

std::int64_t KvGroup::blocks_held(std::int64_t tokens) const {
    if (kind == "linear") return state_blocks;
    const std::int64_t all = ceil_div(tokens, block_size);
    if (kind == "sliding") return all - std::max<std::int64_t>(0, tokens - window) / block_size;
    if (kind == "chunked") return all - std::max<std::int64_t>(0, tokens - 1) / window * window / block_size;
    return all;
}

std::int64_t kv_heads_per_rank(const ModelSpec& model, std::int64_t tensor_parallel_size) {
    return std::max<std::int64_t>(1, model.kv_heads / tensor_parallel_size);
}

std::int64_t kv_bytes_per_token(const ModelSpec& model, std::int64_t tensor_parallel_size, std::int64_t pipeline_parallel_size,
                                std::int64_t element_bytes) {
    std::int64_t sum = 0;
    for (const AttentionGroup& group : model.layer_groups()) {
        sum += ceil_div(group.layers, pipeline_parallel_size) * layer_bytes(model, group, tensor_parallel_size, element_bytes);
    }
    return sum;
}

std::int64_t state_bytes_per_layer(const ModelSpec& model, std::int64_t tp, std::int64_t num_speculative_tokens) {
    const StateSpec& s = model.state;
    if (s.heads == 0) return 0;
    const std::int64_t own = model.dtype == "float32" ? 4 : 2;
    const std::int64_t element = s.dtype == "auto" ? own : s.dtype == "float32" ? 4 : 2;
    const std::int64_t heads = ceil_div(s.heads, tp);
    const std::int64_t convolved = heads * s.head_dim + 2 * ceil_div(s.groups, tp) * s.state_size;
    return (s.conv_kernel - 1 + num_speculative_tokens) * convolved * own + heads * s.head_dim * s.state_size * element;
}

std::int64_t blocks_in(std::int64_t kv_bytes, std::int64_t bytes_per_token, std::int64_t block_size) {
    return kv_bytes <= 0 ? 0 : kv_bytes / (bytes_per_token * block_size);
}

KvLayout kv_layout(const MemoryOptions& o) {
    const ModelSpec& m = *o.model;
    const EngineVersion& v = o.version;
    const std::int64_t tp = o.tensor_parallel_size;
    const std::int64_t pp = o.pipeline_parallel_size;
    KvLayout layout;
    layout.block_size = o.block_size;
    const bool vllm = v.is_vllm();
    // vLLM keeps sparse latents in fp8 unless a 16-bit cache is asked for.
    const bool sparse_auto = vllm && o.kv_cache_dtype == "auto";
    const std::int64_t element = kv_element_bytes(o.kv_cache_dtype, m.dtype).value_or(2);

    // Without the hybrid manager (before 0.10, and V0) windowed layers keep whole contexts. Chunked ones do until 0.12.
    const bool hybrid = !vllm || (v.at_least(0, 10) && !v.v0 && !o.disable_hybrid_kv_cache_manager);
    const bool chunks = !vllm || (hybrid && v.at_least(0, 12));
    std::vector<Layers> all;
    for (AttentionGroup group : m.layer_groups()) {
        if (group.kind == "none") continue;
        const bool only =
            m.layer_groups().size() == 1 && vllm && !v.v0 && v.at_least(0, 8) && !o.disable_hybrid_kv_cache_manager;
        if ((group.kind == "sliding" && !hybrid && !only) || (group.kind == "chunked" && !chunks)) {
            layout.notes.push_back(fmt::format("{} {} layers keep whole contexts in {}", group.layers, group.kind, v.text()));
            group.kind = "full";
            group.window = 0;
        }
        Layers l;
        l.count = group.layers;
        l.token_bytes = layer_bytes(m, group, tp, group.kind == "sparse_mla" && sparse_auto ? 1 : element);
        if (group.kind == "mla" && vllm) l.token_bytes = std::max(l.token_bytes, early_latent_bytes(m, v, tp, element));
        l.group = std::move(group);
        const auto same = std::find_if(all.begin(), all.end(), [&](const Layers& other) {
            return other.group.kind == l.group.kind && other.group.window == l.group.window &&
                   other.token_bytes == l.token_bytes;
        });
        if (same != all.end()) {
            same->count += l.count;
        } else {
            all.push_back(std::move(l));
        }
    }
    // Draft layers keep whole contexts and look like the model's own full layers.
    if (o.draft_layers > 0) {
        const auto like = std::find_if(all.begin(), all.end(), [](const Layers& l) {
            return l.group.kind == "full" || l.group.kind == "mla" || l.group.kind == "sparse_mla";
        });
        if (like != all.end()) like->count += o.draft_layers;
    }

    std::int64_t token_page = 0;  // widest page of a token
    for (const Layers& l : all) token_page = std::max(token_page, l.token_bytes);
    const std::int64_t state = state_bytes_per_layer(m, tp, o.num_speculative_tokens);
    const bool recurrent = std::any_of(all.begin(), all.end(), [](const Layers& l) { return l.group.kind == "linear"; });
    if (vllm && recurrent && token_page > 0) {
        // A block must hold one layer's state: enlarged in steps of what the attention kernels take.
        const std::int64_t step = m.is_mla() ? 64 : 16;
        const std::int64_t need = step * ceil_div(state, step * token_page);
        if (need > layout.block_size) {
            layout.notes.push_back(fmt::format("block_size {} -> {}: a block must hold a recurrent state of {} B a layer",
                                               layout.block_size, need, state));
            layout.block_size = need;
        }
    }
    // A model of states only has one block a request.
    if (vllm && recurrent && token_page == 0 && o.max_model_len > 0) layout.block_size = o.max_model_len;
    for (Layers& l : all) {
        l.block_size = layout.block_size;
        l.page_bytes = l.group.kind == "linear" ? state : l.token_bytes * l.block_size;
        layout.bytes_per_token += ceil_div(l.count, pp) * l.token_bytes;
    }
    if (!vllm) {
        separate_pools(layout, all, pp);
    } else {
        const bool whole_contexts = std::all_of(all.begin(), all.end(), [](const Layers& l) {
            return l.group.kind == "full" || l.group.kind == "mla" || l.group.kind == "sparse_mla";
        });
        if (all.size() <= 1 || whole_contexts) {
            // One table; pages may differ from layer to layer.
            for (const Layers& l : all) {
                layout.groups.push_back(describe(l, pp));
                layout.block_bytes += ceil_div(l.count, pp) * l.page_bytes;
            }
            for (std::size_t i = 1; i < layout.groups.size(); ++i) layout.groups[i].tables = 0;  // shares the first one's
        } else {
            // Pages are made equal: smaller ones take more tokens a block where that divides, else padding.
            std::int64_t page = 0;
            for (const Layers& l : all) page = std::max(page, l.page_bytes);
            std::int64_t fewest = all[0].count;
            std::int64_t most = 0;
            for (Layers& l : all) {
                if (l.group.kind != "linear" && l.page_bytes < page && page % l.page_bytes == 0) {
                    l.block_size *= page / l.page_bytes;
                }
                fewest = std::min(fewest, l.count);
                most = std::max(most, l.count);
            }
            // Tables have as many layers as the rarest kind, or as the commonest when the counts are close.
            const double close = v.at_least(0, 14) ? 1.5 : 1.25;
            const std::int64_t size = static_cast<double>(most) < close * static_cast<double>(fewest) ? most : fewest;
            for (const Layers& l : all) {
                KvGroup group = describe(l, pp);
                group.tables = ceil_div(l.count, size);
                group.padding_layers = group.tables * size - l.count;
                if (group.padding_layers > 0) {
                    layout.notes.push_back(fmt::format(
                        "{} {} layers padded to {}: up to {:.2f} % of their KV wasted", l.count, group.kind,
                        group.tables * size, 100.0 * static_cast<double>(group.padding_layers) / static_cast<double>(l.count)));
                }
                layout.groups.push_back(std::move(group));
            }
            layout.block_bytes = ceil_div(size, pp) * page;
        }
    }
    for (KvGroup& group : layout.groups) {
        if (group.kind != "linear") continue;
        group.state_bytes = group.layers * state;
        group.state_blocks = (o.enable_prefix_caching ? 2 : 1) + o.num_speculative_tokens;
    }
    return layout;
}

}  // namespace kvsim
