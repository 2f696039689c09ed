#pragma once
// What the benchmarks share.

#include <filesystem>
#include <string>
#include <vector>

#include "kvsim/app/prepare.hpp"
#include "kvsim/config/value.hpp"
#include "kvsim/engine/outcome.hpp"

namespace kvsim::bench {

/// The tree of a YAML text; a mistake in it aborts.
config::Value yaml(const std::string& text);

/// A folder that is gone at exit.
const std::filesystem::path& scratch();
/// Writes `text` to scratch() / name; returns the path.
std::filesystem::path scratch_file(const std::string& name, const std::string& text);

/// H100, Llama-3.1-8B, 256 seats, prefix caching off, lognormal lengths at 40/s: scripts/bench's case load95, with `sets`.
app::Prepared prepared(const std::vector<std::string>& sets);

/// A finished run of `requests` requests of that scenario.
Outcome finished_run(std::int64_t requests);

}  // namespace kvsim::bench
