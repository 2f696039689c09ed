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
    explicit DecodePrices(const StepTimeModel& model) : model_(model), mixed_(model.mixed_parts()) {}
    /// Null: the model has no line.
    [[nodiscard]] const DecodeLine* line(std::int64_t rows) {
        const auto at = static_cast<std::size_t>(rows);
        return at < lines_.size() && !std::isnan(lines_[at].base_ns) ? &lines_[at] : ask(rows);
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
    [[nodiscard]] SimDuration price(std::int64_t rows, std::int64_t context) {
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
    [[gnu::noinline]] const DecodeLine* ask(std::int64_t rows) {
        const std::optional<DecodeLine> found = model_.decode_line(rows);
        if (!found) return nullptr;
        const auto at = static_cast<std::size_t>(rows);
        if (at >= lines_.size()) lines_.resize(std::max<std::size_t>(2 * at, 64), {std::nan(""), 0});
        lines_[at] = *found;
        return &lines_[at];
    }
    const StepTimeModel& model_;
    const MixedParts* mixed_;
    std::vector<DecodeLine> lines_;  // NaN: not asked yet
};

}  // namespace kvsim
