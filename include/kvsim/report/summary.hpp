#pragma once
// One run in figures: every column of summary.csv, typed, and the table that names them.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kvsim/engine/outcome.hpp"
#include "kvsim/engine/request_totals.hpp"
#include "kvsim/report/output_analysis.hpp"
#include "kvsim/report/run_info.hpp"

namespace kvsim {

/// Statistics of one quantity, latencies in ms, lengths in tokens. Without samples everything is 0.
struct Distribution {
    std::int64_t count = 0;
    double mean = 0;
    double standard_deviation = 0;  ///< population (ddof 0), as numpy.std
    double min = 0;
    double max = 0;
    double p50 = 0, p90 = 0, p95 = 0, p99 = 0;  ///< base/rank.hpp
};

/// 95 % intervals of a Distribution's figures, in its unit (output_analysis.hpp); unset where the run is too short for one.
struct DistributionInterval {
    std::optional<Interval> mean, p50, p90, p95, p99;
};

/// What `vllm bench serve` would report: over ALL completed requests, warm-up included; its duration is first arrival to last
/// completion.
struct ClientFigures {
    std::int64_t num_prompts = 0;
    std::int64_t completed = 0;
    std::int64_t failed = 0;  ///< everything that did not complete
    double duration_s = 0;
    std::int64_t total_input_tokens = 0;  ///< of completed requests
    std::int64_t total_output_tokens = 0;
    double request_throughput = 0;
    std::optional<double> request_goodput;  ///< unset without an SLO
    double output_throughput = 0;
    double total_token_throughput = 0;
    std::int64_t max_output_tokens_per_s = 0;
    std::int64_t max_concurrent_requests = 0;
    Distribution ttft, tpot, itl, e2el;
};

/// Share of the requests of slo_attainment's denominator that met each limit; unset where none of them has it.
struct Attainment {
    std::optional<double> all, ttft, tpot, itl_p99, e2e, queue;
};

/// The measured requests of one class.
struct ClassSummary {
    std::string name;  ///< empty: requests without a class
    std::int64_t requests = 0, completed = 0, rejected = 0, timed_out = 0, cancelled = 0, failed = 0;
    std::optional<double> offered_rate_req_s;  ///< its arrivals, measured or not, / (last - first arrival of the run)
    std::optional<double> served_rate_req_s;   ///< its completions up to the last arrival of the run, likewise
    std::int64_t wasted_tokens = 0, wasted_output_tokens = 0;  ///< of its timed-out and cancelled requests
    std::int64_t preemptions = 0, preempted_requests = 0, recomputed_tokens = 0;
    std::int64_t total_prompt_tokens = 0, total_output_tokens = 0;  ///< of completed requests
    Distribution prompt_tokens, output_tokens, ttft, tpot, e2e, queue;
    std::optional<double> itl_mean_ms;    ///< its gaps between tokens pooled; their quantiles are not kept by class
    std::optional<double> goodput_req_s;  ///< over the run's duration_s
    Attainment attainment;
};

/// Unset optionals and empty texts are "not applicable": an empty cell in CSV, null in JSON.
///
/// Per-request figures (requests ... slo_attainment, latencies, preemptions, preempted_requests, recomputed_tokens) cover the
/// measured requests; the rest (KV use, batch, bounds, hit rates, load, verdict) covers the whole run. Length statistics are
/// over completed measured requests. duration_s runs from the first measured arrival to the last measured completion; it is the
/// whole run's when nothing is cut as warm-up.
struct Summary {
    std::string scenario, scenario_hash, kvsim_version;
    std::int64_t seed = 0;
    std::string model, gpu;
    std::int64_t tensor_parallel_size = 0, replicas = 0;
    std::string preset, scheduling_policy, kv_policy, preemption, step_time_model;
    std::int64_t block_size = 0, num_gpu_blocks = 0;
    std::optional<std::int64_t> kv_bytes_per_token;
    std::int64_t max_model_len = 0, max_num_seqs = 0, max_num_batched_tokens = 0;

    std::int64_t requests = 0, completed = 0, rejected = 0, timed_out = 0;
    Distribution prompt_tokens, output_tokens;
    std::optional<double> offered_rate_req_s;  ///< unset with fewer than two arrivals or all at once
    std::optional<std::int64_t> concurrency;
    double duration_s = 0;
    std::optional<double> request_throughput_req_s, output_throughput_tok_s, total_token_throughput_tok_s;
    std::optional<double> goodput_req_s, slo_attainment;  ///< unset without an SLO
    Distribution ttft, tpot, itl, e2e, queue;

    std::int64_t preemptions = 0, preempted_requests = 0, recomputed_tokens = 0, swapped_tokens = 0;
    std::optional<double> recompute_time_share;  ///< of the time spent in steps
    std::optional<double> prefix_hit_rate;       ///< unset with prefix caching off
    std::optional<double> resume_hit_rate;       ///< unset without resumes or with prefix caching off
    std::optional<double> kv_usage_mean, kv_usage_peak;
    std::optional<double> kv_token_share, kv_reserved_share, kv_internal_share, kv_external_share;  ///< sum to 1
    /// Of the blocks that would be held if none were shared; unset unless requests have several outputs.
    std::optional<double> kv_sharing_saved;
    std::optional<double> batch_size_mean, batch_tokens_mean;  ///< per step with rows
    std::int64_t steps = 0;
    std::optional<double> bound_seats, bound_token_budget, bound_kv_blocks, bound_no_waiting;  ///< sum to 1
    std::optional<double> load;  ///< unset where nothing can be said (all at once; no completions while requests waited)
    std::string verdict;         ///< stable | saturated | overloaded
    std::optional<double> capacity_req_s;  ///< RunInfo::capacity_req_s
    std::string deviations;                ///< RunInfo's, joined by "; "

    std::int64_t cancelled = 0;
    std::int64_t failed = 0;      ///< given up by the engine, which could never run them (again)
    std::int64_t queue_full = 0;  ///< of all requests' rejections, Counters'
    std::int64_t lost = 0;        ///< of all requests: not served, other than by a client that lost interest while it was
    bool turns_away = false;  ///< the verdict is "overloaded" only for the share that the queue or the clients' patience cost
    std::int64_t retries = 0, wasted_tokens = 0, wasted_output_tokens = 0;  ///< Counters', of the whole run
    Distribution client_queue;  ///< of completed measured requests; empty where nobody waited at the client
    Attainment attainment;
    std::vector<ClassSummary> classes;                                          ///< in order of name; empty without classes
    DistributionInterval ttft_ci95, tpot_ci95, itl_ci95, e2e_ci95, queue_ci95;  ///< of ITL only the mean: its gaps are pooled
    std::vector<std::string> correlated;      ///< quantities whose batch means are no independent sample
    std::optional<double> served_rate_req_s;  ///< completions up to the last arrival / (last - first arrival)
    std::int64_t unmeasured_requests = 0;     ///< cut as warm-up or cool-down
    std::optional<Drift> drift;               ///< of the measured E2E; unset when all arrive at once
    std::string steady_state;                 ///< steady | drifting

    ClientFigures client;
    std::vector<std::string> warnings;  ///< RunInfo's, Outcome's, then those about these figures
};

/// Throws nothing of its own; an inconsistent Outcome is an InternalError.
Summary summarize(const RunInfo& info, const Outcome& outcome);

/// Which limits hold for which request.
class Slos {
public:
    Slos(const Outcome& outcome, const config::SloConfig& common, const std::map<std::string, config::SloConfig>& classes);
    [[nodiscard]] const config::SloConfig& of(RequestId id) const { return *of_class_[outcome_.classes.number(id)]; }
    [[nodiscard]] SimDuration itl_p99(RequestId id) const {
        return outcome_.itl_p99.empty() ? SimDuration(-1) : outcome_.itl_p99[id];
    }
    [[nodiscard]] std::optional<bool> met(RequestId id) const { return slo_met(outcome_.requests[id], of(id), itl_p99(id)); }

private:
    const Outcome& outcome_;
    std::vector<const config::SloConfig*> of_class_;  // by number
};

/// What a column holds; decides how it prints and which units an assertion may use.
enum class Unit : std::uint8_t { text, count, tokens, bytes, ms, seconds, per_second, share };

/// monostate: not applicable.
using Cell = std::variant<std::monostate, std::int64_t, double, std::string>;

struct Column {
    std::string_view name;
    Unit unit;
    Cell (*get)(const Summary&);
};
/// summary.csv's columns in the order of the contract; new ones only at the end.
std::span<const Column> summary_columns();

/// As it stands in a CSV cell, before quoting: shortest round-trip decimals, ms with at most 6 decimals, "" if not applicable.
std::string cell_text(const Cell& cell, Unit unit);

}  // namespace kvsim
