#include "pipeline.hpp"

#include <algorithm>
#include <vector>

namespace kvsim {
namespace {

class PipelineStep final : public StepTimeModel {
public:
    PipelineStep(std::unique_ptr<StepTimeModel> whole, std::int64_t stages, double hop_ns, double hop_ns_per_token)
        : whole_(std::move(whole)), stages_(stages), hop_ns_(hop_ns), hop_ns_per_token_(hop_ns_per_token) {}

    [[nodiscard]] SimDuration duration(const StepShape& shape) const override {
        if (shape.chunks.empty() && shape.sampled == shape.decode_rows) {
            if (const auto line = decode_line(shape.decode_rows)) {
                return round_step(line->base_ns + line->per_context_ns * static_cast<double>(shape.decode_context));
            }
        }
        // Chunks are dealt out one by one, decode rows evenly.
        const std::int64_t batches = std::min(stages_, shape.sequences);
        double sum = 0;
        double heaviest = 0;
        std::int64_t most_tokens = 0;
        std::vector<PrefillChunk> own;
        for (std::int64_t b = 0; b < batches; ++b) {
            own.clear();
            StepShape part;
            for (std::size_t i = static_cast<std::size_t>(b); i < shape.chunks.size(); i += static_cast<std::size_t>(batches)) {
                own.push_back(shape.chunks[i]);
                part.tokens += shape.chunks[i].new_tokens;
            }
            part.decode_rows = share(shape.decode_rows, b, batches);
            part.decode_context = share(shape.decode_context, b, batches);
            if (part.decode_rows == 0) part.decode_context = 0;
            part.sampled = share(shape.sampled, b, batches);
            part.tokens += part.decode_rows;
            part.sequences = part.decode_rows + static_cast<std::int64_t>(own.size());
            part.chunks = own;
            if (part.sequences == 0) continue;
            const auto ns = static_cast<double>(whole_->duration(part).count());
            sum += ns;
            heaviest = std::max(heaviest, ns);
            most_tokens = std::max(most_tokens, part.tokens);
        }
        return round_step(std::max(heaviest, sum / static_cast<double>(stages_)) + hops(most_tokens));
    }
    [[nodiscard]] std::optional<DecodeLine> decode_line(std::int64_t rows) const override {
        const std::int64_t batches = std::min(stages_, rows);
        const std::int64_t own = ceil_div(rows, batches);
        const auto line = whole_->decode_line(own);
        if (!line) return std::nullopt;
        return DecodeLine{line->base_ns + hops(own), line->per_context_ns / static_cast<double>(batches)};
    }
    [[nodiscard]] std::string describe() const override {
        return whole_->describe() + ", filled with as many micro-batches as there are stages; derived, not fitted";
    }
    [[nodiscard]] std::vector<std::string> notes() const override { return whole_->notes(); }
    [[nodiscard]] SimDuration default_api() const override { return whole_->default_api(); }

private:
    static std::int64_t share(std::int64_t count, std::int64_t index, std::int64_t parts) {
        return count / parts + (index < count % parts ? 1 : 0);
    }
    [[nodiscard]] double hops(std::int64_t tokens) const {
        return static_cast<double>(stages_ - 1) * (hop_ns_ + hop_ns_per_token_ * static_cast<double>(tokens));
    }
    std::unique_ptr<StepTimeModel> whole_;
    std::int64_t stages_;
    double hop_ns_;
    double hop_ns_per_token_;
};

}  // namespace

std::unique_ptr<StepTimeModel> make_pipeline(std::unique_ptr<StepTimeModel> whole, std::int64_t stages, double hop_ns,
                                             double hop_ns_per_token) {
    return std::make_unique<PipelineStep>(std::move(whole), stages, hop_ns, hop_ns_per_token);
}

}  // namespace kvsim
