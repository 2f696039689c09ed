// TensorRT-LLM's MAX_UTILIZATION: whoever has room for the step starts; the last started is paused, and starts again.

#include "decode_first.hpp"

namespace kvsim {
std::unique_ptr<Scheduler> make_max_utilization_batching(Engine& engine) {
    return std::make_unique<DecodeFirst>(engine);
}

}  // namespace kvsim
