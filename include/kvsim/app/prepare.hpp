#pragma once
// From a scenario file to everything simulate() needs.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kvsim/config/diagnostics.hpp"
#include "kvsim/config/scenario.hpp"
#include "kvsim/engine/simulation.hpp"
#include "kvsim/model/deployment.hpp"
#include "kvsim/model/router.hpp"
#include "kvsim/model/step_time.hpp"
#include "kvsim/model/workload.hpp"
#include "kvsim/report/run_info.hpp"

namespace kvsim::app {

struct Prepared {
    config::Scenario scenario;
    Deployment deployment;
    std::unique_ptr<StepTimeModel> step_time;
    std::unique_ptr<Router> router;
    std::unique_ptr<Workload> workload;
    SimulationOptions options;
    RunInfo info;
};

/// Loads, lays the `overlays` (files) over it, applies `sets` ("key.path=value") in order and builds every piece. Everything
/// wrong goes to `diagnostics`, an unreadable file too; the result is only meaningful when that is ok. `catalog`: a folder of
/// own entries, or empty.
Prepared prepare(const std::filesystem::path& file, const std::vector<std::string>& sets, config::Diagnostics& diagnostics,
                 const std::filesystem::path& catalog = {}, const std::vector<std::string>& overlays = {});

/// Prepares every file with the same `sets`. Throws one UserError with the errors of all of them.
std::vector<Prepared> prepare_all(const std::vector<std::string>& files, const std::vector<std::string>& sets,
                                  const std::filesystem::path& catalog = {}, const std::vector<std::string>& overlays = {});

}  // namespace kvsim::app
