#include "kvsim/random/distribution.hpp"
#include "length_bounds.hpp"

namespace kvsim {

namespace {

struct ExponentialParams : LengthParams {
    double mean = 0;
};

const config::Schema<ExponentialParams>& schema() {
    using P = ExponentialParams;
    static const config::Schema<P> table{
        distribution_field<P>(), config::field("mean", &P::mean, "mean before rounding up, tokens", config::positive).need(),
        min_field<P>(), max_field<P>()};
    return table;
}

class RoundedUpExponential : public LengthLaw {
public:
    RoundedUpExponential(double scale, const LengthParams& bounds)
        : bounds_(bounds), scale_(scale), lower_(bounds.min ? static_cast<double>(*bounds.min - 1) : 0) {
        // By lack of memory the law above `lower` is the law itself, shifted.
        if (bounds.max) mass_ = -std::expm1((lower_ - static_cast<double>(*bounds.max)) / scale);
    }
    [[nodiscard]] std::int64_t sample(double u) const override {
        return bounds_.round_up(lower_ + exponential_quantile(u * mass_, scale_));
    }
    [[nodiscard]] std::optional<double> up_to(std::int64_t length) const override {
        if (mass_ < least_tabled_mass) return std::nullopt;
        return length >= bounds_.highest() ? 1 : -std::expm1((lower_ - static_cast<double>(length)) / scale_) / mass_;
    }

private:
    LengthParams bounds_;
    double scale_;
    double lower_;
    double mass_ = 1;
};

}  // namespace

std::unique_ptr<LengthLaw> make_rounded_up_exponential(double scale, const LengthParams& bounds, const config::Value& params,
                                                       std::string_view where, config::Diagnostics& diagnostics) {
    if (bounds.min && std::exp(-static_cast<double>(*bounds.min - 1) / scale) == 0) {
        report_no_mass(params, where, diagnostics);
        return nullptr;
    }
    return std::make_unique<RoundedUpExponential>(scale, bounds);
}

std::vector<config::FieldDoc> exponential_length_docs() {
    return schema().docs();
}

std::unique_ptr<LengthLaw> make_exponential_length(const config::Value& params, std::string_view where,
                                                   config::Diagnostics& diagnostics) {
    ExponentialParams p;
    if (!read_length_params(schema(), params, p, where, diagnostics)) return nullptr;
    if (!std::isfinite(p.mean)) {
        diagnostics.error(mark_of(params, "mean"), std::string(where) + ": mean must be finite");
        return nullptr;
    }
    return make_rounded_up_exponential(p.mean, p, params, where, diagnostics);
}

}  // namespace kvsim
