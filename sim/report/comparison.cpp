#include "kvsim/report/comparison.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/report/assertion.hpp"
#include "kvsim/report/output_analysis.hpp"

namespace kvsim {
namespace {

constexpr double level = 0.05;
constexpr double usual_relative = 0.05;
constexpr double usual_of_shares = 0.01;
constexpr double infinite = std::numeric_limits<double>::infinity();

constexpr std::array<std::string_view, 6> latency_heads{"ttft_", "tpot_", "itl_", "e2e_", "queue_", "client_queue_"};
constexpr std::array<std::string_view, 14> lower_is_better{"rejected",
                                                           "timed_out",
                                                           "preemptions",
                                                           "preempted_requests",
                                                           "recomputed_tokens",
                                                           "swapped_tokens",
                                                           "recompute_time_share",
                                                           "retries",
                                                           "wasted_tokens",
                                                           "wasted_output_tokens",
                                                           "queue_full",
                                                           "verdict",
                                                           "cancelled",
                                                           "failed"};
constexpr std::array<std::string_view, 10> higher_is_better{
    "completed",      "request_throughput_req_s", "output_throughput_tok_s", "total_token_throughput_tok_s",
    "goodput_req_s",  "slo_attainment",           "prefix_hit_rate",         "resume_hit_rate",
    "capacity_req_s", "served_rate_req_s"};

constexpr std::array<std::string_view, 16> usual{"request_throughput_req_s",
                                                 "output_throughput_tok_s",
                                                 "goodput_req_s",
                                                 "slo_attainment",
                                                 "ttft_mean_ms",
                                                 "ttft_p99_ms",
                                                 "tpot_mean_ms",
                                                 "tpot_p99_ms",
                                                 "itl_p99_ms",
                                                 "e2e_mean_ms",
                                                 "e2e_p99_ms",
                                                 "preemptions",
                                                 "completed",
                                                 "rejected",
                                                 "timed_out",
                                                 "verdict"};

constexpr std::array<std::string_view, 3> verdicts{"stable", "saturated", "overloaded"};

template <class Names>
bool contains(const Names& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

struct Test {
    double greater = 1, less = 1, either = 1;  ///< p of: the differences' true mean is not above 0, not below, is 0
    double half_width = 0;
};

std::optional<Test> paired_t(const PairedFigure& f) {
    const std::size_t n = f.base.size();
    if (n < 2) return std::nullopt;
    std::vector<double> differences(n);
    for (std::size_t i = 0; i < n; ++i) differences[i] = f.fresh[i] - f.base[i];
    const ReplicationMean mean = replication_mean(differences);
    Test test;
    test.half_width = *mean.half_width;
    const auto degrees = static_cast<std::int64_t>(n) - 1;
    const double error = test.half_width / student_t(level / 2, degrees);
    const double t = mean.mean / error;
    if (mean.mean == 0) return test;
    if (!std::isfinite(t)) {  // the same difference under every seed
        test.greater = mean.mean > 0 ? 0 : 1;
        test.less = 1 - test.greater;
        test.either = 0;
        return test;
    }
    test.greater = student_t_tail(t, degrees);
    test.less = student_t_tail(-t, degrees);
    test.either = std::min(1.0, 2 * std::min(test.greater, test.less));
    return test;
}

double mean_of(const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double number_of(std::string_view text, const Column& column, bool bare) {
    const double value = parse_quantity(text, column.name, column.unit, bare);
    if (value < 0) throw UserError("a tolerance is not negative");
    return value;
}

constexpr std::string_view class_head = "class(";

/// Of class(NAME).FIGURE the figure.
std::string_view plain_name(std::string_view name) {
    return name.starts_with(class_head) ? name.substr(name.rfind(").") + 2) : name;
}

double percent(std::string_view number) {
    static const Column any{"tolerance", Unit::count, nullptr};
    return number_of(trimmed(number), any, true) / 100;
}

}  // namespace

Better better(const Column& column) {
    const std::string_view name = plain_name(column.name);
    if (column.name.ends_with("_ci95")) return Better::neither;
    if (column.unit == Unit::ms &&
        std::any_of(latency_heads.begin(), latency_heads.end(), [&](std::string_view head) { return name.starts_with(head); }))
        return Better::lower;
    if (contains(lower_is_better, name)) return Better::lower;
    if (contains(higher_is_better, name)) return Better::higher;
    return Better::neither;
}

bool comparable(const Column& column) {
    if (column.name == "verdict") return true;
    if (column.unit == Unit::text || column.name.ends_with("_ci95")) return false;
    // Settings stand before `requests`.
    for (const Column& other : summary_columns()) {
        if (other.name == column.name) return other.name == "requests";
        if (other.name == "requests") return true;
    }
    return false;
}

std::span<const std::string_view> usual_metrics() {
    return usual;
}

std::optional<double> verdict_rank(std::string_view text) {
    const auto found = std::find(verdicts.begin(), verdicts.end(), text);
    if (found == verdicts.end()) return std::nullopt;
    return static_cast<double>(found - verdicts.begin());
}

std::vector<const Column*> columns_named(std::string_view pattern) {
    std::vector<const Column*> out;
    const std::string_view name = trimmed(pattern);
    if (name == "all" || name.ends_with('*')) {
        const std::string_view head = name == "all" ? std::string_view() : name.substr(0, name.size() - 1);
        for (const Column& column : summary_columns()) {
            if (comparable(column) && column.name.starts_with(head) && (name != "all" || better(column) != Better::neither))
                out.push_back(&column);
        }
        if (out.empty()) throw UserError("no figure begins with '" + excerpt(head) + "'");
        return out;
    }
    const Column* const column = find_summary_column(name);
    if (column == nullptr) {
        const std::string near = nearest_summary_column(name);
        throw UserError("there is no summary column '" + excerpt(name) + "'" +
                        (near.empty() ? std::string() : "; did you mean '" + near + "'?"));
    }
    if (!comparable(*column)) throw UserError(std::string(column->name) + " is no figure that can be compared");
    return {column};
}

std::optional<ClassMetric> class_metric(std::string_view pattern) {
    const std::string_view text = trimmed(pattern);
    if (!text.starts_with(class_head)) return std::nullopt;
    std::string_view rest = text.substr(class_head.size());
    ClassMetric out;
    const bool quoted = !rest.empty() && (rest.front() == '"' || rest.front() == '\'');
    const std::size_t end = quoted ? rest.find(rest.front(), 1) : rest.rfind(").");
    if (end == std::string_view::npos || (!quoted && trimmed(rest.substr(0, end)).empty()))
        throw UserError("a class is written class(NAME).FIGURE, not '" + excerpt(text) + "'");
    out.name = quoted ? rest.substr(1, end - 1) : trimmed(rest.substr(0, end));
    rest.remove_prefix(quoted ? end + 1 : end);
    if (!rest.starts_with(").")) throw UserError("a class is written class(NAME).FIGURE, not '" + excerpt(text) + "'");
    const std::string_view figure = trimmed(rest.substr(2));
    if (figure == "all" || figure.ends_with('*')) {
        const std::string_view head = figure == "all" ? std::string_view() : figure.substr(0, figure.size() - 1);
        for (const ClassColumn& column : class_columns()) {
            const Column plain{column.name, column.unit, nullptr};
            if (column.name.starts_with(head) && (figure != "all" || better(plain) != Better::neither))
                out.columns.push_back(&column);
        }
        if (out.columns.empty()) throw UserError("no figure of a class begins with '" + excerpt(head) + "'");
        return out;
    }
    const ClassColumn* const column = find_class_column(figure);
    if (column == nullptr) {
        const std::string near = nearest_class_column(figure);
        throw UserError("classes have no figure '" + excerpt(figure) + "'" +
                        (near.empty() ? std::string() : "; did you mean '" + near + "'?"));
    }
    out.columns.push_back(column);
    return out;
}

std::string class_figure(std::string_view name, const ClassColumn& column) {
    std::string out(class_head);
    out += name.empty() ? std::string_view("\"\"") : name;
    out += ").";
    return out.append(column.name);
}

double Tolerance::allowed(double base) const {
    return std::max(relative.value_or(0) * std::fabs(base), absolute.value_or(0));
}

Tolerance parse_tolerance(std::string_view text, const Column& column, bool bare) {
    if (column.unit == Unit::text) throw UserError(std::string(column.name) + " has no tolerance: any worse one counts");
    Tolerance out;
    while (true) {
        const std::size_t comma = text.find(',');
        const std::string_view part = trimmed(text.substr(0, comma));
        const bool points = part.ends_with("pp");
        if (part.empty())
            throw UserError("a tolerance is missing: 5%, or an amount in the figure's unit, or both joined by ','");
        if (points && column.unit != Unit::share) throw UserError("'pp', percentage points, are for shares");
        const bool relative = part.ends_with('%');
        std::optional<double>& place = relative ? out.relative : out.absolute;
        if (place) throw UserError("two " + std::string(relative ? "relative" : "absolute") + " tolerances");
        if (relative)
            place = percent(part.substr(0, part.size() - 1));
        else if (points)
            place = percent(part.substr(0, part.size() - 2));
        else
            place = part == "0" ? 0 : number_of(part, column, bare);
        if (comma == std::string_view::npos) return out;
        text.remove_prefix(comma + 1);
    }
}

Tolerance parse_default_tolerance(std::string_view text) {
    const std::string_view part = trimmed(text);
    if (part == "0") return {0.0, std::nullopt};
    if (!part.ends_with('%')) throw UserError("a tolerance for all figures is relative: 5%");
    return {percent(part.substr(0, part.size() - 1)), std::nullopt};
}

Tolerance ComparisonRules::of(const Column& column) const {
    if (column.name == "verdict") return {};
    if (const auto found = own.find(column.name); found != own.end()) return found->second;
    if (const std::string_view plain = plain_name(column.name); plain != column.name) {
        const std::string every = std::string(class_head).append("*).").append(plain);
        for (const std::string_view name : {std::string_view(every), plain}) {
            if (const auto found = own.find(name); found != own.end()) return found->second;
        }
    }
    if (common) return *common;
    if (column.unit == Unit::share && column.name != "load") return {std::nullopt, usual_of_shares};
    return {usual_relative, std::nullopt};
}

std::string_view name_of(Finding finding) {
    switch (finding) {
        case Finding::regressed:
            return "REGRESSED";
        case Finding::changed:
            return "CHANGED";
        case Finding::unclear:
            return "unclear";
        case Finding::improved:
            return "improved";
        case Finding::within:
            return "within";
    }
    KVSIM_CHECK(false, "finding out of range");
}

std::vector<double> corrected(std::span<const double> p, Correction correction) {
    std::vector<double> out(p.begin(), p.end());
    if (correction == Correction::none) return out;
    std::vector<std::size_t> order(p.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return p[a] < p[b]; });
    const auto count = static_cast<double>(p.size());
    if (correction == Correction::holm) {
        double bound = 0;
        for (std::size_t i = 0; i < order.size(); ++i) {
            bound = std::max(bound, std::min(1.0, (count - static_cast<double>(i)) * p[order[i]]));
            out[order[i]] = bound;
        }
    } else {
        double bound = 1;
        for (std::size_t i = order.size(); i-- > 0;) {
            bound = std::min(bound, count / static_cast<double>(i + 1) * p[order[i]]);
            out[order[i]] = bound;
        }
    }
    return out;
}

std::vector<ComparedFigure> compare(std::span<const PairedFigure> figures, const ComparisonRules& rules) {
    std::vector<ComparedFigure> out;
    // p-values of a change for the worse, and for the better, of the figures that have a test.
    std::vector<std::size_t> tested;
    std::vector<double> worse, good;
    for (const PairedFigure& f : figures) {
        KVSIM_CHECK(!f.base.empty() && f.base.size() == f.fresh.size(), "figures come in pairs");
        ComparedFigure& c = out.emplace_back();
        c.point = f.point;
        c.column = f.column;
        c.pairs = static_cast<std::int64_t>(f.base.size());
        c.base = mean_of(f.base);
        c.fresh = mean_of(f.fresh);
        c.allowed = rules.of(*f.column).allowed(c.base);
        const std::optional<Test> test = paired_t(f);
        if (!test) continue;
        c.half_width = test->half_width;
        tested.push_back(out.size() - 1);
        const Better direction = better(*f.column);
        const bool either = rules.two_sided || direction == Better::neither;
        worse.push_back(either ? test->either : direction == Better::lower ? test->greater : test->less);
        good.push_back(either ? test->either : direction == Better::lower ? test->less : test->greater);
    }
    worse = corrected(worse, rules.correction);
    good = corrected(good, rules.correction);
    std::vector<double> p_worse(out.size(), 0), p_good(out.size(), 0);
    for (std::size_t i = 0; i < tested.size(); ++i) {
        p_worse[tested[i]] = worse[i];
        p_good[tested[i]] = good[i];
    }
    std::vector<double> excess(out.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
        ComparedFigure& c = out[i];
        const double size = std::fabs(c.difference());
        const Better direction = better(*c.column);
        const bool for_better = direction == Better::lower    ? c.fresh < c.base
                                : direction == Better::higher ? c.fresh > c.base
                                                              : false;
        const double p = for_better ? p_good[i] : p_worse[i];
        if (c.pairs > 1) c.p = p;
        excess[i] = size == 0 ? 0 : c.allowed > 0 ? size / c.allowed : infinite;
        // Decimals in a file are the shortest that read back, but a limit computed from them has rounding of its own.
        if (size <= c.allowed * (1 + 1e-12)) continue;
        const bool fails = !for_better || rules.two_sided;
        if (p >= level && !(fails && rules.unclear_fails))
            c.finding = fails ? Finding::unclear : Finding::within;
        else if (direction == Better::neither || (for_better && fails))
            c.finding = Finding::changed;
        else
            c.finding = for_better ? Finding::improved : Finding::regressed;
    }
    const auto rank = [](Finding f) { return f == Finding::changed ? 0 : static_cast<int>(f); };
    const auto relative = [](const ComparedFigure& c) {
        return c.difference() == 0 ? 0 : c.base == 0 ? infinite : std::fabs(c.difference() / c.base);
    };
    std::vector<std::size_t> order(out.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        if (rank(out[a].finding) != rank(out[b].finding)) return rank(out[a].finding) < rank(out[b].finding);
        if (excess[a] != excess[b]) return excess[a] > excess[b];
        return relative(out[a]) > relative(out[b]);
    });
    std::vector<ComparedFigure> sorted;
    sorted.reserve(out.size());
    for (const std::size_t i : order) sorted.push_back(std::move(out[i]));
    return sorted;
}

}  // namespace kvsim
