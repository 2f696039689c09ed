#include <cmath>

#include "arrivals_params.hpp"

namespace kvsim {

namespace {

const config::Schema<RateParams>& schema() {
    using P = RateParams;
    static const config::Schema<P> table{process_field<P>(), rate_field<P>(), rescale_field<P>()};
    return table;
}

class EvenlySpaced : public ArrivalProcess {
public:
    explicit EvenlySpaced(const ArrivalInfo& info) : ArrivalProcess(info), gap_ns_(1e9 / info.rate) {}
    [[nodiscard]] double gap_ns(std::uint64_t) const override { return gap_ns_; }

private:
    double gap_ns_;
};

}  // namespace

std::unique_ptr<ArrivalProcess> evenly_spaced(double rate, bool rescale) {
    if (std::isinf(rate)) return all_at_once();
    return std::make_unique<EvenlySpaced>(ArrivalInfo{rate, std::numeric_limits<double>::infinity(), rescale});
}

std::vector<config::FieldDoc> constant_arrivals_docs() {
    return schema().docs();
}

std::unique_ptr<ArrivalProcess> make_constant_arrivals(const config::Value& params, double rate_scale, std::uint64_t,
                                                       config::Diagnostics& diagnostics) {
    RateParams p;
    schema().read(params, p, "arrivals", diagnostics);
    return evenly_spaced(p.rate.per_second * rate_scale, p.rescale);
}

}  // namespace kvsim
