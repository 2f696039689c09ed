#include "kvsim/report/replications.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/report/writers.hpp"
#include "number_text.hpp"

namespace kvsim {
namespace {

bool is_interval(const Column& column) {
    return column.name.ends_with("_ci95");
}

std::optional<double> number(const Cell& cell) {
    if (const auto* whole = std::get_if<std::int64_t>(&cell)) return static_cast<double>(*whole);
    if (const auto* real = std::get_if<double>(&cell)) return *real;
    return std::nullopt;
}

// Settings stand before `requests`, the figures from there on.
bool is_figure(const Column& column, bool behind_requests) {
    return behind_requests && column.unit != Unit::text && column.name != "concurrency";
}

std::string interval_name(const Column& column) {
    return std::string(column.name) + "_ci95";
}

std::string number_cell(double value, Unit unit) {
    return cell_text(Cell{value}, unit);
}

}  // namespace

std::vector<ReplicatedColumn> replicated(std::span<const Summary> runs) {
    KVSIM_CHECK(!runs.empty(), "replications are at least one run");
    std::vector<ReplicatedColumn> out;
    bool behind_requests = false;
    for (const Column& column : summary_columns()) {
        behind_requests = behind_requests || column.name == "requests";
        if (is_interval(column)) continue;
        ReplicatedColumn& c = out.emplace_back();
        c.column = &column;
        c.figure = is_figure(column, behind_requests);
        if (!c.figure) {
            c.value = column.get(runs.front());
            if (column.unit != Unit::text) continue;
            std::vector<std::string> values;
            for (const Summary& run : runs) {
                const std::string text = cell_text(column.get(run), column.unit);
                if (!text.empty() && std::find(values.begin(), values.end(), text) == values.end()) values.push_back(text);
            }
            std::string joined;
            for (const std::string& text : values) {
                if (!joined.empty()) joined += " / ";
                joined += text;
            }
            if (!joined.empty()) c.value = joined;
            continue;
        }
        std::vector<double> values;
        for (const Summary& run : runs) {
            if (const auto value = number(column.get(run))) values.push_back(*value);
        }
        if (values.empty()) continue;
        const ReplicationMean mean = replication_mean(values);
        c.value = mean.mean;
        c.half_width = mean.half_width;
        const auto [least, greatest] = std::minmax_element(values.begin(), values.end());
        c.min = *least;
        c.max = *greatest;
    }
    return out;
}

Cell replicated_cell(std::span<const ReplicatedColumn> columns, const Column& column) {
    const bool interval = is_interval(column);
    for (const ReplicatedColumn& c : columns) {
        if (!interval && c.column->name == column.name) return c.value;
        if (interval && interval_name(*c.column) == column.name) return c.half_width ? Cell{*c.half_width} : Cell{};
    }
    return {};
}

std::string replicated_csv_header() {
    std::string out;
    std::string intervals;
    bool behind_requests = false;
    for (const Column& column : summary_columns()) {
        behind_requests = behind_requests || column.name == "requests";
        if (is_interval(column)) continue;
        if (!out.empty()) out += ',';
        out += column.name;
        if (!is_figure(column, behind_requests)) continue;
        intervals += ',';
        intervals += interval_name(column);
    }
    return out + intervals + "\n";
}

std::string replicated_csv_row(std::span<const Summary> runs) {
    std::string out;
    std::string intervals;
    bool first = true;
    for (const ReplicatedColumn& c : replicated(runs)) {
        if (!first) out += ',';
        first = false;
        append_csv_field(out, cell_text(c.value, c.column->unit));
        if (!c.figure) continue;
        intervals += ',';
        if (c.half_width) intervals += number_cell(*c.half_width, c.column->unit);
    }
    return out + intervals + "\n";
}

std::string replicated_csv(std::span<const Summary> runs) {
    return replicated_csv_header() + replicated_csv_row(runs);
}

std::string replications_json(std::span<const Summary> runs) {
    std::string out = R"("replications": {"count": )";
    append_integer(out, static_cast<std::int64_t>(runs.size()));
    out += R"(, "seeds": [)";
    for (std::size_t i = 0; i < runs.size(); ++i) {
        if (i > 0) out += ", ";
        append_integer(out, runs[i].seed);
    }
    out += "], \"level\": 0.95";
    const std::vector<ReplicatedColumn> columns = replicated(runs);
    const auto object = [&](std::string_view name, auto value_of) {
        out += ", ";
        append_json_string(out, name);
        out += ": {";
        bool first = true;
        for (const ReplicatedColumn& c : columns) {
            if (!c.figure) continue;
            out += first ? "" : ", ";
            first = false;
            append_json_string(out, c.column->name);
            const std::optional<double> value = value_of(c);
            out += ": ";
            out += value ? number_cell(*value, c.column->unit) : std::string("null");
        }
        out += '}';
    };
    object("mean", [](const ReplicatedColumn& c) { return number(c.value); });
    object("ci95", [](const ReplicatedColumn& c) { return c.half_width; });
    return out + "}";
}

std::string render_replications(Format format, std::span<const Summary> runs) {
    if (format == Format::csv) return replicated_csv(runs);
    if (format == Format::json) return fmt::format("{{{}}}\n", replications_json(runs));
    const bool markdown = format == Format::markdown;
    const std::string title =
        fmt::format("{} replications, seeds {} to {}; mean of the runs with its 95 % interval (Student t)", runs.size(),
                    runs.front().seed, runs.back().seed);
    std::string out = title + "\n\n";
    out += markdown ? std::string("| figure | mean | ± 95 % | least | greatest |\n|---|---:|---:|---:|---:|\n")
                    : fmt::format("{:<30}{:>16}{:>16}{:>16}{:>16}\n", "figure", "mean", "+- 95 %", "least", "greatest");
    for (const ReplicatedColumn& c : replicated(runs)) {
        const std::optional<double> mean = c.figure ? number(c.value) : std::nullopt;
        if (!mean) continue;
        const auto text = [](double value) { return fmt::format("{:.6g}", value); };
        const std::string half = c.half_width ? text(*c.half_width) : "-";
        if (markdown)
            out += fmt::format("| {} | {} | {} | {} | {} |\n", c.column->name, text(*mean), half, text(c.min), text(c.max));
        else
            out += fmt::format("{:<30}{:>16}{:>16}{:>16}{:>16}\n", c.column->name, text(*mean), half, text(c.min), text(c.max));
    }
    return out;
}

std::vector<std::string> replication_warnings(std::span<const Summary> runs) {
    std::vector<std::string> out;
    if (runs.size() < 2) return out;
    const bool alike = std::all_of(runs.begin(), runs.end(), [&](const Summary& s) {
        return s.duration_s == runs.front().duration_s && s.e2e.mean == runs.front().e2e.mean;
    });
    if (alike)
        out.emplace_back(
            "the seed makes no difference to this scenario (a trace, or nothing drawn at random): the replications are one "
            "run, and "
            "intervals of width 0 mean nothing");
    if (runs.size() < 5) out.push_back(fmt::format("an interval from {} replications is wide; 5 to 30 are usual", runs.size()));
    return out;
}

}  // namespace kvsim
