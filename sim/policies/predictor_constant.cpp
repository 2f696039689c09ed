// The same number of outputs for every request.

#include "kvsim/engine/engine.hpp"
#include "piece.hpp"

namespace kvsim {
namespace {

struct Params {
    std::string policy;
    std::int64_t tokens = 0;
};

const config::Schema<Params>& schema() {
    static const config::Schema<Params> table{
        config::field("policy", &Params::policy, "constant"),
        config::field("tokens", &Params::tokens, "output tokens of every request", config::Range{1, 1e9}).need()};
    return table;
}

class ConstantPredictor final : public LengthPredictor {
public:
    explicit ConstantPredictor(std::int64_t tokens) : tokens_(tokens) {}
    [[nodiscard]] std::int64_t predict(const LiveRequest& /*request*/) override { return tokens_; }

private:
    std::int64_t tokens_;
};

}  // namespace

std::vector<config::FieldDoc> constant_predictor_docs() {
    return schema().docs();
}

std::function<std::unique_ptr<LengthPredictor>(Engine&)> read_constant_predictor(const PieceSource& source,
                                                                                 config::Diagnostics& diagnostics) {
    Params p;
    if (!read_params(schema(), source, p, diagnostics)) return nullptr;
    return [tokens = p.tokens](Engine&) { return std::make_unique<ConstantPredictor>(tokens); };
}

}  // namespace kvsim
