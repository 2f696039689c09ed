// Step times from constants fitted on this GPU (or on a card of its family).

#include "physics.hpp"

namespace kvsim {

std::vector<config::FieldDoc> fitted_step_docs() {
    return physics_docs();
}

std::unique_ptr<StepTimeModel> make_fitted_step(const Deployment& deployment, const config::Value& params,
                                                config::Diagnostics& diagnostics) {
    if (!check_physics("fitted", deployment, params, diagnostics)) return nullptr;
    const std::size_t before = diagnostics.error_count();
    const GpuSpec& gpu = *deployment.gpu;
    const auto constants = deployment.catalog.fitted_constants(gpu, params.mark, diagnostics);
    if (!constants) {
        if (diagnostics.error_count() == before) {
            diagnostics.error(params.mark, "no fitted constants for GPU " + gpu.name + "; use {model: roofline}");
        }
        return nullptr;
    }
    std::string tier = "fitted: constants of " + constants->gpu;
    if (gpu.constants.empty()) tier += ", a card of the same family, with this card's datasheet";
    tier += " (" + constants->source + "); expected error TPOT and E2E 2-7 %, TTFT 5-10 %";
    if (constants->gpu == "l40s") tier += "; attention on L40S is weakly fitted";
    return make_physics(*constants, deployment, std::move(tier), params, diagnostics);
}

}  // namespace kvsim
