// The request that has most time left: the latest deadline, as edf knows it.

#include "deadlines.hpp"
#include "piece.hpp"

namespace kvsim {
namespace {

class LatestDeadline final : public VictimRule {
public:
    LatestDeadline(const Deadlines::Objectives& objectives, Engine& engine) : deadlines_(objectives, engine) {}
    [[nodiscard]] std::size_t pick(const Engine& engine, std::span<const Slot> running) override {
        std::size_t worst = 0;
        for (std::size_t i = 1; i < running.size(); ++i) {
            if (deadlines_.of(engine.request(running[i])) >= deadlines_.of(engine.request(running[worst]))) worst = i;
        }
        return worst;
    }

private:
    Deadlines deadlines_;
};

}  // namespace

std::function<std::unique_ptr<VictimRule>(Engine&)> read_latest_deadline_victim(const PieceSource& source,
                                                                                config::Diagnostics& diagnostics) {
    const auto found = read_deadlines(source, diagnostics);
    if (!found) return nullptr;
    return [objectives = *found](Engine& engine) { return std::make_unique<LatestDeadline>(objectives, engine); };
}

}  // namespace kvsim
