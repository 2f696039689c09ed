#pragma once
// vLLM V0's scheduler and block manager (0.8.5; 0.6.3.post1 for requests with several outputs that share blocks). Whole prompts
// are admitted before anything decodes, or chunks beside the decodes; who runs out of blocks is recomputed or swapped.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../kv_managers/v0_pool.hpp"
#include "kvsim/engine/engine.hpp"
#include "kvsim/engine/scheduler.hpp"

namespace kvsim {

class VllmV0Scheduler final : public Scheduler {
public:
    /// One output sequence of a request.
    struct Branch {
        enum class State : std::uint8_t { waiting, running, swapped, finished };
        State state = State::waiting;
        bool decoding = false;       ///< all its tokens were computed once
        bool had_row = false;        ///< since it has blocks
        std::int64_t outputs = 0;    ///< tokens
        std::int64_t limit = 0;      ///< output tokens at which it ends
        std::int64_t computed = 0;   ///< as the engine counts: raised at the end of a step
        std::int64_t placed = 0;     ///< tokens with a slot in `table`
        std::int64_t hit = unknown;  ///< 0.8.5: cached tokens when the request was first looked at
        std::int64_t skip = 0;       ///< tokens of its first row that the model skips
        double access = 0;           ///< clock of its last row, if had_row
        std::vector<BlockId> table;  ///< ids of the device it is on
        std::vector<BlockKey> keys;
        static constexpr std::int64_t unknown = -1;
    };
    struct Row {
        Slot slot = 0;
        RequestId id = 0;
        bool prefill = false;
        std::int64_t tokens = 0;    ///< of a prefill, cached ones included; of a decode, its live branches
        std::int64_t computed = 0;  ///< before
        std::int64_t work = 0;      ///< tokens the model computes
        std::int64_t chunk = 0;     ///< what each branch's `computed` is raised by
        bool samples = false;
        std::vector<std::pair<std::size_t, std::vector<BlockId>>> tables;  ///< of live branches by index, only in recordings
    };
    struct Preemption {
        RequestId id;
        bool swapped;
        bool forced;  ///< by an urgent request that waits
    };
    /// What a schedule() decided, as the recordings have it.
    struct Decision {
        std::vector<Row> rows;
        std::vector<Preemption> preempted;
        std::vector<RequestId> ignored;
        std::int64_t total = 0;  ///< tokens of the batch, cached ones included
        std::int64_t blocks_in = 0;
        std::int64_t blocks_out = 0;
        std::int64_t blocks_copied = 0;
        std::int64_t gpu_free = 0;
        std::int64_t cpu_free = 0;
        void clear() {
            rows.clear();
            preempted.clear();
            ignored.clear();
            total = blocks_in = blocks_out = blocks_copied = gpu_free = cpu_free = 0;
        }
        [[nodiscard]] bool nothing() const { return rows.empty() && preempted.empty() && ignored.empty(); }
    };

    explicit VllmV0Scheduler(Engine& engine);

    [[nodiscard]] const KvPool& pool() const override { return gpu_; }
    void arrive(Slot slot) override;
    void plan(Batch& batch) override;
    void receive(const Batch& batch, SimTime now) override;
    void remove(Slot slot) override;
    Steady steady_steps(std::vector<Slot>& rows) override;
    bool steady_step() override;
    void pass(std::int64_t steps, SimTime now) override;
    [[nodiscard]] std::vector<Slot> running() const override { return {running_.begin(), running_.end()}; }
    /// The waiting queue, then the swapped ones.
    [[nodiscard]] std::vector<Slot> waiting() const override;
    [[nodiscard]] std::int64_t running_count() const override { return static_cast<std::int64_t>(running_.size()); }
    [[nodiscard]] std::int64_t waiting_count() const override {
        return static_cast<std::int64_t>(waiting_.size() + swapped_.size());
    }
    [[nodiscard]] HeldSlots unfilled(const LiveRequest& request) const override;
    void record(const BatchRow& row, ScheduledRow& out) const override;
    [[nodiscard]] std::string describe_head() const override;

    // ---- for conformance
    [[nodiscard]] const Decision& decision() const { return decision_; }
    [[nodiscard]] const std::deque<Slot>& waiting_queue() const { return waiting_; }
    [[nodiscard]] const std::deque<Slot>& swapped_queue() const { return swapped_; }
    [[nodiscard]] std::int64_t cpu_free() const { return cpu_.free(); }

private:
    enum class Queue : std::uint8_t { none, waiting, running, swapped };
    /// A request and its sequences; only the first exists before the first token.
    struct Group {
        std::vector<Branch> branches;
        std::vector<double> weights;  // of a beam search: probability of each beam, the best one's 1
        std::int64_t sequences = 1;
        double arrival = 0;
        Queue queue = Queue::none;
        bool broken = false;           // in the waiting queue in a state in which the engine cannot look at it
        std::vector<TokenRun> prompt;  // only where the branches' outputs must not continue a prompt without content
    };
    struct NewTokens {
        std::int64_t uncached = 0;
        std::int64_t cached = 0;
        [[nodiscard]] std::int64_t all() const { return uncached + cached; }
    };
    /// A list of rows in the making: the request and the tokens of its chunk.
    using Rows = std::vector<std::pair<Slot, std::int64_t>>;
    /// 0.8.5: how many prompts in progress share the budget.
    struct PartialPrefills {
        std::int64_t share = 0;
        std::int64_t longs = 0;
    };

    [[nodiscard]] bool old() const { return args_.v0.release == VllmV0Args::Release::v0_6_3; }
    [[nodiscard]] Group& group(Slot slot) { return groups_[slot]; }
    [[nodiscard]] std::int64_t tokens(Slot slot, const Branch& branch) const {
        return engine_.request(slot).prompt + branch.outputs;
    }
    [[nodiscard]] std::int64_t seats(const Group& group) const;
    [[nodiscard]] bool is_prefill(Slot slot) const { return !groups_[slot].branches.front().decoding; }
    [[nodiscard]] bool finished(const Group& group) const;
    [[nodiscard]] static Branch& waiting_branch(Group& group);

    void plan_default(Batch& batch);
    void plan_chunked(Batch& batch);
    void admission(Batch& batch, bool chunking);
    void run_running(Batch& batch, bool chunking);
    void swap_in_swapped(Batch& batch);
    void force_priority(Batch& batch);
    [[nodiscard]] std::optional<Bound> head_waits_on();
    void preempt(Batch& batch, Slot slot, bool forced);
    bool preempt_for(Batch& batch, Slot slot);
    void ignore(Slot slot);
    void book(Batch& batch);
    void async_stop_late(Batch& batch);

    [[nodiscard]] bool passed_delay();
    [[nodiscard]] PartialPrefills partial_prefills() const;
    [[nodiscard]] bool is_long(Slot slot) const;
    [[nodiscard]] NewTokens new_tokens(Slot slot, Branch::State state, bool chunking);
    [[nodiscard]] std::int64_t hit_tokens(Slot slot, Branch& branch);
    [[nodiscard]] std::int64_t touched(Slot slot, Branch::State state) const;
    [[nodiscard]] std::int64_t swap_need(Slot slot, Branch::State state, const V0Pool& target);
    [[nodiscard]] bool more_urgent(Slot a, Slot b) const;

    void make_keys(Slot slot, std::size_t branch, std::int64_t count);
    void place(Slot slot);
    void append(Slot slot);
    void move(Slot slot, Branch::State from, V0Pool& source, V0Pool& target, Branch::State to);
    void release(Branch& branch);

    void set_queue(Slot slot, Queue queue) { groups_[slot].queue = queue; }
    /// The finish test of one branch; a finished one gives its blocks back.
    bool end_branch(Slot slot, Branch& branch);
    void append_tokens(const Row& row, SimTime now, bool tests_end);
    void fork(Slot slot);
    void choose_beams(Slot slot);
    /// Async: finishes what the last step's outputs have finished; of one request only, if one is named.
    void process_pending();
    bool process_pending(Slot slot);

    const EngineArgs& args_;
    V0Pool gpu_;
    V0Pool cpu_;
    std::int64_t watermark_blocks_;
    std::int64_t long_threshold_;
    std::vector<Group> groups_;  // by slot
    std::deque<Slot> waiting_;
    std::deque<Slot> running_;
    std::deque<Slot> swapped_;
    Decision decision_;

    // Of the step that is planned.
    double now_ = 0;
    std::int64_t used_ = 0;  // tokens of the budget
    std::int64_t cached_ = 0;
    std::int64_t seats_ = 0;
    PartialPrefills partial_;
    Rows admitted_;
    Rows prefills_;
    Rows decodes_;
    Rows swapped_prefills_;
    Rows swapped_decodes_;
    std::vector<Slot> recomputed_;
    std::vector<Slot> moved_out_;
    std::vector<Slot> stopped_;  // async: dropped from the running queue, to finish with their pending output

    // Delay factor: the last asking, and whether the step of it admitted something.
    double asked_ = 0;
    bool admitted_since_ = false;
    double prompt_latency_ = 0;

    bool async_step_ = false;
    std::vector<std::pair<Slot, RequestId>> pending_;  // async: rows whose finish test is still to come
    SimDuration carried_{};                            // transfers of steps without rows

    // Of steady_steps().
    struct {
        /// Who of the running, in order, has each number of tokens mod block_size.
        std::vector<std::vector<std::uint32_t>> phases;
        std::size_t phase = 0;       // of those that take a block in the next step
        std::int64_t taken = 0;      // steps
        bool head_asks = false;      // somebody waits, and free blocks decide what for
        std::int64_t head_need = 0;  // blocks
        bool head_lacks = false;
        std::vector<std::uint32_t> movers;
    } steady_;
};

}  // namespace kvsim
