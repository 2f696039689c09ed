// The replica with the fewest requests, the lowest index among equals.

#include <algorithm>

#include "kvsim/model/pieces.hpp"

namespace kvsim {
namespace {

struct Policy {
    std::string policy;
};

const config::Schema<Policy>& schema() {
    static const config::Schema<Policy> table{config::field("policy", &Policy::policy, "least_requests")};
    return table;
}

class LeastRequests final : public Router {
public:
    std::size_t pick(const Arrival&, std::span<const ReplicaLoad> loads) override {
        const auto least = std::min_element(loads.begin(), loads.end(),
                                            [](const ReplicaLoad& a, const ReplicaLoad& b) { return a.requests < b.requests; });
        return static_cast<std::size_t>(least - loads.begin());
    }
};

}  // namespace

std::vector<config::FieldDoc> least_requests_docs() {
    return schema().docs();
}

std::unique_ptr<Router> make_least_requests(const config::Value& params, std::uint64_t, config::Diagnostics& diagnostics) {
    Policy policy;
    if (params.is_map()) schema().read(params, policy, "router", diagnostics);
    return std::make_unique<LeastRequests>();
}

}  // namespace kvsim
