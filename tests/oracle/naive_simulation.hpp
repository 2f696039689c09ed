#pragma once
// The event loop and every metric in their plainest form: at each instant all replicas and all requests are looked at, and
// between two instants every integral is summed over all of them. Contract and meaning of each figure:
// kvsim/engine/outcome.hpp.
//
// Order at one instant: ends of steps (replica order), clients that give up (request order), arrivals (stream order),
// schedule() (replica order).

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>

#include "kvsim/engine/simulation.hpp"
#include "naive_engine.hpp"

namespace kvsim::oracle {

/// Deliberate mistakes of the event loop, as Mutation is of the engine.
enum class LoopMutation : std::uint8_t {
    none,
    arrivals_before_step_ends,  ///< at equal times
    schedule_before_arrivals,   ///< at equal times: an arrival at a step's end waits for the next schedule()
    async_wakes_on_arrival,     ///< an empty batch behind a running one is replaced when a request arrives
    async_keeps_pipeline_idle,  ///< the empty batch stays in the queue when the engine becomes idle
    token_at_noticing,          ///< async: tokens are dated one step late
    queue_from_arrival,         ///< queue time includes the front-end time
    arrival_is_intended_time,   ///< max_concurrency: waiting at the client counts as latency
    reject_by_prompt_only,      ///< ceil(prompt / B) instead of ceil((prompt + 1) / B)
    hit_counts_as_recompute,    ///< recomputed tokens include prefix hits of resumes
    reserved_ignores_final,     ///< reserved slots counted up to the block's end
    bound_survives_idle,        ///< the last bound stays although nothing is in flight
    give_up_before_results,     ///< at equal times: a last token at the deadline comes too late
    waiting_after_update,       ///< finished_while_waiting looks after the update
    queue_bound_forgets_seats,  ///< who will be admitted at the next decision counts as waiting
    count
};

/// More step records than the caller allowed.
struct TooManySteps : std::runtime_error {
    using std::runtime_error::runtime_error;
};

using MakeMachine = std::function<std::unique_ptr<NaiveMachine>(const EngineArgs&)>;

/// As simulate(). Checks the engine's invariants at every instant; throws InternalError when one is broken.
Outcome naive_simulate(const SimulationOptions& options, const StepTimeModel& step_time, Router& router, Workload& workload,
                       Mutation mutation = Mutation::none, LoopMutation loop_mutation = LoopMutation::none);

/// With another engine in each replica.
Outcome naive_simulate(const SimulationOptions& options, const StepTimeModel& step_time, Router& router, Workload& workload,
                       const MakeMachine& make);

}  // namespace kvsim::oracle
