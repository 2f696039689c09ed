#pragma once
// What a set of requests adds up to, in memory that does not grow with their number.

#include <algorithm>
#include <cstdint>
#include <optional>

#include "kvsim/base/check.hpp"
#include "kvsim/base/histogram.hpp"
#include "kvsim/config/scenario.hpp"
#include "kvsim/engine/outcome.hpp"

namespace kvsim {

/// Finished with length or stop.
[[nodiscard]] inline bool completed(const RequestRecord& record) {
    return record.finish == FinishReason::length || record.finish == FinishReason::stop;
}

/// (e2e - ttft) / (n - 1), rounded to whole ns, of a completed request with n > 1 output tokens.
[[nodiscard]] inline SimDuration mean_gap(const RequestRecord& r) {
    const std::int64_t gaps = r.output_tokens - 1;
    return SimDuration(((r.e2e - r.ttft).count() + gaps / 2) / gaps);
}
/// mean_gap(), nullopt for other requests.
[[nodiscard]] inline std::optional<SimDuration> time_per_output_token(const RequestRecord& r) {
    if (!completed(r) || r.output_tokens <= 1) return std::nullopt;
    return mean_gap(r);
}

/// Which limits a request met; a completed one meets those that are not set.
struct LimitsMet {
    bool ttft = false, tpot = false, itl_p99 = false, e2e = false, queue = false;
    [[nodiscard]] bool all() const { return ttft && tpot && itl_p99 && e2e && queue; }
};
/// TPOT counts as 0 for one output token. nullopt where the request is in neither the numerator nor the denominator of
/// slo_attainment (no SLO, unfinished, cancelled). `itl_p99`: of the request's own gaps, negative without any (which meets
/// every limit).
inline std::optional<LimitsMet> limits_met(const RequestRecord& r, const config::SloConfig& slo,
                                           SimDuration itl_p99 = SimDuration(-1)) {
    if (!slo.any()) return std::nullopt;
    if (!completed(r)) {
        const bool lost =
            r.finish == FinishReason::rejected || r.finish == FinishReason::timed_out || r.finish == FinishReason::failed;
        return lost ? std::optional(LimitsMet()) : std::nullopt;
    }
    const auto within = [](SimDuration value, const std::optional<SimDuration>& limit) { return !limit || value <= *limit; };
    // Without the division: (e2e - ttft) / (n - 1) <= limit; holds for n = 1, where both sides are 0.
    const bool tpot = !slo.tpot || (r.e2e - r.ttft).count() <= static_cast<Int128>(slo.tpot->count()) * (r.output_tokens - 1);
    return LimitsMet{within(r.ttft, slo.ttft), tpot, within(itl_p99, slo.itl_p99), within(r.e2e, slo.e2e),
                     within(r.queue, slo.queue)};
}
/// Whether it met all of them.
inline std::optional<bool> slo_met(const RequestRecord& r, const config::SloConfig& slo,
                                   SimDuration itl_p99 = SimDuration(-1)) {
    const std::optional<LimitsMet> met = limits_met(r, slo, itl_p99);
    return met ? std::optional(met->all()) : std::nullopt;
}

/// Counts and sums; lengths and latencies are over completed requests.
struct RequestCounts {
    std::int64_t requests = 0, completed = 0, rejected = 0, timed_out = 0, cancelled = 0, failed = 0, met = 0;
    std::int64_t never_started = 0;                     ///< of the cancelled ones: they left before they were first scheduled
    std::int64_t prompt_tokens = 0, output_tokens = 0;  ///< of completed requests
    std::int64_t preemptions = 0, preempted_requests = 0, recomputed_tokens = 0;
    SimTime first_arrival = never;
    SimTime last_completion{};

    /// The record is final: its request has left, or the run has ended. A completed request whose times are out of order is an
    /// InternalError. `met` and `recomputed_tokens` are the caller's.
    void add(const RequestRecord& record);
};

inline void RequestCounts::add(const RequestRecord& r) {
    ++requests;
    if (r.arrival < first_arrival) first_arrival = r.arrival;
    if (r.preemptions > 0) {
        preemptions += r.preemptions;
        ++preempted_requests;
    }
    if (!kvsim::completed(r)) {
        rejected += r.finish == FinishReason::rejected;
        timed_out += r.finish == FinishReason::timed_out;
        cancelled += r.finish == FinishReason::cancelled;
        never_started += r.finish == FinishReason::cancelled && r.queue.count() < 0;
        failed += r.finish == FinishReason::failed;
        return;
    }
    KVSIM_CHECK(r.queue.count() >= 0 && r.ttft >= r.queue && r.e2e >= r.ttft && r.output_tokens >= 1,
                "a completed request's times are out of order");
    ++completed;
    prompt_tokens += r.prompt_tokens;
    output_tokens += r.output_tokens;
    if (r.arrival + r.e2e > last_completion) last_completion = r.arrival + r.e2e;
}

/// RequestCounts and a histogram of each quantity: tokens, ns. An order statistic is within 2^-11 (0.049 %) relative.
struct RequestTotals {
    RequestCounts counts;
    LogLinearHistogram prompt, output, ttft, tpot, e2e, queue;

    void add(const RequestRecord& record, const config::SloConfig& slo, std::int64_t recomputed_tokens);
};

}  // namespace kvsim
