#include "arrivals_params.hpp"

namespace kvsim {

namespace {

const config::Schema<RateParams>& schema() {
    using P = RateParams;
    static const config::Schema<P> table{process_field<P>(), rate_field<P>(), rescale_field<P>()};
    return table;
}

}  // namespace

std::vector<config::FieldDoc> poisson_arrivals_docs() {
    return schema().docs();
}

std::unique_ptr<ArrivalProcess> make_poisson_arrivals(const config::Value& params, double rate_scale, std::uint64_t seed,
                                                      config::Diagnostics& diagnostics) {
    RateParams p;
    schema().read(params, p, "arrivals", diagnostics);
    return gamma_gaps(p.rate.per_second * rate_scale, 1, p.rescale, seed);
}

}  // namespace kvsim
