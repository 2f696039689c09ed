// Every deliberate mistake in the naive engine must show in the comparison: else the random scenarios never reach that rule.

#include <doctest/doctest.h>

#include <exception>
#include <iterator>
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
        const auto mutation = static_cast<Mutation>(m);
        // In a run no two requests are equally old, so nothing depends on how ties are broken; the recordings show it (h16).
        if (mutation == Mutation::priority_tie_last || mutation == Mutation::ids_as_numbers) continue;
        unnoticed.push_back({mutation, LoopMutation::none});
    }
    for (int m = 1; m < static_cast<int>(LoopMutation::count); ++m) {
        unnoticed.push_back({Mutation::none, static_cast<LoopMutation>(m)});
    }
    // Those that tell the rarest mistakes come first.
    constexpr std::uint64_t rare[] = {1997, 6721};
    for (std::uint64_t i = 0; i < most_scenarios && !unnoticed.empty(); ++i) {
        const Scenario scenario = random_scenario(i < std::size(rare) ? rare[i] : i - std::size(rare));
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
