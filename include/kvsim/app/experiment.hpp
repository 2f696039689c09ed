#pragma once
// One run of a prepared scenario under a seed, with the pilot that finds what is measured and the run at saturation.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvsim/app/prepare.hpp"
#include "kvsim/engine/outcome.hpp"
#include "kvsim/report/run_info.hpp"
#include "kvsim/report/summary.hpp"

namespace kvsim::app {

/// The scenario's pieces anew, with a seed of choice; what was prepared once can be prepared again.
struct Pieces {
    std::unique_ptr<Workload> workload;
    std::unique_ptr<Router> router;
};
Pieces fresh_pieces(const Prepared& p, std::uint64_t seed);

/// Turns what `measure` says about the whole run (auto, shares of the arrivals, a cool-down) into request numbers in `options`.
/// Needs a pilot run of the same requests, which is only made where it is needed. Adds to `warnings` what could not be found.
void resolve_measured(const Prepared& p, std::uint64_t seed, SimulationOptions& options, std::vector<std::string>& warnings);

struct RunOptions {
    bool progress = false;                       ///< a line on the terminal
    std::optional<std::filesystem::path> steps;  ///< the step log's file
    bool note_head_blocking = false;             ///< as SimulationOptions has it
    /// RunInfo::capacity_req_s where another run of the same requests has found it; unset: it is measured.
    std::optional<std::optional<double>> capacity = std::nullopt;
};

/// Requests per second of the same requests offered all at once (engine/capacity.hpp), with pieces of its own. Nullopt where
/// requests follow from answers, and below 100 of them.
std::optional<double> capacity_of(const Prepared& p, std::int64_t seed);

struct Run {
    RunInfo info;
    Outcome outcome;
    Summary summary;
};

/// Throws UserError when the run is refused or stalls, Interrupted when a signal came. May run on several threads at once.
Run run_seed(const Prepared& p, std::int64_t seed, const RunOptions& options = {});

}  // namespace kvsim::app
