// Earliest deadline first, and least slack: the deadline less what is still to be generated until then.

#include "deadlines.hpp"
#include "keyed_queue.hpp"
#include "piece.hpp"

namespace kvsim {
namespace {

class DeadlineQueue final : public KeyedQueue {
public:
    DeadlineQueue(Engine& engine, const Deadlines::Objectives& objectives, bool slack)
        : KeyedQueue(engine), deadlines_(objectives, engine), slack_(slack) {}

private:
    [[nodiscard]] Int128 key(const LiveRequest& request) const override {
        Int128 at = deadlines_.of(request).time_since_epoch().count();
        if (slack_ && deadlines_.of_last(request)) {
            const std::optional<SimDuration> tpot = deadlines_.slo_of(request).tpot;
            const std::int64_t to_come = believed_outputs(request) - request.outputs;
            if (tpot) at -= static_cast<Int128>(to_come) * tpot->count();
        }
        return at;
    }
    Deadlines deadlines_;
    bool slack_;
};

std::function<std::unique_ptr<WaitingQueue>(Engine&)> make(const Deadlines::Objectives& objectives, bool slack) {
    return [objectives, slack](Engine& engine) { return std::make_unique<DeadlineQueue>(engine, objectives, slack); };
}

}  // namespace

std::function<std::unique_ptr<WaitingQueue>(Engine&)> read_edf_order(const PieceSource& source,
                                                                     config::Diagnostics& diagnostics) {
    const auto objectives = read_deadlines(source, diagnostics);
    return objectives ? make(*objectives, false) : nullptr;
}

std::function<std::unique_ptr<WaitingQueue>(Engine&)> read_slo_slack_order(const PieceSource& source,
                                                                           config::Diagnostics& diagnostics) {
    NoParams params;
    if (!read_params(no_params(), source, params, diagnostics)) return nullptr;
    const Deadlines::Objectives objectives = Deadlines::objectives(source.scenario);
    if (!objectives.any([](const config::SloConfig& slo) { return slo.e2e && slo.tpot; }))
        return refuse(source,
                      "slack is the time to slo.e2e less the outputs to come at slo.tpot; the scenario, or a class, needs both "
                      "(scheduling_policy edf goes by the deadline alone)",
                      diagnostics);
    return make(objectives, true);
}

}  // namespace kvsim
