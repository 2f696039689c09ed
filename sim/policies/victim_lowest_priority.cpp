// The least urgent request: the largest priority number, of equal ones the latest arrival.

#include "victims.hpp"

namespace kvsim {
namespace {

struct Urgency {
    static std::pair<std::int64_t, std::int64_t> of(const LiveRequest& request) {
        return {request.priority, request.arrival_rank};
    }
};

}  // namespace

std::function<std::unique_ptr<VictimRule>(Engine&)> read_lowest_priority_victim(const PieceSource& source,
                                                                                config::Diagnostics& diagnostics) {
    return read_plain<VictimRule, LargestKey<Urgency>>(source, diagnostics);
}

}  // namespace kvsim
