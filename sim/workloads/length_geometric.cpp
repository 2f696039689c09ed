#include "length_bounds.hpp"

namespace kvsim {

namespace {

struct GeometricParams : LengthParams {
    double mean = 0;
};

const config::Schema<GeometricParams>& schema() {
    using P = GeometricParams;
    static const config::Schema<P> table{
        distribution_field<P>(), config::field("mean", &P::mean, "mean length, at least 1", config::at_least_one).need(),
        min_field<P>(), max_field<P>()};
    return table;
}

class AlwaysOne : public LengthLaw {
public:
    [[nodiscard]] std::int64_t sample(double) const override { return 1; }
};

}  // namespace

std::vector<config::FieldDoc> geometric_length_docs() {
    return schema().docs();
}

std::unique_ptr<LengthLaw> make_geometric_length(const config::Value& params, std::string_view where,
                                                 config::Diagnostics& diagnostics) {
    GeometricParams p;
    if (!read_length_params(schema(), params, p, where, diagnostics)) return nullptr;
    if (!std::isfinite(p.mean)) {
        diagnostics.error(mark_of(params, "mean"), std::string(where) + ": mean must be finite");
        return nullptr;
    }
    if (p.mean == 1) {
        if (p.lowest() <= 1) return std::make_unique<AlwaysOne>();
        report_no_mass(params, where, diagnostics);
        return nullptr;
    }
    // P(X > k) = (1 - 1/mean)^k = exp(-k / scale).
    return make_rounded_up_exponential(-1 / std::log1p(-1 / p.mean), p, params, where, diagnostics);
}

}  // namespace kvsim
