#pragma once
// The scheduler and KV-cache manager of vLLM V1 written down rule by rule: slow, and meant to be compared with the rules by
// reading. Prefix keys are whole token prefixes, the free list is a list, every count is found by counting.
// Rule numbers (3.x) are those of spec/scheduler_vllm_v1.md. The production engine shares no code with this.

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kvsim/engine/outcome.hpp"
#include "kvsim/engine/step_record.hpp"
#include "kvsim/model/engine_args.hpp"

namespace kvsim::oracle {

/// A deliberate mistake, one rule each. The comparison must notice every one of them (mutation_test.cpp).
enum class Mutation : std::uint8_t {
    none,
    running_ignores_last_token_in_flight,  ///< 3.3.1 left out
    running_ignores_threshold,             ///< 3.3.2 without the threshold
    stop_running_at_idle_request,          ///< 3.3.2: n = 0 ends the running part
    victim_is_first,                       ///< 3.3.3 FCFS: the first of running
    priority_tie_last,                     ///< 3.3.3 priority: the last among equals
    victim_tokens_not_returned,            ///< 3.3.3: the budget stays spent
    skipped_victim_moves_index,            ///< 3.3.3: i - 1 for every victim before i
    carry_on_after_self_preemption,        ///< 3.3.4 priority: the running part goes on
    preempted_to_back,                     ///< 3.4: to the back of waiting
    admit_after_preemption,                ///< 3.5: although something was preempted
    ignore_seats,                          ///< 3.5: one seat too many
    skip_blocked_head,                     ///< 3.5: tries the next behind a head stopped by 3 or 4
    waiting_ignores_threshold,             ///< 3.5.2
    chunk_although_off,                    ///< 3.5.2
    no_full_isl_check,                     ///< 3.5.3
    idle_hits_are_free,                    ///< 3.5.3, 3.5.4 without `idle`
    hit_whole_prompt,                      ///< 3.6: floor(tokens / B)
    hit_newest,                            ///< 3.6: of several blocks the one registered last
    register_at_update,                    ///< 3.7: nothing is registered at schedule time
    no_duplicates,                         ///< 3.7: a second block of a key is not registered
    release_head_first,                    ///< 3.8
    release_to_front,                      ///< 3.8
    forget_on_release,                     ///< 3.8: registration dropped
    finish_one_late,                       ///< 3.10: outputs > max_tokens
    release_reverse_rows,                  ///< 3.10: finished requests released from the last row to the first
    no_register_on_receipt,                ///< 3.11
    ids_as_numbers,                        ///< 3.5 priority: ties by number
    no_watermark,                          ///< 3.14
    watermark_on_running,                  ///< 3.14
    count
};

struct NaiveRequest {
    // What it is.
    RequestId id = 0;
    std::string name;  ///< its id as a string; breaks ties under priority
    std::int64_t priority = 0;
    std::int64_t arrival_time = 0;  ///< only its order matters
    std::int64_t prompt_tokens = 0;
    std::int64_t max_tokens = 0;
    std::uint64_t output_base = 0;
    // 3.1: how far it is.
    std::vector<std::uint64_t> tokens;  ///< prompt and received outputs
    std::int64_t computed = 0;
    std::int64_t registered = 0;  ///< "ncached": leading blocks of the table that are registered
    std::int64_t in_flight = 0;   ///< "fly"
    std::vector<std::int64_t> table;
    bool was_preempted = false;
    bool finished = false;
    bool aborted = false;
    // For the records only.
    std::int64_t most_computed = 0;  ///< the largest `computed` so far
    std::int64_t preemptions = 0;
    std::int64_t scheduled = 0;  ///< tokens of all its rows

    [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(tokens.size()); }
    [[nodiscard]] std::int64_t outputs() const { return size() - prompt_tokens; }
};

/// What one schedule() decided. `record` lacks only what the update adds.
struct NaiveBatch {
    StepRecord record;
    std::vector<bool> samples;                 ///< per row: it will yield a token
    std::vector<std::int64_t> hit_tokens;      ///< per row: prefix hit of an admission, else 0
    std::vector<std::int64_t> recomputed;      ///< per row: tokens below the request's earlier maximum of `computed`
    std::vector<std::int64_t> tokens_present;  ///< per row: prompt and received outputs when scheduled
    Bound bound = Bound::no_waiting;

    [[nodiscard]] bool empty() const { return record.scheduled.empty(); }
};

class NaiveEngine {
public:
    explicit NaiveEngine(EngineArgs args, Mutation mutation = Mutation::none);

    /// Joins the waiting queue. The prompt's ids are in request.tokens.
    void add(NaiveRequest request);
    /// 3.3 to 3.9. Also advances `computed` of every row (3.2).
    NaiveBatch schedule(std::int64_t step);
    /// 3.10: receives the tokens of `batch`; the ids go to record.received and record.finished.
    void update(const NaiveBatch& batch, StepRecord& record);
    /// The client gave up: it leaves at once (vLLM: finish_requests), whoever computes for it computes in vain.
    void abort(RequestId id);
    /// Fills the fields of `record` that describe the state after an update.
    void describe(StepRecord& record) const;

    [[nodiscard]] bool unfinished() const { return !running_.empty() || !waiting_.empty(); }
    [[nodiscard]] const std::vector<RequestId>& running() const { return running_; }
    [[nodiscard]] const std::vector<RequestId>& waiting() const { return waiting_; }
    [[nodiscard]] const NaiveRequest& request(RequestId id) const { return requests_.at(id); }
    [[nodiscard]] std::int64_t free_blocks() const { return static_cast<std::int64_t>(free_.size()); }
    [[nodiscard]] std::int64_t usable_blocks() const { return args_.num_gpu_blocks - 1; }
    /// Blocks with at least one user, found by asking every block.
    [[nodiscard]] std::int64_t used_blocks() const;
    /// Throws InternalError unless tables, users, FREE and registrations agree with each other.
    void check_invariants() const;
    /// A few lines for a stall report.
    [[nodiscard]] std::string state() const;

private:
    using Key = std::vector<std::uint64_t>;  ///< all tokens from the first to the block's last
    struct Block {
        std::int64_t users = 0;
        std::optional<Key> key;  ///< set while registered
    };

    void schedule_running(NaiveBatch& batch, std::int64_t& budget);
    void schedule_waiting(NaiveBatch& batch, std::int64_t& budget, bool& stopped_by_blocks, bool& stopped_by_chunking);
    [[nodiscard]] RequestId pick_victim() const;
    void preempt(RequestId id, NaiveBatch& batch);
    void insert_waiting(RequestId id);
    [[nodiscard]] bool before(RequestId a, RequestId b) const;
    [[nodiscard]] std::vector<std::int64_t> lookup(const NaiveRequest& request) const;
    void register_blocks(NaiveRequest& request, std::int64_t up_to);
    std::int64_t take_block();
    void forget(std::int64_t block);
    void release(NaiveRequest& request);
    [[nodiscard]] bool is(Mutation m) const { return mutation_ == m; }

    EngineArgs args_;
    Mutation mutation_;
    std::map<RequestId, NaiveRequest> requests_;
    std::vector<RequestId> running_;
    std::vector<RequestId> waiting_;
    std::vector<Block> blocks_;
    std::list<std::int64_t> free_;
    std::map<Key, std::vector<std::int64_t>> registered_;  ///< blocks of a key, first registered first
};

}  // namespace kvsim::oracle
