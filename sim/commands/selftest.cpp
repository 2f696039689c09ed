// kvsim selftest: the cases whose right value is known, measured here and now.

#include "kvsim/app/selftest.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kvsim/app/command.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"

namespace kvsim::app {
namespace {

/// Six significant digits, whole numbers whole.
std::string figure(double x) {
    if (x == std::floor(x) && std::abs(x) < 1e12) return fmt::format("{:.0f}", x);
    return fmt::format("{:.6g}", x);
}

std::string difference(const selftest::Case& c, double measured) {
    if (measured == c.expected) return "0";
    if (c.expected == 0) return fmt::format("{:+.1e}", measured);
    return fmt::format("{:+.2f} %", (measured / c.expected - 1) * 100);
}

}  // namespace

int selftest_command(const std::vector<std::string>& args) {
    static constexpr std::array<std::string_view, 2> formats{"table", "json"};
    const Usage usage{
        "selftest",
        "kvsim selftest [options]",
        "Measures the cases whose right value is known: queues with formulas, figures of papers and engine logs,\n"
        "facts of published traces. PASS: within the case's tolerance and the 99.9 % confidence interval of its\n"
        "mean over independent runs; printed is the 95 % interval. Exit 1 if a case fails.",
        {{"format", "FORMAT", "table or json (table)"},
         {"only", "TEXT", "only cases whose name contains it"},
         {"traces", "DIR",
          "folder with conversation_trace.jsonl, synthetic_trace.jsonl,\n"
          "                              AzureLLMInferenceTrace_{conv,code}.csv"}},
        "",
        0,
        0};
    const std::optional<Arguments> given = parse(usage, args);
    if (!given) return exit_done;
    const bool json = given->choice("format", formats) == "json";
    const std::string only = given->text("only").value_or("");
    std::vector<std::string> missing;
    std::vector<selftest::Case> cases = selftest::known_answers(given->text("traces").value_or(""), missing);
    std::erase_if(cases, [&](const selftest::Case& c) { return c.name.find(only) == std::string::npos; });
    if (cases.empty()) throw UserError("error: no case's name contains '" + excerpt(only) + "'");

    std::size_t width = 4;
    for (const selftest::Case& c : cases) width = std::max(width, c.name.size());
    const auto line = [&](std::string_view name, std::string_view expected, std::string_view measured, std::string_view off,
                          std::string_view interval, std::string_view verdict, std::string_view seconds) {
        print(fmt::format("{:<{}} {:>11} {:>11} {:>9} {:>19} {:>5} {:>6}\n", name, width, expected, measured, off, interval,
                          verdict, seconds));
    };
    if (!json) line("case", "expected", "measured", "off", "95 % interval", "", "s");
    std::int64_t failed = 0;
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const selftest::Case& c : cases) {
        throw_if_stopped();
        const auto start = std::chrono::steady_clock::now();
        const selftest::Result r = selftest::evaluate(c);
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        failed += r.passed ? 0 : 1;
        const double low = r.measured.mean - r.measured.half_width_95;
        const double high = r.measured.mean + r.measured.half_width_95;
        if (json) {
            nlohmann::ordered_json row{{"case", c.name},
                                       {"expected", c.expected},
                                       {"measured", r.measured.mean},
                                       {"difference", r.measured.mean - c.expected},
                                       {"tolerance", c.tolerance},
                                       {"runs", c.runs}};
            row["ci95_low"] = c.runs > 1 ? nlohmann::ordered_json(low) : nlohmann::ordered_json();
            row["ci95_high"] = c.runs > 1 ? nlohmann::ordered_json(high) : nlohmann::ordered_json();
            row["result"] = r.passed ? "PASS" : "FAIL";
            row["seconds"] = seconds;
            rows.push_back(std::move(row));
        } else {
            line(c.name, figure(c.expected), figure(r.measured.mean), difference(c, r.measured.mean),
                 c.runs > 1 ? fmt::format("{} - {}", figure(low), figure(high)) : std::string("-"), r.passed ? "PASS" : "FAIL",
                 fmt::format("{:.2f}", seconds));
            flush_output();
        }
    }
    if (json) {
        print(nlohmann::ordered_json{{"cases", rows}, {"failed", failed}, {"not_run", missing}}.dump(2) + "\n");
    } else {
        print(fmt::format("{} of {} passed", cases.size() - static_cast<std::size_t>(failed), cases.size()));
        if (!missing.empty() && only.empty()) {
            print("; not run (--traces DIR):");
            for (const std::string& file : missing) print(" " + file);
        }
        print("\n");
    }
    return failed == 0 ? exit_done : exit_gate_failed;
}

}  // namespace kvsim::app
