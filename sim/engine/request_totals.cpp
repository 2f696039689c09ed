#include "kvsim/engine/request_totals.hpp"

#include <algorithm>

#include "kvsim/base/check.hpp"

namespace kvsim {

std::optional<bool> slo_met(const RequestRecord& r, const config::SloConfig& slo, SimDuration itl_p99) {
    if (!slo.any()) return std::nullopt;
    if (r.finish == FinishReason::rejected || r.finish == FinishReason::timed_out || r.finish == FinishReason::failed)
        return false;
    if (!completed(r)) return std::nullopt;
    // Without the division: (e2e - ttft) / (n - 1) <= limit; holds for n = 1, where both sides are 0.
    const bool tpot = !slo.tpot || (r.e2e - r.ttft).count() <= static_cast<Int128>(slo.tpot->count()) * (r.output_tokens - 1);
    return (!slo.ttft || r.ttft <= *slo.ttft) && tpot && (!slo.itl_p99 || itl_p99 <= *slo.itl_p99) &&
           (!slo.e2e || r.e2e <= *slo.e2e) && (!slo.queue || r.queue <= *slo.queue);
}

void RequestTotals::add(const RequestRecord& r, const config::SloConfig& slo, std::int64_t recomputed_tokens) {
    counts.add(r);
    counts.recomputed_tokens += recomputed_tokens;
    if (slo.any()) counts.met += slo_met(r, slo).value_or(false);
    if (!completed(r)) return;
    prompt.add(r.prompt_tokens);
    output.add(r.output_tokens);
    ttft.add(r.ttft.count());
    e2e.add(r.e2e.count());
    queue.add(r.queue.count());
    if (const auto per_token = time_per_output_token(r)) tpot.add(per_token->count());
}

}  // namespace kvsim
