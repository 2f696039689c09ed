#pragma once
// Measured serving runs given as rows of a CSV file, rebuilt as scenarios and replayed. `kvsim validate` prints the error,
// `kvsim calibrate` minimises it.
//
// Columns (others are ignored; an empty cell means "not known"): dataset, source, exp_id, stage, engine_version, model, gpu,
// tp, dp, ep, precision, max_num_seqs, max_num_batched_tokens, gpu_memory_utilization, max_model_len, kv_blocks, block_size,
// prefix_caching, chunked_prefill, other_flags, workload, arrival, request_rate ("5" or "5->10"), concurrency, duration_s,
// num_requests, prompt_len_mean, prompt_len_std, output_len_mean, output_len_std, shared_prefix_len, num_prefix_groups,
// num_distinct_prompts, notes, and the measurements of `Metric`.
//
// Rows that differ only in `stage` are one run whose stages follow each other; stage -1 is the whole of it, scored only where
// it stands alone.

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvsim/app/csv_table.hpp"
#include "kvsim/config/scenario.hpp"
#include "kvsim/engine/outcome.hpp"
#include "kvsim/model/deployment.hpp"
#include "kvsim/model/workload.hpp"

namespace kvsim::app {

enum class Metric : std::uint8_t { ttft_mean, ttft_p99, tpot_mean, e2e_mean, e2e_p99, throughput };
inline constexpr std::array<std::string_view, 6> metric_names{"ttft_mean", "ttft_p99", "tpot_mean",
                                                              "e2e_mean",  "e2e_p99",  "throughput"};
/// By Metric: ms, throughput requests per second. nullopt: not measured, or not comparable.
using Metrics = std::array<std::optional<double>, metric_names.size()>;

/// A fixed list of requests, sorted by time.
class ListedRequests final : public Workload {
public:
    explicit ListedRequests(std::shared_ptr<const std::vector<Arrival>> requests) : requests_(std::move(requests)) {}
    [[nodiscard]] std::optional<SimTime> next_time() override {
        return next_ < requests_->size() ? std::optional((*requests_)[next_].time) : std::nullopt;
    }
    void pop(Arrival& out) override { out = (*requests_)[next_++]; }
    [[nodiscard]] bool closed_loop() const override { return false; }
    [[nodiscard]] bool outputs_are_private() const override { return true; }
    [[nodiscard]] std::optional<std::int64_t> size_hint() const override {
        return static_cast<std::int64_t>(requests_->size());
    }

private:
    std::shared_ptr<const std::vector<Arrival>> requests_;
    std::size_t next_ = 0;
};

/// One row to be scored: which of the run's requests it covers and what was measured on them.
struct MeasuredStage {
    std::int64_t line = 0;
    std::string dataset;
    std::string label;  ///< "exp_id, stage 1"
    std::map<std::string, std::string, std::less<>> cells;
    std::size_t first = 0;  ///< requests [first, last) of the run
    std::size_t last = 0;
    double duration_s = 0;  ///< of its arrivals; 0: closed loop
    Metrics measured;
};

/// Request by request, from arrival: ms.
struct MeasuredRequest {
    double ttft, tpot, e2e;
};

struct MeasuredRun {
    std::string model, gpu;
    std::int64_t tensor_parallel_size = 1;
    std::string scenario_yaml;  ///< all but the workload
    std::shared_ptr<const std::vector<Arrival>> requests;
    std::optional<std::int64_t> concurrency;
    std::vector<MeasuredStage> stages;
    std::vector<MeasuredRequest> per_request;  ///< empty unless a file has them
    std::vector<std::string> assumptions;      ///< what the row leaves open and how it was filled
};

struct MeasuredRuns {
    std::vector<MeasuredRun> runs;
    std::vector<std::string> skipped;  ///< "FILE:LINE: error: why" of each run whose rows cannot be used
};

/// Reads rows and the files beside them (FOLDER/lss_workload_NAME.csv: arrivals and lengths; FOLDER/lss_EXP_ID.csv: timings per
/// request, `/` in EXP_ID as `_`). `where`: only rows for which it holds. Throws UserError when no row can be used.
MeasuredRuns read_measured_runs(const CsvTable& table, const std::filesystem::path& folder, std::uint64_t seed,
                                const std::vector<std::string>& where);

/// `column=value` or `column!=value`, all of which must hold. Throws UserError when the column is unknown.
bool row_matches(const CsvTable& table, const CsvTable::Row& row, const std::vector<std::string>& where);

/// What a replay tells about one row.
struct ReplayedStage {
    Metrics simulated;
    double batch_size = 0;     ///< rows per step, whole run
    double context = 0;        ///< tokens: prompt + half the output, mean over its requests
    double queue_share = 0;    ///< of the TTFT, mean over its requests
    double load = 0;           ///< requests in the system over seats, mean; 0: closed loop
    double measured_load = 0;  ///< the same by Little's law from what was measured; 0: not known
    /// Of an open loop simulated or measured at a load above 0.85, or of TTFT that is mostly queueing.
    bool near_saturation = false;
    double bound_kv = 0, bound_seats = 0, bound_budget = 0;  ///< shares of the run's time
    std::int64_t preemptions = 0;
    std::int64_t not_completed = 0;
};

struct Replay {
    Deployment deployment;
    std::string step_time;           ///< its description
    std::vector<std::string> notes;  ///< where it went beyond its measurements
    std::vector<ReplayedStage> stages;
    std::vector<RequestRecord> requests;
    double milliseconds = 0;  ///< of this machine's time for the simulation alone
};

/// The scenario with the overlay files merged and `sets` applied, replayed. Throws UserError when it cannot be built or run.
Replay replay(const MeasuredRun& run, const std::vector<std::string>& overlays, const std::vector<std::string>& sets);
/// The deployment of the run's scenario and the scenario itself.
struct BuiltRun {
    config::Scenario scenario;
    Deployment deployment;
};
BuiltRun build(const MeasuredRun& run, const std::vector<std::string>& overlays, const std::vector<std::string>& sets);
/// Only the requests' records; for a fit that runs it many times over. `step_time` and `api` replace the scenario's.
Outcome replay_requests(const MeasuredRun& run, const BuiltRun& built, const StepTimeModel& step_time, SimDuration api);
/// The figures of requests [first, last) of a replay.
Metrics stage_metrics(const std::vector<RequestRecord>& requests, const MeasuredStage& stage);

}  // namespace kvsim::app
