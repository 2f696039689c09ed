// Room for all its tokens: vLLM's scheduler_reserve_full_isl.

#include "kvsim/engine/policy.hpp"
#include "no_params.hpp"

namespace kvsim {
namespace {

class FullInput final : public AdmissionRule {
public:
    [[nodiscard]] bool admits(const LiveRequest& /*head*/, const AdmissionView& view) const override {
        return view.need.whole <= view.free;
    }
    [[nodiscard]] bool stays_shut() const override { return true; }
};

}  // namespace

std::function<std::unique_ptr<AdmissionRule>(Engine&)> read_full_input_admission(const PieceSource& source,
                                                                                 config::Diagnostics& diagnostics) {
    refuse_params(source, "admission", diagnostics);
    return [](Engine&) { return std::make_unique<FullInput>(); };
}

}  // namespace kvsim
