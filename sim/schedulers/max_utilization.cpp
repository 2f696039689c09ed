// TensorRT-LLM's MAX_UTILIZATION: who starts may be paused, the last started first, and starts again.

#include "decode_first.hpp"

namespace kvsim {
namespace {

class MaxUtilization final : public DecodeFirst {
public:
    using DecodeFirst::DecodeFirst;

private:
    [[nodiscard]] bool style_admits(const LiveRequest& /*head*/, const AdmissionView& view) const override {
        return view.need.whole <= view.free;
    }
};

}  // namespace

std::unique_ptr<Scheduler> make_max_utilization_batching(Engine& engine) {
    return std::make_unique<MaxUtilization>(engine);
}

}  // namespace kvsim
