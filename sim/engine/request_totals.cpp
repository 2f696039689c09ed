#include "kvsim/engine/request_totals.hpp"

#include <algorithm>

#include "kvsim/base/check.hpp"

namespace kvsim {

std::optional<SimDuration> time_per_output_token(const RequestRecord& r) {
    if (!completed(r) || r.output_tokens <= 1) return std::nullopt;
    const std::int64_t gaps = r.output_tokens - 1;
    return SimDuration(((r.e2e - r.ttft).count() + gaps / 2) / gaps);
}

std::optional<bool> slo_met(const RequestRecord& r, const config::SloConfig& slo, SimDuration itl_p99) {
    if (!slo.any()) return std::nullopt;
    if (r.finish == FinishReason::rejected || r.finish == FinishReason::timed_out) return false;
    if (!completed(r)) return std::nullopt;
    // Without the division: (e2e - ttft) / (n - 1) <= limit; holds for n = 1, where both sides are 0.
    const bool tpot = !slo.tpot || (r.e2e - r.ttft).count() <= static_cast<Int128>(slo.tpot->count()) * (r.output_tokens - 1);
    return (!slo.ttft || r.ttft <= *slo.ttft) && tpot && (!slo.itl_p99 || itl_p99 <= *slo.itl_p99) &&
           (!slo.e2e || r.e2e <= *slo.e2e) && (!slo.queue || r.queue <= *slo.queue);
}

void RequestCounts::add(const RequestRecord& r, const config::SloConfig& slo) {
    ++requests;
    first_arrival = std::min(first_arrival, r.arrival);
    preemptions += r.preemptions;
    preempted_requests += r.preemptions > 0;
    recomputed_tokens += r.recomputed_tokens;
    rejected += r.finish == FinishReason::rejected;
    timed_out += r.finish == FinishReason::timed_out;
    cancelled += r.finish == FinishReason::cancelled;
    met += slo_met(r, slo).value_or(false);
    if (!kvsim::completed(r)) return;
    KVSIM_CHECK(r.queue.count() >= 0 && r.ttft >= r.queue && r.e2e >= r.ttft && r.output_tokens >= 1,
                "a completed request's times are out of order");
    ++completed;
    prompt_tokens += r.prompt_tokens;
    output_tokens += r.output_tokens;
    last_completion = std::max(last_completion, r.arrival + r.e2e);
}

void RequestTotals::add(const RequestRecord& r, const config::SloConfig& slo) {
    counts.add(r, slo);
    if (!completed(r)) return;
    prompt.add(r.prompt_tokens);
    output.add(r.output_tokens);
    ttft.add(r.ttft.count());
    e2e.add(r.e2e.count());
    queue.add(r.queue.count());
    if (const auto per_token = time_per_output_token(r)) tpot.add(per_token->count());
}

}  // namespace kvsim
