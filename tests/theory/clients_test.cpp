// Patience, and clients of every kind at once. Those with closed formulas are cases of `kvsim selftest`.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>

#include "support.hpp"

namespace kvsim::theory {
namespace {

SimulationOptions servers(std::int64_t seats) {
    SimulationOptions options = plain_options();
    options.engine.max_num_seqs = seats;
    return options;
}

}  // namespace

TEST_CASE("theory: deterministic patience while waiting (M/M/1 with balking by time-out), conservation") {
    // At load 2 half of the offered work cannot be served: whoever is not done within 3 s leaves.
    const auto model = step_time("{model: constant, step: 10ms}");
    const auto requests = workload(
        "{requests: 20000, arrivals: {process: poisson, rate: 2/s}, prompt_tokens: 1, output_tokens: 100, timeout: 3s}", 1);
    const Outcome outcome = run(servers(1), *model, *requests);
    const Counters& c = outcome.counters;
    CHECK(c.arrivals == c.completed + c.rejected + c.timed_out + c.cancelled);
    CHECK(c.timed_out > 8000);
    // The server is never idle for long and serves one request a second, part of it in vain.
    CHECK(c.wasted_tokens > 0);
    std::int64_t outputs = 0;
    for (const RequestRecord& r : outcome.requests) {
        if (r.finish == FinishReason::length) {
            CHECK(r.e2e <= std::chrono::seconds(3));
            outputs += r.output_tokens;
        }
    }
    CHECK(c.tokens == outputs + c.wasted_tokens);  // prompt 1 token: every scheduled token yields one
    for (const auto& [id, after] : outcome.unfinished_after) CHECK(after == std::chrono::seconds(3));
}

TEST_CASE("theory: little's law with users, sessions, retries and time-outs") {
    const auto model = step_time("{model: constant, step: 10ms}");
    const auto requests = workload(
        "{requests: 3000, classes: ["
        "{name: a, users: {count: 5, think_time: 500ms}, prompt_tokens: 20, output_tokens: 60},"
        "{name: b, arrivals: {process: poisson, rate: 2/s}, prompt_tokens: 30, output_tokens: 80, timeout: 1500ms, retry: "
        "{max_retries: 1}},"
        "{name: c, arrivals: {process: poisson, rate: 0.5/s}, sessions: {turns: 3, think_time: 1s}, prompt_tokens: 10, "
        "output_tokens: 40, cancel: {share: 0.3, after: 300ms}, max_concurrency: 2}]}",
        3);
    SimulationOptions options = servers(3);
    options.engine.enable_prefix_caching = true;
    options.latency_from_intended = true;
    const Outcome outcome = run(options, *model, *requests);
    Int128 sojourns = 0;
    for (RequestId id = 0; id < outcome.requests.size(); ++id) {
        const auto gone = outcome.unfinished_after.find(id);
        if (outcome.requests[id].finish == FinishReason::rejected) continue;
        sojourns += gone == outcome.unfinished_after.end() ? outcome.requests[id].e2e.count() : gone->second.count();
    }
    CHECK(outcome.integrals.in_system_dt == sojourns);
    CHECK(outcome.counters.retries > 0);
    CHECK(outcome.counters.cancelled > 0);
    CHECK(!outcome.client_queue.empty());
    CHECK(outcome.counters.arrivals ==
          outcome.counters.completed + outcome.counters.rejected + outcome.counters.timed_out + outcome.counters.cancelled);
}

}  // namespace kvsim::theory
