#pragma once
// What a scenario may do to the rows of a trace before they are replayed. Each takes a reader and is one.

#include <cstdint>
#include <memory>
#include <optional>

#include "kvsim/model/trace.hpp"
#include "kvsim/model/workload_pieces.hpp"

namespace kvsim {

/// Passes over rows that are wrong; notes() counts them and has the first one's message.
std::unique_ptr<TraceReader> skip_wrong_rows(std::unique_ptr<TraceReader>);

/// Rows of sessions (TraceTimes::per_session) as one stream sorted by time. Session k starts at arrival k of `starts`; without
/// it all start at 0, and then all of them are held.
std::unique_ptr<TraceReader> merge_sessions(std::unique_ptr<TraceReader>, std::unique_ptr<ArrivalProcess> starts);

/// Rows with start <= time < end; `start` becomes 0.
std::unique_ptr<TraceReader> cut_window(std::unique_ptr<TraceReader>, SimDuration start, std::optional<SimDuration> end);

/// Keeps each row with probability `share`, stream (seed, "trace_sample", row); rows with a session_id as whole sessions.
std::unique_ptr<TraceReader> sample_rows(std::unique_ptr<TraceReader>, double share, std::uint64_t seed);

/// Lengths above the limits become the limits.
std::unique_ptr<TraceReader> clip_lengths(std::unique_ptr<TraceReader>, std::optional<std::int64_t> prompt,
                                          std::optional<std::int64_t> output);

/// The requests in random order at the recorded times, streams of (seed, "trace_shuffle"). Holds the whole trace. A row with
/// `think` throws UserError.
std::unique_ptr<TraceReader> shuffle_rows(std::unique_ptr<TraceReader>, std::uint64_t seed);

/// Row i arrives at arrival i of the process; rows with `think` follow their session still. `requests`: stretches all gaps so
/// that this one of them (counted from 1) arrives at requests / rate (ArrivalInfo::rescale).
std::unique_ptr<TraceReader> retime(std::unique_ptr<TraceReader>, std::unique_ptr<ArrivalProcess>,
                                    std::optional<std::int64_t> requests);

}  // namespace kvsim
