#pragma once
// KV-cache arithmetic: bytes per token, and GPU memory -> blocks, term by term as vLLM accounts for it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvsim/model/catalog.hpp"
#include "kvsim/model/engine_version.hpp"

namespace kvsim {

/// Bytes one KV element takes: 1 for fp8*, 4 for float32, else 2. `dtype` is the model's compute type for "auto".
/// nullopt: not a KV cache type this version knows.
std::optional<std::int64_t> kv_element_bytes(std::string_view kv_cache_dtype, std::string_view dtype);

/// How many GPUs share the model, and how.
struct Parallelism {
    std::int64_t tensor = 1;
    std::int64_t pipeline = 1;
    std::int64_t data = 1;
    bool experts = false;  ///< expert parallel: a rank holds whole experts instead of a slice of each
};

/// KV heads each rank holds: kv_heads / tp, at least 1 (then heads are replicated).
std::int64_t kv_heads_per_rank(const ModelSpec& model, std::int64_t tensor_parallel_size);

/// KV bytes one token writes per rank: every layer that keeps tokens, windowed ones included.
///   full, sliding, chunked  2 * kv_heads_per_rank * head_dim * element a layer
///   mla                     (kv_lora_rank + qk_rope_head_dim) * element whatever the TP
///   sparse_mla              the same (at one byte: 656, fp8 with scales and a 16-bit rotary part) and index_head_dim + 4
///   linear, none            0
/// Under pipeline parallelism a group counts ceil(layers / pp) layers.
std::int64_t kv_bytes_per_token(const ModelSpec& model, std::int64_t tensor_parallel_size, std::int64_t pipeline_parallel_size,
                                std::int64_t element_bytes);

/// Recurrent state of one sequence in one linear layer on one rank; 0: the model has none. The convolution's part has the
/// model's own element size and one further row a drafted token, the rest StateSpec::dtype's.
std::int64_t state_bytes_per_layer(const ModelSpec& model, std::int64_t tensor_parallel_size,
                                   std::int64_t num_speculative_tokens = 0);

/// Whole blocks in `kv_bytes` (floor; 0 when negative).
std::int64_t blocks_in(std::int64_t kv_bytes, std::int64_t bytes_per_token, std::int64_t block_size);

/// All parameters of the decoder, experts and embeddings included; `parameters` when stated, else from the shape.
std::int64_t parameter_count(const ModelSpec& model);

/// Storage of one linear-layer weight in bytes, group scales included: 4, 2, fp8 1, awq/gptq 0.52, mxfp4 0.53, nvfp4 0.56, ...
double bytes_per_weight(std::string_view dtype);

/// Weights of the heaviest rank. Linear layers are divided by TP except for replicated KV heads, MLA down-projections, router
/// and norms; embeddings and head by TP; experts by TP x DP. A quantized model keeps embeddings, head, router, norms and the
/// encoder in 16 bit (gguf: only norms and router); mxfp4 pads its experts to kernel tiles.
std::int64_t weight_bytes(const ModelSpec& model, const Parallelism& parallelism);
std::int64_t weight_bytes(const ModelSpec& model, std::int64_t tensor_parallel_size, std::int64_t pipeline_parallel_size);

/// What the derivation is made of.
struct MemoryOptions {
    std::optional<ModelSpec> model;
    std::optional<GpuSpec> gpu;
    std::int64_t tensor_parallel_size = 1;
    std::int64_t pipeline_parallel_size = 1;
    std::int64_t data_parallel_size = 1;
    std::int64_t decode_context_parallel_size = 1;  ///< ranks that share one request's tokens
    bool enable_expert_parallel = false;
    EngineVersion version;
    std::int64_t block_size = 16;
    std::int64_t max_model_len = 0;  ///< 0: the model's max_context
    std::int64_t max_num_seqs = 256;
    std::int64_t max_num_batched_tokens = 2048;
    double gpu_memory_utilization = 0.92;
    std::string kv_cache_dtype = "auto";
    std::optional<std::int64_t> num_gpu_blocks_override;
    std::optional<Bytes> kv_cache_memory_bytes;
    std::optional<Bytes> weights_memory_bytes;
    std::optional<Bytes> activation_memory_bytes;
    std::optional<Bytes> non_torch_memory_bytes;
    std::optional<Bytes> cuda_graph_memory_bytes;
    bool enforce_eager = false;  ///< no CUDA graphs
    bool enable_prefix_caching = false;
    bool disable_hybrid_kv_cache_manager = false;  ///< windowed layers are charged as full ones
    std::int64_t draft_layers = 0;                 ///< of a draft model or multi-token prediction, kept beside the model's
    std::int64_t num_speculative_tokens = 0;

    [[nodiscard]] Parallelism parallelism() const {
        return {tensor_parallel_size, pipeline_parallel_size, data_parallel_size, enable_expert_parallel};
    }
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
    /// Blocks one table holds of a decoding request with `tokens` tokens, those that left the window freed.
    [[nodiscard]] std::int64_t blocks_held(std::int64_t tokens) const;
};

/// The result, per rank; nullopt = not part of this derivation (an override bypassed it).
struct KvBudget {
    std::int64_t kv_bytes_per_token = 0;  ///< 0: unknown (no model)
    std::optional<std::int64_t> total_bytes;
    std::optional<std::int64_t> weights_bytes;
    std::optional<std::int64_t> activation_bytes;
    std::optional<std::int64_t> non_torch_bytes;
    std::optional<std::int64_t> cuda_graph_bytes;  ///< nullopt also where the engine takes them from outside its budget
    std::optional<std::int64_t> kv_bytes;
    std::int64_t block_size = 0;
    std::int64_t num_gpu_blocks = 0;
    /// num_gpu_blocks / tables * block_size (times decode-context parallel): what vLLM 0.10-0.20 prints as the KV cache size.
    /// With one table these are the tokens that fit; with several it is less than `live_tokens`.
    std::int64_t tokens = 0;
    std::int64_t live_tokens = 0;    ///< concurrency * max_model_len, rounded down: the line from vLLM 0.21 on; 0: unknown
    std::int64_t max_model_len = 0;  ///< 0: unknown
    double concurrency = 0;          ///< requests of max_model_len at once, as the engine prints it; 0: unknown
    std::int64_t tables = 1;         ///< block tables of a request, all groups together
    std::int64_t max_num_batched_tokens = 0;
    std::int64_t context_parallel = 1;
    EngineVersion version;
    std::vector<KvGroup> groups;
    std::int64_t block_bytes = 0;       ///< one block of the pool, per rank; 0: unknown
    std::vector<std::string> lines;     ///< term, value and rule, one line each, aligned
    std::vector<std::string> warnings;  ///< e.g. max_model_len above the tokens that fit
};

/// Layers -> groups, block tables and the bytes of a block, as that engine lays them out.
struct KvLayout {
    std::vector<KvGroup> groups;
    std::int64_t block_size = 0;  ///< the engine's; above what was asked when a recurrent state does not fit a smaller block
    std::int64_t block_bytes = 0;
    std::int64_t bytes_per_token = 0;  ///< kv_bytes_per_token() with the draft layers
    std::vector<std::string> notes;    ///< padding, enlarged blocks, a layout this engine version lacks
};
/// `options.model` is set and its parallelism valid.
KvLayout kv_layout(const MemoryOptions& options);

/// Tokens the engine would print as its KV cache size: `tokens` up to vLLM 0.20, `live_tokens` from 0.21 on.
std::int64_t printed_tokens(const KvBudget& budget);

/// Blocks that decoding requests of `tokens` tokens hold each, over all tables.
std::int64_t blocks_held(const KvBudget& budget, std::int64_t tokens);
/// Decoding requests of `tokens` tokens that fit at once.
std::int64_t requests_that_fit(const KvBudget& budget, std::int64_t tokens);
/// Bytes those blocks take, per rank.
std::int64_t held_bytes(const KvBudget& budget, std::int64_t blocks);

/// Derives the KV budget of one rank. Reported at `at`: what is missing, TP that does not divide the heads, and KV bytes <= 0
/// (with the amount that does not fit and what would).
std::optional<KvBudget> derive_kv_budget(const MemoryOptions& options, const config::Mark& at,
                                         config::Diagnostics& diagnostics);

/// The smallest tensor_parallel_size (at most 64) with which `requests` decoding requests of `tokens` tokens fit; nullopt:
/// none.
std::optional<std::int64_t> smallest_tensor_parallel(const MemoryOptions& options, std::int64_t requests, std::int64_t tokens);

/// The derivation for people: one line per term.
std::string memory_table(const KvBudget& budget);
/// {"kv_bytes_per_token": ..., "weights_bytes": ..., ...}: the keys of the `kvsim memory --format json` contract, then further
/// ones; null = not derived.
std::string memory_json(const KvBudget& budget);

}  // namespace kvsim
