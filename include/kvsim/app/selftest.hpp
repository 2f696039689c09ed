#pragma once
// Cases whose right value is known without this program: formulas, figures of papers, facts of published traces. `kvsim
// selftest` prints them, the test suite asserts them.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvsim/engine/simulation.hpp"
#include "kvsim/model/step_time.hpp"
#include "kvsim/model/workload.hpp"

namespace kvsim::selftest {

struct Case {
    std::string name;
    double expected = 0;
    double tolerance = 0;    ///< largest |measured - expected|; 0: exact
    std::uint64_t runs = 1;  ///< independent ones, seeds 1, 2, ...; 1: nothing is random, or 2 to 20
    std::function<double(std::uint64_t seed)> measure;
    bool law = true;  ///< what is expected is exact, so that chance alone may set the mean off; false: a published measurement
};

/// Every case, in the order of their numbers. `traces`: a folder with the published trace files; without it the cases of files
/// that are not there are left out and named in `missing`.
std::vector<Case> known_answers(const std::filesystem::path& traces, std::vector<std::string>& missing);

/// Mean over independent runs with half widths of its confidence intervals (Student t); 0 for one sample.
struct Estimate {
    double mean = 0;
    double half_width_95 = 0;
    double half_width_999 = 0;
};
/// 1 <= samples.size() <= 20.
Estimate estimate(const std::vector<double>& samples);

struct Result {
    Estimate measured;
    /// Within the tolerance, and where a law holds within the 99.9 % interval: a right program leaves a 95 % one in every
    /// twentieth case.
    bool passed = false;
};
Result evaluate(const Case& c);

// What cases are made of.

/// A step-time model as a scenario writes it: "{model: constant, step: 10ms}".
std::unique_ptr<StepTimeModel> step_time(const std::string& text);
/// A workload as a scenario writes it: the map below `workload:`.
std::unique_ptr<Workload> workload(const std::string& text, std::uint64_t seed);
/// Nothing that is not asked for: no async scheduling, no prefix caching, no front-end time; seats, token budget and blocks
/// that never bind.
SimulationOptions plain_options();
/// simulate() with round robin.
Outcome run(const SimulationOptions& options, const StepTimeModel& step_time, Workload& workload);
/// A whole scenario, whose model and GPU are those of the catalogue.
Outcome run_scenario(const std::string& text, std::uint64_t seed);
/// Mean time in system over all completed requests, s.
double mean_e2e(const Outcome& outcome);

}  // namespace kvsim::selftest
