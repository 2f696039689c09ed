#include "kvsim/app/load_search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "kvsim/app/gate_output.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/parallel.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/report/output_analysis.hpp"

namespace kvsim::app {
namespace {

using config::Value;

/// Of what is served when work never runs out: most limits on latency break a little below it.
constexpr double first_share = 0.8;
constexpr double widest_growth = 4;
/// Below it too few are served while others wait to tell a rate.
constexpr double waiting_share = 0.5;
/// What a share is at least taken to lack, so that it has a logarithm.
constexpr double least_share = 1e-4;
/// Requests of a stable run that may be lost.
constexpr double most_lost = 0.01;
/// How far a probe stands from where the limit is believed to be, in widths of the bracket that is asked for.
constexpr double aside = 0.4;

std::string process_of(const Value& arrivals) {
    if (arrivals.is_scalar()) return arrivals.scalar;
    const Value* process = arrivals.find("process");
    return process != nullptr ? process->scalar : "";
}

LoadKnob by_rate(const Prepared& p) {
    const config::WorkloadConfig& w = p.scenario.workload;
    const std::string file = p.scenario.file.string();
    const auto refuse = [&file](const std::string& why) -> LoadKnob {
        throw UserError("error: " + file + ": there is no arrival rate to search for: " + why);
    };
    const auto own_rate = [](const config::ClassConfig& c) { return !c.arrivals.is_null(); };
    const bool class_rates = std::any_of(w.classes.begin(), w.classes.end(), own_rate);
    LoadKnob scale{"workload.rate_scale", "rate_scale", "x", false, w.rate_scale, {}};
    if (!w.users.is_null() && !class_rates) return refuse("users wait for answers; search --by concurrency");
    if (class_rates) return scale;
    if (w.arrivals.is_null()) {
        if (w.trace.is_null()) return refuse("max_concurrency paces the requests; search --by concurrency");
        if (!p.options.note_client_queue) return refuse("the trace has no times; search --by concurrency");
        return scale;
    }
    if (process_of(w.arrivals) == "all_at_once") {
        return refuse(
            "all requests arrive at once; give arrivals a rate ({process: poisson, rate: 1/s}) or search --by "
            "concurrency");
    }
    if (w.arrivals.find("rate") == nullptr) return scale;
    const double now = p.info.request_rate.value_or(0);
    return {"workload.arrivals.rate", "rate", "req/s", false, std::isfinite(now) ? now : 0, {"workload.rate_scale=1"}};
}

LoadKnob by_concurrency(const Prepared& p) {
    const config::WorkloadConfig& w = p.scenario.workload;
    if (!w.users.is_null() && !w.max_concurrency) {
        const Value* count = w.users.find("count");
        double now = 0;
        if (count != nullptr) std::from_chars(count->scalar.data(), count->scalar.data() + count->scalar.size(), now);
        return {"workload.users.count", "users", "users", true, now, {}};
    }
    LoadKnob limit{"workload.max_concurrency", "max_concurrency", "requests at once", true, 0, {}};
    if (w.max_concurrency) {
        limit.now = static_cast<double>(*w.max_concurrency);
    } else if (!w.classes.empty()) {
        throw UserError("error: " + p.scenario.file.string() +
                        ": there is no concurrency to search for: its classes send by themselves; set "
                        "workload.max_concurrency, or search --by rate");
    } else {
        limit.implied = {"workload.arrivals=all_at_once"};
    }
    return limit;
}

/// At commas outside parentheses and quotes.
std::vector<std::string> split_targets(const std::string& text) {
    std::vector<std::string> out(1);
    int depth = 0;
    char quote = 0;
    for (const char c : text) {
        if (quote != 0) {
            if (c == quote) quote = 0;
        } else if (c == '"' || c == '\'') {
            quote = c;
        } else if (c == '(') {
            ++depth;
        } else if (c == ')') {
            --depth;
        } else if (c == ',' && depth == 0) {
            out.emplace_back();
            continue;
        }
        out.back() += c;
    }
    for (std::string& part : out) {
        part = std::string(trimmed(part));
        if (part.empty()) throw UserError("error: --slo '" + excerpt(text) + "': an SLO is missing");
    }
    return out;
}

std::string figure(double value) {
    return fmt::format("{:.5g}", value);
}

/// Of an upper or a lower limit on one figure, by how much that is beyond it: the logarithm of a factor.
std::optional<double> excess_of(const Assertion& slo, const Summary& summary) {
    if (slo.program.size() != 1) return std::nullopt;
    const Assertion::Comparison& c = slo.comparisons.front();
    const auto* const limit = std::get_if<double>(&c.limit);
    const Cell cell = c.of(summary);
    double value = 0;
    if (const auto* whole = std::get_if<std::int64_t>(&cell)) {
        value = static_cast<double>(*whole);
    } else if (const auto* real = std::get_if<double>(&cell)) {
        value = *real;
    } else {
        return std::nullopt;
    }
    if (limit == nullptr) return std::nullopt;
    // Near saturation times grow by factors, and so do the requests that miss what a share of them must meet.
    double beyond = 0;
    if (c.unit() == Unit::share && *limit < 1) {
        beyond = std::log((1 - *limit + least_share) / (std::max(1 - value, 0.0) + least_share));
    } else if (value > 0 && *limit > 0) {
        beyond = std::log(value / *limit);
    } else {
        return std::nullopt;
    }
    switch (c.op) {
        case Assertion::Op::less:
        case Assertion::Op::less_equal:
            return beyond;
        case Assertion::Op::greater:
        case Assertion::Op::greater_equal:
            return -beyond;
        case Assertion::Op::equal:
        case Assertion::Op::not_equal:
            break;
    }
    return std::nullopt;
}

/// Whether one of them says itself how many requests may be lost.
bool count_losses(const std::vector<Assertion>& slos) {
    static constexpr std::array<std::string_view, 8> figures{"slo_attainment", "goodput_req_s", "completed", "rejected",
                                                             "timed_out",      "cancelled",     "failed",    "queue_full"};
    return std::any_of(slos.begin(), slos.end(), [](const Assertion& slo) {
        return std::any_of(slo.comparisons.begin(), slo.comparisons.end(), [](const Assertion::Comparison& c) {
            return std::find(figures.begin(), figures.end(), c.column_name()) != figures.end();
        });
    });
}

}  // namespace

double lost_share(const Summary& summary) {
    const std::int64_t all = summary.client.num_prompts;
    return all > 0 ? static_cast<double>(summary.lost) / static_cast<double>(all) : 0;
}

std::string LoadKnob::assign(double value) const {
    return key + "=" + shortest(value) + (key == "workload.arrivals.rate" ? "/s" : "");
}

LoadKnob load_knob(const Prepared& p, LoadBy by) {
    return by == LoadBy::rate ? by_rate(p) : by_concurrency(p);
}

std::optional<double> arrivals_per_served(const Run& run) {
    const Summary& s = run.summary;
    const Integrals& of = run.outcome.integrals;
    double replica_time = 0;
    for (const SimDuration d : of.bound) replica_time += to_seconds(d);
    const double waiting = to_seconds(of.any_waiting);
    if (!s.load || !s.offered_rate_req_s || waiting <= waiting_share * replica_time || of.finished_while_waiting == 0)
        return std::nullopt;
    const double served = static_cast<double>(of.finished_while_waiting) / waiting * static_cast<double>(run.outcome.replicas);
    return *s.offered_rate_req_s / served;
}

Probe Targets::judge(const Run& run) const {
    Probe out;
    out.summary = run.summary;
    double worst = -std::numeric_limits<double>::infinity();
    bool comparable = true;
    for (std::size_t i = 0; i < slos.size(); ++i) {
        if (!evaluate(slos[i], out.summary).passed) out.broken.push_back(i);
        const std::optional<double> excess = excess_of(slos[i], out.summary);
        comparable = comparable && excess;
        worst = std::max(worst, excess.value_or(0));
    }
    if (stable) {
        const std::optional<double> ratio = arrivals_per_served(run);
        const bool grows = ratio && *ratio > 1;
        const bool judged = count_losses(slos);
        const bool overloaded = out.summary.verdict == "overloaded" && !(judged && out.summary.turns_away);
        const double lost = judged ? 0 : lost_share(out.summary);
        if (grows || overloaded || lost > most_lost) out.broken.push_back(slos.size());
        comparable = comparable && (ratio || lost > most_lost || !overloaded);
        if (ratio) worst = std::max(worst, std::log(*ratio));
        if (lost > 0) worst = std::max(worst, std::log((lost + least_share) / (most_lost + least_share)));
    }
    out.meets = out.broken.empty();
    if (comparable && std::isfinite(worst) && (worst <= 0) == out.meets) out.excess = worst;
    return out;
}

Targets read_targets(const std::vector<std::string>& slos, const std::optional<std::string>& attainment, bool scenario_has_slo,
                     LoadBy by) {
    Targets out;
    out.stable = by == LoadBy::rate;
    for (const std::string& text : slos) {
        for (std::string& one : split_targets(text)) out.texts.push_back(std::move(one));
    }
    if (attainment && !out.texts.empty()) {
        throw UserError("error: --attainment is about the scenario's own limits; with --slo write 'slo_attainment >= " +
                        excerpt(*attainment) + "'");
    }
    if (attainment && !scenario_has_slo) throw UserError("error: --attainment: the scenario has no slo");
    if (out.texts.empty() && scenario_has_slo) out.texts.push_back("slo_attainment >= " + attainment.value_or("0.99"));
    for (const std::string& text : out.texts) out.slos.push_back(parse_assertion(text, attainment ? "--attainment" : "--slo"));
    if (out.slos.empty() && !out.stable)
        throw UserError("error: a closed loop is never overloaded: --by concurrency needs --slo, or a slo in the scenario");
    if (out.stable) out.texts.emplace_back("stable");
    return out;
}

double SearchLimits::rounded(double value) const {
    double out = std::round(value);
    if (!whole) {
        const std::string text = fmt::format("{:.{}g}", value, digits);
        std::from_chars(text.data(), text.data() + text.size(), out);
    }
    return std::clamp(out, min, max);
}

const Probe& SeedSearch::probe(double load) {
    const auto found = probes_.find(load);
    return found != probes_.end() ? found->second : probes_.emplace(load, measure_(load)).first->second;
}

std::optional<double> SeedSearch::high() const {
    for (const auto& [load, probe] : probes_) {
        if (!probe.meets) return load;
    }
    return std::nullopt;
}

std::optional<double> SeedSearch::low() const {
    std::optional<double> out;
    for (const auto& [load, probe] : probes_) {
        if (!probe.meets) break;
        out = load;
    }
    return out;
}

std::optional<double> SeedSearch::middle() const {
    const std::optional<double> below = low();
    const std::optional<double> above = high();
    if (below && above) return (*below + *above) / 2;
    return below ? below : above;
}

void SeedSearch::narrow(const SearchLimits& limits, double guess, double tolerance) {
    if (probes_.empty()) probe(limits.rounded(guess));
    // Squared from step to step, so that a good guess is bracketed closely and a bad one is left fast.
    double growth = std::max(1 + 4 * tolerance, 1.2);
    for (; !low() || !high(); growth = std::min(growth * growth, widest_growth)) {
        if (!high()) {
            if (*low() >= limits.max) return;
            const double next = limits.rounded(*low() * growth);
            probe(next > *low() ? next : limits.rounded(*low() + 1));
        } else {
            if (*high() <= limits.min) return;
            const double next = limits.rounded(*high() / growth);
            probe(next < *high() ? next : limits.rounded(*high() - 1));
        }
    }
    double last = std::numeric_limits<double>::infinity();  // width of the bracket
    while (*high() > *low() * (1 + tolerance) && !(limits.whole && *high() - *low() <= 1)) {
        const double width = std::log(*high() / *low());
        const double load = next_load(limits, tolerance, width > last / 2);
        if (load <= *low() || load >= *high()) return;
        last = width;
        probe(load);
    }
}

double SeedSearch::next_load(const SearchLimits& limits, double tolerance, bool halve) const {
    const double below = *low();
    const double above = *high();
    const std::optional<double> missing = probes_.at(below).excess;
    const std::optional<double> excess = probes_.at(above).excess;
    const double width = std::log(above / below);
    const double asked = std::log1p(tolerance);
    double at = width / 2;
    if (!halve && missing && excess && width > 2 * asked) {
        const double limit = width * -*missing / (*excess - *missing);
        // On the far side of it, so that the larger part of the bracket goes; then on the near side, which ends the search.
        at = limit + (limit < width / 2 ? aside : -aside) * asked;
        at = std::clamp(at, aside * asked, width - aside * asked);
    }
    const double load = below * std::exp(at);
    if (!limits.whole) return limits.rounded(load);
    return std::clamp(std::floor(load), below + 1, above - 1);
}

PointSearch::PointSearch(const SweepPlan& plan, std::int64_t point, const SearchSettings& settings)
    : plan_(plan), assignment_(plan.assignment(point)), settings_(settings) {
    config::Diagnostics diagnostics;
    std::vector<std::string> sets = assignment_.sets;
    sets.push_back("seed=" + std::to_string(plan.seeds.front()));
    base_ = prepare(plan.scenario, sets, diagnostics, plan.catalog, assignment_.overlays);
    diagnostics.throw_if_errors();
    knob_ = load_knob(base_, settings.by);
    targets_ = read_targets(settings.slos, settings.attainment, base_.info.any_slo(), settings.by);
    check_classes(targets_.slos, base_);

    const Deployment& d = base_.deployment;
    bill_.model = d.model_name;
    bill_.gpu = d.gpu_name;
    bill_.gpus = d.tensor_parallel_size * d.pipeline_parallel_size * d.engine_replicas();
    if (d.gpu && d.gpu->price_usd_per_hour > 0) {
        bill_.gpu_hour_usd = d.gpu->price_usd_per_hour;
        bill_.source = d.gpu->price_source;
    }
    const config::WorkloadConfig& w = base_.scenario.workload;
    same_requests_ = !w.duration && w.classes.empty() && w.sessions.is_null();
    saturated_.resize(plan.seeds.size());
    for (std::size_t seed = 0; seed < plan.seeds.size(); ++seed)
        seeds_.emplace_back([this, seed](double load) { return measure(seed, load); });
}

Probe PointSearch::measure(std::size_t seed, double load) {
    throw_if_stopped();
    const std::int64_t number = plan_.seeds[seed];
    std::vector<std::string> sets = assignment_.sets;
    sets.insert(sets.end(), knob_.implied.begin(), knob_.implied.end());
    sets.push_back(knob_.assign(load));
    sets.push_back("seed=" + std::to_string(number));
    sets.emplace_back("output.timeline=false");
    config::Diagnostics diagnostics;
    const Prepared p = prepare(plan_.scenario, sets, diagnostics, plan_.catalog, assignment_.overlays);
    diagnostics.throw_if_errors();
    RunOptions options;
    options.capacity = saturated_[seed];
    Probe out = targets_.judge(run_seed(p, number, options));
    // Only its rows say which classes a trace has, and a duration may end before all have come.
    if (seed == 0 && seeds_.front().probes().empty() && !base_.scenario.workload.duration)
        check_classes(targets_.slos, p, {&out.summary, 1});
    if (same_requests_) saturated_[seed] = out.summary.capacity_req_s;
    if (settings_.on_run) settings_.on_run();
    return out;
}

void PointSearch::set_limits(double guess) {
    guess_ = guess;
    double highest = 64 * guess;
    double lowest = guess / 1024;
    if (knob_.whole) {
        const EngineArgs& engine = base_.options.engine;
        const auto seats = static_cast<double>(engine.max_num_seqs * base_.options.replicas);
        highest = std::min(std::max(highest, 8 * seats), 1e6);
        if (const auto requests = base_.workload->size_hint()) highest = std::min(highest, static_cast<double>(*requests));
        lowest = 1;
    }
    limits_.whole = knob_.whole;
    limits_.max = settings_.max.value_or(std::max(highest, 2 * settings_.min.value_or(0)));
    limits_.min = settings_.min.value_or(std::min(lowest, limits_.max / 2));
    if (knob_.whole) limits_.min = std::max(limits_.min, 1.0);
    if (limits_.max <= limits_.min && knob_.whole) limits_.max = limits_.min + 1;
    limits_.digits = std::clamp(static_cast<int>(std::ceil(-std::log10(settings_.tolerance))) + 2, 5, 15);
}

bool PointSearch::reaches(double load) {
    if (seeds_.front().probes().empty()) {
        set_limits(load);
        guess_ = limits_.rounded(load);
    }
    return seeds_.front().probe(limits_.rounded(load)).meets;
}

void PointSearch::search(std::size_t seeds, double tolerance, std::size_t threads) {
    if (seeds_.front().probes().empty()) {
        if (knob_.whole) {
            set_limits(knob_.now > 0 ? knob_.now : 16);
        } else if (knob_.key == "workload.arrivals.rate") {
            const std::optional<double> saturated = capacity_of(base_, plan_.seeds.front());
            if (same_requests_) saturated_.front() = saturated;
            set_limits(saturated ? first_share * *saturated : knob_.now > 0 ? knob_.now : 1);
        } else {
            set_limits(knob_.now);
            const Summary& s = seeds_.front().probe(limits_.rounded(knob_.now)).summary;
            if (s.load && *s.load > 0) set_limits(first_share * knob_.now / *s.load);
            guess_ = limits_.rounded(guess_);
            seeds_.front().probe(guess_);
        }
    }
    seeds_.front().narrow(limits_, guess_, tolerance);
    if (seeds > 1) drop_idle_seeds();
    const double found = seeds_.front().middle().value_or(guess_);
    for_each_index(std::min(seeds, seeds_.size()) - 1, threads,
                   [&](std::size_t i) { seeds_[i + 1].narrow(limits_, found, tolerance); });
}

void PointSearch::drop_idle_seeds() {
    if (checked_ || seeds_.size() < 2) return;
    checked_ = true;
    const auto& [load, probe] = *seeds_.front().probes().begin();
    const Summary& a = probe.summary;
    const Summary& b = seeds_[1].probe(load).summary;
    const bool alike = a.steps == b.steps && a.duration_s == b.duration_s && a.ttft.mean == b.ttft.mean &&
                       a.e2e.mean == b.e2e.mean && a.prompt_tokens.mean == b.prompt_tokens.mean;
    while (alike && seeds_.size() > 1) seeds_.pop_back();
}

void PointSearch::spread(std::size_t threads) {
    drop_idle_seeds();
    const SeedSearch& first = seeds_.front();
    if (!first.low() || !first.high()) return;
    std::vector<double> loads;
    for (const double share : {0.7, 0.9, 1.1, 1.4}) {
        const double load = limits_.rounded(share * *first.middle());
        if (loads.empty() || load > loads.back()) loads.push_back(load);
    }
    seeds_.front().probe(limits_.rounded(0.5 * *first.middle()));
    for_each_index(seeds_.size(), threads, [&](std::size_t i) {
        for (const double load : loads) seeds_[i].probe(load);
    });
}

void PointSearch::adopt(const PointSearch& other) {
    if (other.seeds_.front().probes().empty()) return;
    if (seeds_.front().probes().empty()) {
        limits_ = other.limits_;
        guess_ = other.guess_;
    } else {
        limits_.min = std::min(limits_.min, other.limits_.min);
        limits_.max = std::max(limits_.max, other.limits_.max);
    }
    checked_ = checked_ || other.checked_;
    while (seeds_.size() > other.seeds_.size()) seeds_.pop_back();  // they change nothing
    for (std::size_t i = 0; i < seeds_.size(); ++i) seeds_[i].adopt(other.seeds_[i]);
}

std::vector<double> PointSearch::common_loads() const {
    std::vector<double> out;
    for (const auto& [load, probe] : seeds_.front().probes()) {
        if (std::all_of(seeds_.begin(), seeds_.end(), [load = load](const SeedSearch& s) { return s.probes().contains(load); }))
            out.push_back(load);
    }
    return out;
}

Capacity PointSearch::capacity() const {
    Capacity out;
    out.broken.assign(targets_.texts.size(), 0);
    std::vector<double> lows;
    std::vector<double> highs;
    double middles = 0;  // their sum; of a seed that meets the targets nowhere 0
    std::size_t unbounded = 0;
    std::size_t hopeless = 0;
    std::vector<std::string> jumps;
    out.lowest = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < seeds_.size(); ++i) {
        const SeedSearch& s = seeds_[i];
        if (s.probes().empty()) continue;
        out.runs += s.probes().size();
        ++out.seeds;
        out.lowest = std::min(out.lowest, s.probes().begin()->first);
        out.highest = std::max(out.highest, s.probes().rbegin()->first);
        const std::optional<double> low = s.low();
        const std::optional<double> high = s.high();
        unbounded += high ? 0U : 1U;
        hopeless += low ? 0U : 1U;
        lows.push_back(low.value_or(0));
        // The next whole number above the highest that meets the targets is known not to.
        highs.push_back(!high ? *low : knob_.whole ? std::max(low.value_or(0), *high - 1) : *high);
        if (low) out.at_limit.push_back(s.probes().at(*low).summary);
        if (low) middles += (lows.back() + highs.back()) / 2;
        if (!high) continue;
        const Probe& failing = s.probes().at(*high);
        if (!out.above) out.above = failing.summary;
        for (const std::size_t broken : failing.broken) ++out.broken[broken];
        for (const auto& [load, probe] : s.probes()) {
            if (load > *high && probe.meets)
                jumps.push_back(fmt::format("{} fails, {} meets them (seed {})", figure(*high), figure(load), plan_.seeds[i]));
        }
    }
    if (hopeless * 2 >= lows.size()) {
        out.outcome = Capacity::Outcome::none;
        out.low = 0;
        out.high = replication_mean(highs).mean;
    } else {
        const ReplicationMean below = replication_mean(lows);
        const ReplicationMean above = replication_mean(highs);
        out.value = middles / static_cast<double>(lows.size());
        out.low = std::max(0.0, below.mean - below.half_width.value_or(0));
        out.high = above.mean + above.half_width.value_or(0);
        out.outcome = unbounded > 0 ? Capacity::Outcome::at_least : Capacity::Outcome::found;
        if (unbounded > 0) out.low = out.high = out.value;
        if (knob_.whole) {
            out.value = std::floor(out.value);
            out.low = std::floor(out.low);
            out.high = std::ceil(out.high);
        }
        if (hopeless > 0)
            out.warnings.push_back(fmt::format("{} of {} seeds fail even at the lowest load tried, {}: counted as 0", hopeless,
                                               lows.size(), figure(out.lowest)));
    }
    if (!jumps.empty()) {
        std::string text = fmt::format("not monotone in the load: {}", jumps.front());
        for (std::size_t i = 1; i < std::min<std::size_t>(jumps.size(), 3); ++i) text += "; " + jumps[i];
        if (jumps.size() > 3) text += fmt::format("; and {} more", jumps.size() - 3);
        out.warnings.push_back(text + "; the capacity is the lowest load at which they break");
    }
    return out;
}

BrokenSlos broken_above(const Capacity& capacity, const Targets& targets) {
    BrokenSlos out;
    for (std::size_t i = 0; i < capacity.broken.size(); ++i) {
        if (capacity.broken[i] > 0) out.emplace_back(targets.texts[i], capacity.broken[i]);
    }
    std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    return out;
}

std::string capacity_text(const Capacity& c, const LoadKnob& knob) {
    switch (c.outcome) {
        case Capacity::Outcome::none:
            return fmt::format("none: the SLOs fail even at {} {}, the lowest tried", readable(c.lowest), knob.unit);
        case Capacity::Outcome::at_least:
            return fmt::format("at least {} {}: nothing fails up to {}, the highest tried", readable(c.value), knob.unit,
                               readable(c.highest));
        case Capacity::Outcome::found:
            break;
    }
    return fmt::format("{} {}", readable(c.value), knob.unit);
}

std::string readable(double value, int digits) {
    if (value == 0) return "0";
    const int magnitude = static_cast<int>(std::floor(std::log10(std::abs(value))));
    std::string out = decimals(value, std::clamp(digits - 1 - magnitude, 0, 9));
    if (std::abs(value) < 10'000) return out;
    for (std::size_t at = std::min(out.find('.'), out.size()); at > 3 + (value < 0 ? 1U : 0U);) {
        at -= 3;
        out.insert(at, 1, ',');
    }
    return out;
}

std::optional<double> mean_of(std::span<const ReplicatedColumn> columns, std::string_view column) {
    for (const ReplicatedColumn& c : columns) {
        if (c.column->name != column) continue;
        if (const auto* real = std::get_if<double>(&c.value)) return *real;
        if (const auto* whole = std::get_if<std::int64_t>(&c.value)) return static_cast<double>(*whole);
    }
    return std::nullopt;
}

}  // namespace kvsim::app
