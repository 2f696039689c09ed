// A classifier that says in which bucket the number of outputs lies, and is sometimes wrong: stream (seed, "length_predictor",
// request id), whose first draw says whether it is right and whose second which of the others it names.

#include <algorithm>

#include "kvsim/engine/engine.hpp"
#include "kvsim/random/distribution.hpp"
#include "kvsim/random/stream.hpp"
#include "piece.hpp"

namespace kvsim {
namespace {

struct Params {
    std::string policy;
    std::vector<std::int64_t> bounds{64, 256, 1024, 4096};
    double accuracy = 0;
};

const config::Schema<Params>& schema() {
    static const config::Schema<Params> table{
        config::field("policy", &Params::policy, "bucket"),
        config::field("bounds", &Params::bounds,
                      "upper bounds of the buckets, ascending; what is above the last is believed to be twice that",
                      config::Range{1, 1e9})
            .by_default("[64, 256, 1024, 4096]"),
        config::field("accuracy", &Params::accuracy, "share of requests whose bucket is right", config::fraction).need()};
    return table;
}

class BucketPredictor final : public LengthPredictor {
public:
    BucketPredictor(Engine& engine, const Params& params)
        : draws_(engine.args().seed, "length_predictor"), bounds_(params.bounds), accuracy_(params.accuracy) {}
    [[nodiscard]] std::int64_t predict(const LiveRequest& request) override {
        const auto buckets = static_cast<std::int64_t>(bounds_.size()) + 1;
        const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), request.max_tokens);
        std::int64_t bucket = at - bounds_.begin();
        Stream stream(draws_, request.id);
        if (stream.uniform() >= accuracy_) {
            const std::int64_t other = uniform_int(stream.uniform(), 0, buckets - 2);
            bucket = other < bucket ? other : other + 1;
        }
        return bucket + 1 == buckets ? 2 * bounds_.back() : bounds_[static_cast<std::size_t>(bucket)];
    }

private:
    StreamKey draws_;
    std::vector<std::int64_t> bounds_;
    double accuracy_;
};

}  // namespace

std::vector<config::FieldDoc> bucket_predictor_docs() {
    return schema().docs();
}

std::function<std::unique_ptr<LengthPredictor>(Engine&)> read_bucket_predictor(const PieceSource& source,
                                                                               config::Diagnostics& diagnostics) {
    Params p;
    if (!read_params(schema(), source, p, diagnostics)) return nullptr;
    const auto ascend = [](std::int64_t a, std::int64_t b) { return a >= b; };
    if (p.bounds.empty() || std::adjacent_find(p.bounds.begin(), p.bounds.end(), ascend) != p.bounds.end())
        return refuse(source, "bounds must be one number or more, ascending", diagnostics);
    return [p](Engine& engine) { return std::make_unique<BucketPredictor>(engine, p); };
}

}  // namespace kvsim
