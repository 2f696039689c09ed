// LightLLM: steps of prompts alone while somebody may start, else decodes alone.

#include <algorithm>

#include "style.hpp"

namespace kvsim {
namespace {

class PastFuture final : public Style {
public:
    using Style::Style;

private:
    [[nodiscard]] std::int64_t queue_budget(std::int64_t decodes) const override {
        return decodes < args_.max_num_batched_tokens ? args_.max_num_batched_tokens : 0;
    }

    [[nodiscard]] bool turn_of_decodes() const { return decoded_ < args_.policy.decodes_between; }
    [[nodiscard]] std::optional<Bound> closed() override {
        const std::optional<Bound> bound = TokenScheduler::closed();
        return bound == Bound::kv_blocks && turn_of_decodes() ? std::nullopt : bound;
    }

    void plan_rows(Batch& batch) override {
        const bool decodes = turn_of_decodes();
        if (decodes) {
            plan_decodes(batch);
            if (!batch.rows.empty() && !waiting_->empty()) batch.bound = Bound::token_budget;  // prompts get none of it
        }
        if (batch.rows.empty()) {
            budget_ = args_.max_num_batched_tokens;
            grow_prompts(batch);
            admit_queue(batch);
            if (!batch.rows.empty()) decoded_ = 0;
        }
        if (batch.rows.empty() && !decodes) plan_decodes(batch);
        if (ran_short(batch)) batch.bound = Bound::kv_blocks;
        name_bound(batch);
    }
    void plan_decodes(Batch& batch) {
        budget_ = args_.max_num_batched_tokens;
        grow_decodes(batch);
        if (!batch.rows.empty()) ++decoded_;
    }
    void pass(std::int64_t steps, SimTime now) override {
        TokenScheduler::pass(steps, now);
        decoded_ += steps;
    }

    std::int64_t decoded_ = INT64_MAX / 2;  // steps of decodes since the last one of prompts
};

}  // namespace

std::unique_ptr<Scheduler> make_past_future_batching(Engine& engine) {
    return std::make_unique<PastFuture>(engine);
}

}  // namespace kvsim
