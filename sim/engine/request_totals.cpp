#include "kvsim/engine/request_totals.hpp"

#include <algorithm>

#include "kvsim/base/check.hpp"

namespace kvsim {

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
