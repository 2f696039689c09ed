#pragma once
// Victims by a key: the running request with the largest one, of equal ones the last admitted.

#include <limits>

#include "kvsim/engine/engine.hpp"
#include "piece.hpp"

namespace kvsim {

/// `Key::of(engine, request)` gives something with an order.
template <class Key>
class LargestKey final : public VictimRule {
public:
    explicit LargestKey(Engine& /*engine*/) {}
    [[nodiscard]] std::size_t pick(const Engine& engine, std::span<const Slot> running) override {
        std::size_t worst = 0;
        for (std::size_t i = 1; i < running.size(); ++i) {
            if (Key::of(engine.request(running[i])) >= Key::of(engine.request(running[worst]))) worst = i;
        }
        return worst;
    }
};

}  // namespace kvsim
