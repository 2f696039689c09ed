#pragma once
// A batch policy: once per step it fills the batch with rows, admitting and preempting on the way.

#include <memory>

#include "kvsim/engine/batch.hpp"

namespace kvsim {

class Engine;

class Scheduler {
public:
    virtual ~Scheduler() = default;
    /// Decides one step by calling the engine's verbs (admit, extend, preempt); leaves rows, preempted and bound in `batch`.
    virtual void plan(Engine& engine, Batch& batch) = 0;
};

std::unique_ptr<Scheduler> make_vllm_v1_scheduler();

}  // namespace kvsim
