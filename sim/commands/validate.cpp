// kvsim validate: measured runs against their replays.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "kvsim/app/command.hpp"
#include "kvsim/app/measured_runs.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/report/accuracy_limits.hpp"
#include "kvsim/report/quantile.hpp"
#include "kvsim/report/summary.hpp"

namespace kvsim::app {
namespace {

constexpr std::array<std::string_view, 3> formats{"table", "csv", "markdown"};

/// A row of the file beside what its replay says.
struct Scored {
    const MeasuredStage* stage = nullptr;
    const MeasuredRun* run = nullptr;
    ReplayedStage replayed;
    std::string group;
    std::string why;
    Metrics error;     ///< signed, %
    double worst = 0;  ///< the largest |error| of its means
};

Metrics errors_of(const Metrics& measured, const Metrics& simulated) {
    Metrics out;
    for (std::size_t m = 0; m < out.size(); ++m) {
        if (measured[m] && simulated[m]) out[m] = 100 * (*simulated[m] / *measured[m] - 1);
    }
    return out;
}

/// What is known to make such a row hard; nothing when there is no reason to expect the error.
std::string reasons(const Scored& row, const Replay& replay) {
    const Deployment& deployment = replay.deployment;
    std::string out;
    const auto add = [&out](const std::string& text) { out += (out.empty() ? "" : "; ") + text; };
    const ReplayedStage& r = row.replayed;
    if (r.not_completed > 0) add(std::to_string(r.not_completed) + " requests did not complete");
    AccuracyCase known;
    known.model = deployment.model_name;
    known.gpu = deployment.gpu_name;
    known.dtype = deployment.model ? deployment.model->dtype : "";
    known.moe = deployment.model && deployment.model->is_moe();
    known.batch = r.batch_size;
    known.context = r.context;
    known.load = std::max(r.load, r.measured_load);
    known.queue_share_of_ttft = r.queue_share;
    known.concurrency = row.run->concurrency;
    if (r.measured_load > 0 && r.load > 1.2 * r.measured_load) {
        add(fmt::format(
            "simulated at load {}, measured at {}: so close to capacity a step a little too long makes a queue that grows",
            decimals(r.load, 2), decimals(r.measured_load, 2)));
        known.load = r.measured_load;
    }
    for (const std::string& limit : accuracy_limits(known)) add(limit);
    if (r.bound_kv > 0.05)
        add("KV-bound for " + decimals(100 * r.bound_kv, 0) + " % of the time, " + std::to_string(r.preemptions) +
            " preemptions");
    if (r.bound_seats > 0.2 && !row.run->concurrency)
        add("out of seats for " + decimals(100 * r.bound_seats, 0) + " % of the time");
    for (const std::string& note : replay.notes) add(note);
    for (const std::string& assumed : row.run->assumptions) add(assumed);
    const auto is = [&](Metric metric, double at_least) {
        const auto& e = row.error[static_cast<std::size_t>(metric)];
        return e && std::abs(*e) >= at_least;
    };
    if (out.empty()) {
        add(is(Metric::tpot_mean, 8)                              ? "the step time itself: no known cause"
            : is(Metric::ttft_mean, 8) || is(Metric::ttft_p99, 8) ? "TTFT alone: front end, arrivals or prompt processing"
                                                                  : "small");
    }
    return out;
}

struct Mape {
    std::int64_t n = 0;
    double mean = 0;
    double median = 0;
};

Mape mape(const std::vector<Scored>& rows, std::string_view group, std::size_t metric, bool saturated_too = true) {
    std::vector<double> values;
    for (const Scored& row : rows) {
        if (row.replayed.near_saturation && !saturated_too) continue;
        if (row.error[metric] && (group.empty() || row.group == group)) values.push_back(std::abs(*row.error[metric]));
    }
    Mape out;
    out.n = static_cast<std::int64_t>(values.size());
    if (values.empty()) return out;
    for (const double v : values) out.mean += v / static_cast<double>(values.size());
    constexpr std::array<double, 1> half{0.5};
    out.median = quantiles(std::span<const double>(values), half)[0];
    return out;
}

std::string percent(double value) {
    return decimals(value, 2);
}
std::string signed_percent(double value) {
    return fmt::format("{}{}", value >= 0 ? "+" : "", decimals(value, 1));
}
std::string padded(std::string text, std::size_t width, bool right = true) {
    if (text.size() < width) text.insert(right ? 0 : text.size(), width - text.size(), ' ');
    return text;
}
std::string cell(std::string text) {
    if (text.find_first_of(",\"\n") == std::string::npos) return text;
    std::string out = "\"";
    for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
    return out + "\"";
}

std::vector<const Scored*> worst_rows(const std::vector<Scored>& rows, std::size_t most) {
    std::vector<const Scored*> out;
    for (const Scored& row : rows) out.push_back(&row);
    std::stable_sort(out.begin(), out.end(), [](const Scored* a, const Scored* b) { return a->worst > b->worst; });
    if (out.size() > most) out.resize(most);
    return out;
}

std::string where_of(const Scored& row) {
    return row.group + ": " + row.run->model + " on " + row.run->gpu + " TP" + std::to_string(row.run->tensor_parallel_size) +
           ", " + row.stage->label;
}

std::string errors_text(const Scored& row) {
    std::string out;
    for (std::size_t m = 0; m < metric_names.size(); ++m) {
        if (row.error[m]) out += (out.empty() ? "" : ", ") + std::string(metric_names[m]) + " " + signed_percent(*row.error[m]);
    }
    return out;
}

std::string as_csv(const std::vector<Scored>& rows, const std::vector<std::string>& groups) {
    std::string out = "dataset,metric,n,mape_mean,mape_median\n";
    const auto add = [&](const std::string& name, std::string_view group) {
        for (std::size_t m = 0; m < metric_names.size(); ++m) {
            const Mape e = mape(rows, group, m);
            out += cell(name) + "," + std::string(metric_names[m]) + "," + std::to_string(e.n) + "," +
                   (e.n > 0 ? decimals(e.mean, 6) + "," + decimals(e.median, 6) : ",") + "\n";
        }
    };
    for (const std::string& group : groups) add(group, group);
    add("overall", "");
    return out;
}

struct Totals {
    std::size_t runs = 0;
    std::size_t skipped = 0;
    double milliseconds = 0;
    double slowest = 0;
    std::vector<std::string> step_times;
    std::vector<std::string> per_request;
};

std::string heading(const std::vector<Scored>& rows, const Totals& t) {
    const std::string skipped =
        t.skipped > 0 ? fmt::format(", {} more skipped (reasons on standard error)", t.skipped) : std::string();
    return std::to_string(rows.size()) + " rows of " + std::to_string(t.runs) + " runs" + skipped + "; a run takes " +
           decimals(t.milliseconds / static_cast<double>(std::max<std::size_t>(1, t.runs)), 1) +
           " ms to simulate, the slowest " + decimals(t.slowest, 1) + " ms";
}

/// Rows for which TTFT is hardly predictable.
std::int64_t saturated(const std::vector<Scored>& rows) {
    return std::count_if(rows.begin(), rows.end(), [](const Scored& row) { return row.replayed.near_saturation; });
}
std::string without_saturated(const std::vector<Scored>& rows) {
    return fmt::format("without {} near saturation", saturated(rows));
}

std::string as_table(const std::vector<Scored>& rows, const std::vector<std::string>& groups, const Totals& totals) {
    std::size_t width = saturated(rows) > 0 ? without_saturated(rows).size() + 1 : 9;
    for (const std::string& group : groups) width = std::max(width, group.size() + 1);
    std::string out =
        heading(rows, totals) + "\nMAPE in %, mean / median over the rows that have the figure\n\n" + padded("", width);
    for (const std::string_view name : metric_names) out += padded(std::string(name), 16);
    out += "\n";
    const auto add = [&](const std::string& name, std::string_view group, bool saturated_too = true) {
        out += padded(name, width, false);
        for (std::size_t m = 0; m < metric_names.size(); ++m) {
            const Mape e = mape(rows, group, m, saturated_too);
            out += padded(e.n > 0 ? percent(e.mean) + " / " + percent(e.median) : "-", 16);
        }
        out += "\n";
    };
    for (const std::string& group : groups) add(group, group);
    add("overall", "");
    if (saturated(rows) > 0) add(without_saturated(rows), "", false);
    for (const std::string& line : totals.per_request) out += "\n" + line + "\n";
    out += "\nworst rows (signed error in %)\n";
    for (const Scored* row : worst_rows(rows, 10)) {
        out += "  " + where_of(*row) + "\n    " + errors_text(*row) + "\n    why: " + row->why + "\n";
    }
    out += "\nstep time\n";
    for (const std::string& text : totals.step_times) out += "  " + text + "\n";
    return out;
}

std::string as_markdown(const std::vector<Scored>& rows, const std::vector<std::string>& groups, const Totals& totals) {
    std::string out = heading(rows, totals) + ". MAPE in %, mean / median (rows).\n\n| |";
    for (const std::string_view name : metric_names) out += fmt::format(" {} |", name);
    out += "\n|---|";
    for (std::size_t m = 0; m < metric_names.size(); ++m) out += "---:|";
    out += "\n";
    const auto add = [&](const std::string& name, std::string_view group, bool saturated_too = true) {
        out += "| " + name + " |";
        for (std::size_t m = 0; m < metric_names.size(); ++m) {
            const Mape e = mape(rows, group, m, saturated_too);
            out += e.n > 0 ? fmt::format(" {} / {} ({}) |", percent(e.mean), percent(e.median), e.n) : " |";
        }
        out += "\n";
    };
    for (const std::string& group : groups) add(group, group);
    if (groups.size() > 1) add("overall", "");
    const auto flagged = static_cast<std::size_t>(saturated(rows));
    if (flagged > 0 && flagged < rows.size()) add(without_saturated(rows), "", false);
    for (const std::string& line : totals.per_request) out += "\n" + line + "\n";
    out += "\nWorst rows, signed error in %:\n\n";
    for (const Scored* row : worst_rows(rows, 10)) {
        out += "* " + where_of(*row) + ": " + errors_text(*row) + ". " + row->why + ".\n";
    }
    out += "\nStep time: ";
    for (const std::string& text : totals.step_times) out += (text == totals.step_times.front() ? "" : "; ") + text;
    return out + ".\n";
}

/// The run request by request, where somebody wrote that down.
std::string per_request_text(const MeasuredRun& run, const std::vector<RequestRecord>& requests) {
    double e2e = 0;
    double tpot = 0;
    std::int64_t n = 0;
    std::int64_t gaps = 0;
    for (std::size_t i = 0; i < std::min(requests.size(), run.per_request.size()); ++i) {
        if (!completed(requests[i]) || !(run.per_request[i].e2e > 0)) continue;
        ++n;
        e2e += std::abs(to_ms(requests[i].e2e) / run.per_request[i].e2e - 1);
        if (const auto gap = time_per_output_token(requests[i]); gap && run.per_request[i].tpot > 0) {
            ++gaps;
            tpot += std::abs(to_ms(*gap) / run.per_request[i].tpot - 1);
        }
    }
    return run.stages.front().label + ", request by request (" + std::to_string(n) + "): MAPE E2E " +
           percent(100 * e2e / static_cast<double>(std::max<std::int64_t>(1, n))) + " %, TPOT " +
           percent(100 * tpot / static_cast<double>(std::max<std::int64_t>(1, gaps))) + " %";
}

void write_rows(const std::filesystem::path& path, const std::vector<Scored>& rows) {
    AtomicFile file(path);
    std::string header = "dataset,label,line,model,gpu,tp";
    for (const std::string_view name : metric_names) { header += fmt::format(",{0}_measured,{0}_simulated", name); }
    file.write(header + ",load,measured_load,near_saturation,why\n");
    for (const Scored& row : rows) {
        std::string line = cell(row.group) + "," + cell(row.stage->label) + "," + std::to_string(row.stage->line) + "," +
                           cell(row.run->model) + "," + cell(row.run->gpu) + "," +
                           std::to_string(row.run->tensor_parallel_size);
        for (std::size_t m = 0; m < metric_names.size(); ++m) {
            const auto text = [](const std::optional<double>& v) { return v ? decimals(*v, 6) : std::string(); };
            line += fmt::format(",{},{}", text(row.stage->measured[m]), text(row.replayed.simulated[m]));
        }
        const auto load = [](double value) { return value > 0 ? decimals(value, 4) : std::string(); };
        line += fmt::format(",{},{},{}", load(row.replayed.load), load(row.replayed.measured_load),
                            row.replayed.near_saturation ? 1 : 0);
        file.write(line + "," + cell(row.why) + "\n");
    }
    file.commit();
}

}  // namespace

int validate_command(const std::vector<std::string>& args) {
    const Usage usage{
        "validate",
        "kvsim validate FILE.csv [options]",
        "Replays measured serving runs, each built from its row (model, GPU, engine arguments, workload), and prints the "
        "error\n"
        "of every data set and of all rows, the worst ten rows and why. docs/accuracy.md has the columns.",
        {{"format", "FORMAT", "table, csv (dataset,metric,n,mape_mean,mape_median) or markdown (table)"},
         {"where", "COLUMN=VALUE", "only rows for which it holds (also COLUMN!=VALUE); several must all hold", true},
         {"by", "COLUMN", "group the errors by this column (dataset)"},
         {"overlay", "FILE.yaml", "lay this file over each row's scenario, as kvsim calibrate writes it", true},
         {"set", "KEY.PATH=VALUE", "change a key of each row's scenario: --set 'step_time={model: table, path: DIR}'", true},
         {"seed", "N", "seed of the arrivals and lengths (1)"},
         {"rows", "FILE", "write measured and simulated figures row by row as CSV"}},
        "a CSV file",
        1,
        1};
    const std::optional<Arguments> given = parse(usage, args);
    if (!given) return exit_done;
    const std::string format = given->choice("format", formats);
    const std::string& file = given->positional.front();
    const CsvTable table(file, read_file(file, std::size_t{1} << 28));
    const std::string by = given->text("by").value_or("dataset");
    if (given->has("by")) table.need({by});
    const auto seed = static_cast<std::uint64_t>(given->integer("seed", 0, std::int64_t{1} << 62).value_or(1));
    const auto [runs, unread] = read_measured_runs(table, std::filesystem::path(file).parent_path(), seed, given->all("where"));
    if (runs.empty()) throw UserError("error: " + file + ": no rows" + (given->has("where") ? " for which --where holds" : ""));

    std::vector<Scored> rows;
    std::vector<std::string> groups;
    Totals totals;
    std::string refused;
    std::size_t refusals = unread.size();
    for (const std::string& why : unread) refused += (refused.empty() ? "" : "\n") + why;
    for (const MeasuredRun& run : runs) {
        throw_if_stopped();
        Replay done;
        try {
            done = replay(run, given->all("overlay"), given->all("set"));
        } catch (const UserError& e) {
            ++refusals;
            const std::string why = "line " + std::to_string(run.stages.front().line) + " (" + run.stages.front().label +
                                    ") cannot be replayed: " + e.what();
            refused += (refused.empty() ? "" : "\n") + why;
            continue;
        }
        ++totals.runs;
        totals.milliseconds += done.milliseconds;
        totals.slowest = std::max(totals.slowest, done.milliseconds);
        if (std::find(totals.step_times.begin(), totals.step_times.end(), done.step_time) == totals.step_times.end()) {
            totals.step_times.push_back(done.step_time);
        }
        if (!run.per_request.empty()) totals.per_request.push_back(per_request_text(run, done.requests));
        for (std::size_t i = 0; i < run.stages.size(); ++i) {
            Scored& row = rows.emplace_back();
            row.stage = &run.stages[i];
            row.run = &run;
            row.replayed = done.stages[i];
            row.group = by == "dataset" ? run.stages[i].dataset : run.stages[i].cells.find(by)->second;
            row.error = errors_of(row.stage->measured, row.replayed.simulated);
            for (const Metric m : {Metric::ttft_mean, Metric::tpot_mean, Metric::e2e_mean, Metric::throughput}) {
                const auto& e = row.error[static_cast<std::size_t>(m)];
                if (e) row.worst = std::max(row.worst, std::abs(*e));
            }
            row.why = reasons(row, done);
            if (std::find(groups.begin(), groups.end(), row.group) == groups.end()) groups.push_back(row.group);
        }
    }
    if (rows.empty()) throw UserError(refused);
    totals.skipped = refusals;
    if (refusals > 0) {
        log_warning(fmt::format("{} skipped:\n{}", refusals == 1 ? "1 run is" : fmt::format("{} runs are", refusals), refused));
    }
    std::sort(groups.begin(), groups.end());
    if (const auto path = given->text("rows")) write_rows(*path, rows);
    print(format == "csv"        ? as_csv(rows, groups)
          : format == "markdown" ? as_markdown(rows, groups, totals)
                                 : as_table(rows, groups, totals));
    return exit_done;
}

}  // namespace kvsim::app
