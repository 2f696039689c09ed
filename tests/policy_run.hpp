#pragma once
// Batch policies by their scenario text, on requests given one by one.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvsim/config/load.hpp"
#include "kvsim/config/scenario.hpp"
#include "kvsim/engine/simulation.hpp"
#include "kvsim/model/deployment.hpp"
#include "kvsim/model/pieces.hpp"

namespace kvsim::test {

/// Requests as they stand in a list, in order of time.
class Listed final : public Workload {
public:
    explicit Listed(std::vector<Arrival> arrivals) : arrivals_(std::move(arrivals)) {}
    std::optional<SimTime> next_time() override {
        if (next_ == arrivals_.size()) return std::nullopt;
        return arrivals_[next_].time;
    }
    void pop(Arrival& out) override { out = arrivals_[next_++]; }
    [[nodiscard]] bool closed_loop() const override { return false; }
    [[nodiscard]] bool outputs_are_private() const override { return true; }

private:
    std::vector<Arrival> arrivals_;
    std::size_t next_ = 0;
};

inline Arrival arrival(std::int64_t at_ns, std::int64_t prompt, std::int64_t output) {
    Arrival a;
    a.time = SimTime(SimDuration(at_ns));
    a.prompt_tokens = prompt;
    a.output_tokens = output;
    return a;
}

/// A scenario's engine, without its clock's other parts.
struct Policy {
    config::Scenario scenario;
    Deployment deployment;
    std::unique_ptr<StepTimeModel> step_time;
    std::vector<std::string> errors;
    std::vector<std::string> warnings;
};

/// `text`: every section but `workload`, which may be there.
inline Policy policy(const std::string& text) {
    std::string all = text;
    if (text.find("workload:") == std::string::npos)
        all += "\nworkload: {requests: 1, arrivals: all_at_once, prompt_tokens: 1, output_tokens: 1}\n";
    config::Diagnostics diagnostics;
    Policy out;
    const config::Value root = config::parse_yaml(all, "policy.yaml", diagnostics);
    out.scenario = config::read_scenario(root, "policy.yaml", diagnostics);
    out.deployment = resolve_deployment(out.scenario, Catalog::open(), diagnostics);
    if (diagnostics.ok()) out.step_time = make_step_time(out.scenario.step_time, out.deployment, diagnostics);
    out.errors = diagnostics.errors();
    out.warnings = diagnostics.warnings();
    out.warnings.insert(out.warnings.end(), out.deployment.warnings.begin(), out.deployment.warnings.end());
    return out;
}

struct PolicyRun {
    Outcome outcome;
    std::vector<StepRecord> steps;
    /// In the order in which they first got a row.
    [[nodiscard]] std::vector<RequestId> started() const {
        std::vector<RequestId> out;
        for (const StepRecord& step : steps) {
            for (const ScheduledRow& row : step.scheduled) {
                if (row.kind == ScheduledRow::Kind::fresh) out.push_back(row.id);
            }
        }
        return out;
    }
};

inline PolicyRun run_policy(const Policy& p, Workload& workload, std::uint64_t seed = 1, bool log = true) {
    SimulationOptions options;
    options.engine = p.deployment.engine;
    options.engine.seed = seed;
    PolicyRun out;
    if (log) options.on_step = [&out](std::int64_t, const StepRecord& record) { out.steps.push_back(record); };
    config::Diagnostics diagnostics;
    const auto router = make_router({}, 1, diagnostics);
    out.outcome = simulate(options, *p.step_time, *router, workload);
    return out;
}

inline PolicyRun run_policy(const Policy& p, std::vector<Arrival> arrivals, std::uint64_t seed = 1) {
    Listed workload(std::move(arrivals));
    return run_policy(p, workload, seed);
}

/// The scenario's own workload.
inline Outcome run_scenario(const Policy& p, std::uint64_t seed) {
    config::Diagnostics diagnostics;
    const auto workload = make_workload(p.scenario.workload, seed, {}, diagnostics);
    return run_policy(p, *workload, seed, false).outcome;
}

}  // namespace kvsim::test
