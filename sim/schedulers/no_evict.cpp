// TensorRT-LLM's GUARANTEED_NO_EVICT: who starts can finish.

#include <algorithm>

#include "decode_first.hpp"

namespace kvsim {
namespace {

class NoEvict final : public DecodeFirst {
public:
    using DecodeFirst::DecodeFirst;

private:
    [[nodiscard]] bool may_displace() const override { return false; }
    [[nodiscard]] bool style_admits(const LiveRequest& head, const AdmissionView& view) const override {
        return view.lacking(head, [this](const LiveRequest& r) { return args_.longest_final(r.prompt, r.max_tokens); }) <=
               view.free;
    }
};

}  // namespace

std::unique_ptr<Scheduler> make_no_evict_batching(Engine& engine) {
    return std::make_unique<NoEvict>(engine);
}

}  // namespace kvsim
