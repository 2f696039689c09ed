#pragma once
// Several runs of one scenario: the pilot that finds what is measured, and replications.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvsim/app/prepare.hpp"

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

}  // namespace kvsim::app
