#include "support.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>
#include <cmath>

#include "kvsim/base/check.hpp"
#include "kvsim/config/load.hpp"
#include "kvsim/config/scenario.hpp"
#include "kvsim/model/deployment.hpp"
#include "kvsim/model/pieces.hpp"

namespace kvsim::theory {
namespace {

config::Scenario scenario(const std::string& text) {
    config::Diagnostics diagnostics;
    const config::Value root = config::parse_yaml(text, "theory.yaml", diagnostics);
    config::Scenario out = config::read_scenario(root, "theory.yaml", diagnostics);
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

Estimate estimate(const std::vector<double>& samples) {
    // 0.9995 quantiles of Student's t by degrees of freedom.
    constexpr std::array<double, 19> t{636.619, 31.599, 12.924, 8.610, 6.869, 5.959, 5.408, 5.041, 4.781, 4.587,
                                       4.437,   4.318,  4.221,  4.140, 4.073, 4.015, 3.965, 3.922, 3.883};
    KVSIM_CHECK(samples.size() >= 2 && samples.size() <= t.size() + 1, "2 to 20 samples");
    const auto n = static_cast<double>(samples.size());
    double sum = 0;
    for (const double x : samples) sum += x;
    Estimate out;
    out.mean = sum / n;
    double squares = 0;
    for (const double x : samples) squares += (x - out.mean) * (x - out.mean);
    out.half_width = t[samples.size() - 2] * std::sqrt(squares / (n - 1) / n);
    return out;
}

void check_known(const std::string& what, double known, const std::vector<double>& samples, double relative) {
    const Estimate e = estimate(samples);
    const std::string text = fmt::format("{}: known {:.5f}, measured {:.5f} +- {:.5f} (99.9 %), off by {:.2f} %", what, known,
                                         e.mean, e.half_width, (e.mean / known - 1) * 100);
    CHECK_MESSAGE(std::abs(e.mean - known) <= e.half_width, text);
    CHECK_MESSAGE(std::abs(e.mean - known) <= relative * known, text);
    // An interval wider than the bound would prove nothing.
    CHECK_MESSAGE(e.half_width <= 2 * relative * known, text);
    if (std::getenv("KVSIM_THEORY_VERBOSE") != nullptr) MESSAGE(text);
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

}  // namespace kvsim::theory
