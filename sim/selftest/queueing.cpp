// Queues with closed formulas. One seat makes the engine a single server, c seats c of them; a constant step makes it an
// infinite one, a step as long as its batch is large processor sharing.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "kvsim/app/selftest.hpp"

namespace kvsim::selftest {
namespace {

constexpr std::uint64_t runs = 16;

struct Queue {
    std::string name;
    double known;
    double bound;  ///< relative
    std::int64_t seats;
    std::string step;
    std::string requests;
    double (*measure)(const Outcome&);
};

std::string load(std::int64_t requests, double rate, const std::string& output) {
    return fmt::format("{{requests: {}, arrivals: {{process: poisson, rate: {}/s}}, prompt_tokens: 1, output_tokens: {}}}",
                       requests, rate, output);
}

/// The service is one prefill of geometrically many tokens of 1 ms, so that a request costs one step and not a thousand.
std::string exponential(std::int64_t requests, double rate) {
    return fmt::format(
        "{{requests: {}, arrivals: {{process: poisson, rate: {}/s}}, prompt_tokens: {{distribution: geometric, "
        "mean: 1000}}, output_tokens: 1}}",
        requests, rate);
}

/// The value below which 99 % of the completed requests' times in system lie, s.
double e2e_p99(const Outcome& outcome) {
    std::vector<std::int64_t> times;
    for (const RequestRecord& r : outcome.requests) times.push_back(r.e2e.count());
    const auto rank = static_cast<std::ptrdiff_t>(0.99 * static_cast<double>(times.size() - 1));
    std::nth_element(times.begin(), times.begin() + rank, times.end());
    return static_cast<double>(times[static_cast<std::size_t>(rank)]) * 1e-9;
}

double mean_queue(const Outcome& outcome) {
    double sum = 0;
    for (const RequestRecord& r : outcome.requests) sum += to_seconds(r.queue);
    return sum / static_cast<double>(outcome.requests.size());
}

std::vector<Queue> queues() {
    std::vector<Queue> all;
    // Pollaczek-Khinchine: S (1 + rho / (2 (1 - rho))).
    for (const auto& [rho, known, requests, bound] :
         {std::tuple{0.5, 1.5, 25'000, 0.005}, std::tuple{0.8, 3.0, 60'000, 0.02}, std::tuple{0.9, 5.5, 100'000, 0.025},
          std::tuple{0.95, 10.5, 150'000, 0.05}})
        all.push_back({fmt::format("M/D/1, load {}: time in system, s", rho), known, bound, 1, "{model: constant, step: 1s}",
                       load(requests, rho, "1"), mean_e2e});
    // Wq = rho t (2m - 1) / (2 (1 - rho)), m = 100 tokens of t = 10 ms.
    for (const auto& [rho, known, requests, bound] :
         {std::tuple{0.5, 1.995, 10'000, 0.02}, std::tuple{0.8, 4.980, 10'000, 0.06}, std::tuple{0.9, 9.955, 20'000, 0.1}})
        all.push_back({fmt::format("M/G/1, geometric output, load {}: time in system, s", rho), known, bound, 1,
                       "{model: constant, step: 10ms}", load(requests, rho, "{distribution: geometric, mean: 100}"), mean_e2e});
    for (const auto& [rho, known, bound] :
         {std::tuple{0.5, 2.0, 0.01}, std::tuple{0.8, 5.0, 0.025}, std::tuple{0.9, 10.0, 0.05}})
        all.push_back({fmt::format("M/M/1, load {}: time in system, s", rho), known, bound, 1,
                       "{model: affine, per_token: 1ms}", exponential(60'000, rho), mean_e2e});
    // Exponential with mean 5: 5 ln 100.
    all.push_back({"M/M/1, load 0.8: p99 of the time in system, s", 23.03, 0.05, 1, "{model: affine, per_token: 1ms}",
                   exponential(60'000, 0.8), e2e_p99});
    // Processor sharing: S / (1 - rho) for any law of lengths, in the limit of many tokens.
    all.push_back({"processor sharing, load 0.8: time in system, s", 5.0, 0.04, 4096, "{model: affine, per_sequence: 5ms}",
                   load(12'000, 0.8, "{distribution: geometric, mean: 200}"), mean_e2e});
    // Erlang's C formula; four, eight, two servers of exponential service (geometric, 1,000 steps).
    for (const auto& [seats, rho, known, bound] :
         {std::tuple{4, 0.8, 0.74554, 0.05}, std::tuple{8, 0.9, 0.87692, 0.08}, std::tuple{2, 0.7, 0.96078, 0.05}})
        all.push_back({fmt::format("Erlang C, {} servers, load {}: wait, s", seats, rho), known, bound, seats,
                       "{model: constant, step: 1ms}",
                       load(5'000 * seats, seats * rho, "{distribution: geometric, mean: 1000}"), mean_queue});
    // While the engine is busy a request waits half a step on average, whatever the law of lengths.
    for (const char* output : {"20", "{distribution: geometric, mean: 20}"})
        all.push_back({fmt::format("M/G/infinity, {} output: time in system, s", output[0] == '2' ? "constant" : "geometric"),
                       1.025, 0.005, 4096, "{model: constant, step: 50ms}", load(10'000, 10, output), mean_e2e});
    return all;
}

double blocked(const Outcome& outcome) {
    return static_cast<double>(outcome.counters.queue_full) / static_cast<double>(outcome.counters.arrivals);
}

constexpr double batch_mean = 40;

/// Mean, variance and P(> 50) of the batch of M/G/infinity. Who runs at an instant arrived in one window of 1 s, so samples 1 s
/// apart are independent.
std::array<double, 3> batch_law(std::uint64_t seed) {
    SimulationOptions options = plain_options();
    options.timeline_interval = std::chrono::seconds(1);
    const auto requests = workload(load(100'000, batch_mean, "20"), seed);
    const Outcome outcome = run(options, *step_time("{model: constant, step: 50ms}"), *requests);
    double n = 0;
    double sum = 0;
    double squares = 0;
    double above = 0;
    for (const TimelineSample& s : outcome.timeline) {
        // Neither the filling nor the draining.
        if (s.at < outcome.first_arrival + std::chrono::seconds(2) || s.at > outcome.last_arrival) continue;
        const auto x = static_cast<double>(s.running);
        n += 1;
        sum += x;
        squares += (x - batch_mean) * (x - batch_mean);
        above += x > 50 ? 1 : 0;
    }
    return {sum / n, squares / n, above / n};
}

/// In-system integral over sum of sojourn times, less 1.
double little(std::uint64_t seed) {
    SimulationOptions options = plain_options();
    options.engine.max_num_seqs = 8;
    const auto requests = workload(load(20'000, 9, "{distribution: geometric, mean: 20}"), seed);
    const Outcome outcome = run(options, *step_time("{model: affine, c0: 20ms, per_sequence: 3ms}"), *requests);
    Int128 sojourn = 0;
    for (const RequestRecord& r : outcome.requests) sojourn += r.e2e.count();
    return static_cast<double>(outcome.integrals.in_system_dt - sojourn) / static_cast<double>(sojourn);
}

}  // namespace

void add_queueing(std::vector<Case>& all) {
    all.push_back({"Little's law: integral of N(t) against sojourn times, relative", 0, 1e-9, 1, little});
    for (const Queue& q : queues()) {
        all.push_back({q.name, q.known, q.bound * q.known, runs, [q](std::uint64_t seed) {
                           SimulationOptions options = plain_options();
                           options.engine.max_num_seqs = q.seats;
                           const auto requests = workload(q.requests, seed);
                           return q.measure(run(options, *step_time(q.step), *requests));
                       }});
    }
    // Erlang's B formula: who finds every seat taken is turned away.
    for (const auto& [seats, erlangs, known, bound] :
         {std::tuple{4, 3.2, 0.228145, 0.03}, std::tuple{10, 8.0, 0.121661, 0.04}, std::tuple{64, 60.0, 0.060363, 0.05}})
        all.push_back({fmt::format("Erlang B, {} servers, {} erlangs: share turned away", seats, erlangs), known, bound * known,
                       runs, [seats = seats, erlangs = erlangs](std::uint64_t seed) {
                           SimulationOptions options = plain_options();
                           options.engine.max_num_seqs = seats;
                           options.engine.max_queued_requests = 0;
                           const auto requests = workload(
                               load(seats > 32 ? 80'000 : 20'000, erlangs, "{distribution: geometric, mean: 1000}"), seed);
                           return blocked(run(options, *step_time("{model: constant, step: 1ms}"), *requests));
                       }});
    // DistServe's arithmetic of one instance against two GPUs at D = 1 s, R = 0.8/s. Two stages of D/2: the second never
    // queues, so it is a delay; tensor parallelism with a speed-up of 1.7 is a service of D/1.7.
    for (const auto& [name, step, delay, known] :
         {std::tuple{"two stages", "500ms", 500, 1 + 0.8 / (4 * (2 - 0.8))},
          std::tuple{"speed-up 1.7", "588235294ns", 0, 1 / 1.7 + 0.8 / (1.7 * 1.7) / (2 * (1 - 0.8 / 1.7))}})
        all.push_back({fmt::format("DistServe, two GPUs, {}: time in system, s", name), known, 0.01 * known, runs,
                       [step = std::string(step), delay = delay](std::uint64_t seed) {
                           SimulationOptions options = plain_options();
                           options.engine.max_num_seqs = 1;
                           options.api = std::chrono::milliseconds(delay);
                           const auto requests = workload(load(25'000, 0.8, "1"), seed);
                           return mean_e2e(run(options, *step_time("{model: constant, step: " + step + "}"), *requests));
                       }});
    // One run gives all three.
    const auto memo = std::make_shared<std::map<std::uint64_t, std::array<double, 3>>>();
    const auto part = [memo](std::size_t k) {
        return [memo, k](std::uint64_t seed) {
            const auto found = memo->find(seed);
            return (found != memo->end() ? found->second : memo->emplace(seed, batch_law(seed)).first->second)[k];
        };
    };
    all.push_back({"M/G/infinity: mean batch", batch_mean, 0.005 * batch_mean, runs, part(0)});
    all.push_back({"M/G/infinity: variance of the batch (Poisson)", batch_mean, 0.03 * batch_mean, runs, part(1)});
    all.push_back({"M/G/infinity: P(batch > 50)", 0.0526, 0.07 * 0.0526, runs, part(2)});
}

}  // namespace kvsim::selftest
