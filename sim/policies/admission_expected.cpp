// Room for what the head and all that run are believed to hold at their ends.

#include "kvsim/engine/policy.hpp"
#include "no_params.hpp"

namespace kvsim {
namespace {

class Expected final : public AdmissionRule {
public:
    [[nodiscard]] bool admits(const LiveRequest& head, const AdmissionView& view) const override {
        return view.running.empty() || view.lacking(head, believed_final) <= view.free;
    }
    /// What runs lacks as much less as it takes; or more, when it outgrows the belief.
    [[nodiscard]] bool stays_shut() const override { return true; }
};

}  // namespace

std::function<std::unique_ptr<AdmissionRule>(Engine&)> read_expected_admission(const PieceSource& source,
                                                                               config::Diagnostics& diagnostics) {
    refuse_params(source, "admission", diagnostics);
    return [](Engine&) { return std::make_unique<Expected>(); };
}

}  // namespace kvsim
