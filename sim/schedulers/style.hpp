#pragma once
// The parts that batching styles are made of; docs/policies.md states them.

#include <cstdint>

#include "kvsim/engine/engine.hpp"
#include "kvsim/engine/scheduler.hpp"

namespace kvsim {

class Style : public TokenScheduler {
protected:
    using TokenScheduler::TokenScheduler;
    static constexpr std::int64_t no_budget = INT64_MAX;

    /// Tokens a running request can compute now: one when it decodes, the rest of its prompt before; 0 when its last token is
    /// in flight.
    [[nodiscard]] std::int64_t due(const LiveRequest& request) const;
    [[nodiscard]] bool decodes(const LiveRequest& request) const {
        return request.computed + 1 == request.tokens() + request.in_flight;
    }

    /// running_[at] gets a row of `tokens`, and victims make room for it. False: it was preempted itself. `at` stays with it,
    /// or else names who moved up to its place.
    bool grow(Batch& batch, std::size_t& at, std::int64_t tokens);
    /// A row for every decode, in order, within the budget.
    void grow_decodes(Batch& batch);
    /// Running prompts, in order, in chunks that fill the budget.
    void grow_prompts(Batch& batch);
    /// The queue, in order, each its prompt or a chunk that fills the budget; nobody after a preemption.
    void admit_queue(Batch& batch);
    /// Its head, not more than `most` tokens of it; or room for it, by displacing one that runs. False: the head stays where it
    /// is, and the batch's bound says why.
    bool admit_head(Batch& batch, std::int64_t most);
    /// At the end of a step whose queue was looked at.
    void name_bound(Batch& batch) const;

    std::int64_t budget_ = 0;  // tokens left of the step
};

}  // namespace kvsim
