#include "kvsim/app/experiment.hpp"

#include <algorithm>

#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/engine/capacity.hpp"
#include "kvsim/model/pieces.hpp"
#include "kvsim/model/workload_pieces.hpp"
#include "kvsim/report/accuracy_limits.hpp"
#include "kvsim/report/output_analysis.hpp"
#include "kvsim/report/step_log.hpp"

namespace kvsim::app {
namespace {

std::int64_t share_of(double share, std::int64_t count) {
    return static_cast<std::int64_t>(share * static_cast<double>(count));
}

/// Requests before the first that MSER-5 keeps; the series is the E2E of the completed ones in order of arrival.
std::int64_t automatic_warmup(const Outcome& pilot, std::vector<std::string>& warnings) {
    std::vector<std::int64_t> series;
    std::vector<std::int64_t> ids;
    for (std::size_t id = 0; id < pilot.requests.size(); ++id) {
        if (!completed(pilot.requests[id])) continue;
        series.push_back(pilot.requests[id].e2e.count());
        ids.push_back(static_cast<std::int64_t>(id));
    }
    const WarmUp found = mser5(series);
    if (!found.found) {
        warnings.emplace_back(
            "measure.warmup: auto finds no end of the warm-up in the first half of the run (MSER-5 over E2E), so nothing is "
            "cut: "
            "the run is too short, or never becomes steady");
        return 0;
    }
    return found.values == 0 ? 0 : ids[found.values];
}

/// Remembers the names a trace gives its requests, as they are issued: the step log is written before the run ends.
class NamedWorkload final : public Workload {
public:
    explicit NamedWorkload(Workload& inner) : inner_(inner) {}
    [[nodiscard]] std::optional<SimTime> next_time() override { return inner_.next_time(); }
    void pop(Arrival& out) override {
        inner_.pop(out);
        names_.push_back(out.external_id);
    }
    void finished(RequestId id, SimTime now, FinishReason reason, std::int64_t outputs) override {
        inner_.finished(id, now, reason, outputs);
    }
    [[nodiscard]] bool may_branch() const override { return inner_.may_branch(); }
    [[nodiscard]] bool may_cancel() const override { return inner_.may_cancel(); }
    [[nodiscard]] bool closed_loop() const override { return inner_.closed_loop(); }
    [[nodiscard]] bool listens() const override { return inner_.listens(); }
    [[nodiscard]] bool outputs_are_private() const override { return inner_.outputs_are_private(); }
    [[nodiscard]] std::optional<std::int64_t> size_hint() const override { return inner_.size_hint(); }

    [[nodiscard]] std::string name(RequestId id) const { return names_[id].empty() ? std::to_string(id) : names_[id]; }

private:
    Workload& inner_;
    std::vector<std::string> names_;
};

/// What the run refuses names its scenario, unless it names a place itself (in a trace).
Outcome simulate_scenario(const Prepared& p, const SimulationOptions& options, Router& router, Workload& workload) {
    try {
        return simulate(options, *p.step_time, router, workload);
    } catch (const UserError& e) {
        const std::string message = e.what();
        if (message.find("error: ") != std::string::npos) throw;
        throw UserError(p.scenario.file.string() + ": error: " + message);
    }
}

Outcome run_one(const Prepared& p, std::int64_t seed, const RunOptions& run) {
    SimulationOptions options = p.options;
    options.note_head_blocking = run.note_head_blocking;
    options.engine.seed = static_cast<std::uint64_t>(seed);
    std::vector<std::string> warnings;
    resolve_measured(p, static_cast<std::uint64_t>(seed), options, warnings);
    const Pieces pieces = fresh_pieces(p, static_cast<std::uint64_t>(seed));
    Progress progress(p.scenario.name, run.progress);
    const std::optional<std::int64_t> total = pieces.workload->size_hint();
    options.on_progress = [&](const Outcome& outcome, SimTime now) {
        progress.update(now, outcome.counters.completed + outcome.counters.rejected, total);
    };
    NamedWorkload workload(*pieces.workload);
    std::optional<StepLog> log;
    if (run.steps) {
        log.emplace(
            *run.steps, [&workload](RequestId id) { return workload.name(id); }, options.replicas,
            options.engine.usable_blocks());
        options.on_step = [&log](std::int64_t replica, const StepRecord& record) { log->add(replica, record); };
    }
    Outcome outcome = simulate_scenario(p, options, *pieces.router, log ? static_cast<Workload&>(workload) : *pieces.workload);
    outcome.warnings.insert(outcome.warnings.end(), warnings.begin(), warnings.end());
    throw_if_stopped();
    if (!outcome.stall_report.empty()) throw UserError("error: " + p.scenario.name + ": " + outcome.stall_report);
    if (log) log->finish("done", {});
    for (std::string& note : pieces.workload->notes()) outcome.warnings.push_back(std::move(note));
    return outcome;
}

/// Where the step-time model is known to be wrong; the summary says itself that a run is saturated or overloaded.
void add_accuracy_warnings(const Prepared& p, Summary& summary) {
    const std::string& tier = p.info.step_time_model;
    if (tier != "fitted" && tier != "roofline") return;
    AccuracyCase run;
    run.model = p.deployment.model_name;
    run.gpu = p.deployment.gpu_name;
    run.dtype = p.deployment.model->dtype;
    run.moe = p.deployment.model->is_moe();
    run.batch = summary.batch_size_mean.value_or(0);
    run.context = summary.prompt_tokens.mean + summary.output_tokens.mean / 2;
    // A load above 1 of a stable run is the capacity's fault (the summary says so): nothing piles up.
    const bool stable = summary.verdict == "stable" && summary.load.value_or(0) > 1;
    if (!p.info.max_concurrency && !stable) run.load = summary.load.value_or(0);
    run.concurrency = p.info.max_concurrency;
    for (const std::string& limit : accuracy_limits(run)) summary.warnings.push_back("accuracy: " + limit);
    if (tier == "roofline") {
        summary.warnings.push_back("accuracy: no kernel was measured on " + run.gpu +
                                   "; efficiencies are the medians of other cards");
    } else if (p.deployment.gpu->constants.empty()) {
        summary.warnings.push_back("accuracy: no kernel was measured on " + run.gpu + "; its constants are those of " +
                                   p.deployment.gpu->constants_of_family + ", a card of its family");
    }
}

}  // namespace

Pieces fresh_pieces(const Prepared& p, std::uint64_t seed) {
    config::Diagnostics diagnostics;  // everything was checked when it was prepared
    Pieces out{make_workload(p.scenario.workload, seed, p.scenario.file.parent_path(), diagnostics),
               make_router(p.scenario.router, seed, diagnostics)};
    KVSIM_CHECK(out.workload && out.router, "what was prepared once can be prepared again");
    return out;
}

void resolve_measured(const Prepared& p, std::uint64_t seed, SimulationOptions& options, std::vector<std::string>& warnings) {
    const config::MeasureConfig& m = p.scenario.measure;
    const bool cooldown = m.cooldown_time || m.cooldown_requests || m.cooldown_share;
    if (!m.warmup_auto && !m.warmup_share && !cooldown) return;

    SimulationOptions plain = options;
    plain.warmup_time.reset();
    plain.warmup_requests.reset();
    plain.measured_end.reset();
    plain.timeline_interval = {};
    plain.window = {};
    plain.on_step = nullptr;
    plain.on_progress = nullptr;
    const Pieces pieces = fresh_pieces(p, seed);
    const Outcome pilot = simulate(plain, *p.step_time, *pieces.router, *pieces.workload);
    throw_if_stopped();
    const auto count = static_cast<std::int64_t>(pilot.requests.size());
    if (m.warmup_auto) options.warmup_requests = automatic_warmup(pilot, warnings);
    if (m.warmup_share) options.warmup_requests = share_of(*m.warmup_share, count);
    if (m.cooldown_requests) options.measured_end = std::max<std::int64_t>(0, count - *m.cooldown_requests);
    if (m.cooldown_share) options.measured_end = count - share_of(*m.cooldown_share, count);
    if (m.cooldown_time) {
        const auto late = std::find_if(pilot.requests.begin(), pilot.requests.end(), [&](const RequestRecord& r) {
            return pilot.last_arrival - r.arrival < *m.cooldown_time;
        });
        options.measured_end = late - pilot.requests.begin();
    }
}

std::optional<double> capacity_of(const Prepared& p, std::int64_t seed) {
    const Pieces pieces = fresh_pieces(p, static_cast<std::uint64_t>(seed));
    if (pieces.workload->closed_loop()) return std::nullopt;  // its requests follow from answers
    SimulationOptions options = p.options;
    options.engine.seed = static_cast<std::uint64_t>(seed);
    const std::optional<double> rate = saturated_rate(options, *p.step_time, *pieces.router, *pieces.workload);
    throw_if_stopped();
    return rate;
}

Run run_seed(const Prepared& p, std::int64_t seed, const RunOptions& options) {
    Run run{p.info, run_one(p, seed, options), {}};  // an Outcome that is overwritten costs half a megabyte of zeros
    run.info.seed = seed;
    const std::vector<std::string> notes = p.step_time->notes();  // before the runs that find the capacity
    run.info.capacity_req_s = options.capacity ? *options.capacity : capacity_of(p, seed);
    run.summary = summarize(run.info, run.outcome);
    add_accuracy_warnings(p, run.summary);
    for (const std::string& note : notes) run.summary.warnings.push_back("accuracy: " + note);
    return run;
}

}  // namespace kvsim::app
