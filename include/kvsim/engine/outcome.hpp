#pragma once
// What a run leaves behind: one record per request, exact integrals of the state over time, and counters. No statistics yet.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvsim/base/duration_column.hpp"
#include "kvsim/base/histogram.hpp"
#include "kvsim/base/name_column.hpp"
#include "kvsim/base/rare_counts.hpp"
#include "kvsim/base/units.hpp"
#include "kvsim/model/workload.hpp"

namespace kvsim {

/// One request's life. Durations are -1 ns where the point was not reached. Index in Outcome::requests = RequestId.
struct RequestRecord {
    SimTime arrival{};      ///< when it was sent, or meant to be sent (SimulationOptions::latency_from_intended)
    SimDuration queue{-1};  ///< joined the waiting queue -> first scheduled; later re-queues after preemption not counted
    SimDuration ttft{-1};   ///< arrival -> first output token received
    SimDuration e2e{-1};    ///< arrival -> last output token received
    std::int32_t prompt_tokens = 0;
    std::int32_t output_tokens = 0;  ///< tokens it received; for unfinished ones so far
    std::int32_t preemptions = 0;
    std::uint16_t replica = 0;
    FinishReason finish = FinishReason::unfinished;
    bool measured = true;  ///< false: cut as warm-up
};

/// What limited the batch, from one schedule() to the next.
enum class Bound : std::uint8_t { kv_blocks, seats, token_budget, no_waiting };

/// State at one multiple of the timeline interval.
struct TimelineSample {
    SimTime at{};
    std::int32_t replica = 0;
    std::int64_t running = 0;
    std::int64_t waiting = 0;
    std::int64_t kv_blocks_used = 0;
    SimDuration step{};             ///< of the step in progress; 0 when idle
    std::int64_t batch_tokens = 0;  ///< of the step in progress
    std::int64_t prefill_tokens = 0;
    std::int64_t decode_tokens = 0;
    std::int64_t preemptions = 0;     ///< so far
    std::int64_t reserved_slots = 0;  ///< waste shares, as Integrals has them
    std::int64_t internal_slots = 0;
};

/// Totals over all replicas up to a multiple of the window, events at that instant not included.
struct WindowMark {
    SimTime at{};
    Int128 blocks_used_dt = 0;
    Int128 in_system_dt = 0;
    Int128 slots_busy_dt = 0;  ///< these as in Integrals
    Int128 slots_token_dt = 0;
    Int128 slots_reserved_dt = 0;
    Int128 slots_internal_dt = 0;
    std::int64_t steps = 0;
    std::int64_t rows = 0;
    std::int64_t tokens = 0;
    std::int64_t preemptions = 0;
};

/// Sums over all replicas; `dt` sums are value x nanoseconds, exact.
struct Integrals {
    Int128 blocks_used_dt = 0;           ///< held by at least one request; cached idle blocks are free
    std::int64_t blocks_used_peak = 0;   ///< of one replica
    Int128 slots_busy_dt = 0;            ///< usable blocks x block_size while at least one request runs
    Int128 slots_token_dt = 0;           ///< waste shares of those slots: computed tokens held
    Int128 slots_reserved_dt = 0;        ///< slots their request will still fill
    Int128 slots_internal_dt = 0;        ///< held and never filled; external is the rest
    Int128 blocks_saved_dt = 0;          ///< KvPool::saved(); where requests may have several outputs
    Int128 in_system_dt = 0;             ///< requests in the system (Little's law)
    std::array<SimDuration, 4> bound{};  ///< time by Bound; sums to replicas x run time
    SimDuration idle{};                  ///< no step in progress, summed over replicas
    SimDuration any_waiting{};           ///< time with at least one request waiting, summed over replicas
    SimDuration head_blocking{};         ///< Engine::head_blocks_others(), summed over replicas; 0 unless asked for
    std::int64_t finished_while_waiting = 0;
    SimDuration stepping{};   ///< sum of step durations
    double recompute_ns = 0;  ///< sum of duration x recomputed tokens / total tokens
};

struct Counters {
    std::int64_t arrivals = 0;
    std::int64_t completed = 0;
    std::int64_t rejected = 0;
    std::int64_t queue_full = 0;  ///< of the rejected ones: EngineArgs::max_queued_requests
    std::int64_t timed_out = 0;
    std::int64_t cancelled = 0;
    std::int64_t retries = 0;               ///< arrivals that were sent before
    std::int64_t wasted_tokens = 0;         ///< scheduled for requests that timed out or were cancelled
    std::int64_t wasted_output_tokens = 0;  ///< received by them
    std::int64_t steps = 0;                 ///< steps with at least one row
    std::int64_t rows = 0;
    std::int64_t tokens = 0;  ///< scheduled
    std::int64_t recomputed_tokens = 0;
    std::int64_t swapped_tokens = 0;  ///< whose KV moved out to the CPU
    std::int64_t dropped = 0;         ///< requests the engine gave up because it could never run them (again)
    std::int64_t preemptions = 0;
    std::int64_t preempted_requests = 0;
    std::int64_t hit_tokens_first = 0;     ///< prefix hits of first admissions
    std::int64_t prompt_tokens_first = 0;  ///< prompt tokens of first admissions
    std::int64_t hit_tokens_resume = 0;
    std::int64_t tokens_resume = 0;  ///< prompt and received output tokens of resumes
    std::int64_t completed_by_last_arrival = 0;
    std::int64_t waiting_at_last_arrival = 0;
    std::int64_t max_in_system = 0;
    std::int64_t max_output_tokens_per_s = 0;  ///< over 1-s buckets from the first arrival
    bool operator==(const Counters&) const = default;
};

struct RequestTotals;  // request_totals.hpp

struct Outcome {
    std::vector<RequestRecord> requests;              ///< empty where only totals are kept
    RareCounts cached_prompt_tokens;                  ///< by request: prefix hit of the first admission
    RareCounts recomputed_tokens;                     ///< by request: scheduled below its earlier maximum of `computed`
    std::shared_ptr<const RequestTotals> totals;      ///< of measured requests; null where records are kept
    std::shared_ptr<const RequestTotals> totals_all;  ///< of all requests; null when none is cut as warm-up
    LogLinearHistogram itl;                           ///< gaps between consecutive tokens of all measured requests, ns
    LogLinearHistogram itl_all;                       ///< the same over all requests; empty when no request is cut as warm-up
    Integrals integrals;
    Counters counters;
    std::int64_t usable_blocks = 0;  ///< per replica
    std::int64_t block_size = 0;
    std::int64_t slots_per_block = 0;  ///< kvsim::slots_per_block()
    bool may_share = false;            ///< requests may have several outputs of one prompt
    std::int64_t replicas = 1;
    SimTime first_arrival{};
    SimTime last_arrival{};
    SimTime end{};  ///< the last request left, or the last step ended (last event when nothing completed)
    std::vector<TimelineSample> timeline;
    std::vector<WindowMark> window_marks;  ///< at multiples from the one before the first arrival on; the last at the end
    std::vector<std::string> warnings;
    std::string stall_report;  ///< not empty: nothing could ever be scheduled again; the state of every replica
    // By request, only of those that have one.
    NameColumn external_ids;
    NameColumn classes;
    NameColumn sessions;
    NameColumn tenants;
    RareCounts attempts;                                ///< how many times it was sent before
    DurationColumn client_queue;                        ///< of those that waited: from the intended arrival to being sent
    std::map<RequestId, SimDuration> unfinished_after;  ///< of those that timed out or were cancelled: arrival to leaving
    std::map<RequestId, std::int64_t> wasted;  ///< of those that timed out or were cancelled: tokens scheduled for them, if any
    std::vector<SimDuration> itl_p99;          ///< by request, of its own gaps, -1 ns without any; empty unless asked for
};

}  // namespace kvsim
