#include "kvsim/engine/replica.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "kvsim/base/check.hpp"
#include "kvsim/engine/fast_engine.hpp"

namespace kvsim {

void Integrator::advance(SimTime now) {
    const std::int64_t dt = (now - last_).count();
    KVSIM_CHECK(dt >= 0, "time never goes backwards");
    last_ = now;
    if (dt == 0) return;
    into_.bound[static_cast<std::size_t>(state.bound)] += SimDuration(dt);
    if (!state.stepping) into_.idle += SimDuration(dt);
    if (state.waiting) into_.any_waiting += SimDuration(dt);
    if (state.used_blocks == 0) return;
    into_.blocks_used_dt += static_cast<Int128>(state.used_blocks) * dt;
    if (!state.running) return;
    const std::int64_t token = state.used_blocks * state.block_size - state.held.reserved - state.held.internal;
    into_.slots_busy_dt += static_cast<Int128>(state.usable_slots) * dt;
    into_.slots_token_dt += static_cast<Int128>(token) * dt;
    into_.slots_reserved_dt += static_cast<Int128>(state.held.reserved) * dt;
    into_.slots_internal_dt += static_cast<Int128>(state.held.internal) * dt;
}

namespace {

/// The clock over either engine.
template <class AnyEngine>
class ClockedReplica final : public Replica {
    static constexpr bool fast = std::is_same_v<AnyEngine, FastEngine>;

public:
    template <class... EngineExtras>
    ClockedReplica(const EngineArgs& args, const StepTimeModel& step_time, EngineListener& listener, Integrals& integrals,
                   Counters& counters, StepSink on_step, EngineExtras&&... extras)
        : engine_(args, listener, std::forward<EngineExtras>(extras)...),
          step_time_(step_time),
          counters_(counters),
          integrals_(integrals),
          integrator_(integrals),
          on_step_(std::move(on_step)) {
        integrator_.state.block_size = args.block_size;
        integrator_.state.usable_slots = engine_.kv().usable() * args.block_size;
    }

    [[nodiscard]] SimTime next_time() const override { return flying_ ? end_ : never; }
    void begin(SimTime now) override { integrator_.start(now); }
    void integrate(SimTime now) override { integrator_.advance(now); }
    [[nodiscard]] const EngineArgs& args() const override { return engine_.args(); }
    [[nodiscard]] std::string describe() const override { return engine_.describe(); }
    [[nodiscard]] std::vector<std::pair<RequestId, std::int64_t>> left_over() const override { return engine_.left_over(); }
    [[nodiscard]] State state() const override {
        return {engine_.unfinished(),         engine_.outstanding_tokens(), engine_.running_count(),
                engine_.waiting_count(),      engine_.used_blocks(),        preemptions_,
                flying_ ? &current_ : nullptr};
    }

    void enqueue(NewRequest request, SimTime now) override {
        integrator_.advance(now);
        engine_.enqueue(std::move(request));
        if (!flying_) due_ = true;
        observe();
    }

    void finish_step(SimTime now) override {
        if (!flying_ || end_ != now) return;
        integrator_.advance(now);
        const bool waited = engine_.waiting_count() > 0;
        const std::int64_t before = engine_.unfinished();
        engine_.update(current_, now);
        if (waited) integrals_.finished_while_waiting += before - engine_.unfinished();
        flying_ = false;
        due_ = true;
        if (engine_.unfinished() == 0) has_next_ = false;  // the trailing batch without rows leaves with the last request
        if (record_open_) close_record(current_.step, now);
        observe();
    }

    void start_step(SimTime now) override {
        if (flying_ || !due_) return;
        integrator_.advance(now);
        due_ = false;
        if (engine_.unfinished() == 0) {
            bound_ = Bound::no_waiting;
        } else if (has_next_ && !next_.empty()) {
            std::swap(current_, next_);
            launch(now);
        } else {
            schedule_until_rows(now);
        }
        observe();
    }

    void run_ahead(SimTime horizon) override {
        if constexpr (fast) {
            if (!flying_ || end_ >= horizon) return;
            engine_.run_ahead(current_, has_next_ ? &next_ : nullptr, end_, horizon, step_time_, integrator_, integrals_,
                              counters_);
            observe();
        } else {
            static_cast<void>(horizon);
        }
    }

private:
    /// Nothing is in flight. A step that only preempted made room: the next one follows at once.
    void schedule_until_rows(SimTime now) {
        const bool async = engine_.args().async_scheduling;
        do {
            const std::int64_t before = has_next_ ? next_.step : StepRecord::none;
            schedule_into(current_, now);
            if (async) {
                if (record_open_) close_record(before, now);
                has_next_ = current_.empty();
                if (has_next_) {
                    next_.clear();
                    next_.step = current_.step;
                }
            } else if (current_.empty() && record_open_) {
                close_record(current_.step, now);
            }
        } while (current_.empty() && !current_.preempted.empty());
        if (current_.empty()) {
            bound_ = Bound::no_waiting;  // idle
        } else {
            launch(now);
        }
    }

    /// `current_` starts now; under async scheduling the next batch is decided at the same instant.
    void launch(SimTime now) {
        flying_ = true;
        end_ = now + current_.duration;
        has_next_ = engine_.args().async_scheduling;
        if (has_next_) schedule_into(next_, now);
    }

    void schedule_into(Batch& batch, SimTime now) {
        engine_.schedule(batch, now);
        bound_ = batch.bound;
        preemptions_ += static_cast<std::int64_t>(batch.preempted.size());
        counters_.preemptions += static_cast<std::int64_t>(batch.preempted.size());
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

    void observe() {
        Integrator::State& s = integrator_.state;
        s.running = engine_.running_count() > 0;
        s.waiting = engine_.waiting_count() > 0;
        s.stepping = flying_;
        s.used_blocks = engine_.used_blocks();
        s.held = engine_.held();
        s.bound = bound_;
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
            if (updated != StepRecord::none && flight_was(updated)) {
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
    [[nodiscard]] bool flight_was(std::int64_t step) const { return current_.step == step && !current_.empty(); }

    AnyEngine engine_;
    const StepTimeModel& step_time_;
    Counters& counters_;
    Integrals& integrals_;
    Integrator integrator_;
    StepSink on_step_;

    Batch current_;  // in progress if flying_
    Batch next_;     // async: scheduled after current_
    bool flying_ = false;
    bool has_next_ = false;  // next_ was scheduled (possibly without rows) and not launched yet
    bool due_ = false;       // schedule() should run at the next start_step()
    SimTime end_{};
    Bound bound_ = Bound::no_waiting;
    std::int64_t preemptions_ = 0;

    StepRecord record_;  // of the last scheduled step, waiting for its update
    bool record_open_ = false;
};

}  // namespace

std::unique_ptr<Replica> make_replica(const EngineArgs& args, const StepTimeModel& step_time, EngineListener& listener,
                                      Integrals& integrals, Counters& counters, Replica::StepSink on_step) {
    return std::make_unique<ClockedReplica<Engine>>(args, step_time, listener, integrals, counters, std::move(on_step));
}

std::unique_ptr<Replica> make_fast_replica(const EngineArgs& args, const StepTimeModel& step_time, EngineListener& listener,
                                           Integrals& integrals, Counters& counters) {
    return std::make_unique<ClockedReplica<FastEngine>>(args, step_time, listener, integrals, counters, Replica::StepSink{},
                                                        integrals);
}

void fill_scheduled(StepRecord& record, const Engine& engine, const Batch& batch) {
    record.step = batch.step;
    for (const BatchRow& row : batch.rows) {
        const LiveRequest& request = engine.request(row.slot);
        record.scheduled.push_back(
            {request.id, row.tokens, row.computed, row.kind, {request.table.begin() + row.blocks_from, request.table.end()}});
    }
    record.total_tokens = batch.shape.tokens;
    record.preempted = batch.preempted;
    record.free_after_schedule = engine.kv().free();
}

void fill_updated(StepRecord& record, const Engine& engine) {
    record.free_after_update = engine.kv().free();
    for (const Slot slot : engine.running()) record.running.push_back(engine.request(slot).id);
    for (const Slot slot : engine.waiting().in_order()) record.waiting.push_back(engine.request(slot).id);
}

}  // namespace kvsim
