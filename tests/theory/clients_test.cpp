// Closed loops and patience with closed formulas.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>

#include "support.hpp"

namespace kvsim::theory {
namespace {

constexpr std::uint64_t seeds = 12;

SimulationOptions servers(std::int64_t seats) {
    SimulationOptions options = plain_options();
    options.engine.max_num_seqs = seats;
    return options;
}

struct Loop {
    double throughput;
    double response;
};

/// Completions per second between the first tenth and the end of the arrivals, and the mean time in system of those requests.
Loop measure(const Outcome& outcome) {
    const auto n = outcome.requests.size();
    const SimTime from = outcome.requests[n / 10].arrival;
    const SimTime to = outcome.requests[n - 1].arrival;
    double sum = 0;
    std::int64_t done = 0;
    for (const RequestRecord& r : outcome.requests) {
        const SimTime end = r.arrival + r.e2e;
        if (end < from || end > to) continue;
        sum += to_seconds(r.e2e);
        ++done;
    }
    return {static_cast<double>(done) / to_seconds(to - from), sum / static_cast<double>(done)};
}

}  // namespace

TEST_CASE("theory: closed loop of users with exponential thoughts (machine repairman, known answer 8)") {
    struct Point {
        int users;
        double throughput;
        double response;
        double bound;
    };
    const auto model = step_time("{model: affine, per_token: 1ms}");
    for (const Point& p :
         {Point{5, 0.475092, 1.524277, 0.02}, Point{10, 0.832037, 3.018700, 0.03}, Point{20, 0.999383, 11.012347, 0.03}}) {
        std::vector<double> throughputs;
        std::vector<double> responses;
        for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
            const auto requests = workload(
                fmt::format("{{requests: 20000, users: {{count: {}, think_time: {{distribution: exponential, mean: 9s}}}}, "
                            "prompt_tokens: {{distribution: geometric, mean: 1000}}, output_tokens: 1}}",
                            p.users),
                seed);
            const Loop loop = measure(run(servers(1), *model, *requests));
            throughputs.push_back(loop.throughput);
            responses.push_back(loop.response);
            // The interactive response-time law holds in every run: R = N / X - Z.
            CHECK(std::abs(loop.response - (p.users / loop.throughput - 9)) < 0.06 * (loop.response + 9));
        }
        check_known(fmt::format("closed loop of {}, throughput", p.users), p.throughput, throughputs, p.bound);
        check_known(fmt::format("closed loop of {}, response", p.users), p.response, responses, p.bound);
    }
}

TEST_CASE("theory: Erlang C, several seats, mean wait (known answer 6)") {
    struct Point {
        std::int64_t seats;
        double load;
        double wait;
        double bound;
    };
    // Constant steps of 10 ms, geometric outputs of mean 1 s: a seat is a server. The step's grid adds half a step.
    const auto model = step_time("{model: constant, step: 10ms}");
    for (const Point& p : {Point{2, 0.7, 0.96078, 0.05}, Point{4, 0.8, 0.74554, 0.06}}) {
        std::vector<double> waits;
        for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
            const auto requests = workload(
                fmt::format("{{requests: 30000, arrivals: {{process: poisson, rate: {}/s}}, prompt_tokens: 1, output_tokens: "
                            "{{distribution: geometric, mean: 100}}}}",
                            p.load * static_cast<double>(p.seats)),
                seed);
            const Outcome outcome = run(servers(p.seats), *model, *requests);
            waits.push_back(mean_e2e(outcome) - 1 - 0.005);
        }
        check_known(fmt::format("Erlang C with {} seats", p.seats), p.wait, waits, p.bound);
    }
}

TEST_CASE("theory: non-preemptive priorities of two classes (known answer 7)") {
    const auto model = step_time("{model: affine, per_token: 1ms}");
    SimulationOptions options = servers(1);
    options.engine.scheduling_policy = QueueOrder::priority;
    std::vector<double> high;
    std::vector<double> low;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        const auto requests = workload(
            "{requests: 60000, prompt_tokens: {distribution: geometric, mean: 1000}, output_tokens: 1, classes: ["
            "{name: high, priority: 0, arrivals: {process: poisson, rate: 0.3/s}},"
            "{name: low, priority: 1, arrivals: {process: poisson, rate: 0.5/s}}]}",
            seed);
        const Outcome outcome = run(options, *model, *requests);
        double sums[2] = {0, 0};
        double counts[2] = {0, 0};
        for (RequestId id = 0; id < outcome.requests.size(); ++id) {
            const std::size_t of = outcome.classes.at(id) == "low" ? 1 : 0;
            sums[of] += to_seconds(outcome.requests[id].queue);
            ++counts[of];
        }
        high.push_back(sums[0] / counts[0]);
        low.push_back(sums[1] / counts[1]);
    }
    check_known("priority queue, urgent class", 1.14286, high, 0.02);
    check_known("priority queue, other class", 5.71429, low, 0.05);
}

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
