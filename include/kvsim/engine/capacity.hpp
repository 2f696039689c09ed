#pragma once
// How many requests per second a deployment serves when work never runs out.

#include <cstdint>
#include <optional>

#include "kvsim/engine/simulation.hpp"

namespace kvsim {

/// Offers the first `most` requests of `workload` (a fresh one) all at once and counts the requests finished per second while
/// any still waits, over all replicas; where most of them fit at once, those finished per second of the whole. Nullopt below
/// 100 requests. Options that only observe (step log, timeline, warm-up) and the concurrency limit are ignored.
std::optional<double> saturated_rate(const SimulationOptions& options, const StepTimeModel& step_time, Router& router,
                                     Workload& workload, std::int64_t most = 10'000);

}  // namespace kvsim
