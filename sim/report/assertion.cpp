#include "kvsim/report/assertion.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/config/diagnostics.hpp"
#include "kvsim/report/output_analysis.hpp"
#include "kvsim/report/replications.hpp"

namespace kvsim {
namespace {

using Op = Assertion::Op;
using Kind = Assertion::Step::Kind;

constexpr std::size_t longest_expression = 10'000;
constexpr int deepest = 100;
constexpr std::string_view operator_letters = "<>=!";

[[noreturn]] void fail_at(const Assertion& a, std::size_t at, const std::string& why) {
    throw UserError(config::located_error(a.option, 1, a.text, at + 1, why));
}

bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}
bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}
char lower(char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

class Parser {
public:
    explicit Parser(Assertion& a) : a_(a), text_(a.text) {}

    void parse() {
        skip();
        if (at_ == text_.size()) fail(0, "expected COLUMN OPERATOR VALUE, as in 'ttft_p99 <= 2s'");
        expression(0);
        if (at_ == text_.size()) return;
        if (text_[at_] == ')') fail(at_, "this ')' closes nothing");
        for (const auto& [wrong, right] : {std::pair{"&", "and"}, std::pair{"|", "or"}}) {
            if (text_.substr(at_).starts_with(wrong)) fail(at_, std::string("write '") + right + "' instead");
        }
        fail(at_, "expected 'and', 'or' or the end");
    }

private:
    [[noreturn]] void fail(std::size_t at, const std::string& why) const { fail_at(a_, at, why); }

    void skip() {
        while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
    }
    /// Whether the word stands at `at`, in any case.
    [[nodiscard]] bool word_at(std::size_t at, std::string_view word) const {
        if (at + word.size() > text_.size()) return false;
        for (std::size_t i = 0; i < word.size(); ++i) {
            if (lower(text_[at + i]) != word[i]) return false;
        }
        return at + word.size() == text_.size() || !is_word(text_[at + word.size()]);
    }
    [[nodiscard]] bool keyword_at(std::size_t at) const {
        return word_at(at, "and") || word_at(at, "or") || word_at(at, "not");
    }
    bool take(std::string_view word) {
        if (!word_at(at_, word)) return false;
        at_ += word.size();
        skip();
        return true;
    }

    void expression(int depth) {
        conjunction(depth);
        while (take("or")) {
            conjunction(depth);
            a_.program.push_back({Kind::either, 0});
        }
    }

    void conjunction(int depth) {
        negation(depth);
        while (take("and")) {
            negation(depth);
            a_.program.push_back({Kind::both, 0});
        }
    }

    void negation(int depth) {
        if (depth > deepest) fail(at_, "nested too deeply");
        if (take("not")) {
            negation(depth + 1);
            a_.program.push_back({Kind::negate, 0});
            return;
        }
        if (at_ < text_.size() && text_[at_] == '(') {
            const std::size_t open = at_++;
            skip();
            expression(depth + 1);
            if (at_ == text_.size() || text_[at_] != ')') {
                fail(at_ == text_.size() ? open : at_,
                     at_ == text_.size() ? "this '(' is never closed" : "expected 'and', 'or' or ')'");
            }
            ++at_;
            skip();
            return;
        }
        comparison();
    }

    void comparison() {
        Assertion::Comparison c;
        const std::size_t begin = at_;
        if (at_ == text_.size() || keyword_at(at_)) fail(begin, "expected COLUMN OPERATOR VALUE, as in 'ttft_p99 <= 2s'");
        if (operator_letters.find(text_[at_]) != std::string_view::npos) fail(begin, "the column is missing");
        const std::size_t name_at = class_prefix(c);
        while (at_ < text_.size() && is_word(text_[at_])) ++at_;
        const std::string_view name = text_.substr(name_at, at_ - name_at);
        if (name.empty()) fail(name_at, "expected COLUMN OPERATOR VALUE, as in 'ttft_p99 <= 2s'");
        if (name.front() >= '0' && name.front() <= '9')
            fail(name_at, "a comparison begins with its column: COLUMN OPERATOR VALUE, as in 'ttft_p99 <= 2s'");
        // Other tools' notations of a label.
        if (at_ < text_.size() && text_[at_] == '.')
            fail(name_at, "a class is written class(" + std::string(name) + ").COLUMN");
        find_column(c, name, name_at);
        skip();
        if (at_ < text_.size() && (text_[at_] == '{' || text_[at_] == '['))
            fail(at_, "a class is written class(NAME)." + std::string(name));
        const std::size_t op_at = at_;
        while (at_ < text_.size() && operator_letters.find(text_[at_]) != std::string_view::npos) ++at_;
        const std::string_view op = text_.substr(op_at, at_ - op_at);
        if (op.empty()) fail(op_at, "expected COLUMN OPERATOR VALUE, as in 'ttft_p99 <= 2s'");
        find_operator(c, op, op_at);
        skip();
        const std::size_t value_at = at_;
        if (at_ == text_.size() || keyword_at(at_) || text_[at_] == ')') fail(value_at, "the value is missing");
        if (c.unit() == Unit::text) {
            if (c.op != Op::equal && c.op != Op::not_equal)
                fail(op_at, std::string(c.column_name()) + " is a text: only == and != apply");
            std::string value = text_value();
            if (c.column_name() == "verdict" && value != "stable" && value != "saturated" && value != "overloaded")
                fail(value_at, "a verdict is one of: stable, saturated, overloaded");
            c.limit = std::move(value);
        } else {
            const std::string_view value = number_value();
            try {
                c.limit = parse_quantity(value, c.column_name(), c.unit(), name == c.column_name());
            } catch (const UserError& e) { fail(value_at, e.what()); }
        }
        skip();
        a_.program.push_back({Kind::compare, a_.comparisons.size()});
        a_.comparisons.push_back(std::move(c));
    }

    /// class(NAME). or class("NAME"). ; returns where the column begins.
    std::size_t class_prefix(Assertion::Comparison& c) {
        const std::size_t begin = at_;
        if (!word_at(at_, "class")) return begin;
        std::size_t at = at_ + 5;
        while (at < text_.size() && is_blank(text_[at])) ++at;
        if (at == text_.size() || text_[at] != '(') fail(begin, "a class is written class(NAME).COLUMN");
        at_ = at + 1;
        skip();
        c.class_at = at_;
        const bool quoted = at_ < text_.size() && (text_[at_] == '"' || text_[at_] == '\'');
        if (quoted) {
            c.class_name = quoted_text();
            skip();
        } else {
            const std::size_t close = text_.find(')', at_);
            if (close == std::string_view::npos) fail(at, "this '(' is never closed");
            c.class_name = trimmed(text_.substr(at_, close - at_));
            if (c.class_name.empty()) fail(at_, "the class is missing; requests without one are class(\"\")");
            at_ = close;
        }
        if (at_ == text_.size() || text_[at_] != ')') fail(at_, "expected ')' after the class");
        ++at_;
        skip();
        if (at_ == text_.size() || text_[at_] != '.') fail(at_, "expected '.COLUMN' after the class");
        ++at_;
        skip();
        c.class_column = &class_columns().front();  // which one is said next
        return at_;
    }

    void find_column(Assertion::Comparison& c, std::string_view name, std::size_t at) const {
        const bool of_class = c.class_column != nullptr;
        if (of_class)
            c.class_column = find_class_column(name);
        else
            c.column = find_summary_column(name);
        if (c.column != nullptr || c.class_column != nullptr) return;
        if (of_class && find_summary_column(name) != nullptr) {
            const bool gaps = name.starts_with("itl");
            fail(at, std::string(name) + " is not kept by class" + (gaps ? "; tpot, or itl_mean, is" : ""));
        }
        const std::string near = of_class ? nearest_class_column(name) : nearest_summary_column(name);
        std::string why = of_class ? "there is no figure '" : "there is no summary column '";
        why += excerpt(name) + "'";
        if (of_class) why += " of a class";
        if (!near.empty()) why += "; did you mean '" + near + "'?";
        fail(at, why);
    }

    void find_operator(Assertion::Comparison& c, std::string_view op, std::size_t at) const {
        static constexpr std::array<std::pair<std::string_view, Op>, 6> operators{{{"<", Op::less},
                                                                                   {"<=", Op::less_equal},
                                                                                   {">", Op::greater},
                                                                                   {">=", Op::greater_equal},
                                                                                   {"==", Op::equal},
                                                                                   {"!=", Op::not_equal}}};
        for (const auto& [symbol, meaning] : operators) {
            if (symbol != op) continue;
            c.op = meaning;
            return;
        }
        fail(at, "unknown operator '" + std::string(op) + "' (one of: <, <=, >, >=, ==, !=)");
    }

    /// A number and perhaps its unit, which no keyword is.
    std::string_view number_value() {
        const std::size_t begin = at_;
        const auto word = [this] {
            while (at_ < text_.size() && !is_blank(text_[at_]) && text_[at_] != ')' && text_[at_] != '(' && text_[at_] != '&' &&
                   text_[at_] != '|' && operator_letters.find(text_[at_]) == std::string_view::npos)
                ++at_;
        };
        word();
        const std::size_t end = at_;
        skip();
        const bool more =
            at_ < text_.size() && !keyword_at(at_) && (is_word(text_[at_]) || text_[at_] == '/' || text_[at_] == '%');
        const char last = end > begin ? text_[end - 1] : ' ';
        // "200 ms", but not "200ms 5": a second word belongs to a number that has no unit yet.
        if (!more || ((last < '0' || last > '9') && last != '.')) {
            at_ = end;
            return text_.substr(begin, end - begin);
        }
        const std::size_t second = at_;
        word();
        if (find_summary_column(text_.substr(second, at_ - second)) != nullptr || word_at(second, "class"))
            fail(second, "expected 'and' or 'or' before this");
        return text_.substr(begin, at_ - begin);
    }

    /// In quotes; or as it stands, up to a keyword between blanks or a ')' that it does not open.
    std::string text_value() {
        if (text_[at_] == '"' || text_[at_] == '\'') return quoted_text();
        const std::size_t begin = at_;
        int open = 0;
        while (at_ < text_.size()) {
            if (is_blank(text_[at_]) && keyword_at(at_ + 1)) break;
            if (text_[at_] == '(') ++open;
            if (text_[at_] == ')' && open-- == 0) break;
            ++at_;
        }
        std::string_view value = text_.substr(begin, at_ - begin);
        while (!value.empty() && is_blank(value.back())) value.remove_suffix(1);
        return std::string(value);
    }

    std::string quoted_text() {
        const char quote = text_[at_];
        const std::size_t end = text_.find(quote, at_ + 1);
        if (end == std::string_view::npos) fail(at_, "this quote is never closed");
        std::string out(text_.substr(at_ + 1, end - at_ - 1));
        at_ = end + 1;
        return out;
    }

    Assertion& a_;
    std::string_view text_;
    std::size_t at_ = 0;
};

bool compare(Op op, double a, double b) {
    switch (op) {
        case Op::less:
            return a < b;
        case Op::less_equal:
            return a <= b;
        case Op::greater:
            return a > b;
        case Op::greater_equal:
            return a >= b;
        case Op::equal:
            return a == b;
        case Op::not_equal:
            return a != b;
    }
    KVSIM_CHECK(false, "operator out of range");
}

/// Neither, where the figure does not apply.
std::optional<bool> holds(const Assertion::Comparison& c, const Cell& cell) {
    if (const auto* text = std::get_if<std::string>(&cell))
        return (*text == std::get<std::string>(c.limit)) == (c.op == Op::equal);
    if (const auto* whole = std::get_if<std::int64_t>(&cell))
        return compare(c.op, static_cast<double>(*whole), std::get<double>(c.limit));
    if (const auto* number = std::get_if<double>(&cell)) return compare(c.op, *number, std::get<double>(c.limit));
    return std::nullopt;
}

/// Of three values: `decided` (false for and, true for or) settles it whatever the other says.
std::optional<bool> joined(std::optional<bool> a, std::optional<bool> b, bool decided) {
    if (a == decided || b == decided) return decided;
    return a && b ? std::optional(!decided) : std::nullopt;
}

const ClassSummary* find_class(const Summary& summary, std::string_view name) {
    const auto found =
        std::find_if(summary.classes.begin(), summary.classes.end(), [name](const ClassSummary& c) { return c.name == name; });
    return found == summary.classes.end() ? nullptr : &*found;
}

}  // namespace

std::string Assertion::Comparison::name() const {
    if (column != nullptr) return std::string(column->name);
    std::string out = "class(";
    out += class_name.empty() ? std::string("\"\"") : class_name;
    out += ").";
    return out + std::string(class_column->name);
}

Cell Assertion::Comparison::of(const Summary& summary) const {
    if (column != nullptr) return column->get(summary);
    const ClassSummary* const found = find_class(summary, class_name);
    return found != nullptr ? class_column->get(summary, *found) : Cell{};
}

bool Assertion::asks_classes() const {
    return std::any_of(comparisons.begin(), comparisons.end(), [](const Comparison& c) { return c.class_column != nullptr; });
}

void Assertion::check_classes(std::span<const std::string> known) const {
    const std::vector<std::string_view> names(known.begin(), known.end());
    for (const Comparison& c : comparisons) {
        if (c.class_column == nullptr || std::find(names.begin(), names.end(), c.class_name) != names.end()) continue;
        std::string why = "there is no class '" + excerpt(c.class_name) + "'";
        const std::string_view near = nearest(c.class_name, names);
        if (!near.empty()) {
            why += "; did you mean '" + excerpt(near) + "'?";
        } else if (names.empty()) {
            why += ": the requests have no classes";
        } else {
            why += " (one of: ";
            for (const std::string_view& name : names) why += (&name == names.data() ? "" : ", ") + excerpt(name);
            why += ")";
        }
        fail_at(*this, c.class_at, why);
    }
}

Assertion parse_assertion(std::string_view text, std::string_view option) {
    Assertion a;
    a.option = option;
    while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
    a.text = text;
    if (a.text.size() > longest_expression) throw UserError(a.option + ": error: longer than 10000 characters");
    Parser(a).parse();
    return a;
}

AssertionResult evaluate(const Assertion& assertion, const std::function<Cell(const Assertion::Comparison&)>& figure) {
    std::vector<std::optional<bool>> values;
    std::vector<std::string> names;
    std::string measured;
    const bool one = assertion.comparisons.size() == 1;
    AssertionResult result;
    std::vector<std::optional<bool>> stack;
    for (const Assertion::Comparison& c : assertion.comparisons) {
        const Cell cell = figure(c);
        values.push_back(holds(c, cell));
        const std::string shown = text_with_unit(cell, c.column_name(), c.unit());
        if (one) result.measured = shown;
        if (std::find(names.begin(), names.end(), c.name()) != names.end()) continue;
        names.push_back(c.name());
        measured += (measured.empty() ? "" : "; ") + c.name() + " is " + shown;
    }
    if (!one) result.measured = measured;
    for (const Assertion::Step& step : assertion.program) {
        if (step.kind == Kind::compare) {
            stack.push_back(values[step.index]);
            continue;
        }
        if (step.kind == Kind::negate) {
            if (stack.back()) stack.back() = !*stack.back();
            continue;
        }
        const std::optional<bool> right = stack.back();
        stack.pop_back();
        stack.back() = joined(stack.back(), right, step.kind == Kind::either);
    }
    KVSIM_CHECK(stack.size() == 1, "an expression has one value");
    result.passed = stack.back().value_or(false);
    result.message = assertion.text + ": " + (result.passed ? "pass" : "FAIL") + " (" + measured + ")";
    return result;
}

AssertionResult evaluate(const Assertion& assertion, const Summary& summary) {
    return evaluate(assertion, [&](const Assertion::Comparison& c) { return c.of(summary); });
}

AssertionResult evaluate(const Assertion& assertion, std::span<const Summary> runs) {
    const std::vector<ReplicatedColumn> means = replicated(runs);
    return evaluate(assertion, [&](const Assertion::Comparison& c) -> Cell {
        if (c.column != nullptr) return replicated_cell(means, *c.column);
        std::vector<double> values;
        for (const Summary& run : runs) {
            const Cell cell = c.of(run);
            if (const auto* whole = std::get_if<std::int64_t>(&cell)) values.push_back(static_cast<double>(*whole));
            if (const auto* number = std::get_if<double>(&cell)) values.push_back(*number);
        }
        return values.empty() ? Cell{} : Cell{replication_mean(values).mean};
    });
}

}  // namespace kvsim
