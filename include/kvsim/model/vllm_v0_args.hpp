#pragma once
// What only vLLM V0 has arguments for.

#include <cstdint>

namespace kvsim {

/// A recording's own clock, in its own unit; it says when requests arrive and when blocks were used.
struct RecordedClock {
    double now = 0;
    double arrival = 0;  ///< of the request that is enqueued next
};

struct VllmV0Args {
    /// Releases decide alike but for these two: 0.6.3 keeps the n outputs of a request together, forks them and shares their
    /// blocks; 0.7.3 to 0.9.0 make n requests of them.
    enum class Release : std::uint8_t { v0_6_3, v0_8_5 };
    enum class Preemption : std::uint8_t { automatic, recompute, swap };

    Release release = Release::v0_8_5;
    Preemption preemption = Preemption::automatic;
    std::int64_t num_cpu_blocks = 0;            ///< where swapped requests wait
    std::int64_t max_num_partial_prefills = 1;  ///< prompts in progress that share the token budget; > 1 only with chunking
    std::int64_t max_long_partial_prefills = 1;
    double delay_factor = 0;               ///< prompts wait until the oldest has waited that many times the last prompt step
    bool async_output_processing = true;   ///< finished requests are noticed one step late
    double swap_ns_per_block = 0;          ///< of a block moved between GPU and CPU
    bool swap_overlaps = false;            ///< with the step's computation, instead of before it
    const RecordedClock* clock = nullptr;  ///< null: simulated time
    bool operator==(const VllmV0Args&) const = default;
};

}  // namespace kvsim
