#include "length_bounds.hpp"

namespace kvsim {

namespace {

struct ConstantParams : LengthParams {
    std::int64_t value = 0;
};

const config::Schema<ConstantParams>& schema() {
    using P = ConstantParams;
    static const config::Schema<P> table{distribution_field<P>(),
                                         config::field("value", &P::value, "the length, tokens", token_range).need(),
                                         min_field<P>(), max_field<P>()};
    return table;
}

class Constant : public LengthLaw {
public:
    explicit Constant(std::int64_t value) : value_(value) {}
    [[nodiscard]] std::int64_t sample(double) const override { return value_; }

private:
    std::int64_t value_;
};

}  // namespace

std::vector<config::FieldDoc> constant_length_docs() {
    return schema().docs();
}

std::unique_ptr<LengthLaw> make_constant_length(const config::Value& params, std::string_view where,
                                                config::Diagnostics& diagnostics) {
    ConstantParams p;
    if (!read_length_params(schema(), params, p, where, diagnostics)) return nullptr;
    if (p.value < p.lowest() || p.value > p.highest()) {
        report_no_mass(params, where, diagnostics);
        return nullptr;
    }
    return std::make_unique<Constant>(p.value);
}

}  // namespace kvsim
