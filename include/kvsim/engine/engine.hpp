#pragma once
// One engine without its clock: the requests it holds, and the verbs that move them. schedule() and update() alternate as the
// driver (Replica with a clock, conformance with unit steps) says.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvsim/engine/batch.hpp"
#include "kvsim/engine/kv_manager.hpp"
#include "kvsim/engine/outcome.hpp"
#include "kvsim/engine/request.hpp"
#include "kvsim/engine/scheduler.hpp"
#include "kvsim/engine/step_record.hpp"
#include "kvsim/engine/waiting_queue.hpp"
#include "kvsim/model/engine_args.hpp"

namespace kvsim {

/// A request that joins an engine's waiting queue.
struct NewRequest {
    RequestId id = 0;
    std::int64_t prompt = 0;      ///< tokens, >= 1 and < max_model_len
    std::int64_t max_tokens = 0;  ///< output tokens asked for; cut to max_model_len - prompt
    std::int64_t priority = 0;
    std::int64_t arrival_rank = 0;  ///< orders priority ties: order of arrival; in a recording the rank of its time
    std::string tie_id;             ///< orders ties of both, compared as text; empty: the decimal id
    std::vector<TokenRun> content;  ///< as Arrival::prompt
    std::uint64_t output_base = 0;
    bool measured = true;
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
    /// `count` requests, `measured` of them not cut as warm-up, got a token `gap` after their last one.
    virtual void on_next_tokens(std::int64_t /*count*/, std::int64_t /*measured*/, SimDuration /*gap*/, SimTime /*now*/) {}
    virtual void on_finished(RequestId, std::int64_t /*outputs*/, SimTime /*now*/) {}
    /// Before on_finished(), after Engine::keep_gaps(): all gaps between its tokens, ns; the listener may reorder them.
    virtual void on_gaps(RequestId, std::vector<std::int64_t>& /*gaps*/) {}
};

/// What was done for a request that was aborted.
struct Aborted {
    std::int64_t outputs = 0;    ///< received
    std::int64_t scheduled = 0;  ///< tokens scheduled for it, recomputed ones included
};

class Engine {
public:
    /// Blocks that requests can use: num_gpu_blocks less the null block.
    Engine(const EngineArgs& args, EngineListener& listener);

    // ---- for the driver
    /// A new request joins the waiting queue; `prompt` < max_model_len. The caller has filled id, priority, lengths, content.
    /// The slot names it until it leaves.
    Slot enqueue(NewRequest& request);  ///< may take over its storage
    /// Decides the next step and advances its requests' `computed`; the batch may be empty.
    void schedule(Batch& batch, SimTime now);
    /// The batch's results arrive: tokens are credited, finished requests leave at once. In row order.
    void update(const Batch& batch, SimTime now);
    /// The request leaves at once, whatever its state: its blocks are free when this returns. Rows of it in flight still cost
    /// their time, and nobody receives their tokens (vLLM: Scheduler.finish_requests with FINISHED_ABORTED). The listener is
    /// not told.
    Aborted abort(Slot slot);
    /// From here on every request's gaps between tokens are kept until it leaves, for on_gaps().
    void keep_gaps() { keep_gaps_ = true; }
    /// Requests that got a token or finished in the last update(), in order.
    [[nodiscard]] const std::vector<RequestId>& received() const { return received_; }
    [[nodiscard]] const std::vector<RequestId>& finished() const { return finished_; }

    [[nodiscard]] std::int64_t unfinished() const { return unfinished_; }
    [[nodiscard]] const EngineArgs& args() const { return args_; }
    [[nodiscard]] HeldSlots held() const { return held_; }
    [[nodiscard]] std::int64_t slots_per_block() const { return slots_per_block_; }
    [[nodiscard]] std::int64_t used_blocks() const { return kv_->usable() - kv_->free(); }
    [[nodiscard]] std::int64_t running_count() const { return static_cast<std::int64_t>(running_.size()); }
    [[nodiscard]] std::int64_t waiting_count() const { return static_cast<std::int64_t>(waiting_->size()); }
    [[nodiscard]] std::int64_t outstanding_tokens() const { return outstanding_; }

    /// One line for the stall report.
    [[nodiscard]] std::string describe() const;
    [[nodiscard]] std::vector<std::pair<RequestId, std::int64_t>> left_over() const;

    // ---- for schedulers
    [[nodiscard]] std::span<const Slot> running() const { return running_; }
    [[nodiscard]] WaitingQueue& waiting() { return *waiting_; }
    [[nodiscard]] const WaitingQueue& waiting() const { return *waiting_; }
    [[nodiscard]] LiveRequest& request(Slot slot) { return requests_[slot]; }
    [[nodiscard]] const LiveRequest& request(Slot slot) const { return requests_[slot]; }
    [[nodiscard]] KvManager& kv() { return *kv_; }
    [[nodiscard]] const KvManager& kv() const { return *kv_; }
    /// Blocks kept free at admission (watermark).
    [[nodiscard]] std::int64_t watermark_blocks() const { return watermark_blocks_; }

    /// The head of the waiting queue starts to run with `tokens` new tokens after its prefix hit.
    void admit(Batch& batch, PrefixHit hit, std::int64_t tokens);
    /// A running request gets `tokens` more, with `new_blocks` <= kv().free() blocks for them.
    void extend(Batch& batch, Slot slot, std::int64_t tokens, std::int64_t new_blocks);
    /// running()[index] loses its blocks and goes back to the waiting queue; returns the tokens of its dropped row (0: it had
    /// none).
    std::int64_t preempt(Batch& batch, std::size_t index);

private:
    void prefill(Batch& batch, const LiveRequest& request, const BatchRow& row);
    void decode(Batch& batch, const LiveRequest& request, const BatchRow& row);
    void finish(Slot slot, SimTime now);
    void leave(Slot slot);
    void advance(Batch& batch);
    void account(LiveRequest& request);
    void account_tables(LiveRequest& request);
    void check_invariants() const;

    EngineArgs args_;
    EngineListener& listener_;
    std::vector<LiveRequest> requests_;  // by slot
    std::vector<Slot> free_slots_;
    std::vector<Slot> running_;  // in admission order
    std::unique_ptr<WaitingQueue> waiting_;
    std::unique_ptr<KvManager> kv_;
    std::unique_ptr<Scheduler> scheduler_;
    std::int64_t watermark_blocks_;
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
};

/// The scheduled half of a step's record.
void fill_scheduled(StepRecord& record, const Engine& engine, const Batch& batch);
/// The half after the update.
void fill_updated(StepRecord& record, const Engine& engine);

/// "; the head of the queue ...": what the first waiting request needs, for the stall report.
std::string describe_head(const std::string& name, std::int64_t prompt, std::int64_t outputs, std::int64_t max_tokens,
                          const EngineArgs& args, std::int64_t watermark_blocks);

}  // namespace kvsim
