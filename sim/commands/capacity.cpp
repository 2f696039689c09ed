// kvsim capacity: the highest load that keeps its limits, at one point or at each of a grid.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "kvsim/app/command.hpp"
#include "kvsim/app/csv_row.hpp"
#include "kvsim/app/load_options.hpp"
#include "kvsim/app/load_search.hpp"
#include "kvsim/app/output_folder.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/app/sweep_files.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"
#include "kvsim/base/parallel.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/report/pareto.hpp"
#include "kvsim/report/text_table.hpp"
#include "kvsim/report/writers.hpp"

namespace kvsim::app {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::int64_t seeds_by_default = 5;
constexpr double coarse_tolerance = 0.05;
/// Where the user names no tolerance brackets need not be narrower than this share of the interval over the seeds.
constexpr double share_of_interval = 0.1;
constexpr double first_tolerance = 0.02;

const Usage& usage() {
    static const Usage table = [] {
        Usage u{"capacity",
                "kvsim capacity SCENARIO.yaml|SWEEP.yaml [--slo 'ttft_p99 <= 2s' ...] [options]",
                "Finds the highest rate (or concurrency) that meets every SLO and is not overloaded, with a 95 % interval over "
                "seeds,\n"
                "what binds there and what it costs. Writes DIR/capacity.csv (the curve it walked) and DIR/points.csv (a row "
                "a point).\n"
                "Exit code 1: at some point the SLOs fail even at the lowest load, or the point cannot run.",
                load_options(),
                "a scenario or sweep file",
                1,
                1};
        u.options.insert(u.options.begin() + 6, {"seeds", "N", "independent searches, under the seeds S ... S+N-1 (5)"});
        u.options.push_back({"out", "DIR", "where the files go (results/NAME-capacity)"});
        return u;
    }();
    return table;
}

/// One point, searched.
struct Result {
    std::unique_ptr<PointSearch> search;
    Capacity capacity;
    std::vector<ReplicatedColumn> limit;  ///< over the seeds, at the highest load that meets the SLOs
    std::string error;                    ///< why it cannot run; then there is nothing else
    std::string full_error;

    std::optional<double> requests_s;  ///< at the capacity
    std::optional<double> gpu_hour_usd;
    std::string price_source;
    std::optional<double> requests_per_usd, usd_per_million_tokens;
    std::optional<double> tokens_s_per_gpu;  ///< output
    std::optional<double> tokens_s_per_user;
    bool on_front = false, on_ttft_front = false, on_e2e_front = false;

    [[nodiscard]] bool ran() const { return error.empty(); }
    [[nodiscard]] bool any() const { return ran() && capacity.outcome != Capacity::Outcome::none; }
    [[nodiscard]] std::optional<double> at_limit(std::string_view column) const { return mean_of(limit, column); }
    [[nodiscard]] BrokenSlos broken_above() const { return app::broken_above(capacity, search->targets()); }
    [[nodiscard]] std::string capacity_text() const { return app::capacity_text(capacity, search->knob()); }
};

std::string_view outcome_name(const Result& r) {
    if (!r.ran()) return "failed";
    constexpr std::array<std::string_view, 3> names{"found", "at_least", "none"};
    return names[static_cast<std::size_t>(r.capacity.outcome)];
}

void add_figures(Result& r, const std::optional<double>& own_price) {
    const Bill& bill = r.search->bill();
    r.gpu_hour_usd = own_price ? own_price : bill.gpu_hour_usd;
    r.price_source = own_price ? "--gpu-hour-cost" : bill.source;
    if (!r.any()) return;
    r.limit = replicated(r.capacity.at_limit);
    const std::string& column = r.search->knob().column;
    r.requests_s = column == "rate"         ? std::optional(r.capacity.value)
                   : column == "rate_scale" ? r.at_limit("offered_rate_req_s")
                                            : r.at_limit("request_throughput_req_s");
    const auto gpus = static_cast<double>(bill.gpus);
    const std::optional<double> tokens = r.at_limit("output_throughput_tok_s");
    const std::optional<double> tpot = r.at_limit("tpot_mean_ms");
    if (tokens) r.tokens_s_per_gpu = *tokens / gpus;
    if (tpot && *tpot > 0) r.tokens_s_per_user = 1000 / *tpot;
    if (!r.gpu_hour_usd) return;
    const double usd_s = *r.gpu_hour_usd * gpus / 3600;
    if (r.requests_s) r.requests_per_usd = *r.requests_s / usd_s;
    if (tokens && *tokens > 0) r.usd_per_million_tokens = usd_s / *tokens * 1e6;
}

void mark_fronts(std::vector<Result>& results) {
    const auto front = [&results](auto x, auto y, Better better_x, Better better_y) {
        std::vector<ParetoPoint> points;
        for (const Result& r : results) points.push_back({x(r), y(r)});
        return pareto_front(points, better_x, better_y);
    };
    const auto cost = [](const Result& r) { return r.usd_per_million_tokens; };
    const auto speed = front([](const Result& r) { return r.tokens_s_per_user; },
                             [](const Result& r) { return r.tokens_s_per_gpu; }, Better::higher, Better::higher);
    const auto ttft = front([](const Result& r) { return r.at_limit("ttft_p99_ms"); }, cost, Better::lower, Better::lower);
    const auto e2e = front([](const Result& r) { return r.at_limit("e2e_p99_ms"); }, cost, Better::lower, Better::lower);
    for (std::size_t i = 0; i < results.size(); ++i) {
        results[i].on_front = speed[i];
        results[i].on_ttft_front = ttft[i];
        results[i].on_e2e_front = e2e[i];
    }
}

// ---- CSV -------------------------------------------------------------------------------------------------------------

std::string flag(bool on) {
    return on ? "1" : "0";
}

std::string join(const std::vector<std::string>& texts, const char* between) {
    std::string out;
    for (const std::string& text : texts) out += (out.empty() ? "" : between) + text;
    return out;
}

/// One row a run, and where several seeds ran at a load one without a seed: their mean.
std::string curve_csv(const SweepPlan& plan, const std::vector<Result>& results, const LoadKnob& knob) {
    CsvRow header;
    header.add("point").add(key_columns(plan)).add(knob.column == "rate_scale" ? "rate" : knob.column);
    if (knob.column == "rate_scale") header.add("rate_scale");
    header.add("seeds").add("meets").add("broken").add("pareto");
    for (const Column& column : summary_columns()) header.add(column.name);
    std::string out = header.line();
    for (std::size_t point = 0; point < results.size(); ++point) {
        const Result& r = results[point];
        if (!r.ran()) continue;
        const std::vector<std::string>& texts = r.search->targets().texts;
        const std::vector<std::string> values = plan.values(static_cast<std::int64_t>(point));
        const auto begin = [&](double load, const std::optional<double>& offered) {
            CsvRow row;
            row.add(std::to_string(point)).add(values);
            if (knob.column == "rate_scale") row.add(offered);
            row.add(shortest(load));
            return row;
        };
        std::map<double, std::vector<std::pair<std::size_t, const Probe*>>> by_load;
        for (std::size_t seed = 0; seed < r.search->seeds().size(); ++seed) {
            for (const auto& [load, probe] : r.search->seeds()[seed].probes()) by_load[load].emplace_back(seed, &probe);
        }
        for (const auto& [load, runs] : by_load) {
            std::vector<Summary> summaries;
            std::vector<std::size_t> count(texts.size(), 0);
            std::size_t meet = 0;
            for (const auto& [seed, probe] : runs) {
                const Summary& s = probe->summary;
                std::vector<std::string> broken;
                for (const std::size_t b : probe->broken) {
                    broken.push_back(texts[b]);
                    ++count[b];
                }
                meet += probe->meets ? 1U : 0U;
                CsvRow row = begin(load, s.offered_rate_req_s);
                row.add("1").add(flag(probe->meets)).add(join(broken, "; ")).add(flag(r.on_front));
                for (const Column& column : summary_columns()) row.add(cell_text(column.get(s), column.unit));
                out += row.line();
                summaries.push_back(s);
            }
            if (runs.size() < 2) continue;
            const std::vector<ReplicatedColumn> means = replicated(summaries);
            std::vector<std::string> broken;
            for (std::size_t b = 0; b < texts.size(); ++b) {
                if (count[b] > 0) broken.push_back(texts[b]);
            }
            CsvRow row = begin(load, mean_of(means, "offered_rate_req_s"));
            row.add(std::to_string(runs.size()))
                .add(shortest(static_cast<double>(meet) / static_cast<double>(runs.size())))
                .add(join(broken, "; "))
                .add(flag(r.on_front));
            for (const Column& column : summary_columns()) {
                row.add(column.name == "seed" ? std::string() : cell_text(replicated_cell(means, column), column.unit));
            }
            out += row.line();
        }
    }
    return out;
}

constexpr std::array<std::string_view, 4> bounds{"bound_kv_blocks", "bound_seats", "bound_token_budget", "bound_no_waiting"};

std::string points_csv(const SweepPlan& plan, const std::vector<Result>& results) {
    CsvRow header;
    header.add("point").add(key_columns(plan));
    for (const char* name :
         {"searched", "outcome", "capacity", "capacity_low", "capacity_high", "capacity_per_gpu", "seeds", "runs",
          "breaks_first", "gpus", "gpu_hour_usd", "requests_per_usd", "usd_per_million_output_tokens", "output_tok_s_per_gpu",
          "tok_s_per_user", "pareto", "pareto_cost_ttft", "pareto_cost_e2e", "error"})
        header.add(name);
    std::vector<const Column*> columns;
    for (const Column& column : summary_columns()) {
        if (column.name == "seed") continue;
        columns.push_back(&column);
        header.add(column.name);
    }
    std::string out = header.line();
    for (std::size_t point = 0; point < results.size(); ++point) {
        const Result& r = results[point];
        CsvRow row;
        row.add(std::to_string(point)).add(plan.values(static_cast<std::int64_t>(point)));
        row.add(r.ran() ? r.search->knob().key : std::string()).add(outcome_name(r));
        const std::optional<double> none;
        const bool any = r.any();
        const double gpus = r.ran() ? static_cast<double>(r.search->bill().gpus) : 1;
        row.add(r.ran() ? std::optional(r.capacity.value) : none);
        row.add(r.ran() ? std::optional(r.capacity.low) : none).add(r.ran() ? std::optional(r.capacity.high) : none);
        row.add(any ? std::optional(r.capacity.value / gpus) : none);
        row.add(r.ran() ? std::to_string(r.search->seeds().size()) : std::string());
        row.add(r.ran() ? std::to_string(r.capacity.runs) : std::string());
        const auto broken = r.ran() ? r.broken_above() : BrokenSlos();
        row.add(broken.empty() ? std::string() : broken.front().first);
        row.add(r.ran() ? std::to_string(r.search->bill().gpus) : std::string()).add(r.gpu_hour_usd).add(r.requests_per_usd);
        row.add(r.usd_per_million_tokens).add(r.tokens_s_per_gpu).add(r.tokens_s_per_user);
        row.add(flag(r.on_front)).add(flag(r.on_ttft_front)).add(flag(r.on_e2e_front)).add(r.error);
        for (const Column* column : columns)
            row.add(any ? cell_text(replicated_cell(r.limit, *column), column->unit) : std::string());
        out += row.line();
    }
    return out;
}

// ---- for reading -----------------------------------------------------------------------------------------------------

std::string shown(const std::optional<double>& value, int digits = 4) {
    return value ? readable(*value, digits) : "-";
}

std::string interval_text(const Result& r) {
    const Capacity& c = r.capacity;
    if (c.outcome != Capacity::Outcome::found) return "-";
    return fmt::format("{} to {}", readable(c.low), readable(c.high));
}

std::string bound_text(const Result& r) {
    constexpr std::array<std::string_view, 4> names{"KV blocks", "seats", "token budget", "nothing"};
    std::string out;
    for (std::size_t i = 0; i < bounds.size(); ++i) {
        const std::optional<double> share = r.at_limit(bounds[i]);
        out += fmt::format("{}{} {} %", i > 0 ? ", " : "", names[i], share ? decimals(*share * 100, 1) : "-");
    }
    return out;
}

/// Each broken SLO with the seeds that break it and what it is under the first of them.
std::string broken_text(const Result& r) {
    const Targets& targets = r.search->targets();
    std::string out;
    for (const auto& [text, seeds] : r.broken_above()) {
        out += fmt::format("{}{}: {} of {} seeds", out.empty() ? "" : "; ", text == "stable" ? "overloaded" : text, seeds,
                           r.search->seeds().size());
        const auto place =
            static_cast<std::size_t>(std::find(targets.texts.begin(), targets.texts.end(), text) - targets.texts.begin());
        if (!r.capacity.above) continue;
        if (place >= targets.slos.size()) {
            const double lost = lost_share(*r.capacity.above);
            if (lost > 0) out += fmt::format(", first {:.3g} % of the requests lost", lost * 100);
            continue;
        }
        out += ", first " + evaluate(targets.slos[place], *r.capacity.above).measured;
    }
    return out.empty() ? "-" : out;
}

using Facts = std::vector<std::pair<std::string, std::string>>;

Facts facts(const SweepPlan& plan, const Result& r) {
    const Bill& bill = r.search->bill();
    Facts out;
    out.emplace_back("SLO", join(r.search->targets().texts, ", "));
    out.emplace_back("capacity", r.capacity_text());
    if (r.capacity.outcome == Capacity::Outcome::found) {
        const std::size_t seeds = r.search->seeds().size();
        out.emplace_back("95 % interval", interval_text(r) + (seeds > 1 ? fmt::format(" ({} seeds, Student t)", seeds)
                                                              : plan.seeds.size() > 1
                                                                  ? " (the seed changes nothing here: the bracket)"
                                                                  : " (one seed: its bracket, which says nothing of others)"));
    }
    out.emplace_back("runs", std::to_string(r.capacity.runs));
    if (r.capacity.outcome == Capacity::Outcome::none) out.emplace_back("breaks", broken_text(r));
    if (!r.any()) return out;
    const std::string& column = r.search->knob().column;
    if (column != "rate") out.emplace_back("requests/s", shown(r.requests_s));
    out.emplace_back(
        "per GPU",
        fmt::format("{} requests/s, {} output tok/s ({} x {})",
                    shown(r.requests_s ? std::optional(*r.requests_s / static_cast<double>(bill.gpus)) : std::nullopt),
                    shown(r.tokens_s_per_gpu), bill.gpus, bill.gpu.empty() ? "no named GPU" : bill.gpu));
    out.emplace_back("per user", fmt::format("{} tok/s", shown(r.tokens_s_per_user)));
    if (r.gpu_hour_usd) {
        out.emplace_back("per USD",
                         fmt::format("{} requests; {} USD per million output tokens, at {} USD per GPU and hour ({})",
                                     shown(r.requests_per_usd), shown(r.usd_per_million_tokens, 3), readable(*r.gpu_hour_usd),
                                     r.price_source.empty() ? "catalogue" : r.price_source));
    } else {
        out.emplace_back("per USD", "no price in the catalogue; give --gpu-hour-cost USD");
    }
    out.emplace_back(
        "at the limit",
        fmt::format("TTFT p99 {} ms, TPOT mean {} ms, E2E p99 {} ms, batch {}, KV use {} %", shown(r.at_limit("ttft_p99_ms")),
                    shown(r.at_limit("tpot_mean_ms")), shown(r.at_limit("e2e_p99_ms")), shown(r.at_limit("batch_size_mean")),
                    shown(r.at_limit("kv_usage_mean") ? std::optional(*r.at_limit("kv_usage_mean") * 100) : std::nullopt, 3)));
    out.emplace_back("time bound by", bound_text(r));
    if (r.capacity.outcome == Capacity::Outcome::found) out.emplace_back("breaks above", broken_text(r));
    return out;
}

TextTable curve_table(const Result& r) {
    TextTable out;
    out.header = {r.search->knob().column, "meets",  "TTFT p99 ms", "TPOT mean ms", "E2E p99 ms",
                  "output tok/s",          "KV use", "verdict"};
    for (const double load : r.search->common_loads()) {
        std::vector<Summary> runs;
        std::size_t meet = 0;
        for (const SeedSearch& s : r.search->seeds()) {
            const Probe& probe = s.probes().at(load);
            runs.push_back(probe.summary);
            meet += probe.meets ? 1U : 0U;
        }
        const std::vector<ReplicatedColumn> means = replicated(runs);
        const auto figure = [&means](std::string_view name, int digits = 4) { return shown(mean_of(means, name), digits); };
        std::string verdict;
        for (const ReplicatedColumn& c : means) {
            if (c.column->name == "verdict") verdict = cell_text(c.value, Unit::text);
        }
        out.rows.push_back({readable(load, 5), fmt::format("{}/{}", meet, runs.size()), figure("ttft_p99_ms"),
                            figure("tpot_mean_ms"), figure("e2e_p99_ms"), figure("output_throughput_tok_s"),
                            figure("kv_usage_mean", 3), verdict});
    }
    return out;
}

TextTable points_table(const SweepPlan& plan, const std::vector<Result>& results) {
    TextTable out;
    out.header.emplace_back("point");
    for (const std::string& key : plan.keys()) out.header.push_back(key);
    for (const char* name : {"capacity", "95 % interval", "per GPU", "out tok/s/GPU", "tok/s/user", "TTFT p99 ms", "E2E p99 ms",
                             "USD/M out tok", "breaks first", "front"})
        out.header.emplace_back(name);
    for (std::size_t point = 0; point < results.size(); ++point) {
        const Result& r = results[point];
        std::vector<std::string>& row = out.rows.emplace_back();
        row.push_back(std::to_string(point));
        for (const std::string& value : plan.values(static_cast<std::int64_t>(point))) row.push_back(value);
        if (!r.any()) {
            row.push_back(r.ran() ? "none" : "cannot run");
            row.resize(out.header.size(), "-");
            continue;
        }
        const std::string least = r.capacity.outcome == Capacity::Outcome::at_least ? ">= " : "";
        row.push_back(least + readable(r.capacity.value));
        row.push_back(interval_text(r));
        row.push_back(readable(r.capacity.value / static_cast<double>(r.search->bill().gpus)));
        row.push_back(shown(r.tokens_s_per_gpu));
        row.push_back(shown(r.tokens_s_per_user));
        row.push_back(shown(r.at_limit("ttft_p99_ms")));
        row.push_back(shown(r.at_limit("e2e_p99_ms")));
        row.push_back(shown(r.usd_per_million_tokens, 3));
        const auto broken = r.broken_above();
        row.push_back(broken.empty() ? "-" : broken.front().first == "stable" ? "overloaded" : broken.front().first);
        std::string fronts;
        if (r.on_front) fronts += "speed ";
        if (r.on_ttft_front) fronts += "cost/TTFT ";
        if (r.on_e2e_front) fronts += "cost/E2E ";
        row.push_back(fronts.empty() ? "-" : std::string(trimmed(fronts)));
    }
    return out;
}

/// What a reader should know before believing the figures.
std::vector<std::string> warnings(const Result& r) {
    std::vector<std::string> out;
    if (!r.ran()) return {r.error};
    out = r.capacity.warnings;
    const Capacity& c = r.capacity;
    if (c.outcome == Capacity::Outcome::at_least)
        out.push_back(
            "no limit found: the run is too short to overload, or the SLOs do not depend on the load; raise --max or make "
            "the run longer");
    if (!r.any()) {
        const double share = c.above ? lost_share(*c.above) : 0;
        if (share > 0)
            out.push_back(
                fmt::format("{:.3g} % of the requests are lost even so (rejected, timed out, failed, or cancelled before "
                            "they start)",
                            share * 100));
        return out;
    }
    std::int64_t lost = 0;
    std::int64_t all = 0;
    for (const Summary& s : c.at_limit) {
        lost += s.rejected + s.timed_out + s.failed;
        all += s.requests;
    }
    if (lost * 1000 > all)
        out.push_back(
            fmt::format("{} of {} requests were rejected, timed out or failed at the limit; latencies are those of the others "
                        "(slo_attainment counts them)",
                        lost, all));
    const auto growing = std::count_if(c.at_limit.begin(), c.at_limit.end(),
                                       [](const Summary& s) { return s.drift && s.drift->drifting && s.drift->change > 0; });
    // At the limit of stability alone they grow whatever its length.
    if (growing * 2 >= static_cast<std::ptrdiff_t>(c.at_limit.size()) && !r.search->targets().slos.empty())
        out.push_back(
            fmt::format("at the limit E2E still grows during the run ({} of {} seeds), so a longer run breaks the SLOs earlier",
                        growing, c.at_limit.size()));
    for (const std::string& warning : c.at_limit.front().warnings) {
        // That latencies near saturation are unsteady is what is searched for.
        if (!warning.starts_with("saturated:") && !warning.starts_with("the batch means of")) out.push_back(warning);
    }
    return out;
}

std::string text_report(const SweepPlan& plan, const std::vector<Result>& results, bool as_markdown) {
    const std::string title = fmt::format("{}: highest load that meets the SLOs", plan.scenario.stem().string());
    std::string out = (as_markdown ? "## " : "") + title + "\n\n";
    const auto add = [&out, as_markdown](const TextTable& table) {
        out += as_markdown ? markdown(table) : plain_text(table);
        if (!out.ends_with('\n')) out += '\n';
    };
    std::vector<std::pair<std::string, std::vector<std::string>>> told;
    if (results.size() == 1) {
        const Facts all = facts(plan, results.front());
        if (as_markdown) out += "| | |\n|---|---|\n";
        for (const auto& [name, value] : all)
            out += as_markdown ? fmt::format("| {} | {} |\n", name, value) : fmt::format("{:<15} {}\n", name, value);
        if (const TextTable curve = curve_table(results.front()); curve.rows.size() > 1) {
            out += "\n";
            add(curve);
        }
    } else {
        const auto ran = std::find_if(results.begin(), results.end(), [](const Result& r) { return r.ran(); });
        out += fmt::format(
            "SLO: {}. {} seeds a point. front: speed is output tok/s per GPU against tok/s per user, cost USD per "
            "million output tokens against p99.\n\n",
            join(ran->search->targets().texts, ", "), plan.seeds.size());
        add(points_table(plan, results));
    }
    std::string told_text;
    for (std::size_t i = 0; i < results.size(); ++i) {
        for (const std::string& warning : warnings(results[i])) {
            const std::string of = results.size() > 1 ? plan.label(static_cast<std::int64_t>(i)) + ": " : "";
            told_text += as_markdown ? "* " + of + warning + "\n" : "warning: " + of + warning + "\n";
        }
    }
    if (!told_text.empty()) out += "\n" + told_text;
    return out;
}

Json json_number(const std::optional<double>& value) {
    return value ? Json(*value) : Json(nullptr);
}

Json json_cell(const Cell& cell) {
    if (const auto* whole = std::get_if<std::int64_t>(&cell)) return *whole;
    if (const auto* real = std::get_if<double>(&cell)) return *real;
    if (const auto* text = std::get_if<std::string>(&cell)) return *text;
    return nullptr;
}

std::string json_report(const SweepPlan& plan, const std::vector<Result>& results) {
    Json out{{"scenario", plan.scenario.stem().string()}, {"seeds", plan.seeds}, {"points", Json::array()}};
    const std::vector<std::string> keys = plan.keys();
    for (std::size_t i = 0; i < results.size(); ++i) {
        const Result& r = results[i];
        Json& row = out["points"].emplace_back(Json::object());
        row["vary"] = Json::object();
        const std::vector<std::string> values = plan.values(static_cast<std::int64_t>(i));
        for (std::size_t k = 0; k < keys.size(); ++k) row["vary"][keys[k]] = values[k];
        row["outcome"] = outcome_name(r);
        if (!r.ran()) {
            row["error"] = r.error;
            continue;
        }
        const Capacity& c = r.capacity;
        row["searched"] = r.search->knob().key;
        row["unit"] = r.search->knob().unit;
        row["slos"] = r.search->targets().texts;
        row["capacity"] = c.value;
        row["capacity_ci95"] = {c.low, c.high};
        row["lowest_tried"] = c.lowest;
        row["highest_tried"] = c.highest;
        row["runs"] = c.runs;
        row["gpus"] = r.search->bill().gpus;
        row["capacity_per_gpu"] = r.any() ? Json(c.value / static_cast<double>(r.search->bill().gpus)) : Json(nullptr);
        row["gpu_hour_usd"] = json_number(r.gpu_hour_usd);
        row["price_source"] = r.price_source;
        row["requests_per_usd"] = json_number(r.requests_per_usd);
        row["usd_per_million_output_tokens"] = json_number(r.usd_per_million_tokens);
        row["output_tok_s_per_gpu"] = json_number(r.tokens_s_per_gpu);
        row["tok_s_per_user"] = json_number(r.tokens_s_per_user);
        row["breaks_above"] = Json::object();
        for (const auto& [text, seeds] : r.broken_above()) row["breaks_above"][text] = seeds;
        row["pareto"] = r.on_front;
        row["pareto_cost_ttft"] = r.on_ttft_front;
        row["pareto_cost_e2e"] = r.on_e2e_front;
        row["at_limit"] = Json::object();
        for (const ReplicatedColumn& column : r.limit) {
            if (column.column->name != "seed") row["at_limit"][std::string(column.column->name)] = json_cell(column.value);
        }
        row["warnings"] = warnings(r);
    }
    return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result search_point(const SweepPlan& plan, std::int64_t point, const SearchSettings& settings, std::size_t threads) {
    Result r;
    try {
        r.search = std::make_unique<PointSearch>(plan, point, settings);
        r.search->search(1, std::max(coarse_tolerance, settings.tolerance), 1);
        r.search->spread(threads);
        double tolerance = settings.tolerance;
        if (!settings.exact && plan.seeds.size() > 1) {
            r.search->search(plan.seeds.size(), first_tolerance, threads);
            const Capacity rough = r.search->capacity();
            if (rough.outcome == Capacity::Outcome::found && rough.value > 0)
                tolerance =
                    std::clamp(share_of_interval * (rough.high - rough.low) / 2 / rough.value, tolerance, first_tolerance);
        }
        r.search->search(plan.seeds.size(), tolerance, threads);
        r.capacity = r.search->capacity();
    } catch (const UserError& e) {
        r.full_error = e.what();
        r.error = r.full_error.substr(0, r.full_error.find('\n'));
    }
    return r;
}

}  // namespace

int capacity_command(const std::vector<std::string>& args) {
    const std::optional<Arguments> given = parse(usage(), args);
    if (!given) return exit_done;
    LoadRequest request = read_load_options(*given, "capacity", seeds_by_default);
    if (request.quiet) set_log_level("error");
    const SweepPlan plan = plan_load(request);
    const OutputFolder folder(request.out);

    const auto points = static_cast<std::size_t>(plan.points());
    std::vector<Result> results(points);
    {
        RunCounter counter(plan.points(), request.quiet);
        request.search.on_run = [&counter] { counter.run(); };
        const std::size_t outer = std::min(points, request.jobs);
        for_each_index(points, outer, [&](std::size_t i) {
            const auto point = static_cast<std::int64_t>(i);
            results[i] = search_point(plan, point, request.search, std::max<std::size_t>(1, request.jobs / outer));
            if (results[i].ran()) add_figures(results[i], request.gpu_hour_usd);
            counter.point(plan.label(point) + ": " + (results[i].ran() ? results[i].capacity_text() : results[i].error));
        });
    }
    throw_if_stopped();
    const auto first = std::find_if(results.begin(), results.end(), [](const Result& r) { return r.ran(); });
    if (first == results.end()) throw UserError(results.front().full_error);
    mark_fronts(results);

    AtomicFile curve(folder.path() / "capacity.csv");
    curve.write(curve_csv(plan, results, first->search->knob()));
    AtomicFile table(folder.path() / "points.csv");
    const std::string rows = points_csv(plan, results);
    table.write(rows);
    curve.finish();
    table.finish();
    curve.commit();
    table.commit();

    if (!request.quiet) {
        print(request.format == "csv"    ? rows
              : request.format == "json" ? json_report(plan, results)
                                         : text_report(plan, results, request.format == "markdown"));
        flush_output();
    }
    int code = exit_done;
    for (std::size_t i = 0; i < points; ++i) {
        const Result& r = results[i];
        if (r.any()) continue;
        code = exit_gate_failed;
        if (request.quiet || request.format == "csv" || request.format == "json")
            print_error((points > 1 ? plan.label(static_cast<std::int64_t>(i)) + ": " : std::string()) +
                        (r.ran() ? "capacity: " + r.capacity_text() : r.error));
    }
    return code;
}

}  // namespace kvsim::app
