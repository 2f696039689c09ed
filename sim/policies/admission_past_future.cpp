// LightLLM's Past-Future scheduler (ASPLOS 2025): the peak of live tokens that is predicted for all that run and the head. It
// falls when somebody ends, so only the instants just before count: those with at least as much to come are still there.

#include <algorithm>
#include <utility>
#include <vector>

#include "kvsim/base/units.hpp"
#include "kvsim/engine/engine.hpp"
#include "kvsim/engine/policy.hpp"
#include "no_params.hpp"

namespace kvsim {
namespace {

class PastFutureAdmission final : public AdmissionRule {
public:
    [[nodiscard]] bool admits(const LiveRequest& head, const AdmissionView& view) const override {
        if (view.running.empty()) return true;
        std::vector<std::pair<std::int64_t, std::int64_t>> ends;  // tokens to come, tokens so far
        const auto add = [&ends](const LiveRequest& r) { ends.emplace_back(believed_outputs(r) - r.outputs, r.tokens()); };
        for (const Slot slot : view.running) add(view.engine.request(slot));
        add(head);
        std::sort(ends.begin(), ends.end(), std::greater<>());
        std::int64_t so_far = 0;
        std::int64_t count = 0;
        std::int64_t peak = 0;
        for (const auto& [to_come, tokens] : ends) {
            so_far += tokens;
            peak = std::max(peak, so_far + ++count * to_come);
        }
        const std::int64_t pool = view.free + view.kv.usable() - view.kv.free();
        return ceil_div(peak, view.engine.args().block_size) <= pool;
    }
};

}  // namespace

std::function<std::unique_ptr<AdmissionRule>(Engine&)> read_past_future_admission(const PieceSource& source,
                                                                                  config::Diagnostics& diagnostics) {
    refuse_params(source, "admission", diagnostics);
    return [](Engine&) { return std::make_unique<PastFutureAdmission>(); };
}

}  // namespace kvsim
