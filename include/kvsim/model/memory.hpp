#pragma once
// KV-cache arithmetic: bytes per token, and GPU memory -> blocks, term by term as vLLM accounts for it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvsim/model/catalog.hpp"

namespace kvsim {

/// Bytes one KV element takes: 1 for fp8*, 4 for float32, else 2. `dtype` is the model's compute type for "auto".
/// nullopt: not a KV cache type this version knows.
std::optional<std::int64_t> kv_element_bytes(std::string_view kv_cache_dtype, std::string_view dtype);

/// KV heads each rank holds: kv_heads / tp, at least 1 (then heads are replicated).
std::int64_t kv_heads_per_rank(const ModelSpec& model, std::int64_t tensor_parallel_size);

/// Bytes of KV per token and rank. Grouped-query: layers * 2 * kv_heads_per_rank * head_dim * element; MLA: layers *
/// (kv_lora_rank + qk_rope_head_dim) * element whatever the TP. Under pipeline parallelism layers = ceil(layers / pp).
std::int64_t kv_bytes_per_token(const ModelSpec& model, std::int64_t tensor_parallel_size, std::int64_t pipeline_parallel_size,
                                std::int64_t element_bytes);

/// Whole blocks in `kv_bytes` (floor; 0 when negative).
std::int64_t blocks_in(std::int64_t kv_bytes, std::int64_t bytes_per_token, std::int64_t block_size);

/// All parameters, experts and embeddings included; `parameters` when stated, else from the shape.
std::int64_t parameter_count(const ModelSpec& model);

/// Storage of one linear-layer weight in bytes: 4, 2, fp8 1, awq/gptq 0.52 (4 bit, a 16-bit scale and a 4-bit zero point per
/// group of 128), mxfp4 0.53 (4 bit and an 8-bit scale per 32).
double bytes_per_weight(std::string_view dtype);

/// Weights of the heaviest rank. Linear layers are divided by TP except for replicated KV heads, MLA down-projections, router
/// and norms; embeddings and head by TP; a quantized model keeps embeddings, head, router and norms in 16 bit.
std::int64_t weight_bytes(const ModelSpec& model, std::int64_t tensor_parallel_size, std::int64_t pipeline_parallel_size);

/// What the derivation is made of.
struct MemoryOptions {
    std::optional<ModelSpec> model;
    std::optional<GpuSpec> gpu;
    std::int64_t tensor_parallel_size = 1;
    std::int64_t pipeline_parallel_size = 1;
    std::int64_t block_size = 16;
    std::int64_t max_model_len = 0;  ///< 0: the model's max_context
    std::int64_t max_num_seqs = 256;
    std::int64_t max_num_batched_tokens = 2048;
    double gpu_memory_utilization = 0.92;
    std::string kv_cache_dtype = "auto";
    std::optional<std::int64_t> num_gpu_blocks_override;
    std::optional<Bytes> kv_cache_memory_bytes;
    std::optional<Bytes> activation_memory_bytes;
    std::optional<Bytes> non_torch_memory_bytes;
};

/// Layers with one rule for the blocks of a request, on the heaviest rank. vLLM splits them over `tables` block tables (its
/// "KV cache groups") of equally many layers, padded, so that a block of any table takes the same bytes: all tables draw from
/// one pool of KvBudget::num_gpu_blocks blocks of KvBudget::block_bytes.
struct KvGroup {
    std::string kind;  ///< full | sliding | chunked | mla | sparse_mla | linear, as AttentionGroup::kind
    std::int64_t layers = 0;
    std::int64_t bytes_per_token = 0;  ///< of all these layers; linear: 0
    std::int64_t window = 0;           ///< tokens, for sliding and chunked
    std::int64_t tables = 1;
    std::int64_t padding_layers = 0;  ///< what the last table lacks
    std::int64_t block_size = 0;      ///< tokens one block of this group holds (more than the engine's where pages are smaller)
    std::int64_t state_bytes = 0;     ///< linear: of one sequence, all layers
    std::int64_t state_blocks = 0;    ///< linear: blocks one table takes of a running request, whatever its length
    std::int64_t num_blocks = 0;      ///< > 0: blocks of this group's own pool (SGLang); 0: the shared pool

    /// Most blocks one table holds of a request with `tokens` tokens of which up to `in_flight` are computed in one step:
    ///   full, mla   ceil(tokens / block_size)
    ///   sliding     ceil(min(window - 1 + in_flight, tokens) / block_size) + 1
    ///   chunked     ceil(min(window + in_flight, tokens) / block_size)
    ///   linear      state_blocks
    /// (vLLM v1/kv_cache_interface.py, max_memory_usage_bytes of each spec.)
    [[nodiscard]] std::int64_t blocks_per_table(std::int64_t tokens, std::int64_t in_flight) const;
};

/// The result, per rank; nullopt = not part of this derivation (an override bypassed it).
struct KvBudget {
    std::int64_t kv_bytes_per_token = 0;  ///< 0: unknown (no model)
    std::optional<std::int64_t> total_bytes;
    std::optional<std::int64_t> weights_bytes;
    std::optional<std::int64_t> activation_bytes;
    std::optional<std::int64_t> non_torch_bytes;
    std::optional<std::int64_t> kv_bytes;
    std::int64_t block_size = 0;
    std::int64_t num_gpu_blocks = 0;
    std::int64_t tokens = 0;         ///< num_gpu_blocks * block_size
    std::int64_t max_model_len = 0;  ///< 0: unknown
    double concurrency = 0;  ///< num_gpu_blocks / ceil(max_model_len / block_size), as vLLM >= 0.11 prints it; 0: unknown
    std::vector<KvGroup> groups;
    std::int64_t block_bytes = 0;       ///< one block of the pool, per rank; 0: unknown
    std::vector<std::string> lines;     ///< term, value and rule, one line each, aligned
    std::vector<std::string> warnings;  ///< e.g. max_model_len above the tokens that fit
};

/// Derives the KV budget of one rank. Reported at `at`: what is missing, TP that does not divide the heads, an unsupported
/// model, and KV bytes <= 0 (with the amount that does not fit).
std::optional<KvBudget> derive_kv_budget(const MemoryOptions& options, const config::Mark& at,
                                         config::Diagnostics& diagnostics);

/// The derivation for people: one line per term.
std::string memory_table(const KvBudget& budget);
/// {"kv_bytes_per_token": ..., "weights_bytes": ..., ...}: the keys of the `kvsim memory --format json` contract; null = not
/// derived.
std::string memory_json(const KvBudget& budget);

}  // namespace kvsim
