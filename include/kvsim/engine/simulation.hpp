#pragma once
// The event loop: arrivals, replicas, the clock.

#include <atomic>
#include <functional>
#include <memory>

#include "kvsim/config/scenario.hpp"
#include "kvsim/engine/outcome.hpp"
#include "kvsim/engine/step_record.hpp"
#include "kvsim/model/cold_start.hpp"
#include "kvsim/model/engine_args.hpp"
#include "kvsim/model/router.hpp"
#include "kvsim/model/step_time.hpp"
#include "kvsim/model/workload.hpp"

namespace kvsim {

/// All take the same decisions. `automatic` prefers the fast form where it is exact, and else passes over steady decoding at
/// once where the batch policy can (Scheduler::steady_steps); `per_request` takes every step by itself.
enum class EngineForm { automatic, per_request, fast };

struct SimulationOptions {
    EngineArgs engine;
    std::int64_t replicas = 1;
    SimDuration api{};  ///< between arrival and joining the waiting queue; part of TTFT, not of queue
    double tokenizer_ns =
        0;  ///< one server that takes requests in order of arrival: so long each, before api; as api part of TTFT
    double tokenizer_ns_per_token = 0;            ///< and per prompt token
    ColdStart cold_start;                         ///< off
    std::optional<std::int64_t> max_concurrency;  ///< requests issued and not finished; the others wait at the client
    /// Where requests wait at the client their latencies count from when they were meant to be sent, not from when they were.
    bool latency_from_intended = false;
    bool note_client_queue = true;    ///< fill Outcome::client_queue; false where only the limit says when requests are sent
    bool itl_per_request = false;     ///< fill Outcome::itl_p99
    bool note_head_blocking = false;  ///< fill Integrals::head_blocking; fewer steps pass at once
    std::optional<SimDuration> warmup_time;  ///< requests arriving earlier than this after the first are not measured
    std::optional<std::int64_t> warmup_requests;
    std::optional<std::int64_t> measured_end;                              ///< requests from this id on are not measured
    SimDuration window{};                                                  ///< 0: no window marks
    SimDuration timeline_interval{};                                       ///< 0: no timeline
    std::function<void(std::int64_t replica, const StepRecord&)> on_step;  ///< step log; keeps block identities
    std::function<void(const Outcome&, SimTime)> on_progress;              ///< called now and then (every few thousand events)
    EngineForm form = EngineForm::automatic;
    bool keep_requests = true;  ///< false: Outcome::totals instead of records and names, so that memory does not grow
    config::SloConfig slo;      ///< for those totals
    const std::atomic<bool>* stop = nullptr;  ///< set by a signal handler: run() throws Interrupted at the next event
};

struct Interrupted {};

/// Runs the workload to its end: from empty until every request has finished, or until nothing can ever be scheduled (then
/// Outcome::stall_report says why). Throws UserError when no request at all can fit.
Outcome simulate(const SimulationOptions& options, const StepTimeModel& step_time, Router& router, Workload& workload);

}  // namespace kvsim
