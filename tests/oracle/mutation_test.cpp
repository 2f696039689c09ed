// Every deliberate mistake in the naive engine must show in the comparison: else the random scenarios never reach that rule.

#include <doctest/doctest.h>

#include <exception>
#include <vector>

#include "compare.hpp"
#include "naive_simulation.hpp"
#include "random_scenarios.hpp"

namespace kvsim::oracle {
namespace {

constexpr std::uint64_t most_scenarios = 2000;

Run naive_run(const Scenario& scenario, Mutation mutation, LoopMutation loop_mutation) {
    return run(
        scenario,
        [=](const SimulationOptions& o, const StepTimeModel& s, Router& r, Workload& w) {
            return naive_simulate(o, s, r, w, mutation, loop_mutation);
        },
        3'000);
}

struct Mutant {
    Mutation engine;
    LoopMutation loop;
};

bool differs(const Scenario& scenario, const Run& right, const Mutant& mutant) {
    try {
        return !first_difference(right, naive_run(scenario, mutant.engine, mutant.loop)).empty();
    } catch (const std::exception&) {
        return true;  // it broke an invariant
    }
}

TEST_CASE("oracle: no rule can be changed unnoticed") {
    std::vector<Mutant> unnoticed;
    for (int m = 1; m < static_cast<int>(Mutation::count); ++m) {
        unnoticed.push_back({static_cast<Mutation>(m), LoopMutation::none});
    }
    for (int m = 1; m < static_cast<int>(LoopMutation::count); ++m) {
        unnoticed.push_back({Mutation::none, static_cast<LoopMutation>(m)});
    }
    for (std::uint64_t seed = 0; seed < most_scenarios && !unnoticed.empty(); ++seed) {
        const Scenario scenario = random_scenario(seed);
        const Run right = naive_run(scenario, Mutation::none, LoopMutation::none);
        if (right.endless) continue;
        std::vector<Mutant> still;
        for (const Mutant& mutant : unnoticed) {
            if (!differs(scenario, right, mutant)) still.push_back(mutant);
        }
        unnoticed = still;
    }
    for (const Mutant& mutant : unnoticed) {
        FAIL_CHECK("nothing tells mutation " << static_cast<int>(mutant.engine) << " of the engine, "
                                             << static_cast<int>(mutant.loop) << " of the loop, from the rules");
    }
}

}  // namespace
}  // namespace kvsim::oracle
