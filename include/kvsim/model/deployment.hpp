#pragma once
// A scenario's model, hardware and engine after presets and defaults: what runs, and how that was decided.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvsim/config/scenario.hpp"
#include "kvsim/model/catalog.hpp"
#include "kvsim/model/engine_args.hpp"
#include "kvsim/model/memory.hpp"
#include "kvsim/model/pieces.hpp"

namespace kvsim {

/// A preset is a set of defaults; explicit keys win.
struct Preset {
    std::string_view name;
    std::string_view summary;
    std::string_view source;
    bool recorded = true;                   ///< recorded decisions of the engine stand behind it; else it follows a description
    std::string_view batching = "vllm-v1";  ///< one of schedulers()
    std::int64_t null_blocks = 1;
    double gpu_memory_utilization = 0.92;  ///< 0: default_memory_utilization() of its engine
    bool enable_prefix_caching = true;
    bool enable_chunked_prefill = true;
    bool async_scheduling = true;
    bool scheduler_reserve_full_isl = true;
    double watermark = 0;
    std::int64_t tokens_past_limit = 0;  ///< as EngineArgs::tokens_past_limit
    Bytes swap_space{};                  ///< CPU memory for swapped requests, per GPU
    std::string_view order = "fcfs";
    // Empty: the batching style's own.
    std::string_view victim = {};
    std::string_view admission = {};
    std::string_view kv_policy = {};
    std::string_view length_predictor = {};
    std::string_view preemption = "recompute";
    std::string_view requeue = "front";
    std::int64_t block_size = 0;              ///< 0: its engine's
    std::int64_t max_num_seqs = 0;            ///< 0: by the GPU, as vLLM's
    std::int64_t max_num_batched_tokens = 0;  ///< 0: by the GPU, as vLLM's
    bool swap_overlap = false;
};
/// The presets of this version.
std::span<const Preset> presets();

struct Deployment {
    std::optional<ModelSpec> model;
    std::optional<GpuSpec> gpu;
    Catalog catalog;
    std::string model_name;  ///< empty: none named
    std::string gpu_name;
    std::int64_t tensor_parallel_size = 1;
    std::int64_t pipeline_parallel_size = 1;
    std::int64_t data_parallel_size = 1;
    std::int64_t replicas = 1;
    EngineArgs engine;
    double gpu_memory_utilization = 0;  ///< 0: not used
    std::string kv_cache_dtype = "auto";
    std::int64_t kv_element_bytes = 2;
    EngineVersion version;  ///< whose memory accounting applies
    MemoryOptions memory;   ///< what `budget` was derived from
    KvBudget budget;
    std::string modelled_from;            ///< what it was modelled from where no recorded decisions stand behind it
    std::vector<std::string> deviations;  ///< "max_num_seqs=64 (vllm-v1: 1024)"
    std::vector<std::string> warnings;
    std::optional<SimDuration> api;  ///< as the scenario sets it; nullopt: the step-time model's default
    std::filesystem::path base;      ///< folder relative paths resolve against

    /// Engine replicas, each with its own KV: data parallelism times replicas.
    [[nodiscard]] std::int64_t engine_replicas() const { return data_parallel_size * replicas; }
    /// Why a run cannot simulate it although its memory is known; empty: it can.
    [[nodiscard]] std::string unsupported_run() const;
};

/// Fills presets and defaults, resolves names and derives the KV budget. Everything wrong goes to `diagnostics`; a Deployment
/// is only meaningful when that is ok. Defaults follow vLLM's engine arguments (see Preset::source).
Deployment resolve_deployment(const config::Scenario& scenario, const Catalog& catalog, config::Diagnostics& diagnostics);

/// The step-time model a scenario chose; unnamed: fitted when the GPU has constants, else roofline. Null after reporting
/// errors. The object caches prices: share it between threads only with a lock.
std::unique_ptr<StepTimeModel> make_step_time(const config::Choice& choice, const Deployment& deployment,
                                              config::Diagnostics& diagnostics);

/// The router a scenario chose; unnamed: round_robin. Null after reporting errors.
std::unique_ptr<Router> make_router(const config::Choice& choice, std::uint64_t seed, config::Diagnostics& diagnostics);

}  // namespace kvsim
