#pragma once
// A queue in the order of a key, the smallest first; equal keys by arrival, then by id.

#include <set>
#include <tuple>
#include <vector>

#include "kvsim/base/check.hpp"
#include "kvsim/base/units.hpp"
#include "kvsim/engine/engine.hpp"
#include "kvsim/engine/waiting_queue.hpp"

namespace kvsim {

/// Order of arrival, then of the id as text.
inline bool came_before(const LiveRequest& a, const LiveRequest& b) {
    return std::tie(a.arrival_rank, a.tie_id) < std::tie(b.arrival_rank, b.tie_id);
}

class KeyedQueue : public WaitingQueue {
public:
    explicit KeyedQueue(Engine& engine) : engine_(engine), places_(Order{&engine}) {}

    [[nodiscard]] std::size_t size() const override { return places_.size(); }
    [[nodiscard]] Slot head() const override { return places_.begin()->slot; }
    void push_new(Slot slot) override { insert(slot); }
    void push_preempted(Slot slot) override { insert(slot); }
    void pop_head() override { places_.erase(places_.begin()); }
    void remove(Slot slot) override {
        KVSIM_CHECK(places_.erase({keys_[slot], slot}) == 1, "a waiting request stands in its queue");
    }
    /// All that changes the key of a request that waits is a token that was in flight.
    void credited(Slot slot) override {
        if (engine_.request(slot).state == RequestState::running) return;
        remove(slot);
        insert(slot);
    }
    [[nodiscard]] std::vector<Slot> in_order() const override {
        std::vector<Slot> out;
        out.reserve(places_.size());
        for (const Place& place : places_) out.push_back(place.slot);
        return out;
    }

protected:
    [[nodiscard]] virtual Int128 key(const LiveRequest& request) const = 0;

    Engine& engine_;

private:
    struct Place {
        Int128 key;
        Slot slot;
    };
    struct Order {
        const Engine* engine;
        bool operator()(const Place& a, const Place& b) const {
            if (a.key != b.key) return a.key < b.key;
            return came_before(engine->request(a.slot), engine->request(b.slot));
        }
    };

    void insert(Slot slot) {
        if (slot >= keys_.size()) keys_.resize(slot + std::size_t{1});
        keys_[slot] = key(engine_.request(slot));
        const bool fresh = places_.insert({keys_[slot], slot}).second;
        KVSIM_CHECK(fresh, "no two requests have one place");
    }

    std::set<Place, Order> places_;
    std::vector<Int128> keys_;  // by slot, of those in places_
};

}  // namespace kvsim
