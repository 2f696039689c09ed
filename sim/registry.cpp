// THE registration file: one table per kind of piece, one line per piece. A piece's own file defines its make and docs
// functions; they are declared here and nowhere else.

#include "kvsim/model/pieces.hpp"

namespace kvsim {

// ---- step-time models ------------------------------------------------------------------------------------------------

std::unique_ptr<StepTimeModel> make_affine_step(const Deployment&, const config::Value&, config::Diagnostics&);
std::unique_ptr<StepTimeModel> make_constant_step(const Deployment&, const config::Value&, config::Diagnostics&);
std::unique_ptr<StepTimeModel> make_fitted_step(const Deployment&, const config::Value&, config::Diagnostics&);
std::unique_ptr<StepTimeModel> make_roofline_step(const Deployment&, const config::Value&, config::Diagnostics&);
std::vector<config::FieldDoc> affine_step_docs();
std::vector<config::FieldDoc> constant_step_docs();
std::vector<config::FieldDoc> fitted_step_docs();
std::vector<config::FieldDoc> roofline_step_docs();

std::span<const Entry<MakeStepTime>> step_time_models() {
    static constexpr Entry<MakeStepTime> table[] = {
        {"constant", "every step takes the same time", constant_step_docs, make_constant_step},
        {"affine", "affine in tokens, sequences and context", affine_step_docs, make_affine_step},
        {"roofline", "datasheet of the GPU with the median efficiencies of the fitted ones", roofline_step_docs,
         make_roofline_step},
        {"fitted", "kernel constants fitted on this GPU", fitted_step_docs, make_fitted_step},
    };
    return table;
}

// ---- routers ---------------------------------------------------------------------------------------------------------

std::unique_ptr<Router> make_least_requests(const config::Value&, std::uint64_t, config::Diagnostics&);
std::unique_ptr<Router> make_round_robin(const config::Value&, std::uint64_t, config::Diagnostics&);
std::vector<config::FieldDoc> least_requests_docs();
std::vector<config::FieldDoc> round_robin_docs();

std::span<const Entry<MakeRouter>> routers() {
    static constexpr Entry<MakeRouter> table[] = {
        {"round_robin", "replicas take turns", round_robin_docs, make_round_robin},
        {"least_requests", "the replica with the fewest waiting and running requests", least_requests_docs,
         make_least_requests},
    };
    return table;
}

// ---- workloads: arrival processes, length distributions, trace formats ------------------------------------------------

}  // namespace kvsim
