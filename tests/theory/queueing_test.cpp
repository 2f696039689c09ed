// Queues with closed formulas. One seat makes the engine a single server; a constant step makes it an infinite one.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "support.hpp"

namespace kvsim::theory {
namespace {

constexpr std::uint64_t seeds = 16;

/// Every run's outcome for seeds 1..n.
template <class Measure>
std::vector<double> over_seeds(const SimulationOptions& options, const std::string& step, const std::string& load,
                               std::uint64_t count, Measure&& measure) {
    const auto model = step_time(step);
    std::vector<double> out;
    for (std::uint64_t seed = 1; seed <= count; ++seed) {
        const auto requests = workload(load, seed);
        out.push_back(measure(run(options, *model, *requests)));
    }
    return out;
}

std::string load(std::int64_t requests, double rate, const std::string& output) {
    return fmt::format("{{requests: {}, arrivals: {{process: poisson, rate: {}/s}}, prompt_tokens: 1, output_tokens: {}}}",
                       requests, rate, output);
}

SimulationOptions one_server() {
    SimulationOptions options = plain_options();
    options.engine.max_num_seqs = 1;
    return options;
}

/// The value below which `share` of the completed requests' times in system lie, s.
double e2e_quantile(const Outcome& outcome, double share) {
    std::vector<std::int64_t> times;
    for (const RequestRecord& r : outcome.requests) times.push_back(r.e2e.count());
    const auto rank = static_cast<std::ptrdiff_t>(share * static_cast<double>(times.size() - 1));
    std::nth_element(times.begin(), times.begin() + rank, times.end());
    return static_cast<double>(times[static_cast<std::size_t>(rank)]) * 1e-9;
}

}  // namespace

TEST_CASE("theory: M/D/1, mean time in system") {
    struct Point {
        double load;
        double time;
        std::int64_t requests;
        double bound;
    };
    // Pollaczek-Khinchine: S (1 + rho / (2 (1 - rho))).
    for (const Point& p : {Point{0.5, 1.5, 25'000, 0.005}, Point{0.8, 3.0, 60'000, 0.02}, Point{0.9, 5.5, 100'000, 0.025},
                           Point{0.95, 10.5, 150'000, 0.05}}) {
        const auto times =
            over_seeds(one_server(), "{model: constant, step: 1s}", load(p.requests, p.load, "1"), seeds, mean_e2e);
        check_known(fmt::format("M/D/1 at {}", p.load), p.time, times, p.bound);
    }
}

TEST_CASE("theory: M/G/1 with geometric output lengths") {
    struct Point {
        double load;
        double time;
        std::int64_t requests;
        double bound;
    };
    // Wq = rho t (2m - 1) / (2 (1 - rho)), m = 100 tokens of t = 10 ms.
    for (const Point& p : {Point{0.5, 1.995, 10'000, 0.02}, Point{0.8, 4.980, 10'000, 0.06}, Point{0.9, 9.955, 20'000, 0.1}}) {
        const auto times = over_seeds(one_server(), "{model: constant, step: 10ms}",
                                      load(p.requests, p.load, "{distribution: geometric, mean: 100}"), seeds, mean_e2e);
        check_known(fmt::format("M/G/1 at {}", p.load), p.time, times, p.bound);
    }
}

TEST_CASE("theory: M/M/1 as the limit of fine-grained lengths, mean and p99") {
    // The service time is one prefill of geometrically many tokens of 1 ms, so that a request costs one step and not a
    // thousand.
    const char* const step = "{model: affine, per_token: 1ms}";
    struct Point {
        double load;
        double time;
        double bound;
    };
    for (const Point& p : {Point{0.5, 2, 0.01}, Point{0.8, 5, 0.025}, Point{0.9, 10, 0.05}}) {
        const std::string requests = fmt::format(
            "{{requests: 60000, arrivals: {{process: poisson, rate: {}/s}}, prompt_tokens: {{distribution: geometric, mean: "
            "1000}}, "
            "output_tokens: 1}}",
            p.load);
        const auto times = over_seeds(one_server(), step, requests, seeds, mean_e2e);
        check_known(fmt::format("M/M/1 at {}", p.load), p.time, times, p.bound);
        if (p.load != 0.8) continue;
        // Exponential with mean 5: 5 ln 100.
        const auto tails =
            over_seeds(one_server(), step, requests, seeds, [](const Outcome& outcome) { return e2e_quantile(outcome, 0.99); });
        check_known("M/M/1 p99 at 0.8", 23.03, tails, 0.05);
    }
}

TEST_CASE("theory: M/G/infinity, mean time in system") {
    // While the engine is busy a request waits half a step on average, whatever the law of lengths.
    for (const char* output : {"20", "{distribution: geometric, mean: 20}"}) {
        const auto times =
            over_seeds(plain_options(), "{model: constant, step: 50ms}", load(10'000, 10, output), seeds, mean_e2e);
        check_known(fmt::format("M/G/infinity, output {}", output), 1.025, times, 0.005);
    }
}

TEST_CASE("theory: M/G/infinity, the batch is Poisson") {
    // Who runs at an instant arrived in one window of 1 s, so samples 1 s apart are independent.
    SimulationOptions options = plain_options();
    options.timeline_interval = std::chrono::seconds(1);
    constexpr double rate = 40;
    std::vector<double> above;
    std::vector<double> means;
    std::vector<double> variances;
    const auto model = step_time("{model: constant, step: 50ms}");
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        const auto requests = workload(load(100'000, rate, "20"), seed);
        const Outcome outcome = run(options, *model, *requests);
        std::vector<double> running;
        for (const TimelineSample& s : outcome.timeline) {
            // Neither the filling nor the draining.
            if (s.at < outcome.first_arrival + std::chrono::seconds(2) || s.at > outcome.last_arrival) continue;
            running.push_back(static_cast<double>(s.running));
        }
        const auto n = static_cast<double>(running.size());
        double sum = 0;
        double squares = 0;
        for (const double x : running) {
            sum += x;
            squares += (x - rate) * (x - rate);
        }
        means.push_back(sum / n);
        variances.push_back(squares / n);
        above.push_back(static_cast<double>(std::count_if(running.begin(), running.end(), [](double x) { return x > 50; })) /
                        n);
    }
    check_known("M/G/infinity, mean batch", rate, means, 0.005);
    check_known("M/G/infinity, variance of the batch", rate, variances, 0.03);
    check_known("M/G/infinity, P(batch > 50)", 0.0526, above, 0.07);
}

}  // namespace kvsim::theory
