#pragma once
// Tiny random scenarios over everything the engine can be told, and the pieces they run with.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvsim/engine/simulation.hpp"

namespace kvsim::oracle {

/// Requests known beforehand. With `users` > 0 a closed loop: the first `users` come as they stand, each further one only after
/// some request has left, `think` later (or at its own time if that is later still). With `plain` an open one of which every
/// request is a PlainArrival, and which tells some at once.
class VectorWorkload final : public Workload {
public:
    explicit VectorWorkload(std::vector<Arrival> arrivals, std::int64_t users = 0, SimDuration think = {}, bool plain = false);
    std::optional<SimTime> next_time() override;
    void pop(Arrival& out) override;
    std::span<const PlainArrival> take_plain() override;
    [[nodiscard]] bool listens() const override { return true; }
    void finished(RequestId id, SimTime now, FinishReason reason, std::int64_t outputs) override;
    [[nodiscard]] bool may_cancel() const override;
    [[nodiscard]] bool may_branch() const override;
    [[nodiscard]] bool closed_loop() const override { return users_ > 0; }
    [[nodiscard]] bool outputs_are_private() const override;
    [[nodiscard]] std::optional<std::int64_t> size_hint() const override { return static_cast<std::int64_t>(arrivals_.size()); }
    /// Every call of finished(), in order.
    [[nodiscard]] const std::vector<std::pair<RequestId, SimTime>>& left() const { return left_; }

private:
    std::vector<Arrival> arrivals_;
    std::size_t next_ = 0;
    std::int64_t users_;
    SimDuration think_;
    bool plain_;
    std::vector<PlainArrival> taken_;
    SimTime last_popped_{};
    std::vector<std::pair<RequestId, SimTime>> left_;
};

/// In turn, or the replica with the fewest tokens still to compute (the first of several). Notes what it was shown; with one
/// replica nothing is noted, for then a router need not be asked.
class TestRouter final : public Router {
public:
    explicit TestRouter(bool fewest_tokens) : fewest_tokens_(fewest_tokens) {}
    std::size_t pick(const Arrival& arrival, std::span<const ReplicaLoad> loads) override;
    [[nodiscard]] const std::vector<std::pair<std::int64_t, std::int64_t>>& shown() const { return shown_; }

private:
    bool fewest_tokens_;
    std::size_t next_ = 0;
    std::vector<std::pair<std::int64_t, std::int64_t>> shown_;
};

/// c0 + per_token * tokens + per_sequence * sequences + per_context * (decode context + context the chunks attend to)
/// + per_sampled * sampled + per_window * (sum of the windows' contexts), in ns; all zero but c0: constant.
struct AffineStepTime final : StepTimeModel {
    double c0 = 1, per_token = 0, per_sequence = 0, per_context = 0, per_sampled = 0, per_window = 0;
    bool has_line = true;  ///< whether decode_line() tells
    [[nodiscard]] SimDuration duration(const StepShape& shape) const override;
    [[nodiscard]] std::optional<DecodeLine> decode_line(std::int64_t rows) const override;
    [[nodiscard]] std::string describe() const override { return "affine test double"; }
};

struct Scenario {
    std::uint64_t seed = 0;
    SimulationOptions options;  ///< without callbacks
    AffineStepTime step_time;
    std::vector<Arrival> arrivals;
    std::int64_t users = 0;  ///< > 0: closed loop
    SimDuration think{};
    bool plain = false;          ///< told as PlainArrival, see VectorWorkload
    bool fewest_tokens = false;  ///< the router's choice
};

/// The same scenario for the same seed on every machine.
Scenario random_scenario(std::uint64_t seed);

/// For messages.
std::string describe(const Scenario& scenario);

using Simulate = std::function<Outcome(const SimulationOptions&, const StepTimeModel&, Router&, Workload&)>;

/// All that can be seen of a run.
struct Run {
    bool refused = false;  ///< it ended with UserError; then the outcome is empty
    bool endless = false;  ///< cut after max_steps records; then the outcome is empty
    bool recorded = true;  ///< `steps` was filled
    std::int64_t replicas = 1;
    Outcome outcome;
    std::map<std::int64_t, std::vector<StepRecord>> steps;     ///< by replica
    std::vector<std::pair<RequestId, SimTime>> left;           ///< calls of Workload::finished
    std::vector<std::pair<std::int64_t, std::int64_t>> loads;  ///< requests and tokens of every replica at every routing
};

/// Cut after `max_steps` records. By the rules a few scenarios never end: under priority two requests that tie in priority and
/// arrival time can preempt each other for ever, because the victim among equals is the first of `running`.
Run run(const Scenario& scenario, const Simulate& simulate, std::int64_t max_steps = 6'000);
/// Without step records, so that the engine may skip over steps nobody looks at. Only for scenarios that end.
Run run_without_records(const Scenario& scenario, const Simulate& simulate);

}  // namespace kvsim::oracle
