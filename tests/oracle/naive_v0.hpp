#pragma once
// A second, naive form of vLLM V0's scheduler and block manager: every token of every request, every block's content, in maps
// and vectors, written from the rules alone. It reads and writes the format of the recordings.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace kvsim::oracle {

/// Deliberate mistakes.
enum class V0Mutation {
    none,
    touch_only_when_needed,
    free_list_is_a_queue,
    no_watermark,
    no_seats,
    passes_the_head,
    swap_in_without_watermark,
    hit_looked_up_again,
    victims_to_the_back,
    evicts_shallow_first,
    chunks_not_rounded,
    finish_test_at_once,
    ends_at_the_limit,
    no_delay,
    admits_while_swapped,
    no_copy_on_write,
    ended_prompts_not_first,
    whole_budget_for_each,
    cached_tokens_cost_budget,
    first_victim_is_the_first,
    decodes_beside_prompts,
    priority_head_sorted,
    computed_at_once,
    swap_keeps_sharing_count,
    count
};

struct V0Replay {
    std::vector<nlohmann::json> lines;  ///< the records, then the summary
    bool unclear = false;               ///< what the engine evicts hung on a stale entry of its heap
};

V0Replay replay_v0(const nlohmann::json& input, V0Mutation mutation = V0Mutation::none);

/// A small input of the recorded format that meets the engine's start-up checks.
nlohmann::json random_v0_input(std::uint64_t seed);

}  // namespace kvsim::oracle
