#include "kvsim/model/step_time.hpp"

#include <cmath>

namespace kvsim {

SimDuration round_step(double ns) {
    // Beyond 2^62 ns (146 years) nothing is simulated any more; the cap keeps the conversion defined.
    constexpr double longest = 4611686018427387904.0;
    if (!(ns < longest)) return SimDuration(static_cast<std::int64_t>(longest));
    const double rounded = std::floor(ns + 0.5);
    return SimDuration(rounded < 1 ? 1 : static_cast<std::int64_t>(rounded));
}

}  // namespace kvsim
