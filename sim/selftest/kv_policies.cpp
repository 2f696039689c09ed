// The PagedAttention paper's comparison of KV allocation (OPT-13B on an A100-40GB, figures 2 and 13) and what its sharing saves
// (figure 15). Lengths are exponential with the means the paper publishes for ShareGPT and Alpaca; the arrivals are more than
// any of the systems serves, so that memory alone decides how many requests run.

#include <fmt/format.h>

#include "kvsim/app/selftest.hpp"

namespace kvsim::selftest {
namespace {

Outcome allocation(const std::string& policy, std::uint64_t seed) {
    return run_scenario(fmt::format("model: facebook/opt-13b\n"
                                    "hardware: {{gpu: A100-40GB}}\n"
                                    "step_time: {{model: constant, step: 60ms}}\n"
                                    "engine: {{kv_policy: {}, max_num_batched_tokens: 16384, enable_prefix_caching: false, "
                                    "kv_cache_memory_bytes: 12GiB, async_scheduling: false, api: 0ms}}\n"
                                    "workload: {{requests: 1500, arrivals: {{process: poisson, rate: 2/s}}, "
                                    "prompt_tokens: {{distribution: exponential, mean: 161.31, max: 1024}}, "
                                    "output_tokens: {{distribution: exponential, mean: 337.99, max: 2048}}}}\n",
                                    policy),
                        seed);
}

/// The share of the blocks that several outputs of one prompt save by sharing.
double saved(std::int64_t outputs, bool beams, std::uint64_t seed) {
    const Outcome out = run_scenario(
        fmt::format("model: facebook/opt-13b\n"
                    "hardware: {{gpu: A100-40GB}}\n"
                    "step_time: {{model: constant, step: 30ms}}\n"
                    "engine: {{preset: vllm-v0, version: vllm-0.6.3-v0, kv_cache_memory_bytes: 12GiB, api: 0ms}}\n"
                    "workload: {{requests: 400, arrivals: {{process: poisson, rate: 4/s}}, n: {}, beam_search: {}, "
                    "prompt_tokens: {{distribution: exponential, mean: 19.31}}, "
                    "output_tokens: {{distribution: exponential, mean: 58.45}}}}\n",
                    outputs, beams),
        seed);
    const Integrals& i = out.integrals;
    return static_cast<double>(i.blocks_saved_dt) / static_cast<double>(i.blocks_used_dt + i.blocks_saved_dt);
}

void add(std::vector<Case>& all, const std::string& name, double published, double relative,
         std::function<double(std::uint64_t)> measure) {
    Case c{name, published, relative * published, 3, std::move(measure)};
    c.law = false;
    all.push_back(std::move(c));
}

}  // namespace

void add_kv_policies(std::vector<Case>& all) {
    struct Row {
        const char* policy;
        double token, reserved, internal, external, batch;
    };
    for (const Row& row :
         {Row{"contiguous-max", .204, .133, .573, .089, 7.00}, Row{"contiguous-pow2", .268, .179, .136, .416, 9.81},
          Row{"contiguous-exact", .382, .252, 0, .366, 13.62}, Row{"paged", .963, 0, 0, 0, 30.42}}) {
        const auto share = [&](const char* what, double published, Int128 Integrals::*part) {
            if (published == 0) return;
            add(all, fmt::format("PagedAttention's comparison, {}: {}", row.policy, what), published, 0.15,
                [policy = std::string(row.policy), part](std::uint64_t seed) {
                    const Integrals i = allocation(policy, seed).integrals;
                    return static_cast<double>(i.*part) / static_cast<double>(i.slots_busy_dt);
                });
        };
        share("token share", row.token, &Integrals::slots_token_dt);
        share("reserved share", row.reserved, &Integrals::slots_reserved_dt);
        share("internal share", row.internal, &Integrals::slots_internal_dt);
        if (row.external > 0)
            add(all, fmt::format("PagedAttention's comparison, {}: external share", row.policy), row.external, 0.15,
                [policy = std::string(row.policy)](std::uint64_t seed) {
                    const Integrals i = allocation(policy, seed).integrals;
                    const Int128 held = i.slots_token_dt + i.slots_reserved_dt + i.slots_internal_dt;
                    return 1 - static_cast<double>(held) / static_cast<double>(i.slots_busy_dt);
                });
        add(all, fmt::format("PagedAttention's comparison, {}: mean batch", row.policy), row.batch, 0.15,
            [policy = std::string(row.policy)](std::uint64_t seed) {
                const Counters c = allocation(policy, seed).counters;
                return static_cast<double>(c.rows) / static_cast<double>(c.steps);
            });
    }
    struct Saving {
        std::int64_t outputs;
        double parallel, beam;
    };
    for (const Saving& s : {Saving{2, .0609, .3756}, Saving{4, .0853, .5313}, Saving{6, .0979, .5516}}) {
        for (const bool beams : {false, true})
            add(all, fmt::format("blocks saved by sharing, {} {}", s.outputs, beams ? "beams" : "parallel outputs"),
                beams ? s.beam : s.parallel, beams ? 0.15 : 0.30,
                [outputs = s.outputs, beams](std::uint64_t seed) { return saved(outputs, beams, seed); });
    }
}

}  // namespace kvsim::selftest
