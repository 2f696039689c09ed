// Room for the first step, which the style has asked for, is enough.

#include "kvsim/engine/policy.hpp"
#include "no_params.hpp"

namespace kvsim {
namespace {

class Optimistic final : public AdmissionRule {
public:
    [[nodiscard]] bool admits(const LiveRequest& /*head*/, const AdmissionView& /*view*/) const override { return true; }
    [[nodiscard]] bool stays_shut() const override { return true; }
};

}  // namespace

std::function<std::unique_ptr<AdmissionRule>(Engine&)> read_optimistic_admission(const PieceSource& source,
                                                                                 config::Diagnostics& diagnostics) {
    refuse_params(source, "admission", diagnostics);
    return [](Engine&) { return std::make_unique<Optimistic>(); };
}

}  // namespace kvsim
