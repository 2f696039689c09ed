#include <cmath>
#include <optional>

#include "arrivals_params.hpp"
#include "kvsim/random/stream.hpp"

namespace kvsim {

namespace {

struct WeibullParams : RateParams {
    std::optional<double> cv;
    std::optional<double> shape;
};

const config::Schema<WeibullParams>& schema() {
    using P = WeibullParams;
    static const config::Schema<P> table{
        process_field<P>(), rate_field<P>(),
        config::field("cv", &P::cv, "coefficient of variation of the gaps; 1 is Poisson", config::Range{0.02, 30}),
        config::field("shape", &P::shape, "Weibull shape of the gaps, instead of cv", config::Range{0.2, 80}),
        rescale_field<P>()};
    return table;
}

/// sqrt(Gamma(1 + 2/k) / Gamma(1 + 1/k)^2 - 1); falls with k.
double cv_of(double shape) {
    return std::sqrt(std::expm1(std::lgamma(1 + 2 / shape) - 2 * std::lgamma(1 + 1 / shape)));
}

double shape_of(double cv) {
    double low = 0.1;
    double high = 100;
    for (int i = 0; i < 100; ++i) {
        const double middle = std::sqrt(low * high);
        (cv_of(middle) > cv ? low : high) = middle;
    }
    return std::sqrt(low * high);
}

/// Gap i = scale (-ln(1 - u))^(1/k), u from stream (seed, "arrivals", i).
class WeibullGaps final : public ArrivalProcess {
public:
    WeibullGaps(const ArrivalInfo& info, double shape, std::uint64_t seed)
        : ArrivalProcess(info),
          key_(seed, "arrivals"),
          power_(1 / shape),
          scale_ns_(1e9 / (info.rate * std::exp(std::lgamma(1 + 1 / shape)))) {}
    [[nodiscard]] double gap_ns(std::uint64_t i) const override {
        return scale_ns_ * std::pow(-std::log1p(-key_.first_uniform(i)), power_);
    }

private:
    StreamKey key_;
    double power_;
    double scale_ns_;
};

}  // namespace

std::vector<config::FieldDoc> weibull_arrivals_docs() {
    return schema().docs();
}

std::unique_ptr<ArrivalProcess> make_weibull_arrivals(const config::Value& params, double rate_scale, std::uint64_t seed,
                                                      config::Diagnostics& diagnostics) {
    WeibullParams p;
    const std::size_t before = diagnostics.error_count();
    schema().read(params, p, "arrivals", diagnostics);
    if (diagnostics.error_count() != before) return nullptr;
    if (p.cv.has_value() == p.shape.has_value()) {
        diagnostics.error(params.mark, "arrivals: weibull takes either cv or shape");
        return nullptr;
    }
    const double rate = p.rate.per_second * rate_scale;
    if (std::isinf(rate)) return all_at_once();
    const double shape = p.shape ? *p.shape : shape_of(*p.cv);
    const double cv = cv_of(shape);
    // What a gamma law of the same variation would have, for reports.
    return std::make_unique<WeibullGaps>(ArrivalInfo{rate, 1 / (cv * cv), p.rescale}, shape, seed);
}

}  // namespace kvsim
