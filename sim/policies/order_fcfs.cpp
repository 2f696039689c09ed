// First come, first served, as a piece; without parameters it is EngineArgs::scheduling_policy.

#include "kvsim/engine/engine.hpp"
#include "piece.hpp"

namespace kvsim {

std::function<std::unique_ptr<WaitingQueue>(Engine&)> read_fcfs_order(const PieceSource& source,
                                                                      config::Diagnostics& diagnostics) {
    NoParams params;
    if (!read_params(no_params(), source, params, diagnostics)) return nullptr;
    return [](Engine& engine) { return make_waiting_queue(QueueOrder::fcfs, engine.requests(), engine.args().policy.requeue); };
}

}  // namespace kvsim
