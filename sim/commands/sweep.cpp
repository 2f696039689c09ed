// kvsim sweep: a grid of runs, one row each. kvsim merge: the parts of a sharded one.

#include "kvsim/app/sweep.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "kvsim/app/command.hpp"
#include "kvsim/app/csv_table.hpp"
#include "kvsim/app/experiment.hpp"
#include "kvsim/app/gate_output.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/app/sweep_files.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"
#include "kvsim/base/parallel.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/engine/simulation.hpp"
#include "kvsim/report/comparison.hpp"
#include "kvsim/report/output_analysis.hpp"
#include "kvsim/report/text_table.hpp"
#include "kvsim/report/writers.hpp"

namespace kvsim::app {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// Larger sweeps are not shown as a table.
constexpr std::int64_t most_shown = 60;
/// Further failed assertions are only counted.
constexpr std::int64_t most_said = 20;

const Usage& usage() {
    static const Usage sweep{
        "sweep",
        "kvsim sweep SCENARIO.yaml|SWEEP.yaml --vary KEY=V1,V2,... [options]",
        "Runs every point of a grid, under the same requests, and writes DIR/sweep.csv: a column for each varied key, then "
        "those\n"
        "of summary.csv. Where requests have classes DIR/classes.csv has a row per run and class. A point that fails has its\n"
        "reason in the column `error`; the others run on, and the exit code is 1.",
        with_gate_options(
            {{"vary", "KEY=V1,V2,...", "one axis of the grid; the first given varies slowest", true},
             {"set", "KEY.PATH=VALUE", "change a key at every point", true},
             {"overlay", "FILE.yaml", "lay this file's keys over the scenario at every point", true},
             {"repeat", "N", "run every point under the seeds S ... S+N-1"},
             {"seed", "N", "S, instead of the scenario's"},
             {"jobs", "N", "threads (all of the machine's)", false, 'j'},
             {"out", "DIR", "where the files go (results/NAME-sweep)"},
             {"shard", "I/N", "only the runs with number mod N = I; auto: from the batch system's variables"},
             {"shards", "N", "how many shards there are, where the batch system does not tell"},
             {"resume", "", "keep the finished runs of this sweep in DIR"},
             {"aggregate", "", "also write DIR/aggregate.csv: mean and 95 % interval over the seeds"},
             {"assert", "EXPRESSION", "exit 1 unless it holds in every run: 'ttft_p99 <= 2s and preemptions == 0'", true},
             {"dry-run", "", "print the points, run nothing"},
             {"yes", "", "more than 100000 runs are meant"},
             {"catalog", "DIR", "own models.yaml and gpus.yaml, asked before the shipped ones"},
             {"quiet", "", "print nothing but errors and failed assertions"}}),
        "a scenario or sweep file",
        1,
        1};
    return sweep;
}

std::string first_line(const std::string& text) {
    return text.substr(0, text.find('\n'));
}

std::string label_of(const SweepPlan& plan, std::int64_t row) {
    const auto seeds = static_cast<std::int64_t>(plan.seeds.size());
    std::string out = plan.label(row / seeds);
    if (seeds > 1) out += " seed=" + std::to_string(plan.seeds[static_cast<std::size_t>(row % seeds)]);
    return out;
}

/// One finished row of sweep.csv and what is said of it.
struct RowText {
    std::string line;
    std::string classes;  ///< rows of classes.csv
    std::string remark;
    bool failed = false;
};

RowText run_row(const SweepPlan& plan, std::int64_t row) {
    const auto seeds = static_cast<std::int64_t>(plan.seeds.size());
    const std::int64_t point = row / seeds;
    const std::int64_t seed = plan.seeds[static_cast<std::size_t>(row % seeds)];
    RowText out;
    out.line = std::to_string(point) + ",";
    for (const std::string& value : plan.values(point)) {
        append_csv_field(out.line, value);
        out.line += ',';
    }
    std::string cells;
    std::string failure;
    try {
        SweepPlan::Assignment assignment = plan.assignment(point);
        assignment.sets.push_back("seed=" + std::to_string(seed));
        config::Diagnostics diagnostics;
        const Prepared p = prepare(plan.scenario, assignment.sets, diagnostics, plan.catalog, assignment.overlays);
        diagnostics.throw_if_errors();
        const Run run = run_seed(p, seed);
        cells = summary_csv_row(run.summary);
        cells.pop_back();
        out.classes = classes_csv_rows(run.summary, out.line);  // so far the point and its keys
        const Summary& s = run.summary;
        out.remark =
            fmt::format("{:.4g} req/s, ttft p99 {:.4g} ms, {}", s.request_throughput_req_s.value_or(0), s.ttft.p99, s.verdict);
    } catch (const UserError& e) {
        failure = first_line(e.what());
        out.failed = true;
        out.remark = failure;
        for (const Column& column : summary_columns()) {
            if (column.name == "seed") cells += std::to_string(seed);
            if (column.name != summary_columns().back().name) cells += ',';
        }
    }
    out.line += cells + ",";
    append_csv_field(out.line, failure);
    out.line += '\n';
    return out;
}

/// On a terminal one line that overwrites itself, with the time left; elsewhere a line per run.
class SweepProgress {
public:
    SweepProgress(std::int64_t total, bool quiet) : total_(total), quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1) {}
    void done(const std::string& label, const RowText& row) {
        const std::lock_guard lock(mutex_);
        ++finished_;
        failed_ += row.failed ? 1 : 0;
        if (row.failed && (quiet_ || terminal_)) std::fprintf(stderr, "%s%s: %s\n", clear(), label.c_str(), row.remark.c_str());
        if (quiet_) return;
        if (!terminal_) {
            std::fprintf(stderr, "[%lld/%lld] %s: %s\n", static_cast<long long>(finished_), static_cast<long long>(total_),
                         label.c_str(), row.remark.c_str());
            return;
        }
        const Clock::time_point now = Clock::now();
        if (now - last_ < std::chrono::milliseconds(100) && finished_ < total_) return;
        last_ = now;
        const double passed = std::chrono::duration<double>(now - start_).count();
        const double left = passed / static_cast<double>(finished_) * static_cast<double>(total_ - finished_);
        std::fprintf(stderr, "\r%lld/%lld runs, %lld failed, %.0f s left\x1b[K", static_cast<long long>(finished_),
                     static_cast<long long>(total_), static_cast<long long>(failed_), left);
        shown_ = true;
    }
    void close() {
        if (shown_) std::fputs(clear(), stderr);
    }
    [[nodiscard]] std::int64_t failed() const { return failed_; }

private:
    [[nodiscard]] const char* clear() const { return terminal_ ? "\r\x1b[K" : ""; }
    std::int64_t total_;
    bool quiet_;
    bool terminal_;
    bool shown_ = false;
    std::int64_t finished_ = 0;
    std::int64_t failed_ = 0;
    Clock::time_point start_ = Clock::now();
    Clock::time_point last_{};
    std::mutex mutex_;
};

std::optional<double> number(const std::string& text) {
    if (text.empty()) return std::nullopt;
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    return *end == '\0' && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

/// Over the seeds of each point: a figure's mean and the half width of its 95 % interval (Student t); the rest as it stands
/// where it is the same.
std::string aggregate(const SweepPlan& plan, const CsvTable& table) {
    const std::size_t keys = plan.keys().size();
    const std::vector<std::string>& columns = table.columns();
    std::vector<bool> figure(columns.size(), false);
    const auto all = summary_columns();
    bool measured = false;  // settings stand before `requests`
    for (std::size_t c = 0; c < all.size(); ++c) {
        measured = measured || all[c].name == "requests";
        figure[1 + keys + c] = measured && all[c].unit != Unit::text;
    }
    std::string out = "point";
    const auto add = [&out](std::string_view field) {
        out += ',';
        append_csv_field(out, field);
    };
    for (std::size_t k = 0; k < keys; ++k) add(columns[1 + k]);
    add("runs");
    for (std::size_t c = 1 + keys; c < columns.size(); ++c) {
        if (columns[c] == "seed" || columns[c].ends_with("_ci95")) continue;
        add(columns[c]);
        if (figure[c]) add(columns[c] + "_ci95");
    }
    out += '\n';
    const auto seeds = plan.seeds.size();
    for (std::size_t first = 0; first < table.rows().size(); first += seeds) {
        const auto cell = [&](std::size_t n, std::size_t c) -> const std::string& { return table.rows()[first + n].cells[c]; };
        out += cell(0, 0);
        for (std::size_t k = 0; k < keys; ++k) add(cell(0, 1 + k));
        std::size_t runs = 0;
        for (std::size_t n = 0; n < seeds; ++n) runs += cell(n, columns.size() - 1).empty() ? 1U : 0U;
        add(std::to_string(runs));
        for (std::size_t c = 1 + keys; c < columns.size(); ++c) {
            if (columns[c] == "seed" || columns[c].ends_with("_ci95")) continue;
            if (!figure[c]) {
                std::string text;
                std::set<std::string_view> told{""};
                for (std::size_t n = 0; n < seeds; ++n) {
                    const std::string& value = cell(n, c);
                    if (told.insert(value).second) text += (text.empty() ? "" : " / ") + value;
                }
                add(text);
                continue;
            }
            std::vector<double> values;
            for (std::size_t n = 0; n < seeds; ++n) {
                if (const auto value = number(cell(n, c))) values.push_back(*value);
            }
            double sum = 0;
            for (const double value : values) sum += value;
            const double mean = values.empty() ? 0 : sum / static_cast<double>(values.size());
            double squares = 0;
            for (const double value : values) squares += (value - mean) * (value - mean);
            add(values.empty() ? "" : shortest(mean));
            if (values.size() < 2) {
                add("");
            } else {
                const auto n = static_cast<double>(values.size());
                add(shortest(student_t(0.025, static_cast<std::int64_t>(values.size()) - 1) *
                             std::sqrt(squares / (n - 1) / n)));
            }
        }
        out += '\n';
    }
    return out;
}

/// What people look at first; columns without a value anywhere are left out.
std::string shown(const SweepPlan& plan, const CsvTable& table) {
    std::vector<std::string> names = plan.keys();
    if (plan.seeds.size() > 1) names.emplace_back("seed");
    for (const char* name :
         {"request_throughput_req_s", "output_throughput_tok_s", "ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "e2e_p99_ms",
          "preemptions", "kv_usage_mean", "slo_attainment", "verdict", "error"})
        names.emplace_back(name);
    TextTable text;
    text.header.emplace_back("point");
    std::vector<std::string> kept;
    for (const std::string& name : names) {
        const bool any = std::any_of(table.rows().begin(), table.rows().end(),
                                     [&](const CsvTable::Row& row) { return !table.text(row, name).empty(); });
        if (!any) continue;
        kept.push_back(name);
        text.header.push_back(name);
    }
    for (const CsvTable::Row& row : table.rows()) {
        std::vector<std::string>& cells = text.rows.emplace_back();
        cells.push_back(table.text(row, "point"));
        for (const std::string& name : kept) {
            const std::string value = table.text(row, name);
            const auto figure = number(value);
            const bool short_form =
                figure && value.size() > 8 && (name.ends_with("_ms") || name.ends_with("_s") || name.starts_with("kv_"));
            cells.push_back(short_form ? fmt::format("{:.6g}", *figure) : value);
        }
    }
    return plain_text(text);
}

/// Rows whose last cell, `error`, is not empty.
std::int64_t failed_rows(std::string_view text) {
    std::int64_t out = -1;  // the header's is `error`
    bool quoted = false;
    for (std::size_t i = 1; i < text.size(); ++i) {
        if (text[i] == '"') quoted = !quoted;
        if (text[i] == '\n' && !quoted && text[i - 1] != ',') ++out;
    }
    return out;
}

/// What the assertions ask of classes at one row, in their order; unset: not applicable.
using ClassFigures = std::vector<std::optional<double>>;

/// What the assertions say of each row, and what else a gate reports.
class SweepGate {
public:
    SweepGate(const SweepPlan& plan, const CsvTable& table, std::span<const Assertion> assertions)
        : plan_(plan), table_(table) {
        report_.title = "kvsim sweep " + plan.scenario.filename().string();
        for (const Assertion& assertion : assertions) assertions_.push_back(&assertion);
    }

    void judge(std::size_t i, std::int64_t row, const ClassFigures& by_class) {
        const CsvTable::Row& cells = table_.rows()[i];
        std::string label = label_of(plan_, row);
        if (label.empty()) label = plan_.scenario.stem().string();
        const std::string failure = table_.text(cells, "error");
        report_.cases.push_back({label, "run", failure.empty() ? GateCase::Status::passed : GateCase::Status::failed, failure});
        std::size_t next = 0;
        for (const Assertion* assertion : assertions_) {
            if (!failure.empty()) {
                report_.cases.push_back({label, assertion->text, GateCase::Status::skipped, "the run failed"});
                continue;
            }
            const AssertionResult result = evaluate(*assertion, [&](const Assertion::Comparison& c) -> Cell {
                if (c.column != nullptr) return cell(cells, *c.column);
                const std::optional<double>& value = by_class[next++];
                return value ? Cell{*value} : Cell{};
            });
            report_.cases.push_back(
                {label, assertion->text, result.passed ? GateCase::Status::passed : GateCase::Status::failed, result.message});
            if (result.passed || ++failed_ > most_said) continue;
            std::fprintf(stderr, "%s: %s\n", label.c_str(), result.message.c_str());
        }
    }

    /// Over the seeds of each point, as far as they are among the rows.
    [[nodiscard]] std::vector<BenchmarkFigure> benchmark(std::span<const std::int64_t> rows) const {
        const auto seeds = static_cast<std::int64_t>(plan_.seeds.size());
        std::vector<BenchmarkFigure> out;
        for (std::size_t first = 0; first < rows.size();) {
            const std::int64_t point = rows[first] / seeds;
            std::size_t last = first;
            while (last < rows.size() && rows[last] / seeds == point) ++last;
            std::string name = plan_.scenario.stem().string();
            const std::vector<std::string> keys = plan_.keys();
            const std::vector<std::string> values = plan_.values(point);
            for (std::size_t k = 0; k < keys.size(); ++k) name += " " + keys[k] + "=" + values[k];
            for (const std::string_view metric : usual_metrics()) {
                const Column* const column = find_summary_column(metric);
                if (column == nullptr || column->unit == Unit::text) continue;
                std::vector<double> figures;
                for (std::size_t i = first; i < last; ++i) {
                    if (const auto value = table_.number(table_.rows()[i], column->name)) figures.push_back(*value);
                }
                if (!figures.empty()) out.push_back(benchmark_figure(name, *column, figures));
            }
            first = last;
        }
        return out;
    }

    [[nodiscard]] std::int64_t failed() const { return failed_; }
    [[nodiscard]] const GateReport& report() const { return report_; }

private:
    [[nodiscard]] Cell cell(const CsvTable::Row& cells, const Column& column) const {
        if (column.unit == Unit::text) {
            std::string text = table_.text(cells, column.name);
            return text.empty() ? Cell{} : Cell{std::move(text)};
        }
        const std::optional<double> value = table_.number(cells, column.name);
        return value ? Cell{*value} : Cell{};
    }

    const SweepPlan& plan_;
    const CsvTable& table_;
    std::vector<const Assertion*> assertions_;
    GateReport report_;
    std::int64_t failed_ = 0;
};

/// Before anything runs: a class that no scenario of the sweep has is a mistake. Of the first point, unless they vary.
void check_classes_of(const SweepPlan& plan, std::span<const Assertion> assertions) {
    if (std::none_of(assertions.begin(), assertions.end(), [](const Assertion& a) { return a.asks_classes(); })) return;
    const std::vector<std::string> keys = plan.keys();
    if (std::any_of(keys.begin(), keys.end(), [](const std::string& key) {
            return key == "workload" || key.starts_with("workload.classes") || key.starts_with("workload.trace");
        }))
        return;
    const SweepPlan::Assignment assignment = plan.assignment(0);
    config::Diagnostics diagnostics;
    const Prepared p = prepare(plan.scenario, assignment.sets, diagnostics, plan.catalog, assignment.overlays);
    if (diagnostics.ok()) check_classes(assertions, p);
}

/// By row, what the assertions ask of classes, in their order.
std::vector<ClassFigures> class_figures(const SweepPlan& plan, std::span<const std::int64_t> rows, const fs::path& file,
                                        std::span<const Assertion> assertions) {
    std::vector<ClassFigures> out(rows.size());
    std::error_code error;
    const CsvTable table(file.string(), fs::exists(file, error) ? read_file(file) : sweep_classes_header(plan));
    std::map<std::tuple<std::int64_t, std::int64_t, std::string>, const CsvTable::Row*> found;
    for (const CsvTable::Row& row : table.rows()) {
        found[{table.integer(row, "point", 0, INT64_MAX).value_or(-1), table.integer(row, "seed", 0, INT64_MAX).value_or(-1),
               table.text(row, "class")}] = &row;
    }
    const auto seeds = static_cast<std::int64_t>(plan.seeds.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const std::int64_t seed = plan.seeds[static_cast<std::size_t>(rows[i] % seeds)];
        for (const Assertion& assertion : assertions) {
            for (const Assertion::Comparison& c : assertion.comparisons) {
                if (c.class_column == nullptr) continue;
                const auto at = found.find({rows[i] / seeds, seed, c.class_name});
                const std::optional<double> value =
                    at == found.end() ? std::nullopt : table.number(*at->second, c.class_column->name);
                out[i].push_back(value);
            }
        }
    }
    return out;
}

void write_file(const fs::path& path, std::string_view text) {
    AtomicFile file(path);
    file.write(text);
    file.commit();
}

}  // namespace

int sweep_command(const std::vector<std::string>& args) {
    const std::optional<Arguments> given = parse(usage(), args);
    if (!given) return exit_done;
    const bool quiet = given->has("quiet");
    SweepRequest request;
    request.file = given->positional.front();
    request.catalog = given->text("catalog").value_or("");
    request.vary = given->all("vary");
    request.sets = given->all("set");
    request.overlays = given->all("overlay");
    request.repeat = given->integer("repeat", 1, 100'000);
    request.seed = given->integer("seed", 0, INT64_MAX - 100'000);
    request.large = given->has("yes");
    const auto jobs = static_cast<std::size_t>(given->integer("jobs", 1, 4096).value_or(usable_threads()));
    const std::optional<std::int64_t> shards = given->integer("shards", 1, 1'000'000);
    if (shards && !given->has("shard")) throw UserError("error: --shards N goes with --shard auto");
    Shard shard;
    if (const auto text = given->text("shard")) shard = parse_shard(*text, shards);
    if (given->has("aggregate") && shard.count > 1) throw UserError("error: --aggregate needs the whole sweep, not a shard");
    const std::vector<Assertion> assertions = parse_assertions(*given);
    const SweepPlan plan = plan_sweep(request);
    check_classes_of(plan, assertions);

    std::vector<std::int64_t> rows;
    for (std::int64_t row = shard.index; row < plan.rows(); row += shard.count) rows.push_back(row);
    if (given->has("dry-run")) {
        for (const std::int64_t row : rows) print(std::to_string(row) + " " + label_of(plan, row) + "\n");
        print(std::to_string(rows.size()) + " of " + std::to_string(plan.rows()) + " runs, " + std::to_string(plan.points()) +
              " points\n");
        return exit_done;
    }

    const std::string out = given->text("out").value_or("results/" + request.file.stem().string() + "-sweep");
    if (out.empty()) throw UserError("error: --out must name a folder");
    const GateOutput gates(*given);
    const SweepFolder folder(out, plan, shard, given->has("resume"));
    std::vector<std::int64_t> todo;
    if (!folder.done()) {
        for (const std::int64_t row : rows) {
            if (!folder.has(row)) todo.push_back(row);
        }
    }
    if (!quiet && todo.size() < rows.size()) {
        print(std::to_string(rows.size() - todo.size()) + " of " + std::to_string(rows.size()) +
              " runs were finished before\n");
        flush_output();
    }
    const bool asks_classes =
        std::any_of(assertions.begin(), assertions.end(), [](const Assertion& a) { return a.asks_classes(); });
    SweepProgress progress(static_cast<std::int64_t>(todo.size()), quiet);
    for_each_index(todo.size(), jobs, [&](std::size_t i) {
        throw_if_stopped();
        const std::int64_t row = todo[i];
        const RowText text = run_row(plan, row);
        folder.add(row, text.line, text.classes);
        progress.done(label_of(plan, row), text);
    });
    progress.close();
    folder.finish(rows);
    const std::vector<ClassFigures> by_class =
        asks_classes ? class_figures(plan, rows, folder.classes(), assertions) : std::vector<ClassFigures>(rows.size());

    const std::string text = read_file(folder.result());
    const std::int64_t failed = failed_rows(text);
    const bool show = !quiet && static_cast<std::int64_t>(rows.size()) <= most_shown;
    std::int64_t broken = 0;  // assertions
    if (given->has("aggregate") || show || !assertions.empty() ||
        gates.wanted()) {  // the cells of a large sweep take much more memory than its text
        const CsvTable table(folder.result().string(), text);
        if (given->has("aggregate")) write_file(fs::path(out) / "aggregate.csv", aggregate(plan, table));
        if (show) print(shown(plan, table) + "\n");
        flush_output();
        SweepGate gate(plan, table, assertions);
        for (std::size_t i = 0; i < rows.size(); ++i) gate.judge(i, rows[i], by_class[i]);
        broken = gate.failed();
        if (broken > most_said) std::fprintf(stderr, "... and %lld more\n", static_cast<long long>(broken - most_said));
        if (gates.wanted())
            gates.write(gate.report(), gates.wants_benchmark() ? gate.benchmark(rows) : std::vector<BenchmarkFigure>());
    }
    if (!quiet) {
        print(std::to_string(rows.size()) + " runs in " + folder.result().string() +
              (failed > 0 ? ", " + std::to_string(failed) + " failed" : "") +
              (broken > 0 ? ", " + std::to_string(broken) + " assertions do not hold" : "") + "\n");
    }
    return failed > 0 || broken > 0 ? exit_gate_failed : exit_done;
}

int merge_command(const std::vector<std::string>& args) {
    const Usage merge{
        "merge",
        "kvsim merge DIR... --out DIR",
        "Joins the parts that `kvsim sweep --shard` left into DIR/sweep.csv. Every run must be there exactly once, of one\n"
        "sweep and one version.",
        {{"out", "DIR", "where sweep.csv goes"}, {"quiet", "", "print nothing but errors"}},
        "a folder of a sweep",
        1,
        static_cast<std::size_t>(-1)};
    const std::optional<Arguments> given = parse(merge, args);
    if (!given) return exit_done;
    const std::optional<std::string> out = given->text("out");
    if (!out || out->empty()) throw UserError("error: kvsim merge needs --out DIR");
    const std::vector<fs::path> folders(given->positional.begin(), given->positional.end());
    const std::int64_t rows = merge_sweeps(folders, *out);
    if (!given->has("quiet")) print(std::to_string(rows) + " runs in " + (fs::path(*out) / "sweep.csv").string() + "\n");
    return exit_done;
}

}  // namespace kvsim::app
