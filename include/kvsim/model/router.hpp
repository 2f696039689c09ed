#pragma once
// Which replica an arriving request goes to.

#include <cstdint>
#include <span>

#include "kvsim/model/workload.hpp"

namespace kvsim {

/// What a router may look at, one per replica.
struct ReplicaLoad {
    std::int64_t requests = 0;  ///< waiting and running
    std::int64_t tokens = 0;    ///< prompt and output tokens still to compute
};

class Router {
public:
    virtual ~Router() = default;
    /// The replica's index, in [0, loads.size()). Called once per arrival, in arrival order.
    virtual std::size_t pick(const Arrival& arrival, std::span<const ReplicaLoad> loads) = 0;
};

}  // namespace kvsim
