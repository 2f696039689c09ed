// A draw per request: the order that knows nothing, as a yardstick.

#include "keyed_queue.hpp"
#include "kvsim/random/stream.hpp"
#include "piece.hpp"

namespace kvsim {
namespace {

class RandomQueue final : public KeyedQueue {
public:
    explicit RandomQueue(Engine& engine) : KeyedQueue(engine), draws_(engine.args().seed, "scheduling_policy") {}

private:
    [[nodiscard]] Int128 key(const LiveRequest& request) const override {
        return static_cast<Int128>(draws_.first_u64(request.id));
    }
    StreamKey draws_;
};

}  // namespace

std::function<std::unique_ptr<WaitingQueue>(Engine&)> read_random_order(const PieceSource& source,
                                                                        config::Diagnostics& diagnostics) {
    return read_plain<WaitingQueue, RandomQueue>(source, diagnostics);
}

}  // namespace kvsim
