#pragma once
// Gates: `--assert 'ttft_p99 <= 2s and (preemptions == 0 or class(chat).e2e_p99 <= 20s)'`.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kvsim/report/summary.hpp"

namespace kvsim {

/// A figure of one class of requests, `class(NAME).FIGURE`. Rates are over the run's duration_s.
struct ClassColumn {
    std::string_view name;  ///< as summary.csv's columns are named
    Unit unit;
    Cell (*get)(const Summary&, const ClassSummary&);
};
std::span<const ClassColumn> class_columns();

/// An expression over the figures of a run, kept as a program for a stack of truth values.
///
///   expression  = conjunction {"or" conjunction}
///   conjunction = negation {"and" negation}
///   negation    = "not" negation | "(" expression ")" | FIGURE OP VALUE
///
/// FIGURE is a summary.csv column or class(NAME).COLUMN, with or without its unit suffix (_ms, _s, _req_s, _tok_s). OP is one
/// of < <= > >= == !=; texts know only == and !=. VALUE takes the figure's unit: ns us ms s min h for times (a bare number only
/// if the column is written with its suffix), /s /min /h or none for rates (also req/s, tok/s), 95% or 0.95 for shares. A text
/// may stand in quotes.
struct Assertion {
    enum class Op : std::uint8_t { less, less_equal, greater, greater_equal, equal, not_equal };

    struct Comparison {
        std::string class_name;          ///< of class_column
        std::size_t class_at = 0;        ///< where the class stands in the text
        const Column* column = nullptr;  ///< one of the two
        const ClassColumn* class_column = nullptr;
        Op op = Op::less;
        std::variant<double, std::string> limit;  ///< in the column's own unit

        [[nodiscard]] std::string name() const;  ///< "ttft_p99_ms", "class(chat).ttft_p99_ms"
        [[nodiscard]] std::string_view column_name() const { return column != nullptr ? column->name : class_column->name; }
        [[nodiscard]] Unit unit() const { return column != nullptr ? column->unit : class_column->unit; }
        [[nodiscard]] Cell of(const Summary& summary) const;  ///< monostate too where the run has no such class
    };
    /// compare: comparisons[index] on the stack; the others take their operands from it.
    struct Step {
        enum class Kind : std::uint8_t { compare, negate, both, either };
        Kind kind = Kind::compare;
        std::size_t index = 0;
    };

    std::string text;    ///< as the user wrote it
    std::string option;  ///< where: "--assert"
    std::vector<Comparison> comparisons;
    std::vector<Step> program;

    [[nodiscard]] bool asks_classes() const;
    /// Throws UserError with the place and the nearest name when the expression asks for a class that is not in `known`.
    void check_classes(std::span<const std::string> known) const;
};

/// Throws UserError for anything malformed, an unknown column (with the nearest name) or a unit that does not fit, with a caret
/// below the place.
Assertion parse_assertion(std::string_view text, std::string_view option = "--assert");

struct AssertionResult {
    bool passed = false;
    std::string measured;  ///< with units, as for reading; "not applicable" where a column is empty
    std::string message;   ///< "ttft_p99 <= 2s: FAIL (ttft_p99_ms is 2381.5 ms)"
};
/// A comparison with an empty column is neither true nor false, nor is what depends on it (`x or y` holds if one of them does);
/// what does not hold for certain fails.
AssertionResult evaluate(const Assertion& assertion, const Summary& summary);
/// The means over replications; for a text the runs' values, joined by " / " where they differ.
AssertionResult evaluate(const Assertion& assertion, std::span<const Summary> runs);
/// Figures from elsewhere: rows of a sweep.
AssertionResult evaluate(const Assertion& assertion, const std::function<Cell(const Assertion::Comparison&)>& figure);

/// "2s", "95%", "3" in `unit`, the unit of the column `name`. `bare`: a number without unit is in the column's own. Throws
/// UserError with the bare reason.
double parse_quantity(std::string_view text, std::string_view name, Unit unit, bool bare);
/// The column that `name` stands for, with or without its unit suffix; null if there is none.
const Column* find_summary_column(std::string_view name);
/// Of a known name, with or without suffix, the one most like `name`; empty when none is near.
std::string nearest_summary_column(std::string_view name);
const ClassColumn* find_class_column(std::string_view name);
std::string nearest_class_column(std::string_view name);
/// "197.6 ms"; "not applicable".
std::string text_with_unit(const Cell& cell, std::string_view column, Unit unit);

}  // namespace kvsim
