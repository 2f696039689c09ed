#pragma once
// Whether new results are worse than a baseline, figure by figure.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvsim/report/assertion.hpp"
#include "kvsim/report/summary.hpp"

namespace kvsim {

enum class Better : std::uint8_t { lower, higher, neither };
/// Latencies, preemptions, what was refused or computed twice: lower. Throughput, goodput, attainment, hits: higher. Neither:
/// what only describes (KV use, batch, bounds). `verdict` counts as 0 stable, 1 saturated, 2 overloaded.
Better better(const Column& column);
/// May be compared: a figure, or the verdict; not a setting, an interval or another text.
bool comparable(const Column& column);
/// Compared and recorded unless the user names others.
std::span<const std::string_view> usual_metrics();
/// A verdict's number in text, or the text's number; nullopt for anything else.
std::optional<double> verdict_rank(std::string_view text);

/// "ttft_p99", "ttft_p99_ms", "ttft_*" or "all" (what has a direction). Throws UserError with the nearest name.
std::vector<const Column*> columns_named(std::string_view pattern);

/// A difference up to the larger of both is allowed.
struct Tolerance {
    std::optional<double> relative;  ///< of the baseline's size
    std::optional<double> absolute;  ///< in the column's unit
    [[nodiscard]] double allowed(double base) const;
};
/// class(NAME).FIGURE of a comparison; NAME may be `*`: every class.
struct ClassMetric {
    std::string name;
    std::vector<const ClassColumn*> columns;
    [[nodiscard]] bool every() const { return name == "*"; }
};
/// Nullopt unless the pattern begins with `class(`; FIGURE as in columns_named(). Throws UserError.
std::optional<ClassMetric> class_metric(std::string_view pattern);
/// "class(chat).ttft_p99_ms"
std::string class_figure(std::string_view name, const ClassColumn& column);

/// "5%", "2ms", "5%,2ms", "1pp" (percentage points of a share), "0". `bare`: a number without unit is in the column's own.
/// Throws UserError with the bare reason.
Tolerance parse_tolerance(std::string_view text, const Column& column, bool bare);
/// For all columns: only "5%" or "0".
Tolerance parse_default_tolerance(std::string_view text);

/// Of p-values for their number. fdr (Benjamini and Hochberg 1995): if nothing changed, the probability of any alarm is 5 %;
/// else of the alarms 5 % are false on average. holm (1979): the probability of any false alarm is 5 %, whatever else changed.
enum class Correction : std::uint8_t { fdr, holm, none };

struct ComparisonRules {
    std::optional<Tolerance> common;  ///< unset: 5 %, of shares one percentage point
    /// By column's name; of classes by class_figure(), where `*` stands for every class. A class without one has its column's.
    std::map<std::string, Tolerance, std::less<>> own;
    bool two_sided = false;      ///< a change for the better counts too
    bool unclear_fails = false;  ///< beyond the tolerance is enough
    Correction correction = Correction::fdr;
    [[nodiscard]] Tolerance of(const Column& column) const;
};

/// One figure at one point (of a class: a column named by class_figure()), under the same seeds in the same order; without
/// seeds one value each.
struct PairedFigure {
    std::string point;
    const Column* column = nullptr;
    std::vector<double> base, fresh;
};

/// unclear: worse beyond the tolerance, but not significant. improved and changed (two-sided, or no better direction) are both
/// beyond and significant.
enum class Finding : std::uint8_t { regressed, changed, unclear, improved, within };
std::string_view name_of(Finding finding);

struct ComparedFigure {
    std::string point;
    const Column* column = nullptr;
    std::int64_t pairs = 0;
    double base = 0, fresh = 0;  ///< means
    double allowed = 0;
    /// Of the paired t test, after the correction; unset for one pair. One-sided towards what was
    /// found, two-sided where either direction counts.
    std::optional<double> p;
    std::optional<double> half_width;  ///< of the 95 % interval of the mean difference
    Finding finding = Finding::within;
    [[nodiscard]] double difference() const { return fresh - base; }
    [[nodiscard]] bool failed() const { return finding == Finding::regressed || finding == Finding::changed; }
};

/// A figure fails when its mean difference is beyond the tolerance and, with two pairs or more, significant at 5 % in a t test
/// of the differences by seed, corrected over all figures with a test.
/// Worst first: failed, unclear, improved, within; among them by how often the difference holds the tolerance.
std::vector<ComparedFigure> compare(std::span<const PairedFigure> figures, const ComparisonRules& rules);

/// p-values after the correction, in the order given.
std::vector<double> corrected(std::span<const double> p, Correction correction);

}  // namespace kvsim
