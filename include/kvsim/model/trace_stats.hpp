#pragma once
// What `kvsim check --stats FILE` prints of a trace.

#include <cstdint>
#include <string>
#include <vector>

#include "kvsim/model/trace.hpp"

namespace kvsim {

/// Percentiles interpolate linearly at rank (n - 1) p, as numpy does.
struct LengthStats {
    double mean = 0;
    double p50 = 0;
    double p90 = 0;
    double p99 = 0;
    std::int64_t max = 0;
    std::int64_t total = 0;
    std::vector<std::int64_t> counts;  ///< [k]: lengths in [2^k, 2^(k+1))
};

/// Prefix hits of an ideal LRU cache of whole trace blocks: a row hits its leading run of known blocks; then all its blocks
/// are touched head to tail, each new one evicting the least recent when the cache is full.
struct PrefixHits {
    std::int64_t capacity = 0;  ///< blocks; 0: unlimited
    std::int64_t hits = 0;      ///< blocks
};

struct TraceStats {
    std::string format;
    bool timed = true;  ///< the trace has times; without them the figures of times mean nothing
    std::int64_t rows = 0;
    double span_s = 0;       ///< last arrival - first
    double rate = 0;         ///< rows / span; 0 when the span is
    double gap_cv = 0;       ///< standard deviation (population) / mean of the inter-arrival times; 0 when the span is
    std::int64_t ticks = 0;  ///< distinct timestamps
    LengthStats input;
    LengthStats output;
    std::int64_t trace_block_size = 0;  ///< 0: no row has hash ids
    std::int64_t blocks = 0;
    std::int64_t unique_blocks = 0;
    std::vector<PrefixHits> hits;  ///< the unlimited cache, then each capacity asked for
    std::vector<std::string> unknown_keys;
    std::vector<std::string> notes;  ///< what was left out or changed
};

inline const std::vector<std::int64_t> default_cache_capacities{100'000, 50'000, 30'000, 10'000, 1'000};

/// Reads the trace to its end. Capacities are in blocks, >= 1. An empty trace is a UserError. Memory grows with the trace's
/// distinct blocks, not with its rows.
TraceStats trace_stats(TraceReader& reader, const std::vector<std::int64_t>& capacities = default_cache_capacities);

/// The statistics as text, with a histogram of the lengths; ends in a newline.
std::string render(const TraceStats& stats);

}  // namespace kvsim
