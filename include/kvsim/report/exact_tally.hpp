#pragma once
// The figures of a set of requests from their records, exact.

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "kvsim/base/avx2.hpp"
#include "kvsim/engine/outcome.hpp"
#include "kvsim/engine/request_totals.hpp"
#include "kvsim/report/summary.hpp"

namespace kvsim {

/// Of a Distribution.
inline constexpr std::array<double, 4> percentile_ranks{0.5, 0.9, 0.95, 0.99};

/// The figures of one set of requests: the measured ones, or all of them.
struct Tally : RequestCounts {
    Distribution prompt, output, ttft, tpot, e2e, queue;
    DistributionInterval ttft_ci95, tpot_ci95, itl_ci95, e2e_ci95, queue_ci95;
    std::vector<std::string> correlated;
    std::optional<Drift> drift;
};

/// `met` and `recomputed_tokens` are the caller's, as RequestCounts says. `intervals`: and how far the means and percentiles
/// may be off, and whether they drift. `by_four`: takes records four at a time where it can, which changes no figure.
Tally exact_tally(const std::vector<RequestRecord>& records, bool measured_only, bool intervals, bool by_four = has_avx2);

/// Of Outcome::client_queue: of completed measured requests, which are so many.
Distribution exact_client_queue(const Outcome& outcome, std::int64_t completed_requests);

}  // namespace kvsim
