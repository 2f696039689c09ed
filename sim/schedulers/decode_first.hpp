#pragma once
// Decodes first, prompts in the rest of the token budget: what Sarathi-Serve and TensorRT-LLM's in-flight batching share.

#include "style.hpp"

namespace kvsim {

class DecodeFirst : public Style {
public:
    using Style::Style;

protected:
    void plan_rows(Batch& batch) override;

private:
    void share_evenly(Batch& batch);
};

}  // namespace kvsim
