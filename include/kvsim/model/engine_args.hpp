#pragma once
// The engine's arguments after presets and defaults: nothing is optional any more.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvsim/model/policy_args.hpp"
#include "kvsim/model/sglang_args.hpp"
#include "kvsim/model/vllm_v0_args.hpp"

namespace kvsim {

enum class QueueOrder { fcfs, priority, lpm, dfs_weight, lof };

/// As scenarios write it.
constexpr std::string_view name_of(QueueOrder order) {
    constexpr std::string_view names[] = {"fcfs", "priority", "lpm", "dfs-weight", "lof"};
    return names[static_cast<std::size_t>(order)];
}

/// Block tables of a request that follow one rule: vLLM's KV cache groups with the same spec. The blocks of all tables come
/// from one pool, so each takes the same bytes.
struct BlockGroup {
    enum class Rule {
        full,     ///< every token until the request leaves
        sliding,  ///< the last `window` tokens, the one being computed included
        chunked,  ///< the current chunk of `window` tokens
        state     ///< `state_blocks` blocks whatever the length (Mamba, linear attention)
    };
    Rule rule = Rule::full;
    std::int64_t block_size = 16;  ///< tokens a block holds, a multiple of EngineArgs::block_size; of no use to state
    std::int64_t window = 0;       ///< tokens, >= 1 for sliding and chunked
    std::int64_t tables = 1;       ///< >= 1
    std::int64_t state_blocks = 1;
    bool operator==(const BlockGroup&) const = default;
};

struct EngineArgs {
    std::string preset = "vllm-v1";
    std::string batching = "vllm-v1";  ///< the batch policy, one of schedulers()
    QueueOrder scheduling_policy = QueueOrder::fcfs;
    std::int64_t num_gpu_blocks = 0;  ///< as the engine logs it
    std::int64_t null_blocks = 1;     ///< of them, used by nobody (vLLM V1's null block)
    std::int64_t block_size = 16;     ///< tokens
    std::int64_t max_num_seqs = 256;
    std::int64_t max_num_batched_tokens = 2048;
    std::int64_t max_model_len = 0;
    std::int64_t max_prompt_len = 0;                ///< longest prompt the front end takes; 0: max_model_len - 1
    std::int64_t long_prefill_token_threshold = 0;  ///< 0: off
    bool enable_chunked_prefill = true;
    bool enable_prefix_caching = true;
    bool async_scheduling = true;
    bool scheduler_reserve_full_isl = true;
    std::vector<BlockGroup> kv_groups;  ///< in vLLM's order; empty: one table, full attention, block_size
    /// A request that would be this many + 1st to wait is refused; < 0: no bound (SGLang's max_queued_requests).
    std::int64_t max_queued_requests = -1;
    double watermark = 0;                ///< fraction of num_gpu_blocks kept free at admission, [0, 1)
    std::int64_t tokens_past_limit = 0;  ///< tokens a sequence may have beyond max_model_len (vLLM V0: 1)
    SglangArgs sglang;
    VllmV0Args v0;
    PolicyArgs policy;
    std::uint64_t seed = 1;  ///< of the run: what pieces of the policy draw
    bool operator==(const EngineArgs&) const = default;

    /// The order of the waiting queue as scenarios write it.
    [[nodiscard]] std::string order_name() const {
        return policy.order ? policy.order.name : std::string(name_of(scheduling_policy));
    }
    [[nodiscard]] std::int64_t usable_blocks() const { return num_gpu_blocks - null_blocks; }
    /// Who starts is to finish without ever losing its blocks.
    [[nodiscard]] bool guarantees_room() const {
        return batching == "no-evict" || policy.preemption == PolicyArgs::Preemption::none;
    }
    /// Blocks that an admission leaves free; 0 for the schedulers that look after it themselves (vllm-v0) or have none
    /// (sglang).
    [[nodiscard]] std::int64_t watermark_blocks() const {
        if (batching == "vllm-v0" || batching == "sglang") return 0;
        return static_cast<std::int64_t>(std::floor(watermark * static_cast<double>(num_gpu_blocks)));
    }
    /// Tokens for which an empty engine asks blocks when it starts such a prompt: all, or its first chunk.
    [[nodiscard]] std::int64_t tokens_at_start(std::int64_t prompt) const {
        const bool whole = policy.admission ? policy.admission.name == "full-input" : scheduler_reserve_full_isl;
        if (whole || !enable_chunked_prefill) return prompt;
        std::int64_t chunk = std::min(prompt, max_num_batched_tokens);
        if (long_prefill_token_threshold > 0) chunk = std::min(chunk, long_prefill_token_threshold);
        return policy.equal_progress ? std::min(chunk, block_size) : chunk;
    }
    /// Tokens whose KV a request holds in the end when it goes on to what clients ask for.
    [[nodiscard]] std::int64_t longest_final(std::int64_t prompt, std::int64_t outputs) const {
        return std::min(prompt + std::max(outputs, sglang.max_new_tokens) - 1, max_model_len);
    }
    /// Output tokens there is room for behind such a prompt; < 1: the request is refused.
    [[nodiscard]] std::int64_t output_limit(std::int64_t prompt) const { return max_model_len + tokens_past_limit - prompt; }
};

}  // namespace kvsim
