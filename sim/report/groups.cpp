#include "kvsim/report/groups.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "kvsim/report/quantile.hpp"

namespace kvsim {
namespace {

std::int64_t length_of(const RequestRecord& record) {
    return std::int64_t{record.prompt_tokens} + record.output_tokens;
}

std::string class_of(const Outcome& outcome, RequestId id) {
    return std::string(outcome.classes[id]);
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
        if (const std::string_view name = outcome.tenants[id]; !name.empty()) return std::string(name);
        return class_of(outcome, id);
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

std::vector<std::optional<RequestId>> same_requests(const Outcome& base, const Outcome& other) {
    std::vector<std::optional<RequestId>> out(base.requests.size());
    const bool in_order =
        base.attempts.empty() && other.attempts.empty() && base.classes == other.classes &&
        std::equal(base.requests.begin(), base.requests.end(), other.requests.begin(), other.requests.end(),
                   [](const RequestRecord& a, const RequestRecord& b) { return a.prompt_tokens == b.prompt_tokens; });
    if (in_order) {
        for (RequestId id = 0; id < out.size(); ++id) out[id] = id;
        return out;
    }
    using Key = std::tuple<SimTime, std::int32_t, std::string, RequestId>;
    const auto keys = [](const Outcome& outcome) {
        std::vector<Key> all;
        for (RequestId id = 0; id < outcome.requests.size(); ++id) {
            const RequestRecord& record = outcome.requests[id];
            if (outcome.attempts[id] == 0) all.emplace_back(record.arrival, record.prompt_tokens, class_of(outcome, id), id);
        }
        std::sort(all.begin(), all.end());
        return all;
    };
    const auto what = [](const Key& key) { return std::tie(std::get<0>(key), std::get<1>(key), std::get<2>(key)); };
    const std::vector<Key> ours = keys(base);
    const std::vector<Key> theirs = keys(other);
    auto match = theirs.begin();
    for (const Key& key : ours) {
        while (match != theirs.end() && what(*match) < what(key)) ++match;
        if (match == theirs.end() || what(key) < what(*match)) continue;
        out[std::get<3>(key)] = std::get<3>(*match++);
    }
    return out;
}

LengthGroups::LengthGroups(const Outcome& base) : base_(base) {
    std::vector<std::int64_t> lengths;
    for (const RequestRecord& record : base.requests) lengths.push_back(length_of(record));
    for (const double quantile : quantiles(lengths, std::vector<double>{0.5, 0.9, 0.99})) {
        const auto bound = static_cast<std::int64_t>(std::floor(quantile));
        if (bounds_.empty() || bound > bounds_.back()) bounds_.push_back(bound);
    }
    std::int64_t below = 0;
    for (const std::int64_t bound : bounds_) {
        names_.push_back((below == 0 ? std::string("up to ") : std::to_string(below + 1).append(" to "))
                             .append(std::to_string(bound))
                             .append(" tokens"));
        below = bound;
    }
    names_.push_back(std::string("over ").append(std::to_string(below)).append(" tokens"));
}

std::uint8_t LengthGroups::group_of(std::int64_t length) const {
    return static_cast<std::uint8_t>(std::lower_bound(bounds_.begin(), bounds_.end(), length) - bounds_.begin());
}

std::vector<ClassSummary> LengthGroups::summarize(const RunInfo& info, const Outcome& outcome) const {
    // The same run with its groups for classes; a digit in front keeps them in order.
    Outcome grouped = outcome;
    RunInfo plain = info;
    plain.class_slos.clear();
    grouped.classes = {};
    std::vector<std::int64_t> lengths;
    for (const RequestRecord& record : outcome.requests) lengths.push_back(length_of(record));
    const std::vector<std::optional<RequestId>> same = same_requests(base_, outcome);
    for (RequestId id = 0; id < same.size(); ++id) {
        if (same[id]) lengths[*same[id]] = length_of(base_.requests[id]);
    }
    for (RequestId id = 0; id < lengths.size(); ++id) {
        grouped.classes.set(id, std::to_string(group_of(lengths[id])), lengths.size());
    }
    std::vector<ClassSummary> out = kvsim::summarize(plain, grouped).classes;
    for (ClassSummary& group : out) {
        if (!group.name.empty()) group.name = names_[static_cast<std::size_t>(std::stoi(group.name))];
    }
    return out;
}

}  // namespace kvsim
