// Sarathi-Serve (OSDI 2024, algorithm 3): stall-free batching.

#include "decode_first.hpp"

#include <algorithm>

namespace kvsim {

void DecodeFirst::plan_rows(Batch& batch) {
    budget_ = args_.max_num_batched_tokens;
    grow_decodes(batch);
    if (args_.policy.equal_progress) {
        share_evenly(batch);
    } else {
        grow_prompts(batch);
        admit_queue(batch);
    }
    name_bound(batch);
}

/// TensorRT-LLM's EQUAL_PROGRESS: each prompt in turn gets a block until the budget is spent, those that start here too.
void DecodeFirst::share_evenly(Batch& batch) {
    const std::int64_t unit = args_.block_size;
    for (std::size_t i = 0; i < running_.size() && budget_ > 0;) {
        const LiveRequest& request = engine_.request(running_[i]);
        const std::int64_t n = std::min({chunk(due(request)), unit, budget_});
        if (decodes(request) || n < 1 || grow(batch, i, n)) ++i;
    }
    const bool short_of_blocks = ran_short(batch);
    if (short_of_blocks) batch.bound = Bound::kv_blocks;
    while (!short_of_blocks && !waiting_->empty() && budget_ > 0 && admit_head(batch, unit)) {}
    for (bool grew = true; grew && budget_ > 0;) {
        grew = false;
        for (BatchRow& row : batch.rows) {
            LiveRequest& request = engine_.request(row.slot);
            const std::int64_t all = chunk(request.tokens() + request.in_flight - row.computed);
            const std::int64_t n = std::min({all - row.tokens, unit, budget_});
            if (n < 1) continue;
            const std::int64_t upto = row.computed + row.tokens + n;
            const std::int64_t need = std::max<std::int64_t>(0, kv_->need(request, upto));
            if (need > kv_->free()) continue;
            kv_->extend(request, upto, need);
            if (args_.enable_prefix_caching) kv_->publish(request, std::min(upto, request.tokens()));
            row.tokens += n;
            budget_ -= n;
            grew = true;
        }
    }
}

std::unique_ptr<Scheduler> make_decode_first_batching(Engine& engine) {
    return std::make_unique<DecodeFirst>(engine);
}

}  // namespace kvsim
