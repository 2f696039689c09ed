#pragma once
// A request while it lives inside one replica.

#include <cstdint>
#include <string>
#include <vector>

#include "kvsim/base/units.hpp"
#include "kvsim/model/workload.hpp"

namespace kvsim {

/// Identity of a full block: its tokens and everything before them, as a 128-bit chained hash. Two different prefixes meet with
/// probability below 1e-18 for 1e10 blocks; nothing else in kvsim depends on chance.
struct BlockKey {
    std::uint64_t high = 0;
    std::uint64_t low = 0;
    bool operator==(const BlockKey&) const = default;
};

/// Index of a live request in its replica's table; reused after the request has left.
using Slot = std::uint32_t;

enum class RequestState : std::uint8_t { waiting, preempted, running };

struct LiveRequest {
    RequestId id = 0;
    RequestState state = RequestState::waiting;
    bool admitted_before = false;
    std::int64_t priority = 0;
    std::int64_t arrival_rank = 0;  ///< orders priority ties: order of arrival; in a recording the rank of its arrival_time
    std::string tie_id;             ///< orders ties of both, compared as text

    std::int64_t prompt = 0;      ///< tokens
    std::int64_t max_tokens = 0;  ///< output tokens, of all sequences, after the cut to max_model_len
    std::int64_t limit = 0;       ///< output tokens it asked for, where the policy reserves for them; 0: max_tokens
    bool ignore_eos = true;       ///< it asked to go on to the limit
    std::int64_t outputs = 0;     ///< received, of all sequences
    std::int64_t sequences = 1;
    std::uint64_t beam_seed = 0;            ///< not 0: its sequences are the beams of a search
    std::vector<std::int64_t> output_lens;  ///< of each sequence, if they end by themselves
    std::int64_t computed = 0;              ///< tokens whose KV is scheduled or held
    std::int64_t high_water = 0;            ///< largest `computed` ever; work below it is recompute
    std::int64_t in_flight = 0;             ///< async scheduling: sampled tokens not received yet
    std::int64_t row = -1;                  ///< index of its row in the step being planned

    // KV. `registered` leading blocks of `table` can serve prefix hits; keys are made when first needed.
    std::vector<std::int32_t> table;
    std::int64_t registered = 0;
    // Instead of `table` where the model has several (EngineArgs::kv_groups); 0 stands for a block outside the window.
    std::vector<std::vector<std::int32_t>> tables;
    // Instead of both under contiguous KV: its slots, and the `computed` it had when it got them.
    struct Range {
        std::int64_t first = 0;
        std::int64_t count = 0;
        std::int64_t since = 0;
    };
    Range range;
    std::int64_t room = 0;       ///< tokens every table has a slot for
    std::int64_t next_drop = 0;  ///< `computed` from which on some table gives a block back
    std::vector<BlockKey> keys;
    std::vector<TokenRun> content;  ///< the prompt; empty: tokens nobody else has
    std::uint64_t output_base = 0;
    // What only some policies look at (PolicyArgs); names are numbers of Engine::label().
    std::int64_t predicted = 0;  ///< output tokens, as the length predictor says; 0: nobody asked
    std::int32_t request_class = -1;
    std::int32_t tenant = -1;
    std::int64_t swapped_blocks = 0;  ///< on the CPU, while it waits with its `computed` tokens

    std::int64_t reserved_slots = 0;  ///< its part of the waste shares, kept current by the engine
    std::int64_t internal_slots = 0;
    std::int64_t outstanding = 0;  ///< tokens still to be computed, as the engine's account has them

    SimTime arrival{};
    SimTime last_token{};
    bool measured = true;
    std::int64_t scheduled = 0;      ///< tokens of all its rows so far
    std::vector<std::int64_t> gaps;  ///< between its tokens, ns; kept on demand

    [[nodiscard]] std::int64_t tokens() const { return prompt + outputs; }
    /// Tokens whose KV it will have written at its end: the last output token is never computed.
    [[nodiscard]] std::int64_t final_computed() const { return prompt + max_tokens - 1; }
};

}  // namespace kvsim
