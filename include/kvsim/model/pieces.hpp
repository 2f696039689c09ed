#pragma once
// The replaceable pieces' tables and how a scenario's choices become objects. The tables themselves stand in sim/registry.cpp.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "kvsim/config/scenario.hpp"
#include "kvsim/model/registry.hpp"
#include "kvsim/model/router.hpp"
#include "kvsim/model/step_time.hpp"
#include "kvsim/model/workload.hpp"

namespace kvsim {

struct Deployment;  // model/deployment.hpp
class Engine;
class Scheduler;

/// Batch policies, by EngineArgs::batching; their objects belong to the engine layer.
using MakeScheduler = std::unique_ptr<Scheduler> (*)(Engine&);
std::span<const Entry<MakeScheduler>> schedulers();

/// A step-time model may need the model's shape and the GPU; it reports what is missing at the map's mark.
using MakeStepTime = std::unique_ptr<StepTimeModel> (*)(const Deployment&, const config::Value& params, config::Diagnostics&);
std::span<const Entry<MakeStepTime>> step_time_models();

using MakeRouter = std::unique_ptr<Router> (*)(const config::Value& params, std::uint64_t seed, config::Diagnostics&);
std::span<const Entry<MakeRouter>> routers();

/// A source of requests as `workload` describes it: synthetic or a trace. Null after reporting errors.
/// `base` is the folder relative trace paths resolve against.
std::unique_ptr<Workload> make_workload(const config::WorkloadConfig&, std::uint64_t seed, const std::filesystem::path& base,
                                        config::Diagnostics&);

}  // namespace kvsim
