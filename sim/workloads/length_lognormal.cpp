#include "kvsim/random/distribution.hpp"
#include "length_bounds.hpp"

namespace kvsim {

namespace {

struct LognormalParams : LengthParams {
    std::optional<double> p50, p90, mean, sd, mu, sigma;
};

const config::Schema<LognormalParams>& schema() {
    using P = LognormalParams;
    static const config::Schema<P> table{
        distribution_field<P>(),
        config::field("p50", &P::p50, "median, with p90", config::positive),
        config::field("p90", &P::p90, "90th percentile, with p50", config::positive),
        config::field("mean", &P::mean, "mean length, with sd", config::positive),
        config::field("sd", &P::sd, "standard deviation of the length, with mean", config::non_negative),
        config::field("mu", &P::mu, "mean of ln(length), with sigma"),
        config::field("sigma", &P::sigma, "standard deviation of ln(length), with mu", config::non_negative),
        min_field<P>(),
        max_field<P>()};
    return table;
}

/// z -> exp(mu + sigma z) with z conditioned. Probabilities are kept in the tail where they are small, so that bounds far
/// above the median lose no precision: z = sign * quantile(from + u * width).
class Lognormal : public LengthLaw {
public:
    Lognormal(const LengthParams& bounds, double mu, double sigma) : bounds_(bounds), mu_(mu), sigma_(sigma) {
        const double inf = std::numeric_limits<double>::infinity();
        const double lower = bounds.min ? standardise(static_cast<double>(*bounds.min) - 0.5) : -inf;
        const double upper = bounds.max ? standardise(static_cast<double>(*bounds.max) + 0.5) : inf;
        sign_ = lower > 0 ? -1 : 1;
        from_ = normal_cdf(sign_ * lower);
        width_ = normal_cdf(sign_ * upper) - from_;
    }
    [[nodiscard]] bool possible() const { return width_ != 0; }
    [[nodiscard]] std::int64_t sample(double u) const override {
        const double z = sign_ * normal_quantile(from_ + u * width_);
        // A law without spread is exp(mu) even where z is infinite.
        return bounds_.round_half_up(sigma_ > 0 ? std::exp(mu_ + sigma_ * z) : std::exp(mu_));
    }
    [[nodiscard]] std::optional<double> up_to(std::int64_t length) const override {
        if (sigma_ <= 0 || std::abs(width_) < least_tabled_mass) return std::nullopt;
        if (length >= bounds_.highest()) return 1;
        return (normal_cdf(sign_ * standardise(static_cast<double>(length) + 0.5)) - from_) / width_;
    }

private:
    [[nodiscard]] double standardise(double x) const {
        if (sigma_ > 0) return (std::log(x) - mu_) / sigma_;
        const double inf = std::numeric_limits<double>::infinity();
        return std::exp(mu_) < x ? inf : -inf;
    }
    LengthParams bounds_;
    double mu_;
    double sigma_;
    double sign_ = 1;
    double from_ = 0;
    double width_ = 1;
};

}  // namespace

std::vector<config::FieldDoc> lognormal_length_docs() {
    return schema().docs();
}

std::unique_ptr<LengthLaw> make_lognormal_length(const config::Value& params, std::string_view where,
                                                 config::Diagnostics& diagnostics) {
    LognormalParams p;
    if (!read_length_params(schema(), params, p, where, diagnostics)) return nullptr;
    const auto refuse = [&](std::string_view key, const std::string& message) {
        diagnostics.error(mark_of(params, key), std::string(where) + ": " + message);
        return nullptr;
    };
    struct Pair {
        std::string_view a, b;
        std::optional<double> first, second;
    };
    const Pair pairs[] = {{"p50", "p90", p.p50, p.p90}, {"mean", "sd", p.mean, p.sd}, {"mu", "sigma", p.mu, p.sigma}};
    const Pair* given = nullptr;
    for (const Pair& pair : pairs) {
        if (!pair.first && !pair.second) continue;
        const std::string_view present = pair.first ? pair.a : pair.b;
        if (given)
            return refuse(present, "lognormal takes one pair of p50 + p90, mean + sd, mu + sigma; '" + std::string(present) +
                                       "' does not go with '" + std::string(given->first ? given->a : given->b) + "'");
        if (!pair.first || !pair.second)
            return refuse(present, "lognormal with '" + std::string(present) + "' also needs '" +
                                       std::string(pair.first ? pair.b : pair.a) + "'");
        given = &pair;
    }
    if (!given) return refuse("distribution", "lognormal needs p50 + p90, mean + sd, or mu + sigma");

    constexpr double z90 = 1.2815515655446004;  // normal_quantile(0.9)
    double mu = 0;
    double sigma = 0;
    if (p.p50) {
        if (*p.p90 < *p.p50) return refuse("p90", "p90 is below p50");
        mu = std::log(*p.p50);
        sigma = (std::log(*p.p90) - mu) / z90;
    } else if (p.mean) {
        const double cv = *p.sd / *p.mean;
        const double variance = std::log1p(cv * cv);
        mu = std::log(*p.mean) - variance / 2;
        sigma = std::sqrt(variance);
    } else {
        mu = *p.mu;
        sigma = *p.sigma;
    }
    if (!std::isfinite(mu) || !std::isfinite(sigma)) return refuse(given->a, "the parameters must be finite");
    auto law = std::make_unique<Lognormal>(p, mu, sigma);
    if (!law->possible()) {
        report_no_mass(params, where, diagnostics);
        return nullptr;
    }
    return law;
}

}  // namespace kvsim
