#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kvsim/model/mixed_parts.hpp"
#include "kvsim/model/step_time.hpp"

namespace kvsim {

/// The prices of steps: each number of rows' line of decode-only steps is asked for once, and steps with chunks are put
/// together from parts where the model has them.
class DecodePrices {
public:
    struct Line : DecodeLine {
        std::int64_t upto = -1;  ///< the greatest context whose price needs no bounds; -1: there is no line, or it needs some
        /// round_step() where it only rounds.
        [[nodiscard]] SimDuration price(std::int64_t context) const {
            return SimDuration(static_cast<std::int64_t>(base_ns + per_context_ns * static_cast<double>(context) + 0.5));
        }
    };

    explicit DecodePrices(const StepTimeModel& model) : model_(model), mixed_(model.mixed_parts()) {}
    /// Valid until the next call with other rows.
    [[nodiscard]] const Line& plain_line(std::int64_t rows) {
        const auto at = static_cast<std::size_t>(rows);
        if (at >= known_ || std::isnan(lines_[at].base_ns)) ask(rows);
        return lines_[at];
    }
    /// Null: the model has no line.
    [[nodiscard]] const DecodeLine* line(std::int64_t rows) {
        const Line& found = plain_line(rows);
        return std::isinf(found.base_ns) ? nullptr : &found;
    }
    [[nodiscard, gnu::always_inline]] SimDuration price(const StepShape& shape) {
        if (!shape.chunks.empty()) {
            const double us = mixed_ ? mixed_->us(shape) : std::nan("");
            if (!std::isnan(us)) return round_step(us * 1e3);
        } else if (shape.windows.empty() && shape.sampled == shape.decode_rows) {
            if (const DecodeLine* const l = line(shape.decode_rows)) return price(*l, shape.decode_context);
        }
        const StepShape asked = shape;  // a copy, else `shape` itself would have to be in memory
        return model_.duration(asked);
    }
    /// Of `rows` decode rows alone, `context` with their new tokens.
    [[nodiscard, gnu::noinline]] SimDuration price(std::int64_t rows, std::int64_t context) {
        if (const DecodeLine* const l = line(rows)) return price(*l, context);
        StepShape shape;
        shape.tokens = shape.sequences = shape.sampled = shape.decode_rows = rows;
        shape.decode_context = context;
        return model_.duration(shape);
    }
    [[nodiscard]] static SimDuration price(const DecodeLine& line, std::int64_t context) {
        return round_step(line.base_ns + line.per_context_ns * static_cast<double>(context));
    }

private:
    [[gnu::noinline]] void ask(std::int64_t rows) {
        constexpr std::int64_t most = std::int64_t{1} << 50;  // tokens
        constexpr double longest = 1e18;                      // ns
        const auto at = static_cast<std::size_t>(rows);
        if (at >= known_) lines_.resize(std::max<std::size_t>(2 * at, 64), {{std::nan(""), 0}, -1});
        known_ = lines_.size();
        const std::optional<DecodeLine> found = model_.decode_line(rows);
        Line& line = lines_[at];
        static_cast<DecodeLine&>(line) = found.value_or(DecodeLine{HUGE_VAL, 0});
        const bool rises = line.base_ns >= 1 && line.per_context_ns >= 0;
        if (rises && line.base_ns + line.per_context_ns * static_cast<double>(most) < longest) line.upto = most;
    }
    const StepTimeModel& model_;
    const MixedParts* mixed_;
    std::vector<Line> lines_;  // base_ns NaN: not asked yet; infinite: there is none
    std::size_t known_ = 0;    // their number
};

}  // namespace kvsim
