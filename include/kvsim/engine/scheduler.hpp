#pragma once
// A batch policy: what happens in one step. It owns its queues and its KV cache; the engine owns the requests and keeps their
// accounts, which the policy moves by the engine's verbs (admitted, book, preempted, credit, finish).

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvsim/engine/batch.hpp"
#include "kvsim/engine/kv_manager.hpp"
#include "kvsim/engine/policy.hpp"
#include "kvsim/engine/step_record.hpp"
#include "kvsim/engine/waiting_queue.hpp"
#include "kvsim/model/engine_args.hpp"
#include "kvsim/model/pieces.hpp"

namespace kvsim {

class Engine;

/// The real engine raises here and dies: nothing can be scheduled any more.
class EngineCrash : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

class Scheduler {
public:
    explicit Scheduler(Engine& engine) : engine_(engine) {}
    virtual ~Scheduler() = default;
    Scheduler(const Scheduler&) = delete;
    Scheduler& operator=(const Scheduler&) = delete;

    /// The cache in which requests hold their KV.
    [[nodiscard]] virtual const KvPool& pool() const = 0;
    /// A new request joins the waiting queue.
    virtual void arrive(Slot slot) = 0;
    /// Decides one step: fills rows (each booked with the engine, in their order), preempted, bound, again.
    virtual void plan(Batch& batch) = 0;
    /// The results of a batch arrive: tokens are credited, in row order, and finished requests leave.
    virtual void receive(const Batch& batch, SimTime now) = 0;
    /// The request leaves, finished or aborted, whatever its state. Nothing is held for it when this returns; rows of it in
    /// flight have their tokens thrown away.
    virtual void remove(Slot slot) = 0;

    // ---- many steps at once. A step is steady when all it does is to give each of `running` its next token: nobody is
    // admitted, preempted or finishes, and every batch in flight has just those rows.

    /// How many of the coming steps are steady as long as nobody arrives or leaves and steady_step() agrees; their rows in
    /// order, and what holds those back that wait. 0: none, or the policy cannot tell. The driver has checked that each row's
    /// KV ends where its `computed` does.
    struct Steady {
        std::int64_t steps = 0;
        Bound bound = Bound::no_waiting;
    };
    virtual Steady steady_steps(std::vector<Slot>& rows) {
        static_cast<void>(rows);
        return {};
    }
    /// The next of them takes its KV, all as plan() does. False: it is not steady after all, and nothing has changed.
    virtual bool steady_step() { return false; }
    /// So many have been taken, the last at `now`: the policy's own state follows.
    virtual void pass(std::int64_t steps, SimTime now) {
        static_cast<void>(steps);
        static_cast<void>(now);
    }

    /// A next step has something to do although no request is unfinished.
    [[nodiscard]] virtual bool pending() const { return false; }
    /// Unfinished requests that run, and those that wait to, in the order of the step log. Every request is in one of them.
    [[nodiscard]] virtual std::vector<Slot> running() const = 0;
    [[nodiscard]] virtual std::vector<Slot> waiting() const = 0;
    [[nodiscard]] virtual std::int64_t running_count() const = 0;
    [[nodiscard]] virtual std::int64_t waiting_count() const = 0;
    /// What a running request holds without a computed token in it.
    [[nodiscard]] virtual HeldSlots unfilled(const LiveRequest& request) const = 0;
    /// The blocks of a row, for the step log.
    virtual void record(const BatchRow& row, ScheduledRow& out) const = 0;
    /// WaitingQueue::unmet_names().
    [[nodiscard]] virtual std::vector<std::string> unmet_names() const { return {}; }
    /// "; the head of the queue ...": what it lacks, for the stall report. Empty when nobody waits.
    [[nodiscard]] virtual std::string describe_head() const = 0;

protected:
    Engine& engine_;
};

/// What all styles share that count a token as computed when it is scheduled, as vLLM V1 does: a list of running requests in
/// admission order, a waiting queue, a KvManager. They differ in plan_rows() alone.
class TokenScheduler : public Scheduler {
public:
    explicit TokenScheduler(Engine& engine);

    [[nodiscard]] const KvPool& pool() const override { return *kv_; }
    void arrive(Slot slot) override { waiting_->push_new(slot); }
    void plan(Batch& batch) final;
    void receive(const Batch& batch, SimTime now) override;
    void remove(Slot slot) override;
    [[nodiscard]] std::vector<Slot> running() const override { return running_; }
    [[nodiscard]] std::vector<Slot> waiting() const override { return waiting_->in_order(); }
    [[nodiscard]] std::int64_t running_count() const override { return static_cast<std::int64_t>(running_.size()); }
    [[nodiscard]] std::int64_t waiting_count() const override { return static_cast<std::int64_t>(waiting_->size()); }
    [[nodiscard]] HeldSlots unfilled(const LiveRequest& request) const final;
    void record(const BatchRow& row, ScheduledRow& out) const override;
    [[nodiscard]] std::vector<std::string> unmet_names() const override { return waiting_->unmet_names(); }
    [[nodiscard]] std::string describe_head() const override;
    Steady steady_steps(std::vector<Slot>& rows) override;
    bool steady_step() override;

protected:
    /// Where a request that waits would continue.
    struct Start {
        PrefixHit hit;
        std::int64_t computed = 0;  ///< tokens whose KV is found in the cache, or comes back from the CPU
        bool swapped = false;
    };
    virtual void plan_rows(Batch& batch) = 0;
    /// Tokens that a step with so many decode rows has left for the queue.
    [[nodiscard]] virtual std::int64_t queue_budget(std::int64_t decodes) const {
        return args_.max_num_batched_tokens - decodes;
    }
    /// What a style asks of the head beside the admission rule. Like AdmissionRule::stays_shut() it must stay.
    [[nodiscard]] virtual bool style_admits(const LiveRequest& head, const AdmissionView& view) const {
        static_cast<void>(head);
        static_cast<void>(view);
        return true;
    }
    /// Nobody is admitted as long as all of `running` get their next tokens and nobody comes or goes: what holds the head
    /// back. nullopt: it may be admitted, or it cannot be told.
    [[nodiscard]] virtual std::optional<Bound> closed();
    /// New tokens of a prompt, before any budget.
    [[nodiscard]] std::int64_t chunk(std::int64_t wanted) const {
        return args_.long_prefill_token_threshold > 0 ? std::min(wanted, args_.long_prefill_token_threshold) : wanted;
    }
    [[nodiscard]] Start start_of(LiveRequest& request);
    /// Blocks and the admission rule allow the head of the queue to start with `tokens` new tokens. Seats and the token budget
    /// are the style's to check.
    [[nodiscard]] bool may_admit(const LiveRequest& head, const Start& start, std::int64_t tokens) const;
    /// The head of the waiting queue starts to run with `tokens` new tokens.
    void admit(Batch& batch, const Start& start, std::int64_t tokens);
    /// A running request gets `tokens` more, with `new_blocks` <= kv().free() blocks for them.
    void extend(Batch& batch, Slot slot, std::int64_t tokens, std::int64_t new_blocks);
    /// running_[index] loses its blocks and goes back to the waiting queue; returns the tokens of its dropped row (0: it had
    /// none).
    std::int64_t preempt(Batch& batch, std::size_t index);
    /// batch.rows[at] is not scheduled after all; its request keeps what it holds.
    void drop_row(Batch& batch, std::size_t at);
    /// Index in running_ of the request to preempt: PolicyArgs::victim, else the last one, under priority the least urgent of
    /// all (the first of full ties).
    [[nodiscard]] std::size_t pick_victim() const;
    /// The head of the queue may not start for lack of a seat or of blocks: if the order lets it take the place of a running
    /// request, the worst of those is preempted, and the step goes on. `budget` gets back the tokens of its dropped row. False:
    /// the order does not.
    bool displace(Batch& batch, std::int64_t& budget);
    /// The head was displaced in this very step: it does not come back in it.
    [[nodiscard]] bool head_was_displaced() const;
    /// Somebody was preempted for lack of blocks, not displaced.
    [[nodiscard]] bool ran_short(const Batch& batch) const { return batch.preempted.size() > displaced_; }
    /// Whether the order may displace running requests at all.
    [[nodiscard]] virtual bool may_displace() const { return true; }
    /// Preempts until `need` blocks are free for running_[index]. False: it was preempted itself. `index` follows the list;
    /// `budget` gets back the tokens of rows that were dropped.
    bool make_room(Batch& batch, std::int64_t need, std::size_t& index, std::int64_t& budget);

    const EngineArgs& args_;
    std::vector<Slot> running_;  // in admission order
    std::unique_ptr<WaitingQueue> waiting_;
    std::unique_ptr<KvManager> kv_;
    std::unique_ptr<VictimRule> victim_;        // null: see pick_victim()
    std::unique_ptr<AdmissionRule> admission_;  // null: scheduler_reserve_full_isl
    std::int64_t watermark_blocks_;             // kept free at admission

private:
    void advance(Batch& batch);
    [[nodiscard]] bool swaps(const LiveRequest& request, std::int64_t blocks) const;

    std::int64_t cpu_free_;          // blocks for swapped requests
    std::int64_t moved_blocks_ = 0;  // between GPU and CPU, not paid for yet
    std::size_t displaced_ = 0;      // in this step
    std::vector<Slot> lost_;         // who was preempted in it; outputs of one prompt share their id

    std::vector<Slot> last_rows_;  // of the last decision, and of the one before
    std::vector<Slot> before_rows_;
    // Of steady_steps(): indices in running_ by computed mod block size, and steps taken.
    std::vector<std::vector<std::uint32_t>> phases_;
    std::vector<std::uint32_t> movers_;
    std::int64_t steady_taken_ = 0;
};

}  // namespace kvsim
