// vLLM V1's scheduler (main, 2026-05-29): running requests first, in admission order, then the waiting queue; prompts in chunks
// that share the token budget with decodes; preemption by recompute.

#include <algorithm>

#include "kvsim/base/units.hpp"
#include "kvsim/engine/engine.hpp"
#include "kvsim/engine/scheduler.hpp"

namespace kvsim {
namespace {

class VllmV1Scheduler final : public TokenScheduler {
public:
    using TokenScheduler::TokenScheduler;

private:
    void plan_rows(Batch& batch) override {
        budget_ = args_.max_num_batched_tokens;
        plan_running(batch);
        if (batch.preempted.empty()) {
            plan_waiting(batch);
        } else {
            batch.bound = Bound::kv_blocks;
        }
        if (batch.bound != Bound::kv_blocks && !waiting_->empty() &&
            static_cast<std::int64_t>(running_.size()) == args_.max_num_seqs)
            batch.bound = Bound::seats;
        if (batch.bound == Bound::no_waiting && budget_ == 0) batch.bound = Bound::token_budget;
    }

    [[nodiscard]] std::int64_t chunk(const EngineArgs& args, std::int64_t wanted) const {
        if (args.long_prefill_token_threshold > 0) wanted = std::min(wanted, args.long_prefill_token_threshold);
        return wanted;
    }

    void plan_running(Batch& batch) {
        const EngineArgs& args = args_;
        for (std::size_t i = 0; i < running_.size() && budget_ > 0; ++i) {
            const Slot slot = running_[i];
            LiveRequest& request = engine_.request(slot);
            // Its last token is in flight: there is nothing left to compute.
            if (request.in_flight > 0 && request.computed + 2 - request.in_flight >= request.prompt + request.max_tokens)
                continue;
            std::int64_t n = chunk(args, request.tokens() + request.in_flight - request.computed);
            n = std::min({n, budget_, args.max_model_len - 1 - request.computed});
            if (n <= 0) continue;

            std::int64_t need = kv_->need(request, request.computed + n);
            while (need > kv_->free()) {
                const std::size_t victim = pick_victim();
                const Slot victim_slot = running_[victim];
                const std::int64_t given_back = preempt(batch, victim);
                budget_ += given_back;
                if (given_back > 0) --i;          // vLLM looks at the row alone, not at the place in the list
                if (victim_slot == slot) return;  // nothing left to take from: the running part ends here
                need = kv_->need_again(need);
            }
            extend(batch, slot, n, std::max<std::int64_t>(need, 0));
            budget_ -= n;
        }
    }

    void plan_waiting(Batch& batch) {
        const EngineArgs& args = args_;
        while (!waiting_->empty() && budget_ > 0) {
            if (static_cast<std::int64_t>(running_.size()) == args.max_num_seqs) {
                if (displace(batch, budget_)) continue;
                batch.bound = Bound::seats;
                return;
            }
            if (head_was_displaced()) {
                batch.bound = Bound::kv_blocks;
                return;
            }
            LiveRequest& head = engine_.request(waiting_->head());
            const Start start = start_of(head);
            std::int64_t n = chunk(args, head.tokens() - start.computed);
            if (!args.enable_chunked_prefill && n > budget_) {
                batch.bound = Bound::token_budget;
                return;
            }
            n = std::min(n, budget_);

            if (!may_admit(head, start, n)) {
                if (displace(batch, budget_)) continue;
                batch.bound = Bound::kv_blocks;
                return;
            }
            admit(batch, start, n);
            budget_ -= n;
        }
    }

    std::int64_t budget_ = 0;
};

}  // namespace

std::unique_ptr<Scheduler> make_vllm_v1_batching(Engine& engine) {
    return std::make_unique<VllmV1Scheduler>(engine);
}

}  // namespace kvsim
