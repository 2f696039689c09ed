#pragma once
// Pieces by their scenario text, and estimates with honest intervals.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvsim/engine/simulation.hpp"
#include "kvsim/model/step_time.hpp"
#include "kvsim/model/workload.hpp"

namespace kvsim::theory {

/// A step-time model as a scenario writes it: "{model: constant, step: 10ms}".
std::unique_ptr<StepTimeModel> step_time(const std::string& text);

/// A workload as a scenario writes it: the map below `workload:`.
std::unique_ptr<Workload> workload(const std::string& text, std::uint64_t seed);

/// Nothing that is not asked for: no async scheduling, no prefix caching, no front-end time; seats, token budget and blocks
/// that never bind.
SimulationOptions plain_options();

/// simulate() with round robin.
Outcome run(const SimulationOptions& options, const StepTimeModel& step_time, Workload& workload);

/// Mean over independent runs with the half width of its 99.9 % confidence interval (Student t).
struct Estimate {
    double mean = 0;
    double half_width = 0;
};
/// 2 <= samples.size() <= 20.
Estimate estimate(const std::vector<double>& samples);

/// Asserts that the known value lies within the 99.9 % interval and that the mean differs from it by at most `relative`.
void check_known(const std::string& what, double known, const std::vector<double>& samples, double relative);

/// Mean time in system over all completed requests, s.
double mean_e2e(const Outcome& outcome);

}  // namespace kvsim::theory
