// THE registration file: one table per kind of piece, one line per piece. A piece's own file defines its make and docs
// functions; they are declared here and nowhere else.

#include "engine/conformance_format.hpp"
#include "kvsim/engine/scheduler.hpp"
#include "kvsim/engine/waiting_queue.hpp"
#include "kvsim/model/clients.hpp"
#include "kvsim/model/pieces.hpp"
#include "kvsim/model/workload_pieces.hpp"
#include "workloads/line_reader.hpp"

namespace kvsim {

// ---- step-time models ------------------------------------------------------------------------------------------------

std::unique_ptr<StepTimeModel> make_affine_step(const Deployment&, const config::Value&, config::Diagnostics&);
std::unique_ptr<StepTimeModel> make_constant_step(const Deployment&, const config::Value&, config::Diagnostics&);
std::unique_ptr<StepTimeModel> make_fitted_step(const Deployment&, const config::Value&, config::Diagnostics&);
std::unique_ptr<StepTimeModel> make_roofline_step(const Deployment&, const config::Value&, config::Diagnostics&);
std::unique_ptr<StepTimeModel> make_table_step(const Deployment&, const config::Value&, config::Diagnostics&);
std::vector<config::FieldDoc> affine_step_docs();
std::vector<config::FieldDoc> constant_step_docs();
std::vector<config::FieldDoc> fitted_step_docs();
std::vector<config::FieldDoc> roofline_step_docs();
std::vector<config::FieldDoc> table_step_docs();

std::span<const Entry<MakeStepTime>> step_time_models() {
    static constexpr Entry<MakeStepTime> table[] = {
        {"constant", "every step takes the same time", constant_step_docs, make_constant_step},
        {"affine", "affine in tokens, sequences and context", affine_step_docs, make_affine_step},
        {"roofline", "datasheet of the GPU with the median efficiencies of the fitted ones", roofline_step_docs,
         make_roofline_step},
        {"fitted", "kernel constants fitted on this GPU", fitted_step_docs, make_fitted_step},
        {"table", "layers profiled on the GPU, interpolated", table_step_docs, make_table_step},
    };
    return table;
}

// ---- batch policies: named by a preset, or by engine.batching ----------------------------------------------------------

std::unique_ptr<Scheduler> make_vllm_v0_batching(Engine&);
std::unique_ptr<Scheduler> make_sglang_batching(Engine&);
std::unique_ptr<Scheduler> make_vllm_v1_batching(Engine&);
std::unique_ptr<Scheduler> make_static_batching(Engine&);
std::unique_ptr<Scheduler> make_iteration_batching(Engine&);
std::unique_ptr<Scheduler> make_decode_first_batching(Engine&);
std::unique_ptr<Scheduler> make_no_evict_batching(Engine&);
std::unique_ptr<Scheduler> make_max_utilization_batching(Engine&);
std::unique_ptr<Scheduler> make_past_future_batching(Engine&);
static std::vector<config::FieldDoc> no_docs() {
    return {};
}

std::span<const Entry<MakeScheduler>> schedulers() {
    static constexpr Entry<MakeScheduler> table[] = {
        {"vllm-v1", "running requests first, prompts in chunks beside them (vLLM V1, main of 2026-05-29)", no_docs,
         make_vllm_v1_batching},
        {"vllm-v0", "whole prompts before decodes, or chunks beside them; recompute or swap (vLLM V0, 0.8.5 and 0.6.3)",
         no_docs, make_vllm_v0_batching},
        {"sglang", "prompts in batches of their own before decodes, or chunks mixed with them (SGLang, main of 2026-07-13)",
         no_docs, make_sglang_batching},
        {"static", "a batch runs until its longest request ends (FasterTransformer; Orca, OSDI 2022, section 3)", no_docs,
         make_static_batching},
        {"iteration", "requests join and leave at every step, with whole prompts (Orca, OSDI 2022)", no_docs,
         make_iteration_batching},
        {"decode-first", "decodes first, prompts in chunks in the rest of the token budget (Sarathi-Serve, OSDI 2024)", no_docs,
         make_decode_first_batching},
        {"no-evict", "decode-first; who starts has room to its end (TensorRT-LLM, GUARANTEED_NO_EVICT)", no_docs,
         make_no_evict_batching},
        {"max-utilization", "decode-first; whoever has room for the step starts, and may be paused (TensorRT-LLM)", no_docs,
         make_max_utilization_batching},
        {"past-future", "steps of prompts while somebody may start, else of decodes (LightLLM)", no_docs,
         make_past_future_batching},
    };
    return table;
}

// ---- pieces of batch policies ------------------------------------------------------------------------------------------

/// Declares a piece's function where it is named.
#define KVSIM_READ(Piece, name)                                                                               \
    [](const PieceSource& source, config::Diagnostics& diagnostics) {                                         \
        std::function<std::unique_ptr<Piece>(Engine&)> read_##name(const PieceSource&, config::Diagnostics&); \
        return read_##name(source, diagnostics);                                                              \
    }
#define KVSIM_PIECE(Piece, name) \
    std::function<std::unique_ptr<Piece>(Engine&)> read_##name(const PieceSource&, config::Diagnostics&)
KVSIM_PIECE(WaitingQueue, fcfs_order);
KVSIM_PIECE(WaitingQueue, priority_order);
#undef KVSIM_PIECE

std::span<const Entry<ReadPiece<WaitingQueue>>> queue_orders() {
    static constexpr Entry<ReadPiece<WaitingQueue>> table[] = {
        {"fcfs", "first come, first served; the preempted first", no_docs, read_fcfs_order},
        {"priority", "the client's priority, lower first (vLLM)", no_docs, read_priority_order},
    };
    return table;
}

std::span<const Entry<ReadPiece<VictimRule>>> victim_rules() {
    return {};
}

std::span<const Entry<ReadPiece<AdmissionRule>>> admission_rules() {
    static constexpr Entry<ReadPiece<AdmissionRule>> table[] = {
        {"optimistic", "room for its first step is enough (vLLM)", no_docs, KVSIM_READ(AdmissionRule, optimistic_admission)},
        {"full-input", "room for its whole prompt (vLLM's scheduler_reserve_full_isl)", no_docs,
         KVSIM_READ(AdmissionRule, full_input_admission)},
        {"expected", "room for the believed ends of all that run, and its own", no_docs,
         KVSIM_READ(AdmissionRule, expected_admission)},
        {"past-future", "the predicted peak of live tokens fits (LightLLM, ASPLOS 2025)", no_docs,
         KVSIM_READ(AdmissionRule, past_future_admission)},
    };
    return table;
}

std::span<const Entry<ReadPiece<LengthPredictor>>> length_predictors() {
    return {};
}

std::span<const Entry<ReadPiece<KvManager>>> kv_policies() {
    return {};
}

// ---- recordings of engine decisions, the first that matches ------------------------------------------------------------

#define KVSIM_RECORDING(name)                \
    bool is_##name##_recording(const Json&); \
    std::unique_ptr<Recording> open_##name##_recording(const Json&, const std::string&)
KVSIM_RECORDING(vllm_v0);
KVSIM_RECORDING(sglang);
KVSIM_RECORDING(vllm_v1);
#undef KVSIM_RECORDING

std::span<const Entry<OpenRecording>> conformance_formats() {
    static constexpr Entry<OpenRecording> table[] = {
        {"vllm-v0", "vLLM V0", no_docs, {is_vllm_v0_recording, open_vllm_v0_recording}},
        {"sglang", "SGLang", no_docs, {is_sglang_recording, open_sglang_recording}},
        {"vllm-v1", "vLLM V1", no_docs, {is_vllm_v1_recording, open_vllm_v1_recording}},
    };
    return table;
}

// ---- routers ---------------------------------------------------------------------------------------------------------

std::unique_ptr<Router> make_least_requests(const config::Value&, std::uint64_t, config::Diagnostics&);
std::unique_ptr<Router> make_round_robin(const config::Value&, std::uint64_t, config::Diagnostics&);
std::vector<config::FieldDoc> least_requests_docs();
std::vector<config::FieldDoc> round_robin_docs();

std::span<const Entry<MakeRouter>> routers() {
    static constexpr Entry<MakeRouter> table[] = {
        {"round_robin", "replicas take turns", round_robin_docs, make_round_robin},
        {"least_requests", "the replica with the fewest waiting and running requests", least_requests_docs,
         make_least_requests},
    };
    return table;
}

// ---- workloads: arrival processes, length distributions, trace formats ------------------------------------------------

#define KVSIM_ARRIVALS(name)                     \
    std::vector<config::FieldDoc> name##_docs(); \
    std::unique_ptr<ArrivalProcess> make_##name(const config::Value&, double, std::uint64_t, config::Diagnostics&)
KVSIM_ARRIVALS(poisson_arrivals);
KVSIM_ARRIVALS(gamma_arrivals);
KVSIM_ARRIVALS(constant_arrivals);
KVSIM_ARRIVALS(weibull_arrivals);
KVSIM_ARRIVALS(mmpp_arrivals);
KVSIM_ARRIVALS(diurnal_arrivals);
KVSIM_ARRIVALS(piecewise_arrivals);
KVSIM_ARRIVALS(ramp_arrivals);
KVSIM_ARRIVALS(ramp_up_arrivals);
KVSIM_ARRIVALS(staged_arrivals);
KVSIM_ARRIVALS(batches_arrivals);
KVSIM_ARRIVALS(all_at_once);
#undef KVSIM_ARRIVALS

std::span<const Entry<MakeArrivals>> arrival_processes() {
    static constexpr Entry<MakeArrivals> table[] = {
        {"poisson", "independent arrivals: exponential gaps", poisson_arrivals_docs, make_poisson_arrivals},
        {"gamma", "gamma gaps of shape `burstiness`, as vllm bench serve draws them", gamma_arrivals_docs, make_gamma_arrivals},
        {"weibull", "Weibull gaps, by their coefficient of variation", weibull_arrivals_docs, make_weibull_arrivals},
        {"constant", "one request every 1 / rate", constant_arrivals_docs, make_constant_arrivals},
        {"mmpp", "bursts: a Markov-modulated Poisson process, on and off", mmpp_arrivals_docs, make_mmpp_arrivals},
        {"diurnal", "a rate that swings as a sine, as over a day", diurnal_arrivals_docs, make_diurnal_arrivals},
        {"piecewise", "a rate given at points of time, linear in between", piecewise_arrivals_docs, make_piecewise_arrivals},
        {"ramp", "a rate that rises (or falls) linearly, then stays", ramp_arrivals_docs, make_ramp_arrivals},
        {"ramp_up", "a rate that grows with the request's number: vllm bench serve --ramp-up-strategy", ramp_up_arrivals_docs,
         make_ramp_up_arrivals},
        {"staged", "constant rates one after the other, then nothing", staged_arrivals_docs, make_staged_arrivals},
        {"batches", "groups of requests at one instant", batches_arrivals_docs, make_batches_arrivals},
        {"all_at_once", "every request at the start", all_at_once_docs, make_all_at_once},
    };
    return table;
}

#define KVSIM_LENGTH(name)                              \
    std::vector<config::FieldDoc> name##_length_docs(); \
    std::unique_ptr<LengthLaw> make_##name##_length(const config::Value&, std::string_view, config::Diagnostics&)
KVSIM_LENGTH(constant);
KVSIM_LENGTH(uniform);
KVSIM_LENGTH(lognormal);
KVSIM_LENGTH(exponential);
KVSIM_LENGTH(geometric);
KVSIM_LENGTH(empirical);
#undef KVSIM_LENGTH

std::span<const Entry<MakeLengthLaw>> length_distributions() {
    static constexpr Entry<MakeLengthLaw> table[] = {
        {"constant", "always `value`; a bare integer means this", constant_length_docs, make_constant_length},
        {"uniform", "whole numbers from min to max, both included", uniform_length_docs, make_uniform_length},
        {"lognormal", "by p50 + p90, mean + sd, or mu + sigma of the logarithm", lognormal_length_docs, make_lognormal_length},
        {"exponential", "rounded up", exponential_length_docs, make_exponential_length},
        {"geometric", "memoryless whole numbers from 1", geometric_length_docs, make_geometric_length},
        {"empirical", "a quantile table, linear in between", empirical_length_docs, make_empirical_length},
    };
    return table;
}

#define KVSIM_TIME(name)                              \
    std::vector<config::FieldDoc> name##_time_docs(); \
    std::unique_ptr<TimeLaw> make_##name##_time(const config::Value&, std::string_view, config::Diagnostics&)
KVSIM_TIME(constant);
KVSIM_TIME(exponential);
KVSIM_TIME(lognormal);
KVSIM_TIME(uniform);
#undef KVSIM_TIME

std::span<const Entry<MakeTimeLaw>> time_distributions() {
    static constexpr Entry<MakeTimeLaw> table[] = {
        {"constant", "always `value`; a bare duration means this", constant_time_docs, make_constant_time},
        {"exponential", "memoryless", exponential_time_docs, make_exponential_time},
        {"lognormal", "by p50 + p90, or mean + sd", lognormal_time_docs, make_lognormal_time},
        {"uniform", "from min to max", uniform_time_docs, make_uniform_time},
    };
    return table;
}

#define KVSIM_TRACE(name)                        \
    std::vector<config::FieldDoc> name##_docs(); \
    bool matches_##name(const TraceHead&);       \
    std::unique_ptr<TraceReader> open_##name(std::unique_ptr<LineReader>, const TraceOptions&)
KVSIM_TRACE(timed_trace);
KVSIM_TRACE(guidellm);
KVSIM_TRACE(mooncake);
KVSIM_TRACE(azure);
KVSIM_TRACE(burstgpt);
KVSIM_TRACE(vidur);
KVSIM_TRACE(sharegpt);
KVSIM_TRACE(vllm_custom);
KVSIM_TRACE(llmservingsim);
KVSIM_TRACE(weka);
#undef KVSIM_TRACE

std::span<const Entry<TraceFormat>> trace_formats() {
    static constexpr Entry<TraceFormat> table[] = {
        {"timed_trace",
         "vllm bench serve's timed_trace and Qwen-Bailian: JSON lines with timestamp (s), input_length, output_length, "
         "hash_ids",
         timed_trace_docs,
         {matches_timed_trace, open_timed_trace}},
        {"guidellm",
         "JSON lines with timestamp (s; the first row arrives at 0), input_length or prompt_tokens, output_length or "
         "output_tokens",
         guidellm_docs,
         {matches_guidellm, open_guidellm}},
        {"mooncake",
         "JSON lines with timestamp (ms), input_length, output_length, hash_ids; what kvsim workload writes",
         mooncake_docs,
         {matches_mooncake, open_mooncake}},
        {"azure",
         "CSV with TIMESTAMP, ContextTokens, GeneratedTokens (2023, 2024); the first row arrives at 0",
         azure_docs,
         {matches_azure, open_azure}},
        {"burstgpt",
         "CSV with Timestamp (s), Request tokens, Response tokens; failed requests are left out",
         burstgpt_docs,
         {matches_burstgpt, open_burstgpt}},
        {"vidur",
         "CSV with arrived_at (s; else arrivals say when), num_prefill_tokens, num_decode_tokens",
         vidur_docs,
         {matches_vidur, open_vidur}},
        {"sharegpt",
         "JSON conversations, the first two turns of each as vllm bench serve takes them; needs arrivals",
         sharegpt_docs,
         {matches_sharegpt, open_sharegpt}},
        {"vllm_custom",
         "vllm bench serve's custom: JSON lines with prompt, output_tokens; needs arrivals",
         vllm_custom_docs,
         {matches_vllm_custom, open_vllm_custom}},
        {"llmservingsim",
         "JSON lines with arrival_time_ns, input_toks, output_toks, or sessions with sub_requests and tool times",
         llmservingsim_docs,
         {matches_llmservingsim, open_llmservingsim}},
        {"weka",
         "sessions as JSON objects with block_size 64 and requests (t, in, out, hash_ids), which may nest",
         weka_docs,
         {matches_weka, open_weka}},
    };
    return table;
}

}  // namespace kvsim
