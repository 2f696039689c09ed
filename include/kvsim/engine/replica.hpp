#pragma once
// An engine with its clock: when schedule() runs, how long the step takes, when its results arrive.
//
// Synchronous: schedule() when the previous step has ended. Asynchronous: a queue of two batches; schedule() for the next batch
// runs at the instant a batch starts, so what it decides rests on results that are one step old. A schedule() without rows
// launches nothing and takes no time.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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
        std::int64_t usable_slots = 0;
        std::int64_t block_size = 0;
        HeldSlots held;
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

    /// What routers, samples and reports look at.
    struct State {
        std::int64_t unfinished = 0;
        std::int64_t outstanding_tokens = 0;
        std::int64_t running = 0;
        std::int64_t waiting = 0;
        std::int64_t used_blocks = 0;
        std::int64_t preemptions = 0;
        const Batch* in_progress = nullptr;  ///< null: idle
    };

    virtual ~Replica() = default;
    /// The end of the batch in progress, or never.
    [[nodiscard]] virtual SimTime next_time() const = 0;
    /// Integration begins (first arrival of the run).
    virtual void begin(SimTime now) = 0;
    /// A request joins the waiting queue; an idle replica wakes at start_step().
    virtual void enqueue(NewRequest request, SimTime now) = 0;
    /// If the batch in progress ends now, its results arrive.
    virtual void finish_step(SimTime now) = 0;
    /// Launches what can start now and runs schedule() as often as is due.
    virtual void start_step(SimTime now) = 0;
    /// May run ahead, over steps that end before `horizon` and in which nobody is admitted, preempted or finished.
    virtual void run_ahead(SimTime horizon) = 0;
    virtual void integrate(SimTime now) = 0;
    [[nodiscard]] virtual State state() const = 0;
    [[nodiscard]] virtual const EngineArgs& args() const = 0;
    /// One line for the stall report.
    [[nodiscard]] virtual std::string describe() const = 0;
    /// (request, received output tokens) of those still here when a run has stalled.
    [[nodiscard]] virtual std::vector<std::pair<RequestId, std::int64_t>> left_over() const = 0;
};

/// The per-request engine: every policy, block identities, step records.
std::unique_ptr<Replica> make_replica(const EngineArgs& args, const StepTimeModel& step_time, EngineListener& listener,
                                      Integrals& integrals, Counters& counters, Replica::StepSink on_step);
/// The same decisions at a cost proportional to what changes (fast_engine.hpp says when it may be used).
std::unique_ptr<Replica> make_fast_replica(const EngineArgs& args, const StepTimeModel& step_time, EngineListener& listener,
                                           Integrals& integrals, Counters& counters);

/// The scheduled half of a step's record.
void fill_scheduled(StepRecord& record, const Engine& engine, const Batch& batch);
/// The half after the update.
void fill_updated(StepRecord& record, const Engine& engine);

}  // namespace kvsim
