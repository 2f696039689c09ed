#pragma once
// The engine's arguments after presets and defaults: nothing is optional any more.

#include <cstdint>
#include <string>

namespace kvsim {

enum class QueueOrder { fcfs, priority };

struct EngineArgs {
    std::string preset = "vllm-v1";
    QueueOrder scheduling_policy = QueueOrder::fcfs;
    std::int64_t num_gpu_blocks = 0;  ///< as vLLM logs it: the vllm-v1 presets can use one less (the null block)
    std::int64_t block_size = 16;     ///< tokens
    std::int64_t max_num_seqs = 256;
    std::int64_t max_num_batched_tokens = 2048;
    std::int64_t max_model_len = 0;
    std::int64_t long_prefill_token_threshold = 0;  ///< 0: off
    bool enable_chunked_prefill = true;
    bool enable_prefix_caching = true;
    bool async_scheduling = true;
    bool scheduler_reserve_full_isl = true;
    double watermark = 0;  ///< fraction of num_gpu_blocks kept free at admission, [0, 1)
    bool operator==(const EngineArgs&) const = default;
};

}  // namespace kvsim
