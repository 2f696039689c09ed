#pragma once
// windows.csv: how a run goes on, one row per span of simulated time (measure.window).

#include <string>

#include "kvsim/engine/outcome.hpp"
#include "kvsim/report/run_info.hpp"

namespace kvsim {

/// One row per window, and behind it one per class where requests have classes (then the engine's columns are empty). Windows
/// are [k w, (k + 1) w) in simulated time, the last one ends with the run and includes its end; `window_s` is how much of it
/// the run covers. All requests count, measured or not: `measured` says how many were.
///
/// arrivals, measured, rejected, timed_out, cancelled, the latencies and the attainments are of the requests that ARRIVE in the
/// window, so that a burst's damage stands where it came from; completions, their tokens and throughputs count where they
/// happen. arrivals and completions add up to the run's. Quantiles are exact; a cell without samples is empty.
/// kv_usage_mean, batch_size_mean, batch_tokens_mean, in_system_mean are exact time (step) averages over the window.
std::string windows_csv(const RunInfo& info, const Outcome& outcome);

}  // namespace kvsim
