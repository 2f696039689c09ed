// The budget: GPU memory -> KV bytes -> blocks -> requests, each term with its rule.

#include "kvsim/model/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kvsim/base/text.hpp"

namespace kvsim {
namespace {

std::string gib(double bytes) {
    return fmt::format("{:.2f} GiB", bytes / static_cast<double>(GiB));
}
std::string gib(std::int64_t bytes) {
    return gib(static_cast<double>(bytes));
}

struct Rule {
    double bytes = 0;
    std::string text;
};

/// Fitted to 37 start-up logs that print the term (vLLM 0.6 to ~0.13; 25 of them within 10 %); later builds keep about 0.6 of
/// the sampler's copies.
Rule activation_rule(const MemoryOptions& o, const ModelSpec& m) {
    const double copies = o.version.is_vllm() && o.version.at_least(0, 14) ? 5.6 : 9.7;
    const std::int64_t sampled = std::min(o.max_num_seqs, o.max_num_batched_tokens);
    const double sampler =
        copies * static_cast<double>(sampled) * static_cast<double>(m.vocab) * static_cast<double>(sizeof(float));
    const std::int64_t width = std::max(m.intermediate, m.moe.top_k * m.moe.intermediate + m.moe.shared_intermediate);
    const double layer = 6.0 * static_cast<double>(o.max_num_batched_tokens) * static_cast<double>(width + m.hidden) /
                         static_cast<double>(o.tensor_parallel_size);
    if (sampler >= layer) {
        return {sampler, fmt::format("sampler: {} x max_num_seqs {} x vocab {} x 4 B", shortest(copies), sampled, m.vocab)};
    }
    return {layer, fmt::format("layer: 6 B x max_num_batched_tokens {} x (intermediate {} + hidden {}) / TP {}",
                               o.max_num_batched_tokens, width, m.hidden, o.tensor_parallel_size)};
}

/// Start-up logs: 0.13 GiB (0.01-0.35) on one GPU; 0.25-0.55 on two, about 1.4 on four, 0.2-7.2 on eight, less where the GPUs
/// have no direct link (no peer-to-peer buffers).
Rule non_torch_rule(const MemoryOptions& o) {
    const std::int64_t ranks = o.tensor_parallel_size;
    if (ranks > 1 && o.gpu && o.gpu->link_gb_s == 0 && o.gpu->pcie_gb_s > 0) {
        return {0.25 * static_cast<double>(GiB), fmt::format("start-up logs at TP {}, GPUs linked by PCIe", ranks)};
    }
    const double amount = ranks == 1 ? 0.13 : ranks == 2 ? 0.40 : ranks <= 4 ? 1.4 : 2.1;
    return {amount * static_cast<double>(GiB), fmt::format("median of start-up logs at TP {}", ranks)};
}

/// Inside the budget from vLLM 0.21 on. The median of 36 logs; from -0.9 to 8.6 GiB.
constexpr double usual_cuda_graphs = 0.41;

class Lines {
public:
    explicit Lines(std::vector<std::string>& out) : out_(out) {}
    void add(std::string_view term, const std::string& value, const std::string& rule) {
        out_.push_back(fmt::format("{:<26}{:>16}  {}", term, value, rule));
    }

private:
    std::vector<std::string>& out_;
};

/// Why these GPUs cannot share the model; empty: they can.
std::string parallelism_problem(const MemoryOptions& o, const ModelSpec& m) {
    const std::int64_t tp = o.tensor_parallel_size;
    if (m.heads > 0 && m.heads % tp != 0) {
        std::string sizes;
        for (std::int64_t n = 1; n <= std::min<std::int64_t>(m.heads, 64); ++n) {
            if (m.heads % n == 0) sizes += (sizes.empty() ? "" : ", ") + std::to_string(n);
        }
        return fmt::format("tensor_parallel_size {} does not divide the {} attention heads of {} (possible: {})", tp, m.heads,
                           m.name, sizes);
    }
    for (const AttentionGroup& group : m.layer_groups()) {
        const std::int64_t kv_heads = group.kv_heads > 0 ? group.kv_heads : m.kv_heads;
        const bool plain = group.kind == "full" || group.kind == "sliding" || group.kind == "chunked";
        if (plain && !(kv_heads >= tp ? kv_heads % tp == 0 : tp % kv_heads == 0)) {
            return fmt::format("tensor_parallel_size {} and the {} KV heads of {} do not divide", tp, kv_heads, m.name);
        }
        if (group.kind == "linear" && m.state.kind != "mamba1" && m.state.heads % tp != 0) {
            return fmt::format("tensor_parallel_size {} does not divide the {} recurrent heads of {}", tp, m.state.heads,
                               m.name);
        }
    }
    if (tp % o.decode_context_parallel_size != 0) {
        return fmt::format("decode_context_parallel_size {} does not divide tensor_parallel_size {}",
                           o.decode_context_parallel_size, tp);
    }
    if (o.pipeline_parallel_size > m.layers) {
        return fmt::format("pipeline_parallel_size {} exceeds the {} layers of {}", o.pipeline_parallel_size, m.layers, m.name);
    }
    return "";
}

/// The terms between the GPU's memory and the KV bytes.
struct Terms {
    std::int64_t total = 0;
    std::int64_t budget = 0;
    std::int64_t weights = 0;
    Rule activation, non_torch, graphs;
    bool graphs_inside = false;
    std::int64_t kv = 0;
};

Terms budget_terms(const MemoryOptions& o) {
    const ModelSpec& m = *o.model;
    Terms t;
    t.total = o.gpu->memory.count();
    t.weights = o.weights_memory_bytes ? o.weights_memory_bytes->count() : weight_bytes(m, o.parallelism());
    const auto given = [](const std::optional<Bytes>& bytes, const char* key, const auto& rule) {
        return bytes ? Rule{static_cast<double>(bytes->count()), key} : rule();
    };
    t.activation = given(o.activation_memory_bytes, "activation_memory_bytes", [&] { return activation_rule(o, m); });
    t.non_torch = given(o.non_torch_memory_bytes, "non_torch_memory_bytes", [&] { return non_torch_rule(o); });
    t.graphs = given(o.cuda_graph_memory_bytes, "cuda_graph_memory_bytes", [&] {
        return o.enforce_eager ? Rule{0, "enforce_eager"}
                               : Rule{usual_cuda_graphs * static_cast<double>(GiB), "median of start-up logs"};
    });
    t.graphs_inside = o.version.is_vllm() && o.version.at_least(0, 21);
    const auto whole = [](const Rule& rule) { return std::llround(rule.bytes); };
    switch (o.version.family) {
        case EngineFamily::vllm:
            t.budget = static_cast<std::int64_t>(static_cast<double>(t.total) * o.gpu_memory_utilization);
            t.kv = t.budget - t.weights - whole(t.activation) - whole(t.non_torch) - (t.graphs_inside ? whole(t.graphs) : 0);
            break;
        case EngineFamily::sglang:
            // mem_fraction_static covers weights and KV; activations and graphs live in the rest.
            t.budget = static_cast<std::int64_t>(static_cast<double>(t.total) * o.gpu_memory_utilization);
            t.kv = t.budget - t.weights - whole(t.non_torch);
            break;
        case EngineFamily::trtllm:
            t.budget = t.total - t.weights - whole(t.activation) - whole(t.non_torch);
            t.kv = static_cast<std::int64_t>(static_cast<double>(t.budget) * o.gpu_memory_utilization);
            break;
    }
    return t;
}

/// What would make the model fit: more ranks, a larger share of the memory, smaller weights.
std::string what_would_fit(const MemoryOptions& o) {
    std::string out;
    const auto offer = [&out](const std::string& what) { out += (out.empty() ? "" : "; ") + what; };
    for (std::int64_t tp = o.tensor_parallel_size * 2; tp <= 64; tp *= 2) {
        MemoryOptions more = o;
        more.tensor_parallel_size = tp;
        if (!parallelism_problem(more, *o.model).empty()) continue;
        if (const Terms t = budget_terms(more); t.kv > 0) {
            offer(fmt::format("tensor_parallel_size {} leaves {}", tp, gib(t.kv)));
            break;
        }
    }
    MemoryOptions all = o;
    all.gpu_memory_utilization = 0.98;
    if (const Terms t = budget_terms(all); o.gpu_memory_utilization < 0.98 && t.kv > 0) {
        offer(fmt::format("gpu_memory_utilization 0.98 leaves {}", gib(t.kv)));
    }
    for (const char* dtype : {"fp8", "awq"}) {
        if (bytes_per_weight(dtype) >= bytes_per_weight(o.model->dtype) || o.weights_memory_bytes) continue;
        MemoryOptions smaller = o;
        smaller.model->dtype = dtype;
        if (const Terms t = budget_terms(smaller); t.kv > 0) {
            offer(fmt::format("{} weights leave {}", dtype, gib(t.kv)));
            break;
        }
    }
    return out.empty() ? "nothing tried up to 64 GPUs fits" : "what would fit: " + out;
}

std::string weights_rule(const MemoryOptions& o) {
    if (o.weights_memory_bytes) return "weights_memory_bytes";
    const ModelSpec& m = *o.model;
    std::string out = fmt::format("{:.3f} B parameters, {}, TP {}", static_cast<double>(parameter_count(m)) / 1e9, m.dtype,
                                  o.tensor_parallel_size);
    if (o.pipeline_parallel_size > 1) out += fmt::format(", PP {}", o.pipeline_parallel_size);
    if (m.is_moe() && o.data_parallel_size > 1) out += fmt::format(", experts over DP {}", o.data_parallel_size);
    if (m.is_moe() && o.enable_expert_parallel) out += ", expert parallel";
    if (m.encoder_parameters > 0) out += fmt::format(", encoder {:.2f} B", static_cast<double>(m.encoder_parameters) / 1e9);
    return out;
}

std::string group_rule(const MemoryOptions& o, const KvGroup& g) {
    const ModelSpec& m = *o.model;
    std::string out = fmt::format("{} {} layers", g.layers, g.kind);
    if (g.kind == "linear") {
        return out + fmt::format(" x {} B state a sequence",
                                 state_bytes_per_layer(m, o.tensor_parallel_size, o.num_speculative_tokens));
    }
    out += fmt::format(" x {} B", g.layers > 0 ? g.bytes_per_token / g.layers : 0);
    if (g.kind == "mla") out += " (latent, the same on every TP rank)";
    if (g.kind == "sparse_mla") out += " (latent and indexer key, the same on every TP rank)";
    if (g.window > 0) out += fmt::format(", {} {}", g.kind == "chunked" ? "chunk" : "window", g.window);
    return out;
}

/// "32 layers x 2 x 8 KV heads per rank x head_dim 128 x 2 B": the plain case in its textbook form.
std::string token_rule(const MemoryOptions& o, const KvLayout& layout, std::int64_t element) {
    const ModelSpec& m = *o.model;
    const KvGroup& g = layout.groups.front();
    if (layout.groups.size() == 1 && g.kind == "full" && m.layer_groups().size() == 1) {
        return fmt::format("{} layers x 2 x {} KV heads per rank{} x head_dim {} x {} B", g.layers,
                           kv_heads_per_rank(m, o.tensor_parallel_size),
                           m.kv_heads < o.tensor_parallel_size ? " (replicated)" : "", m.head_dim, element);
    }
    if (layout.groups.size() == 1 && g.kind == "mla" &&
        g.bytes_per_token == g.layers * (m.mla.kv_lora_rank + m.mla.qk_rope_head_dim) * element) {
        return fmt::format("{} layers x (kv_lora_rank {} + qk_rope_head_dim {}) x {} B, the same on every TP rank", g.layers,
                           m.mla.kv_lora_rank, m.mla.qk_rope_head_dim, element);
    }
    std::string out;
    for (const KvGroup& group : layout.groups) out += (out.empty() ? "" : " + ") + group_rule(o, group);
    return out;
}

void share_pools(KvBudget& b, const MemoryOptions& o) {
    // Separate pools. SGLang: windowed layers get 0.8 of the tokens of full ones (swa_full_tokens_ratio), recurrent states
    // 0.9 / 1.9 of the memory (mamba_full_memory_ratio). TensorRT-LLM: bytes in proportion to what one longest request holds.
    const bool sglang = o.version.family == EngineFamily::sglang;
    auto left = static_cast<double>(*b.kv_bytes);
    double whole = 0;
    for (KvGroup& g : b.groups) {
        if (g.kind == "linear") {
            const double part = sglang ? left * 0.9 / 1.9 : left * 0.1;
            left -= part;
            g.num_blocks = std::max<std::int64_t>(1, static_cast<std::int64_t>(part / static_cast<double>(g.state_bytes)));
            continue;
        }
        const auto length = static_cast<double>(std::max<std::int64_t>(1, b.max_model_len));
        const double tokens = g.window == 0 ? 1.0 : sglang ? 0.8 : std::min(1.0, static_cast<double>(g.window) / length);
        whole += tokens * static_cast<double>(g.bytes_per_token);
    }
    for (KvGroup& g : b.groups) {
        if (g.kind == "linear" || whole <= 0) continue;
        const auto length = static_cast<double>(std::max<std::int64_t>(1, b.max_model_len));
        const double tokens = g.window == 0 ? 1.0 : sglang ? 0.8 : std::min(1.0, static_cast<double>(g.window) / length);
        g.num_blocks = static_cast<std::int64_t>(left / whole * tokens) / g.block_size;
        if (g.window == 0) b.num_gpu_blocks = g.num_blocks;
    }
    if (b.num_gpu_blocks == 0 && !b.groups.empty()) b.num_gpu_blocks = b.groups.front().num_blocks;
}

bool separate(const KvBudget& b) {
    return std::any_of(b.groups.begin(), b.groups.end(), [](const KvGroup& g) { return g.num_blocks > 0; });
}

void add_concurrency(KvBudget& b, const MemoryOptions& o, Lines& lines) {
    if (b.max_model_len == 0) return;
    const std::int64_t length = ceil_div(b.max_model_len, b.context_parallel);
    std::string rule = fmt::format("requests of max_model_len {} that fit at once", b.max_model_len);
    if (separate(b)) {
        b.concurrency = static_cast<double>(b.tokens) / static_cast<double>(b.max_model_len);
        for (const KvGroup& g : b.groups) {
            const std::int64_t need = g.blocks_held(length);
            b.concurrency = std::min(b.concurrency,
                                     static_cast<double>(g.num_blocks) / static_cast<double>(std::max<std::int64_t>(1, need)));
        }
    } else if (b.version.is_vllm() && !b.version.at_least(0, 10) && b.tables == 1) {
        b.concurrency = static_cast<double>(b.tokens) / static_cast<double>(b.max_model_len);
    } else {
        std::int64_t blocks = b.groups.empty() ? ceil_div(length, b.block_size) : 0;
        for (const KvGroup& g : b.groups) blocks += g.tables * g.blocks_per_table(length, o.max_num_batched_tokens);
        b.concurrency = static_cast<double>(b.num_gpu_blocks) / static_cast<double>(std::max<std::int64_t>(1, blocks));
        if (b.tables > 1) rule += fmt::format(": blocks / {}", blocks);
    }
    b.live_tokens = static_cast<std::int64_t>(b.concurrency * static_cast<double>(b.max_model_len));
    lines.add("concurrency", fmt::format("{:.2f}x", b.concurrency), rule);
    const bool fits = b.tables > 1 || separate(b) ? b.concurrency >= 1 : b.tokens >= b.max_model_len;
    if (!fits) {
        b.warnings.push_back(
            fmt::format("max_model_len {} is larger than the {} tokens the KV cache holds ({} blocks of {}); the "
                        "engine would refuse to start",
                        b.max_model_len, b.tables > 1 ? b.live_tokens : b.tokens, b.num_gpu_blocks, b.block_size));
    }
}

}  // namespace

std::optional<std::int64_t> kv_element_bytes(std::string_view kv_cache_dtype, std::string_view dtype) {
    if (kv_cache_dtype == "auto") return dtype == "float32" ? 4 : 2;
    if (kv_cache_dtype == "bfloat16" || kv_cache_dtype == "float16" || kv_cache_dtype == "half") return 2;
    if (kv_cache_dtype == "fp8" || kv_cache_dtype == "fp8_e4m3" || kv_cache_dtype == "fp8_e5m2") return 1;
    return std::nullopt;
}

std::optional<KvBudget> derive_kv_budget(const MemoryOptions& o, const config::Mark& at, config::Diagnostics& diagnostics) {
    const auto refuse = [&](const std::string& message) {
        diagnostics.error(at, message);
        return std::nullopt;
    };
    KvBudget b;
    b.block_size = o.block_size;
    b.max_model_len = o.max_model_len > 0 ? o.max_model_len : (o.model ? o.model->max_context : 0);
    b.version = o.version;
    b.max_num_batched_tokens = o.max_num_batched_tokens;
    b.context_parallel = o.decode_context_parallel_size;
    Lines lines(b.lines);
    if (!(o.gpu_memory_utilization > 0 && o.gpu_memory_utilization <= 1)) {
        return refuse("gpu_memory_utilization must be in (0, 1]");
    }

    std::vector<std::string> notes;
    if (o.model) {
        const ModelSpec& m = *o.model;
        if (const std::string problem = parallelism_problem(o, m); !problem.empty()) return refuse(problem);
        const auto element = kv_element_bytes(o.kv_cache_dtype, m.dtype);
        if (!element) {
            return refuse("kv_cache_dtype '" + o.kv_cache_dtype +
                          "' is not supported (auto, bfloat16, float16, fp8, fp8_e4m3, fp8_e5m2)");
        }
        KvLayout layout = kv_layout(o);
        b.kv_bytes_per_token = layout.bytes_per_token;
        b.block_size = layout.block_size;
        b.block_bytes = layout.block_bytes;
        if (!layout.groups.empty())
            lines.add("KV bytes per token", fmt::format("{} B", b.kv_bytes_per_token), token_rule(o, layout, *element));
        b.groups = std::move(layout.groups);
        notes = std::move(layout.notes);
        b.tables = 0;
        for (const KvGroup& g : b.groups) b.tables += g.tables;
        if (b.tables == 0 || b.block_bytes == 0) return refuse("model " + m.name + " keeps no KV cache");
        if (b.tables > 1 && o.version.is_vllm()) {
            std::string rule;
            for (const KvGroup& g : b.groups) rule += fmt::format("{}{} x {}", rule.empty() ? "" : " + ", g.tables, g.kind);
            lines.add("block tables", fmt::format("{}", b.tables),
                      fmt::format("{}; one block of any is {} B", rule, b.block_bytes));
        }
        if (o.weights_memory_bytes) {
            b.weights_bytes = o.weights_memory_bytes->count();
        } else if (m.parameters > 0 || m.missing_shape().empty()) {
            b.weights_bytes = weight_bytes(m, o.parallelism());
        }
    }

    if (o.num_gpu_blocks_override) {
        b.num_gpu_blocks = *o.num_gpu_blocks_override;
        if (b.block_bytes > 0) b.kv_bytes = b.num_gpu_blocks * b.block_bytes;
        if (b.kv_bytes) lines.add("KV cache", gib(*b.kv_bytes), "the blocks below");
        lines.add("blocks", fmt::format("{}", b.num_gpu_blocks), "num_gpu_blocks_override");
    } else {
        if (!o.model) return refuse("the KV budget needs `model` (or engine.num_gpu_blocks_override)");
        if (o.kv_cache_memory_bytes) {
            b.kv_bytes = o.kv_cache_memory_bytes->count();
            lines.add("KV cache", gib(*b.kv_bytes), "kv_cache_memory_bytes");
        } else {
            if (!o.gpu || o.gpu->memory.count() <= 0) {
                return refuse(o.gpu ? "GPU " + o.gpu->name + " does not state its memory"
                                    : "the KV budget needs `hardware.gpu` (or engine.kv_cache_memory_bytes, or "
                                      "engine.num_gpu_blocks_override from the engine's log)");
            }
            const std::vector<std::string> missing = o.model->missing_shape();
            if (!b.weights_bytes || (!missing.empty() && !o.activation_memory_bytes)) {
                std::string names;
                for (const std::string& name : missing) names += (names.empty() ? "" : ", ") + name;
                return refuse("model " + o.model->name + ": weights and activations need " + names +
                              " (or parameters and engine.activation_memory_bytes)");
            }
            const Terms t = budget_terms(o);
            b.total_bytes = t.total;
            b.activation_bytes = std::llround(t.activation.bytes);
            b.non_torch_bytes = std::llround(t.non_torch.bytes);
            b.kv_bytes = t.kv;
            lines.add("GPU memory", gib(t.total), o.gpu->name + ", as the engine sees it");
            const std::string less_weights = gib(t.weights);
            if (o.version.family == EngineFamily::trtllm) {
                lines.add("- weights", less_weights, weights_rule(o));
                lines.add("- activation peak", gib(*b.activation_bytes), t.activation.text);
                lines.add("- non-torch", gib(*b.non_torch_bytes), t.non_torch.text);
                lines.add("free", gib(t.budget), "after loading and a profiling run");
                lines.add("= KV cache", gib(t.kv),
                          fmt::format("x free_gpu_memory_fraction {}", shortest(o.gpu_memory_utilization)));
            } else {
                const bool sglang = o.version.family == EngineFamily::sglang;
                lines.add("budget", gib(t.budget),
                          fmt::format("x {} {}", sglang ? "mem_fraction_static" : "gpu_memory_utilization",
                                      shortest(o.gpu_memory_utilization)));
                lines.add("- weights", less_weights, weights_rule(o));
                if (sglang) {
                    lines.add("  activation peak", gib(*b.activation_bytes), "outside: in the rest of the memory");
                } else {
                    lines.add("- activation peak", gib(*b.activation_bytes), t.activation.text);
                }
                lines.add("- non-torch", gib(*b.non_torch_bytes), t.non_torch.text);
                if (t.graphs_inside) {
                    b.cuda_graph_bytes = std::llround(t.graphs.bytes);
                    lines.add("- CUDA graphs", gib(*b.cuda_graph_bytes), t.graphs.text);
                } else {
                    lines.add("  CUDA graphs", gib(t.graphs.bytes), "outside the budget in " + o.version.text());
                }
                lines.add("= KV cache", gib(t.kv), "per rank");
            }
            if (t.kv <= 0) {
                return refuse(fmt::format(
                    "{} does not fit on {}: {} x {} = {} less weights {}, activation {} and non-torch {}{} "
                    "leaves no KV cache; {} too little; {}",
                    o.model->name, o.gpu->name, gib(t.total), shortest(o.gpu_memory_utilization), gib(t.budget), gib(t.weights),
                    gib(*b.activation_bytes), gib(*b.non_torch_bytes),
                    b.cuda_graph_bytes ? " and CUDA graphs " + gib(*b.cuda_graph_bytes) : "", gib(-t.kv), what_would_fit(o)));
            }
        }
        if (!o.version.is_vllm() && b.groups.size() > 1) {
            share_pools(b, o);
            for (const KvGroup& g : b.groups) {
                lines.add("pool", fmt::format("{}", g.num_blocks),
                          g.kind == "linear" ? "states of " + group_rule(o, g)
                                             : fmt::format("blocks of {}: {}", g.block_size, group_rule(o, g)));
            }
        } else {
            b.num_gpu_blocks = blocks_in(*b.kv_bytes, b.block_bytes, 1);
            lines.add("blocks", fmt::format("{}", b.num_gpu_blocks),
                      b.tables > 1 ? fmt::format("floor(KV cache / {} B)", b.block_bytes)
                                   : fmt::format("floor(KV cache / ({} B x block_size {}))", b.block_bytes / b.block_size,
                                                 b.block_size));
        }
        if (b.num_gpu_blocks == 0) {
            return refuse(fmt::format("{} of KV cache is less than one block of {} B", gib(*b.kv_bytes), b.block_bytes));
        }
    }
    const std::int64_t tables = separate(b) ? 1 : b.tables;
    b.tokens = b.num_gpu_blocks / tables * b.block_size * b.context_parallel;
    lines.add("tokens", fmt::format("{}", b.tokens),
              tables > 1 ? fmt::format("blocks / {} tables x block_size {}: what vLLM 0.10-0.20 prints, less than what fits",
                                       tables, b.block_size)
                         : fmt::format("blocks x block_size {}", b.block_size));
    add_concurrency(b, o, lines);
    if (tables > 1 && b.live_tokens > 0) {
        lines.add("live tokens", fmt::format("{}", b.live_tokens),
                  "concurrency x max_model_len: what vLLM prints from 0.21 on");
    }
    for (std::string& note : notes) lines.add("note", "", note);
    return b;
}

std::int64_t printed_tokens(const KvBudget& b) {
    return b.version.is_vllm() && b.version.at_least(0, 21) && b.live_tokens > 0 ? b.live_tokens : b.tokens;
}

std::int64_t blocks_held(const KvBudget& b, std::int64_t tokens) {
    const std::int64_t own = ceil_div(tokens, b.context_parallel);
    if (b.groups.empty()) return ceil_div(own, b.block_size);
    std::int64_t blocks = 0;
    for (const KvGroup& g : b.groups) blocks += g.tables * g.blocks_held(own);
    return blocks;
}

std::int64_t requests_that_fit(const KvBudget& b, std::int64_t tokens) {
    if (!separate(b)) return b.num_gpu_blocks / std::max<std::int64_t>(1, blocks_held(b, tokens));
    std::int64_t fit = b.num_gpu_blocks;
    for (const KvGroup& g : b.groups) fit = std::min(fit, g.num_blocks / std::max<std::int64_t>(1, g.blocks_held(tokens)));
    return fit;
}

std::int64_t held_bytes(const KvBudget& b, std::int64_t blocks) {
    return blocks * b.block_bytes;
}

std::optional<std::int64_t> smallest_tensor_parallel(const MemoryOptions& o, std::int64_t requests, std::int64_t tokens) {
    for (std::int64_t tp = 1; tp <= 64; tp *= 2) {
        MemoryOptions more = o;
        more.tensor_parallel_size = tp;
        config::Diagnostics ignored;
        const auto budget = derive_kv_budget(more, {}, ignored);
        if (budget && requests_that_fit(*budget, tokens) >= requests) return tp;
    }
    return std::nullopt;
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
        Json g{{"kind", group.kind}, {"layers", group.layers}, {"kv_bytes_per_token", group.bytes_per_token}};
        g["window"] = group.window > 0 ? Json(group.window) : Json();
        g["block_size"] = group.block_size;
        g["tables"] = group.tables;
        g["padding_layers"] = group.padding_layers;
        g["state_bytes"] = group.kind == "linear" ? Json(group.state_bytes) : Json();
        // Of a request of max_model_len: the engine's own bound, and what it holds while decoding.
        g["blocks_per_request"] =
            b.max_model_len > 0
                ? Json(std::max<std::int64_t>(1, group.tables) *
                       group.blocks_per_table(ceil_div(b.max_model_len, b.context_parallel), b.max_num_batched_tokens))
                : Json();
        g["num_blocks"] = group.num_blocks > 0 ? Json(group.num_blocks) : Json();
        out["groups"].push_back(std::move(g));
    }
    out["engine"] = b.version.text();
    out["total_bytes"] = optional(b.total_bytes);
    out["cuda_graph_bytes"] = optional(b.cuda_graph_bytes);
    out["block_bytes"] = b.block_bytes > 0 ? Json(b.block_bytes) : Json();
    out["max_model_len"] = b.max_model_len > 0 ? Json(b.max_model_len) : Json();
    out["live_tokens"] = b.live_tokens > 0 ? Json(b.live_tokens) : Json();
    out["printed_tokens"] = {{"this_version", printed_tokens(b)},
                             {"until_0.20", b.tokens},
                             {"from_0.21", b.live_tokens > 0 ? Json(b.live_tokens) : Json()}};
    out["derivation"] = b.lines;
    return out.dump(2) + "\n";
}

}  // namespace kvsim
