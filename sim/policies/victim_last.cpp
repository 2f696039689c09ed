// The last admitted, as vLLM has it: first come, first served among those that run.

#include "kvsim/engine/engine.hpp"
#include "piece.hpp"

namespace kvsim {
namespace {

class LastAdmitted final : public VictimRule {
public:
    explicit LastAdmitted(Engine& /*engine*/) {}
    [[nodiscard]] std::size_t pick(const Engine& /*engine*/, std::span<const Slot> running) override {
        return running.size() - 1;
    }
};

}  // namespace

std::function<std::unique_ptr<VictimRule>(Engine&)> read_last_victim(const PieceSource& source,
                                                                     config::Diagnostics& diagnostics) {
    return read_plain<VictimRule, LastAdmitted>(source, diagnostics);
}

}  // namespace kvsim
