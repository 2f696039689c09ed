// Step times from the GPU's datasheet with generic efficiencies.

#include "physics.hpp"

namespace kvsim {

std::vector<config::FieldDoc> roofline_step_docs() {
    return physics_docs();
}

std::unique_ptr<StepTimeModel> make_roofline_step(const Deployment& deployment, const config::Value& params,
                                                  config::Diagnostics& diagnostics) {
    if (!check_physics("roofline", deployment, params, diagnostics)) return nullptr;
    const config::Value* given = params.find("leave_out");
    const std::string left_out = given != nullptr ? given->scalar : "";
    const auto constants = deployment.catalog.median_constants(*deployment.gpu, params.mark, diagnostics, left_out);
    if (!constants) return nullptr;
    return make_physics(*constants, deployment,
                        "roofline: datasheet of " + deployment.gpu->name + ", efficiencies the " + constants->source +
                            "; expected error TPOT and E2E 8-15 %, TTFT 15-30 %",
                        params, diagnostics);
}

}  // namespace kvsim
