#pragma once
// The decisions of Engine with the vllm-v1 scheduler, at a cost proportional to what changes.
//
// It holds when: one block table per request, queue order fcfs, no long-prefill threshold, max_num_batched_tokens >=
// max_num_seqs. Then decoding requests never run out of token budget and at most one request is an unfinished prefill, the last
// of `running`. So all decoding requests advance together, and a step needs only
//   * their number and the sum of their contexts,
//   * who crosses into a new block: a request with `offset` (computed before batch k = k + offset) does so when
//     (k + offset) mod block_size == 0, so those of one phase stand in one list, in admission order,
//   * who gets its last token: a list per batch number.
// When blocks run short the crossers are walked in admission order and the victim is the tail of `running`.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvsim/base/ring.hpp"
#include "kvsim/engine/batch.hpp"
#include "kvsim/engine/engine.hpp"
#include "kvsim/engine/outcome.hpp"
#include "kvsim/engine/run_kv.hpp"
#include "kvsim/engine/token_meter.hpp"
#include "kvsim/model/engine_args.hpp"
#include "kvsim/model/step_time.hpp"

namespace kvsim {

class FastEngine {
public:
    /// Whether the arguments meet the conditions above. The workload must also keep its outputs private
    /// (Workload::outputs_are_private) when prefix caching is on.
    static bool handles(const EngineArgs& args);

    FastEngine(const EngineArgs& args, EngineListener& listener, Integrals& integrals, TokenMeter& tokens);

    Slot enqueue(NewRequest& request);
    void schedule(Batch& batch, SimTime now);
    void update(const Batch& batch, SimTime now);

    /// Whether the next schedule() only advances the decoders, as long as nobody comes, finishes or lacks a block.
    [[nodiscard]] bool steady() const { return steady_ && decoders_ > 0; }
    /// Advances over steps that end before `horizon` and change nothing but the contexts; `next` is the scheduled successor
    /// under async scheduling, else null; `end` is the end of `current`. Returns the time passed since `integrated`, for which
    /// the integrals of blocks and slots are done.
    SimDuration run_ahead(Batch& current, Batch* next, SimTime& end, SimTime integrated, SimTime horizon,
                          const StepTimeModel& step_time, Integrals& integrals, Counters& counters);

    [[nodiscard]] const EngineArgs& args() const { return args_; }
    [[nodiscard]] const RunKv& kv() const { return kv_; }
    [[nodiscard]] std::int64_t unfinished() const { return unfinished_; }
    [[nodiscard]] std::int64_t outstanding_tokens() const { return outstanding_; }
    [[nodiscard]] std::int64_t running_count() const { return running_count_; }
    [[nodiscard]] std::int64_t waiting_count() const { return static_cast<std::int64_t>(waiting_.size()); }
    [[nodiscard]] std::int64_t slots_per_block() const { return args_.block_size; }
    [[nodiscard]] std::int64_t used_blocks() const { return kv_.usable() - kv_.free(); }
    /// Reserved and internal slots together, as reserved; what was internal is moved when its request leaves.
    [[nodiscard]] HeldSlots held() const { return {table_blocks_ * args_.block_size - computed_, 0}; }
    [[nodiscard]] std::string describe() const;
    [[nodiscard]] std::vector<std::pair<RequestId, std::int64_t>> left_over() const;

private:
    static constexpr Slot none = 0xffffffff;
    enum class State : std::uint8_t { waiting, preempted, prefilling, decoding, draining };
    struct Links {
        Slot previous = none;
        Slot next = none;
    };
    struct List {
        Slot first = none;
        Slot last = none;
        std::int64_t count = 0;
    };

    struct Live {
        RequestId id = 0;
        std::int32_t prompt = 0;
        std::int32_t max_tokens = 0;
        std::int32_t outputs = 0;   // as of its last preemption
        std::int32_t computed = 0;  // while not decoding
        std::int32_t high_water = 0;
        std::int32_t registered = 0;  // tokens published when its prefill ended
        State state = State::waiting;
        bool measured = true;
        bool admitted_before = false;
        bool has_token = false;
        std::int64_t offset = 0;      // decoding: computed before batch k is k + offset
        std::int64_t last_batch = 0;  // the batch that yields its last token
        std::uint64_t order = 0;      // admission order
        SimTime last_token{};         // kept when preempted
        SimTime last_block = never;   // when its prefill took its last block; never: it decodes into it
        Links run;
        Links phase;
        Links bucket;
        RunKv::Holding kv;
        std::vector<TokenRun> content;
    };

    void push(List& list, Links Live::*links, Slot slot);
    void unlink(List& list, Links Live::*links, Slot slot);
    [[nodiscard]] List& phase_list(const Live& live);
    [[nodiscard]] List& bucket(std::int64_t batch) { return buckets_[static_cast<std::size_t>(batch) & bucket_mask_]; }
    /// Whether somebody gets its last token in that batch; its bucket may hold others, whole turns of the ring later.
    [[nodiscard]] bool somebody_ends_in(std::int64_t batch) {
        for (Slot slot = bucket(batch).first; slot != none; slot = lives_[slot]->bucket.next) {
            if (lives_[slot]->last_batch == batch) return true;
        }
        return false;
    }
    [[nodiscard]] std::int64_t blocks(std::int64_t computed) const { return ceil_div(computed, args_.block_size); }

    void plan_decoders(Batch& batch);
    void plan_prefilling(Batch& batch);
    void plan_waiting(Batch& batch);
    void place(Batch& batch, Slot slot, std::int64_t tokens);
    void close_plan(Batch& batch);
    void start_decoding(Slot slot);
    void stop_decoding(Slot slot);
    void preempt(Batch& batch);
    void finish(Slot slot);
    void leave_running(Live& live, std::int64_t registered_tokens);

    EngineArgs args_;
    EngineListener& listener_;
    Integrals& integrals_;
    TokenMeter& tokens_;
    RunKv kv_;
    std::int64_t watermark_blocks_;

    std::vector<std::unique_ptr<Live>> lives_;  // by slot; stable addresses for RunKv
    std::vector<Slot> free_slots_;
    Ring<Slot> waiting_;
    List running_;
    std::int64_t running_count_ = 0;
    Slot prefilling_ = none;

    std::int64_t batch_ = 0;  // the batch to be scheduled next; batches without rows do not count
    std::int64_t step_ = 0;   // schedule() calls
    std::int64_t decoders_ = 0;
    std::int64_t measured_decoders_ = 0;
    std::int64_t decode_context_ = 0;  // sum of the decoders' computed tokens
    std::int64_t computed_ = 0;        // sum over all running requests
    std::int64_t table_blocks_ = 0;    // sum of their tables' lengths
    std::vector<List> phases_;         // by (-offset) mod block_size: crosses when batch mod block_size is that
    std::vector<List> buckets_;        // by last_batch
    std::size_t bucket_mask_ = 0;
    std::vector<SimTime> scheduled_at_;  // of the latest batches, ring
    std::size_t scheduled_mask_ = 0;

    std::vector<Slot> in_flight_;  // async: preempted with a token in flight
    std::vector<Slot> leaving_;    // scratch
    std::int64_t budget_ = 0;
    SimTime now_{};
    SimTime last_update_{};
    bool steady_ = false;  // until a finish or preemption the next schedule() only advances the decoders
    std::uint64_t admissions_ = 0;
    std::int64_t unfinished_ = 0;
    std::int64_t outstanding_ = 0;
};

}  // namespace kvsim
