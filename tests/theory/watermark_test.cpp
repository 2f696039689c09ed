// The published table of vLLM's watermark option: Qwen2.5-7B on a GB200, 450 prompts at concurrency 128 against 18,724 blocks.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <vector>

#include "kvsim/config/load.hpp"
#include "kvsim/config/scenario.hpp"
#include "kvsim/model/deployment.hpp"
#include "support.hpp"

namespace kvsim::theory {
namespace {

struct Point {
    double watermark;
    double preemptions;  // published
    double throughput;   // published, output token/s
};
constexpr Point published[] = {
    {0, 1065, 11582}, {0.02, 400, 12134}, {0.05, 187, 12167}, {0.10, 168, 11835}, {0.15, 168, 11635}};

struct Measured {
    double preemptions = 0;
    double throughput = 0;
};

Measured measure(double watermark) {
    constexpr std::uint64_t seeds = 10;
    config::Diagnostics diagnostics;
    const std::string text = fmt::format(
        "model: Qwen/Qwen2.5-7B-Instruct\n"
        "hardware: {{gpu: GB200}}\n"
        "engine: {{preset: vllm-v1, num_gpu_blocks_override: 18724, block_size: 16, max_num_seqs: 256, "
        "max_num_batched_tokens: 8192, enable_prefix_caching: false, async_scheduling: false, api: 0ms, watermark: {}}}\n"
        "workload: {{requests: 450, max_concurrency: 128, arrivals: all_at_once, prompt_tokens: {{distribution: uniform, min: "
        "800, max: 1200}}, output_tokens: {{distribution: uniform, min: 4000, max: 6000}}}}\n",
        watermark);
    const config::Value root = config::parse_yaml(text, "watermark.yaml", diagnostics);
    const config::Scenario scenario = config::read_scenario(root, "watermark.yaml", diagnostics);
    const Catalog catalog(std::filesystem::path(KVSIM_SOURCE_DIR) / "scenarios" / "catalog");
    const Deployment deployment = resolve_deployment(scenario, catalog, diagnostics);
    diagnostics.throw_if_errors();
    const auto model = make_step_time(scenario.step_time, deployment, diagnostics);
    diagnostics.throw_if_errors();

    Measured mean;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        SimulationOptions options;
        options.engine = deployment.engine;
        options.api = *deployment.api;
        options.max_concurrency = scenario.workload.max_concurrency;
        const auto requests = make_workload(scenario.workload, seed, {}, diagnostics);
        const Outcome outcome = run(options, *model, *requests);
        CHECK(outcome.counters.completed == 450);
        std::int64_t tokens = 0;
        for (const RequestRecord& r : outcome.requests) tokens += r.output_tokens;
        mean.preemptions += static_cast<double>(outcome.counters.preemptions) / seeds;
        mean.throughput += static_cast<double>(tokens) / to_seconds(outcome.end - outcome.first_arrival) / seeds;
    }
    return mean;
}

}  // namespace

TEST_CASE("theory: the published watermark table, mean of 10 seeds") {
    std::vector<Measured> measured;
    for (const Point& p : published) {
        measured.push_back(measure(p.watermark));
        const std::string text =
            fmt::format("watermark {}: published {} preemptions, {} tok/s; measured {:.1f}, {:.0f} tok/s", p.watermark,
                        p.preemptions, p.throughput, measured.back().preemptions, measured.back().throughput);
        CHECK_MESSAGE(measured.back().preemptions == doctest::Approx(p.preemptions).epsilon(0.25), text);
        if (std::getenv("KVSIM_THEORY_VERBOSE") != nullptr) MESSAGE(text);
    }
    for (std::size_t i = 1; i < measured.size(); ++i) CHECK(measured[i].preemptions <= measured[i - 1].preemptions);
    // The throughputs are published without the engine's other settings; their order is what the watermark is about.
    for (std::size_t i = 0; i < measured.size(); ++i) {
        for (std::size_t j = 0; j < measured.size(); ++j) {
            if (published[i].throughput <= published[j].throughput) continue;
            CAPTURE(published[i].watermark);
            CAPTURE(published[j].watermark);
            CHECK(measured[i].throughput > measured[j].throughput);
        }
    }
}

}  // namespace kvsim::theory
