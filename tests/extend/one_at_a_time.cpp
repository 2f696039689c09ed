// A policy of somebody's own: a request starts when nobody runs.

#include "kvsim/engine/policy.hpp"
#include "kvsim/model/policy_args.hpp"

namespace kvsim {
namespace {

class OneAtATime final : public AdmissionRule {
public:
    [[nodiscard]] bool admits(const LiveRequest& /*head*/, const AdmissionView& view) const override {
        return view.running.empty();
    }
};

}  // namespace

std::function<std::unique_ptr<AdmissionRule>(Engine&)> read_one_at_a_time(const PieceSource& /*source*/,
                                                                          config::Diagnostics& /*diagnostics*/) {
    return [](Engine&) { return std::make_unique<OneAtATime>(); };
}

}  // namespace kvsim
