// The request believed to hold its KV longest: the most output tokens to come.

#include "victims.hpp"

namespace kvsim {
namespace {

struct Rest {
    static std::int64_t of(const LiveRequest& request) { return believed_outputs(request) - request.outputs; }
};

}  // namespace

std::function<std::unique_ptr<VictimRule>(Engine&)> read_longest_remaining_victim(const PieceSource& source,
                                                                                  config::Diagnostics& diagnostics) {
    return read_plain<VictimRule, LargestKey<Rest>>(source, diagnostics);
}

}  // namespace kvsim
