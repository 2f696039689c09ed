// Every step takes the same time.

#include "kvsim/base/text.hpp"
#include "kvsim/model/deployment.hpp"

namespace kvsim {
namespace {

struct Constant {
    std::string model;
    SimDuration step{};
};

const config::Schema<Constant>& schema() {
    static const config::Schema<Constant> table{
        config::field("model", &Constant::model, "constant"),
        config::field("step", &Constant::step, "time of every step", config::positive).need()};
    return table;
}

class ConstantStep final : public StepTimeModel {
public:
    explicit ConstantStep(SimDuration step) : step_(step), ns_(static_cast<double>(step.count())) {}
    [[nodiscard]] SimDuration duration(const StepShape&) const override { return round_step(ns_); }
    [[nodiscard]] std::optional<DecodeLine> decode_line(std::int64_t) const override { return DecodeLine{ns_, 0}; }
    [[nodiscard]] std::string describe() const override { return "constant: every step " + decimals(to_ms(step_), 6) + " ms"; }

private:
    SimDuration step_;
    double ns_;
};

}  // namespace

std::vector<config::FieldDoc> constant_step_docs() {
    return schema().docs();
}

std::unique_ptr<StepTimeModel> make_constant_step(const Deployment&, const config::Value& params,
                                                  config::Diagnostics& diagnostics) {
    const std::size_t before = diagnostics.error_count();
    Constant c;
    if (params.is_map()) {
        schema().read(params, c, "step_time", diagnostics);
    } else {
        diagnostics.error(params.mark, "step_time constant needs its step: {model: constant, step: 10ms}");
    }
    if (diagnostics.error_count() != before) return nullptr;
    return std::make_unique<ConstantStep>(c.step);
}

}  // namespace kvsim
