// A prompt that prefills in one piece stalls every decode by its full price; a token budget bounds the stall.

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "oracle/random_scenarios.hpp"
#include "support.hpp"

namespace kvsim::theory {
namespace {

constexpr std::int64_t c0 = 8'000'000;  // ns a step
constexpr std::int64_t c1 = 25'000;     // ns a token

/// Gaps between the tokens of request 0 as the step records show them, while request 1 prefills its prompt and after.
std::vector<std::int64_t> gaps(std::int64_t budget, std::int64_t prompt) {
    SimulationOptions options = plain_options();
    options.engine.max_num_seqs = 8;
    options.engine.max_num_batched_tokens = budget;
    SimTime last{};
    std::vector<std::int64_t> out;
    options.on_step = [&](std::int64_t, const StepRecord& record) {
        if (std::find(record.received.begin(), record.received.end(), RequestId{0}) == record.received.end()) return;
        const SimTime now = record.start + record.duration;
        if (last != SimTime{}) out.push_back((now - last).count());
        last = now;
    };
    std::vector<Arrival> arrivals(2);
    arrivals[0].prompt_tokens = 1;
    arrivals[0].output_tokens = 200;
    arrivals[1].time = SimTime(std::chrono::milliseconds(100));
    arrivals[1].prompt_tokens = prompt;
    arrivals[1].output_tokens = 1;
    oracle::VectorWorkload workload(arrivals);
    run(options, *step_time("{model: affine, c0: 8ms, per_token: 25us}"), workload);
    return out;
}

}  // namespace

TEST_CASE("theory: an unchunked prompt of P tokens stalls every decode by exactly c1 P") {
    for (const std::int64_t prompt : {100, 2'000, 30'000}) {
        const std::vector<std::int64_t> all = gaps(1 << 20, prompt);
        CHECK(all.size() == 199);
        const std::int64_t undisturbed = c0 + c1;
        CHECK(*std::max_element(all.begin(), all.end()) == undisturbed + c1 * prompt);
        CHECK(std::count(all.begin(), all.end(), undisturbed) == 198);
    }
}

TEST_CASE("theory: under a token budget tau the largest gap is c0 + c1 tau") {
    for (const std::int64_t budget : {64, 512, 2'048}) {
        const std::int64_t prompt = 30'000;
        const std::vector<std::int64_t> all = gaps(budget, prompt);
        CHECK(*std::max_element(all.begin(), all.end()) == c0 + c1 * budget);
        // One token of the budget is the decode's own.
        const std::int64_t full = prompt / (budget - 1);
        CHECK(std::count(all.begin(), all.end(), c0 + c1 * budget) == std::min<std::int64_t>(full, 199 - 12));
    }
}

}  // namespace kvsim::theory
