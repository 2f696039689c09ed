#pragma once
// An engine with its clock: when schedule() runs, how long the step takes, when its results arrive.
//
// Synchronous: schedule() when the previous step has ended. Asynchronous: a queue of two batches; schedule() for the next batch
// runs at the instant a batch starts, so what it decides rests on results that are one step old. A schedule() without rows
// launches nothing and takes no time.

#include <algorithm>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvsim/base/check.hpp"
#include "kvsim/engine/decode_prices.hpp"
#include "kvsim/engine/engine.hpp"
#include "kvsim/engine/fast_engine.hpp"
#include "kvsim/engine/held_integrals.hpp"
#include "kvsim/engine/outcome.hpp"
#include "kvsim/engine/step_record.hpp"
#include "kvsim/model/cold_start.hpp"
#include "kvsim/model/step_time.hpp"

namespace kvsim {

/// What routers, samples and reports look at.
struct ReplicaState {
    std::int64_t unfinished = 0;
    std::int64_t outstanding_tokens = 0;
    std::int64_t running = 0;
    std::int64_t waiting = 0;
    std::int64_t used_blocks = 0;
    std::int64_t preemptions = 0;
    /// Of the step in progress; 0 when idle.
    SimDuration step{};
    std::int64_t batch_tokens = 0;
    std::int64_t decode_rows = 0;
    HeldSlots held{};
};

/// The clock over either engine (Engine or FastEngine): one main loop, no virtual call on the way.
template <class AnyEngine>
class Replica {
    static constexpr bool fast = AnyEngine::moves_decoders_together;
    template <class E, bool>
    struct BatchOf {
        using type = kvsim::Batch;
    };
    template <class E>
    struct BatchOf<E, true> {
        using type = typename E::Batch;
    };
    using Batch = typename BatchOf<AnyEngine, fast>::type;

public:
    using StepSink = std::function<void(const StepRecord&)>;

    /// `extras` go to the engine's constructor behind its arguments and listener.
    template <class Listener, class... Extras>
    Replica(const EngineArgs& args, Listener& listener, const StepTimeModel& step_time, Integrals& integrals,
            Counters& counters, StepSink on_step, Extras&&... extras)
        : engine_(args, listener, std::forward<Extras>(extras)...),
          prices_(step_time),
          counters_(counters),
          integrals_(integrals),
          on_step_(std::move(on_step)) {
        if constexpr (fast) {
            if (recorded()) engine_.keep_ids();
            for (Batch& batch : batches_) batch.reserve(std::min<std::int64_t>(args.max_num_seqs, 1024));
        } else {
            engine_.price_by(step_time);
        }
    }
    Replica(const Replica&) = delete;
    Replica& operator=(const Replica&) = delete;

    /// The end of the batch in progress, or never.
    [[nodiscard]] SimTime next_time() const { return flying_ ? end_ : never; }
    /// Integration begins (first arrival of the run).
    void begin(SimTime now) { bound_since_ = idle_since_ = begin_ = now; }
    void start_cold(const ColdStart& cold) { cold_ = cold; }
    [[nodiscard]] std::string describe() const { return engine_.describe(); }
    /// (request, received output tokens) of those still here when a run has stalled.
    [[nodiscard]] std::vector<std::pair<RequestId, std::int64_t>> left_over() const { return engine_.left_over(); }
    /// WaitingQueue::unmet_names().
    [[nodiscard]] std::vector<std::string> unmet_names() const { return engine_.unmet_names(); }
    [[nodiscard]] std::int64_t waiting_count() const { return engine_.waiting_count(); }
    /// Whether a further request would wait behind max_queued_requests others. Seats the last decision left free will be taken
    /// at the next one, unless somebody was held back by blocks or the token budget.
    [[nodiscard]] bool queue_full() const {
        const EngineArgs& args = engine_.args();
        if (args.max_queued_requests < 0) return false;
        const std::int64_t running = engine_.running_count();
        const bool seats_count = bound_ == Bound::seats || bound_ == Bound::no_waiting || running == 0;
        const std::int64_t free_seats = seats_count ? std::max<std::int64_t>(0, args.max_num_seqs - running) : 0;
        return engine_.waiting_count() >= args.max_queued_requests + free_seats;
    }
    /// Its requests preempt each other, or themselves, over and over and nobody gets a token: that never ends.
    [[nodiscard]] bool livelocked() const { return fruitless_preemptions_ > 1000 + 4 * engine_.unfinished(); }
    [[nodiscard]] ReplicaState state() const {
        ReplicaState state{engine_.unfinished(),    engine_.outstanding_tokens(), engine_.running_count(),
                           engine_.waiting_count(), engine_.used_blocks(),        preemptions_};
        if (flying_) {
            state.step = current_->duration;
            state.batch_tokens = tokens(*current_);
            if constexpr (fast) {
                state.decode_rows = current_->decode_rows();
            } else {
                state.decode_rows = current_->shape.decode_rows;
            }
        }
        return state;
    }

    /// With the parts of the waste shares; in the fast form this takes a look at every running request.
    [[nodiscard]] ReplicaState sampled_state() const {
        ReplicaState state = this->state();
        if constexpr (fast) {
            state.held = engine_.held_apart();
        } else {
            state.held = engine_.held();
        }
        return state;
    }

    /// A request joins the waiting queue; an idle replica wakes at start_step().
    Slot enqueue(typename AnyEngine::Request& request, SimTime now) {
        Slot slot{};
        if constexpr (fast) {
            engine_.enqueue(request);
        } else {
            slot = engine_.enqueue(request);
        }
        if (!waiting_) {
            waiting_ = true;
            waiting_since_ = now;
        }
        if (!flying_) due_ = true;
        return slot;
    }

    /// The request in `slot` leaves unfinished; who waited behind it may run.
    Aborted abort(Slot slot, SimTime now) {
        if constexpr (fast) {
            KVSIM_CHECK(false, "the fast engine does not abort");
            return {};
        } else {
            if (!flying_) due_ = true;
            const Aborted work = engine_.abort(slot);
            account(now);
            return work;
        }
    }
    /// Whether `slot` still holds that request.
    [[nodiscard]] bool holds(Slot slot, RequestId id) const {
        if constexpr (fast) {
            return false;
        } else {
            return engine_.request(slot).id == id;
        }
    }
    void note_head_blocking() { note_head_blocking_ = true; }
    /// Engine::head_blocks_others() stays false while nobody comes, is admitted or leaves: blocks only become fewer meanwhile.
    [[nodiscard]] bool head_blocking_is_settled() const {
        if constexpr (fast) {
            return false;
        } else {
            // V0 gives blocks back between steps: one whose content another has, those of who finished a step ago.
            if (head_blocks_ || engine_.args().batching == "vllm-v0") return false;
            if (engine_.waiting_count() < 2 || engine_.running_count() >= engine_.args().max_num_seqs) return true;
            const std::vector<Slot> waiting = engine_.scheduler().waiting();
            return std::none_of(waiting.begin(), waiting.end(), [this](Slot slot) {
                return admission_blocks(engine_.args(), engine_.request(slot).tokens()) <= engine_.free_blocks();
            });
        }
    }
    void keep_gaps() {
        if constexpr (!fast) engine_.keep_gaps();
    }

    /// If the batch in progress ends now, its results arrive.
    void finish_step(SimTime now) {
        if (!flying_ || end_ != now) return;
        const bool waited = engine_.waiting_count() > 0;
        const std::int64_t before = engine_.unfinished();
        engine_.update(*current_, now);
        if (fruitless_preemptions_ > 0 && yields_tokens(*current_)) fruitless_preemptions_ = 0;
        if (waited) integrals_.finished_while_waiting += before - engine_.unfinished();
        flying_ = false;
        due_ = true;
        // The trailing batch without rows leaves with the last request; one whose requests were all aborted still runs.
        if (!engine_.has_work() && next_->empty()) has_next_ = false;
        if (recorded() && record_open_) close_record(current_->step, now);
    }

    /// Launches what can start now and runs schedule() as often as is due.
    [[gnu::always_inline]] void start_step(SimTime now) {
        if (flying_ || !due_) return;
        due_ = false;
        if (has_next_ && !next_->empty()) {
            std::swap(current_, next_);
            launch(now);
        } else if (!engine_.has_work()) {
            set_bound(Bound::no_waiting, now);
            has_next_ = false;
        } else {
            schedule_until_rows(now);
        }
        account(now);
    }

    /// May run ahead: over steps that end before `horizon` and in which nobody is admitted or finishes, nor is preempted from
    /// `next_arrival` on, when those who wait are counted; if it is the `only` replica, over any steps that end before both, in
    /// which somebody finishes only if `finishes` allows it. What it tells its listener may lie ahead of the clock. Gives the
    /// end of the last step of the second kind, or `now`.
    template <bool only>
    [[gnu::noinline]] SimTime run_ahead(SimTime now, SimTime horizon, SimTime next_arrival, bool finishes) {
        if constexpr (fast) {
            if (recorded()) return now;     // records come in the order of time over all replicas
            constexpr int most_turns = 64;  // then the user's interrupt is looked for
            const SimTime last_finish = finishes ? next_arrival : SimTime{};
            for (int turn = 0; turn < most_turns && flying_ && end_ < horizon; ++turn) {
                if (engine_.steady() && !cold_.lasts(end_ - begin_) && jump(horizon, last_finish, next_arrival) &&
                    end_ >= horizon)
                    break;
                const bool single_step = only && end_ < next_arrival &&
                                         (finishes || !engine_.somebody_ends_in(current_->number)) &&
                                         fruitless_preemptions_ < 1000;
                if (!single_step) break;
                now = end_;
                finish_step(now);
                start_step(now);
            }
        } else {
            if (!on_step_ && flying_ && horizon - end_ > current_->duration && !cold_.lasts(end_ - begin_)) jump(horizon);
        }
        return now;
    }

    /// Closes every integral over time at the end of the run; nothing happens afterwards.
    void settle(SimTime end) {
        set_bound(bound_, end, true);
        set_head_blocking(false, end);
        if (!flying_) integrals_.idle += end - idle_since_;
        if (waiting_) integrals_.any_waiting += end - waiting_since_;
        integrals_.blocks_used_dt += blocks_used_until(end);
        integrals_.blocks_saved_dt += saved_dt_ + static_cast<Int128>(saved_) * end.time_since_epoch().count();
        add_slots(end, integrals_);
    }

    /// Adds the integrals of the waste shares (Integrals, WindowMark) from the run's begin to `now`, up to which nothing more
    /// happens.
    template <class Sums>
    void add_slots(SimTime now, Sums& sums) const {
        const HeldIntegrals& held = held_integrals();
        const std::int64_t slots = engine_.slots_per_block();
        const SimDuration busy = busy_ ? busy_dt_ + (now - busy_since_) : busy_dt_;
        sums.slots_token_dt += held.used_until(now) * slots - held.reserved_until(now) - held.internal_until(now);
        sums.slots_reserved_dt += held.reserved_until(now);
        sums.slots_internal_dt += held.internal_until(now);
        sums.slots_busy_dt += static_cast<Int128>(engine_.usable_blocks() * slots) * busy.count();
    }

    /// The same before settle(), but for what the engine has moved in Integrals from reserved to internal.
    void mark_slots(SimTime now, WindowMark& mark) const {
        add_slots(now, mark);
        if constexpr (fast) {
            const Int128 internal = engine_.internal_until(now);
            mark.slots_internal_dt += internal;
            mark.slots_reserved_dt -= internal;
        }
    }

    /// The integral of used blocks from time 0 to `now`, up to which nothing more happens; before settle().
    [[nodiscard]] Int128 blocks_used_until(SimTime now) const { return held_integrals().used_until(now); }

private:
    /// Over steps that end before `horizon` and in which nobody is admitted, nor finishes after `last_finish`, nor is preempted
    /// from `next_arrival` on. Whether there were any.
    bool jump(SimTime horizon, SimTime last_finish, SimTime next_arrival) {
        const SimTime first_end = end_;
        const SimDuration first_pending = has_next_ ? next_->duration : SimDuration{};
        const auto passed = engine_.run_ahead(current_, next_, has_next_, end_, horizon, last_finish, next_arrival, prices_);
        if (passed.steps == 0) return false;
        fruitless_preemptions_ = 0;
        if (passed.preempted > 0) {
            preemptions_ += passed.preempted;
            counters_.preemptions += passed.preempted;
        }
        counters_.steps += passed.steps;
        counters_.rows += passed.rows;
        counters_.tokens += passed.rows;
        // What was scheduled: the ends of the queue before and after are that far apart.
        integrals_.stepping += end_ - first_end + (has_next_ ? next_->duration - first_pending : SimDuration{});
        return true;
    }

    /// The same over the steps Scheduler::steady_steps() names.
    void jump(SimTime horizon) {
        const StepShape& shape = current_->shape;
        const auto plain = [&shape](const StepShape& s) {
            return s.windows.empty() && s.decode_rows == shape.sequences && s.sequences == shape.sequences &&
                   s.sampled == shape.sequences;
        };
        if (!plain(shape) || (has_next_ && !plain(next_->shape))) return;
        const DecodeLine* const line = prices_.line(shape.sequences);
        if (!line) return;
        const SimTime first_end = end_;
        const Engine::Ahead passed = engine_.run_ahead(*current_, has_next_ ? next_ : nullptr, end_, horizon, *line);
        if (passed.steps == 0) return;
        fruitless_preemptions_ = 0;
        set_bound(passed.bound, first_end);
        counters_.steps += passed.steps;
        counters_.rows += passed.steps * passed.rows;
        counters_.tokens += passed.steps * passed.rows;
        integrals_.stepping += passed.priced;
        held_integrals_.set(engine_.used_blocks(), engine_.held(), passed.used_dt, passed.reserved_dt, passed.internal_dt);
        integrals_.blocks_used_peak =
            std::max(integrals_.blocks_used_peak, engine_.used_blocks() + engine_.free_blocks() - passed.least_free);
    }

    void set_bound(Bound bound, SimTime now, bool closing = false) {
        if (bound == bound_ && !closing) return;
        integrals_.bound[static_cast<std::size_t>(bound_)] += now - bound_since_;
        bound_ = bound;
        bound_since_ = now;
    }

    void set_head_blocking(bool blocks, SimTime now) {
        if (head_blocks_) integrals_.head_blocking += now - head_blocks_since_;
        head_blocks_ = blocks;
        head_blocks_since_ = now;
    }

    [[nodiscard]] const HeldIntegrals& held_integrals() const {
        if constexpr (fast) {
            return engine_.held_integrals();
        } else {
            return held_integrals_;
        }
    }

    /// The state changed at `now`.
    void account(SimTime now) {
        if constexpr (!fast) {
            held_integrals_.set(engine_.used_blocks(), engine_.held(), now);
            const std::int64_t saved = engine_.saved_blocks();
            saved_dt_ -= static_cast<Int128>(saved - saved_) * now.time_since_epoch().count();
            saved_ = saved;
        }
        if (const bool waiting = engine_.waiting_count() > 0; waiting != waiting_) {
            if (waiting_) integrals_.any_waiting += now - waiting_since_;
            waiting_ = waiting;
            waiting_since_ = now;
        }
        if (const bool busy = engine_.running_count() > 0; busy != busy_) {
            if (busy_) busy_dt_ += now - busy_since_;
            busy_ = busy;
            busy_since_ = now;
        }
        if (flying_ == idle_) {
            if (idle_) integrals_.idle += now - idle_since_;
            idle_ = !flying_;
            idle_since_ = now;
        }
    }

    [[nodiscard]] static std::int64_t preempted(const Batch& batch) {
        if constexpr (fast) {
            return batch.preempted;
        } else {
            return static_cast<std::int64_t>(batch.preempted.size());
        }
    }

    [[nodiscard]] static std::int64_t rows(const Batch& batch) {
        if constexpr (fast) {
            return batch.rows();
        } else {
            return batch.shape.sequences;
        }
    }
    [[nodiscard]] static std::int64_t tokens(const Batch& batch) {
        if constexpr (fast) {
            return batch.tokens();
        } else {
            return batch.shape.tokens;
        }
    }
    [[nodiscard]] static bool yields_tokens(const Batch& batch) {
        if constexpr (fast) {
            return batch.sampled() > 0;
        } else {
            return batch.shape.sampled > 0;
        }
    }
    [[nodiscard]] SimDuration price(const Batch& batch) {
        if constexpr (fast) {
            return batch.prefills ? prices_.price(batch.shape()) : prices_.price(batch.decoders, batch.context);
        } else {
            return prices_.price(batch.shape);
        }
    }

    [[nodiscard]] static bool again(const Batch& batch) {
        if constexpr (fast) {
            return batch.preempted > 0;
        } else {
            return batch.again;
        }
    }

    /// Nothing is in flight. A step that only preempted made room: the next one follows at once.
    [[gnu::noinline]] void schedule_until_rows(SimTime now) {
        const bool async = engine_.args().async_scheduling;
        do {
            const std::int64_t before = has_next_ ? next_->step : StepRecord::none;
            schedule_into(*current_, now, now);
            if (async) {
                if (record_open_) close_record(before, now);
                has_next_ = current_->empty();
                if (has_next_) {
                    next_->clear();
                    next_->step = current_->step;
                }
            } else if (current_->empty() && record_open_) {
                close_record(current_->step, now);
            }
            // Passes of an engine that moves requests to and fro without ever running one count as its preemptions do.
            if (current_->empty() && again(*current_) && preempted(*current_) == 0) ++fruitless_preemptions_;
        } while (current_->empty() && again(*current_) && !livelocked());
        if (current_->empty()) {
            set_bound(Bound::no_waiting, now);  // idle
        } else {
            launch(now);
        }
    }

    /// `current_` starts now; under async scheduling the next batch is decided at the same instant.
    [[gnu::always_inline]] void launch(SimTime now) {
        flying_ = true;
        end_ = now + current_->duration;
        has_next_ = engine_.args().async_scheduling;
        if (has_next_) schedule_into(*next_, now, end_);
    }

    /// `starts`: when the batch is launched.
    [[gnu::always_inline]] void schedule_into(Batch& batch, SimTime now, SimTime starts) {
        if constexpr (fast) {
            engine_.schedule(batch, now);
        } else {  // whose schedule() may see the last of a request
            const bool waited = engine_.waiting_count() > 0;
            const std::int64_t before = engine_.unfinished();
            engine_.schedule(batch, now);
            if (waited) integrals_.finished_while_waiting += before - engine_.unfinished();
            counters_.swapped_tokens += batch.swapped_tokens;
        }
        set_bound(batch.bound, now);
        if constexpr (!fast) {
            if (note_head_blocking_) set_head_blocking(engine_.head_blocks_others(), now);
        }
        if (const std::int64_t lost = preempted(batch); lost > 0) {
            preemptions_ += lost;
            counters_.preemptions += lost;
            fruitless_preemptions_ += lost;
        }
        if (!batch.empty()) {
            batch.duration = cold_.slowed(price(batch), starts - begin_);
            if constexpr (!fast) {
                const SimDuration moved = batch.transfer;
                batch.duration = batch.transfer_overlaps ? std::max(batch.duration, moved) : batch.duration + moved;
            }
            KVSIM_CHECK(batch.duration >= SimDuration(1), "a step takes at least 1 ns");
            ++counters_.steps;
            counters_.rows += rows(batch);
            counters_.tokens += tokens(batch);
            counters_.recomputed_tokens += batch.recomputed_tokens;
            integrals_.stepping += batch.duration;
            if (batch.recomputed_tokens > 0) {
                integrals_.recompute_ns += static_cast<double>(batch.duration.count()) *
                                           (static_cast<double>(batch.recomputed_tokens) / static_cast<double>(tokens(batch)));
            }
        }
        integrals_.blocks_used_peak = std::max(integrals_.blocks_used_peak, engine_.used_blocks());
        if (recorded()) open_record(batch, now);
    }

    void open_record(Batch& batch, SimTime now) {
        KVSIM_CHECK(!record_open_, "a step's record closes before the next opens");
        if constexpr (fast) {
            engine_.record_scheduled(record_, batch);
        } else {
            fill_scheduled(record_, engine_, batch);
        }
        record_.start = now;
        record_.duration = batch.empty() ? SimDuration{} : batch.duration;
        record_open_ = true;
    }

    /// `updated`: the step whose results came in with this one.
    void close_record(std::int64_t updated, SimTime now) {
        record_.updated_step = updated;
        if (updated != StepRecord::none && current_->step == updated && !current_->empty()) {
            if constexpr (fast) {
                record_.received.swap(current_->received);
            } else {
                record_.received = engine_.received();
            }
            record_.finished = engine_.finished();
        } else {
            record_.received.clear();
            record_.finished.clear();
            if constexpr (!fast) {
                if (current_->empty()) record_.finished = engine_.finished_in_schedule();
            }
        }
        if constexpr (fast) {
            engine_.record_updated(record_);
        } else {
            fill_updated(record_, engine_);
        }
        // An asynchronous batch is decided when its predecessor starts, and starts when that one ends, which is now.
        if (engine_.args().async_scheduling && !record_.scheduled.empty()) record_.start = now;
        record_open_ = false;
        on_step_(record_);
    }

    [[nodiscard]] bool recorded() const {
        if constexpr (fast && !AnyEngine::has_ids) return false;
        return static_cast<bool>(on_step_);
    }

    AnyEngine engine_;
    DecodePrices prices_;
    ColdStart cold_;
    Counters& counters_;
    Integrals& integrals_;
    StepSink on_step_;

    Batch batches_[2];
    Batch* current_ = &batches_[0];  // in progress if flying_
    Batch* next_ = &batches_[1];     // async: scheduled after current_
    bool flying_ = false;
    bool has_next_ = false;  // next_ was scheduled (possibly without rows) and not launched yet
    bool due_ = false;       // schedule() should run at the next start_step()
    SimTime end_{};
    SimTime begin_{};  // the first arrival

    // The state as account() saw it last, since when, and what it has summed up.
    Bound bound_ = Bound::no_waiting;
    bool idle_ = true;
    bool waiting_ = false;
    bool busy_ = false;
    bool note_head_blocking_ = false;
    bool head_blocks_ = false;
    SimTime head_blocks_since_{};
    SimTime bound_since_{};
    SimTime idle_since_{};
    SimTime waiting_since_{};
    SimTime busy_since_{};
    SimDuration busy_dt_{};
    std::int64_t saved_ = 0;
    Int128 saved_dt_ = 0;
    HeldIntegrals held_integrals_;  // where the engine has none

    std::int64_t preemptions_ = 0;
    std::int64_t fruitless_preemptions_ = 0;  // since a token was last received

    StepRecord record_;  // of the last scheduled step, waiting for its update
    bool record_open_ = false;
};

}  // namespace kvsim
