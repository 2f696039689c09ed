#pragma once
// The order in which waiting requests are admitted.

#include <memory>
#include <vector>

#include "kvsim/engine/request.hpp"
#include "kvsim/model/engine_args.hpp"

namespace kvsim {

class WaitingQueue {
public:
    virtual ~WaitingQueue() = default;
    [[nodiscard]] virtual std::size_t size() const = 0;
    [[nodiscard]] bool empty() const { return size() == 0; }
    /// The request to admit next.
    [[nodiscard]] virtual Slot head() const = 0;
    virtual void push_new(Slot slot) = 0;
    virtual void push_preempted(Slot slot) = 0;
    virtual void pop_head() = 0;
    /// Removes a request that finished while it waited (async scheduling).
    virtual void remove(Slot slot) = 0;
    /// All of them, in the order of admission.
    [[nodiscard]] virtual std::vector<Slot> in_order() const = 0;
};

/// `requests` is the replica's table; the queue reads priorities from it and must not outlive it.
std::unique_ptr<WaitingQueue> make_waiting_queue(QueueOrder order, const std::vector<LiveRequest>& requests);

/// Priority order: smaller (priority, arrival_rank, tie_id) is more urgent.
bool more_urgent(const LiveRequest& a, const LiveRequest& b);

}  // namespace kvsim
