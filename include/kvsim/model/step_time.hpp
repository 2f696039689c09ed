#pragma once
// How long one engine step takes. A model sees a few sums over the batch, never its requests.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvsim/base/units.hpp"

namespace kvsim {

/// A row with two or more new tokens: a prompt chunk (or the recompute of a preempted request).
struct PrefillChunk {
    std::int64_t new_tokens;      ///< >= 2
    std::int64_t context_before;  ///< tokens already computed, cached ones included
};

/// What the decode rows attend to in layers that see only part of a context.
struct WindowContext {
    std::int64_t window = 0;   ///< tokens
    bool chunked = false;      ///< the current chunk of `window` tokens instead of the last `window`
    std::int64_t context = 0;  ///< sum over decode rows, the new token included

    /// What a token attends to, of `whole` tokens up to and including itself.
    [[nodiscard]] std::int64_t attended(std::int64_t whole) const {
        return chunked ? (whole - 1) % window + 1 : whole < window ? whole : window;
    }
};

/// What a step's price may depend on. A row with one new token is a decode row, even if it is a prompt's last token.
struct StepShape {
    std::int64_t tokens = 0;     ///< all tokens of the step: decode_rows + sum of the chunks' new tokens
    std::int64_t sequences = 0;  ///< rows: decode_rows + chunks.size()
    std::int64_t sampled = 0;    ///< rows that yield a token
    std::int64_t decode_rows = 0;
    std::int64_t decode_context = 0;  ///< sum over decode rows of the context including the new token
    std::span<const PrefillChunk> chunks = {};
    std::span<const WindowContext> windows = {};  ///< one for each window of EngineArgs::kv_groups; may be empty
    std::int64_t shortest_context = 0;            ///< of the decode rows; only for models that ask (needs_context_range)
    std::int64_t longest_context = 0;
};

/// For a fixed number of decode rows a decode-only step is linear in the context sum: round(base_ns + per_context_ns * sum).
struct DecodeLine {
    double base_ns = 0;
    double per_context_ns = 0;
};

/// double nanoseconds -> SimDuration: rounded half up once, never below 1 ns. Every model ends with this, so that the jump
/// over several decode steps and the step-by-step form agree to the bit.
inline SimDuration round_step(double ns) {
    constexpr double longest = 4611686018427387904.0;  // 2^62: the cap keeps the conversion defined
    if (!(ns < longest)) return end_of_time.time_since_epoch();
    return SimDuration(ns < 1 ? 1 : static_cast<std::int64_t>(ns + 0.5));
}

struct MixedParts;

class StepTimeModel {
public:
    virtual ~StepTimeModel() = default;
    /// Duration of a step with shape.sequences >= 1. Deterministic; at least 1 ns.
    [[nodiscard]] virtual SimDuration duration(const StepShape& shape) const = 0;
    /// The line for decode-only steps with `rows` rows (all sampled), if this model has one; then
    /// duration(decode-only shape) == round_step(line.base_ns + line.per_context_ns * decode_context) exactly.
    [[nodiscard]] virtual std::optional<DecodeLine> decode_line(std::int64_t rows) const {
        static_cast<void>(rows);
        return std::nullopt;
    }
    /// What prices of steps with chunks are put together from, if this model has such parts; as long-lived as the model.
    [[nodiscard]] virtual const MixedParts* mixed_parts() const { return nullptr; }
    /// Whether the price depends on shortest_context and longest_context; the per-request engine then keeps them.
    [[nodiscard]] virtual bool needs_context_range() const { return false; }
    /// One line for the output: tier, source of the constants, expected error.
    [[nodiscard]] virtual std::string describe() const = 0;
    /// What the steps priced so far asked for beyond its measurements, a sentence each.
    [[nodiscard]] virtual std::vector<std::string> notes() const { return {}; }
    /// Front-end time between arrival and the waiting queue when the scenario sets none.
    [[nodiscard]] virtual SimDuration default_api() const { return SimDuration::zero(); }
};

}  // namespace kvsim
