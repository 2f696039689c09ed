#pragma once
// The scheduler and KV-cache manager of vLLM V1 written down rule by rule: slow, and meant to be compared with the rules by
// reading. Prefix keys are whole token prefixes, the free list is a list, every count is found by counting.
// Rule numbers (3.x) are those of spec/scheduler_vllm_v1.md. The production engine shares no code with this.
//
// Several block tables per request (EngineArgs::kv_groups, each of its `tables` one table here) add to these:
//   G1  A table's blocks hold B tokens of its own group; all tables draw from one FREE. State tables hold a fixed number.
//   G2  first(computed), the first token the next one attends to: full 0; sliding computed - (window - 1), at least 0; chunked
//       the start of the chunk of the next token.
//   G3  When a running request is served (3.3.3), first of all every block wholly before first(computed) is given back, table
//       by table, the latest block first; the table keeps block 0 in its place. They stay registered. This happens even if the
//       request then gets nothing.
//   G4  need = sum over the tables of what each lacks. New blocks are taken table by table.
//   G5  A hit of h tokens (a multiple of every B) is good for a table if its blocks from that of first(h) to h are registered
//       for this table (sliding: at least one block). The hit is the longest good for all tables, below the tokens. Its
//       blocks before first(h) become block 0.
//   G6  3.5.3 counts for a table at most ceil(min(window - 1 + max_num_batched_tokens, max_model_len) / B) + 1 (sliding),
//       ceil(min(window + max_num_batched_tokens, max_model_len) / B) (chunked), before its hit is taken off.
//   G7  The hit blocks of all tables are held before any new block is taken.
//   G8  Tokens are registered up to a multiple of every B; block 0 is never registered.
//   G9  Release: table by table, each tail to head.

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
    window_one_longer,                     ///< G2 sliding: computed - window
    chunk_as_window,                       ///< G2: chunked as if sliding
    window_kept,                           ///< G3: nothing is given back
    window_given_back_after_need,          ///< G3: after the new blocks were taken
    window_earliest_first,                 ///< G3
    window_forgotten,                      ///< G3: registration dropped
    window_kept_when_refused,              ///< G3: only when the request gets something
    blocks_in_turns,                       ///< G4: one block for each table in turn
    hit_needs_all,                         ///< G5: the blocks before the window too
    hit_of_any_table,                      ///< G5: tables find each other's blocks
    gate_without_cap,                      ///< G6
    take_before_hold,                      ///< G7: table by table
    last_table_first,                      ///< G9
    state_grows,                           ///< G1: a state table as if full
    count
};

struct NaiveRequest {
    // What it is.
    RequestId id = 0;
    RequestId number = 0;  ///< of the client's request, which the outputs of one prompt share
    std::string name;      ///< its id as a string; breaks ties under priority
    std::int64_t priority = 0;
    std::int64_t arrival_time = 0;  ///< only its order matters
    std::int64_t prompt_tokens = 0;
    std::int64_t max_tokens = 0;
    std::uint64_t output_base = 0;
    SimTime arrival{};  ///< at the front end
    std::string request_class;
    std::string tenant;
    // 3.1: how far it is.
    std::vector<std::uint64_t> tokens;  ///< prompt and received outputs
    std::int64_t computed = 0;
    std::int64_t registered = 0;                    ///< "ncached" in tokens: those whose blocks are registered
    std::int64_t in_flight = 0;                     ///< "fly"
    std::vector<std::vector<std::int64_t>> tables;  ///< empty: it holds nothing
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
    std::int64_t swapped_tokens = 0;  ///< whose KV moves to the CPU
    SimDuration transfer{};           ///< of blocks between GPU and CPU
    bool transfer_overlaps = false;   ///< beside the step, instead of before it

    /// It was admitted and has no row but an idle one.
    struct Started {
        RequestId id = 0;
        ScheduledRow::Kind kind = ScheduledRow::Kind::fresh;
        std::int64_t hit = 0;
        std::int64_t tokens = 0;
    };
    std::vector<Started> started_idle;
    std::vector<std::int64_t> idle_contexts;  ///< of sequences that only keep their place in the batch

    [[nodiscard]] bool empty() const { return record.scheduled.empty() && idle_contexts.empty(); }
};

/// What the naive event loop drives.
class NaiveMachine {
public:
    virtual ~NaiveMachine() = default;
    /// Joins the waiting queue. The prompt's ids are in request.tokens.
    virtual void add(NaiveRequest request) = 0;
    /// 3.3 to 3.9. Also advances `computed` of every row (3.2).
    virtual NaiveBatch schedule(std::int64_t step, SimTime now) = 0;
    /// 3.10: receives the tokens of `batch`; the ids go to record.received and record.finished.
    virtual void update(const NaiveBatch& batch, StepRecord& record, SimTime now) = 0;
    /// The client gave up: it leaves at once (vLLM: finish_requests), whoever computes for it computes in vain.
    virtual void abort(RequestId id) = 0;
    [[nodiscard]] virtual const std::vector<RequestId>& running() const = 0;
    /// In the order in which they would be admitted.
    [[nodiscard]] virtual std::vector<RequestId> waiting() const = 0;
    [[nodiscard]] virtual const NaiveRequest& request(RequestId id) const = 0;
    [[nodiscard]] virtual std::int64_t free_blocks() const = 0;
    [[nodiscard]] virtual std::int64_t usable_blocks() const = 0;
    /// Blocks with at least one user, found by asking every block.
    [[nodiscard]] virtual std::int64_t used_blocks() const = 0;
    /// 3.12 for one more token than the prompt: it could be admitted to an empty pool.
    [[nodiscard]] virtual bool can_ever_fit(std::int64_t tokens) const = 0;
    /// An empty engine would start such a prompt, the blocks that are kept free included.
    [[nodiscard]] virtual bool starts_alone(std::int64_t /*prompt*/) const { return true; }
    /// Where nobody may lose blocks: it could run to its end.
    [[nodiscard]] virtual bool can_ever_end(std::int64_t /*prompt*/, std::int64_t /*outputs*/) const { return true; }
    /// A common multiple of the tables' B: what a block counts for in the waste shares.
    [[nodiscard]] virtual std::int64_t slots_per_block() const = 0;
    /// Slots of the request's blocks that its tokens below `last` will still fill, and that nothing will.
    [[nodiscard]] virtual std::pair<std::int64_t, std::int64_t> unfilled(const NaiveRequest& request,
                                                                         std::int64_t last) const = 0;
    /// Throws InternalError when its state contradicts itself.
    virtual void check_invariants() const = 0;

    [[nodiscard]] bool unfinished() const { return !running().empty() || !waiting().empty(); }
    /// Fills the fields of `record` that describe the state after an update.
    void describe(StepRecord& record) const {
        record.free_after_update = free_blocks();
        record.running = running();
        record.waiting = waiting();
    }
};

class NaiveEngine final : public NaiveMachine {
public:
    explicit NaiveEngine(EngineArgs args, Mutation mutation = Mutation::none);

    void add(NaiveRequest request) override;
    NaiveBatch schedule(std::int64_t step, SimTime now = {}) override;
    void update(const NaiveBatch& batch, StepRecord& record, SimTime now = {}) override;
    void abort(RequestId id) override;
    [[nodiscard]] const std::vector<RequestId>& running() const override { return running_; }
    [[nodiscard]] std::vector<RequestId> waiting() const override { return waiting_; }
    [[nodiscard]] const NaiveRequest& request(RequestId id) const override { return requests_.at(id); }
    [[nodiscard]] std::int64_t free_blocks() const override { return static_cast<std::int64_t>(free_.size()); }
    [[nodiscard]] std::int64_t usable_blocks() const override { return args_.num_gpu_blocks - 1; }
    [[nodiscard]] std::int64_t used_blocks() const override;
    [[nodiscard]] bool can_ever_fit(std::int64_t tokens) const override;
    [[nodiscard]] bool starts_alone(std::int64_t prompt) const override;
    [[nodiscard]] std::int64_t slots_per_block() const override { return align_; }
    [[nodiscard]] std::pair<std::int64_t, std::int64_t> unfilled(const NaiveRequest& request, std::int64_t last) const override;
    /// Throws InternalError unless tables, users, FREE and registrations agree with each other.
    void check_invariants() const override;

private:
    /// Its table, and all tokens from the first to the block's last.
    using Key = std::pair<std::size_t, std::vector<std::uint64_t>>;
    struct Table {
        BlockGroup::Rule rule;
        std::int64_t block_size;
        std::int64_t window;
        std::int64_t state_blocks;
    };
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
    [[nodiscard]] std::int64_t first_attended(const Table& table, std::int64_t computed) const;
    [[nodiscard]] std::int64_t blocks_for(const Table& table, std::int64_t tokens) const;
    [[nodiscard]] std::int64_t blocks_at_gate(const Table& table, std::int64_t tokens) const;
    [[nodiscard]] std::int64_t lacking(const NaiveRequest& request, std::int64_t tokens) const;
    /// Appends what each table lacks; the new ids in `row`.
    void grow(NaiveRequest& request, std::int64_t tokens, ScheduledRow& row);
    void give_back_unattended(NaiveRequest& request);
    [[nodiscard]] Key key_of(const NaiveRequest& request, std::size_t table, std::int64_t block) const;
    /// The registered block for that place of the request's tokens; 0: none.
    [[nodiscard]] std::int64_t find(const NaiveRequest& request, std::size_t table, std::int64_t block) const;
    /// Tokens of the hit.
    [[nodiscard]] std::int64_t lookup(const NaiveRequest& request) const;
    void drop(std::int64_t block);
    void register_blocks(NaiveRequest& request, std::int64_t up_to);
    std::int64_t take_block();
    void forget(std::int64_t block);
    void release(NaiveRequest& request);
    [[nodiscard]] bool is(Mutation m) const { return mutation_ == m; }

    EngineArgs args_;
    Mutation mutation_;
    std::vector<Table> tables_;
    std::int64_t align_ = 1;
    std::map<RequestId, NaiveRequest> requests_;
    std::vector<RequestId> running_;
    std::vector<RequestId> waiting_;
    std::vector<Block> blocks_;
    std::list<std::int64_t> free_;
    std::map<Key, std::vector<std::int64_t>> registered_;  ///< blocks of a key, first registered first
};

}  // namespace kvsim::oracle
