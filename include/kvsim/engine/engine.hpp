#pragma once
// One engine without its clock: the requests it holds, and the verbs that move them. schedule() and update() alternate as the
// driver (Replica with a clock, conformance with unit steps) says.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvsim/engine/batch.hpp"
#include "kvsim/engine/kv_manager.hpp"
#include "kvsim/engine/outcome.hpp"
#include "kvsim/engine/policy.hpp"
#include "kvsim/engine/request.hpp"
#include "kvsim/engine/scheduler.hpp"
#include "kvsim/engine/step_record.hpp"
#include "kvsim/engine/waiting_queue.hpp"
#include "kvsim/model/engine_args.hpp"
#include "kvsim/model/step_time.hpp"

namespace kvsim {

/// A request that joins an engine's waiting queue: what every engine asks for.
struct PlainRequest {
    RequestId id = 0;
    std::int64_t prompt = 0;      ///< tokens, >= 1, with room for an output token (EngineArgs::output_limit)
    std::int64_t max_tokens = 0;  ///< output tokens asked for, of each sequence; cut to what there is room for
    bool measured = true;
};

struct NewRequest : PlainRequest {
    std::int64_t sequences = 1;  ///< outputs that share the prompt; only some batch policies keep them together
    std::int64_t limit = 0;      ///< as LiveRequest::limit
    bool ignore_eos = true;      ///< as LiveRequest::ignore_eos
    SimTime arrival{};           ///< at the front end
    std::int64_t priority = 0;
    std::int64_t arrival_rank = 0;  ///< orders priority ties: order of arrival; in a recording the rank of its time
    std::string tie_id;             ///< orders ties of both, compared as text; empty: the decimal id
    std::vector<TokenRun> content;  ///< as Arrival::prompt
    std::uint64_t output_base = 0;
    std::uint64_t beam_seed = 0;            ///< as Arrival::beam_seed
    std::vector<std::int64_t> output_lens;  ///< of each sequence, which ends there by itself; empty: all are max_tokens long
    std::string request_class;              ///< both only where a policy looks at them (PolicyArgs::any)
    std::string tenant;
};

/// What was done for a request that left unfinished.
struct Aborted {
    std::int64_t outputs = 0;    ///< received
    std::int64_t scheduled = 0;  ///< tokens scheduled for it, recomputed ones included
};

/// What an engine tells about its requests; the default ignores everything. `now` is the instant of the step's end or start.
class EngineListener {
public:
    virtual ~EngineListener() = default;
    /// It was given blocks. `tokens`: its prompt, on a resume its received outputs too; `hit` of them were cached.
    virtual void on_admitted(RequestId, bool /*resumed*/, std::int64_t /*tokens*/, std::int64_t /*hit*/, SimTime /*now*/) {}
    virtual void on_recompute(RequestId, std::int64_t /*tokens*/) {}
    virtual void on_preempted(RequestId) {}
    virtual void on_first_token(RequestId, SimTime /*now*/) {}
    /// First tokens of the other sequences of a request, which has its own already.
    virtual void on_sibling_tokens(std::int64_t /*count*/, SimTime /*now*/) {}
    /// `count` requests, `measured` of them not cut as warm-up, got a token `gap` after their last one.
    virtual void on_next_tokens(std::int64_t /*count*/, std::int64_t /*measured*/, SimDuration /*gap*/, SimTime /*now*/) {}
    /// Before on_finished(), of engines that take requests one by one: the tokens of all its rows, recomputed ones included.
    virtual void on_work(RequestId, std::int64_t /*scheduled*/) {}
    virtual void on_finished(RequestId, std::int64_t /*outputs*/, SimTime /*now*/) {}
    /// It was dropped by the engine, which can never run it (again).
    virtual void on_dropped(RequestId, const Aborted& /*work*/, SimTime /*now*/) {}
    /// Before on_finished(), after Engine::keep_gaps(): all gaps between its tokens, ns; the listener may reorder them.
    virtual void on_gaps(RequestId, std::vector<std::int64_t>& /*gaps*/) {}
};

class Engine {
public:
    static constexpr bool moves_decoders_together = false;
    static constexpr bool has_ids = true;
    using Request = NewRequest;
    /// What run_ahead() passed over. The changes of held() and used_blocks() are summed, each times its instant.
    struct Ahead {
        std::int64_t steps = 0;
        std::int64_t least_free = 0;  ///< blocks, after any of them: some come back where their content is known
        std::int64_t rows = 0;        ///< of each step
        Bound bound = Bound::no_waiting;
        SimDuration priced{};  ///< of the steps that were scheduled
        Int128 used_dt = 0;
        Int128 reserved_dt = 0;
        Int128 internal_dt = 0;
    };

    /// The batch policy is the one of EngineArgs::batching, which was checked.
    Engine(const EngineArgs& args, EngineListener& listener);

    // ---- for the driver
    /// A new request joins the waiting queue; `prompt` < max_model_len. The caller has filled id, priority, lengths, content.
    /// The slot names it until it leaves.
    Slot enqueue(NewRequest& request);  ///< may take over its storage
    /// Decides the next step; the batch may be empty.
    void schedule(Batch& batch, SimTime now);
    /// The batch's results arrive: tokens are credited, finished requests leave at once. In row order.
    void update(const Batch& batch, SimTime now);
    /// The request leaves at once, whatever its state: its blocks are free when this returns. Rows of it in flight still cost
    /// their time, and nobody receives their tokens (vLLM: Scheduler.finish_requests with FINISHED_ABORTED). The listener is
    /// not told.
    Aborted abort(Slot slot);
    /// Passes over steps that end before `horizon` and only give each running request another token (Scheduler::steady_steps),
    /// as single steps would. `next` is the scheduled successor of `current`, or null; `end` is the end of `current`, `line`
    /// the price of a step of current's rows.
    Ahead run_ahead(Batch& current, Batch* next, SimTime& end, SimTime horizon, const DecodeLine& line);
    /// From here on every request's gaps between tokens are kept until it leaves, for on_gaps().
    void keep_gaps() { keep_gaps_ = true; }
    /// Requests that got a token or finished in the last update(), in order.
    [[nodiscard]] const std::vector<RequestId>& received() const { return received_; }
    /// Those that left in the schedule() before it come first.
    [[nodiscard]] const std::vector<RequestId>& finished() const { return finished_; }
    /// Left in schedule() since the last update().
    [[nodiscard]] const std::vector<RequestId>& finished_in_schedule() const { return early_; }
    /// What a step that computes so many tokens as one prompt takes, >= 1; needs a driver that prices steps.
    [[nodiscard]] SimDuration price_of_prompt(std::int64_t tokens) const;
    void price_by(const StepTimeModel& model) { prices_ = &model; }
    /// Instant of the last schedule() or update().
    [[nodiscard]] SimTime now() const { return now_; }

    [[nodiscard]] std::int64_t unfinished() const { return unfinished_; }
    /// A step has something to do.
    [[nodiscard]] bool has_work() const { return unfinished_ > 0 || scheduler_->pending(); }
    [[nodiscard]] const EngineArgs& args() const { return args_; }
    [[nodiscard]] HeldSlots held() const { return held_; }
    [[nodiscard]] std::int64_t slots_per_block() const { return slots_per_block_; }
    [[nodiscard]] std::int64_t usable_blocks() const { return scheduler_->pool().usable(); }
    [[nodiscard]] std::int64_t free_blocks() const { return scheduler_->pool().free(); }
    [[nodiscard]] std::int64_t used_blocks() const { return usable_blocks() - free_blocks(); }
    [[nodiscard]] std::int64_t saved_blocks() const { return scheduler_->pool().saved(); }
    [[nodiscard]] std::int64_t running_count() const { return scheduler_->running_count(); }
    [[nodiscard]] std::int64_t waiting_count() const { return scheduler_->waiting_count(); }
    /// The head of the queue lacks blocks for its tokens, while a seat is free and blocks for all tokens of somebody behind it.
    [[nodiscard]] bool head_blocks_others() const;
    [[nodiscard]] std::int64_t outstanding_tokens() const { return outstanding_; }
    [[nodiscard]] const Scheduler& scheduler() const { return *scheduler_; }

    /// One line for the stall report.
    [[nodiscard]] std::string describe() const;
    [[nodiscard]] std::vector<std::pair<RequestId, std::int64_t>> left_over() const;
    /// WaitingQueue::unmet_names().
    [[nodiscard]] std::vector<std::string> unmet_names() const { return scheduler_->unmet_names(); }

    // ---- for schedulers
    [[nodiscard]] LiveRequest& request(Slot slot) { return requests_[slot]; }
    [[nodiscard]] const LiveRequest& request(Slot slot) const { return requests_[slot]; }
    /// By slot; grows as requests arrive.
    [[nodiscard]] const std::vector<LiveRequest>& requests() const { return requests_; }

    /// The number of a class or tenant name, the same for equal names; "" is -1.
    [[nodiscard]] std::int32_t label(const std::string& name);
    [[nodiscard]] std::string_view label_name(std::int32_t label) const { return labels_[static_cast<std::size_t>(label)]; }

    /// It runs from here on, with `cached` tokens of its KV found. Its state becomes running.
    void admitted(Slot slot, std::int64_t cached);
    /// It lost its KV. Its state becomes preempted, its `computed` 0.
    void preempted(Batch& batch, Slot slot);
    /// Its KV moved away: it is preempted with its `computed` tokens, until it is resumed with them.
    void swapped_out(Batch& batch, Slot slot);
    void swapped_in(Slot slot);
    /// The row is final: its work enters the step's shape. Counts recomputed tokens by `high_water`. A decode row may stand
    /// for several `sequences` of the request, which have the same context.
    void book(Batch& batch, const BatchRow& row, std::int64_t sequences = 1);
    /// A row for its next token that yields nothing and leaves it where it is: it costs its time.
    void idle(Batch& batch, Slot slot);
    /// `computed` or the blocks of the request have changed: its part of the accounts follows.
    void account(Slot slot);
    /// The same, where the policy knows what the request holds unfilled.
    void account(LiveRequest& request, HeldSlots held);
    /// One more token for each of `sequences` of the request, at the end of the step in update(). True: it was the last.
    bool credit(Slot slot, SimTime now, std::int64_t sequences = 1);
    /// Its last token was credited: it leaves (Scheduler::remove), in update() or in schedule().
    void finish(Slot slot, SimTime now);
    /// It can never run, or never again: it leaves unfinished.
    void drop(Slot slot, SimTime now);

private:
    void prefill(Batch& batch, const BatchRow& row);
    void decode(Batch& batch, const BatchRow& row, std::int64_t sequences);
    void leave(Slot slot);
    void account(LiveRequest& request);
    void tell_next_tokens();
    void check_invariants() const;
    bool note_steady(std::int64_t steps);
    void pass(Slot slot, std::int64_t steps);

    EngineArgs args_;
    EngineListener& listener_;
    std::vector<LiveRequest> requests_;  // by slot
    std::vector<Slot> free_slots_;
    std::int64_t slots_per_block_;
    std::vector<WindowContext> windows_;  // of the block groups, each once
    std::int64_t unfinished_ = 0;
    std::int64_t outstanding_ = 0;
    std::int64_t step_ = 0;
    bool keep_gaps_ = false;
    SimTime now_{};
    HeldSlots held_;
    std::vector<RequestId> received_;
    std::vector<RequestId> finished_;
    std::vector<RequestId> early_;  // finished in schedule(), for the next update()
    bool scheduling_ = false;
    // Decoding requests got their last tokens together, so nearly all of a step have one gap: they are told as one.
    struct {
        std::int64_t count = 0;
        std::int64_t measured = 0;
        SimDuration gap{};
    } next_tokens_;
    // Of run_ahead(): the rows, how many have each computed mod slots_per_block(), and what the last blocks of requests, taken
    // at a step, hold beyond their ends.
    struct {
        std::vector<Slot> rows;
        std::vector<std::int64_t> phases;
        std::vector<std::int64_t> beyond;
        std::vector<std::int64_t> gaps;
        std::int64_t measured = 0;
        SimTime last_token{};
    } steady_;
    std::vector<std::string> labels_;
    std::unique_ptr<LengthPredictor> predictor_;  // null: nobody asks
    const StepTimeModel* prices_ = nullptr;
    std::unique_ptr<Scheduler> scheduler_;
};

// ---- once a row

inline void Engine::decode(Batch& batch, const BatchRow& row, std::int64_t sequences) {
    const std::int64_t context = row.computed + 1;
    batch.shape.shortest_context = batch.shape.decode_rows == 0 ? context : std::min(batch.shape.shortest_context, context);
    batch.shape.longest_context = std::max(batch.shape.longest_context, context);
    batch.shape.tokens += sequences;
    batch.shape.decode_rows += sequences;
    batch.shape.decode_context += sequences * context;
    for (WindowContext& window : batch.windows) window.context += sequences * window.attended(context);
}

inline void Engine::book(Batch& batch, const BatchRow& row, std::int64_t sequences) {
    LiveRequest& request = requests_[row.slot];
    batch.shape.sequences += sequences;
    if (row.tokens == 1) {
        decode(batch, row, sequences);
    } else {
        prefill(batch, row);
    }
    const std::int64_t redone =
        std::max<std::int64_t>(0, std::min(request.high_water, row.computed + row.tokens) - row.computed);
    if (redone > 0) {
        batch.recomputed_tokens += redone;
        listener_.on_recompute(request.id, redone);
    }
    request.high_water = std::max(request.high_water, row.computed + row.tokens);
    request.scheduled += row.tokens * sequences;
    batch.shape.sampled += row.samples ? sequences : 0;
}

inline void Engine::idle(Batch& batch, Slot slot) {
    decode(batch, {slot, 1, requests_[slot].computed}, 1);
    ++batch.shape.sequences;
    ++batch.shape.sampled;
    ++requests_[slot].scheduled;
}

inline void Engine::account(LiveRequest& request, HeldSlots held) {
    held_.reserved += held.reserved - request.reserved_slots;
    held_.internal += held.internal - request.internal_slots;
    request.reserved_slots = held.reserved;
    request.internal_slots = held.internal;
    const std::int64_t outstanding = request.final_computed() - request.computed;
    outstanding_ += outstanding - request.outstanding;
    request.outstanding = outstanding;
}

inline bool Engine::credit(Slot slot, SimTime now, std::int64_t sequences) {
    LiveRequest& request = requests_[slot];
    const bool first = request.outputs == 0;
    request.outputs += sequences;
    if (first) {
        listener_.on_first_token(request.id, now);
        if (sequences > 1) listener_.on_sibling_tokens(sequences - 1, now);
    } else {
        const SimDuration gap = now - request.last_token;
        if (gap != next_tokens_.gap) {
            now_ = now;
            tell_next_tokens();
            next_tokens_.gap = gap;
        }
        next_tokens_.count += sequences;
        next_tokens_.measured += request.measured ? sequences : 0;
        if (keep_gaps_) request.gaps.insert(request.gaps.end(), static_cast<std::size_t>(sequences), gap.count());
    }
    request.last_token = now;
    received_.push_back(request.id);
    return request.outputs == request.max_tokens;
}

/// The scheduled half of a step's record.
void fill_scheduled(StepRecord& record, const Engine& engine, const Batch& batch);
/// The half after the update.
void fill_updated(StepRecord& record, const Engine& engine);

/// "; the head of the queue ...": what the first waiting request needs, for the stall report.
std::string describe_head(const std::string& name, std::int64_t prompt, std::int64_t outputs, std::int64_t max_tokens,
                          const EngineArgs& args, std::int64_t watermark_blocks);

}  // namespace kvsim
