#pragma once
// The order in which waiting requests are admitted.

#include <cstdint>
#include <memory>
#include <vector>

#include "kvsim/engine/request.hpp"
#include "kvsim/model/engine_args.hpp"

namespace kvsim {

class Engine;

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
    /// A request of the engine, running by now, got `tokens` in the step being planned: orders that go by service count it.
    virtual void served(Slot slot, std::int64_t tokens) {
        static_cast<void>(slot);
        static_cast<void>(tokens);
    }
    /// Whether `waiting` should take the place of the running request. Orders that only sort the queue never do.
    [[nodiscard]] virtual bool displaces(Slot waiting, Slot running) const {
        static_cast<void>(waiting);
        static_cast<void>(running);
        return false;
    }
    /// All of them, in the order of admission.
    [[nodiscard]] virtual std::vector<Slot> in_order() const = 0;
};

/// `requests` is the replica's table; the queue reads priorities from it and must not outlive it.
std::unique_ptr<WaitingQueue> make_waiting_queue(QueueOrder order, const std::vector<LiveRequest>& requests);
/// PolicyArgs::order, else EngineArgs::scheduling_policy.
std::unique_ptr<WaitingQueue> make_waiting_queue(Engine& engine);

/// Priority order: smaller (priority, arrival_rank, tie_id) is more urgent.
bool more_urgent(const LiveRequest& a, const LiveRequest& b);

}  // namespace kvsim
