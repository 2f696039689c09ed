#include "kvsim/random/distribution.hpp"
#include "length_bounds.hpp"

namespace kvsim {

namespace {

const config::Schema<LengthParams>& schema() {
    using P = LengthParams;
    static const config::Schema<P> table{distribution_field<P>(),
                                         config::field("min", &P::min, "shortest length, included", token_range).need(),
                                         config::field("max", &P::max, "longest length, included", token_range).need()};
    return table;
}

class Uniform : public LengthLaw {
public:
    Uniform(std::int64_t min, std::int64_t max) : min_(min), max_(max) {}
    [[nodiscard]] std::int64_t sample(double u) const override { return uniform_int(u, min_, max_); }

private:
    std::int64_t min_;
    std::int64_t max_;
};

}  // namespace

std::vector<config::FieldDoc> uniform_length_docs() {
    return schema().docs();
}

std::unique_ptr<LengthLaw> make_uniform_length(const config::Value& params, std::string_view where,
                                               config::Diagnostics& diagnostics) {
    LengthParams p;
    if (!read_length_params(schema(), params, p, where, diagnostics)) return nullptr;
    return std::make_unique<Uniform>(p.lowest(), p.highest());
}

}  // namespace kvsim
