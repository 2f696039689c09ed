// kvsim compare BASE NEW: have results become worse?

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <deque>
#include <map>
#include <set>

#include "kvsim/app/command.hpp"
#include "kvsim/app/gate_output.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/app/result_set.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/config/diagnostics.hpp"
#include "kvsim/config/load.hpp"
#include "kvsim/report/assertion.hpp"
#include "kvsim/report/comparison.hpp"
#include "kvsim/report/text_table.hpp"
#include "kvsim/report/writers.hpp"

namespace kvsim::app {
namespace {

constexpr std::array<std::string_view, 3> formats{"table", "markdown", "csv"};
constexpr std::array<std::string_view, 3> corrections{"fdr", "holm", "none"};
constexpr std::size_t most_named = 5;

const Usage& usage() {
    static const Usage compare{
        "compare",
        "kvsim compare BASE NEW [options]",
        "Compares two results, point by point and seed by seed, and exits 1 where NEW is worse beyond its tolerance and, with\n"
        "several seeds, significantly so. BASE and NEW: sweep.csv, replications.csv, summary.csv, summary.json or their "
        "folders.",
        with_gate_options(
            {{"metrics", "M1,M2,...",
              "what is compared: columns, ttft_*, all, class(NAME).ttft_p99, class(*).ttft_* (a usual choice of 16)"},
             {"tolerance", "[METRIC=]T", "5%, 2ms, 1pp or both as 5%,2ms; without METRIC for all (5%; shares 1pp)", true},
             {"tolerances", "FILE.yaml", "the same as a map; --tolerance goes before it"},
             {"two-sided", "", "a change for the better beyond the tolerance fails too"},
             {"correction", "METHOD", "of the p-values for their number: fdr, holm or none (fdr)"},
             {"fail-unclear", "", "what is beyond its tolerance but not significant fails too"},
             {"allow-missing", "", "points, seeds and classes of BASE that NEW lacks are no error"},
             {"strict", "", "other versions of kvsim or of the scenario are errors, not warnings"},
             {"all", "", "also print what is within its tolerance"},
             {"format", "FORMAT", "what is printed: table, markdown or csv (table)"},
             {"quiet", "", "print nothing but errors and what failed"}}),
        "a result",
        2,
        2};
    return compare;
}

// ---- rules

/// A class that a tolerance names, to be looked for once the results are read.
struct NamedClass {
    std::string name;
    std::string option;  ///< empty: it stands in a file, at `mark`
    config::Mark mark;
};

/// Returns the class it names, if any.
std::optional<std::string> set_tolerance(ComparisonRules& rules, std::string_view metric, std::string_view text) {
    const std::string_view name = trimmed(metric);
    if (name.empty() || name == "default") {
        rules.common = parse_default_tolerance(text);
        return std::nullopt;
    }
    if (const std::optional<ClassMetric> of_class = class_metric(name)) {
        for (const ClassColumn* column : of_class->columns) {
            const Column plain{column->name, column->unit, nullptr};
            const bool bare = column->unit == Unit::count || column->unit == Unit::tokens || name.ends_with(column->name);
            rules.own[class_figure(of_class->name, *column)] = parse_tolerance(text, plain, bare);
        }
        return of_class->every() ? std::nullopt : std::optional(of_class->name);
    }
    for (const Column* column : columns_named(name)) {
        const bool bare = column->name == name || column->unit == Unit::count || column->unit == Unit::tokens;
        rules.own[std::string(column->name)] = parse_tolerance(text, *column, bare);
    }
    return std::nullopt;
}

void read_tolerances(const std::string& path, ComparisonRules& rules, std::vector<NamedClass>& classes) {
    config::Diagnostics diagnostics;
    const config::Value root = config::load_yaml(path, diagnostics);
    if (diagnostics.ok() && !root.is_map()) diagnostics.error(root.mark, "must be a map: ttft_p99: 5%");
    for (const config::Member& member : root.map) {
        std::string text;
        if (member.value.is_scalar()) text = member.value.scalar;
        for (const config::Value& part : member.value.list) {
            if (!part.is_scalar()) text.clear();
            text += (text.empty() ? "" : ",") + part.scalar;
        }
        if (text.empty()) {
            diagnostics.error(member.value.mark, "must be a tolerance as 5% or 2ms, or a list of both");
            continue;
        }
        try {
            if (auto name = set_tolerance(rules, member.key, text)) classes.push_back({std::move(*name), "", member.key_mark});
        } catch (const UserError& e) { diagnostics.error(member.key_mark, e.what()); }
    }
    diagnostics.throw_if_errors();
}

ComparisonRules rules_of(const Arguments& given, std::vector<NamedClass>& classes) {
    ComparisonRules rules;
    if (const auto path = given.text("tolerances")) read_tolerances(*path, rules, classes);
    for (const std::string& text : given.all("tolerance")) {
        const std::size_t equals = text.rfind('=');  // a class's name may have one
        try {
            const bool common = equals == std::string::npos;
            auto name = set_tolerance(rules, common ? std::string_view() : std::string_view(text).substr(0, equals),
                                      common ? std::string_view(text) : std::string_view(text).substr(equals + 1));
            if (name) classes.push_back({std::move(*name), "--tolerance " + excerpt(text), {}});
        } catch (const UserError& e) { throw UserError("error: --tolerance " + excerpt(text) + ": " + e.what()); }
    }
    rules.two_sided = given.has("two-sided");
    rules.unclear_fails = given.has("fail-unclear");
    const std::string correction = given.choice("correction", corrections);
    rules.correction = correction == "fdr" ? Correction::fdr : correction == "holm" ? Correction::holm : Correction::none;
    return rules;
}

/// What is compared, in the order named.
struct Metrics {
    std::vector<const Column*> columns;
    std::vector<ClassMetric> classes;
};

/// At commas outside parentheses and quotes.
std::vector<std::string_view> split_metrics(std::string_view text) {
    std::vector<std::string_view> out;
    int depth = 0;
    char quote = 0;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (quote != 0) {
            if (c == quote) quote = 0;
        } else if (depth > 0 && (c == '"' || c == '\'')) {
            quote = c;
        } else if (c == '(' || c == ')') {
            depth += c == '(' ? 1 : -1;
        } else if (c == ',' && depth <= 0) {
            out.push_back(text.substr(begin, i - begin));
            begin = i + 1;
        }
    }
    out.push_back(text.substr(begin));
    return out;
}

Metrics metrics_of(const Arguments& given) {
    Metrics out;
    const auto add = [&](std::string_view name) {
        if (std::optional<ClassMetric> metric = class_metric(name)) {
            out.classes.push_back(std::move(*metric));
            return;
        }
        for (const Column* column : columns_named(name)) {
            if (std::find(out.columns.begin(), out.columns.end(), column) == out.columns.end()) out.columns.push_back(column);
        }
    };
    const std::optional<std::string> named = given.text("metrics");
    if (!named) {
        for (const std::string_view name : usual_metrics()) add(name);
        return out;
    }
    try {
        for (const std::string_view name : split_metrics(*named)) add(name);
    } catch (const UserError& e) { throw UserError("error: --metrics: " + std::string(e.what())); }
    return out;
}

/// A figure of a class, under a name of its own.
struct ClassFigure {
    std::string of_class;
    std::string name;
    Column column;  ///< refers to `name`
};

std::set<std::string> classes_of(const ResultSet& set) {
    std::set<std::string> out;
    for (const ResultRow& row : set.rows) {
        for (const auto& [name, figures] : row.classes) out.insert(name);
    }
    return out;
}

std::string no_classes(const ResultSet& set) {
    return set.name + " has no figures by class (no classes.csv beside it)";
}

std::string no_class(const ResultSet& set, const std::string& name, const std::set<std::string>& known) {
    const std::vector<std::string_view> names(known.begin(), known.end());
    std::string out = set.name + " has no class '" + excerpt(name) + "'";
    const std::string_view near = nearest(name, names);
    if (!near.empty()) return out + "; did you mean '" + excerpt(near) + "'?";
    out += " (one of: ";
    for (const std::string_view& one : names) out += (&one == names.data() ? "" : ", ") + excerpt(one);
    return out + ")";
}

/// A tolerance for a class that neither has would never be used.
void check_tolerances(const std::vector<NamedClass>& classes, const ResultSet& base, const ResultSet& fresh) {
    std::set<std::string> known = classes_of(base);
    known.merge(classes_of(fresh));
    config::Diagnostics diagnostics;
    for (const NamedClass& named : classes) {
        if (known.contains(named.name)) continue;
        const std::string why = known.empty() ? no_classes(base) : no_class(base, named.name, known);
        if (!named.option.empty()) throw UserError("error: " + named.option + ": " + why);
        diagnostics.error(named.mark, why);
    }
    diagnostics.throw_if_errors();
}

/// The classes asked for that BASE has. Throws UserError for one that it has not.
std::deque<ClassFigure> class_figures(const std::vector<ClassMetric>& metrics, const ResultSet& base) {
    const std::set<std::string> known = classes_of(base);
    std::deque<ClassFigure> out;
    std::set<std::string> seen;
    for (const ClassMetric& metric : metrics) {
        if (!metric.every() && !known.contains(metric.name))
            throw UserError("error: --metrics: " + no_class(base, metric.name, known));
        for (const std::string& name : known) {
            if (!metric.every() && name != metric.name) continue;
            for (const ClassColumn* column : metric.columns) {
                std::string figure = class_figure(name, *column);
                if (!seen.insert(figure).second) continue;
                ClassFigure& added = out.emplace_back(ClassFigure{name, std::move(figure), {}});
                added.column = {added.name, column->unit, nullptr};
            }
        }
    }
    return out;
}

// ---- pairs

struct Pair {
    const ResultRow* base = nullptr;
    const ResultRow* fresh = nullptr;
};

struct Pairs {
    std::map<std::string, std::vector<Pair>> points;  ///< by name, seeds in BASE's order; both ran
    std::vector<std::string> order;                   ///< as in BASE
    std::vector<GateCase> broken;                     ///< ran in BASE, failed in NEW
    std::vector<std::string> notes;
    bool several_seeds = false;
};

/// At most a few of them.
std::string some(const std::vector<std::string>& names) {
    std::string out;
    for (std::size_t i = 0; i < names.size() && i < most_named; ++i) out += (i > 0 ? "; " : "") + names[i];
    if (names.size() > most_named) out += "; and " + std::to_string(names.size() - most_named) + " more";
    return out;
}

std::string named(const ResultRow& row) {
    return row.point() + (row.seed ? " seed " + std::to_string(*row.seed) : "");
}

void check_keys(const ResultSet& base, const ResultSet& fresh) {
    const auto keys = [](const ResultSet& set) {
        std::string out;
        for (const auto& [key, value] : set.rows.front().varied) out += (out.empty() ? "" : ", ") + key;
        return out.empty() ? std::string("nothing") : out;
    };
    if (keys(base) == keys(fresh)) return;
    throw UserError("error: the points cannot be paired: " + base.name + " varies " + keys(base) + ", " + fresh.name + " " +
                    keys(fresh));
}

Pairs paired(const ResultSet& base, const ResultSet& fresh, const Arguments& given) {
    check_keys(base, fresh);
    const bool strict = given.has("strict");
    Pairs out;
    const auto differ = [&](const std::string& what) {
        if (strict) throw UserError("error: --strict: " + what);
        out.notes.push_back(what);
    };
    if (base.version != fresh.version && !base.version.empty() && !fresh.version.empty())
        differ("BASE is from kvsim " + excerpt(base.version) + ", NEW from " + excerpt(fresh.version));
    for (const ResultSet* set : {&base, &fresh}) {
        if (set->classes_version.empty() || set->version.empty() || set->classes_version == set->version) continue;
        differ("the figures by class of " + set->name + " are from kvsim " + excerpt(set->classes_version) +
               ", its others from " + excerpt(set->version));
    }

    // One scenario on either side is the same one under another name.
    const auto only_scenario = [](const ResultSet& set) {
        const std::string& first = set.rows.front().scenario;
        const bool alike = std::all_of(set.rows.begin(), set.rows.end(),
                                       [&](const ResultRow& row) { return row.scenario == first || row.scenario.empty(); });
        return alike && set.rows.front().varied.empty() ? first : std::string();
    };
    const std::string base_name = only_scenario(base);
    const std::string fresh_name = only_scenario(fresh);
    const bool renamed = !base_name.empty() && !fresh_name.empty() && base_name != fresh_name;
    if (renamed) differ("different scenarios: " + excerpt(base_name) + " and " + excerpt(fresh_name));

    // A point that failed may not know its scenario's name.
    using Key = std::pair<std::string, std::int64_t>;
    const auto key = [](const ResultRow& row, bool with_name) {
        std::string name;
        if (with_name) name += row.scenario;
        for (const auto& [k, v] : row.varied) name += '\n' + k + '=' + v;
        return Key(name, row.seed.value_or(-1));
    };
    std::map<Key, const ResultRow*> by_name, nameless;
    for (const ResultRow& row : fresh.rows) {
        by_name[key(row, !renamed)] = &row;
        if (row.scenario.empty()) nameless[key(row, false)] = &row;
    }
    std::map<std::string, std::vector<const ResultRow*>> fresh_points;
    std::set<std::string> base_points;
    for (const ResultRow& row : fresh.rows) fresh_points[key(row, !renamed).first].push_back(&row);

    std::vector<std::string> missing, both_failed, repaired, other_seeds;
    std::set<const ResultRow*> used;
    std::map<std::string, std::int64_t> common;  // seeds by point
    std::int64_t changed = 0;
    for (const ResultRow& row : base.rows) {
        const Key wanted = key(row, !renamed);
        base_points.insert(wanted.first);
        auto at = by_name.find(wanted);
        bool found = at != by_name.end();
        if (!found) {
            at = nameless.find(key(row, false));
            found = at != nameless.end();
        }
        if (!found) {
            (fresh_points.contains(wanted.first) ? other_seeds : missing).push_back(named(row));
            continue;
        }
        const ResultRow& other = *at->second;
        used.insert(&other);
        if (!row.error.empty() || !other.error.empty()) {
            if (!row.error.empty() && !other.error.empty()) both_failed.push_back(named(row));
            if (!row.error.empty() && other.error.empty()) repaired.push_back(named(row));
            if (row.error.empty())
                out.broken.push_back(
                    {row.point(), "run", GateCase::Status::failed,
                     (row.seed ? "seed " + std::to_string(*row.seed) + " failed: " : "failed: ") + other.error});
            continue;
        }
        const std::string point = row.point();
        if (!out.points.contains(point)) out.order.push_back(point);
        out.points[point].push_back({&row, &other});
        ++common[wanted.first];
        if (row.hash != other.hash && !row.hash.empty() && !other.hash.empty()) ++changed;
    }
    for (const auto& [point, pairs] : out.points) out.several_seeds = out.several_seeds || pairs.size() > 1;
    for (const std::string& point : base_points) {
        if (fresh_points.contains(point) && !common.contains(point)) {
            const bool ran = std::any_of(fresh_points[point].begin(), fresh_points[point].end(),
                                         [&](const ResultRow* row) { return row->error.empty() && !used.contains(row); });
            if (ran)
                throw UserError("error: no seed of " + named(*fresh_points[point].front()) +
                                " is in both: run NEW under BASE's seeds, so that both see the same requests");
        }
    }
    // A point with fewer seeds, too: its mean would be of other requests than the baseline's.
    missing.insert(missing.end(), other_seeds.begin(), other_seeds.end());
    if (!missing.empty()) {
        const std::string what =
            std::to_string(missing.size()) + " of the baseline's runs are missing in " + fresh.name + ": " + some(missing);
        if (!given.has("allow-missing")) throw UserError("error: " + what + " (--allow-missing leaves them out)");
        out.notes.push_back(what);
    }
    std::vector<std::string> extra;
    for (const ResultRow& row : fresh.rows) {
        if (!used.contains(&row)) extra.push_back(named(row));
    }
    if (!extra.empty()) out.notes.push_back("only in NEW, not compared: " + some(extra));
    if (!both_failed.empty()) out.notes.push_back("failed in both, not compared: " + some(both_failed));
    if (!repaired.empty()) out.notes.push_back("failed in BASE only, not compared: " + some(repaired));
    if (changed > 0)
        differ("the scenario or its settings differ (scenario_hash) in " + std::to_string(changed) + " of the pairs");
    if (out.points.empty() && out.broken.empty()) throw UserError("error: the two results have no point in common");
    return out;
}

/// Rows whose figures of a class are left out, as NEW lacks runs of it.
using LeftOut = std::set<std::pair<const ResultRow*, std::string_view>>;

/// Classes of BASE that NEW lacks in both's runs, of a mean over seeds also single seeds. Throws UserError unless they may be
/// missing.
LeftOut lacking(const Pairs& pairs, const std::deque<ClassFigure>& classes, const ResultSet& fresh, bool allowed,
                std::vector<std::string>& notes) {
    LeftOut out;
    std::set<std::string_view> names;
    for (const ClassFigure& figure : classes) names.insert(figure.of_class);
    std::vector<std::string> missing;
    for (const std::string& point : pairs.order) {
        for (const Pair& pair : pairs.points.at(point)) {
            for (const std::string_view name : names) {
                const auto base = pair.base->class_seeds.find(name);
                if (base == pair.base->class_seeds.end()) continue;
                const auto other = pair.fresh->class_seeds.find(name);
                const bool none = other == pair.fresh->class_seeds.end();
                std::string seeds;
                for (const std::int64_t seed : base->second) {
                    if (none || !other->second.contains(seed))
                        seeds += (seeds.empty() ? " seed " : ", ") + std::to_string(seed);
                }
                if (seeds.empty()) continue;
                missing.push_back(pair.base->point() + seeds + " class(" + excerpt(name) + ")");
                out.insert({pair.base, name});
                out.insert({pair.fresh, name});
            }
        }
    }
    if (missing.empty()) return out;
    const std::string what = "figures by class of BASE are missing in " + fresh.name + ": " + some(missing);
    if (!allowed) throw UserError("error: " + what + " (--allow-missing leaves them out)");
    notes.push_back(what);
    return out;
}

struct Figures {
    std::vector<PairedFigure> pairs;
    std::vector<GateCase> lost;     ///< had a value in BASE, has none in NEW
    std::vector<std::string> came;  ///< have a value in NEW and none in BASE
};

/// The figures of one column at one point. `of`: a row's, if it has one.
template <class Of>
void add_figure(Figures& out, const std::string& point, const Column& column, const std::vector<Pair>& pairs, Of of) {
    PairedFigure figure;
    figure.point = point;
    figure.column = &column;
    std::int64_t lost = 0;
    bool came = false;
    for (const Pair& pair : pairs) {
        const std::optional<double> base = of(*pair.base);
        const std::optional<double> fresh = of(*pair.fresh);
        if (base && !fresh) ++lost;
        came = came || (!base && fresh);
        if (!base || !fresh) continue;
        figure.base.push_back(*base);
        figure.fresh.push_back(*fresh);
    }
    if (came) out.came.push_back(point + " " + std::string(column.name));
    // A hit rate of resumes goes when there are no resumes left: that is no loss.
    if (lost > 0 && column.name != "resume_hit_rate") {
        out.lost.push_back({point, std::string(column.name), GateCase::Status::failed, "has a value in BASE and none in NEW"});
    } else if (!figure.base.empty()) {
        out.pairs.push_back(std::move(figure));
    }
}

Figures figures_of(const Pairs& pairs, const std::vector<const Column*>& columns, const std::deque<ClassFigure>& classes,
                   const LeftOut& left_out) {
    Figures out;
    const auto value = [](const std::map<std::string_view, double>& figures, std::string_view column) {
        const auto at = figures.find(column);
        return at == figures.end() ? std::nullopt : std::optional(at->second);
    };
    for (const std::string& point : pairs.order) {
        const std::vector<Pair>& rows = pairs.points.at(point);
        for (const Column* column : columns)
            add_figure(out, point, *column, rows, [&](const ResultRow& row) { return value(row.figures, column->name); });
        for (const ClassFigure& figure : classes) {
            const std::string_view column = std::string_view(figure.name).substr(figure.name.rfind(").") + 2);
            add_figure(out, point, figure.column, rows, [&](const ResultRow& row) -> std::optional<double> {
                const auto of_class = row.classes.find(figure.of_class);
                if (left_out.contains({&row, figure.of_class})) return std::nullopt;
                return of_class == row.classes.end() ? std::nullopt : value(of_class->second, column);
            });
        }
    }
    return out;
}

// ---- what is printed

std::string shown(const ComparedFigure& c, double value) {
    if (c.column->name == "verdict" && value == std::floor(value)) {
        for (const char* name : {"stable", "saturated", "overloaded"}) {
            if (verdict_rank(name) == value) return name;
        }
    }
    return fmt::format("{:.6g}", value);
}

std::string change(const ComparedFigure& c) {
    if (c.difference() == 0) return "0";
    if (c.base == 0 || c.column->name == "verdict") return fmt::format("{:+.6g}", c.difference());
    return fmt::format("{:+.2f} %", c.difference() / std::fabs(c.base) * 100);
}

std::string allowed(const ComparedFigure& c) {
    if (c.allowed == 0) return "0";
    if (c.base == 0) return fmt::format("{:.6g}", c.allowed);
    return fmt::format("{:.2f} %", c.allowed / std::fabs(c.base) * 100);
}

std::string p_text(const ComparedFigure& c) {
    if (!c.p) return "";
    return *c.p < 0.0001 ? std::string("<0.0001") : fmt::format("{:.4f}", *c.p);
}

enum class Rows : std::uint8_t { failed, remarkable, all };

TextTable table_of(const std::vector<ComparedFigure>& compared, const std::vector<GateCase>& broken, bool seeds, Rows rows) {
    TextTable table;
    table.header = {"result", "point", "figure", "base", "new", "change", "allowed"};
    if (seeds) {
        table.header.emplace_back("p");
        table.header.emplace_back("seeds");
    }
    for (const GateCase& c : broken) {
        table.rows.push_back({"FAILED", excerpt(c.suite, 200), c.name, "", excerpt(c.message, 120), "", ""});
        table.rows.back().resize(table.header.size());
    }
    for (const ComparedFigure& c : compared) {
        if ((c.finding == Finding::within && rows != Rows::all) || (!c.failed() && rows == Rows::failed)) continue;
        std::vector<std::string> row{std::string(name_of(c.finding)),
                                     excerpt(c.point, 200),
                                     std::string(c.column->name),
                                     shown(c, c.base),
                                     shown(c, c.fresh),
                                     change(c),
                                     allowed(c)};
        if (seeds) {
            row.push_back(p_text(c));
            row.push_back(std::to_string(c.pairs));
        }
        table.rows.push_back(std::move(row));
    }
    return table;
}

std::string csv_of(const std::vector<ComparedFigure>& compared, const std::vector<GateCase>& broken) {
    std::string out = "result,point,figure,base,new,difference,allowed,seeds,p,difference_ci95,message\n";
    const auto line = [&out](std::initializer_list<std::string> cells) {
        bool first = true;
        for (const std::string& cell : cells) {
            if (!first) out += ',';
            first = false;
            append_csv_field(out, cell);
        }
        out += '\n';
    };
    const auto text = [](const std::optional<double>& value) { return value ? shortest(*value) : std::string(); };
    for (const GateCase& c : broken) line({"FAILED", c.suite, c.name, "", "", "", "", "", "", "", c.message});
    for (const ComparedFigure& c : compared) {
        line({std::string(name_of(c.finding)), c.point, std::string(c.column->name), shortest(c.base), shortest(c.fresh),
              shortest(c.difference()), shortest(c.allowed), std::to_string(c.pairs), text(c.p), text(c.half_width), ""});
    }
    return out;
}

std::string message_of(const ComparedFigure& c) {
    std::string out = shown(c, c.base) + " -> ";
    out += shown(c, c.fresh);
    out += " (" + change(c);
    out += ", allowed " + allowed(c);
    if (c.p) out += ", p " + p_text(c) + " over " + std::to_string(c.pairs) + " seeds";
    if (c.finding == Finding::unclear) out += "; beyond the tolerance, not significant";
    return out + ")";
}

GateReport report_of(const Arguments& given, const std::vector<ComparedFigure>& compared, const std::vector<GateCase>& broken,
                     const Pairs& pairs, const std::string& outcome) {
    GateReport report;
    report.title = "kvsim compare " + given.positional[0] + " " + given.positional[1];
    report.cases = broken;
    for (const ComparedFigure& c : compared) {
        report.cases.push_back({c.point, std::string(c.column->name),
                                c.failed()                      ? GateCase::Status::failed
                                : c.finding == Finding::unclear ? GateCase::Status::warned
                                                                : GateCase::Status::passed,
                                message_of(c)});
    }
    // A suite is a point; the worst points first, as in the table.
    std::map<std::string, std::size_t> first;
    for (std::size_t i = 0; i < report.cases.size(); ++i) first.emplace(report.cases[i].suite, i);
    std::stable_sort(report.cases.begin(), report.cases.end(),
                     [&](const GateCase& a, const GateCase& b) { return first[a.suite] < first[b.suite]; });
    report.table = table_of(compared, broken, pairs.several_seeds, given.has("all") ? Rows::all : Rows::remarkable);
    report.note = outcome;
    return report;
}

std::vector<BenchmarkFigure> benchmark_of(const Figures& figures) {
    std::vector<BenchmarkFigure> out;
    for (const PairedFigure& f : figures.pairs) {
        if (f.column->unit != Unit::text) out.push_back(benchmark_figure(f.point, *f.column, f.fresh));
    }
    return out;
}

std::string counted(std::int64_t count, std::string_view one, std::string_view many) {
    return std::to_string(count) + " " + std::string(count == 1 ? one : many);
}

}  // namespace

int compare_command(const std::vector<std::string>& args) {
    const std::optional<Arguments> given = parse(usage(), args);
    if (!given) return exit_done;
    const bool quiet = given->has("quiet");
    const std::string format = given->choice("format", formats);
    std::vector<NamedClass> tolerated;
    const ComparisonRules rules = rules_of(*given, tolerated);
    Metrics metrics = metrics_of(*given);
    const GateOutput output(*given);
    const bool by_class = !metrics.classes.empty() || !tolerated.empty();
    const bool may_lack = given->has("allow-missing");
    const ResultSet base = read_results(given->positional[0], by_class);
    const ResultSet fresh = read_results(given->positional[1], by_class);
    std::vector<std::string> class_notes;
    for (const ResultSet* set : {&base, &fresh}) {
        const bool ran =
            std::any_of(set->rows.begin(), set->rows.end(), [](const ResultRow& row) { return row.error.empty(); });
        if (metrics.classes.empty() || !ran || !classes_of(*set).empty()) continue;
        if (!may_lack)
            throw UserError("error: --metrics: " + no_classes(*set) + " (--allow-missing leaves figures by class out)");
        class_notes.push_back(no_classes(*set) + ": none are compared");
        metrics.classes.clear();
    }
    check_tolerances(tolerated, base, fresh);
    const std::deque<ClassFigure> classes = class_figures(metrics.classes, base);
    if (std::any_of(metrics.classes.begin(), metrics.classes.end(), [](const ClassMetric& m) { return m.every(); })) {
        std::vector<std::string> extra;
        const std::set<std::string> known = classes_of(base);
        for (const std::string& name : classes_of(fresh)) {
            if (!known.contains(name)) extra.push_back("class(" + excerpt(name) + ")");
        }
        if (!extra.empty()) class_notes.push_back("only in NEW, not compared: " + some(extra));
    }
    Pairs pairs = paired(base, fresh, *given);
    pairs.notes.insert(pairs.notes.end(), class_notes.begin(), class_notes.end());
    const LeftOut left_out = lacking(pairs, classes, fresh, may_lack, pairs.notes);
    const Figures figures = figures_of(pairs, metrics.columns, classes, left_out);
    if (figures.pairs.empty() && figures.lost.empty() && pairs.broken.empty())
        throw UserError("error: none of the figures has a value in both results");
    for (const std::string& note : pairs.notes) log_warning(note);
    if (!figures.came.empty()) log_warning("without a value in BASE, not compared: " + some(figures.came));

    const std::vector<ComparedFigure> compared = compare(figures.pairs, rules);
    std::vector<GateCase> broken = pairs.broken;
    broken.insert(broken.end(), figures.lost.begin(), figures.lost.end());
    std::array<std::int64_t, 5> counts{};
    std::int64_t failed = static_cast<std::int64_t>(broken.size());
    for (const ComparedFigure& c : compared) {
        ++counts[static_cast<std::size_t>(c.finding)];
        failed += c.failed() ? 1 : 0;
    }
    const auto count = [&](Finding f) { return counts[static_cast<std::size_t>(f)]; };
    std::string outcome = counted(static_cast<std::int64_t>(pairs.order.size()), "point", "points") + ", " +
                          counted(static_cast<std::int64_t>(compared.size()), "comparison", "comparisons") + ": " +
                          std::to_string(failed) + " failed, " + std::to_string(count(Finding::unclear)) + " unclear, " +
                          std::to_string(count(Finding::improved)) + " improved, " + std::to_string(count(Finding::within)) +
                          " within tolerance";

    if (format == "csv") {
        if (!quiet) print(csv_of(compared, broken));
    } else if (!quiet || failed > 0) {
        const TextTable table = table_of(compared, broken, pairs.several_seeds,
                                         quiet               ? Rows::failed
                                         : given->has("all") ? Rows::all
                                                             : Rows::remarkable);
        if (!table.rows.empty()) print((format == "markdown" ? markdown(table) : plain_text(table)) + "\n");
        if (!quiet) print(outcome + "\n");
    }
    flush_output();
    if (output.wanted()) {
        output.write(report_of(*given, compared, broken, pairs, outcome),
                     output.wants_benchmark() ? benchmark_of(figures) : std::vector<BenchmarkFigure>());
    }
    return failed > 0 ? exit_gate_failed : exit_done;
}

}  // namespace kvsim::app
