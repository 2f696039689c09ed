#include "kvsim/report/groups.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "kvsim/report/quantile.hpp"

namespace kvsim {
namespace {

std::int64_t length_of(const RequestRecord& record) {
    return std::int64_t{record.prompt_tokens} + record.output_tokens;
}

}  // namespace

std::optional<double> jain_index(std::span<const double> values) {
    double sum = 0;
    double squares = 0;
    for (const double value : values) {
        sum += value;
        squares += value * value;
    }
    if (!(squares > 0)) return std::nullopt;
    return sum * sum / (static_cast<double>(values.size()) * squares);
}

std::optional<double> request_fairness(const Outcome& outcome) {
    std::vector<double> speeds;
    for (const RequestRecord& record : outcome.requests) {
        if (!record.measured || record.finish != FinishReason::length || record.e2e.count() <= 0) continue;
        speeds.push_back(static_cast<double>(record.output_tokens) / static_cast<double>(record.e2e.count()));
    }
    return jain_index(speeds);
}

std::optional<double> tenant_fairness(const Outcome& outcome) {
    struct Share {
        std::int64_t sent = 0;
        std::int64_t served = 0;
    };
    std::map<std::string, Share> tenants;
    const auto tenant_of = [&outcome](RequestId id) {  // as the order `vtc` takes it
        if (const auto named = outcome.tenants.find(id); named != outcome.tenants.end()) return named->second;
        const auto of_class = outcome.classes.find(id);
        return of_class != outcome.classes.end() ? of_class->second : std::string();
    };
    for (RequestId id = 0; id < outcome.requests.size(); ++id) {
        const RequestRecord& record = outcome.requests[id];
        Share& own = tenants[tenant_of(id)];
        own.sent += length_of(record);
        if (record.finish == FinishReason::length && record.arrival + record.e2e <= outcome.last_arrival)
            own.served += length_of(record);
    }
    if (tenants.size() < 2) return std::nullopt;
    std::vector<double> shares;
    for (const auto& [name, own] : tenants) {
        shares.push_back(own.sent == 0 ? 0 : static_cast<double>(own.served) / static_cast<double>(own.sent));
    }
    return jain_index(shares);
}

LengthGroups::LengthGroups(const Outcome& base) {
    std::vector<std::int64_t> lengths;
    for (const RequestRecord& record : base.requests) lengths.push_back(length_of(record));
    std::vector<std::int64_t> bounds;
    for (const double quantile : quantiles(lengths, std::vector<double>{0.5, 0.9, 0.99})) {
        const auto bound = static_cast<std::int64_t>(std::floor(quantile));
        if (bounds.empty() || bound > bounds.back()) bounds.push_back(bound);
    }
    std::int64_t below = 0;
    for (const std::int64_t bound : bounds) {
        names_.push_back((below == 0 ? std::string("up to ") : std::to_string(below + 1).append(" to "))
                             .append(std::to_string(bound))
                             .append(" tokens"));
        below = bound;
    }
    names_.push_back(std::string("over ").append(std::to_string(below)).append(" tokens"));
    for (const std::int64_t length : lengths) {
        group_of_.push_back(static_cast<std::uint8_t>(std::lower_bound(bounds.begin(), bounds.end(), length) - bounds.begin()));
    }
}

std::vector<ClassSummary> LengthGroups::summarize(const RunInfo& info, const Outcome& outcome) const {
    // The same run with its groups for classes; a digit in front keeps them in order.
    Outcome grouped = outcome;
    RunInfo plain = info;
    plain.class_slos.clear();
    grouped.classes.clear();
    for (RequestId id = 0; id < std::min(grouped.requests.size(), group_of_.size()); ++id) {
        grouped.classes.emplace_hint(grouped.classes.end(), id, std::to_string(group_of_[id]));
    }
    std::vector<ClassSummary> out = kvsim::summarize(plain, grouped).classes;
    for (ClassSummary& group : out) {
        if (!group.name.empty()) group.name = names_[static_cast<std::size_t>(std::stoi(group.name))];
    }
    return out;
}

}  // namespace kvsim
