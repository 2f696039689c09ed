#pragma once
// The step log: one JSON object per step and a last one that sums up, field by field as the recorded engine decisions are
// written, so that a log and a recording can be compared as text.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvsim/base/file.hpp"
#include "kvsim/engine/step_record.hpp"

namespace kvsim {

/// The name a request has in files: its external id, or the index.
using RequestNames = std::function<std::string(RequestId)>;

/// {"step":..,"sched":[{"id","n","c","k","b"}..],"total","preempted","free_sched","upd","tok","finished","free","running",
/// "waiting","running_ids","waiting_ids"} and, `with_time`, "t_ns" and "duration_ns". No line end.
std::string to_json(const StepRecord& record, const RequestNames& names, bool with_time);

/// The last line: what the records add up to.
struct StepLogSummary {
    std::int64_t steps = 0;  ///< records
    std::int64_t last_step = -1;
    std::int64_t preemptions = 0;
    std::int64_t finished = 0;
    std::int64_t scheduled_tokens = 0;
    std::int64_t hit_tokens = 0;  ///< prefix hits at admissions, resumes included
    std::int64_t free = 0;        ///< blocks after the last record; of an unused pool if there is none

    void add(const StepRecord& record);
};
/// {"end":"done","steps",..,"unfinished":[..]}; `end` is done | stalled | max_steps, `unfinished` in input order.
std::string to_json(const StepLogSummary& summary, std::string_view end, std::span<const RequestId> unfinished,
                    const RequestNames& names);

/// Writes a log file with times; "replica" closes each record when there is more than one. The file appears with finish().
class StepLog {
public:
    StepLog(const std::filesystem::path& path, RequestNames names, std::int64_t replicas, std::int64_t usable_blocks);
    StepLog(const StepLog&) = delete;
    StepLog& operator=(const StepLog&) = delete;
    ~StepLog();

    void add(std::int64_t replica, const StepRecord& record);
    /// `free` of the last line is the sum over replicas, `last_step` the largest.
    void finish(std::string_view end, std::span<const RequestId> unfinished);

private:
    void write_lines();

    AtomicFile file_;
    RequestNames names_;
    std::vector<StepLogSummary> summaries_;  // by replica
    struct Text;
    std::unique_ptr<Text> text_;
};

}  // namespace kvsim
