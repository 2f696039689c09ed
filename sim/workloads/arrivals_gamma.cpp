#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "arrivals_params.hpp"
#include "kvsim/random/distribution.hpp"
#include "kvsim/random/draw_buffer.hpp"

namespace kvsim {

/// A number, or `inf`. Below 0.001 (gaps that vary 30 times more than their mean) the powers of the draw leave the doubles.
struct Burstiness {
    static constexpr std::string_view type_name = "number";
    double shape = 1;
};

static bool decode(const config::Value& value, Burstiness& out, std::string_view key, const config::Range& range,
                   config::Diagnostics& diagnostics) {
    if (value.is_scalar() && !value.quoted && (value.scalar == "inf" || value.scalar == ".inf")) {
        out.shape = std::numeric_limits<double>::infinity();
        return true;
    }
    return config::decode(value, out.shape, key, range, diagnostics);
}

namespace {

struct GammaParams : RateParams {
    std::optional<Burstiness> burstiness;
    std::optional<double> cv;
};

const config::Schema<GammaParams>& schema() {
    using P = GammaParams;
    static const config::Schema<P> table{
        process_field<P>(), rate_field<P>(),
        config::field("burstiness", &P::burstiness,
                      "gamma shape of the gaps: below 1 bursty, 1 Poisson, above 1 smoother, inf constant", {1e-3})
            .by_default("1"),
        config::field("cv", &P::cv, "coefficient of variation of the gaps instead: burstiness = 1 / cv^2; 0 constant",
                      config::Range{0, 30}),
        rescale_field<P>()};
    return table;
}

class GammaGaps : public ArrivalProcess {
public:
    GammaGaps(const ArrivalInfo& info, std::uint64_t seed)
        : ArrivalProcess(info), key_(seed, "arrivals"), draws_(key_), scale_ns_(1e9 / (info.rate * info.burstiness)) {}
    [[nodiscard]] double gap_ns(std::uint64_t i) const override {
        if (info().burstiness == 1) return scale_ns_ * standard_exponential(draws_.first_u64(i));
        Stream stream(key_, i);
        return scale_ns_ * gamma_draw(stream, info().burstiness);
    }
    void gaps_ns(std::uint64_t i, std::span<double> out) const override {
        if (info().burstiness != 1) return ArrivalProcess::gaps_ns(i, out);
        for (std::size_t done = 0; done < out.size(); done += batch) {
            std::array<std::uint64_t, batch> bits;
            const std::size_t n = std::min(batch, out.size() - done);
            first_draws(key_, i + done, bits);
            standard_exponentials(std::span(bits).first(n), out.subspan(done, n));
        }
        const double scale_ns = scale_ns_;  // not one of `out`, which the compiler cannot know
        for (double& gap : out) gap *= scale_ns;
    }

private:
    static constexpr std::size_t batch = 64;
    StreamKey key_;
    mutable DrawBuffer draws_;
    double scale_ns_;
};

}  // namespace

std::unique_ptr<ArrivalProcess> gamma_gaps(double rate, double burstiness, bool rescale, std::uint64_t seed) {
    if (std::isinf(rate)) return all_at_once();
    if (std::isinf(burstiness)) return evenly_spaced(rate, rescale);
    return std::make_unique<GammaGaps>(ArrivalInfo{rate, burstiness, rescale}, seed);
}

std::vector<config::FieldDoc> gamma_arrivals_docs() {
    return schema().docs();
}

std::unique_ptr<ArrivalProcess> make_gamma_arrivals(const config::Value& params, double rate_scale, std::uint64_t seed,
                                                    config::Diagnostics& diagnostics) {
    GammaParams p;
    schema().read(params, p, "arrivals", diagnostics);
    if (p.cv && p.burstiness) diagnostics.error(params.find("cv")->mark, "arrivals: cv and burstiness say the same; keep one");
    const double shape = p.cv ? 1 / (*p.cv * *p.cv) : p.burstiness.value_or(Burstiness{}).shape;
    return gamma_gaps(p.rate.per_second * rate_scale, shape, p.rescale, seed);
}

}  // namespace kvsim
