// The most that max_model_len leaves: what an engine knows that knows nothing.

#include "kvsim/engine/engine.hpp"
#include "piece.hpp"

namespace kvsim {
namespace {

class MaxPredictor final : public LengthPredictor {
public:
    explicit MaxPredictor(Engine& engine) : engine_(engine) {}
    [[nodiscard]] std::int64_t predict(const LiveRequest& request) override {
        return engine_.args().output_limit(request.prompt);
    }

private:
    Engine& engine_;
};

}  // namespace

std::function<std::unique_ptr<LengthPredictor>(Engine&)> read_max_predictor(const PieceSource& source,
                                                                            config::Diagnostics& diagnostics) {
    return read_plain<LengthPredictor, MaxPredictor>(source, diagnostics);
}

}  // namespace kvsim
