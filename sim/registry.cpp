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
KVSIM_PIECE(WaitingQueue, sjf_order);
KVSIM_PIECE(WaitingQueue, ljf_order);
KVSIM_PIECE(WaitingQueue, srpt_order);
KVSIM_PIECE(WaitingQueue, edf_order);
KVSIM_PIECE(WaitingQueue, slo_slack_order);
KVSIM_PIECE(WaitingQueue, mlfq_order);
KVSIM_PIECE(WaitingQueue, vtc_order);
KVSIM_PIECE(WaitingQueue, lpm_order);
KVSIM_PIECE(WaitingQueue, dfs_weight_order);
KVSIM_PIECE(WaitingQueue, random_order);
KVSIM_PIECE(VictimRule, last_victim);
KVSIM_PIECE(VictimRule, lowest_priority_victim);
KVSIM_PIECE(VictimRule, latest_deadline_victim);
KVSIM_PIECE(VictimRule, most_blocks_victim);
KVSIM_PIECE(VictimRule, least_progress_victim);
KVSIM_PIECE(VictimRule, longest_remaining_victim);
KVSIM_PIECE(VictimRule, random_victim);
KVSIM_PIECE(LengthPredictor, oracle_predictor);
KVSIM_PIECE(LengthPredictor, constant_predictor);
KVSIM_PIECE(LengthPredictor, class_mean_predictor);
KVSIM_PIECE(LengthPredictor, noisy_predictor);
KVSIM_PIECE(LengthPredictor, bucket_predictor);
KVSIM_PIECE(LengthPredictor, history_predictor);
KVSIM_PIECE(LengthPredictor, max_predictor);
KVSIM_PIECE(KvManager, paged_kv);
KVSIM_PIECE(KvManager, radix_kv);
KVSIM_PIECE(KvManager, contiguous_kv);
#undef KVSIM_PIECE
std::vector<config::FieldDoc> priority_order_docs();
std::vector<config::FieldDoc> length_order_docs();
std::vector<config::FieldDoc> mlfq_order_docs();
std::vector<config::FieldDoc> vtc_order_docs();
std::vector<config::FieldDoc> constant_predictor_docs();
std::vector<config::FieldDoc> class_mean_predictor_docs();
std::vector<config::FieldDoc> noisy_predictor_docs();
std::vector<config::FieldDoc> bucket_predictor_docs();
std::vector<config::FieldDoc> history_predictor_docs();

std::span<const Entry<ReadPiece<WaitingQueue>>> queue_orders() {
    static constexpr Entry<ReadPiece<WaitingQueue>> table[] = {
        {"fcfs", "first come, first served; the preempted first, or last (engine.requeue)", no_docs, read_fcfs_order},
        {"priority", "the client's priority, lower first (vLLM); with aging who waits gains levels", priority_order_docs,
         read_priority_order},
        {"sjf", "shortest job first, by prompt, output or total tokens as predicted", length_order_docs, read_sjf_order},
        {"ljf", "longest job first, likewise", length_order_docs, read_ljf_order},
        {"srpt", "shortest remaining processing time, preemptive, in tokens still to compute as predicted", no_docs,
         read_srpt_order},
        {"edf", "earliest deadline first, from slo.ttft and slo.e2e", no_docs, read_edf_order},
        {"slo-slack", "least slack: the deadline less the outputs to come at slo.tpot", no_docs, read_slo_slack_order},
        {"mlfq", "skip-join multi-level feedback queue, preemptive (FastServe, arXiv 2305.05920)", mlfq_order_docs,
         read_mlfq_order},
        {"vtc", "virtual token counters: weighted fair share over tenants (Sheng et al., OSDI 2024)", vtc_order_docs,
         read_vtc_order},
        {"lpm", "longest cached prefix first (SGLang)", no_docs, read_lpm_order},
        {"dfs-weight", "depth-first through the tree of cached prefixes, heaviest branch first (SGLang)", no_docs,
         read_dfs_weight_order},
        {"random", "a draw per request", no_docs, read_random_order},
    };
    return table;
}

std::span<const Entry<ReadPiece<VictimRule>>> victim_rules() {
    static constexpr Entry<ReadPiece<VictimRule>> table[] = {
        {"last", "the last admitted (vLLM)", no_docs, read_last_victim},
        {"lowest-priority", "the largest priority number, of equal ones the latest arrival (vLLM under priority)", no_docs,
         read_lowest_priority_victim},
        {"latest-deadline", "the latest deadline, as edf knows it", no_docs, read_latest_deadline_victim},
        {"most-blocks", "the most KV blocks", no_docs, read_most_blocks_victim},
        {"least-progress", "the fewest computed tokens: the smallest recompute", no_docs, read_least_progress_victim},
        {"longest-remaining", "the most output tokens to come, as predicted", no_docs, read_longest_remaining_victim},
        {"random", "any of them", no_docs, read_random_victim},
    };
    return table;
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
    static constexpr Entry<ReadPiece<LengthPredictor>> table[] = {
        {"oracle", "the true number", no_docs, read_oracle_predictor},
        {"constant", "the same for every request", constant_predictor_docs, read_constant_predictor},
        {"class-mean", "the mean of the class's finished requests", class_mean_predictor_docs, read_class_mean_predictor},
        {"noisy", "the true number times a lognormal factor", noisy_predictor_docs, read_noisy_predictor},
        {"bucket", "a classifier of length buckets with a given accuracy", bucket_predictor_docs, read_bucket_predictor},
        {"history", "one of the last finished requests' at random (LightLLM, Past-Future)", history_predictor_docs,
         read_history_predictor},
        {"max", "the most that max_model_len leaves", no_docs, read_max_predictor},
    };
    return table;
}

std::vector<config::FieldDoc> paged_kv_docs();
std::vector<config::FieldDoc> radix_kv_docs();
std::vector<config::FieldDoc> contiguous_kv_docs();

std::span<const Entry<ReadPiece<KvManager>>> kv_policies() {
    static constexpr Entry<ReadPiece<KvManager>> table[] = {
        {"paged", "blocks taken as requests grow, cached by chained hashes (PagedAttention, vLLM)", paged_kv_docs,
         read_paged_kv},
        {"radix", "blocks taken as requests grow, cached as a tree that is evicted from its leaves (RadixAttention, SGLang)",
         radix_kv_docs, read_radix_kv},
        {"contiguous-max", "one range of max_model_len slots per request (FasterTransformer; Orca Max of PagedAttention)",
         contiguous_kv_docs, read_contiguous_kv},
        {"contiguous-pow2", "the prompt and the next power of two of the outputs (Orca Pow2 of PagedAttention)",
         contiguous_kv_docs, read_contiguous_kv},
        {"contiguous-exact", "the final length (Orca Oracle of PagedAttention)", contiguous_kv_docs, read_contiguous_kv},
    };
    return table;
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
