// Shortest remaining processing time first, preemptive. What remains are the tokens still to compute: all of them for a request
// that would be recomputed.

#include "keyed_queue.hpp"
#include "piece.hpp"

namespace kvsim {
namespace {

class SrptQueue final : public KeyedQueue {
public:
    using KeyedQueue::KeyedQueue;
    [[nodiscard]] bool displaces(Slot waiting, Slot running) const override {
        return key(engine_.request(waiting)) < key(engine_.request(running));
    }
    [[nodiscard]] bool follows_steps() const override { return true; }

private:
    [[nodiscard]] Int128 key(const LiveRequest& request) const override { return believed_final(request) - request.computed; }
};

}  // namespace

std::function<std::unique_ptr<WaitingQueue>(Engine&)> read_srpt_order(const PieceSource& source,
                                                                      config::Diagnostics& diagnostics) {
    return read_plain<WaitingQueue, SrptQueue>(source, diagnostics);
}

}  // namespace kvsim
