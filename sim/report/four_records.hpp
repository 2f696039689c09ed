#pragma once
// What exact_tally() does with every record, with four of them at once. To be called where has_avx2 is true.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvsim/engine/outcome.hpp"
#include "kvsim/report/quantile.hpp"

namespace kvsim {

/// How many requests completed, and how many of them have gaps between output tokens.
struct CompletedRequests {
    std::int64_t all = 0, gapped = 0;
};
CompletedRequests completed_by_four(std::span<const RequestRecord> records, bool measured_only);  // size() % 4 == 0

/// An ordinary record is of a request that ended by its length with two output tokens or more, is measured if only those are
/// asked for, has its times in order and below 2^51 ns (26 days), its lengths and preemptions below 2^16.
struct OrdinarySums {
    std::size_t records = 0;
    std::int64_t queue = 0, ttft = 0, e2e = 0, tpot = 0, prompt = 0, output = 0, preemptions = 0, preempted = 0;
    SimTime first_arrival = never, last_completion{};
};
struct OrdinaryCounters {
    BinCounters queue, ttft, e2e, tpot;
    std::int64_t *prompt, *output;  ///< NumberCounts::counters()
};
/// Counts and sums up the records from the first on, up to four of which one is not ordinary, or to 4096.
OrdinarySums count_ordinary(std::span<const RequestRecord> records, bool measured_only, const OrdinaryCounters& counters);

/// What a quantity's second pass finds out.
struct Collected {
    explicit Collected(std::size_t batches) : passes(batches) {}
    QuantilePasses<std::int64_t> passes;
    double centre = 0;   ///< whole
    double squares = 0;  ///< of the distances from it, added in the order of the values
    [[gnu::always_inline]] void collect(std::int64_t value) {
        const double beside = static_cast<double>(value) - centre;
        squares += beside * beside;
        passes.collect(value);
    }
};
/// collect() of queue, ttft, e2e and mean_gap() of each; `records`: all of them ordinary, size() % 4 == 0.
void collect_ordinary(std::span<const RequestRecord> records, const std::array<Collected*, 4>& quantities);

}  // namespace kvsim
