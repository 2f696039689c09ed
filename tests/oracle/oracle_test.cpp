// The production engine against the naive one, field by field. KVSIM_ORACLE_SCENARIOS: how many random scenarios;
// KVSIM_ORACLE_SEED: the first seed.

#include <doctest/doctest.h>

#include <cstdlib>
#include <exception>
#include <string>

#include "compare.hpp"
#include "kvsim/engine/simulation.hpp"
#include "naive_simulation.hpp"
#include "random_scenarios.hpp"

namespace kvsim::oracle {
namespace {

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
    const char* value = std::getenv(name);
    return value == nullptr ? otherwise : std::stoull(value);
}

Outcome one_by_one(const SimulationOptions& options, const StepTimeModel& step_time, Router& router, Workload& workload) {
    SimulationOptions plain = options;
    plain.form = EngineForm::per_request;
    return simulate(plain, step_time, router, workload);
}

TEST_CASE("oracle: simulate() equals the naive engine on random scenarios") {
    const std::uint64_t first = from_environment("KVSIM_ORACLE_SEED", 0);
    const std::uint64_t count = from_environment("KVSIM_ORACLE_SCENARIOS", 400);
    std::uint64_t differing = 0;
    for (std::uint64_t seed = first; seed < first + count && differing < 5; ++seed) {
        const Scenario scenario = random_scenario(seed);
        INFO(describe(scenario));
        const Run naive = run(scenario, [](const SimulationOptions& o, const StepTimeModel& s, Router& r, Workload& w) {
            return naive_simulate(o, s, r, w);
        });
        std::string difference;
        try {
            difference = first_difference(naive, run(scenario, simulate));
            if (difference.empty()) {
                difference = first_difference(naive, run(scenario, one_by_one));
                if (!difference.empty()) difference = "one by one: " + difference;
            }
            if (difference.empty() && !naive.endless) {
                difference = first_difference(naive, run_without_records(scenario, simulate));
                if (!difference.empty()) difference = "without step records: " + difference;
            }
        } catch (const std::exception& e) { difference = std::string("simulate() threw: ") + e.what(); }
        if (!difference.empty()) ++differing;
        CHECK_MESSAGE(difference.empty(), difference);
    }
}

}  // namespace
}  // namespace kvsim::oracle
