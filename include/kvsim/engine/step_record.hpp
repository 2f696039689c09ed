#pragma once
// One engine step as the step log and conformance see it (the record format of the recorded engine decisions).

#include <cstdint>
#include <vector>

#include "kvsim/base/units.hpp"
#include "kvsim/model/workload.hpp"

namespace kvsim {

struct ScheduledRow {
    enum class Kind { fresh, resumed, running };
    RequestId id;
    std::int64_t tokens;                    ///< "n"
    std::int64_t computed;                  ///< "c": computed tokens before the step, prefix hit included
    Kind kind;                              ///< "k": new | resumed | running
    std::vector<std::int64_t> blocks;       ///< "b": the whole table for new and resumed, only the added ones for running
    std::vector<std::int64_t> tables = {};  ///< how many of `blocks` belong to each block table; empty: there is one
    bool operator==(const ScheduledRow&) const = default;
};

struct StepRecord {
    static constexpr std::int64_t none = -1;

    std::int64_t step = 0;
    std::vector<ScheduledRow> scheduled;
    std::int64_t total_tokens = 0;
    std::vector<RequestId> preempted;
    std::int64_t free_after_schedule = 0;
    std::int64_t updated_step = none;  ///< the step whose result was processed in this one
    std::vector<RequestId> received;   ///< "tok": got a token
    std::vector<RequestId> finished;
    std::int64_t free_after_update = 0;
    std::vector<RequestId> running;
    std::vector<RequestId> waiting;  ///< in queue order
    SimTime start{};                 ///< "t_ns": start of the step's batch; of schedule() if it has no rows
    SimDuration duration{};          ///< "duration_ns": 0 without rows
    bool operator==(const StepRecord&) const = default;
};

}  // namespace kvsim
