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
#include "kvsim/engine/engine.hpp"
#include "kvsim/engine/fast_engine.hpp"
#include "kvsim/engine/outcome.hpp"
#include "kvsim/engine/step_record.hpp"
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
    const Batch* in_progress = nullptr;  ///< null: idle
};

/// The clock over either engine (Engine or FastEngine): one main loop, no virtual call on the way.
template <class AnyEngine>
class Replica {
    static constexpr bool fast = std::is_same_v<AnyEngine, FastEngine>;

public:
    using StepSink = std::function<void(const StepRecord&)>;

    /// `extras` go to the engine's constructor behind its arguments and listener. Step records need the per-request engine.
    template <class... Extras>
    Replica(const EngineArgs& args, EngineListener& listener, const StepTimeModel& step_time, Integrals& integrals,
            Counters& counters, StepSink on_step, Extras&&... extras)
        : engine_(args, listener, std::forward<Extras>(extras)...),
          step_time_(step_time),
          counters_(counters),
          integrals_(integrals),
          on_step_(std::move(on_step)) {
        KVSIM_CHECK(!fast || !on_step_, "the fast engine keeps no block ids to record");
    }
    Replica(const Replica&) = delete;
    Replica& operator=(const Replica&) = delete;

    /// The end of the batch in progress, or never.
    [[nodiscard]] SimTime next_time() const { return flying_ ? end_ : never; }
    /// Integration begins (first arrival of the run).
    void begin(SimTime now) { integrated_ = now; }
    [[nodiscard]] std::string describe() const { return engine_.describe(); }
    /// (request, received output tokens) of those still here when a run has stalled.
    [[nodiscard]] std::vector<std::pair<RequestId, std::int64_t>> left_over() const { return engine_.left_over(); }
    [[nodiscard]] std::int64_t waiting_count() const { return engine_.waiting_count(); }
    /// Its requests preempt each other, or themselves, over and over and nobody gets a token: that never ends.
    [[nodiscard]] bool livelocked() const { return fruitless_preemptions_ > 1000 + 4 * engine_.unfinished(); }
    [[nodiscard]] ReplicaState state() const {
        return {engine_.unfinished(),        engine_.outstanding_tokens(), engine_.running_count(),
                engine_.waiting_count(),     engine_.used_blocks(),        preemptions_,
                flying_ ? current_ : nullptr};
    }

    /// A request joins the waiting queue; an idle replica wakes at start_step().
    Slot enqueue(NewRequest& request, SimTime now) {
        integrate(now);
        const Slot slot = engine_.enqueue(request);
        if (!flying_) due_ = true;
        return slot;
    }

    /// The request in `slot` leaves unfinished; who waited behind it may run.
    Aborted abort(Slot slot, SimTime now) {
        if constexpr (fast) {
            KVSIM_CHECK(false, "the fast engine does not abort");
            return {};
        } else {
            integrate(now);
            if (!flying_) due_ = true;
            return engine_.abort(slot);
        }
    }
    void keep_gaps() {
        if constexpr (!fast) engine_.keep_gaps();
    }

    /// If the batch in progress ends now, its results arrive.
    void finish_step(SimTime now) {
        if (!flying_ || end_ != now) return;
        integrate(now);
        const bool waited = engine_.waiting_count() > 0;
        const std::int64_t before = engine_.unfinished();
        engine_.update(*current_, now);
        if (current_->shape.sampled > 0) fruitless_preemptions_ = 0;
        if (waited) integrals_.finished_while_waiting += before - engine_.unfinished();
        flying_ = false;
        due_ = true;
        // The trailing batch without rows leaves with the last request; one whose requests were all aborted still runs.
        if (engine_.unfinished() == 0 && next_->empty()) has_next_ = false;
        if (record_open_) close_record(current_->step, now);
    }

    /// Launches what can start now and runs schedule() as often as is due.
    void start_step(SimTime now) {
        if (flying_ || !due_) return;
        integrate(now);
        due_ = false;
        if (has_next_ && !next_->empty()) {
            std::swap(current_, next_);
            launch(now);
        } else if (engine_.unfinished() == 0) {
            bound_ = Bound::no_waiting;
            has_next_ = false;
        } else {
            schedule_until_rows(now);
        }
    }

    /// May run ahead, over steps that end before `horizon` and in which nobody is admitted, preempted or finished.
    void run_ahead(SimTime horizon) {
        if constexpr (fast) {
            if (!flying_ || end_ >= horizon || !engine_.steady()) return;
            const SimDuration passed = engine_.run_ahead(*current_, has_next_ ? next_ : nullptr, end_, integrated_, horizon,
                                                         step_time_, integrals_, counters_);
            add_constant_parts(passed.count());
            integrated_ += passed;
        }
    }

    /// What integrate(now) would add to Integrals::blocks_used_dt.
    [[nodiscard]] Int128 blocks_used_until(SimTime now) const {
        return static_cast<Int128>(engine_.used_blocks()) * (now - integrated_).count();
    }

    /// The state is constant between two instants at which something happens; called first at each.
    void integrate(SimTime now) {
        const std::int64_t dt = (now - integrated_).count();
        if (dt == 0) return;
        KVSIM_CHECK(dt > 0, "time never goes backwards");
        integrated_ = now;
        add_constant_parts(dt);
        const std::int64_t used = engine_.used_blocks();
        const HeldSlots held = engine_.held();
        integrals_.blocks_used_dt += static_cast<Int128>(used) * dt;
        integrals_.slots_token_dt += static_cast<Int128>(used * engine_.slots_per_block() - held.reserved - held.internal) * dt;
        integrals_.slots_reserved_dt += static_cast<Int128>(held.reserved) * dt;
        integrals_.slots_internal_dt += static_cast<Int128>(held.internal) * dt;
    }

private:
    /// What running ahead over plain decode steps does not change.
    void add_constant_parts(std::int64_t dt) {
        integrals_.bound[static_cast<std::size_t>(bound_)] += SimDuration(dt);
        if (!flying_) integrals_.idle += SimDuration(dt);
        if (engine_.waiting_count() > 0) integrals_.any_waiting += SimDuration(dt);
        if (engine_.running_count() > 0) {
            integrals_.slots_busy_dt += static_cast<Int128>(engine_.kv().usable() * engine_.slots_per_block()) * dt;
        }
    }

    /// Nothing is in flight. A step that only preempted made room: the next one follows at once.
    void schedule_until_rows(SimTime now) {
        const bool async = engine_.args().async_scheduling;
        do {
            const std::int64_t before = has_next_ ? next_->step : StepRecord::none;
            schedule_into(*current_, now);
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
        } while (current_->empty() && !current_->preempted.empty());
        if (current_->empty()) {
            bound_ = Bound::no_waiting;  // idle
        } else {
            launch(now);
        }
    }

    /// `current_` starts now; under async scheduling the next batch is decided at the same instant.
    void launch(SimTime now) {
        flying_ = true;
        end_ = now + current_->duration;
        has_next_ = engine_.args().async_scheduling;
        if (has_next_) schedule_into(*next_, now);
    }

    void schedule_into(Batch& batch, SimTime now) {
        engine_.schedule(batch, now);
        bound_ = batch.bound;
        preemptions_ += static_cast<std::int64_t>(batch.preempted.size());
        counters_.preemptions += static_cast<std::int64_t>(batch.preempted.size());
        fruitless_preemptions_ += static_cast<std::int64_t>(batch.preempted.size());
        if (!batch.empty()) {
            batch.duration = step_time_.duration(batch.shape);
            KVSIM_CHECK(batch.duration >= SimDuration(1), "a step takes at least 1 ns");
            ++counters_.steps;
            counters_.rows += batch.shape.sequences;
            counters_.tokens += batch.shape.tokens;
            counters_.recomputed_tokens += batch.recomputed_tokens;
            integrals_.stepping += batch.duration;
            if (batch.recomputed_tokens > 0) {
                integrals_.recompute_ns +=
                    static_cast<double>(batch.duration.count()) *
                    (static_cast<double>(batch.recomputed_tokens) / static_cast<double>(batch.shape.tokens));
            }
        }
        integrals_.blocks_used_peak = std::max(integrals_.blocks_used_peak, engine_.used_blocks());
        if (on_step_) open_record(batch, now);
    }

    void open_record([[maybe_unused]] const Batch& batch, SimTime now) {
        KVSIM_CHECK(!record_open_, "a step's record closes before the next opens");
        record_ = {};
        if constexpr (!fast) fill_scheduled(record_, engine_, batch);
        record_.start = now;
        record_.duration = batch.duration;
        record_open_ = true;
    }

    /// `updated`: the step whose results came in with this one.
    void close_record(std::int64_t updated, SimTime now) {
        record_.updated_step = updated;
        if constexpr (!fast) {
            if (updated != StepRecord::none && current_->step == updated && !current_->empty()) {
                record_.received = engine_.received();
                record_.finished = engine_.finished();
            }
            fill_updated(record_, engine_);
        }
        // An asynchronous batch is decided when its predecessor starts, and starts when that one ends, which is now.
        if (engine_.args().async_scheduling && !record_.scheduled.empty()) record_.start = now;
        record_open_ = false;
        on_step_(record_);
    }

    AnyEngine engine_;
    const StepTimeModel& step_time_;
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
    SimTime integrated_{};
    Bound bound_ = Bound::no_waiting;
    std::int64_t preemptions_ = 0;
    std::int64_t fruitless_preemptions_ = 0;  // since a token was last received

    StepRecord record_;  // of the last scheduled step, waiting for its update
    bool record_open_ = false;
};

}  // namespace kvsim
