#include "kvsim/engine/capacity.hpp"

#include <algorithm>

#include "kvsim/base/check.hpp"

namespace kvsim {
namespace {

/// The same requests in the same order, all there from the start.
class Backlog final : public Workload {
public:
    Backlog(Workload& inner, std::int64_t most) : inner_(inner), most_(most), left_(most) {}
    [[nodiscard]] std::optional<SimTime> next_time() override {
        if (left_ == 0 || !inner_.next_time()) return std::nullopt;
        return SimTime{};
    }
    void pop(Arrival& out) override {
        inner_.pop(out);
        out.time = SimTime{};
        --left_;
    }
    [[nodiscard]] bool closed_loop() const override { return false; }
    [[nodiscard]] std::optional<std::int64_t> size_hint() const override {
        return std::min(most_, inner_.size_hint().value_or(most_));
    }
    [[nodiscard]] bool may_branch() const override { return inner_.may_branch(); }
    [[nodiscard]] bool outputs_are_private() const override { return inner_.outputs_are_private(); }

private:
    Workload& inner_;
    std::int64_t most_;
    std::int64_t left_;
};

std::optional<double> rate_of(const Outcome& outcome, const SimulationOptions& options) {
    const std::int64_t finished = outcome.integrals.finished_while_waiting;
    const std::int64_t completed = outcome.counters.completed;
    if (!outcome.stall_report.empty() || completed < 100) return std::nullopt;
    if (finished >= 100 && finished * 2 >= completed) {
        return static_cast<double>(finished) / to_seconds(outcome.integrals.any_waiting) *
               static_cast<double>(options.replicas);
    }
    return static_cast<double>(completed) / to_seconds(outcome.end - outcome.first_arrival + options.api);
}

}  // namespace

std::optional<double> saturated_rate(const SimulationOptions& options, const StepTimeModel& step_time, Router& router,
                                     Workload& workload, std::int64_t most) {
    SimulationOptions plain = options;
    plain.on_step = nullptr;
    plain.on_progress = nullptr;
    plain.itl_per_request = false;
    plain.timeline_interval = {};
    plain.max_concurrency.reset();
    plain.warmup_time.reset();
    plain.warmup_requests.reset();
    plain.keep_requests = true;  // few
    plain.measured_end.reset();
    plain.window = {};
    plain.engine.max_queued_requests = -1;  // all are to be served
    plain.cold_start = {};
    // All leave the front end at one instant: without it they do so `api` earlier and need no room in it.
    plain.api = {};
    // Where only the head of the queue counts, those far behind it need not be there yet: whoever leaves brings the next one.
    const EngineArgs& engine = plain.engine;
    const bool tokenizes = plain.tokenizer_ns > 0 || plain.tokenizer_ns_per_token > 0;
    if (engine.batching == "vllm-v1" && engine.scheduling_policy == QueueOrder::fcfs && !engine.policy.any() &&
        plain.replicas == 1 && !tokenizes) {
        plain.max_concurrency = 2 * engine.max_num_seqs;
        plain.note_client_queue = false;
    }
    Backlog backlog(workload, most);
    try {
        return rate_of(simulate(plain, step_time, router, backlog), options);
    } catch (const UserError&) { return std::nullopt; }  // none of the replayed requests fits; those behind them may
}

}  // namespace kvsim
