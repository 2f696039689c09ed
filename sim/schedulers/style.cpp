#include "style.hpp"

#include <algorithm>

namespace kvsim {

std::int64_t Style::due(const LiveRequest& request) const {
    if (request.in_flight > 0 && request.computed + 2 - request.in_flight >= request.prompt + request.max_tokens) return 0;
    return std::min(request.tokens() + request.in_flight, args_.max_model_len - 1) - request.computed;
}

bool Style::grow(Batch& batch, std::size_t& at, std::int64_t tokens) {
    const Slot slot = running_[at];
    LiveRequest& request = engine_.request(slot);
    std::int64_t need = kv_->need(request, request.computed + tokens);
    if (need > kv_->free()) {
        std::int64_t given_back = 0;
        if (!make_room(batch, need, at, given_back)) {
            budget_ += budget_ == no_budget ? 0 : given_back;
            return false;
        }
        budget_ += budget_ == no_budget ? 0 : given_back;
        need = kv_->need(request, request.computed + tokens);
    }
    extend(batch, slot, tokens, std::max<std::int64_t>(need, 0));
    budget_ -= budget_ == no_budget ? 0 : tokens;
    return true;
}

void Style::grow_decodes(Batch& batch) {
    for (std::size_t i = 0; i < running_.size() && budget_ > 0;) {
        const LiveRequest& request = engine_.request(running_[i]);
        if (!decodes(request) || due(request) < 1 || grow(batch, i, 1)) ++i;
    }
}

void Style::grow_prompts(Batch& batch) {
    for (std::size_t i = 0; i < running_.size() && budget_ > 0;) {
        const LiveRequest& request = engine_.request(running_[i]);
        const std::int64_t n = std::min(chunk(due(request)), budget_);
        if (decodes(request) || n < 1 || grow(batch, i, n)) ++i;
    }
}

bool Style::admit_head(Batch& batch, std::int64_t most) {
    const auto displaces = [&] {
        std::int64_t given_back = 0;
        const bool done = displace(batch, given_back);
        budget_ += budget_ == no_budget ? 0 : given_back;
        return done;
    };
    if (running_count() == args_.max_num_seqs) {
        if (displaces()) return true;
        batch.bound = Bound::seats;
        return false;
    }
    if (head_was_displaced()) {
        batch.bound = Bound::kv_blocks;
        return false;
    }
    LiveRequest& head = engine_.request(waiting_->head());
    const Start start = start_of(head);
    const std::int64_t wanted = chunk(head.tokens() - start.computed);
    if (!args_.enable_chunked_prefill && wanted > budget_) {
        batch.bound = Bound::token_budget;
        return false;
    }
    const std::int64_t n = std::min({wanted, budget_, most});
    if (!may_admit(head, start, n)) {
        if (displaces()) return true;
        batch.bound = Bound::kv_blocks;
        return false;
    }
    admit(batch, start, n);
    budget_ -= budget_ == no_budget ? 0 : n;
    return true;
}

void Style::admit_queue(Batch& batch) {
    if (!batch.preempted.empty()) {
        batch.bound = Bound::kv_blocks;
        return;
    }
    while (!waiting_->empty() && budget_ > 0 && admit_head(batch, no_budget)) {}
}

void Style::name_bound(Batch& batch) const {
    if (batch.bound != Bound::kv_blocks && !waiting_->empty() && running_count() == args_.max_num_seqs)
        batch.bound = Bound::seats;
    if (batch.bound == Bound::no_waiting && budget_ == 0) batch.bound = Bound::token_budget;
}

}  // namespace kvsim
