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
/// tokens (prompt and output) of requests completed by the last arrival, as a share of those it sent. Unset with fewer than two.
std::optional<double> tenant_fairness(const Outcome& outcome);

/// Requests by length, prompt and output tokens together: up to the median, the 90th, the 99th percentile, and the rest. Groups
/// without a request are left out.
class LengthGroups {
public:
    /// Lengths are those of `base`; the same request belongs to the same group in every other run of the workload.
    explicit LengthGroups(const Outcome& base);
    /// One ClassSummary a group, named "up to 512 tokens", "513 to 900 tokens", "over 2000 tokens"; shortest first. Limits are
    /// those of info.slo.
    [[nodiscard]] std::vector<ClassSummary> summarize(const RunInfo& info, const Outcome& outcome) const;

private:
    std::vector<std::string> names_;
    std::vector<std::uint8_t> group_of_;  // by request
};

}  // namespace kvsim
