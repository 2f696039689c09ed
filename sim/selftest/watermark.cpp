// The published table of vLLM's watermark option: Qwen2.5-7B on a GB200, 450 prompts at concurrency 128 against 18,724 blocks.

#include <fmt/format.h>

#include <utility>

#include "kvsim/app/selftest.hpp"
#include "kvsim/config/load.hpp"
#include "kvsim/config/scenario.hpp"
#include "kvsim/model/deployment.hpp"
#include "kvsim/model/pieces.hpp"

namespace kvsim::selftest {
namespace {

double preemptions(double watermark, std::uint64_t seed) {
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
    const Deployment deployment = resolve_deployment(scenario, Catalog::open(), diagnostics);
    diagnostics.throw_if_errors();
    const auto model = make_step_time(scenario.step_time, deployment, diagnostics);
    const auto requests = make_workload(scenario.workload, seed, {}, diagnostics);
    diagnostics.throw_if_errors();
    SimulationOptions options;
    options.engine = deployment.engine;
    options.api = deployment.api.value_or(SimDuration::zero());
    options.max_concurrency = scenario.workload.max_concurrency;
    return static_cast<double>(run(options, *model, *requests).counters.preemptions);
}

}  // namespace

void add_watermark(std::vector<Case>& all) {
    for (const auto& [watermark, published] :
         {std::pair{0.0, 1065}, std::pair{0.02, 400}, std::pair{0.05, 187}, std::pair{0.10, 168}, std::pair{0.15, 168}}) {
        Case c{fmt::format("published watermark table, {}: preemptions", watermark), static_cast<double>(published),
               0.25 * published, 10, [w = watermark](std::uint64_t seed) { return preemptions(w, seed); }};
        c.law = false;
        all.push_back(std::move(c));
    }
}

}  // namespace kvsim::selftest
