#pragma once
// The decisions of Engine with the vllm-v1 scheduler, at a cost proportional to what changes.
//
// It holds when: one block table per request, queue order fcfs, no long-prefill threshold, max_num_batched_tokens >=
// max_num_seqs. Then decoding requests never run out of token budget and at most one request is an unfinished prefill, the last
// of `running`. So all decoding requests advance together, and a step needs only
//   * their number and the sum of their contexts,
//   * how many cross into a new block: a request with `offset` (computed before batch k = k + offset) does so when
//     (k + offset) mod block_size == 0, so they are counted by phase,
//   * who gets its last token: a list per batch number.
// When blocks run short the victim is the tail of `running`, until those that are left cross no more than there are blocks.
//
// With keep_ids() blocks have ids and the rows of a step can be told, at a cost per row when they are asked for.
//
// The head of the waiting queue that found too few blocks need not be asked again: blocks only become fewer, and its hit only
// shorter, until somebody finishes, is preempted, or is placed.

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvsim/base/ring.hpp"
#include "kvsim/engine/decode_prices.hpp"
#include "kvsim/engine/engine.hpp"
#include "kvsim/engine/held_integrals.hpp"
#include "kvsim/engine/outcome.hpp"
#include "kvsim/engine/run_kv.hpp"
#include "kvsim/engine/step_record.hpp"
#include "kvsim/engine/token_meter.hpp"
#include "kvsim/model/engine_args.hpp"
#include "kvsim/model/step_time.hpp"

namespace kvsim {

/// Whether the arguments meet the conditions above. The workload must also keep its outputs private
/// (Workload::outputs_are_private) when prefix caching is on.
bool fast_engine_handles(const EngineArgs& args);

/// `Listener` has the functions of EngineListener; where it is the final class itself, calls cost nothing. `Kv`: RunKv, or
/// CountedKv where it is enough.
template <class Listener = EngineListener, class Kv = RunKv>
class FastEngine {
public:
    static constexpr bool moves_decoders_together = true;
    static constexpr bool has_ids = !Kv::counts_only;
    using Request = std::conditional_t<Kv::counts_only, PlainRequest, NewRequest>;
    struct Live;

    /// A row that prefills, where ids are kept.
    struct PrefillRow {
        const Live* live = nullptr;
        std::int64_t tokens = 0;
        std::int64_t computed = 0;
        std::int64_t blocks_from = 0;  ///< the row's new blocks start here in the table
        ScheduledRow::Kind kind = ScheduledRow::Kind::running;
        bool samples = false;
    };

    /// One step's batch: decoding requests by number, those that prefill one by one.
    struct Batch {
        std::int64_t step = 0;    ///< counts schedule()
        std::int64_t number = 0;  ///< counts batches with rows
        std::int64_t decoders = 0;
        std::int64_t measured_decoders = 0;
        SimDuration duration{};
        bool ends = false;         ///< it yields somebody's last token
        std::int64_t context = 0;  ///< of the decoders with this step's tokens; until the batch is priced
        bool prefills = false;     ///< it has rows besides the decoders; else what follows is empty
        std::int64_t prefill_rows = 0;
        std::int64_t prefill_tokens = 0;
        std::int64_t single_context = 0;  ///< of prefill rows with one token, which cost what decode rows do
        std::vector<PrefillChunk> chunks;
        std::vector<Live*> completing;  ///< their prefill ends in it
        // What schedule() found.
        std::int64_t recomputed_tokens = 0;
        std::int64_t preempted = 0;
        Bound bound = Bound::no_waiting;
        // Where ids are kept; in row order.
        std::vector<PrefillRow> prefill_list;  // behind the decoders
        std::vector<RequestId> received;       // will get a token; filled by record_scheduled()
        std::vector<RequestId> victims;

        [[nodiscard]] bool empty() const { return decoders == 0 && !prefills; }
        [[nodiscard]] std::int64_t rows() const { return prefills ? decoders + prefill_rows : decoders; }
        [[nodiscard]] std::int64_t tokens() const { return prefills ? decoders + prefill_tokens : decoders; }
        [[nodiscard]] std::int64_t decode_rows() const {
            return prefills ? decoders + prefill_rows - static_cast<std::int64_t>(chunks.size()) : decoders;
        }
        [[nodiscard]] std::int64_t sampled() const { return decoders + static_cast<std::int64_t>(completing.size()); }
        /// What it costs depends on.
        [[nodiscard]] StepShape shape() const {
            StepShape shape;
            shape.tokens = tokens();
            shape.sequences = rows();
            shape.sampled = sampled();
            shape.decode_rows = decode_rows();
            shape.decode_context = context + single_context;
            shape.chunks = chunks;
            return shape;
        }
        /// For so many prefills that end in one step no later one allocates.
        void reserve(std::int64_t most) {
            completing.reserve(static_cast<std::size_t>(most));
            chunks.reserve(static_cast<std::size_t>(most));
        }
        void clear_prefills() {
            if (!prefills) return;
            prefills = false;
            prefill_rows = prefill_tokens = single_context = 0;
            chunks.clear();
            completing.clear();
        }
        void clear() {
            decoders = 0;
            ends = false;
            clear_prefills();
            recomputed_tokens = preempted = 0;
            bound = Bound::no_waiting;
        }
        void clear_lists() {
            prefill_list.clear();
            received.clear();
            victims.clear();
        }
    };

    /// What run_ahead() passed over.
    struct Ahead {
        std::int64_t steps = 0;
        std::int64_t rows = 0;  ///< of all of them
        std::int64_t preempted = 0;
    };

    FastEngine(const EngineArgs& args, Listener& listener, Integrals& integrals, TokenMeter& tokens);

    /// Before the first request: blocks have ids, and steps can be recorded.
    void keep_ids() {
        if constexpr (!Kv::counts_only) kv_.keep_ids();
        named_crossers_.resize(crossers_.size());
    }

    /// A new request joins the waiting queue.
    void enqueue(Request& request);  ///< may take over its storage
    /// Both as Engine's.
    void schedule(Batch& batch, SimTime now);
    void update(const Batch& batch, SimTime now);
    /// The scheduled half of a step's record, right after schedule(); needs keep_ids().
    void record_scheduled(StepRecord& record, Batch& batch) const;
    /// The half after the update.
    void record_updated(StepRecord& record) const;
    /// Requests that finished in the last update(), in order; where ids are kept.
    [[nodiscard]] const std::vector<RequestId>& finished() const { return finished_; }

    /// Whether the next schedule() only advances the decoders, or preempts some, as long as nobody comes or finishes.
    [[nodiscard]] bool steady() const { return steady_ && decoders_ > 0; }
    [[nodiscard]] std::int64_t decoders() const { return decoders_; }
    /// Whether somebody gets its last token in that batch.
    [[nodiscard]] bool somebody_ends_in(std::int64_t batch);
    /// Advances over steps that end before `horizon` and at whose ends nobody is admitted, though first tokens may come in
    /// them, last ones up to `last_finish` while nobody waits, and preemptions before `next_arrival`. `next` is the scheduled
    /// successor of `current` under async scheduling; `end` is the end of `current`.
    Ahead run_ahead(Batch*& current, Batch*& next, bool async, SimTime& end, SimTime horizon, SimTime last_finish,
                    SimTime next_arrival, DecodePrices& prices);

    [[nodiscard]] const EngineArgs& args() const { return args_; }
    [[nodiscard]] const Kv& kv() const { return kv_; }
    [[nodiscard]] std::int64_t unfinished() const { return unfinished_; }
    [[nodiscard]] std::int64_t outstanding_tokens() const { return work_ - advanced_ - other_computed_; }
    [[nodiscard]] std::int64_t running_count() const { return running_count_; }
    [[nodiscard]] std::int64_t waiting_count() const { return static_cast<std::int64_t>(waiting_.size()); }
    [[nodiscard]] std::int64_t slots_per_block() const { return args_.block_size; }
    [[nodiscard]] bool has_work() const { return unfinished() > 0; }
    [[nodiscard]] std::int64_t usable_blocks() const { return kv_.usable(); }
    [[nodiscard]] std::int64_t used_blocks() const { return kv_.usable() - kv_.free(); }
    /// Reserved and internal slots together, as reserved; what was internal is moved when its request leaves.
    [[nodiscard]] HeldSlots held() const { return {held_integrals_.reserved(), 0}; }
    /// The same, each where it belongs.
    [[nodiscard]] HeldSlots held_apart() const;
    /// Of the integral of reserved slots up to `now`, what those that run will move.
    [[nodiscard]] Int128 internal_until(SimTime now) const;
    [[nodiscard]] const HeldIntegrals& held_integrals() const { return held_integrals_; }
    [[nodiscard]] std::string describe() const;
    [[nodiscard]] std::vector<std::pair<RequestId, std::int64_t>> left_over() const;
    [[nodiscard]] static std::vector<std::string> unmet_names() { return {}; }  // it has no such orders

private:
    enum class State : std::uint8_t { waiting, preempted, prefilling, decoding, draining };
    struct Links {
        Live* previous = nullptr;
        Live* next = nullptr;
    };
    struct List {
        Live* first = nullptr;
        Live* last = nullptr;
    };

    static void push(List& list, Live& live, Links Live::*links);
    static void unlink(List& list, const Live& live, Links Live::*links);

    [[nodiscard]] List& bucket(std::int64_t batch) { return buckets_[static_cast<std::size_t>(batch) & (ends_in_sight - 1)]; }
    void make_live();
    void enter_bucket(Live& live);
    void leave_bucket(const Live& live);
    [[nodiscard]] std::int64_t next_end_from(std::int64_t first);
    [[nodiscard]] bool bound_stays(Bound bound) const;
    [[nodiscard]] std::int64_t blocks(std::int64_t computed) const {
        return block_shift_ >= 0 ? (computed + args_.block_size - 1) >> block_shift_ : ceil_div(computed, args_.block_size);
    }

    std::int64_t pass_many(Batch& first, Batch& last, SimTime& end, SimTime horizon, const DecodeLine& line);
    [[nodiscard]] std::int64_t steps_in_time(std::int64_t most, std::int64_t room, std::int64_t longest) const;
    void update_others(const Batch& batch);
    bool pass_mixed(Batch& batch, SimTime now, Bound bound, SimTime last_finish, SimTime next_arrival);
    void advance(Batch& batch, std::int64_t crossers, SimTime now);
    void note_peak() { integrals_.blocks_used_peak = std::max(integrals_.blocks_used_peak, used_blocks()); }
    void count_batch(Batch& batch, SimTime now);
    [[nodiscard]] std::size_t next_phase(std::size_t phase) const {
        return static_cast<std::int64_t>(phase) + 1 == args_.block_size ? 0 : phase + 1;
    }
    /// It just gives each of the decoders a token.
    [[nodiscard]] bool is_plain(const Batch& batch) const { return !batch.prefills && batch.decoders == decoders_; }
    void take_tokens(const Batch& batch);
    void finish_all(std::int64_t batch);
    [[nodiscard]] SimTime& scheduled_at(std::int64_t batch) {
        return scheduled_at_[static_cast<std::size_t>(batch) & scheduled_mask_];
    }
    [[nodiscard]] SimTime scheduled_at(std::int64_t batch) const {
        return scheduled_at_[static_cast<std::size_t>(batch) & scheduled_mask_];
    }
    void plan_decoders(Batch& batch);
    void plan_prefilling(Batch& batch);
    [[nodiscard]] bool lacks_blocks(PrefixHit hit, std::int64_t total, std::int64_t tokens);
    [[nodiscard]] bool held_back_in_next();
    [[nodiscard]] bool only_preempts(Bound bound) const;
    void plan_waiting(Batch& batch);
    void place(Batch& batch, Live& live, std::int64_t tokens, std::int64_t held);
    void name_crossers();
    static void note_row(Batch& batch, const PrefillRow& row);
    void close_plan(Batch& batch);
    bool release_ended(std::int64_t batch);
    void start_decoding(Live& live);
    void stop_decoding(Live& live);
    void preempt(Batch& batch);
    void finish(Live& live);
    void leave_running(Live& live, std::int64_t registered_tokens);

    static constexpr std::int64_t not_blocked = INT64_MAX;
    static constexpr std::int64_t stretch = 128;        // most steps of pass_many()
    static constexpr std::size_t ends_in_sight = 4096;  // batches with a bucket of their own

    EngineArgs args_;
    Listener& listener_;
    Integrals& integrals_;
    TokenMeter& tokens_;
    Kv kv_;
    std::int64_t watermark_blocks_;

    std::vector<std::unique_ptr<Live>> lives_;
    std::vector<Live*> spare_lives_;
    Ring<Live*> waiting_;
    /// While the step has at least this much token budget left for it, the head of the queue lacks blocks.
    std::int64_t blocked_budget_ = not_blocked;
    List running_;
    std::int64_t running_count_ = 0;
    Live* prefilling_ = nullptr;

    std::int64_t batch_ = 0;  // the batch to be scheduled next; batches without rows do not count
    std::size_t phase_ = 0;   // batch_ mod block_size
    std::int64_t decoders_ = 0;
    std::int64_t measured_decoders_ = 0;
    std::int64_t decode_context_ = 0;     // sum of the decoders' computed tokens
    std::int64_t advanced_ = 0;           // tokens that decoders have computed, of all that ever did
    std::int64_t other_computed_ = 0;     // the rest of what those that run have computed; may be negative
    int block_shift_ = -1;                // log2(block_size), or -1 if it is no power of two
    std::vector<std::int32_t> crossers_;  // decoders by (-offset) mod block_size: who crosses when batch mod block_size is that
    std::vector<std::vector<const Live*>> named_crossers_;      // the same where ids are kept, each in admission order
    std::vector<List> buckets_;                                 // by last_batch, in admission order
    std::array<std::uint64_t, ends_in_sight / 64> occupied_{};  // a bit a bucket
    std::int64_t next_end_ = 0;          // no batch scheduled from now on and before this one yields a last token
    std::int64_t most_crossings_;        // of a decoder in `stretch` steps
    std::vector<SimTime> scheduled_at_;  // of the latest batches, by number: a ring
    std::size_t scheduled_mask_ = 0;
    HeldIntegrals held_integrals_;

    std::vector<Live*> in_flight_;  // async: preempted with a token in flight
    std::int64_t budget_ = 0;
    SimTime now_{};
    SimTime last_update_{};
    std::int64_t step_ = 0;
    std::vector<RequestId> finished_;
    bool steady_ = false;  // until a finish or preemption the next schedule() only advances the decoders
    std::int64_t unfinished_ = 0;
    std::int64_t work_ = 0;  // tokens that the unfinished ones compute in all
};

template <class Listener, class Kv>
struct FastEngine<Listener, Kv>::Live {
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
    std::uint32_t phase_index = 0;  // decoding: its place in crossers_
    std::int64_t offset = 0;        // decoding: computed before batch k is k + offset
    std::int64_t last_batch = 0;    // the batch that yields its last token
    SimTime last_token{};           // kept when preempted
    SimTime last_block = never;     // when its prefill took its last block; never: it decodes into it
    Links run;
    Links bucket;
    typename Kv::Holding kv;
    std::vector<TokenRun> content;
    std::vector<BlockId> table;  // where ids are kept
};

template <class Listener, class Kv>
inline bool FastEngine<Listener, Kv>::somebody_ends_in(std::int64_t batch) {
    // Its bucket may hold others, whole turns of the ring later.
    for (const Live* live = bucket(batch).first; live; live = live->bucket.next) {
        if (live->last_batch == batch) return true;
    }
    return false;
}

}  // namespace kvsim

#include "kvsim/engine/fast_engine_steps.hpp"
