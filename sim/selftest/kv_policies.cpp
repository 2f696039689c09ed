// The PagedAttention paper's comparison of KV allocation (OPT-13B on an A100-40GB, figures 2 and 13) and what its sharing saves
// (figure 15; how far the lengths of Alpaca spread is not published, and parallel outputs share what prompts fill of blocks).
// Lengths are exponential with the means the paper publishes for ShareGPT and Alpaca; the arrivals are more than any of the
// systems serves, so that memory alone decides how many requests run.

#include <fmt/format.h>

#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "kvsim/app/selftest.hpp"

namespace kvsim::selftest {
namespace {

Outcome allocation(const std::string& policy, std::uint64_t seed) {
    return run_scenario(fmt::format("model: facebook/opt-13b\n"
                                    "hardware: {{gpu: A100-40GB}}\n"
                                    "step_time: {{model: constant, step: 60ms}}\n"
                                    "engine: {{batching: iteration, kv_policy: {}, enable_prefix_caching: false, "
                                    "kv_cache_memory_bytes: 12GiB, async_scheduling: false, api: 0ms}}\n"
                                    "workload: {{requests: 2000, arrivals: {{process: poisson, rate: 2/s}}, "
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

using Figures = std::array<double, 5>;
constexpr std::array<const char*, 5> figure_names{"token share", "reserved share", "internal share", "external share",
                                                  "mean batch"};
struct Published {
    const char* policy;
    Figures figures;  ///< 0: none given
};
constexpr Published published[] = {{"contiguous-max", {.204, .133, .573, .089, 7.00}},
                                   {"contiguous-pow2", {.268, .179, .136, .416, 9.81}},
                                   {"contiguous-exact", {.382, .252, 0, .366, 13.62}},
                                   {"paged", {.963, 0, 0, 0, 30.42}}};

/// Each run is asked for all its figures.
class Allocations {
public:
    Figures of(const std::string& policy, std::uint64_t seed) {
        const std::lock_guard lock(mutex_);
        const auto [at, fresh] = done_.try_emplace({policy, seed});
        if (fresh) at->second = measure(allocation(policy, seed));
        return at->second;
    }

private:
    static Figures measure(const Outcome& out) {
        const Integrals& i = out.integrals;
        const auto share = [&i](Int128 slots) { return static_cast<double>(slots) / static_cast<double>(i.slots_busy_dt); };
        const Int128 held = i.slots_token_dt + i.slots_reserved_dt + i.slots_internal_dt;
        return {share(i.slots_token_dt), share(i.slots_reserved_dt), share(i.slots_internal_dt), share(i.slots_busy_dt - held),
                static_cast<double>(out.counters.rows) / static_cast<double>(out.counters.steps)};
    }

    std::mutex mutex_;
    std::map<std::pair<std::string, std::uint64_t>, Figures> done_;
};

void add(std::vector<Case>& all, const std::string& name, double known, double relative,
         std::function<double(std::uint64_t)> measure) {
    Case c{name, known, relative * known, 2, std::move(measure)};
    c.law = false;
    all.push_back(std::move(c));
}

}  // namespace

void add_kv_policies(std::vector<Case>& all) {
    const auto runs = std::make_shared<Allocations>();
    for (const Published& row : published) {
        for (std::size_t i = 0; i < row.figures.size(); ++i) {
            if (row.figures[i] == 0) continue;
            add(all, fmt::format("PagedAttention's comparison, {}: {}", row.policy, figure_names[i]), row.figures[i], 0.15,
                [runs, policy = std::string(row.policy), i](std::uint64_t seed) { return runs->of(policy, seed)[i]; });
        }
    }
    struct Saving {
        std::int64_t outputs;
        double parallel, beam;
    };
    for (const Saving& s : {Saving{2, .0609, .3756}, Saving{4, .0853, .5313}, Saving{6, .0979, .5516}}) {
        for (const bool beams : {false, true})
            add(all, fmt::format("blocks saved by sharing, {} {}", s.outputs, beams ? "beams" : "parallel outputs"),
                beams ? s.beam : s.parallel, beams ? 0.15 : 0.50,
                [outputs = s.outputs, beams](std::uint64_t seed) { return saved(outputs, beams, seed); });
    }
}

}  // namespace kvsim::selftest
