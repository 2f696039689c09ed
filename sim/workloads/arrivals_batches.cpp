#include <cmath>

#include "kvsim/random/distribution.hpp"
#include "kvsim/random/stream.hpp"
#include "rate_driven.hpp"

namespace kvsim {

namespace {

struct BatchParams : RateDrivenParams {
    config::Value size;
    SimDuration every{};
};

const config::Schema<BatchParams>& schema() {
    using P = BatchParams;
    static const config::Schema<P> table{
        process_field<P>(),
        config::custom<P>("size", "integer | {distribution: ..., ...}", "requests that arrive at one instant",
                          [](P& into, const config::Value& value, config::Diagnostics& d) {
                              return config::decode(value, into.size, "size", config::any, d);
                          })
            .need(),
        config::field("every", &P::every, "mean time between batches, and before the first", segment_time).need(),
        config::field<P, std::string>("spacing", &P::spacing, "constant: a timetable; poisson: independent batches")
            .one_of({"poisson", "constant"})
            .by_default("constant")};
    return table;
}

class Batches final : public ArrivalProcess {
public:
    Batches(const ArrivalInfo& info, std::unique_ptr<LengthLaw> size, double every_ns, bool constant, std::uint64_t seed)
        : ArrivalProcess(info),
          size_(std::move(size)),
          every_ns_(every_ns),
          constant_(constant),
          key_(seed, "arrivals"),
          size_key_(seed, "batch_size") {}
    [[nodiscard]] double gap_ns(std::uint64_t i) const override {
        if (i == 0) {
            batch_ = 0;
            left_ = 0;
        }
        if (left_-- > 0) return 0;
        left_ = size_->sample(size_key_.first_uniform(batch_)) - 1;
        const double u = key_.first_uniform(batch_++);
        return constant_ ? every_ns_ : exponential_quantile(u, every_ns_);
    }

private:
    std::unique_ptr<LengthLaw> size_;
    double every_ns_;
    bool constant_;
    StreamKey key_;
    StreamKey size_key_;
    mutable std::uint64_t batch_ = 0;
    mutable std::int64_t left_ = 0;  // of the batch
};

}  // namespace

std::vector<config::FieldDoc> batches_arrivals_docs() {
    return schema().docs();
}

std::unique_ptr<ArrivalProcess> make_batches_arrivals(const config::Value& params, double rate_scale, std::uint64_t seed,
                                                      config::Diagnostics& diagnostics) {
    BatchParams p;
    p.spacing = "constant";
    const std::size_t before = diagnostics.error_count();
    schema().read(params, p, "arrivals", diagnostics);
    if (diagnostics.error_count() != before) return nullptr;
    std::unique_ptr<LengthLaw> size = make_length_law(p.size, "arrivals.size", diagnostics);
    if (!size) return nullptr;
    double mean = 0;  // of the law at equal probabilities; only printed
    for (int k = 0; k < 1000; ++k) mean += static_cast<double>(size->sample((k + 0.5) / 1000)) / 1000;
    const double every_ns = static_cast<double>(p.every.count()) / rate_scale;
    ArrivalInfo info;
    info.rate = mean / every_ns * 1e9;
    return std::make_unique<Batches>(info, std::move(size), every_ns, p.spacing == "constant", seed);
}

}  // namespace kvsim
