#include "kvsim/app/gate_output.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/report/assertion.hpp"
#include "kvsim/report/comparison.hpp"
#include "kvsim/report/output_analysis.hpp"

namespace kvsim::app {
namespace {

namespace fs = std::filesystem;

/// GitHub drops a step's summary above 1 MiB.
constexpr std::size_t most_summary_bytes = (std::size_t{1} << 20U) - 1024;

std::string variable(const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? std::string() : std::string(value);
}

void make_folder_of(const fs::path& file) {
    if (file.empty()) throw UserError("error: --junit and --benchmark-json must name a file");
    std::error_code error;
    if (fs::is_directory(file, error)) throw UserError("error: '" + file.string() + "' is a folder");
    if (!file.has_parent_path()) return;
    fs::create_directories(file.parent_path(), error);
    if (error) throw UserError("error: cannot make '" + file.parent_path().string() + "': " + error.message());
}

void write_whole(const fs::path& path, std::string_view text) {
    AtomicFile file(path);
    file.write(text);
    file.commit();
}

void append_summary(const GateReport& report) {
    const std::string path = variable("GITHUB_STEP_SUMMARY");
    if (path.empty()) {
        log_warning("GITHUB_STEP_SUMMARY is not set: no job summary was written");
        return;
    }
    std::error_code error;
    const std::uintmax_t size = fs::exists(path, error) ? fs::file_size(path, error) : 0;
    const std::size_t left = !error && size < most_summary_bytes ? most_summary_bytes - static_cast<std::size_t>(size) : 0;
    const std::string text = gate_markdown(report, left);
    if (text.empty()) {
        log_warning("the job summary is full: nothing was added");
        return;
    }
    std::ofstream file(path, std::ios::app | std::ios::binary);
    file << text;
    file.close();
    if (!file) throw UserError("error: cannot append to GITHUB_STEP_SUMMARY, '" + path + "'");
}

}  // namespace

std::vector<Option> with_gate_options(std::vector<Option> options) {
    const std::vector<Option> gates{
        {"junit", "FILE.xml", "also write what held and what did not as JUnit XML"},
        {"github", "", "append a summary to $GITHUB_STEP_SUMMARY and print annotations (these also if GITHUB_ACTIONS=true)"},
        {"benchmark-json", "FILE.json",
         "figures for github-action-benchmark; FILE.smaller.json and FILE.bigger.json have those of either direction"}};
    const auto last = std::find_if(options.begin(), options.end(), [](const Option& o) { return o.name == "quiet"; });
    options.insert(last, gates.begin(), gates.end());
    return options;
}

GateOutput::GateOutput(const Arguments& given)
    : junit_(given.text("junit")),
      benchmark_(given.text("benchmark-json")),
      github_(given.has("github")),
      annotate_(github_ || variable("GITHUB_ACTIONS") == "true") {
    if (junit_) make_folder_of(*junit_);
    if (benchmark_) make_folder_of(*benchmark_);
}

void GateOutput::write(const GateReport& report, std::span<const BenchmarkFigure> figures) const {
    if (junit_) write_whole(*junit_, junit_xml(report));
    if (benchmark_) {
        write_whole(*benchmark_, benchmark_json(figures));
        for (const bool smaller : {true, false}) {
            std::vector<BenchmarkFigure> part;
            std::copy_if(figures.begin(), figures.end(), std::back_inserter(part),
                         [&](const BenchmarkFigure& f) { return f.smaller_is_better == smaller; });
            fs::path path = *benchmark_;
            path.replace_extension(smaller ? ".smaller.json" : ".bigger.json");
            write_whole(path, benchmark_json(part));
        }
    }
    if (annotate_) std::fputs(github_annotations(report).c_str(), stderr);
    if (github_) append_summary(report);
}

BenchmarkFigure benchmark_figure(const std::string& point, const Column& column, std::span<const double> values) {
    const ReplicationMean mean = replication_mean(values);
    BenchmarkFigure f;
    f.name = point + ": " + std::string(column.name);
    f.value = mean.mean;
    // "197.6 ms" without its number.
    const std::string shown = text_with_unit(Cell{1.0}, column.name, column.unit);
    f.unit = shown.find(' ') == std::string::npos ? (column.unit == Unit::share ? "share" : "count")
                                                  : shown.substr(shown.find(' ') + 1);
    if (column.unit == Unit::tokens) f.unit = "tokens";
    if (mean.half_width) f.range = "± " + shortest(*mean.half_width);
    f.smaller_is_better = better(column) != Better::higher;
    f.extra = f.smaller_is_better ? "smaller is better" : "bigger is better";
    if (values.size() > 1) f.extra += ", mean of " + std::to_string(values.size()) + " seeds with its 95 % interval";
    return f;
}

std::vector<Assertion> parse_assertions(const Arguments& given) {
    std::vector<Assertion> out;
    for (const std::string& text : given.all("assert")) out.push_back(parse_assertion(text));
    return out;
}

void check_classes(std::span<const Assertion> assertions, const Prepared& p, std::span<const Summary> runs) {
    if (runs.empty() && !p.scenario.workload.trace.is_null()) return;
    std::vector<std::string> known;
    for (const config::ClassConfig& c : p.scenario.workload.classes) known.push_back(c.name);
    for (const Summary& run : runs) {
        for (const ClassSummary& c : run.classes) {
            if (std::find(known.begin(), known.end(), c.name) == known.end()) known.push_back(c.name);
        }
    }
    for (const Assertion& assertion : assertions) assertion.check_classes(known);
}

std::vector<BenchmarkFigure> benchmark_figures(const std::string& point, std::span<const Summary> runs) {
    std::vector<BenchmarkFigure> out;
    for (const std::string_view name : usual_metrics()) {
        const Column* const column = find_summary_column(name);
        if (column == nullptr || column->unit == Unit::text) continue;
        std::vector<double> values;
        for (const Summary& run : runs) {
            const Cell cell = column->get(run);
            if (const auto* whole = std::get_if<std::int64_t>(&cell)) values.push_back(static_cast<double>(*whole));
            if (const auto* number = std::get_if<double>(&cell)) values.push_back(*number);
        }
        if (!values.empty()) out.push_back(benchmark_figure(point, *column, values));
    }
    return out;
}

}  // namespace kvsim::app
