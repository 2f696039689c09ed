#pragma once
// Where the result of a gate goes beside the terminal; the same options for every command that has one.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvsim/app/command.hpp"
#include "kvsim/app/prepare.hpp"
#include "kvsim/report/assertion.hpp"
#include "kvsim/report/gate_report.hpp"
#include "kvsim/report/summary.hpp"

namespace kvsim::app {

/// --junit, --github, --benchmark-json.
std::vector<Option> with_gate_options(std::vector<Option> options);

class GateOutput {
public:
    /// Tries the files' folders, so that a wrong name costs no simulation. Throws UserError.
    explicit GateOutput(const Arguments& given);

    /// Something is to be written.
    [[nodiscard]] bool wanted() const { return junit_ || github_ || annotate_ || benchmark_; }
    [[nodiscard]] bool wants_benchmark() const { return benchmark_.has_value(); }

    /// JUnit and benchmark files; with --github the Markdown is appended to the file $GITHUB_STEP_SUMMARY; annotations go to
    /// standard error, which GitHub's runner reads too, so that standard output stays what it is. Throws UserError.
    void write(const GateReport& report, std::span<const BenchmarkFigure> figures) const;

private:
    std::optional<std::string> junit_, benchmark_;
    bool github_ = false;
    bool annotate_ = false;  ///< --github, or GITHUB_ACTIONS=true
};

std::vector<Assertion> parse_assertions(const Arguments& given);
/// Whether the classes that are asked for can be there: the scenario's own and those of `runs`. Says nothing about a trace,
/// whose rows name them, before it has run. Throws UserError.
void check_classes(std::span<const Assertion> assertions, const Prepared& p, std::span<const Summary> runs = {});

/// The usual metrics of one point, each with the values of its runs; those that do not apply are left out.
std::vector<BenchmarkFigure> benchmark_figures(const std::string& point, std::span<const Summary> runs);
/// One of them. `values` is not empty.
BenchmarkFigure benchmark_figure(const std::string& point, const Column& column, std::span<const double> values);

}  // namespace kvsim::app
