#include "kvsim/engine/fast_engine.hpp"

namespace kvsim {

bool fast_engine_handles(const EngineArgs& args) {
    constexpr std::int64_t most_seats = 1 << 18;  // so that contexts fit in the whole numbers of double
    return args.batching == "vllm-v1" && !args.policy.any() && args.kv_groups.empty() &&
           args.scheduling_policy == QueueOrder::fcfs && args.long_prefill_token_threshold == 0 &&
           args.max_num_batched_tokens >= args.max_num_seqs && args.block_size <= 4096 && args.max_model_len <= 0x3fffffff &&
           args.max_num_seqs <= most_seats;
}

}  // namespace kvsim
