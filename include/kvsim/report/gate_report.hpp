#pragma once
// What a gate says, in the forms that CI systems read. No form holds the host's time.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvsim/report/text_table.hpp"

namespace kvsim {

struct GateCase {
    enum class Status : std::uint8_t { passed, failed, warned, skipped };
    std::string suite;  ///< the scenario or point
    std::string name;   ///< the assertion or metric
    Status status = Status::passed;
    std::string message;  ///< one line
};

struct GateReport {
    std::string title;
    std::vector<GateCase> cases;  ///< those of a suite follow each other
    TextTable table;              ///< for people, perhaps without rows; without a header the cases stand in its place
    std::string note;             ///< a line below it
    [[nodiscard]] std::int64_t count(GateCase::Status status) const;
};

/// testsuites / testsuite / testcase / failure as Jenkins, GitLab and GitHub actions read them; warned cases pass, with their
/// message in system-out. Well-formed XML 1.0 whatever the texts hold: characters that it cannot hold become '?'.
std::string junit_xml(const GateReport& report);

/// Cut at a line end to `max_bytes`, with a note that says so; empty when not even the note fits.
std::string gate_markdown(const GateReport& report, std::size_t max_bytes);

/// `::error title=...::...` for each failed case and `::warning` for each warned one, at most 10 of each (GitHub shows no more
/// of a step); the tenth then says how many there are.
std::string github_annotations(const GateReport& report);

/// One figure of a benchmark history.
struct BenchmarkFigure {
    std::string name;
    std::string unit;
    double value = 0;
    std::string range;  ///< "+- 1.5"; empty: none
    std::string extra;
    bool smaller_is_better = true;
};
/// [{"name", "unit", "value", "range", "extra"}], as github-action-benchmark's custom tools read it.
std::string benchmark_json(std::span<const BenchmarkFigure> figures);

}  // namespace kvsim
