// Replicas take turns.

#include "kvsim/model/pieces.hpp"

namespace kvsim {
namespace {

struct Policy {
    std::string policy;
};

const config::Schema<Policy>& schema() {
    static const config::Schema<Policy> table{config::field("policy", &Policy::policy, "round_robin")};
    return table;
}

class RoundRobin final : public Router {
public:
    std::size_t pick(const Arrival&, std::span<const ReplicaLoad> loads) override { return next_++ % loads.size(); }

private:
    std::size_t next_ = 0;
};

}  // namespace

std::vector<config::FieldDoc> round_robin_docs() {
    return schema().docs();
}

std::unique_ptr<Router> make_round_robin(const config::Value& params, std::uint64_t, config::Diagnostics& diagnostics) {
    Policy policy;
    if (params.is_map()) schema().read(params, policy, "router", diagnostics);
    return std::make_unique<RoundRobin>();
}

}  // namespace kvsim
