#pragma once
// An engine with its clock: when schedule() runs, how long the step takes, when its results arrive.
//
// Synchronous: schedule() when the previous step has ended. Asynchronous: a queue of two batches; schedule() for the next batch
// runs at the instant a batch starts, so what it decides rests on results that are one step old. A schedule() without rows
// launches nothing and takes no time.

#include <functional>
#include <memory>

#include "kvsim/engine/engine.hpp"
#include "kvsim/engine/outcome.hpp"
#include "kvsim/engine/step_record.hpp"
#include "kvsim/model/step_time.hpp"

namespace kvsim {

/// Exact integrals of one replica's state; the state holds from each observation to the next.
class Integrator {
public:
    explicit Integrator(Integrals& into) : into_(into) {}
    struct State {
        bool running = false;
        bool waiting = false;
        bool stepping = false;
        std::int64_t used_blocks = 0;
        std::int64_t busy_slots = 0;
        HeldSlots held;
        std::int64_t block_size = 0;
        Bound bound = Bound::no_waiting;
    };
    void start(SimTime now) { last_ = now; }
    void advance(SimTime now);
    State state;

private:
    Integrals& into_;
    SimTime last_{};
};

class Replica {
public:
    using StepSink = std::function<void(const StepRecord&)>;

    Replica(const EngineArgs& args, const StepTimeModel& step_time, EngineListener& listener, Integrals& integrals,
            Counters& counters, StepSink on_step);

    /// The end of the batch in progress, or never.
    [[nodiscard]] SimTime next_time() const { return flying_ ? end_ : never; }
    /// Integration begins (first arrival of the run).
    void begin(SimTime now) { integrator_.start(now); }
    /// A request joins the waiting queue; an idle replica wakes at start_steps().
    void enqueue(LiveRequest request, SimTime now);
    /// If the batch in progress ends now, its results arrive. Returns whether it did.
    bool finish_step(SimTime now);
    /// Launches what can start now and runs schedule() as often as is due.
    void start_step(SimTime now);
    void integrate(SimTime now) { integrator_.advance(now); }

    [[nodiscard]] const Engine& engine() const { return engine_; }
    [[nodiscard]] SimTime now() const { return now_; }
    [[nodiscard]] bool idle() const { return !flying_; }
    [[nodiscard]] const Batch* in_progress() const { return flying_ ? &current_ : nullptr; }
    [[nodiscard]] std::int64_t preemptions() const { return preemptions_; }

private:
    void schedule_into(Batch& batch, SimTime now);
    void launch(SimTime now);
    void observe();
    void open_record(const Batch& batch, SimTime now);
    void close_record(std::int64_t updated_step, SimTime now);

    Engine engine_;
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
    SimTime now_{};
    Bound bound_ = Bound::no_waiting;
    std::int64_t preemptions_ = 0;

    StepRecord record_;  // of the last scheduled step, waiting for its update
    bool record_open_ = false;
    std::vector<RequestId> received_;
    std::vector<RequestId> finished_;
};

/// The scheduled half of a step's record.
void fill_scheduled(StepRecord& record, const Engine& engine, const Batch& batch);
/// The half after the update.
void fill_updated(StepRecord& record, const Engine& engine);

}  // namespace kvsim
