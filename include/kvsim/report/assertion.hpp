#pragma once
// Gates: `--assert 'ttft_p99 <= 2s'`.

#include <string>
#include <string_view>
#include <variant>

#include "kvsim/report/summary.hpp"

namespace kvsim {

/// COLUMN OP VALUE. COLUMN is a summary.csv column, with or without its unit suffix (_ms, _s, _req_s, _tok_s). OP is one of
/// < <= > >= == !=; texts know only == and !=. VALUE takes the column's unit: ns us ms s min h for times (a bare number only if
/// the column is written with its suffix), /s /min /h or none for rates (also req/s, tok/s), 95% or 0.95 for shares.
struct Assertion {
    enum class Op { less, less_equal, greater, greater_equal, equal, not_equal };

    std::string text;  ///< as the user wrote it
    const Column* column = nullptr;
    Op op = Op::less;
    std::variant<double, std::string> limit;  ///< in the column's own unit
};

/// Throws UserError for anything malformed, an unknown column (with the nearest name) or a unit that does not fit.
Assertion parse_assertion(std::string_view text);

struct AssertionResult {
    bool passed = false;
    std::string measured;  ///< with its unit, as for reading; "not applicable" where the column is empty: then it fails
    std::string message;   ///< "ttft_p99 <= 2s: FAIL (ttft_p99_ms is 2381.5 ms)"
};
AssertionResult evaluate(const Assertion& assertion, const Summary& summary);
/// The same for the column's value from elsewhere: a mean over replications.
AssertionResult evaluate(const Assertion& assertion, const Cell& measured);

}  // namespace kvsim
