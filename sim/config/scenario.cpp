#include "kvsim/config/scenario.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvsim/base/text.hpp"

namespace kvsim::config {

namespace {

// ---- the tables, one per section -------------------------------------------------------------------------------------

constexpr Range up_to(double max) {
    return Range{1, max};
}

const Schema<HardwareConfig>& hardware_schema() {
    static const Schema<HardwareConfig> schema{
        custom<HardwareConfig>("gpu", "name | map", "catalogue name of the GPU, or a map of its facts",
                               [](HardwareConfig& into, const Value& value, Diagnostics& diagnostics) {
                                   return decode(value, into.gpu, "gpu", any, diagnostics);
                               }),
        field("tensor_parallel_size", &HardwareConfig::tensor_parallel_size, "GPUs that share each layer", up_to(1024))
            .by_default("1"),
        field("pipeline_parallel_size", &HardwareConfig::pipeline_parallel_size, "stages of layers", up_to(1024))
            .by_default("1"),
        field("data_parallel_size", &HardwareConfig::data_parallel_size, "engine copies within a deployment", up_to(1024))
            .by_default("1"),
        field("decode_context_parallel_size", &HardwareConfig::decode_context_parallel_size,
              "ranks that share the tokens of one request (memory only)", up_to(1024))
            .by_default("1"),
        field("replicas", &HardwareConfig::replicas, "independent deployments behind the router", up_to(65535))
            .by_default("1")};
    return schema;
}

/// A piece by name, or a map {policy: NAME, ...} with its parameters.
Field<EngineConfig> piece(std::string_view key, Choice EngineConfig::*member, std::string_view doc) {
    return custom<EngineConfig>(key, "name | map", doc,
                                [key, member](EngineConfig& into, const Value& value, Diagnostics& diagnostics) {
                                    return read_choice(value, key, "policy", into.*member, diagnostics);
                                });
}

const Schema<EngineConfig>& engine_schema() {
    static const Schema<EngineConfig> schema{
        field("preset", &EngineConfig::preset, "engine whose decisions are taken; defaults of every other key")
            .by_default("vllm-v1"),
        field("version", &EngineConfig::version,
              "engine version whose memory accounting and defaults apply: vllm-0.11.0, sglang, trtllm (default: the preset's)"),
        field("batching", &EngineConfig::batching,
              "what a step is made of, under the preset's other defaults (`kvsim list batching`; default: the preset's)"),
        piece("scheduling_policy", &EngineConfig::scheduling_policy,
              "order of the waiting queue (`kvsim list scheduling_policy`); under vllm-v0 fcfs or priority, under sglang fcfs, "
              "lpm, dfs-weight or lof (default: fcfs)"),
        piece("victim", &EngineConfig::victim,
              "who loses its KV when blocks run short (`kvsim list victim`; default: the batching style's)"),
        piece("admission", &EngineConfig::admission,
              "whether the head of the queue may start (`kvsim list admission`; default: the batching style's)"),
        piece("kv_policy", &EngineConfig::kv_policy, "how KV is allocated (`kvsim list kv_policy`; default: the preset's)"),
        piece("length_predictor", &EngineConfig::length_predictor,
              "what orders and admissions believe of a request's output (`kvsim list length_predictor`; default: oracle)"),
        field("requeue", &EngineConfig::requeue, "where a preempted request waits, in queues that have places")
            .one_of({"front", "back"})
            .by_default("front"),
        field("context_chunking", &EngineConfig::context_chunking,
              "which prompts the rest of the token budget goes to, under batching decode-first, no-evict and max-utilization: "
              "the first, or each in turn a block (TensorRT-LLM)")
            .one_of({"first_come_first_served", "equal_progress"})
            .by_default("first_come_first_served"),
        field("router_max_wait_tokens", &EngineConfig::router_max_wait_tokens,
              "steps of decodes between two of prompts, under batching past-future (LightLLM)", Range{0, 1e6})
            .by_default("0"),
        field("max_live_tokens", &EngineConfig::max_live_tokens,
              "tokens that running requests may hold when another is admitted; 0: no bound", non_negative)
            .by_default("0"),
        field("kv_cache_dtype", &EngineConfig::kv_cache_dtype, "element type of the KV cache")
            .one_of({"auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"})
            .by_default("auto"),
        field("dtype", &EngineConfig::dtype, "element type of weights and activations")
            .one_of({"auto", "bfloat16", "float16", "float32"})
            .by_default("auto"),
        field("quantization", &EngineConfig::quantization, "weight quantisation (default: the model's)"),
        field("max_model_len", &EngineConfig::max_model_len, "tokens of prompt and output together (default: the model's)",
              up_to(1e9)),
        field("max_num_seqs", &EngineConfig::max_num_seqs, "requests that run at once (default: the preset's)", up_to(1e6)),
        field("max_num_batched_tokens", &EngineConfig::max_num_batched_tokens, "tokens of one step (default: the preset's)",
              up_to(1e9)),
        field(
            "max_queued_requests", &EngineConfig::max_queued_requests,
            "requests that may wait in one engine; a further one is rejected, and perhaps sent again (workload.retry); 0: only "
            "who finds a free seat is taken (SGLang's name; default: no bound)",
            Range{0, 1e9}),
        field("block_size", &EngineConfig::block_size, "tokens of one KV block (default: the preset's)", up_to(1e6)),
        field("gpu_memory_utilization", &EngineConfig::gpu_memory_utilization,
              "share of the GPU's memory the engine takes (default: the preset's)", Range{0, 1, true}),
        field("num_gpu_blocks_override", &EngineConfig::num_gpu_blocks_override, "KV blocks, instead of deriving them",
              Range{2, 1e9}),
        field("kv_cache_memory_bytes", &EngineConfig::kv_cache_memory_bytes, "KV memory per GPU, instead of deriving it",
              positive),
        field("weights_memory_bytes", &EngineConfig::weights_memory_bytes, "weights per GPU, instead of computing them",
              non_negative),
        field("activation_memory_bytes", &EngineConfig::activation_memory_bytes,
              "activation peak per GPU, instead of estimating it", non_negative),
        field("non_torch_memory_bytes", &EngineConfig::non_torch_memory_bytes,
              "memory outside the framework's allocator per GPU, instead of estimating it", non_negative),
        field("cuda_graph_memory_bytes", &EngineConfig::cuda_graph_memory_bytes,
              "CUDA graphs per GPU, instead of estimating them; inside the budget from vLLM 0.21 on", non_negative),
        field("enforce_eager", &EngineConfig::enforce_eager, "no CUDA graphs").by_default("false"),
        field("enable_expert_parallel", &EngineConfig::enable_expert_parallel,
              "ranks hold whole experts instead of a slice of each (memory only)")
            .by_default("false"),
        field("disable_hybrid_kv_cache_manager", &EngineConfig::disable_hybrid_kv_cache_manager,
              "windowed layers keep whole contexts")
            .by_default("false"),
        field("draft_layers", &EngineConfig::draft_layers, "KV layers of a draft model (memory only)", Range{0, 1000})
            .by_default("0"),
        field("num_speculative_tokens", &EngineConfig::num_speculative_tokens,
              "drafted tokens a step: further blocks of a recurrent state (memory only)", Range{0, 1000})
            .by_default("0"),
        field("enable_prefix_caching", &EngineConfig::enable_prefix_caching,
              "reuse of KV blocks with equal prefixes (default: the preset's)"),
        field("enable_chunked_prefill", &EngineConfig::enable_chunked_prefill,
              "prompts may be split over steps (default: the preset's)"),
        field("long_prefill_token_threshold", &EngineConfig::long_prefill_token_threshold,
              "most prompt tokens of one request in one step; 0 = no cap", non_negative)
            .by_default("0"),
        field("async_scheduling", &EngineConfig::async_scheduling,
              "the next step is scheduled while one runs (default: the preset's)"),
        field("scheduler_reserve_full_isl", &EngineConfig::scheduler_reserve_full_isl,
              "admit a request only if its whole prompt fits (default: the preset's)"),
        field("watermark", &EngineConfig::watermark, "share of the blocks kept free at admission", Range{0, 1, false, true})
            .by_default("0"),
        field("preemption", &EngineConfig::preemption,
              "recompute | swap | cheaper | none: what becomes of a request that loses its blocks; vllm-v0: auto | recompute | "
              "swap, "
              "where auto swaps requests with several sequences (default: the preset's)"),
        field("swap_space", &EngineConfig::swap_space,
              "CPU memory per GPU for swapped requests (vllm-v0, preemption swap and cheaper)", non_negative)
            .by_default("vllm-v0: 4GiB"),
        field("num_cpu_blocks_override", &EngineConfig::num_cpu_blocks_override,
              "KV blocks on the CPU, instead of deriving them from swap_space", Range{0, 1e9}),
        field("swap_bandwidth_gb_s", &EngineConfig::swap_bandwidth_gb_s,
              "of blocks moved between GPU and CPU, 10^9 byte/s per GPU (default: the GPU's pcie_gb_s)", Range{0.001, 1e6}),
        field("swap_overlap", &EngineConfig::swap_overlap,
              "moved blocks overlap with the step's computation, instead of delaying it")
            .by_default("false"),
        field("max_num_partial_prefills", &EngineConfig::max_num_partial_prefills,
              "prompts in progress that share the token budget (vllm-v0 with chunked prefill)", up_to(1e6))
            .by_default("1"),
        field("max_long_partial_prefills", &EngineConfig::max_long_partial_prefills,
              "of them, prompts longer than long_prefill_token_threshold, which is then 4 % of max_model_len when 0 (vllm-v0)",
              up_to(1e6))
            .by_default("1"),
        field("scheduler_delay_factor", &EngineConfig::scheduler_delay_factor,
              "prompts wait until the oldest has waited that many times the last prompt step (vllm-v0)", non_negative)
            .by_default("0"),
        field("async_output_processing", &EngineConfig::async_output_processing,
              "a finished request is noticed one step late (vllm-v0; default: true with CUDA graphs)"),
        field<EngineConfig, std::optional<double>>(
            "schedule_conservativeness", &EngineConfig::schedule_conservativeness,
            "SGLang: scales what running requests are expected to generate yet (new_token_ratio); more admits less and "
            "retracts less",
            Range{0, 1e6})
            .by_default("1"),
        field<EngineConfig, std::optional<std::int64_t>>(
            "max_prefill_tokens", &EngineConfig::max_prefill_tokens,
            "SGLang: tokens of a prefill batch; with chunked prefill only ends the batch once they are used up", up_to(1e9))
            .by_default("16384"),
        field<EngineConfig, std::optional<bool>>("enable_mixed_chunk", &EngineConfig::enable_mixed_chunk,
                                                 "SGLang: decodes ride along with prompts instead of waiting for them")
            .by_default("false"),
        field<EngineConfig, std::optional<std::string>>(
            "evict", &EngineConfig::evict,
            "SGLang: the radix cache evicts the amount asked for, or only what is missing (from 2026-07-22 on)")
            .one_of({"amount", "shortfall"})
            .by_default("amount"),
        field<EngineConfig, std::optional<std::int64_t>>(
            "max_new_tokens", &EngineConfig::max_new_tokens,
            "SGLang: output tokens every request asks for and is reserved for, though it ends earlier (default: those it "
            "gets, with ignore_eos)",
            up_to(1e9)),
        field<EngineConfig, std::optional<std::int64_t>>(
            "clip_max_new_tokens", &EngineConfig::clip_max_new_tokens,
            "SGLang: most output tokens the estimate of a request counts (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION)", up_to(1e9))
            .by_default("4096"),
        field("mem_fraction_static", &EngineConfig::gpu_memory_utilization, "SGLang's name of gpu_memory_utilization",
              Range{0, 1, true}),
        field("page_size", &EngineConfig::block_size, "SGLang's name of block_size", up_to(1e6)),
        field("max_running_requests", &EngineConfig::max_num_seqs, "SGLang's name of max_num_seqs", up_to(1e6)),
        piece("schedule_policy", &EngineConfig::scheduling_policy, "SGLang's name of scheduling_policy"),
        field("context_length", &EngineConfig::max_model_len, "SGLang's name of max_model_len", up_to(1e9)),
        custom<EngineConfig>(
            "chunked_prefill_size", "integer",
            "SGLang: prompt tokens of one step, its max_num_batched_tokens; -1 switches chunked prefill off",
            [](EngineConfig& into, const Value& value, Diagnostics& diagnostics) {
                std::int64_t size = 0;
                if (!decode(value, size, "chunked_prefill_size", Range{-1, 1e9}, diagnostics)) return false;
                into.enable_chunked_prefill = size > 0;
                if (size > 0) into.max_num_batched_tokens = size;
                return true;
            },
            Range{-1, 1e9}),
        custom<EngineConfig>("disable_radix_cache", "true | false", "SGLang: the opposite of enable_prefix_caching",
                             [](EngineConfig& into, const Value& value, Diagnostics& diagnostics) {
                                 bool off = false;
                                 if (!decode(value, off, "disable_radix_cache", any, diagnostics)) return false;
                                 into.enable_prefix_caching = !off;
                                 return true;
                             }),
        custom<EngineConfig>("disable_overlap_schedule", "true | false", "SGLang: the opposite of async_scheduling",
                             [](EngineConfig& into, const Value& value, Diagnostics& diagnostics) {
                                 bool off = false;
                                 if (!decode(value, off, "disable_overlap_schedule", any, diagnostics)) return false;
                                 into.async_scheduling = !off;
                                 return true;
                             }),
        field("api", &EngineConfig::api,
              "front-end time between arrival and the waiting queue (default: the step-time model's)", Range{0, 86'400}),
        field("tokenizer_time", &EngineConfig::tokenizer_time,
              "time the front end's tokenizer takes for a request, one after the other in order of arrival, before api",
              Range{0, 86'400})
            .by_default("0us"),
        field("tokenizer_time_per_token", &EngineConfig::tokenizer_time_per_token, "and for each of its prompt tokens",
              Range{0, 86'400})
            .by_default("0us"),
        field("cold_start", &EngineConfig::cold_start,
              "a freshly started engine is slower until so long after the first arrival", Range{0, 86'400})
            .by_default("0s"),
        field("cold_start_slowdown", &EngineConfig::cold_start_slowdown,
              "share by which its first step takes longer, falling to 0 over cold_start", Range{0, 100})
            .by_default("0.4")};
    return schema;
}

const Schema<SloConfig>& slo_schema() {
    static const Schema<SloConfig> schema{
        field("ttft", &SloConfig::ttft, "longest time to the first token", positive),
        field("tpot", &SloConfig::tpot, "longest mean time per output token after the first", positive),
        field("itl_p99", &SloConfig::itl_p99, "longest 99th percentile of the request's own gaps between tokens", positive),
        field("e2e", &SloConfig::e2e, "longest time from arrival to the last token", positive),
        field("queue", &SloConfig::queue, "longest time in the waiting queue", positive)};
    return schema;
}

const Schema<TimeoutConfig>& timeout_schema() {
    static const Schema<TimeoutConfig> schema{
        field("ttft", &TimeoutConfig::ttft, "give up without a first token after this", positive),
        field("e2e", &TimeoutConfig::e2e, "give up without the last token after this", positive)};
    return schema;
}

// What clients of one kind do: the keys that `workload` and each of its classes have in common.
template <class C>
std::vector<Field<C>> client_fields() {
    using Tokens = std::optional<std::int64_t>;
    return {
        field<C, Tokens>("requests", &C::requests, "stop after so many arrivals; retries do not count", up_to(1e9)),
        field<C, std::optional<SimDuration>>("duration", &C::duration, "stop arrivals after this time", positive),
        field<C, Tokens>("max_concurrency", &C::max_concurrency,
                         "requests sent and not answered at once; further ones queue at the client", at_least_one),
        field<C, Value>(
            "arrivals", &C::arrivals,
            "{process: ..., ...}: when requests (with sessions: sessions) arrive; required without a trace, users or "
            "max_concurrency"),
        field<C, Value>("users", &C::users, "{count: ..., think_time: ...}: a closed loop of users instead of arrivals"),
        field<C, Value>("sessions", &C::sessions,
                        "{turns: ..., ...}: chats or tool-calling runs, whose requests build on each other"),
        field<C, Value>("prompt_tokens", &C::prompt_tokens,
                        "{distribution: ..., ...} or an integer, in a session of each new message; required without a trace"),
        field<C, Value>("output_tokens", &C::output_tokens, "{distribution: ..., ...} or an integer; required without a trace"),
        field<C, Value>(
            "reasoning_tokens", &C::reasoning_tokens,
            "{distribution: ..., ...} or an integer: output tokens in front of output_tokens, which later turns of a "
            "session leave out"),
        field<C, Value>("prefix", &C::prefix, "prompts that share beginnings"),
        field<C, Value>("documents", &C::documents, "{count: ..., tokens: ...}: shared documents in prompts (RAG)"),
        field<C, std::optional<SimDuration>>(
            "jitter", &C::jitter,
            "each request is sent uniform [0, jitter) later, so that equal ones do not march in "
            "step",
            Range{0, 366.0 * 86'400})
            .by_default("0s"),
        field<C, Tokens>(
            "n", &C::n,
            "outputs each request asks for from its one prompt, of output_tokens each; a trace's own n counts first",
            Range{1, 10'000})
            .by_default("1"),
        field<C, std::optional<bool>>("beam_search", &C::beam_search,
                                      "the n outputs are the beams of one search, of which parts share their KV (vLLM until "
                                      "0.6.3: preset vllm-v0 with version: vllm-0.6.3-v0)")
            .by_default("false"),
        field<C, Tokens>("priority", &C::priority, "lower is more urgent; counts under scheduling_policy priority",
                         Range{-1e9, 1e9})
            .by_default("0"),
        field<C, std::optional<std::string>>("tenant", &C::tenant, "whose requests these are"),
        custom<C>(
            "timeout", "duration | map",
            "clients give up without the last token after this, or {ttft: ..., e2e: ...}; counted from the intended arrival",
            [](C& into, const Value& value, Diagnostics& diagnostics) {
                if (value.is_scalar()) return decode(value, into.timeout.e2e, "timeout", positive, diagnostics);
                const std::size_t before = diagnostics.error_count();
                timeout_schema().read(value, into.timeout, "timeout", diagnostics);
                return diagnostics.error_count() == before;
            }),
        field<C, Value>("cancel", &C::cancel, "{share: ..., after: ...}: clients that lose interest"),
        field<C, Value>(
            "retry", &C::retry,
            "{max_retries: ..., backoff: ...}: what follows a time-out, or a full queue (engine.max_queued_requests)"),
    };
}

const Schema<ClassConfig>& class_schema() {
    static const Schema<ClassConfig> schema = [] {
        std::vector<Field<ClassConfig>> fields{
            field("name", &ClassConfig::name, "what the class column of requests.csv says").need()};
        for (auto& f : client_fields<ClassConfig>()) fields.push_back(std::move(f));
        fields.push_back(custom<ClassConfig>("slo", "map", "what its requests must meet (default: the scenario's slo)",
                                             [](ClassConfig& into, const Value& value, Diagnostics& diagnostics) {
                                                 const std::size_t before = diagnostics.error_count();
                                                 slo_schema().read(value, into.slo.emplace(), "slo", diagnostics);
                                                 return diagnostics.error_count() == before;
                                             }));
        return Schema<ClassConfig>(std::move(fields));
    }();
    return schema;
}

bool read_classes(WorkloadConfig& into, const Value& value, Diagnostics& diagnostics) {
    if (!value.is_list() || value.list.empty()) {
        diagnostics.error(value.mark, "classes must be a list of maps, each with a name");
        return false;
    }
    const std::size_t before = diagnostics.error_count();
    for (const Value& item : value.list) {
        ClassConfig& c = into.classes.emplace_back();
        c.mark = item.mark;
        class_schema().read(item, c, "the class", diagnostics);
        const auto same = std::find_if(into.classes.begin(), into.classes.end() - 1,
                                       [&](const ClassConfig& other) { return other.name == c.name; });
        if (!c.name.empty() && same != into.classes.end() - 1)
            diagnostics.error(item.mark, "another class is named '" + excerpt(c.name) + "' too");
    }
    return diagnostics.error_count() == before;
}

const Schema<WorkloadConfig>& workload_schema() {
    static const Schema<WorkloadConfig> schema = [] {
        std::vector<Field<WorkloadConfig>> fields = client_fields<WorkloadConfig>();
        fields.push_back(
            field("rate_scale", &WorkloadConfig::rate_scale, "factor on every arrival rate", positive).by_default("1"));
        fields.push_back(
            custom<WorkloadConfig>("latency_from", "text",
                                   "where a request queues at the client: latencies count from its intended arrival, or "
                                   "from when it was sent, as vllm bench serve does",
                                   [](WorkloadConfig& into, const Value& value, Diagnostics& diagnostics) {
                                       std::string text;
                                       if (!decode(value, text, "latency_from", any, diagnostics)) return false;
                                       into.latency_from_sent = text == "sent";
                                       return true;
                                   })
                .one_of({"intended", "sent"})
                .by_default("intended"));
        fields.push_back(custom<WorkloadConfig>("classes", "list",
                                                "a mix: maps with a name and the keys above; keys of the workload itself are "
                                                "defaults of every class",
                                                read_classes));
        fields.push_back(
            field("trace", &WorkloadConfig::trace, "{path: ..., format: ...}: recorded requests instead of drawn ones"));
        return Schema<WorkloadConfig>(std::move(fields));
    }();
    return schema;
}

// One end of the arrivals that is cut: none | a duration | N requests | P%
struct Cut {
    std::optional<SimDuration>& time;
    std::optional<std::int64_t>& requests;
    std::optional<double>& share;
};

bool read_cut(std::string_view key, Cut into, const Value& value, Diagnostics& diagnostics) {
    const std::string_view text = value.scalar;
    const std::string name(key);
    into.time.reset();
    into.requests.reset();
    into.share.reset();
    if (value.is_scalar() && text == "none") return true;
    const auto number_before = [&](std::string_view unit) {
        Value number = value;
        number.scalar = text.substr(0, text.size() - unit.size());
        number.scalar.erase(number.scalar.find_last_not_of(' ') + 1);
        return number;
    };
    for (const std::string_view unit : {"requests", "request"}) {
        if (value.is_scalar() && text.ends_with(unit))
            return decode(number_before(unit), into.requests, key, non_negative, diagnostics);
    }
    if (value.is_scalar() && text.ends_with('%')) {
        double percent = 0;
        if (!decode(number_before("%"), percent, key, Range{0, 100, false, true}, diagnostics)) return false;
        into.share = percent / 100;
        return true;
    }
    if (!value.is_scalar() || text.empty() || (text[0] >= 'a' && text[0] <= 'z')) {
        diagnostics.error(value.mark, name + " must be none, a duration such as `60s`, a count such as `200 requests`" +
                                          (key == "warmup" ? ", a share such as `10%`, or auto" : " or a share such as `10%`"));
        return false;
    }
    return decode(value, into.time, key, non_negative, diagnostics);
}

bool read_warmup(MeasureConfig& into, const Value& value, Diagnostics& diagnostics) {
    into.warmup_auto = value.is_scalar() && value.scalar == "auto";
    if (into.warmup_auto) return true;
    return read_cut("warmup", {into.warmup_time, into.warmup_requests, into.warmup_share}, value, diagnostics);
}

bool read_cooldown(MeasureConfig& into, const Value& value, Diagnostics& diagnostics) {
    return read_cut("cooldown", {into.cooldown_time, into.cooldown_requests, into.cooldown_share}, value, diagnostics);
}

const Schema<MeasureConfig>& measure_schema() {
    static const Schema<MeasureConfig> schema{
        custom<MeasureConfig>("warmup", "none | duration | N requests | P% | auto",
                              "first arrivals that are simulated but not measured; auto: MSER-5 finds their number",
                              read_warmup)
            .by_default("none"),
        custom<MeasureConfig>("cooldown", "none | duration | N requests | P%",
                              "last arrivals that are simulated but not measured", read_cooldown)
            .by_default("none"),
        field("window", &MeasureConfig::window, "write windows.csv: figures of each such span of simulated time",
              Range{0, 3e9, true})};
    return schema;
}

const Schema<MetricsConfig>& metrics_schema() {
    static const Schema<MetricsConfig> schema{
        custom<MetricsConfig>("percentiles", "text",
                              "exact, or from histograms, within 0.049 %; with output.requests: false memory does not grow "
                              "with the requests then",
                              [](MetricsConfig& into, const Value& value, Diagnostics& diagnostics) {
                                  std::string text;
                                  if (!decode(value, text, "percentiles", any, diagnostics)) return false;
                                  into.exact_percentiles = text == "exact";
                                  return true;
                              })
            .one_of({"exact", "histogram"})
            .by_default("exact")};
    return schema;
}

const Schema<OutputConfig>& output_schema() {
    static const Schema<OutputConfig> schema{
        field("requests", &OutputConfig::requests, "write requests.csv").by_default("true"),
        field("timeline", &OutputConfig::timeline, "write timeline.csv").by_default("true"),
        field("timeline_interval", &OutputConfig::timeline_interval, "simulated time between two rows of timeline.csv",
              Range{0, 3e9, true})
            .by_default("1s")};
    return schema;
}

bool is_folder_name(std::string_view name) {
    const auto safe = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
    };
    return !name.empty() && name.size() <= 200 && name[0] != '.' && std::all_of(name.begin(), name.end(), safe);
}

bool read_name(Scenario& into, const Value& value, Diagnostics& diagnostics) {
    if (!decode(value, into.name, "name", any, diagnostics)) return false;
    if (is_folder_name(into.name)) return true;
    diagnostics.error(value.mark,
                      "name becomes a folder: use letters, digits, '.', '_' and '-', not a leading '.', at most 200");
    return false;
}

// ---- keys that are known but not read --------------------------------------------------------------------------------

struct KnownKey {
    std::string_view key;
    std::string_view advice;  ///< empty: not supported by this version
};

constexpr std::array engine_refused{
    KnownKey{"cpu_offload_gb", ""},
    KnownKey{"kv_offloading_size", ""},
    KnownKey{"kv_offloading_backend", ""},
    KnownKey{"kv_transfer_config", ""},
    KnownKey{"speculative_config", ""},
    KnownKey{"decode_context_parallel_size", "belongs under hardware"},
    KnownKey{"prefill_context_parallel_size", ""},
    KnownKey{"stream_interval", ""},
    KnownKey{"prefill_schedule_interval", ""},
    KnownKey{"gpu", "belongs under hardware"},
    KnownKey{"tensor_parallel_size", "belongs under hardware"},
    KnownKey{"pipeline_parallel_size", "belongs under hardware"},
    KnownKey{"data_parallel_size", "belongs under hardware"},
    KnownKey{"replicas", "belongs under hardware"},
    KnownKey{"model", "belongs at the top level"},
    KnownKey{"seed", "belongs at the top level"},
};
constexpr std::array workload_refused{
    KnownKey{"rate", "belongs under arrivals: {process: poisson, rate: 5/s}"},
    KnownKey{"seed", "belongs at the top level"},
};
// Of engines that recompute what they preempt.
constexpr std::array engine_obsolete{
    KnownKey{"max_num_partial_prefills", "vLLM removed it on 2026-07-21"},
    KnownKey{"max_long_partial_prefills", "vLLM removed it on 2026-07-21"},
    KnownKey{"swap_space", "vLLM removed it on 2026-03-07; preemption recomputes"},
    KnownKey{"num_cpu_blocks_override", "nothing is swapped"},
    KnownKey{"swap_bandwidth_gb_s", "nothing is swapped"},
    KnownKey{"swap_overlap", "nothing is swapped"},
    KnownKey{"scheduler_delay_factor", "only preset vllm-v0 has it"},
    KnownKey{"async_output_processing", "only preset vllm-v0 has it"},
};

// `map` without the listed keys, each of which was reported.
Value without_refused(const Value& map, std::string_view section, std::span<const KnownKey> refused, Diagnostics& diagnostics) {
    Value rest = map;
    std::erase_if(rest.map, [&](const Member& member) {
        const auto known = std::find_if(refused.begin(), refused.end(), [&](const KnownKey& k) { return k.key == member.key; });
        if (known == refused.end()) return false;
        const std::string advice(known->advice.empty() ? "is not supported by this version" : known->advice);
        diagnostics.error(member.key_mark, std::string(section) + "." + member.key + " " + advice);
        return true;
    });
    return rest;
}

Value without_obsolete(const Value& map, std::span<const KnownKey> obsolete, Diagnostics& diagnostics) {
    Value rest = map;
    std::erase_if(rest.map, [&](const Member& member) {
        const auto known =
            std::find_if(obsolete.begin(), obsolete.end(), [&](const KnownKey& k) { return k.key == member.key; });
        if (known == obsolete.end()) return false;
        diagnostics.warning(member.key_mark, member.key + " has no effect: " + std::string(known->advice));
        return true;
    });
    return rest;
}

// ---- sections with rules across their keys ---------------------------------------------------------------------------

const Member* find_member(const Value& map, std::string_view key) {
    const auto found = std::find_if(map.map.begin(), map.map.end(), [&](const Member& m) { return m.key == key; });
    return found == map.map.end() ? nullptr : &*found;
}

struct TwoNames {
    std::string_view vllm;
    std::string_view sglang;
};
constexpr std::array engine_synonyms{
    TwoNames{"gpu_memory_utilization", "mem_fraction_static"},
    TwoNames{"block_size", "page_size"},
    TwoNames{"max_num_seqs", "max_running_requests"},
    TwoNames{"scheduling_policy", "schedule_policy"},
    TwoNames{"max_model_len", "context_length"},
    TwoNames{"max_num_batched_tokens", "chunked_prefill_size"},
    TwoNames{"enable_prefix_caching", "disable_radix_cache"},
    TwoNames{"async_scheduling", "disable_overlap_schedule"},
};

/// Of both names of one thing the later holds: `--set` and overlays stand behind the scenario's own keys.
void drop_earlier_synonyms(Value& map, Diagnostics& diagnostics) {
    for (const TwoNames& names : engine_synonyms) {
        const Member* vllm = find_member(map, names.vllm);
        const Member* sglang = find_member(map, names.sglang);
        if (vllm == nullptr || sglang == nullptr) continue;
        const Member* earlier = std::min(vllm, sglang);
        diagnostics.warning(earlier->key_mark, earlier->key + " has no effect: " + std::max(vllm, sglang)->key +
                                                   ", given later, is another name of it");
        map.map.erase(map.map.begin() + (earlier - map.map.data()));
    }
}

bool read_engine(Scenario& into, const Value& value, Diagnostics& diagnostics) {
    const std::size_t before = diagnostics.error_count();
    const Member* preset = find_member(value, "preset");
    Value rest = without_refused(value, "engine", engine_refused, diagnostics);
    drop_earlier_synonyms(rest, diagnostics);
    const std::string name = preset != nullptr && preset->value.is_scalar() ? preset->value.scalar : "";
    const Member* preemption = find_member(value, "preemption");
    const bool recomputes = preemption == nullptr || (preemption->value.is_scalar() && preemption->value.scalar == "recompute");
    if (recomputes && (name.empty() || name.starts_with("vllm-v1") || name == "sglang"))
        rest = without_obsolete(rest, engine_obsolete, diagnostics);
    engine_schema().read(rest, into.engine, "engine", diagnostics);
    const Member* blocks = find_member(value, "num_gpu_blocks_override");
    const Member* bytes = find_member(value, "kv_cache_memory_bytes");
    if (blocks != nullptr && bytes != nullptr) {
        const Member* second = blocks > bytes ? blocks : bytes;
        diagnostics.error(second->key_mark, "num_gpu_blocks_override and kv_cache_memory_bytes both fix the KV size; keep one");
    }
    return diagnostics.error_count() == before;
}

bool read_workload(Scenario& into, const Value& value, Diagnostics& diagnostics) {
    const std::size_t before = diagnostics.error_count();
    into.workload.mark = value.mark;
    workload_schema().read(without_refused(value, "workload", workload_refused, diagnostics), into.workload, "workload",
                           diagnostics);
    if (!value.is_map()) return false;
    const bool traced = find_member(value, "trace") != nullptr;
    std::string missing;
    for (const std::string_view key : {"arrivals", "prompt_tokens", "output_tokens", "prefix", "users", "sessions", "documents",
                                       "reasoning_tokens", "classes"}) {
        const Member* member = find_member(value, key);
        if (traced && member != nullptr && key != "arrivals") {
            diagnostics.error(member->key_mark, std::string(key) + " cannot stand beside trace, which already gives it");
        }
    }
    if (traced) return diagnostics.error_count() == before;
    const Member* users = find_member(value, "users");
    const Member* arrivals = find_member(value, "arrivals");
    if (users != nullptr && arrivals != nullptr) {
        diagnostics.error((users > arrivals ? users : arrivals)->key_mark,
                          "arrivals and users both say when requests are sent; keep one");
    }
    if (find_member(value, "classes") != nullptr) return diagnostics.error_count() == before;  // they say what they lack
    // Clients with a concurrency limit and no arrival process send as fast as it lets them.
    const bool paced = find_member(value, "max_concurrency") != nullptr || users != nullptr;
    // A session's steps may have lengths of their own.
    const Member* sessions = find_member(value, "sessions");
    const bool steps = sessions != nullptr && sessions->value.find("steps") != nullptr;
    for (const std::string_view key : {"arrivals", "prompt_tokens", "output_tokens"}) {
        if (find_member(value, key) != nullptr || (key == "arrivals" ? paced : steps)) continue;
        missing += (missing.empty() ? "'" : ", '") + std::string(key) + "'";
    }
    if (!missing.empty()) diagnostics.error(value.mark, "workload lacks " + missing + " (or a trace)");
    // Stages end by themselves, and so do so many sessions.
    const bool ends =
        (arrivals != nullptr && (arrivals->value.find("stages") != nullptr || arrivals->value.find("points") != nullptr)) ||
        (sessions != nullptr && sessions->value.find("count") != nullptr);
    if (!ends && find_member(value, "requests") == nullptr && find_member(value, "duration") == nullptr) {
        diagnostics.error(value.mark, "workload needs an end: give 'requests', 'duration' or both");
    }
    return diagnostics.error_count() == before;
}

const Schema<Scenario>& scenario_schema() {
    static const Schema<Scenario> schema{
        custom<Scenario>("name", "text", "name of the run and of its folder under results/", read_name)
            .by_default("the file's name"),
        field("seed", &Scenario::seed, "seed of every random stream", non_negative).by_default("1"),
        custom<Scenario>("model", "name | path | map",
                         "catalogue name, path of a Hugging Face config.json, or a map of the facts",
                         [](Scenario& into, const Value& value, Diagnostics& diagnostics) {
                             return decode(value, into.model, "model", any, diagnostics);
                         }),
        group("hardware", &Scenario::hardware, hardware_schema(), "GPUs and how the model is laid over them"),
        custom<Scenario>("router", "name | map", "{policy: ...}: which replica a request goes to",
                         [](Scenario& into, const Value& value, Diagnostics& diagnostics) {
                             return read_choice(value, "router", "policy", into.router, diagnostics);
                         })
            .by_default("round_robin"),
        custom<Scenario>("engine", "map", "the engine's arguments, by vLLM's names", read_engine),
        custom<Scenario>("step_time", "name | map", "{model: ...}: how long a step takes (default: the best tier available)",
                         [](Scenario& into, const Value& value, Diagnostics& diagnostics) {
                             return read_choice(value, "step_time", "model", into.step_time, diagnostics);
                         }),
        custom<Scenario>("workload", "map", "what the clients send", read_workload).need(),
        group("slo", &Scenario::slo, slo_schema(), "what a request must meet to count as good"),
        group("measure", &Scenario::measure, measure_schema(), "which requests are measured"),
        group("metrics", &Scenario::metrics, metrics_schema(), "how figures are computed"),
        group("output", &Scenario::output, output_schema(), "which files are written")};
    return schema;
}

// ---- the hash --------------------------------------------------------------------------------------------------------

// Every text is preceded by its length, so that no two trees share a form. Quotes do not count: they never change a valid
// value.
void canonical(const Value& value, std::string& out, bool is_root) {
    const auto add_text = [&](std::string_view text) {
        out += std::to_string(text.size()) + ":";
        out += text;
    };
    if (value.is_scalar()) {
        out += 's';
        add_text(value.scalar);
    } else if (value.is_list()) {
        out += '[';
        for (const Value& item : value.list) canonical(item, out, false);
        out += ']';
    } else if (value.is_map()) {
        std::vector<const Member*> members;
        for (const Member& member : value.map) {
            if (!is_root || (member.key != "name" && member.key != "output")) members.push_back(&member);
        }
        std::sort(members.begin(), members.end(), [](const Member* a, const Member* b) { return a->key < b->key; });
        out += '{';
        for (const Member* member : members) {
            add_text(member->key);
            canonical(member->value, out, false);
        }
        out += '}';
    } else {
        out += 'n';
    }
}

std::string hash_of(const Value& root) {
    std::string text;
    canonical(root, text, true);
    return fnv1a_hex(text);
}

std::string default_name(const std::filesystem::path& file) {
    std::string name = file.stem().string().substr(0, 200);
    for (char& c : name) {
        if (!is_folder_name(std::string("x") + c)) c = '_';
    }
    if (name.empty()) return "scenario";
    if (name[0] == '.') name[0] = '_';
    return name;
}

}  // namespace

bool read_choice(const Value& value, std::string_view key, std::string_view naming_key, Choice& out, Diagnostics& diagnostics) {
    const std::string name_of = std::string(key) + "." + std::string(naming_key);
    if (value.is_scalar()) {
        out = Choice{};
        out.name_mark = value.mark;
        out.written = true;
        out.params.mark = value.mark;
        return decode(value, out.name, key, any, diagnostics);
    }
    out = Choice{"", value.mark, true, {}};
    if (!value.is_map()) {
        diagnostics.error(value.mark,
                          std::string(key) + " must be a name or a map with the key '" + std::string(naming_key) + "'");
        return false;
    }
    const Member* named = find_member(value, naming_key);
    if (named == nullptr) {
        std::string message = std::string(key) + " lacks the key '" + std::string(naming_key) + "'";
        Mark at = value.mark;
        for (const Member& member : value.map) {
            if (nearest(member.key, std::span(&naming_key, 1)).empty()) continue;
            message += "; is '" + excerpt(member.key) + "' meant?";
            at = member.key_mark;
            break;
        }
        diagnostics.error(at, message);
        return false;
    }
    Choice choice;
    choice.name_mark = named->value.mark;
    choice.written = true;
    choice.params = value;
    if (!decode(named->value, choice.name, name_of, any, diagnostics)) return false;
    out = std::move(choice);
    return true;
}

namespace {

/// What is sent again: that which timed out, or found the queue full.
void check_retries(const Scenario& scenario, Diagnostics& diagnostics) {
    if (scenario.engine.max_queued_requests) return;
    const WorkloadConfig& common = scenario.workload;
    const auto patient = [](const TimeoutConfig& t) { return !t.ttft && !t.e2e; };
    const auto check = [&](const ClientConfig& c, const Value& retry) {
        if (!retry.is_null() && patient(c.timeout) && patient(common.timeout))
            diagnostics.error(retry.mark, "retry needs a timeout, or engine.max_queued_requests: nothing else is tried again");
    };
    if (common.classes.empty()) return check(common, common.retry);
    for (const ClassConfig& c : common.classes) check(c, c.retry);
    if (std::all_of(common.classes.begin(), common.classes.end(), [&](const ClassConfig& c) { return patient(c.timeout); }))
        check(common, common.retry);
}

}  // namespace

Scenario read_scenario(const Value& root, const std::filesystem::path& file, Diagnostics& diagnostics) {
    Scenario out;
    out.file = file;
    out.name = default_name(file);
    out.router.name = "round_robin";
    out.root = root;
    out.hash = hash_of(root);
    if (root.is_null() && !diagnostics.ok()) return out;
    Value top = root;
    if (!top.mark.source) top.mark.source = std::make_shared<const Source>(Source{file.string(), {}});
    out.step_time.name_mark = top.mark;  // where something is missed that is not there
    out.workload.mark = top.mark;
    scenario_schema().read(top, out, "the scenario", diagnostics);
    check_retries(out, diagnostics);
    return out;
}

std::vector<std::pair<std::string, std::vector<FieldDoc>>> scenario_docs() {
    return {{"scenario", scenario_schema().docs()},
            {"hardware", hardware_schema().docs()},
            {"engine", engine_schema().docs()},
            {"workload", workload_schema().docs()},
            {"workload.timeout as a map", timeout_schema().docs()},
            {"workload.classes, each", class_schema().docs()},
            {"slo", slo_schema().docs()},
            {"measure", measure_schema().docs()},
            {"metrics", metrics_schema().docs()},
            {"output", output_schema().docs()}};
}

}  // namespace kvsim::config
