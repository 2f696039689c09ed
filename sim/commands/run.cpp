// kvsim SCENARIO.yaml...: validate everything, then simulate one after the other, then write.

#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "kvsim/app/command.hpp"
#include "kvsim/app/experiment.hpp"
#include "kvsim/app/output_folder.hpp"
#include "kvsim/app/prepare.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"
#include "kvsim/engine/capacity.hpp"
#include "kvsim/model/deployment.hpp"
#include "kvsim/model/pieces.hpp"
#include "kvsim/report/accuracy_limits.hpp"
#include "kvsim/report/assertion.hpp"
#include "kvsim/report/render.hpp"
#include "kvsim/report/replications.hpp"
#include "kvsim/report/step_log.hpp"
#include "kvsim/report/windows.hpp"
#include "kvsim/report/writers.hpp"

namespace kvsim::app {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 5> formats{"table", "vllm", "json", "csv", "markdown"};
constexpr std::array<std::string_view, 6> log_levels{"warn", "trace", "debug", "info", "error", "off"};

const Usage& usage() {
    static const Usage run{
        "run",
        "kvsim SCENARIO.yaml... [options]",
        "Simulates each scenario, prints its summary and writes summary.csv, requests.csv, timeline.csv and summary.json.\n"
        "Every scenario is validated before the first one runs.",
        {{"set", "KEY.PATH=VALUE", "change a key of the scenario: --set engine.max_num_seqs=64", true},
         {"overlay", "FILE.yaml", "lay this file's keys over the scenario, as kvsim calibrate writes it", true},
         {"seed", "N", "the same as --set seed=N"},
         {"out", "DIR", "where the files go (results/NAME); with several scenarios DIR/NAME/ and DIR/summary.csv"},
         {"format", "FORMAT", "what is printed: table, vllm, json, csv or markdown (table)"},
         {"assert", "'METRIC OP VALUE'", "exit 1 unless it holds: 'ttft_p99 <= 2s', 'preemptions == 0'", true},
         {"steps", "FILE", "log every engine step as a JSON line"},
         {"replications", "N",
          "run under the seeds S ... S+N-1: replications.csv, and means with 95 % intervals in summary.csv"},
         {"catalog", "DIR", "own models.yaml and gpus.yaml, asked before the shipped ones"},
         {"quiet", "", "print nothing but errors and failed assertions"},
         {"log-level", "LEVEL", "trace, debug, info, warn, error or off, on standard error (warn)"}},
        "a scenario file",
        1,
        static_cast<std::size_t>(-1)};
    return run;
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
    [[nodiscard]] bool may_cancel() const override { return inner_.may_cancel(); }
    [[nodiscard]] std::optional<std::int64_t> size_hint() const override { return inner_.size_hint(); }

    [[nodiscard]] std::string name(RequestId id) const { return names_[id].empty() ? std::to_string(id) : names_[id]; }

private:
    Workload& inner_;
    std::vector<std::string> names_;
};

struct RunOptions {
    bool quiet = false;
    std::optional<fs::path> steps;
    std::optional<std::int64_t> replications;
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
    std::vector<std::string> warnings;
    resolve_measured(p, static_cast<std::uint64_t>(seed), options, warnings);
    const Pieces pieces = fresh_pieces(p, static_cast<std::uint64_t>(seed));
    Progress progress(p.scenario.name, !run.quiet);
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

/// From the same requests offered all at once, with pieces of their own.
std::optional<double> capacity_of(const Prepared& p, std::int64_t seed) {
    const Pieces pieces = fresh_pieces(p, static_cast<std::uint64_t>(seed));
    if (pieces.workload->closed_loop()) return std::nullopt;  // its requests follow from answers
    const std::optional<double> rate = saturated_rate(p.options, *p.step_time, *pieces.router, *pieces.workload);
    throw_if_stopped();
    return rate;
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
    if (!p.info.max_concurrency) run.load = summary.load.value_or(0);
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

/// One seed's run; the first one's details are kept.
Outcome run_seed(const Prepared& p, std::int64_t seed, const RunOptions& run, RunInfo& info, Summary& summary) {
    Outcome outcome = run_one(p, seed, run);
    info.seed = seed;
    const std::vector<std::string> notes = p.step_time->notes();  // of this run, not of the one that finds the capacity
    info.capacity_req_s = capacity_of(p, seed);
    summary = summarize(info, outcome);
    add_accuracy_warnings(p, summary);
    for (const std::string& note : notes) summary.warnings.push_back("accuracy: " + note);
    return outcome;
}

/// requests.csv, timeline.csv, windows.csv and the keys of summary.json outside `kvsim` are the first seed's.
void write_files(const fs::path& folder, const Prepared& p, const RunInfo& info, const Outcome& outcome,
                 const std::vector<Summary>& runs, bool replications) {
    std::error_code ignored;                  // a missing folder is reported by the first file
    fs::create_directories(folder, ignored);  // again: another run that failed may have taken the empty folder away
    std::vector<std::unique_ptr<AtomicFile>> files;
    const auto add = [&](std::string_view name) -> AtomicFile& {
        return *files.emplace_back(std::make_unique<AtomicFile>(folder / name));
    };
    if (p.scenario.output.requests) write_requests_csv(add("requests.csv"), outcome, info.slo, info.class_slos);
    if (p.scenario.output.timeline) write_timeline_csv(add("timeline.csv"), outcome);
    if (p.scenario.measure.window) add("windows.csv").write(windows_csv(info, outcome));
    if (replications) add("replications.csv").write(summary_csv(runs));
    add("summary.json")
        .write(summary_json(info, outcome, runs.front(), replications ? replications_json(runs) : std::string()));
    add("summary.csv").write(replications ? replicated_csv(runs) : summary_csv(runs));
    // They appear together: whatever can fail has been tried before the first.
    for (const std::unique_ptr<AtomicFile>& file : files) file->finish();
    for (const std::unique_ptr<AtomicFile>& file : files) file->commit();
}

/// Names become folders, so they must be plain and differ.
void check_names(const std::vector<Prepared>& all) {
    const bool several = all.size() > 1;
    std::set<std::string_view> seen;
    for (const Prepared& p : all) {
        const std::string& name = p.scenario.name;
        if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
            throw UserError("error: " + p.scenario.file.string() + ": the name '" + name + "' cannot be a folder's name");
        }
        if (several && name == "summary.csv") {
            throw UserError("error: " + p.scenario.file.string() +
                            ": the name 'summary.csv' is that of the file beside the folders");
        }
        if (!seen.insert(name).second) {
            throw UserError("error: " + p.scenario.file.string() + ": another scenario is named '" + name +
                            "' too; they would write to the same folder");
        }
    }
}

/// One folder a scenario, and with several the one that holds them.
std::vector<OutputFolder> make_folders(const std::vector<Prepared>& all, const std::optional<std::string>& out) {
    std::vector<OutputFolder> folders;
    if (out && out->empty()) throw UserError("error: --out must name a folder");
    const fs::path top = out.value_or("results");
    if (all.size() > 1) folders.emplace_back(top);
    for (const Prepared& p : all) folders.emplace_back(out && all.size() == 1 ? top : top / p.scenario.name);
    return folders;
}

bool colour() {
    const char* const term = std::getenv("TERM");
    return isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr && term != nullptr &&
           std::string_view(term) != "dumb";
}

}  // namespace

int run_command(const std::vector<std::string>& args) {
    const std::optional<Arguments> given = parse(usage(), args);
    if (!given) return exit_done;
    const std::vector<std::string>& files = given->positional;
    const bool several = files.size() > 1;
    const RunOptions run{given->has("quiet"), given->text("steps"), given->integer("replications", 1, 100'000)};
    const bool replications = run.replications.has_value();
    if (run.steps && run.replications.value_or(1) > 1) throw UserError("error: --steps logs one run, not several replications");
    if (run.steps && several) throw UserError("error: --steps logs one scenario, not several");
    std::error_code unequal;
    if (run.steps && fs::equivalent(*run.steps, files.front(), unequal)) {
        throw UserError("error: --steps " + run.steps->string() + " would overwrite the scenario");
    }
    const std::string level = given->choice("log-level", log_levels);
    set_log_level(run.quiet && !given->has("log-level") ? "error" : level);
    const Format format = parse_format(given->choice("format", formats));
    std::vector<Assertion> assertions;
    for (const std::string& text : given->all("assert")) assertions.push_back(parse_assertion(text));
    std::vector<std::string> sets = given->all("set");
    if (const auto seed = given->text("seed")) sets.push_back("seed=" + *seed);

    const std::vector<Prepared> all = prepare_all(files, sets, given->text("catalog").value_or(""), given->all("overlay"));
    check_names(all);
    const std::vector<OutputFolder> folders = make_folders(all, given->text("out"));

    std::string rows;
    int code = exit_done;
    for (std::size_t i = 0; i < all.size(); ++i) {
        const Prepared& p = all[i];
        const fs::path& folder = folders[several ? i + 1 : i].path();
        log_info(p.scenario.name + ": " + p.info.step_time_description);
        RunInfo info = p.info;
        std::vector<Summary> runs(1);
        const Outcome outcome = run_seed(p, p.scenario.seed, run, info, runs.front());
        for (std::int64_t n = 1; n < run.replications.value_or(1); ++n) {
            RunInfo other = p.info;
            run_seed(p, p.scenario.seed + n, run, other, runs.emplace_back());
        }
        const Summary& summary = runs.front();
        write_files(folder, p, info, outcome, runs, replications);
        const std::string row = replications ? replicated_csv_row(runs) : summary_csv_row(summary);
        rows += row;
        // The table and the Markdown carry them themselves.
        if (run.quiet || (format != Format::table && format != Format::markdown)) {
            for (const std::string& warning : summary.warnings) log_warning(warning);
        }
        const std::vector<std::string> together = replication_warnings(runs);
        for (const std::string& warning : together) log_warning(warning);
        if (!run.quiet && format == Format::csv) {
            const std::string header = replications ? replicated_csv_header() : summary_csv_header();
            print(i == 0 ? header + row : row);
        } else if (!run.quiet && format == Format::json && replications) {
            print(summary_json(info, outcome, summary, replications_json(runs)) + "\n");
        } else if (!run.quiet) {
            print(render(format, info, outcome, summary, {.colour = colour(), .e2el = true}));
            if (replications && format != Format::vllm) print("\n" + render_replications(format, runs));
        }
        flush_output();
        const std::vector<ReplicatedColumn> means = replications ? replicated(runs) : std::vector<ReplicatedColumn>();
        for (const Assertion& assertion : assertions) {
            const AssertionResult result =
                replications ? evaluate(assertion, replicated_cell(means, *assertion.column)) : evaluate(assertion, summary);
            if (!result.passed) code = exit_gate_failed;
            if (result.passed && run.quiet) continue;
            std::fprintf(stderr, "%s%s\n", several ? (p.scenario.name + ": ").c_str() : "", result.message.c_str());
        }
        log_info("written to " + folder.string());
    }
    if (several) {
        AtomicFile file(folders.front().path() / "summary.csv");
        file.write((replications ? replicated_csv_header() : summary_csv_header()) + rows);
        file.commit();
    }
    return code;
}

}  // namespace kvsim::app
