// One of the outputs of requests that have finished lately, at random (LightLLM's Past-Future scheduler): stream (seed,
// "length_predictor", request id) picks from the window, oldest first.

#include <deque>

#include "kvsim/engine/engine.hpp"
#include "kvsim/random/distribution.hpp"
#include "kvsim/random/stream.hpp"
#include "piece.hpp"

namespace kvsim {
namespace {

struct Params {
    std::string policy;
    std::int64_t window = 1000;
    std::int64_t initial = 256;
};

const config::Schema<Params>& schema() {
    static const config::Schema<Params> table{
        config::field("policy", &Params::policy, "history"),
        config::field("window", &Params::window, "finished requests that are remembered", config::Range{1, 1e7})
            .by_default("1000"),
        config::field("initial", &Params::initial, "prediction before a request has finished", config::Range{1, 1e9})
            .by_default("256")};
    return table;
}

class HistoryPredictor final : public LengthPredictor {
public:
    HistoryPredictor(Engine& engine, const Params& params)
        : draws_(engine.args().seed, "length_predictor"),
          window_(static_cast<std::size_t>(params.window)),
          initial_(params.initial) {}
    [[nodiscard]] std::int64_t predict(const LiveRequest& request) override {
        if (past_.empty()) return initial_;
        const auto last = static_cast<std::int64_t>(past_.size()) - 1;
        return past_[static_cast<std::size_t>(uniform_int(draws_.first_uniform(request.id), 0, last))];
    }
    void finished(const LiveRequest& request) override {
        past_.push_back(request.outputs);
        if (past_.size() > window_) past_.pop_front();
    }

private:
    StreamKey draws_;
    std::size_t window_;
    std::int64_t initial_;
    std::deque<std::int64_t> past_;
};

}  // namespace

std::vector<config::FieldDoc> history_predictor_docs() {
    return schema().docs();
}

std::function<std::unique_ptr<LengthPredictor>(Engine&)> read_history_predictor(const PieceSource& source,
                                                                                config::Diagnostics& diagnostics) {
    Params p;
    if (!read_params(schema(), source, p, diagnostics)) return nullptr;
    return [p](Engine& engine) { return std::make_unique<HistoryPredictor>(engine, p); };
}

}  // namespace kvsim
