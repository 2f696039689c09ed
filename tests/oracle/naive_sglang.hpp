#pragma once
// SGLang's scheduler written down from its rules, per request and per token, sharing nothing with sim/: the oracle of the batch
// policy. Reads a recorded input and writes its records.

#include <nlohmann/json.hpp>
#include <vector>

namespace kvsim::oracle {

/// Deliberate mistakes, one rule each, that a comparison must notice.
enum class SglangMutation {
    none,
    retract_most_outputs,     // the longest-running request is retracted
    retract_ties_short,       // of equal ones the shortest prompt is
    retracted_to_front,       // the retracted wait in front
    retract_keeps_order,      // the running batch keeps its order
    retract_evicts_nothing,   // no room is made beforehand
    retract_admits_at_once,   // admission after a retraction in the same pass
    evict_shortfall,          // what is missing instead of what is asked for
    lru_by_insertion,         // a lookup refreshes nothing
    full_cleared_by_finish,   // batch_is_full falls when a request finishes
    finished_leave_at_once,   // they no longer count in the running batch
    reserve_whole,            // running requests are reserved their whole rest
    reserve_resumed_rest,     // a resumed one is charged only its rest
    admit_on_equal,           // input + max_new + page may equal what is left
    chunk_cut_to_pages,       // the running chunk is cut to whole pages
    new_chunk_not_cut,        // a new one is not
    chunk_ignores_left,       // the running chunk ignores the estimate
    first_obeys_max_prefill,  // without chunking the first request obeys max_prefill_tokens
    skip_head,                // a request that does not fit is skipped
    decay_on_prefill,         // the ratio decays in prefill steps too
    no_reset,                 // the idle step does not reset the ratio
    hit_whole_prompt,         // the last token is looked up as well
    last_token_kept,          // the last output token enters the tree in sync mode
    retraction_inserts,       // a retracted request leaves its tokens in the tree
    lock_not_counted,         // a prefix hit stays evictable until it runs
    no_hold_back,             // lpm holds nobody back
    lpm_whole_hit,            // lpm sorts by the whole hit
    lpm_always,               // however many wait
    dfs_own_first,            // a node's own requests before its children's
    dfs_light_first,          // the lighter subtree first
    lof_shortest,             // the shortest first
    mixed_unbudgeted,         // decodes that ride along take nothing of the budget
    mixed_decodes_first,      // and come first in the batch
    keeps_token_in_flight,    // the token of a retracted request in flight counts
    eos_inserts_behind,       // the exact test inserts behind the last
    chunk_holds_no_seat,      // the chunk in progress takes no seat
    clamp_one_more,           // max_new_tokens is cut one token later
    count
};

/// The lines of NAME.out.jsonl.
std::vector<nlohmann::ordered_json> naive_sglang(const nlohmann::ordered_json& input,
                                                 SglangMutation mutation = SglangMutation::none);

}  // namespace kvsim::oracle
