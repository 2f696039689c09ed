// The mean of what the engine has seen of the request's class.

#include <map>

#include "kvsim/engine/engine.hpp"
#include "piece.hpp"

namespace kvsim {
namespace {

struct Params {
    std::string policy;
    std::int64_t initial = 256;
};

const config::Schema<Params>& schema() {
    static const config::Schema<Params> table{
        config::field("policy", &Params::policy, "class-mean"),
        config::field("initial", &Params::initial, "prediction before a request of the class has finished",
                      config::Range{1, 1e9})
            .by_default("256")};
    return table;
}

/// Requests without a class are one.
class ClassMeanPredictor final : public LengthPredictor {
public:
    explicit ClassMeanPredictor(std::int64_t initial) : initial_(initial) {}
    [[nodiscard]] std::int64_t predict(const LiveRequest& request) override {
        const auto found = seen_.find(request.request_class);
        if (found == seen_.end()) return initial_;
        const Seen& seen = found->second;
        return (2 * seen.outputs + seen.requests) / (2 * seen.requests);
    }
    void finished(const LiveRequest& request) override {
        Seen& seen = seen_[request.request_class];
        ++seen.requests;
        seen.outputs += request.outputs;
    }

private:
    struct Seen {
        std::int64_t requests = 0;
        std::int64_t outputs = 0;
    };
    std::int64_t initial_;
    std::map<std::int32_t, Seen> seen_;
};

}  // namespace

std::vector<config::FieldDoc> class_mean_predictor_docs() {
    return schema().docs();
}

std::function<std::unique_ptr<LengthPredictor>(Engine&)> read_class_mean_predictor(const PieceSource& source,
                                                                                   config::Diagnostics& diagnostics) {
    Params p;
    if (!read_params(schema(), source, p, diagnostics)) return nullptr;
    return [initial = p.initial](Engine&) { return std::make_unique<ClassMeanPredictor>(initial); };
}

}  // namespace kvsim
