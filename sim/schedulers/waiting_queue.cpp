#include "kvsim/engine/waiting_queue.hpp"

#include <algorithm>
#include <deque>
#include <set>
#include <tuple>

#include "kvsim/base/check.hpp"
#include "kvsim/engine/engine.hpp"

namespace kvsim {

bool more_urgent(const LiveRequest& a, const LiveRequest& b) {
    return std::tie(a.priority, a.arrival_rank, a.tie_id) < std::tie(b.priority, b.arrival_rank, b.tie_id);
}

namespace {

/// First come, first served; a preempted request goes back to the front, or behind all others.
class FcfsQueue final : public WaitingQueue {
public:
    explicit FcfsQueue(PolicyArgs::Requeue requeue) : requeue_(requeue) {}
    [[nodiscard]] std::size_t size() const override { return queue_.size(); }
    [[nodiscard]] Slot head() const override { return queue_.front(); }
    void push_new(Slot slot) override { queue_.push_back(slot); }
    void push_preempted(Slot slot) override {
        if (requeue_ == PolicyArgs::Requeue::front) {
            queue_.push_front(slot);
        } else {
            queue_.push_back(slot);
        }
    }
    void pop_head() override { queue_.pop_front(); }
    void remove(Slot slot) override {
        const auto at = std::find(queue_.begin(), queue_.end(), slot);
        KVSIM_CHECK(at != queue_.end(), "a waiting request stands in its queue");
        queue_.erase(at);
    }
    [[nodiscard]] std::vector<Slot> in_order() const override { return {queue_.begin(), queue_.end()}; }

private:
    PolicyArgs::Requeue requeue_;
    std::deque<Slot> queue_;
};

/// Smallest (priority, arrival, id as text) first, preempted or not.
class PriorityQueue final : public WaitingQueue {
public:
    explicit PriorityQueue(const std::vector<LiveRequest>& requests) : queue_(Order{&requests}) {}
    [[nodiscard]] std::size_t size() const override { return queue_.size(); }
    [[nodiscard]] Slot head() const override { return *queue_.begin(); }
    void push_new(Slot slot) override { queue_.insert(slot); }
    void push_preempted(Slot slot) override { queue_.insert(slot); }
    void pop_head() override { queue_.erase(queue_.begin()); }
    void remove(Slot slot) override { KVSIM_CHECK(queue_.erase(slot) == 1, "a waiting request stands in its queue"); }
    [[nodiscard]] std::vector<Slot> in_order() const override { return {queue_.begin(), queue_.end()}; }

private:
    struct Order {
        const std::vector<LiveRequest>* requests;
        bool operator()(Slot a, Slot b) const { return more_urgent((*requests)[a], (*requests)[b]); }
    };
    std::set<Slot, Order> queue_;
};

}  // namespace

std::unique_ptr<WaitingQueue> make_waiting_queue(QueueOrder order, const std::vector<LiveRequest>& requests,
                                                 PolicyArgs::Requeue requeue) {
    if (order == QueueOrder::priority) return std::make_unique<PriorityQueue>(requests);
    return std::make_unique<FcfsQueue>(requeue);
}

std::unique_ptr<WaitingQueue> make_waiting_queue(Engine& engine) {
    const PolicyArgs& policy = engine.args().policy;
    return policy.order ? policy.order.make(engine)
                        : make_waiting_queue(engine.args().scheduling_policy, engine.requests(), policy.requeue);
}

}  // namespace kvsim
