#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kvsim/model/step_time.hpp"

namespace kvsim {

/// The prices of decode-only steps by their number of rows, each line asked for once.
class DecodePrices {
public:
    explicit DecodePrices(const StepTimeModel& model) : model_(model) {}
    /// Null: the model has no line.
    [[nodiscard]] const DecodeLine* line(std::int64_t rows) {
        const auto at = static_cast<std::size_t>(rows);
        if (at >= lines_.size() || !lines_[at].asked) ask(at);
        return lines_[at].has ? &lines_[at].line : nullptr;
    }
    [[nodiscard]] SimDuration price(const StepShape& shape) {
        if (shape.chunks.empty() && shape.windows.empty() && shape.sampled == shape.decode_rows) {
            if (const DecodeLine* const l = line(shape.decode_rows)) return price(*l, shape.decode_context);
        }
        return model_.duration(shape);
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
    struct Entry {
        DecodeLine line;
        bool asked = false;
        bool has = false;
    };
    void ask(std::size_t rows) {
        if (rows >= lines_.size()) lines_.resize(std::max<std::size_t>(2 * rows, 64));
        const std::optional<DecodeLine> found = model_.decode_line(static_cast<std::int64_t>(rows));
        lines_[rows] = {found.value_or(DecodeLine{}), true, found.has_value()};
    }
    const StepTimeModel& model_;
    std::vector<Entry> lines_;
};

}  // namespace kvsim
