#include "kvsim/engine/replica.hpp"

#include <utility>

#include "kvsim/base/check.hpp"

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
    into_.slots_busy_dt += static_cast<Int128>(state.busy_slots) * dt;
    into_.slots_token_dt += static_cast<Int128>(token) * dt;
    into_.slots_reserved_dt += static_cast<Int128>(state.held.reserved) * dt;
    into_.slots_internal_dt += static_cast<Int128>(state.held.internal) * dt;
}

Replica::Replica(const EngineArgs& args, const StepTimeModel& step_time, EngineListener& listener, Integrals& integrals,
                 Counters& counters, StepSink on_step)
    : engine_(args, listener),
      step_time_(step_time),
      counters_(counters),
      integrals_(integrals),
      integrator_(integrals),
      on_step_(std::move(on_step)) {
    integrator_.state.block_size = args.block_size;
    integrator_.state.busy_slots = engine_.kv().usable() * args.block_size;
}

void Replica::enqueue(LiveRequest request, SimTime now) {
    integrator_.advance(now);
    now_ = now;
    engine_.enqueue(std::move(request));
    if (!flying_) due_ = true;
    observe();
}

bool Replica::finish_step(SimTime now) {
    if (!flying_ || end_ != now) return false;
    integrator_.advance(now);
    now_ = now;
    const bool waited = !engine_.waiting().empty();
    const std::int64_t unfinished = engine_.unfinished();
    received_.clear();
    finished_.clear();
    engine_.update(current_, on_step_ ? &received_ : nullptr, on_step_ ? &finished_ : nullptr);
    if (waited) integrals_.finished_while_waiting += unfinished - engine_.unfinished();
    flying_ = false;
    due_ = true;
    if (engine_.unfinished() == 0) has_next_ = false;
    if (record_open_) close_record(current_.step, now);
    observe();
    return true;
}

void Replica::start_step(SimTime now) {
    if (flying_ || !due_) return;
    integrator_.advance(now);
    now_ = now;
    due_ = false;
    const bool async = engine_.args().async_scheduling;
    if (engine_.unfinished() == 0) {
        has_next_ = false;  // the trailing batch without rows leaves with the last request
        bound_ = Bound::no_waiting;
    } else if (has_next_ && !next_.rows.empty()) {
        std::swap(current_, next_);
        launch(now);
    } else {
        // Nothing is in flight: schedule until there are rows. A step that only preempted made room; try again at once.
        do {
            const std::int64_t before = has_next_ ? next_.step : StepRecord::none;
            schedule_into(current_, now);
            if (async) {
                if (record_open_) close_record(before, now);
                has_next_ = current_.rows.empty();
                if (has_next_) next_.step = current_.step, next_.rows.clear();
            } else if (current_.rows.empty() && record_open_) {
                close_record(current_.step, now);
            }
        } while (current_.rows.empty() && !current_.preempted.empty());
        if (current_.rows.empty()) {
            bound_ = Bound::no_waiting;  // idle
        } else {
            launch(now);
        }
    }
    observe();
}

/// `current_` starts now; under async scheduling the next batch is decided at the same instant.
void Replica::launch(SimTime now) {
    flying_ = true;
    end_ = now + current_.duration;
    has_next_ = false;
    if (!engine_.args().async_scheduling) return;
    schedule_into(next_, now);
    has_next_ = true;
}

void Replica::schedule_into(Batch& batch, SimTime now) {
    engine_.schedule(batch);
    bound_ = batch.bound;
    preemptions_ += static_cast<std::int64_t>(batch.preempted.size());
    counters_.preemptions += static_cast<std::int64_t>(batch.preempted.size());
    if (!batch.rows.empty()) {
        batch.duration = step_time_.duration(batch.shape);
        KVSIM_CHECK(batch.duration >= SimDuration(1), "a step takes at least 1 ns");
        ++counters_.steps;
        counters_.rows += batch.shape.sequences;
        counters_.tokens += batch.shape.tokens;
        counters_.recomputed_tokens += batch.recomputed_tokens;
        integrals_.stepping += batch.duration;
        if (batch.recomputed_tokens > 0) {
            integrals_.recompute_ns += static_cast<double>(batch.duration.count()) *
                                       (static_cast<double>(batch.recomputed_tokens) / static_cast<double>(batch.shape.tokens));
        }
    }
    integrals_.blocks_used_peak = std::max(integrals_.blocks_used_peak, engine_.used_blocks());
    if (on_step_) open_record(batch, now);
}

void Replica::observe() {
    Integrator::State& s = integrator_.state;
    s.running = !engine_.running().empty();
    s.waiting = !engine_.waiting().empty();
    s.stepping = flying_;
    s.used_blocks = engine_.used_blocks();
    s.held = engine_.held();
    s.bound = bound_;
}

void Replica::open_record(const Batch& batch, SimTime now) {
    KVSIM_CHECK(!record_open_, "a step's record closes before the next opens");
    record_ = {};
    fill_scheduled(record_, engine_, batch);
    record_.start = now;
    record_.duration = batch.duration;
    record_open_ = true;
}

void Replica::close_record(std::int64_t updated_step, SimTime now) {
    record_.updated_step = updated_step;
    record_.received = received_;
    record_.finished = finished_;
    received_.clear();
    finished_.clear();
    fill_updated(record_, engine_);
    // The async batch was decided when its predecessor started; it starts when that one ends, which is now.
    if (engine_.args().async_scheduling && !record_.scheduled.empty()) record_.start = now;
    record_open_ = false;
    on_step_(record_);
}

void fill_scheduled(StepRecord& record, const Engine& engine, const Batch& batch) {
    record.step = batch.step;
    for (const BatchRow& row : batch.rows) {
        const LiveRequest& request = engine.request(row.slot);
        record.scheduled.push_back(
            {request.id, row.tokens, row.computed, row.kind, {request.table.begin() + row.blocks_from, request.table.end()}});
    }
    record.total_tokens = batch.shape.tokens;
    record.preempted = batch.preempted_ids;
    record.free_after_schedule = engine.kv().free();
}

void fill_updated(StepRecord& record, const Engine& engine) {
    record.free_after_update = engine.kv().free();
    for (const Slot slot : engine.running()) record.running.push_back(engine.request(slot).id);
    for (const Slot slot : engine.waiting().in_order()) record.waiting.push_back(engine.request(slot).id);
}

}  // namespace kvsim
