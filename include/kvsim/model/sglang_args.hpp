#pragma once
// What only SGLang's scheduler has, by the names of its server arguments and environment variables; defaults of 2026-07.

#include <cstdint>

namespace kvsim {

struct SglangArgs {
    std::int64_t context_len = 0;  ///< 0: EngineArgs::max_model_len
    std::int64_t max_prefill_tokens = 16384;
    double schedule_conservativeness = 1;  ///< >= 0
    bool enable_mixed_chunk = false;
    std::int64_t clip_max_new_tokens = 4096;  ///< of the estimate of what a request will still generate
    double init_new_token_ratio = 0.7;
    double min_new_token_ratio_factor = 0.14;
    std::int64_t new_token_ratio_decay_steps = 600;
    std::int64_t retract_decode_steps = 20;
    std::int64_t in_batch_check = 32;         ///< lpm: tokens of a hit up to which a request is compared with those before it
    std::int64_t in_batch_deprioritize = 32;  ///< lpm: tokens it then shares with one of them to be held back
    bool evict_shortfall = false;             ///< eviction frees what is missing (from 2026-07-22 on), not what is asked for
    std::int64_t max_new_tokens = 0;          ///< what clients ask for; 0: the tokens they get, with ignore_eos
    bool operator==(const SglangArgs&) const = default;
};

}  // namespace kvsim
