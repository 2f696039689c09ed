// The true number with multiplicative lognormal noise: stream (seed, "length_predictor", request id).

#include <cmath>

#include "kvsim/engine/engine.hpp"
#include "kvsim/random/distribution.hpp"
#include "kvsim/random/stream.hpp"
#include "piece.hpp"

namespace kvsim {
namespace {

struct Params {
    std::string policy;
    double sd = 0;
};

const config::Schema<Params>& schema() {
    static const config::Schema<Params> table{
        config::field("policy", &Params::policy, "noisy"),
        config::field("sd", &Params::sd, "standard deviation of ln(prediction / truth)", config::Range{0, 10}).need()};
    return table;
}

class NoisyPredictor final : public LengthPredictor {
public:
    NoisyPredictor(Engine& engine, double sd) : draws_(engine.args().seed, "length_predictor"), sd_(sd) {}
    [[nodiscard]] std::int64_t predict(const LiveRequest& request) override {
        constexpr double most = 1e15;
        const double factor = lognormal_quantile(draws_.first_uniform(request.id), 0, sd_);
        return static_cast<std::int64_t>(std::floor(std::min(static_cast<double>(request.max_tokens) * factor, most) + 0.5));
    }

private:
    StreamKey draws_;
    double sd_;
};

}  // namespace

std::vector<config::FieldDoc> noisy_predictor_docs() {
    return schema().docs();
}

std::function<std::unique_ptr<LengthPredictor>(Engine&)> read_noisy_predictor(const PieceSource& source,
                                                                              config::Diagnostics& diagnostics) {
    Params p;
    if (!read_params(schema(), source, p, diagnostics)) return nullptr;
    return [sd = p.sd](Engine& engine) { return std::make_unique<NoisyPredictor>(engine, sd); };
}

}  // namespace kvsim
