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
#include "kvsim/app/gate_output.hpp"
#include "kvsim/app/output_folder.hpp"
#include "kvsim/app/prepare.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"
#include "kvsim/report/render.hpp"
#include "kvsim/report/replications.hpp"
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
        "Simulates each scenario, prints its summary and writes summary.csv, requests.csv, timeline.csv and summary.json;\n"
        "where requests have classes, classes.csv too.\n"
        "Every scenario is validated before the first one runs.",
        with_gate_options(
            {{"set", "KEY.PATH=VALUE", "change a key of the scenario: --set engine.max_num_seqs=64", true},
             {"overlay", "FILE.yaml", "lay this file's keys over the scenario, as kvsim calibrate writes it", true},
             {"seed", "N", "the same as --set seed=N"},
             {"out", "DIR", "where the files go (results/NAME); with several scenarios DIR/NAME/ and DIR/summary.csv"},
             {"format", "FORMAT", "what is printed: table, vllm, json, csv or markdown (table)"},
             {"assert", "EXPRESSION", "exit 1 unless it holds: 'ttft_p99 <= 2s and class(chat).preemptions == 0'", true},
             {"steps", "FILE", "log every engine step as a JSON line"},
             {"replications", "N",
              "run under the seeds S ... S+N-1: replications.csv, and means with 95 % intervals in summary.csv"},
             {"catalog", "DIR", "own models.yaml and gpus.yaml, asked before the shipped ones"},
             {"quiet", "", "print nothing but errors and failed assertions"},
             {"log-level", "LEVEL", "trace, debug, info, warn, error or off, on standard error (warn)"}}),
        "a scenario file",
        1,
        static_cast<std::size_t>(-1)};
    return run;
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
    std::string classes;
    for (const Summary& run : runs) classes += classes_csv_rows(run);
    if (!classes.empty()) add("classes.csv").write(classes_csv_header() + classes);
    add("summary.csv").write(replications ? replicated_csv(runs) : summary_csv(runs));
    if (classes.empty()) fs::remove(folder / "classes.csv", ignored);  // an earlier run's, which would be read with this one's
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
        if (several && (name == "summary.csv" || name == "classes.csv")) {
            throw UserError("error: " + p.scenario.file.string() + ": the name '" + name +
                            "' is that of a file beside the folders");
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
    const bool quiet = given->has("quiet");
    const RunOptions run{!quiet, given->text("steps")};
    const std::optional<std::int64_t> count = given->integer("replications", 1, 100'000);
    const bool replications = count.has_value();
    if (run.steps && count.value_or(1) > 1) throw UserError("error: --steps logs one run, not several replications");
    if (run.steps && several) throw UserError("error: --steps logs one scenario, not several");
    std::error_code unequal;
    if (run.steps && fs::equivalent(*run.steps, files.front(), unequal)) {
        throw UserError("error: --steps " + run.steps->string() + " would overwrite the scenario");
    }
    const std::string level = given->choice("log-level", log_levels);
    set_log_level(quiet && !given->has("log-level") ? "error" : level);
    const Format format = parse_format(given->choice("format", formats));
    const std::vector<Assertion> assertions = parse_assertions(*given);
    std::vector<std::string> sets = given->all("set");
    if (const auto seed = given->text("seed")) sets.push_back("seed=" + *seed);

    const std::vector<Prepared> all = prepare_all(files, sets, given->text("catalog").value_or(""), given->all("overlay"));
    check_names(all);
    for (const Prepared& p : all) check_classes(assertions, p);
    const GateOutput gates(*given);
    const std::vector<OutputFolder> folders = make_folders(all, given->text("out"));

    std::string rows;
    std::string classes;
    int code = exit_done;
    GateReport report;
    report.title = "kvsim run";
    std::vector<BenchmarkFigure> figures;
    for (std::size_t i = 0; i < all.size(); ++i) {
        const Prepared& p = all[i];
        const fs::path& folder = folders[several ? i + 1 : i].path();
        log_info(p.scenario.name + ": " + p.info.step_time_description);
        const Run first = run_seed(p, p.scenario.seed, run);
        const RunInfo& info = first.info;
        const Outcome& outcome = first.outcome;
        const Summary& summary = first.summary;
        std::vector<Summary> runs{summary};
        for (std::int64_t n = 1; n < count.value_or(1); ++n) runs.push_back(run_seed(p, p.scenario.seed + n, run).summary);
        write_files(folder, p, info, outcome, runs, replications);
        const std::string row = replications ? replicated_csv_row(runs) : summary_csv_row(summary);
        rows += row;
        for (const Summary& one : runs) classes += classes_csv_rows(one);
        // The table and the Markdown carry them themselves.
        if (quiet || (format != Format::table && format != Format::markdown)) {
            for (const std::string& warning : summary.warnings) log_warning(warning);
        }
        const std::vector<std::string> together = replication_warnings(runs);
        for (const std::string& warning : together) log_warning(warning);
        if (!quiet && format == Format::csv) {
            const std::string header = replications ? replicated_csv_header() : summary_csv_header();
            print(i == 0 ? header + row : row);
        } else if (!quiet && format == Format::json && replications) {
            print(summary_json(info, outcome, summary, replications_json(runs)) + "\n");
        } else if (!quiet) {
            print(render(format, info, outcome, summary, {.colour = colour(), .e2el = true}));
            if (replications && format != Format::vllm) print("\n" + render_replications(format, runs));
        }
        flush_output();
        check_classes(assertions, p, runs);
        report.cases.push_back(
            {p.scenario.name, "run", GateCase::Status::passed, "completed " + std::to_string(summary.completed)});
        for (const Assertion& assertion : assertions) {
            const AssertionResult result = replications ? evaluate(assertion, runs) : evaluate(assertion, summary);
            if (!result.passed) code = exit_gate_failed;
            report.cases.push_back({p.scenario.name, assertion.text,
                                    result.passed ? GateCase::Status::passed : GateCase::Status::failed, result.message});
            if (result.passed && quiet) continue;
            std::fprintf(stderr, "%s%s\n", several ? (p.scenario.name + ": ").c_str() : "", result.message.c_str());
        }
        if (gates.wants_benchmark()) {
            const std::vector<BenchmarkFigure> own = benchmark_figures(p.scenario.name, runs);
            figures.insert(figures.end(), own.begin(), own.end());
        }
        log_info("written to " + folder.string());
    }
    if (several) {
        AtomicFile file(folders.front().path() / "summary.csv");
        file.write((replications ? replicated_csv_header() : summary_csv_header()) + rows);
        std::error_code ignored;
        const fs::path beside = folders.front().path() / "classes.csv";
        if (classes.empty()) {
            fs::remove(beside, ignored);
        } else {
            AtomicFile by_class(beside);
            by_class.write(classes_csv_header() + classes);
            by_class.commit();
        }
        file.commit();
    }
    if (gates.wanted()) gates.write(report, figures);
    return code;
}

}  // namespace kvsim::app
