#pragma once
// Popularity laws over a finite set.

#include <cstdint>

#include "kvsim/random/stream.hpp"

namespace kvsim {

/// k in [1, n] with probability proportional to k^-s; n >= 1, s >= 0 (0: uniform). Rejection-inversion: Hoermann and
/// Derflinger, "Rejection-inversion to generate variates from monotone discrete distributions", ACM TOMACS 6 (1996). It
/// rejects, so how much it draws varies: give each variate a stream of its own, or draw it last.
std::int64_t zipf_draw(Stream& stream, std::int64_t n, double s);

}  // namespace kvsim
