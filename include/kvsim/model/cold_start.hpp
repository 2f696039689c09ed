#pragma once
// The first seconds of a real engine are slower: kernels are compiled, tuned and loaded when their shapes first occur.

#include "kvsim/model/step_time.hpp"

namespace kvsim {

/// A step that starts t after the run's first arrival takes 1 + slowdown (1 - t / length) times as long while t < length.
/// An assumed law: public runs tell the time lost in all, slowdown x length / 2, and little of its shape.
struct ColdStart {
    SimDuration length{};
    double slowdown = 0;  ///< >= 0

    [[nodiscard]] bool lasts(SimDuration t) const { return t < length; }
    [[nodiscard]] SimDuration slowed(SimDuration step, SimDuration t) const {
        if (!lasts(t)) return step;
        const double left = 1 - static_cast<double>(t.count()) / static_cast<double>(length.count());
        return round_step(static_cast<double>(step.count()) * (1 + slowdown * left));
    }
};

}  // namespace kvsim
