// kvsim policies: the same requests under several presets, one table.

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvsim/app/command.hpp"
#include "kvsim/app/experiment.hpp"
#include "kvsim/app/output_folder.hpp"
#include "kvsim/app/prepare.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/model/deployment.hpp"
#include "kvsim/report/groups.hpp"
#include "kvsim/report/output_analysis.hpp"
#include "kvsim/report/text_table.hpp"
#include "kvsim/report/writers.hpp"

namespace kvsim::app {
namespace {

constexpr std::array<std::string_view, 4> formats{"table", "csv", "markdown", "json"};

/// How much longer the same request took than under the first preset that ran, over the requests that completed under both
/// (same_requests()).
struct Difference {
    std::int64_t requests = 0;
    double mean_ms = 0;
    std::optional<Interval> ci95_ms;
};

struct Result {
    std::string preset;
    RunInfo info;
    Summary summary;
    Outcome outcome;
    std::vector<ClassSummary> lengths;      // of LengthGroups
    std::array<Difference, 3> differences;  // as latencies
    std::int64_t unlike = 0;                // requests that the first preset that ran did not have
    std::string error;                      // why it could not run; then there is nothing else
};

struct Latency {
    std::string_view name;
    SimDuration (*of)(const RequestRecord&);
};

/// -1 ns where there is none.
SimDuration tpot(const RequestRecord& r) {
    return r.output_tokens < 2 ? SimDuration(-1) : (r.e2e - r.ttft) / (r.output_tokens - 1);
}
constexpr std::array<Latency, 3> latencies{{{"ttft", [](const RequestRecord& r) { return r.ttft; }},
                                            {"tpot", tpot},
                                            {"e2e", [](const RequestRecord& r) { return r.e2e; }}}};

double to_ms(double ns) {
    return ns / 1e6;
}

Difference difference(const Latency& latency, const std::vector<RequestRecord>& base, const std::vector<RequestRecord>& other,
                      const std::vector<std::optional<RequestId>>& same) {
    Difference out;
    std::vector<std::int64_t> series;  // in order of arrival: neighbours resemble each other, so batch means
    double sum = 0;
    for (std::size_t id = 0; id < same.size(); ++id) {
        if (!same[id]) continue;
        const RequestRecord& a = base[id];
        const RequestRecord& b = other[*same[id]];
        if (!completed(a) || !completed(b) || !a.measured || !b.measured) continue;
        if (latency.of(a).count() < 0 || latency.of(b).count() < 0) continue;
        series.push_back((latency.of(b) - latency.of(a)).count());
        sum += static_cast<double>(series.back());
    }
    out.requests = static_cast<std::int64_t>(series.size());
    if (series.empty()) return out;
    out.mean_ms = to_ms(sum / static_cast<double>(series.size()));
    std::vector<std::int64_t> sorted = series;
    std::sort(sorted.begin(), sorted.end());
    const auto at = [&sorted](double q) {
        return static_cast<double>(sorted[static_cast<std::size_t>(q * static_cast<double>(sorted.size() - 1))]);
    };
    if (const auto interval = confidence(series, {at(0.5), at(0.9), at(0.95), at(0.99)}).mean) {
        out.ci95_ms = Interval{to_ms(interval->low), to_ms(interval->high)};
    }
    return out;
}

std::vector<std::string> split(const std::string& list) {
    std::vector<std::string> out{""};
    for (const char c : list) {
        if (c == ',') {
            out.emplace_back();
        } else if (c != ' ') {
            out.back() += c;
        }
    }
    return out;
}

/// Figures that summary.csv does not have; unset: not applicable.
struct Extra {
    std::string_view column;
    std::string_view label;
    int digits;
    std::optional<double> (*of)(const Result&);
};
constexpr std::array<Extra, 4> extras{
    {{"jain_requests", "fairness over requests (Jain)", 4, [](const Result& r) { return request_fairness(r.outcome); }},
     {"jain_tenants", "fairness over tenants (Jain)", 4, [](const Result& r) { return tenant_fairness(r.outcome); }},
     {"head_of_line_blocking_s", "head of line blocks others (s)", 2,
      [](const Result& r) -> std::optional<double> {
          return std::chrono::duration<double>(r.outcome.integrals.head_blocking).count();
      }},
     {"queue_max_ms", "longest wait (ms)", 1, [](const Result& r) -> std::optional<double> { return r.summary.queue.max; }}}};

/// Of the requests that did not complete, and how many of all met their limits. Every CSV and JSON has them, the table those
/// that say something.
struct Fate {
    std::string_view column;
    std::string_view label;
    int digits;
    double scale = 1;
};
constexpr std::array<Fate, 5> fates{{{"timed_out", "timed out", 0},
                                     {"cancelled", "cancelled", 0},
                                     {"failed", "failed", 0},
                                     {"goodput_req_s", "goodput (requests/s)", 3},
                                     {"slo_attainment", "SLO met (%)", 2, 100}}};

/// Classes and length groups, in one list.
struct Group {
    std::string_view kind;  // "class" or "length"
    const ClassSummary* of;
};
std::vector<Group> groups_of(const Result& result) {
    std::vector<Group> out;
    for (const ClassSummary& c : result.summary.classes) out.push_back({"class", &c});
    for (const ClassSummary& c : result.lengths) out.push_back({"length", &c});
    return out;
}

const ClassSummary* find_group(const Result& result, const Group& like) {
    for (const std::vector<ClassSummary>* list : {&result.summary.classes, &result.lengths}) {
        if ((like.kind == "class") != (list == &result.summary.classes)) continue;
        for (const ClassSummary& c : *list) {
            if (c.name == like.of->name) return &c;
        }
    }
    return nullptr;
}

/// Unknown names are told before anything runs.
std::vector<std::string> presets_of(const std::optional<std::string>& list) {
    std::vector<std::string_view> known;
    for (const Preset& preset : presets()) known.push_back(preset.name);
    if (!list) return {known.begin(), known.end()};
    std::vector<std::string> out = split(*list);
    for (std::size_t i = 0; i < out.size(); ++i) {
        if (std::find(known.begin(), known.end(), out[i]) == known.end()) {
            std::string names;
            for (const std::string_view name : known) names += (names.empty() ? "" : ", ") + std::string(name);
            const std::string_view near = nearest(out[i], known);
            throw UserError("error: --presets: '" + excerpt(out[i]) + "' is no preset" +
                            (near.empty() ? " (" + names + ")" : "; did you mean '" + std::string(near) + "'?"));
        }
        if (std::find(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(i), out[i]) !=
            out.begin() + static_cast<std::ptrdiff_t>(i)) {
            throw UserError("error: --presets: " + out[i] + " stands twice");
        }
    }
    return out;
}

/// A figure of the table by its column in summary.csv.
struct Figure {
    std::string_view column;
    std::string_view label;
    int digits;
    double scale = 1;
};
constexpr std::array<Figure, 19> figures{{{"ttft_mean_ms", "TTFT mean (ms)", 1},
                                          {"ttft_p99_ms", "TTFT p99 (ms)", 1},
                                          {"tpot_mean_ms", "TPOT mean (ms)", 2},
                                          {"tpot_p99_ms", "TPOT p99 (ms)", 2},
                                          {"e2e_mean_ms", "E2E mean (ms)", 1},
                                          {"e2e_p99_ms", "E2E p99 (ms)", 1},
                                          {"request_throughput_req_s", "requests/s", 3},
                                          {"output_throughput_tok_s", "output tok/s", 1},
                                          {"completed", "completed", 0},
                                          {"rejected", "rejected", 0},
                                          {"preemptions", "preemptions", 0},
                                          {"recomputed_tokens", "recomputed tokens", 0},
                                          {"recompute_time_share", "time on recompute (%)", 2, 100},
                                          {"prefix_hit_rate", "prefix hit rate (%)", 2, 100},
                                          {"resume_hit_rate", "resume hit rate (%)", 2, 100},
                                          {"kv_usage_mean", "KV use mean (%)", 1, 100},
                                          {"kv_usage_peak", "KV use peak (%)", 1, 100},
                                          {"batch_size_mean", "batch size mean", 1},
                                          {"steps", "steps", 0}}};

const Column& column_of(std::string_view name) {
    for (const Column& column : summary_columns()) {
        if (column.name == name) return column;
    }
    KVSIM_CHECK(false, "the table names columns of summary.csv");
    return summary_columns().front();
}

Cell cell_of(const Figure& figure, const Summary& summary) {
    return column_of(figure.column).get(summary);
}
Cell cell_of(const Fate& fate, const Summary& summary) {
    return column_of(fate.column).get(summary);
}
std::string csv_text(const Figure& figure, const Summary& summary) {
    return cell_text(cell_of(figure, summary), column_of(figure.column).unit);
}
std::string csv_text(const Fate& fate, const Summary& summary) {
    return cell_text(cell_of(fate, summary), column_of(fate.column).unit);
}

/// Of Figures and Fates.
template <class T>
std::string shown(const T& figure, const Summary& summary) {
    const Cell cell = cell_of(figure, summary);
    if (const auto* number = std::get_if<double>(&cell)) return decimals(*number * figure.scale, figure.digits);
    if (const auto* count = std::get_if<std::int64_t>(&cell)) return std::to_string(*count);
    return "-";
}

/// Counts that are not 0 anywhere; those of timeouts also where the scenario has some; the SLO's where it has one.
bool says_something(const Fate& fate, const Prepared& p, const std::vector<Result>& results) {
    if (fate.column == "timed_out" && p.workload->may_cancel()) return true;
    return std::any_of(results.begin(), results.end(), [&fate](const Result& result) {
        if (!result.error.empty()) return false;
        const Cell cell = cell_of(fate, result.summary);
        const auto* count = std::get_if<std::int64_t>(&cell);
        return count != nullptr ? *count > 0 : std::holds_alternative<double>(cell);
    });
}

/// What latencies and differences leave out: nothing when all requests completed and are the same under every preset.
std::vector<std::string> left_out(const std::vector<Result>& results) {
    std::string survivors;
    std::string others;
    const auto add = [](std::string& list, const Result& result, std::int64_t count, std::int64_t all) {
        list.append(list.empty() ? "" : ", ").append(result.preset).append(" ").append(std::to_string(count));
        list.append(" of ").append(std::to_string(all));
    };
    for (const Result& result : results) {
        if (!result.error.empty()) continue;
        const Summary& s = result.summary;
        if (s.completed < s.requests) add(survivors, result, s.completed, s.requests);
        if (result.unlike > 0) add(others, result, result.unlike, static_cast<std::int64_t>(result.outcome.requests.size()));
    }
    std::vector<std::string> out;
    if (!survivors.empty())
        out.push_back("latencies are of the requests that completed, differences of those that completed under both presets (" +
                      survivors + ")");
    if (!others.empty())
        out.push_back(
            "clients that wait for answers or send again send at other times than under the first preset: such requests are in "
            "no "
            "difference (" +
            others + ")");
    return out;
}

std::string shown(const Difference& d, int digits) {
    if (d.requests == 0) return "-";
    std::string text = d.mean_ms > 0 ? "+" : "";
    text += decimals(d.mean_ms, digits);
    if (d.ci95_ms)
        text.append(" [")
            .append(decimals(d.ci95_ms->low, digits))
            .append(", ")
            .append(decimals(d.ci95_ms->high, digits))
            .append("]");
    return text;
}

/// The others are compared with it.
const Result& base_of(const std::vector<Result>& results) {
    return *std::find_if(results.begin(), results.end(), [](const Result& r) { return r.error.empty(); });
}

/// A row a group of the first preset that ran.
void add_groups(TextTable& out, const std::vector<Result>& results) {
    const std::vector<Group> groups = groups_of(base_of(results));
    if (groups.size() < 2) return;
    for (std::size_t g = 0; g < groups.size(); ++g) {
        const std::string name = groups[g].of->name.empty() ? "no class" : groups[g].of->name;
        for (const bool first_token : {true, false}) {
            std::vector<std::string>& row = out.rows.emplace_back();
            row.push_back(name + (first_token ? ": TTFT mean / p99 (ms)" : ": E2E mean / p99 (ms)"));
            for (const Result& result : results) {
                const ClassSummary* own = find_group(result, groups[g]);
                const Distribution* d = own == nullptr ? nullptr : first_token ? &own->ttft : &own->e2e;
                row.push_back(d == nullptr || d->count == 0 ? "-" : decimals(d->mean, 1) + " / " + decimals(d->p99, 1));
            }
        }
        if (!groups[g].of->attainment.all) continue;
        std::vector<std::string>& row = out.rows.emplace_back();
        row.push_back(name + ": SLO met (%)");
        for (const Result& result : results) {
            const ClassSummary* own = find_group(result, groups[g]);
            row.push_back(own != nullptr && own->attainment.all ? decimals(*own->attainment.all * 100, 2) : "-");
        }
    }
}

TextTable table(const Prepared& p, const std::vector<Result>& results) {
    TextTable out;
    out.title = p.scenario.name + ": the same requests under each preset (" + p.info.step_time_model + " step time, seed " +
                std::to_string(p.scenario.seed) + ")";
    out.header.emplace_back();
    for (const Result& result : results) out.header.push_back(result.preset);
    for (const Figure& figure : figures) {
        std::vector<std::string>& row = out.rows.emplace_back();
        row.emplace_back(figure.label);
        for (const Result& result : results) row.push_back(result.error.empty() ? shown(figure, result.summary) : "-");
        if (figure.column != "rejected") continue;
        for (const Fate& fate : fates) {
            if (!says_something(fate, p, results)) continue;
            std::vector<std::string>& cells = out.rows.emplace_back();
            cells.emplace_back(fate.label);
            for (const Result& result : results) cells.push_back(result.error.empty() ? shown(fate, result.summary) : "-");
        }
    }
    for (const Extra& extra : extras) {
        std::vector<std::string>& row = out.rows.emplace_back();
        row.emplace_back(extra.label);
        for (const Result& result : results) {
            const std::optional<double> value = result.error.empty() ? extra.of(result) : std::nullopt;
            row.push_back(value ? decimals(*value, extra.digits) : "-");
        }
    }
    add_groups(out, results);
    std::vector<std::string>& verdicts = out.rows.emplace_back();
    verdicts.emplace_back("verdict");
    for (const Result& result : results) verdicts.push_back(result.error.empty() ? result.summary.verdict : "cannot run");
    if (results.size() < 2) return out;
    const Result& base = base_of(results);
    constexpr std::array<std::string_view, 3> names{"TTFT", "TPOT", "E2E"};
    for (std::size_t i = 0; i < latencies.size(); ++i) {
        std::vector<std::string>& row = out.rows.emplace_back();
        row.push_back(std::string(names[i]) + " - " + base.preset + "'s (ms)");
        for (const Result& result : results)
            row.push_back(&result == &base ? "0" : shown(result.differences[i], i == 1 ? 2 : 1));
    }
    return out;
}

/// What the scenario's keys replace in each preset, as a run's own line `deviates` has it; empty where nothing is.
std::string deviations(const std::vector<Result>& results, bool as_list) {
    constexpr std::size_t page = 120;
    std::size_t widest = 0;
    for (const Result& result : results) widest = std::max(widest, result.preset.size());
    std::string out;
    for (const Result& result : results) {
        if (result.info.deviations.empty()) continue;
        std::string line = as_list ? "* " + result.preset + ": " : "  " + result.preset;
        if (!as_list) line.append(widest + 4 - line.size(), ' ');
        bool empty = true;  // no deviation in this line yet
        std::size_t left = result.info.deviations.size();
        for (const std::string& deviation : result.info.deviations) {
            if (!empty && !as_list && line.size() + 2 + deviation.size() > page) {
                out += line + "\n";
                line.assign(widest + 4, ' ');
                empty = true;
            }
            line.append(empty ? "" : " ").append(deviation).append(--left > 0 ? ";" : "");
            empty = false;
        }
        out += line + "\n";
    }
    if (out.empty()) return out;
    return std::string("the scenario deviates from the presets in\n").append(as_list ? "\n" : "") + out;
}

void append_row(std::string& out, const std::vector<std::string>& cells) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
        if (i > 0) out += ',';
        out += cells[i];
    }
    out += '\n';
}

std::string csv(const std::vector<Result>& results) {
    std::vector<std::string> header{"preset"};
    for (const Figure& figure : figures) header.emplace_back(figure.column);
    header.emplace_back("verdict");
    for (const Latency& latency : latencies) {
        for (const char* part : {"_difference_ms", "_difference_low_ms", "_difference_high_ms", "_difference_requests"})
            header.push_back(std::string(latency.name).append(part));
    }
    header.emplace_back("error");
    const std::size_t error = header.size() - 1;
    for (const Extra& extra : extras) header.emplace_back(extra.column);
    for (const Fate& fate : fates) header.emplace_back(fate.column);
    header.emplace_back("deviations");
    std::string out;
    append_row(out, header);
    for (const Result& result : results) {
        std::vector<std::string> cells{result.preset};
        if (!result.error.empty()) {
            cells.resize(error);
            append_csv_field(cells.emplace_back(), result.error);
            cells.resize(header.size());
            append_row(out, cells);
            continue;
        }
        for (const Figure& figure : figures) cells.push_back(csv_text(figure, result.summary));
        cells.push_back(result.summary.verdict);
        for (const Difference& d : result.differences) {
            cells.push_back(d.requests > 0 ? decimals(d.mean_ms, 6) : "");
            cells.push_back(d.ci95_ms ? decimals(d.ci95_ms->low, 6) : "");
            cells.push_back(d.ci95_ms ? decimals(d.ci95_ms->high, 6) : "");
            cells.push_back(std::to_string(d.requests));
        }
        cells.emplace_back();
        for (const Extra& extra : extras) {
            const std::optional<double> value = extra.of(result);
            cells.push_back(value ? decimals(*value, 6) : "");
        }
        for (const Fate& fate : fates) cells.push_back(csv_text(fate, result.summary));
        append_csv_field(cells.emplace_back(), result.summary.deviations);
        append_row(out, cells);
    }
    return out;
}

/// A row for every preset and group.
std::string groups_csv(const std::vector<Result>& results) {
    std::string out = "preset,kind,group,requests,completed";
    for (const char* latency : {"ttft", "tpot", "e2e", "queue"}) {
        for (const char* part : {"_mean_ms", "_p50_ms", "_p99_ms"}) out.append(",").append(latency).append(part);
    }
    out += ",rejected,timed_out,cancelled,slo_attainment\n";
    for (const Result& result : results) {
        for (const Group& group : groups_of(result)) {
            std::vector<std::string> cells{result.preset, std::string(group.kind), ""};
            append_csv_field(cells.back(), group.of->name);
            cells.push_back(std::to_string(group.of->requests));
            cells.push_back(std::to_string(group.of->completed));
            for (const Distribution* d : {&group.of->ttft, &group.of->tpot, &group.of->e2e, &group.of->queue}) {
                for (const double value : {d->mean, d->p50, d->p99}) cells.push_back(d->count > 0 ? decimals(value, 6) : "");
            }
            for (const std::int64_t count : {group.of->rejected, group.of->timed_out, group.of->cancelled})
                cells.push_back(std::to_string(count));
            cells.push_back(group.of->attainment.all ? shortest(*group.of->attainment.all) : "");
            append_row(out, cells);
        }
    }
    return out;
}

std::string json(const Prepared& p, const std::vector<Result>& results) {
    using Json = nlohmann::ordered_json;
    Json out{{"scenario", p.scenario.name}, {"seed", p.scenario.seed}, {"policies", Json::array()}};
    for (const Result& result : results) {
        Json& row = out["policies"].emplace_back(Json{{"preset", result.preset}});
        if (!result.error.empty()) {
            row["error"] = result.error;
            continue;
        }
        const auto add = [&row, &result](const auto& figure) {
            const Cell cell = cell_of(figure, result.summary);
            Json value = nullptr;
            if (const auto* number = std::get_if<double>(&cell)) value = *number;
            if (const auto* count = std::get_if<std::int64_t>(&cell)) value = *count;
            row[std::string(figure.column)] = value;
        };
        for (const Figure& figure : figures) add(figure);
        for (const Fate& fate : fates) add(fate);
        for (const Extra& extra : extras) {
            const std::optional<double> value = extra.of(result);
            row[std::string(extra.column)] = value ? Json(*value) : Json(nullptr);
        }
        row["groups"] = Json::array();
        for (const Group& group : groups_of(result)) {
            Json& item = row["groups"].emplace_back(Json{{"kind", group.kind},
                                                         {"group", group.of->name},
                                                         {"requests", group.of->requests},
                                                         {"completed", group.of->completed}});
            item["rejected"] = group.of->rejected;
            item["timed_out"] = group.of->timed_out;
            item["cancelled"] = group.of->cancelled;
            item["slo_attainment"] = group.of->attainment.all ? Json(*group.of->attainment.all) : Json(nullptr);
            const auto add_latency = [&item](const std::string& latency, const Distribution& d) {
                item[latency + "_mean_ms"] = d.mean;
                item[latency + "_p50_ms"] = d.p50;
                item[latency + "_p99_ms"] = d.p99;
            };
            add_latency("ttft", group.of->ttft);
            add_latency("tpot", group.of->tpot);
            add_latency("e2e", group.of->e2e);
            add_latency("queue", group.of->queue);
        }
        row["deviations"] = result.summary.deviations;
        row["verdict"] = result.summary.verdict;
        for (std::size_t i = 0; i < latencies.size(); ++i) {
            const Difference& d = result.differences[i];
            Json& difference = row[std::string(latencies[i].name) + "_difference_ms"];
            difference = {{"requests", d.requests}, {"mean", nullptr}, {"ci95", nullptr}};
            if (d.requests > 0) difference["mean"] = d.mean_ms;
            if (d.ci95_ms) difference["ci95"] = {d.ci95_ms->low, d.ci95_ms->high};
        }
    }
    out["notes"] = left_out(results);
    return out.dump(2) + "\n";
}

constexpr std::size_t most_columns = 6;

/// A wide table in several of a terminal's width, the first preset that ran in front of each.
std::string in_blocks(const TextTable& all, std::size_t base) {
    if (all.header.size() - 1 <= most_columns) return plain_text(all);
    std::vector<std::size_t> others;
    for (std::size_t c = 1; c < all.header.size(); ++c) {
        if (c != base + 1) others.push_back(c);
    }
    std::string out;
    for (std::size_t from = 0; from < others.size(); from += most_columns - 1) {
        std::vector<std::size_t> columns{0, base + 1};
        columns.insert(columns.end(), others.begin() + static_cast<std::ptrdiff_t>(from),
                       others.begin() + static_cast<std::ptrdiff_t>(std::min(others.size(), from + most_columns - 1)));
        TextTable block;
        if (from == 0) block.title = all.title;
        for (const std::size_t c : columns) block.header.push_back(all.header[c]);
        for (const std::vector<std::string>& row : all.rows) {
            std::vector<std::string>& cells = block.rows.emplace_back();
            for (const std::size_t c : columns) cells.push_back(row[c]);
        }
        if (from > 0) out += '\n';
        out += plain_text(block);
    }
    return out;
}

std::int64_t pool_tokens(const Prepared& prepared) {
    const EngineArgs& engine = prepared.deployment.engine;
    return engine.num_gpu_blocks * engine.block_size;
}

}  // namespace

int policies_command(const std::vector<std::string>& args) {
    const Usage usage{
        "policies",
        "kvsim policies SCENARIO.yaml [options]",
        "Runs the same requests under each preset: latencies, throughput, preemptions, hit rate and KV use side by side, and\n"
        "for every request how much longer it took than under the first preset, as a mean with its 95 % interval. Keys that\n"
        "the scenario sets hold under every preset, and are named where they deviate from it. A preset that cannot run it\n"
        "stands there with the reason, and the exit code is 1.",
        {{"presets", "A,B,...", "which, the first that runs being what the others are compared with (all of them)"},
         {"set", "KEY.PATH=VALUE", "change a key of the scenario: --set engine.max_num_seqs=64", true},
         {"overlay", "FILE.yaml", "lay this file's keys over the scenario", true},
         {"seed", "N", "the same as --set seed=N"},
         {"out", "DIR", "also write policies.csv, and groups.csv with the latencies by class and by length"},
         {"format", "FORMAT", "table, csv, markdown or json (table)"},
         {"catalog", "DIR", "own models.yaml and gpus.yaml, asked before the shipped ones"},
         {"quiet", "", "no progress and no warnings"}},
        "a scenario file",
        1,
        1};
    const std::optional<Arguments> given = parse(usage, args);
    if (!given) return exit_done;
    const std::string format = given->choice("format", formats);
    const bool quiet = given->has("quiet");
    if (quiet) set_log_level("error");

    std::optional<OutputFolder> out;
    if (const auto folder = given->text("out")) out.emplace(*folder);
    std::optional<Prepared> first;
    std::vector<Result> results;
    std::string failures;
    for (const std::string& preset : presets_of(given->text("presets"))) {
        std::vector<std::string> sets = given->all("set");
        if (const auto seed = given->text("seed")) sets.push_back("seed=" + *seed);
        sets.push_back("engine.preset=" + preset);
        try {
            std::vector<Prepared> prepared =
                prepare_all(given->positional, sets, given->text("catalog").value_or(""), given->all("overlay"));
            const Prepared& p = prepared.front();
            Run run = run_seed(p, p.scenario.seed, {!quiet, std::nullopt, true});
            for (const std::string& warning : run.summary.warnings) log_warning(preset + ": " + warning);
            if (first && p.scenario.engine.num_gpu_blocks_override && pool_tokens(p) != pool_tokens(*first)) {
                log_warning(preset + ": num_gpu_blocks_override counts blocks of the preset's own size, here " +
                            std::to_string(pool_tokens(p)) + " tokens in all, under " + results.front().preset + " " +
                            std::to_string(pool_tokens(*first)) + "; block_size or kv_cache_memory_bytes makes them equal");
            }
            results.push_back({preset, std::move(run.info), std::move(run.summary), std::move(run.outcome), {}, {}, 0, {}});
            if (!first) first = std::move(prepared.front());
        } catch (const UserError& e) {
            const std::string reason = e.what();
            Result& failed = results.emplace_back();
            failed.preset = preset;
            failed.error = reason.substr(0, reason.find('\n'));
            failures += (failures.empty() ? "" : "\n") + preset + ": " + reason;
        }
    }
    if (!first) throw UserError(failures);
    const Result& base = base_of(results);
    const LengthGroups lengths(base.outcome);
    for (Result& result : results) {
        if (result.error.empty()) result.lengths = lengths.summarize(result.info, result.outcome);
        if (&result == &base || !result.error.empty()) continue;
        const std::vector<std::optional<RequestId>> same = same_requests(base.outcome, result.outcome);
        const auto paired = std::count_if(same.begin(), same.end(), [](const auto& id) { return id.has_value(); });
        result.unlike = static_cast<std::int64_t>(result.outcome.requests.size()) - paired;
        for (std::size_t i = 0; i < latencies.size(); ++i)
            result.differences[i] = difference(latencies[i], base.outcome.requests, result.outcome.requests, same);
    }
    if (out) {
        AtomicFile table_file(out->path() / "policies.csv");
        AtomicFile groups_file(out->path() / "groups.csv");
        table_file.write(csv(results));
        groups_file.write(groups_csv(results));
        table_file.finish();
        groups_file.finish();
        table_file.commit();
        groups_file.commit();
    }
    // In the table's own text; a CSV has no place for a sentence.
    const std::vector<std::string> notes = left_out(results);
    if (format == "csv") {
        for (const std::string& note : notes) log_warning(note);
        print(csv(results));
    } else if (format == "json") {
        print(json(*first, results));
    } else {
        const TextTable all = table(*first, results);
        print(format == "markdown" ? markdown(all) : in_blocks(all, static_cast<std::size_t>(&base - results.data())));
        const std::string deviating = deviations(results, format == "markdown");
        if (!deviating.empty()) print("\n" + deviating);
        for (const std::string& note : notes) print("\n" + note + "\n");
    }
    if (failures.empty()) return exit_done;
    flush_output();
    std::fputs((failures + "\n").c_str(), stderr);
    return exit_gate_failed;
}

}  // namespace kvsim::app
