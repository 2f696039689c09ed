#pragma once
// How evenly a run served its requests, and what it did to short and to long ones.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvsim/engine/outcome.hpp"
#include "kvsim/report/run_info.hpp"
#include "kvsim/report/summary.hpp"

namespace kvsim {

/// (sum x)^2 / (n sum x^2): 1 when all are equal, 1/n when one has everything (Jain, Chiu, Hawe 1984). Unset when empty or all
/// zero; values are >= 0.
std::optional<double> jain_index(std::span<const double> values);

/// Over completed measured requests: the speed each one saw, output tokens / E2E.
std::optional<double> request_fairness(const Outcome& outcome);

/// Over tenants, a request without one being of its class, without a class too of one that has no name (as `vtc` takes it):
/// tokens (prompt and output) of requests completed by the last arrival, as a share of those it sent. Unset with fewer than
/// two.
std::optional<double> tenant_fairness(const Outcome& outcome);

/// By request of `base`: the one of `other`, another run of the scenario, that is the same; unset where none is. Requests have
/// the same numbers in both when all come in the same order. Where clients wait for answers or send again they do not: then the
/// same are those sent at the same time, as the first attempt, of one class and prompt length.
std::vector<std::optional<RequestId>> same_requests(const Outcome& base, const Outcome& other);

/// Requests by length, prompt and output tokens together: up to the median, the 90th, the 99th percentile, and the rest. Groups
/// without a request are left out.
class LengthGroups {
public:
    /// Lengths are those of `base`, which has to outlive this; the same request (same_requests()) belongs to the same group in
    /// every other run of the workload, one that `base` does not have to that of what it got.
    explicit LengthGroups(const Outcome& base);
    /// One ClassSummary a group, named "up to 512 tokens", "513 to 900 tokens", "over 2000 tokens"; shortest first. Limits are
    /// those of info.slo.
    [[nodiscard]] std::vector<ClassSummary> summarize(const RunInfo& info, const Outcome& outcome) const;

private:
    [[nodiscard]] std::uint8_t group_of(std::int64_t length) const;

    const Outcome& base_;
    std::vector<std::int64_t> bounds_;
    std::vector<std::string> names_;
};

}  // namespace kvsim
