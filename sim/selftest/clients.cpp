// Closed loops of users and classes of clients with closed formulas.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>

#include "kvsim/app/selftest.hpp"

namespace kvsim::selftest {
namespace {

constexpr std::uint64_t runs = 12;

// One seat whose service is one prefill of geometrically many tokens of 1 ms: exponential with mean 1 s.
constexpr const char* service = "prompt_tokens: {distribution: geometric, mean: 1000}, output_tokens: 1";
constexpr double think_time = 9;  // s

SimulationOptions server(QueueOrder order) {
    SimulationOptions options = plain_options();
    options.engine.max_num_seqs = 1;
    options.engine.scheduling_policy = order;
    return options;
}

/// Completions per second and mean time in system, from the first tenth of the arrivals to the last, and (R + Z) X / N: the
/// interactive response-time law.
std::array<double, 3> closed_loop(int users, std::uint64_t seed) {
    const auto requests = workload(
        fmt::format("{{requests: 20000, users: {{count: {}, think_time: {{distribution: exponential, mean: {}s}}}}, {}}}",
                    users, think_time, service),
        seed);
    const Outcome outcome = run(server(QueueOrder::fcfs), *step_time("{model: affine, per_token: 1ms}"), *requests);
    const std::size_t n = outcome.requests.size();
    const SimTime from = outcome.requests[n / 10].arrival;
    const SimTime to = outcome.requests[n - 1].arrival;
    double sum = 0;
    double done = 0;
    for (const RequestRecord& r : outcome.requests) {
        const SimTime end = r.arrival + r.e2e;
        if (end < from || end > to) continue;
        sum += to_seconds(r.e2e);
        done += 1;
    }
    const double throughput = done / to_seconds(to - from);
    const double response = sum / done;
    return {throughput, response, (response + think_time) * throughput / users};
}

/// Mean wait of the urgent class and of the other, s.
std::array<double, 2> two_priorities(std::uint64_t seed) {
    const auto requests = workload(fmt::format("{{requests: 60000, {}, classes: ["
                                               "{{name: high, priority: 0, arrivals: {{process: poisson, rate: 0.3/s}}}},"
                                               "{{name: low, priority: 1, arrivals: {{process: poisson, rate: 0.5/s}}}}]}}",
                                               service),
                                   seed);
    const Outcome outcome = run(server(QueueOrder::priority), *step_time("{model: affine, per_token: 1ms}"), *requests);
    std::array<double, 2> sums{};
    std::array<double, 2> counts{};
    for (RequestId id = 0; id < outcome.requests.size(); ++id) {
        const std::size_t of = outcome.classes[id] == "low" ? 1 : 0;
        sums[of] += to_seconds(outcome.requests[id].queue);
        counts[of] += 1;
    }
    return {sums[0] / counts[0], sums[1] / counts[1]};
}

/// One server, sizes 1 (90 %) and 10 (10 %) at load 0.8: mean time in system, s.
double two_sizes(const std::string& order, std::uint64_t seed) {
    constexpr double rate = 0.8 / 1.9;
    return mean_e2e(
        run_scenario(fmt::format("engine: {{num_gpu_blocks_override: 1000000, max_model_len: 1000000, max_num_seqs: 1,\n"
                                 "  max_num_batched_tokens: 1000000, async_scheduling: false, enable_prefix_caching: false,\n"
                                 "  scheduling_policy: {}}}\n"
                                 "step_time: {{model: affine, per_token: 1s}}\n"
                                 "workload: {{requests: 40000, prompt_tokens: 1, output_tokens: 1, classes: [\n"
                                 "  {{name: short, arrivals: {{process: poisson, rate: {}/s}}}},\n"
                                 "  {{name: long, arrivals: {{process: poisson, rate: {}/s}}, prompt_tokens: 10}}]}}\n",
                                 order, 0.9 * rate, 0.1 * rate),
                     seed));
}

/// Several cases look at one run.
template <std::size_t size, class Measure>
auto shared(Measure measure) {
    const auto memo = std::make_shared<std::map<std::uint64_t, std::array<double, size>>>();
    return [memo, measure](std::uint64_t seed) -> const std::array<double, size>& {
        const auto found = memo->find(seed);
        return found != memo->end() ? found->second : memo->emplace(seed, measure(seed)).first->second;
    };
}

}  // namespace

void add_clients(std::vector<Case>& all) {
    // Machine repairman, exact MVA.
    for (const auto& [users, throughput, response, bound] :
         {std::tuple{5, 0.475092, 1.524277, 0.02}, std::tuple{10, 0.832037, 3.018700, 0.03},
          std::tuple{20, 0.999383, 11.012347, 0.03}}) {
        const auto loop = shared<3>([users = users](std::uint64_t seed) { return closed_loop(users, seed); });
        all.push_back({fmt::format("closed loop, {} users: throughput, 1/s", users), throughput, bound * throughput, runs,
                       [loop](std::uint64_t seed) { return loop(seed)[0]; }});
        all.push_back({fmt::format("closed loop, {} users: response time, s", users), response, bound * response, runs,
                       [loop](std::uint64_t seed) { return loop(seed)[1]; }});
        all.push_back({fmt::format("closed loop, {} users: (R + Z) X / N", users), 1, 0.01, runs,
                       [loop](std::uint64_t seed) { return loop(seed)[2]; }});
    }
    // Cobham: W = W0 / ((1 - s_{k-1}) (1 - s_k)).
    const auto waits = shared<2>(two_priorities);
    all.push_back({"non-preemptive priority, urgent class: wait, s", 1.14286, 0.02 * 1.14286, runs,
                   [waits](std::uint64_t seed) { return waits(seed)[0]; }});
    all.push_back({"non-preemptive priority, other class: wait, s", 5.71429, 0.05 * 5.71429, runs,
                   [waits](std::uint64_t seed) { return waits(seed)[1]; }});
    // Kleinrock's conservation law: sum of load x wait.
    all.push_back({"non-preemptive priority: sum of load x wait, s", 3.2, 0.05 * 3.2, runs,
                   [waits](std::uint64_t seed) { return 0.3 * waits(seed)[0] + 0.5 * waits(seed)[1]; }});
    // Pollaczek-Khinchine; Cobham's formula with the sizes as priorities.
    all.push_back({"first come, first served, sizes 1 and 10: time in system, s", 13.3737, 0.05 * 13.3737, runs,
                   [](std::uint64_t seed) { return two_sizes("fcfs", seed); }});
    all.push_back({"shortest job first, sizes 1 and 10: time in system, s", 7.0729, 0.03 * 7.0729, runs,
                   [](std::uint64_t seed) { return two_sizes("sjf", seed); }});
}

}  // namespace kvsim::selftest
