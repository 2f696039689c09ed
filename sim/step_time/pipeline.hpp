#pragma once
// Pipeline parallelism: the engine keeps as many batches in flight as there are stages, each with requests of its own. In the
// time of one step every row advances once: max(the heaviest micro-batch through all stages, the sum of all micro-batches
// through one stage); the difference is the bubble (a single long prompt leaves the other stages idle). Stages are equal.

#include <memory>

#include "kvsim/model/step_time.hpp"

namespace kvsim {

/// `whole`: a step through all stages one after another. Between stages: hop_ns + hop_ns_per_token per token.
std::unique_ptr<StepTimeModel> make_pipeline(std::unique_ptr<StepTimeModel> whole, std::int64_t stages, double hop_ns,
                                             double hop_ns_per_token);

}  // namespace kvsim
