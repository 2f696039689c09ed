#pragma once
// Where the step-time model is known to be wrong, from comparisons with measured runs (docs/accuracy.md).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvsim {

/// The figures of one run that the limits look at. 0 = not known.
struct AccuracyCase {
    std::string model, gpu, dtype;
    bool moe = false;
    double batch = 0;    ///< rows per step, mean
    double context = 0;  ///< tokens per row, mean
    double load = 0;     ///< requests in the system over seats, or offered rate over capacity
    double queue_share_of_ttft = 0;
    std::optional<std::int64_t> concurrency;
};

/// One sentence for each that applies; empty: none is known.
std::vector<std::string> accuracy_limits(const AccuracyCase& run);

}  // namespace kvsim
