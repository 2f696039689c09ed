#include "kvsim/report/assertion.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <span>
#include <vector>

#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"

namespace kvsim {
namespace {

constexpr std::array<std::string_view, 4> suffixes{"_req_s", "_tok_s", "_ms", "_s"};

std::string_view without_suffix(std::string_view name) {
    for (const std::string_view suffix : suffixes) {
        if (name.size() > suffix.size() && name.ends_with(suffix)) return name.substr(0, name.size() - suffix.size());
    }
    return name;
}

std::string_view trim(std::string_view text) {
    const auto from = text.find_first_not_of(" \t");
    if (from == std::string_view::npos) return {};
    return text.substr(from, text.find_last_not_of(" \t") - from + 1);
}

[[noreturn]] void fail(std::string_view text, const std::string& why) {
    throw UserError("assertion '" + excerpt(text) + "': " + why);
}

struct Scale {
    std::string_view unit;
    double factor;  // multiply (divide, if `divides`) to get the column's unit
    bool divides = false;
};

constexpr std::array<Scale, 6> to_ms_scales{
    {{"ns", 1e6, true}, {"us", 1e3, true}, {"ms", 1}, {"s", 1e3}, {"min", 6e4}, {"h", 3.6e6}}};
constexpr std::array<Scale, 6> to_s_scales{
    {{"ns", 1e9, true}, {"us", 1e6, true}, {"ms", 1e3, true}, {"s", 1}, {"min", 60}, {"h", 3600}}};
constexpr std::array<Scale, 6> to_rate_scales{
    {{"", 1}, {"/s", 1}, {"/min", 60, true}, {"/h", 3600, true}, {"req/s", 1}, {"tok/s", 1}}};
constexpr std::array<Scale, 2> to_share_scales{{{"", 1}, {"%", 100, true}}};
constexpr std::array<Scale, 5> to_bytes_scales{{{"", 1}, {"B", 1}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}}};
constexpr std::array<Scale, 1> bare{{{"", 1}}};

std::span<const Scale> scales(Unit unit) {
    switch (unit) {
        case Unit::ms:
            return to_ms_scales;
        case Unit::seconds:
            return to_s_scales;
        case Unit::per_second:
            return to_rate_scales;
        case Unit::share:
            return to_share_scales;
        case Unit::bytes:
            return to_bytes_scales;
        case Unit::count:
        case Unit::tokens:
        case Unit::text:
            return bare;
    }
    KVSIM_CHECK(false, "unit out of range");
}

std::string unit_names(Unit unit) {
    std::string names;
    for (const Scale& scale : scales(unit)) {
        if (scale.unit.empty()) continue;
        names += names.empty() ? "" : ", ";
        names += scale.unit;
    }
    return names;
}

double parse_limit(std::string_view text, std::string_view value, const Column& column, bool named_with_unit) {
    double number = 0;
    const auto read = std::from_chars(value.data(), value.data() + value.size(), number);
    if (read.ec != std::errc{} || !std::isfinite(number)) fail(text, "'" + std::string(value) + "' is not a number");
    const std::string_view unit = trim(value.substr(static_cast<std::size_t>(read.ptr - value.data())));
    if (unit.empty() && named_with_unit && column.unit != Unit::share) return number;
    for (const Scale& scale : scales(column.unit)) {
        // req/s for a token rate (and the other way round) is a misunderstanding, not a unit.
        const bool other_rate =
            (unit == "req/s" && !column.name.ends_with("_req_s")) || (unit == "tok/s" && !column.name.ends_with("_tok_s"));
        if (column.unit == Unit::share && unit.empty() && number > 1 && column.name != "load")
            fail(text, std::string(column.name) + " is a share of 1: write 0.95 or 95%");
        if (scale.unit == unit && !other_rate) return scale.divides ? number / scale.factor : number * scale.factor;
    }
    const std::string known = unit_names(column.unit);
    if (unit.empty()) fail(text, std::string(column.name) + " needs a unit (" + known + ")");
    fail(text, "unit '" + std::string(unit) + "' does not fit " + std::string(column.name) +
                   (known.empty() ? ", which has none" : " (one of: " + known + ")"));
}

bool compare(Assertion::Op op, double a, double b) {
    switch (op) {
        case Assertion::Op::less:
            return a < b;
        case Assertion::Op::less_equal:
            return a <= b;
        case Assertion::Op::greater:
            return a > b;
        case Assertion::Op::greater_equal:
            return a >= b;
        case Assertion::Op::equal:
            return a == b;
        case Assertion::Op::not_equal:
            return a != b;
    }
    KVSIM_CHECK(false, "operator out of range");
}

const Column& find_column(std::string_view text, std::string_view name) {
    std::vector<std::string_view> known;
    for (const Column& column : summary_columns()) {
        if (name == column.name || name == without_suffix(column.name)) return column;
        known.push_back(column.name);
        if (without_suffix(column.name) != column.name) known.push_back(without_suffix(column.name));
    }
    const std::string_view near = nearest(name, known);
    fail(text, "there is no summary column '" + std::string(name) + "'" +
                   (near.empty() ? "" : "; did you mean '" + std::string(near) + "'?"));
}

std::string with_unit(const Cell& cell, const Column& column) {
    const std::string text = cell_text(cell, column.unit);
    if (text.empty()) return "not applicable";
    switch (column.unit) {
        case Unit::ms:
            return text + " ms";
        case Unit::seconds:
            return text + " s";
        case Unit::per_second:
            return text + (column.name.ends_with("_tok_s") ? " tok/s" : " req/s");
        default:
            return text;
    }
}

}  // namespace

Assertion parse_assertion(std::string_view text) {
    Assertion a;
    a.text = trim(text);
    const std::string_view whole = a.text;
    const auto at = whole.find_first_of("<>=!");
    if (at == std::string_view::npos) fail(whole, "expected COLUMN OPERATOR VALUE, as in 'ttft_p99 <= 2s'");
    const auto end = whole.find_first_not_of("<>=!", at);
    const std::string_view name = trim(whole.substr(0, at));
    const std::string_view op = whole.substr(at, end == std::string_view::npos ? end : end - at);
    const std::string_view value = end == std::string_view::npos ? std::string_view{} : trim(whole.substr(end));

    struct Named {
        std::string_view symbol;
        Assertion::Op op;
    };
    static constexpr std::array<Named, 6> operators{{{"<", Assertion::Op::less},
                                                     {"<=", Assertion::Op::less_equal},
                                                     {">", Assertion::Op::greater},
                                                     {">=", Assertion::Op::greater_equal},
                                                     {"==", Assertion::Op::equal},
                                                     {"!=", Assertion::Op::not_equal}}};
    bool known = false;
    for (const Named& named : operators) {
        if (named.symbol != op) continue;
        a.op = named.op;
        known = true;
    }
    if (!known) fail(whole, "unknown operator '" + std::string(op) + "' (one of: <, <=, >, >=, ==, !=)");
    if (name.empty()) fail(whole, "the column is missing");
    if (value.empty()) fail(whole, "the value is missing");
    a.column = &find_column(whole, name);
    if (a.column->unit == Unit::text) {
        if (a.op != Assertion::Op::equal && a.op != Assertion::Op::not_equal)
            fail(whole, std::string(a.column->name) + " is a text: only == and != apply");
        if (a.column->name == "verdict" && value != "stable" && value != "saturated" && value != "overloaded")
            fail(whole, "a verdict is one of: stable, saturated, overloaded");
        a.limit = std::string(value);
    } else {
        a.limit = parse_limit(whole, value, *a.column, name == a.column->name);
    }
    return a;
}

AssertionResult evaluate(const Assertion& assertion, const Summary& summary) {
    return evaluate(assertion, assertion.column->get(summary));
}

AssertionResult evaluate(const Assertion& assertion, const Cell& cell) {
    AssertionResult result;
    result.measured = with_unit(cell, *assertion.column);
    if (const auto* text = std::get_if<std::string>(&cell))
        result.passed = (*text == std::get<std::string>(assertion.limit)) == (assertion.op == Assertion::Op::equal);
    else if (const auto* whole = std::get_if<std::int64_t>(&cell))
        result.passed = compare(assertion.op, static_cast<double>(*whole), std::get<double>(assertion.limit));
    else if (const auto* number = std::get_if<double>(&cell))
        result.passed = compare(assertion.op, *number, std::get<double>(assertion.limit));
    result.message = assertion.text + ": " + (result.passed ? "pass" : "FAIL") + " (" + std::string(assertion.column->name) +
                     " is " + result.measured + ")";
    return result;
}

}  // namespace kvsim
