#include <fmt/format.h>

#include <array>
#include <cmath>

#include "kvsim/app/selftest.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/config/load.hpp"
#include "kvsim/config/scenario.hpp"
#include "kvsim/model/deployment.hpp"
#include "kvsim/model/pieces.hpp"

namespace kvsim::selftest {
namespace {

config::Scenario scenario(const std::string& text) {
    config::Diagnostics diagnostics;
    const config::Value root = config::parse_yaml(text, "selftest.yaml", diagnostics);
    config::Scenario out = config::read_scenario(root, "selftest.yaml", diagnostics);
    diagnostics.throw_if_errors();
    return out;
}

}  // namespace

std::unique_ptr<StepTimeModel> step_time(const std::string& text) {
    config::Diagnostics diagnostics;
    auto model =
        make_step_time(scenario("step_time: " + text +
                                "\nworkload: {requests: 1, arrivals: all_at_once, prompt_tokens: 1, output_tokens: 1}\n")
                           .step_time,
                       {}, diagnostics);
    diagnostics.throw_if_errors();
    return model;
}

std::unique_ptr<Workload> workload(const std::string& text, std::uint64_t seed) {
    config::Diagnostics diagnostics;
    auto made = make_workload(scenario("workload: " + text + "\n").workload, seed, {}, diagnostics);
    diagnostics.throw_if_errors();
    return made;
}

SimulationOptions plain_options() {
    SimulationOptions options;
    EngineArgs& e = options.engine;
    e.async_scheduling = false;
    e.enable_prefix_caching = false;
    e.max_model_len = std::int64_t{1} << 20;
    e.max_num_seqs = 4096;
    e.max_num_batched_tokens = std::int64_t{1} << 20;
    e.block_size = 16;
    e.num_gpu_blocks = std::int64_t{1} << 24;
    return options;
}

Outcome run(const SimulationOptions& options, const StepTimeModel& step_time, Workload& workload) {
    config::Diagnostics diagnostics;
    const auto router = make_router({}, 1, diagnostics);
    return simulate(options, step_time, *router, workload);
}

Outcome run_scenario(const std::string& text, std::uint64_t seed) {
    config::Diagnostics diagnostics;
    const config::Scenario s = scenario(text);
    const Deployment deployment = resolve_deployment(s, Catalog::open(), diagnostics);
    diagnostics.throw_if_errors();
    const auto model = make_step_time(s.step_time, deployment, diagnostics);
    const auto requests = make_workload(s.workload, seed, {}, diagnostics);
    diagnostics.throw_if_errors();
    SimulationOptions options;
    options.engine = deployment.engine;
    options.engine.seed = seed;
    options.api = deployment.api.value_or(SimDuration::zero());
    options.max_concurrency = s.workload.max_concurrency;
    return run(options, *model, *requests);
}

Estimate estimate(const std::vector<double>& samples) {
    // 0.975 and 0.9995 quantiles of Student's t by degrees of freedom.
    constexpr std::array<double, 19> t95{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                         2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093};
    constexpr std::array<double, 19> t999{636.619, 31.599, 12.924, 8.610, 6.869, 5.959, 5.408, 5.041, 4.781, 4.587,
                                          4.437,   4.318,  4.221,  4.140, 4.073, 4.015, 3.965, 3.922, 3.883};
    KVSIM_CHECK(!samples.empty() && samples.size() <= t95.size() + 1, "1 to 20 samples");
    const auto n = static_cast<double>(samples.size());
    double sum = 0;
    for (const double x : samples) sum += x;
    Estimate out;
    out.mean = sum / n;
    if (samples.size() == 1) return out;
    double squares = 0;
    for (const double x : samples) squares += (x - out.mean) * (x - out.mean);
    const double error = std::sqrt(squares / (n - 1) / n);
    out.half_width_95 = t95[samples.size() - 2] * error;
    out.half_width_999 = t999[samples.size() - 2] * error;
    return out;
}

Result evaluate(const Case& c) {
    std::vector<double> samples;
    for (std::uint64_t seed = 1; seed <= c.runs; ++seed) samples.push_back(c.measure(seed));
    Result result;
    result.measured = estimate(samples);
    const double off = std::abs(result.measured.mean - c.expected);
    result.passed = off <= c.tolerance && (c.runs == 1 || !c.law || off <= result.measured.half_width_999);
    return result;
}

double mean_e2e(const Outcome& outcome) {
    Int128 sum = 0;
    std::int64_t count = 0;
    for (const RequestRecord& r : outcome.requests) {
        if (r.finish != FinishReason::length) continue;
        sum += r.e2e.count();
        ++count;
    }
    return static_cast<double>(sum) / static_cast<double>(count) * 1e-9;
}

}  // namespace kvsim::selftest
