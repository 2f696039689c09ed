#pragma once
// The highest load under which a scenario keeps its limits: what kvsim capacity and kvsim tune search for.
//
// Each seed is searched by itself: at every load it sees the same requests, so raising the load changes nothing else, and its
// capacity is bracketed by a load that meets the limits and the lowest one that does not. The capacities of the seeds are
// independent estimates of the same figure.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvsim/app/experiment.hpp"
#include "kvsim/app/prepare.hpp"
#include "kvsim/app/sweep.hpp"
#include "kvsim/report/assertion.hpp"
#include "kvsim/report/replications.hpp"
#include "kvsim/report/summary.hpp"

namespace kvsim::app {

enum class LoadBy { rate, concurrency };

/// The key that sets a scenario's load.
struct LoadKnob {
    std::string key;                   ///< "workload.arrivals.rate"
    std::string column;                ///< its column in CSV: rate, rate_scale, max_concurrency or users
    std::string unit;                  ///< for reading: "req/s", "x", "requests at once", "users"
    bool whole = false;                ///< only whole numbers
    double now = 0;                    ///< the scenario's own; 0: none
    std::vector<std::string> implied;  ///< assignments that come with it, without the load itself
    [[nodiscard]] std::string assign(double value) const;
};
/// rate: workload.arrivals.rate where the arrival process has one, else workload.rate_scale (traces, classes, processes of
/// several rates). concurrency: workload.users.count of a closed loop of users, else workload.max_concurrency, all requests
/// standing ready unless the scenario has such a limit itself. Throws UserError where there is neither.
LoadKnob load_knob(const Prepared& p, LoadBy by);

/// One run.
struct Probe {
    bool meets = false;
    std::vector<std::size_t> broken;  ///< places in Targets::texts
    /// How far the worst of the targets is beyond its limit, as the logarithm of a factor; 0 or below where all hold. Unset
    /// where that is no question of more or less.
    std::optional<double> excess;
    Summary summary;
};

/// Requests that arrive for each that is served while any waits, of an open loop in which some do for more than half of the
/// run; else unset. Above 1 the queue grows for as long as the run lasts.
///
/// Unlike Summary::load it rests on what this run served, because a backlog that came all at once may be served more slowly
/// (requests of one length then start and end together).
std::optional<double> arrivals_per_served(const Run& run);

/// Of all requests: rejected, timed out, given up by the engine, or cancelled before they were first scheduled.
double lost_share(const Summary& summary);

/// What must hold, each a text for reading. `stable`: the verdict is not "overloaded", no more arrives than is served, and at
/// most 1 % is lost, unless an SLO says itself how much may be.
struct Targets {
    std::vector<Assertion> slos;
    std::vector<std::string> texts;  ///< of the SLOs, then "stable" if that is asked for
    bool stable = true;
    [[nodiscard]] Probe judge(const Run& run) const;
};
/// `slos`: assertions, several in one text separated by commas outside parentheses. None: the scenario's own limits must be met
/// by the share `attainment` of the requests (0.99 if unset); without any, stability alone counts, which a closed loop always
/// has. Throws UserError.
Targets read_targets(const std::vector<std::string>& slos, const std::optional<std::string>& attainment, bool scenario_has_slo,
                     LoadBy by);

struct SearchLimits {
    double min = 0;
    double max = 0;  ///< min < max
    bool whole = false;
    int digits = 5;  ///< significant ones of a load, so that it can be written down
    [[nodiscard]] double rounded(double value) const;
};

/// The search under one seed.
class SeedSearch {
public:
    using Measure = std::function<Probe(double load)>;
    explicit SeedSearch(Measure measure) : measure_(std::move(measure)) {}

    /// Runs it unless it has been.
    const Probe& probe(double load);
    /// Probes until the bracket is at most `tolerance` wide, relative to its lower end, or a limit is reached. Starts at
    /// `guess` where nothing is known. Goes where Probe::excess says that the limit lies, and halves where it says nothing or
    /// is of no help.
    void narrow(const SearchLimits& limits, double guess, double tolerance);

    /// The lowest load that fails; unset: none does.
    [[nodiscard]] std::optional<double> high() const;
    /// The highest that meets the targets below high(); unset: none does.
    [[nodiscard]] std::optional<double> low() const;
    [[nodiscard]] const std::map<double, Probe>& probes() const { return probes_; }
    [[nodiscard]] std::optional<double> middle() const;  ///< of the bracket; the end there is
    void adopt(const SeedSearch& other) { probes_.insert(other.probes_.begin(), other.probes_.end()); }

private:
    [[nodiscard]] double next_load(const SearchLimits& limits, double tolerance, bool halve) const;
    Measure measure_;
    std::map<double, Probe> probes_;
};

struct SearchSettings {
    std::vector<std::string> slos;  ///< as read_targets() takes them
    std::optional<std::string> attainment;
    LoadBy by = LoadBy::rate;
    std::optional<double> min, max;  ///< unset: 1/1024 and 64 times the first guess
    double tolerance = 0.005;        ///< width of a bracket, relative
    bool exact = false;              ///< the user has named it
    std::function<void()> on_run;    ///< after each, from any thread
};

/// A bracketed figure and what is known about it.
struct Capacity {
    enum class Outcome {
        found,
        at_least,  ///< no failure up to the highest load tried under at least one seed; value = low = high = their mean
        none       ///< at least half of the seeds fail at the lowest load tried; value is 0
    };
    Outcome outcome = Outcome::none;
    /// Mean over the seeds of the middle of their brackets, of a seed that meets the targets nowhere 0; a whole number: rounded
    /// down.
    double value = 0;
    double low = 0;         ///< 95 % interval: Student t over the seeds' lower ends, and over their upper ends; of a single
    double high = 0;        ///< seed its bracket
    double highest = 0;     ///< load tried
    double lowest = 0;      ///< load tried
    std::size_t runs = 0;   ///< simulations made
    std::size_t seeds = 0;  ///< searched, those that meet the targets nowhere included
    std::optional<Summary> above;     ///< first seed: the lowest load that fails
    std::vector<Summary> at_limit;    ///< per seed: the highest load that meets the targets
    std::vector<std::size_t> broken;  ///< by place in Targets::texts: seeds that break it just above
    std::vector<std::string> warnings;
};

/// The deployment in what a bill counts.
struct Bill {
    std::string model, gpu;
    std::int64_t gpus = 1;               ///< of all replicas
    std::optional<double> gpu_hour_usd;  ///< of the catalogue
    std::string source;                  ///< where and when it was seen
};

/// The search at one point of a plan, under the seeds of the plan.
class PointSearch {
public:
    /// Prepares the point. Throws UserError. `plan` must outlive it.
    PointSearch(const SweepPlan& plan, std::int64_t point, const SearchSettings& settings);
    PointSearch(const PointSearch&) = delete;
    PointSearch& operator=(const PointSearch&) = delete;

    /// Whether the first seed meets the targets at this load. A search that follows starts there.
    bool reaches(double load);
    /// Narrows the brackets of the first `seeds` seeds, the first one before the others.
    void search(std::size_t seeds, double tolerance, std::size_t threads);
    /// Runs every seed at the same loads around the first seed's capacity: the curve, and whether it is monotone.
    void spread(std::size_t threads);

    /// Takes what a search of the same engine under the same seeds and targets has run.
    void adopt(const PointSearch& other);

    [[nodiscard]] Capacity capacity() const;
    [[nodiscard]] const LoadKnob& knob() const { return knob_; }
    [[nodiscard]] const Targets& targets() const { return targets_; }
    [[nodiscard]] const Bill& bill() const { return bill_; }
    /// Only the first where the seed changes nothing (a trace).
    [[nodiscard]] const std::vector<SeedSearch>& seeds() const { return seeds_; }
    [[nodiscard]] const Prepared& base() const { return base_; }
    /// Loads at which every seed ran.
    [[nodiscard]] std::vector<double> common_loads() const;

private:
    Probe measure(std::size_t seed, double load);
    void set_limits(double guess);
    void drop_idle_seeds();

    const SweepPlan& plan_;
    SweepPlan::Assignment assignment_;
    SearchSettings settings_;
    Prepared base_;
    LoadKnob knob_;
    Targets targets_;
    Bill bill_;
    SearchLimits limits_;
    double guess_ = 1;
    bool same_requests_ = false;  ///< whatever the load, so that what they saturate at is measured once a seed
    std::vector<std::optional<std::optional<double>>> saturated_;  ///< by seed
    std::vector<SeedSearch> seeds_;
    bool checked_ = false;  ///< whether the seed matters
};

/// SLOs with the number of seeds that break them just above the capacity, the most broken first.
using BrokenSlos = std::vector<std::pair<std::string, std::size_t>>;
BrokenSlos broken_above(const Capacity& capacity, const Targets& targets);

/// "15.3 req/s", "at least ...", "none: ...".
std::string capacity_text(const Capacity& capacity, const LoadKnob& knob);

/// For reading: at most `digits` significant ones, never an exponent; above 10000 with commas ("12,345").
std::string readable(double value, int digits = 4);

/// Mean over seeds of a column at the limit; nullopt: not applicable.
std::optional<double> mean_of(std::span<const ReplicatedColumn> columns, std::string_view column);

}  // namespace kvsim::app
