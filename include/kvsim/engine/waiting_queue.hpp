#pragma once
// The order in which waiting requests are admitted.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvsim/engine/request.hpp"
#include "kvsim/model/engine_args.hpp"

namespace kvsim {

class Engine;
class KvManager;

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

    // ---- what only some orders go by
    /// The cache in which requests find their prefixes; it outlives the queue. Before anything else.
    virtual void attach(KvManager& kv) { static_cast<void>(kv); }
    /// A step is about to be planned.
    virtual void begin_step() {}
    /// A request of the engine, running by now, got `tokens` in the step being planned: orders that go by service count it.
    virtual void served(Slot slot, std::int64_t tokens) {
        static_cast<void>(slot);
        static_cast<void>(tokens);
    }
    /// It received an output token; it may have been preempted with that token in flight, and wait.
    virtual void credited(Slot slot) { static_cast<void>(slot); }
    /// Every step counts: what the order goes by changes with service or time, or it displaces, so no step may be skipped
    /// while somebody waits, nor any of its rows left uncounted.
    [[nodiscard]] virtual bool follows_steps() const { return false; }
    /// Whether `waiting` should take the place of the running request: its key is smaller. Orders that only sort the queue
    /// never do.
    [[nodiscard]] virtual bool displaces(Slot waiting, Slot running) const {
        static_cast<void>(waiting);
        static_cast<void>(running);
        return false;
    }
    /// Names among the order's parameters (of tenants) that no request has had so far.
    [[nodiscard]] virtual std::vector<std::string> unmet_names() const { return {}; }
    /// All of them, in the order of admission.
    [[nodiscard]] virtual std::vector<Slot> in_order() const = 0;
};

/// `requests` is the replica's table; the queue reads priorities from it and must not outlive it.
std::unique_ptr<WaitingQueue> make_waiting_queue(QueueOrder order, const std::vector<LiveRequest>& requests,
                                                 PolicyArgs::Requeue requeue);
/// PolicyArgs::order, else EngineArgs::scheduling_policy.
std::unique_ptr<WaitingQueue> make_waiting_queue(Engine& engine);

/// Priority order: smaller (priority, arrival_rank, tie_id) is more urgent.
bool more_urgent(const LiveRequest& a, const LiveRequest& b);

}  // namespace kvsim
