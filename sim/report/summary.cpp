#include "kvsim/report/summary.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/report/exact_tally.hpp"

namespace kvsim {
namespace {

constexpr double ns_per_ms = 1e6;
constexpr double ns_per_s = 1e9;

double ratio(Int128 a, Int128 b) {
    return static_cast<double>(a) / static_cast<double>(b);
}

// Division, not multiplication by 1e-9, so that whole nanoseconds print without rounding dust.
double seconds(SimDuration d) {
    return static_cast<double>(d.count()) / ns_per_s;
}

Distribution distribution(const LogLinearHistogram& h, double unit = ns_per_ms) {
    Distribution d;
    d.count = h.count();
    if (d.count == 0) return d;
    d.mean = h.mean() / unit;
    d.standard_deviation = h.standard_deviation() / unit;
    d.min = static_cast<double>(h.min()) / unit;
    d.max = static_cast<double>(h.max()) / unit;
    d.p50 = h.quantile(percentile_ranks[0]) / unit;
    d.p90 = h.quantile(percentile_ranks[1]) / unit;
    d.p95 = h.quantile(percentile_ranks[2]) / unit;
    d.p99 = h.quantile(percentile_ranks[3]) / unit;
    return d;
}

Tally tally(const RequestTotals& totals) {
    Tally t;
    static_cast<RequestCounts&>(t) = totals.counts;
    t.prompt = distribution(totals.prompt, 1);
    t.output = distribution(totals.output, 1);
    t.ttft = distribution(totals.ttft);
    t.tpot = distribution(totals.tpot);
    t.e2e = distribution(totals.e2e);
    t.queue = distribution(totals.queue);
    return t;
}

/// Whether limits were met is left to judge(); tokens that were recomputed are not in the records.
Tally tally(const std::vector<RequestRecord>& records, bool measured_only, bool exact, bool intervals) {
    if (exact) return exact_tally(records, measured_only, intervals);
    RequestTotals totals;
    for (const RequestRecord& r : records) {
        if (r.measured || !measured_only) totals.add(r, {}, 0);
    }
    Tally t = tally(totals);
    if (!intervals) return t;
    Tally with_intervals = exact_tally(records, measured_only, true);
    for (Distribution Tally::*const d :
         {&Tally::prompt, &Tally::output, &Tally::ttft, &Tally::tpot, &Tally::e2e, &Tally::queue})
        with_intervals.*d = t.*d;
    return with_intervals;
}

std::int64_t arrived(const Outcome& outcome) {
    return outcome.totals ? outcome.counters.arrivals : static_cast<std::int64_t>(outcome.requests.size());
}

Tally tally(const Outcome& outcome, const RunInfo& info, bool measured_only) {
    if (!outcome.totals) {
        Tally t = tally(outcome.requests, measured_only, info.exact_percentiles, measured_only);
        for (RequestId id = 0; id < outcome.requests.size() && !outcome.recomputed_tokens.empty(); ++id) {
            const std::int32_t tokens = outcome.recomputed_tokens[id];
            if (tokens > 0 && (outcome.requests[id].measured || !measured_only)) t.recomputed_tokens += tokens;
        }
        return t;
    }
    return tally(measured_only || !outcome.totals_all ? *outcome.totals : *outcome.totals_all);
}

// Requests judged by one limit, and those that met it.
struct Judged {
    std::int64_t met = 0, all = 0;
    void add(bool good) {
        met += good;
        ++all;
    }
    [[nodiscard]] std::optional<double> share() const { return all > 0 ? std::optional(ratio(met, all)) : std::nullopt; }
};

struct Judgement {
    Attainment attainment;
    std::int64_t met = 0;
};

template <class Chosen>
Judgement judge(const Outcome& outcome, const Slos& slos, const Chosen& chosen) {
    Judged all, ttft, tpot, itl, e2e, queue;
    for (RequestId id = 0; id < outcome.requests.size(); ++id) {
        if (!chosen(id)) continue;
        const config::SloConfig& slo = slos.of(id);
        const std::optional<LimitsMet> met = limits_met(outcome.requests[id], slo, slos.itl_p99(id));
        if (!met) continue;
        all.add(met->all());
        if (slo.ttft) ttft.add(met->ttft);
        if (slo.tpot) tpot.add(met->tpot);
        if (slo.itl_p99) itl.add(met->itl_p99);
        if (slo.e2e) e2e.add(met->e2e);
        if (slo.queue) queue.add(met->queue);
    }
    return {{all.share(), ttft.share(), tpot.share(), itl.share(), e2e.share(), queue.share()}, all.met};
}

std::vector<ClassSummary> class_summaries(const RunInfo& info, const Outcome& outcome, const Slos& slos, double duration_s) {
    std::vector<ClassSummary> out;
    if (outcome.classes.empty()) return out;
    // By number of the class.
    struct Own {
        std::int64_t offered = 0, served = 0, recomputed = 0, wasted = 0, wasted_outputs = 0;
        std::size_t end = 0;  // of its requests in `ids`
    };
    const NameColumn& classes = outcome.classes;
    std::vector<Own> all(classes.different() + 1);
    for (RequestId id = 0; id < outcome.requests.size(); ++id) {
        const RequestRecord& r = outcome.requests[id];
        Own& own = all[classes.number(id)];
        ++own.offered;
        own.served += completed(r) && r.arrival + r.e2e <= outcome.last_arrival ? 1 : 0;
        if (r.measured) own.recomputed += outcome.recomputed_tokens[id];
    }
    for (const auto& [id, tokens] : outcome.wasted) {
        if (!outcome.requests[id].measured) continue;
        Own& own = all[classes.number(id)];
        own.wasted += tokens;
        own.wasted_outputs += outcome.requests[id].output_tokens;
    }
    std::vector<RequestId> ids(outcome.requests.size());  // class by class
    for (std::size_t begin = 0; Own & own : all) own.end = std::exchange(begin, begin + static_cast<std::size_t>(own.offered));
    for (RequestId id = 0; id < ids.size(); ++id) ids[all[classes.number(id)].end++] = id;
    std::map<std::string_view, std::uint32_t> in_order;
    for (std::uint32_t number = 0; number < all.size(); ++number) {
        if (all[number].offered > 0) in_order.emplace(classes.name(number), number);
    }

    const double window_s = seconds(outcome.last_arrival - outcome.first_arrival);
    std::vector<RequestRecord> own;
    for (const auto& [class_name, number] : in_order) {
        const std::string name(class_name);
        const Own& sums = all[number];
        own.clear();
        own.reserve(static_cast<std::size_t>(sums.offered));
        for (std::size_t i = sums.end - static_cast<std::size_t>(sums.offered); i < sums.end; ++i) {
            if (outcome.requests[ids[i]].measured) own.push_back(outcome.requests[ids[i]]);
        }
        const auto limits = info.class_slos.find(name);
        const config::SloConfig& slo = limits == info.class_slos.end() ? info.slo : limits->second;
        const Tally t = tally(own, true, info.exact_percentiles, false);
        ClassSummary& c = out.emplace_back();
        c.name = name;
        c.requests = t.requests;
        c.completed = t.completed;
        c.rejected = t.rejected;
        c.timed_out = t.timed_out;
        c.cancelled = t.cancelled;
        c.failed = t.failed;
        c.preemptions = t.preemptions;
        c.preempted_requests = t.preempted_requests;
        c.recomputed_tokens = sums.recomputed;
        c.total_prompt_tokens = t.prompt_tokens;
        c.total_output_tokens = t.output_tokens;
        c.prompt_tokens = t.prompt;
        c.output_tokens = t.output;
        c.ttft = t.ttft;
        c.tpot = t.tpot;
        c.e2e = t.e2e;
        c.queue = t.queue;
        Int128 decoding = 0;
        std::int64_t gaps = 0;
        for (const RequestRecord& r : own) {
            if (!completed(r)) continue;
            decoding += (r.e2e - r.ttft).count();
            gaps += r.output_tokens - 1;
        }
        if (gaps > 0) c.itl_mean_ms = ratio(decoding, gaps) / ns_per_ms;
        if (window_s > 0) {
            c.offered_rate_req_s = static_cast<double>(sums.offered) / window_s;
            c.served_rate_req_s = static_cast<double>(sums.served) / window_s;
        }
        c.wasted_tokens = sums.wasted;
        c.wasted_output_tokens = sums.wasted_outputs;
        if (!slo.any()) continue;
        const Judgement judged = judge(outcome, slos, [&, wanted = number](RequestId id) {
            return outcome.requests[id].measured && classes.number(id) == wanted;
        });
        c.attainment = judged.attainment;
        if (duration_s > 0) c.goodput_req_s = static_cast<double>(judged.met) / duration_s;
    }
    return out;
}

ClientFigures client_figures(const Outcome& outcome, const Tally& t, const Distribution& itl, bool has_slo) {
    ClientFigures c;
    c.num_prompts = t.requests;
    c.completed = t.completed;
    c.failed = t.requests - t.completed;
    c.total_input_tokens = t.prompt_tokens;
    c.total_output_tokens = t.output_tokens;
    c.duration_s = std::max(0.0, seconds((t.completed > 0 ? t.last_completion : outcome.end) - outcome.first_arrival));
    if (has_slo) c.request_goodput = 0;
    if (c.duration_s > 0) {
        c.request_throughput = static_cast<double>(t.completed) / c.duration_s;
        c.output_throughput = static_cast<double>(t.output_tokens) / c.duration_s;
        c.total_token_throughput = static_cast<double>(t.prompt_tokens + t.output_tokens) / c.duration_s;
        if (has_slo) c.request_goodput = static_cast<double>(t.met) / c.duration_s;
    }
    c.max_output_tokens_per_s = outcome.counters.max_output_tokens_per_s;
    c.max_concurrent_requests = outcome.counters.max_in_system;
    c.ttft = t.ttft;
    c.tpot = t.tpot;
    c.itl = itl;
    c.e2el = t.e2e;
    return c;
}

// Without a measured capacity: where requests wait for at least this share of the run, the completion rate in that time is it.
constexpr double waiting_share_for_capacity = 0.05;

// Above both a run in which so many are turned away or give up is overloaded.
constexpr double most_turned_away = 0.05;
constexpr std::int64_t handful = 10;

/// Of all requests: those that nobody served.
struct Losses {
    std::int64_t all = 0, queue_full = 0, timed_out = 0, never_started = 0, too_long = 0;
    Losses(const Outcome& o, const RequestCounts& counts)
        : all(counts.requests),
          queue_full(o.counters.queue_full),
          timed_out(counts.timed_out),
          never_started(counts.never_started),
          too_long(counts.rejected - queue_full + counts.failed) {}
    [[nodiscard]] std::int64_t to_the_load() const { return queue_full + timed_out + never_started; }
    [[nodiscard]] bool many(std::int64_t n) const {
        return n > handful && static_cast<double>(n) > most_turned_away * static_cast<double>(all);
    }
    [[nodiscard]] std::string percent(std::int64_t n) const { return decimals(100 * ratio(n, all), 1) + " %"; }
};

void add_load_and_verdict(const Outcome& o, const Losses& losses, std::int64_t seats, std::optional<double> capacity,
                          Summary& s) {
    const SimDuration arrival_window = o.last_arrival - o.first_arrival;
    if (o.counters.arrivals >= 2 && arrival_window.count() > 0)
        s.offered_rate_req_s = static_cast<double>(o.counters.arrivals) / seconds(arrival_window);
    if (s.offered_rate_req_s)
        s.served_rate_req_s = static_cast<double>(o.counters.completed_by_last_arrival) / seconds(arrival_window);

    std::int64_t replica_time = 0;  // replicas x run time
    for (const SimDuration d : o.integrals.bound) replica_time += d.count();
    if (replica_time > 0) {
        const auto share = [&](Bound b) {
            return static_cast<double>(o.integrals.bound[static_cast<std::size_t>(b)].count()) /
                   static_cast<double>(replica_time);
        };
        s.bound_kv_blocks = share(Bound::kv_blocks);
        s.bound_seats = share(Bound::seats);
        s.bound_token_budget = share(Bound::token_budget);
        s.bound_no_waiting = share(Bound::no_waiting);

        const double waiting = static_cast<double>(o.integrals.any_waiting.count());
        s.capacity_req_s = capacity;
        if (capacity) {
            if (s.offered_rate_req_s) s.load = *s.offered_rate_req_s / *capacity;
        } else if (waiting < waiting_share_for_capacity * static_cast<double>(replica_time)) {
            s.load = 1 - static_cast<double>(o.integrals.idle.count()) / static_cast<double>(replica_time);
        } else if (s.offered_rate_req_s && o.integrals.finished_while_waiting > 0) {
            const double per_replica = static_cast<double>(o.integrals.finished_while_waiting) / (waiting / ns_per_s);
            s.load = *s.offered_rate_req_s / (per_replica * static_cast<double>(o.replicas));
        }
    }

    if (static_cast<double>(o.counters.completed_by_last_arrival) < 0.95 * static_cast<double>(o.counters.arrivals) &&
        o.counters.waiting_at_last_arrival + o.counters.queue_full > std::max<std::int64_t>(10, seats)) {
        s.verdict = "overloaded";
    } else if (losses.many(losses.to_the_load())) {
        s.verdict = "overloaded";
        s.turns_away = true;
    } else if (s.bound_no_waiting && 1 - *s.bound_no_waiting > 0.5) {
        s.verdict = "saturated";
    } else {
        s.verdict = "stable";
    }
}

void add_kv_and_batch(const Outcome& o, bool caching, Summary& s) {
    const Integrals& i = o.integrals;
    Int128 replica_time = 0;
    for (const SimDuration d : i.bound) replica_time += d.count();
    if (o.usable_blocks > 0) {
        if (replica_time > 0) s.kv_usage_mean = ratio(i.blocks_used_dt, replica_time * o.usable_blocks);
        s.kv_usage_peak = ratio(i.blocks_used_peak, o.usable_blocks);
    }
    if (i.slots_busy_dt > 0) {
        s.kv_token_share = ratio(i.slots_token_dt, i.slots_busy_dt);
        s.kv_reserved_share = ratio(i.slots_reserved_dt, i.slots_busy_dt);
        s.kv_internal_share = ratio(i.slots_internal_dt, i.slots_busy_dt);
        s.kv_external_share =
            ratio(i.slots_busy_dt - i.slots_token_dt - i.slots_reserved_dt - i.slots_internal_dt, i.slots_busy_dt);
    }
    const Int128 unshared = i.blocks_used_dt + i.blocks_saved_dt;
    if (o.may_share && unshared > 0) s.kv_sharing_saved = ratio(i.blocks_saved_dt, unshared);
    if (o.counters.steps > 0) {
        s.batch_size_mean = ratio(o.counters.rows, o.counters.steps);
        s.batch_tokens_mean = ratio(o.counters.tokens, o.counters.steps);
    }
    s.steps = o.counters.steps;
    if (i.stepping.count() > 0) s.recompute_time_share = i.recompute_ns / static_cast<double>(i.stepping.count());
    if (caching && o.counters.prompt_tokens_first > 0)
        s.prefix_hit_rate = ratio(o.counters.hit_tokens_first, o.counters.prompt_tokens_first);
    if (caching && o.counters.tokens_resume > 0)
        s.resume_hit_rate = ratio(o.counters.hit_tokens_resume, o.counters.tokens_resume);
}

void add_warnings(const Outcome& o, const Losses& losses, Summary& s) {
    // Ten samples above a percentile are the least that make it more than an anecdote.
    struct Need {
        const char* name;
        std::int64_t samples;
    };
    const auto weak_percentiles = [](std::int64_t samples) {
        std::string weak;
        for (const Need need : {Need{"p99", 1000}, Need{"p95", 200}, Need{"p90", 100}}) {
            if (samples > 0 && samples < need.samples)
                weak += (weak.empty() ? "" : ", ") + std::string(need.name) + " " + std::to_string(need.samples);
        }
        return weak;
    };
    const std::string weak = weak_percentiles(s.completed);
    if (!weak.empty())
        s.warnings.push_back("percentiles rest on " + std::to_string(s.completed) +
                             " measured requests; for ten samples above each, needed are: " + weak);
    // Requests with one output token have no TPOT and no gaps.
    if (const std::string few = weak_percentiles(s.tpot.count); !few.empty() && few != weak)
        s.warnings.push_back("the TPOT percentiles rest on " + std::to_string(s.tpot.count) +
                             " measured requests with more than one output token; needed are: " + few);
    if (const std::string few = weak_percentiles(s.itl.count); !few.empty())
        s.warnings.push_back("the ITL percentiles rest on " + std::to_string(s.itl.count) + " gaps; needed are: " + few);
    if (s.drift && s.drift->drifting) {
        const double change = s.drift->change * 100;
        s.warnings.push_back("no steady state: E2E of the later half of the measured requests is " +
                             decimals(std::abs(change), 1) + " % " + (change > 0 ? "above" : "below") +
                             " that of the earlier half (Mann-Kendall tau " + decimals(s.drift->tau, 2) + ", p " +
                             decimals(s.drift->p, 4) + "); cut the warm-up (measure.warmup: auto) or lower the load");
    }
    if (!s.correlated.empty()) {
        std::string names;
        for (const std::string& name : s.correlated) names += (names.empty() ? "" : ", ") + name;
        s.warnings.push_back("the batch means of " + names +
                             " are still correlated, so their 95 % intervals are too narrow; make the run longer or use "
                             "--replications");
    }
    if (s.completed == 0 && s.requests > 0)
        s.warnings.push_back("no measured request completed: there are no latencies to report");
    if (o.counters.arrivals == 0)
        s.warnings.push_back("no request arrived within workload.duration: there is nothing to report");
    if (s.requests == 0 && arrived(o) > 0)
        s.warnings.push_back("every request fell into the warm-up or the cool-down: nothing is measured");
    if (losses.many(losses.too_long))
        s.warnings.push_back(losses.percent(losses.too_long) +
                             " of the requests are too long to be served under any load; latencies are those of the others");
    if (s.turns_away)
        s.warnings.push_back(
            "overloaded: " + losses.percent(losses.to_the_load()) + " of the requests were turned away or gave up (" +
            std::to_string(losses.queue_full) + " found the queue full, " + std::to_string(losses.timed_out) + " timed out, " +
            std::to_string(losses.never_started) + " were cancelled before they started); latencies are those of the others");
    else if (s.verdict == "overloaded" && !s.offered_rate_req_s)
        s.warnings.push_back("all requests arrive at once: queue, TTFT and E2E measure their number; compare throughput only");
    else if (s.verdict == "overloaded" && s.queue_full > 0)
        s.warnings.push_back("overloaded: requests arrive faster than they finish, and " + std::to_string(s.queue_full) +
                             " found the queue full; latencies are those of the requests that were taken");
    else if (s.verdict == "overloaded")
        s.warnings.push_back(
            "overloaded: requests arrive faster than they finish, so queue, TTFT and E2E grow with the length of the run; "
            "lower the rate or compare throughput only");
    if (s.verdict == "saturated")
        s.warnings.push_back(
            "saturated: requests were kept waiting for more than half of the time; TTFT near saturation is unreliable, small "
            "errors of the step time move it a lot");
    constexpr double clearly_above = 1.05;  // a short run may stay stable a little above 1
    if (s.verdict == "stable" && s.capacity_req_s && s.load && *s.load > clearly_above)
        s.warnings.push_back("load " + decimals(*s.load, 2) + " of a stable run: it is against the " +
                             decimals(*s.capacity_req_s, 3) +
                             " requests/s at which the same requests finish when all are offered at once, which under this "
                             "policy is less than it does with fewer of them");
    if (!o.stall_report.empty()) s.warnings.push_back("stalled: the run stopped because nothing could ever be scheduled again");
}

// ---- columns ---------------------------------------------------------------------------------------------------------

Cell to_cell(const std::string& text) {
    return text.empty() ? Cell{} : Cell{text};
}
Cell to_cell(std::int64_t value) {
    return value;
}
Cell to_cell(double value) {
    return std::isfinite(value) ? Cell{value} : Cell{};
}
template <class T>
Cell to_cell(const std::optional<T>& value) {
    return value ? to_cell(*value) : Cell{};
}

template <auto Member>
Cell get(const Summary& s) {
    return to_cell(s.*Member);
}
template <auto Quantity, auto Statistic>
Cell get(const Summary& s) {
    return (s.*Quantity).count > 0 ? to_cell((s.*Quantity).*Statistic) : Cell{};
}

// Half of the interval's width.
template <auto Quantity, auto Statistic>
Cell half_width(const Summary& s) {
    const std::optional<Interval>& interval = (s.*Quantity).*Statistic;
    return interval ? to_cell(interval->half_width()) : Cell{};
}

using S = Summary;
using D = Distribution;
using I = DistributionInterval;

constexpr std::array columns{
    Column{"scenario", Unit::text, get<&S::scenario>},
    Column{"scenario_hash", Unit::text, get<&S::scenario_hash>},
    Column{"kvsim_version", Unit::text, get<&S::kvsim_version>},
    Column{"seed", Unit::count, get<&S::seed>},
    Column{"model", Unit::text, get<&S::model>},
    Column{"gpu", Unit::text, get<&S::gpu>},
    Column{"tensor_parallel_size", Unit::count, get<&S::tensor_parallel_size>},
    Column{"replicas", Unit::count, get<&S::replicas>},
    Column{"preset", Unit::text, get<&S::preset>},
    Column{"scheduling_policy", Unit::text, get<&S::scheduling_policy>},
    Column{"kv_policy", Unit::text, get<&S::kv_policy>},
    Column{"preemption", Unit::text, get<&S::preemption>},
    Column{"step_time_model", Unit::text, get<&S::step_time_model>},
    Column{"block_size", Unit::tokens, get<&S::block_size>},
    Column{"num_gpu_blocks", Unit::count, get<&S::num_gpu_blocks>},
    Column{"kv_bytes_per_token", Unit::bytes, get<&S::kv_bytes_per_token>},
    Column{"max_model_len", Unit::tokens, get<&S::max_model_len>},
    Column{"max_num_seqs", Unit::count, get<&S::max_num_seqs>},
    Column{"max_num_batched_tokens", Unit::tokens, get<&S::max_num_batched_tokens>},
    Column{"requests", Unit::count, get<&S::requests>},
    Column{"completed", Unit::count, get<&S::completed>},
    Column{"rejected", Unit::count, get<&S::rejected>},
    Column{"timed_out", Unit::count, get<&S::timed_out>},
    Column{"prompt_tokens_mean", Unit::tokens, get<&S::prompt_tokens, &D::mean>},
    Column{"prompt_tokens_p50", Unit::tokens, get<&S::prompt_tokens, &D::p50>},
    Column{"prompt_tokens_p99", Unit::tokens, get<&S::prompt_tokens, &D::p99>},
    Column{"output_tokens_mean", Unit::tokens, get<&S::output_tokens, &D::mean>},
    Column{"output_tokens_p50", Unit::tokens, get<&S::output_tokens, &D::p50>},
    Column{"output_tokens_p99", Unit::tokens, get<&S::output_tokens, &D::p99>},
    Column{"offered_rate_req_s", Unit::per_second, get<&S::offered_rate_req_s>},
    Column{"concurrency", Unit::count, get<&S::concurrency>},
    Column{"duration_s", Unit::seconds, get<&S::duration_s>},
    Column{"request_throughput_req_s", Unit::per_second, get<&S::request_throughput_req_s>},
    Column{"output_throughput_tok_s", Unit::per_second, get<&S::output_throughput_tok_s>},
    Column{"total_token_throughput_tok_s", Unit::per_second, get<&S::total_token_throughput_tok_s>},
    Column{"goodput_req_s", Unit::per_second, get<&S::goodput_req_s>},
    Column{"slo_attainment", Unit::share, get<&S::slo_attainment>},
#define KVSIM_LATENCY_COLUMNS(name)                                                                                           \
    Column{#name "_mean_ms", Unit::ms, get<&S::name, &D::mean>}, Column{#name "_p50_ms", Unit::ms, get<&S::name, &D::p50>},   \
        Column{#name "_p90_ms", Unit::ms, get<&S::name, &D::p90>}, Column{#name "_p95_ms", Unit::ms, get<&S::name, &D::p95>}, \
        Column{#name "_p99_ms", Unit::ms, get<&S::name, &D::p99>}
    KVSIM_LATENCY_COLUMNS(ttft),
    KVSIM_LATENCY_COLUMNS(tpot),
    KVSIM_LATENCY_COLUMNS(itl),
    KVSIM_LATENCY_COLUMNS(e2e),
    KVSIM_LATENCY_COLUMNS(queue),
#undef KVSIM_LATENCY_COLUMNS
    Column{"preemptions", Unit::count, get<&S::preemptions>},
    Column{"preempted_requests", Unit::count, get<&S::preempted_requests>},
    Column{"recomputed_tokens", Unit::tokens, get<&S::recomputed_tokens>},
    Column{"swapped_tokens", Unit::tokens, get<&S::swapped_tokens>},
    Column{"recompute_time_share", Unit::share, get<&S::recompute_time_share>},
    Column{"prefix_hit_rate", Unit::share, get<&S::prefix_hit_rate>},
    Column{"resume_hit_rate", Unit::share, get<&S::resume_hit_rate>},
    Column{"kv_usage_mean", Unit::share, get<&S::kv_usage_mean>},
    Column{"kv_usage_peak", Unit::share, get<&S::kv_usage_peak>},
    Column{"kv_token_share", Unit::share, get<&S::kv_token_share>},
    Column{"kv_reserved_share", Unit::share, get<&S::kv_reserved_share>},
    Column{"kv_internal_share", Unit::share, get<&S::kv_internal_share>},
    Column{"kv_external_share", Unit::share, get<&S::kv_external_share>},
    Column{"batch_size_mean", Unit::count, get<&S::batch_size_mean>},
    Column{"batch_tokens_mean", Unit::tokens, get<&S::batch_tokens_mean>},
    Column{"steps", Unit::count, get<&S::steps>},
    Column{"bound_seats", Unit::share, get<&S::bound_seats>},
    Column{"bound_token_budget", Unit::share, get<&S::bound_token_budget>},
    Column{"bound_kv_blocks", Unit::share, get<&S::bound_kv_blocks>},
    Column{"bound_no_waiting", Unit::share, get<&S::bound_no_waiting>},
    Column{"load", Unit::share, get<&S::load>},
    Column{"verdict", Unit::text, get<&S::verdict>},
    // Behind the columns of the first contract.
    Column{"capacity_req_s", Unit::per_second, get<&S::capacity_req_s>},
    Column{"deviations", Unit::text, get<&S::deviations>},
    Column{"cancelled", Unit::count, get<&S::cancelled>},
    Column{"retries", Unit::count, get<&S::retries>},
    Column{"wasted_tokens", Unit::tokens, get<&S::wasted_tokens>},
    Column{"wasted_output_tokens", Unit::tokens, get<&S::wasted_output_tokens>},
    Column{"client_queue_mean_ms", Unit::ms, get<&S::client_queue, &D::mean>},
    Column{"client_queue_p99_ms", Unit::ms, get<&S::client_queue, &D::p99>},
    Column{"served_rate_req_s", Unit::per_second, get<&S::served_rate_req_s>},
    Column{"unmeasured_requests", Unit::count, get<&S::unmeasured_requests>},
    Column{"steady_state", Unit::text, get<&S::steady_state>},
#define KVSIM_INTERVAL_COLUMNS(name)                                                  \
    Column{#name "_mean_ms_ci95", Unit::ms, half_width<&S::name##_ci95, &I::mean>},   \
        Column{#name "_p50_ms_ci95", Unit::ms, half_width<&S::name##_ci95, &I::p50>}, \
        Column{#name "_p90_ms_ci95", Unit::ms, half_width<&S::name##_ci95, &I::p90>}, \
        Column{#name "_p95_ms_ci95", Unit::ms, half_width<&S::name##_ci95, &I::p95>}, \
        Column{#name "_p99_ms_ci95", Unit::ms, half_width<&S::name##_ci95, &I::p99>}
    KVSIM_INTERVAL_COLUMNS(ttft),
    KVSIM_INTERVAL_COLUMNS(tpot),
    KVSIM_INTERVAL_COLUMNS(itl),
    KVSIM_INTERVAL_COLUMNS(e2e),
    KVSIM_INTERVAL_COLUMNS(queue),
#undef KVSIM_INTERVAL_COLUMNS
    Column{"queue_full", Unit::count, get<&S::queue_full>},
    Column{"kv_sharing_saved", Unit::share, get<&S::kv_sharing_saved>},
    Column{"failed", Unit::count, get<&S::failed>},
};

}  // namespace

Summary summarize(const RunInfo& info, const Outcome& outcome) {
    Summary s;
    s.scenario = info.scenario;
    s.scenario_hash = info.scenario_hash;
    s.kvsim_version = info.version;
    s.seed = info.seed;
    s.model = info.model;
    s.gpu = info.gpu;
    s.tensor_parallel_size = info.tensor_parallel_size;
    s.replicas = outcome.replicas;
    s.preset = info.engine.preset;
    s.scheduling_policy = info.engine.order_name();
    s.kv_policy = info.kv_policy;
    s.preemption = info.preemption;
    s.step_time_model = info.step_time_model;
    s.block_size = info.engine.block_size;
    s.num_gpu_blocks = info.engine.num_gpu_blocks;
    if (info.kv_bytes_per_token > 0) s.kv_bytes_per_token = info.kv_bytes_per_token;
    s.max_model_len = info.engine.max_model_len;
    s.max_num_seqs = info.engine.max_num_seqs;
    s.max_num_batched_tokens = info.engine.max_num_batched_tokens;
    s.concurrency = info.max_concurrency;
    for (const std::string& deviation : info.deviations) s.deviations += (s.deviations.empty() ? "" : "; ") + deviation;

    const Slos slos(outcome, info.slo, info.class_slos);
    const bool any_slo = info.any_slo();
    Tally t = tally(outcome, info, true);
    if (any_slo && !outcome.totals) {
        const Judgement judged = judge(outcome, slos, [&](RequestId id) { return outcome.requests[id].measured; });
        s.attainment = judged.attainment;
        t.met = judged.met;
    }
    const bool any_cut = t.requests != arrived(outcome);
    s.requests = t.requests;
    s.completed = t.completed;
    s.rejected = t.rejected;
    s.timed_out = t.timed_out;
    s.prompt_tokens = t.prompt;
    s.output_tokens = t.output;
    s.ttft = t.ttft;
    s.tpot = t.tpot;
    s.e2e = t.e2e;
    s.queue = t.queue;
    s.itl = distribution(outcome.itl);
    s.preemptions = t.preemptions;
    s.preempted_requests = t.preempted_requests;
    s.recomputed_tokens = t.recomputed_tokens;
    s.swapped_tokens = outcome.counters.swapped_tokens;
    s.ttft_ci95 = t.ttft_ci95;
    s.tpot_ci95 = t.tpot_ci95;
    s.itl_ci95 = t.itl_ci95;
    s.e2e_ci95 = t.e2e_ci95;
    s.queue_ci95 = t.queue_ci95;
    s.correlated = t.correlated;
    s.unmeasured_requests = static_cast<std::int64_t>(outcome.requests.size()) - t.requests;

    if (t.requests > 0)
        s.duration_s = std::max(0.0, seconds((t.completed ? t.last_completion : outcome.end) - t.first_arrival));
    if (s.duration_s > 0) {
        s.request_throughput_req_s = static_cast<double>(t.completed) / s.duration_s;
        s.output_throughput_tok_s = static_cast<double>(t.output_tokens) / s.duration_s;
        s.total_token_throughput_tok_s = static_cast<double>(t.prompt_tokens + t.output_tokens) / s.duration_s;
        if (any_slo) s.goodput_req_s = static_cast<double>(t.met) / s.duration_s;
    }
    const std::int64_t judged = t.completed + t.rejected + t.timed_out + t.failed;
    if (any_slo && judged > 0)
        s.slo_attainment = info.class_slos.empty() || !s.attainment.all ? ratio(t.met, judged) : s.attainment.all;
    s.cancelled = t.cancelled;
    s.failed = t.failed;
    s.queue_full = outcome.counters.queue_full;
    s.retries = outcome.counters.retries;
    s.wasted_tokens = outcome.counters.wasted_tokens;
    s.wasted_output_tokens = outcome.counters.wasted_output_tokens;
    s.client_queue = exact_client_queue(outcome, s.completed);
    s.classes = class_summaries(info, outcome, slos, s.duration_s);

    std::optional<Tally> uncut;
    if (any_cut) uncut = tally(outcome, info, false);
    const Losses losses(outcome, uncut ? *uncut : t);
    s.lost = losses.to_the_load() + losses.too_long;
    add_load_and_verdict(outcome, losses, info.engine.max_num_seqs * outcome.replicas, info.capacity_req_s, s);
    if (info.paced_by_answers) s.load.reset();
    if (s.offered_rate_req_s) s.drift = t.drift;
    if (s.drift) s.steady_state = s.drift->drifting ? "drifting" : "steady";
    add_kv_and_batch(outcome, info.engine.enable_prefix_caching, s);

    if (uncut) {
        if (any_slo && !outcome.totals) uncut->met = judge(outcome, slos, [](RequestId) { return true; }).met;
        s.client = client_figures(outcome, *uncut, distribution(outcome.itl_all), any_slo);
    } else {
        s.client = client_figures(outcome, t, s.itl, any_slo);
    }

    s.warnings = info.warnings;
    s.warnings.insert(s.warnings.end(), outcome.warnings.begin(), outcome.warnings.end());
    add_warnings(outcome, losses, s);
    return s;
}

Slos::Slos(const Outcome& outcome, const config::SloConfig& common, const std::map<std::string, config::SloConfig>& classes)
    : outcome_(outcome), of_class_(outcome.classes.different() + 1, &common) {
    for (std::uint32_t number = 0; number < of_class_.size(); ++number) {
        const auto own = classes.find(std::string(outcome.classes.name(number)));
        if (own != classes.end()) of_class_[number] = &own->second;
    }
}

std::span<const Column> summary_columns() {
    return columns;
}

std::string cell_text(const Cell& cell, Unit unit) {
    if (const auto* text = std::get_if<std::string>(&cell)) return *text;
    if (const auto* whole = std::get_if<std::int64_t>(&cell)) return std::to_string(*whole);
    if (const auto* number = std::get_if<double>(&cell)) return unit == Unit::ms ? decimals(*number, 6) : shortest(*number);
    return "";
}

}  // namespace kvsim
