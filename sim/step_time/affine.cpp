// A step's time is affine in its tokens, its sequences and the sum of their contexts.

#include "kvsim/base/text.hpp"
#include "kvsim/model/deployment.hpp"

namespace kvsim {
namespace {

struct Affine {
    std::string model;
    config::FineDuration c0;
    config::FineDuration per_token;
    config::FineDuration per_sequence;
    config::FineDuration per_context_token;
};

const config::Schema<Affine>& schema() {
    using config::field;
    using config::non_negative;
    static const config::Schema<Affine> table{
        field("model", &Affine::model, "affine"),
        field("c0", &Affine::c0, "fixed time of a step", non_negative).by_default("0ns"),
        field("per_token", &Affine::per_token, "time per token of the step", non_negative).by_default("0ns"),
        field("per_sequence", &Affine::per_sequence, "time per sequence of the step", non_negative).by_default("0ns"),
        field("per_context_token", &Affine::per_context_token,
              "time per token of context after the step, summed over all sequences", non_negative)
            .by_default("0ns")};
    return table;
}

class AffineStep final : public StepTimeModel {
public:
    explicit AffineStep(const Affine& coefficients) : c_(coefficients) {}

    [[nodiscard]] SimDuration duration(const StepShape& shape) const override {
        std::int64_t context = shape.decode_context;
        for (const PrefillChunk& chunk : shape.chunks) context += chunk.context_before + chunk.new_tokens;
        return round_step(base(shape.tokens, shape.sequences) + c_.per_context_token.ns * static_cast<double>(context));
    }
    [[nodiscard]] std::optional<DecodeLine> decode_line(std::int64_t rows) const override {
        return DecodeLine{base(rows, rows), c_.per_context_token.ns};
    }
    [[nodiscard]] std::string describe() const override {
        return "affine: " + decimals(c_.c0.ns / 1e6, 6) + " ms + " + decimals(c_.per_token.ns / 1e3, 6) + " us/token + " +
               decimals(c_.per_sequence.ns / 1e3, 6) + " us/sequence + " + decimals(c_.per_context_token.ns / 1e3, 6) +
               " us/context token";
    }

private:
    [[nodiscard]] double base(std::int64_t tokens, std::int64_t sequences) const {
        return c_.c0.ns + c_.per_token.ns * static_cast<double>(tokens) + c_.per_sequence.ns * static_cast<double>(sequences);
    }
    Affine c_;
};

}  // namespace

std::vector<config::FieldDoc> affine_step_docs() {
    return schema().docs();
}

std::unique_ptr<StepTimeModel> make_affine_step(const Deployment&, const config::Value& params,
                                                config::Diagnostics& diagnostics) {
    const std::size_t before = diagnostics.error_count();
    Affine c;
    if (params.is_map()) {
        schema().read(params, c, "step_time", diagnostics);
    } else {
        diagnostics.error(params.mark, "step_time affine needs coefficients: {model: affine, c0: 5ms, per_token: 20us}");
    }
    if (diagnostics.error_count() != before) return nullptr;
    if (c.c0.ns + c.per_token.ns + c.per_sequence.ns + c.per_context_token.ns <= 0) {
        diagnostics.error(params.mark,
                          "step_time affine: at least one of c0, per_token, per_sequence, per_context_token must be positive");
        return nullptr;
    }
    return std::make_unique<AffineStep>(c);
}

}  // namespace kvsim
