#pragma once
// A scenario as the user wrote it: typed where kvsim's core fixes the keys, a Choice (name + its own parameters) where a
// registered piece does. Unset optionals are filled by the preset (model/deployment.hpp), never here.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvsim/base/units.hpp"
#include "kvsim/config/schema.hpp"
#include "kvsim/config/value.hpp"

namespace kvsim::config {

/// A registered piece by name (written `{model: affine, ...}`, or just `affine`), with the map it was written in; the piece's
/// own schema reads the rest of the map.
struct Choice {
    std::string name;
    Mark name_mark;        ///< where it is named; where it is missed when it was not written
    bool written = false;  ///< it stands in the scenario; without a name it was wrong, and reported
    Value params;  ///< the whole map, the naming key included; null when the piece was named by a plain scalar or by default
};

/// Reads a Choice whose name stands under `naming_key` ("policy", "model", "process", ...); `key` names it in messages.
bool read_choice(const Value& value, std::string_view key, std::string_view naming_key, Choice& out, Diagnostics& diagnostics);

struct HardwareConfig {
    Value gpu;  ///< a catalogue name, or a map of the card's facts (model/catalog.hpp)
    std::int64_t tensor_parallel_size = 1;
    std::int64_t pipeline_parallel_size = 1;
    std::int64_t data_parallel_size = 1;
    std::int64_t decode_context_parallel_size = 1;
    std::int64_t replicas = 1;
};

/// What only SGLang's scheduler reads (model/sglang_args.hpp).
struct SglangConfig {
    std::optional<double> schedule_conservativeness;
    std::optional<std::int64_t> max_prefill_tokens;
    std::optional<bool> enable_mixed_chunk;
    std::optional<std::string> evict;
    std::optional<std::int64_t> max_new_tokens;
    std::optional<std::int64_t> clip_max_new_tokens;
};

/// vLLM's engine arguments by their names; whatever is unset comes from the preset.
struct EngineConfig : SglangConfig {
    std::optional<std::string> preset;
    std::optional<std::string> version;   ///< whose memory accounting and defaults apply ("vllm-0.11.0", "sglang", "trtllm")
    std::optional<std::string> batching;  ///< the batch policy under the preset's other defaults
    // Pieces of the batch policy; each unnamed: the preset's.
    Choice scheduling_policy, victim, admission, kv_policy, length_predictor;
    std::optional<std::string> requeue;
    std::optional<std::string> context_chunking;
    std::optional<std::int64_t> router_max_wait_tokens;
    std::optional<std::int64_t> max_live_tokens;
    std::optional<std::string> kv_cache_dtype;
    std::optional<std::string> dtype;
    std::optional<std::string> quantization;
    std::optional<std::int64_t> max_model_len;
    std::optional<std::int64_t> max_num_seqs;
    std::optional<std::int64_t> max_num_batched_tokens;
    std::optional<std::int64_t> max_queued_requests;
    std::optional<std::int64_t> block_size;
    std::optional<double> gpu_memory_utilization;
    std::optional<std::int64_t> num_gpu_blocks_override;
    std::optional<Bytes> kv_cache_memory_bytes;
    std::optional<Bytes> weights_memory_bytes;     ///< replaces the weights computed from the shape
    std::optional<Bytes> activation_memory_bytes;  ///< replaces the activation-peak rule of the memory derivation
    std::optional<Bytes> non_torch_memory_bytes;   ///< replaces the non-torch rule
    std::optional<Bytes> cuda_graph_memory_bytes;  ///< replaces the CUDA-graph rule
    std::optional<bool> enforce_eager;
    std::optional<bool> enable_expert_parallel;
    std::optional<bool> disable_hybrid_kv_cache_manager;
    std::optional<std::int64_t> draft_layers;  ///< KV layers of a draft model; memory only
    std::optional<std::int64_t> num_speculative_tokens;
    std::optional<bool> enable_prefix_caching;
    std::optional<bool> enable_chunked_prefill;
    std::optional<std::int64_t> long_prefill_token_threshold;
    std::optional<bool> async_scheduling;
    std::optional<bool> scheduler_reserve_full_isl;
    std::optional<double> watermark;
    std::optional<std::string> preemption;
    std::optional<Bytes> swap_space;  ///< per GPU
    std::optional<std::int64_t> num_cpu_blocks_override;
    std::optional<std::int64_t> max_num_partial_prefills;
    std::optional<std::int64_t> max_long_partial_prefills;
    std::optional<double> scheduler_delay_factor;
    std::optional<bool> async_output_processing;
    std::optional<double> swap_bandwidth_gb_s;
    std::optional<bool> swap_overlap;
    std::optional<SimDuration> api;         ///< front-end time between arrival and the waiting queue
    FineDuration tokenizer_time;            ///< of the front end's one tokenizer, per request
    FineDuration tokenizer_time_per_token;  ///< and per prompt token
    SimDuration cold_start{};               ///< 0: the engine is warm from the beginning
    double cold_start_slowdown = 0.4;
};

struct SloConfig {
    std::optional<SimDuration> ttft;
    std::optional<SimDuration> tpot;
    std::optional<SimDuration> itl_p99;  ///< of the request's own gaps between tokens
    std::optional<SimDuration> e2e;
    std::optional<SimDuration> queue;
    [[nodiscard]] bool any() const { return ttft || tpot || itl_p99 || e2e || queue; }
};

/// When a client gives up, counted from the intended arrival.
struct TimeoutConfig {
    std::optional<SimDuration> ttft;
    std::optional<SimDuration> e2e;
};

/// What one kind of clients sends. The maps belong to the workload pieces (model/workload_pieces.hpp, model/clients.hpp).
struct ClientConfig {
    Mark mark;
    std::optional<std::int64_t> requests;
    std::optional<SimDuration> duration;
    std::optional<std::int64_t> max_concurrency;
    Value arrivals;       ///< {process: ..., ...} or a bare process name
    Value prompt_tokens;  ///< {distribution: ..., ...} or a bare integer (constant)
    Value output_tokens;
    Value reasoning_tokens;  ///< as output_tokens, before them
    Value prefix;            ///< shared system prompts
    Value documents;         ///< shared documents in prompts
    Value users;             ///< a closed loop
    Value sessions;          ///< requests that build on each other
    std::optional<SimDuration> jitter;
    std::optional<std::int64_t> n;
    std::optional<bool> beam_search;
    std::optional<std::int64_t> priority;
    std::optional<std::string> tenant;
    TimeoutConfig timeout;
    Value cancel;
    Value retry;
};

struct ClassConfig : ClientConfig {
    std::string name;
    std::optional<SloConfig> slo;  ///< unset: the scenario's
};

struct WorkloadConfig : ClientConfig {
    double rate_scale = 1;
    bool latency_from_sent = false;
    Value trace;  ///< {path, format, ...}
    std::vector<ClassConfig> classes;
};

/// What is not measured: arrivals up to warmup_time after the first, or the first warmup_requests, or that share of them, or
/// what MSER-5 finds; likewise before the last one. At most one kind of each is set.
struct MeasureConfig {
    std::optional<SimDuration> warmup_time;
    std::optional<std::int64_t> warmup_requests;
    std::optional<double> warmup_share;  ///< of the arrivals, in [0, 1)
    bool warmup_auto = false;
    std::optional<SimDuration> cooldown_time;
    std::optional<std::int64_t> cooldown_requests;
    std::optional<double> cooldown_share;
    std::optional<SimDuration> window;  ///< of windows.csv
};

struct MetricsConfig {
    bool exact_percentiles = true;  ///< false: `percentiles: histogram`
};

struct OutputConfig {
    bool requests = true;
    bool timeline = true;
    SimDuration timeline_interval = std::chrono::seconds(1);
};

struct Scenario {
    std::filesystem::path file;  ///< relative paths inside the scenario resolve against its folder
    std::string name;
    std::int64_t seed = 1;
    Value model;  ///< catalogue name, path of a config.json, or a map of the few facts
    HardwareConfig hardware;
    Choice router;
    EngineConfig engine;
    Choice step_time;  ///< name empty: the best tier available
    WorkloadConfig workload;
    SloConfig slo;
    MeasureConfig measure;
    MetricsConfig metrics;
    OutputConfig output;
    Value root;        ///< the tree it was read from, overlays applied
    std::string hash;  ///< 16 hex digits over the canonical text of `root` without name and output; equal runs, equal hash
};

/// Reads the fixed part of a scenario (defaults: name = the file's stem, made a safe folder name). Everything wrong goes to
/// `diagnostics`; a Scenario is only meaningful when that is ok. A null root after a reported error adds nothing.
Scenario read_scenario(const Value& root, const std::filesystem::path& file, Diagnostics& diagnostics);

/// Every section's table, for `kvsim schema`: {"engine", docs}, {"hardware", docs}, ...
std::vector<std::pair<std::string, std::vector<FieldDoc>>> scenario_docs();

}  // namespace kvsim::config
