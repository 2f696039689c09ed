// The request that loses least: its recompute is the smallest.

#include "victims.hpp"

namespace kvsim {
namespace {

struct Loss {
    static std::int64_t of(const LiveRequest& request) { return -request.computed; }
};

}  // namespace

std::function<std::unique_ptr<VictimRule>(Engine&)> read_least_progress_victim(const PieceSource& source,
                                                                               config::Diagnostics& diagnostics) {
    return read_plain<VictimRule, LargestKey<Loss>>(source, diagnostics);
}

}  // namespace kvsim
