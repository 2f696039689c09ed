// Priority as vLLM has it, or with aging.

#include "keyed_queue.hpp"
#include "piece.hpp"

namespace kvsim {
namespace {

struct Params {
    std::string policy;
    std::optional<SimDuration> aging;
};

const config::Schema<Params>& schema() {
    static const config::Schema<Params> table{
        config::field("policy", &Params::policy, "priority"),
        config::field("aging", &Params::aging, "a request gains one level for so long since it arrived (default: never)",
                      config::positive)};
    return table;
}

/// priority - (now - arrival) / aging orders any two requests as priority x aging + arrival does, at every instant.
class AgedPriority final : public KeyedQueue {
public:
    AgedPriority(Engine& engine, SimDuration aging) : KeyedQueue(engine), aging_(aging) {}

private:
    [[nodiscard]] Int128 key(const LiveRequest& request) const override {
        return static_cast<Int128>(request.priority) * aging_.count() + request.arrival.time_since_epoch().count();
    }
    SimDuration aging_;
};

}  // namespace

std::vector<config::FieldDoc> priority_order_docs() {
    return schema().docs();
}

std::function<std::unique_ptr<WaitingQueue>(Engine&)> read_priority_order(const PieceSource& source,
                                                                          config::Diagnostics& diagnostics) {
    Params p;
    if (!read_params(schema(), source, p, diagnostics)) return nullptr;
    if (!p.aging)
        return [](Engine& engine) {
            return make_waiting_queue(QueueOrder::priority, engine.requests(), PolicyArgs::Requeue::front);
        };
    return [aging = *p.aging](Engine& engine) { return std::make_unique<AgedPriority>(engine, aging); };
}

}  // namespace kvsim
