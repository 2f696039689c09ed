#include "compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace kvsim::oracle {

namespace {

std::string text(std::int64_t value) {
    return std::to_string(value);
}
std::string text(SimDuration value) {
    return std::to_string(value.count()) + " ns";
}
std::string text(SimTime value) {
    return text(value.time_since_epoch());
}
std::string text(double value) {
    return std::to_string(value);
}
std::string text(Int128 value) {
    return fmt::format("{}", value);
}
template <class T>
std::string text(const std::vector<T>& values) {
    return fmt::format("[{}]", fmt::join(values, ","));
}

/// Remembers the first difference only.
class Differences {
public:
    template <class T>
    void check(const std::string& what, const T& expected, const T& actual) {
        if (first_.empty() && !(expected == actual))
            first_ = fmt::format("{}: expected {}, got {}", what, text(expected), text(actual));
    }
    void check_near(const std::string& what, double expected, double actual) {
        if (std::abs(expected - actual) > 1e-9 * std::max(std::abs(expected), std::abs(actual))) check(what, expected, actual);
    }
    void say(const std::string& difference) {
        if (first_.empty()) first_ = difference;
    }
    [[nodiscard]] bool found() const { return !first_.empty(); }
    [[nodiscard]] const std::string& first() const { return first_; }

private:
    std::string first_;
};

std::string name_of(const StepRecord& expected, const StepRecord& actual) {
    if (expected.step != actual.step) return "step";
    if (expected.scheduled != actual.scheduled) return "scheduled";
    if (expected.total_tokens != actual.total_tokens) return "total_tokens";
    if (expected.preempted != actual.preempted) return "preempted";
    if (expected.free_after_schedule != actual.free_after_schedule) return "free_after_schedule";
    if (expected.updated_step != actual.updated_step) return "updated_step";
    if (expected.received != actual.received) return "received";
    if (expected.finished != actual.finished) return "finished";
    if (expected.free_after_update != actual.free_after_update) return "free_after_update";
    if (expected.running != actual.running) return "running";
    if (expected.waiting != actual.waiting) return "waiting";
    if (expected.start != actual.start) return "start";
    return "duration";
}

void compare_steps(const Run& expected, const Run& actual, Differences& differences) {
    for (std::int64_t r = 0; r < std::max(expected.replicas, actual.replicas); ++r) {
        const auto of = [r](const Run& run) {
            const auto found = run.steps.find(r);
            return found == run.steps.end() ? std::vector<StepRecord>{} : found->second;
        };
        const std::vector<StepRecord> a = of(expected);
        const std::vector<StepRecord> b = of(actual);
        for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
            if (a[i] == b[i]) continue;
            differences.say(fmt::format("replica {}, step record {}, {}{}\n  expected {}\n  got      {}", r, i,
                                        name_of(a[i], b[i]), i > 0 ? "\n  before   " + to_string(a[i - 1]) : "",
                                        to_string(a[i]), to_string(b[i])));
            return;
        }
        if (a.size() != b.size()) {
            const StepRecord& extra = a.size() > b.size() ? a[b.size()] : b[a.size()];
            differences.say(fmt::format("replica {}: expected {} step records, got {}; the first one more: {}", r, a.size(),
                                        b.size(), to_string(extra)));
            return;
        }
    }
}

void compare_requests(const Outcome& expected, const Outcome& actual, Differences& differences) {
    differences.check("requests", static_cast<std::int64_t>(expected.requests.size()),
                      static_cast<std::int64_t>(actual.requests.size()));
    for (std::size_t i = 0; i < expected.requests.size() && !differences.found(); ++i) {
        const RequestRecord& a = expected.requests[i];
        const RequestRecord& b = actual.requests[i];
        const std::string r = fmt::format("request {} ", i);
        differences.check(r + "arrival", a.arrival, b.arrival);
        differences.check(r + "queue", a.queue, b.queue);
        differences.check(r + "ttft", a.ttft, b.ttft);
        differences.check(r + "e2e", a.e2e, b.e2e);
        differences.check(r + "prompt_tokens", std::int64_t{a.prompt_tokens}, std::int64_t{b.prompt_tokens});
        differences.check(r + "output_tokens", std::int64_t{a.output_tokens}, std::int64_t{b.output_tokens});
        differences.check(r + "cached_prompt_tokens", std::int64_t{expected.cached_prompt_tokens[i]},
                          std::int64_t{actual.cached_prompt_tokens[i]});
        differences.check(r + "recomputed_tokens", std::int64_t{expected.recomputed_tokens[i]},
                          std::int64_t{actual.recomputed_tokens[i]});
        differences.check(r + "preemptions", std::int64_t{a.preemptions}, std::int64_t{b.preemptions});
        differences.check(r + "replica", std::int64_t{a.replica}, std::int64_t{b.replica});
        differences.check(r + "finish", static_cast<std::int64_t>(a.finish), static_cast<std::int64_t>(b.finish));
        differences.check(r + "measured", std::int64_t{a.measured}, std::int64_t{b.measured});
    }
}

void compare_histogram(const std::string& name, const LogLinearHistogram& a, const LogLinearHistogram& b,
                       Differences& differences) {
    differences.check(name + " count", a.count(), b.count());
    differences.check(name + " min", a.min(), b.min());
    differences.check(name + " max", a.max(), b.max());
    differences.check(name + " mean", a.mean(), b.mean());
    differences.check_near(name + " standard deviation", a.standard_deviation(), b.standard_deviation());
    if (a.count() != b.count()) return;
    for (const double q : {0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0}) {
        differences.check(name + " quantile " + text(q), a.quantile(q), b.quantile(q));
    }
}

void compare_integrals(const Integrals& a, const Integrals& b, Differences& differences) {
    differences.check("blocks_used_dt", a.blocks_used_dt, b.blocks_used_dt);
    differences.check("blocks_used_peak", a.blocks_used_peak, b.blocks_used_peak);
    differences.check("slots_busy_dt", a.slots_busy_dt, b.slots_busy_dt);
    differences.check("slots_reserved_dt", a.slots_reserved_dt, b.slots_reserved_dt);
    differences.check("slots_internal_dt", a.slots_internal_dt, b.slots_internal_dt);
    differences.check("slots_token_dt", a.slots_token_dt, b.slots_token_dt);
    differences.check("in_system_dt", a.in_system_dt, b.in_system_dt);
    const std::array<const char*, 4> bounds{"kv_blocks", "seats", "token_budget", "no_waiting"};
    for (std::size_t i = 0; i < bounds.size(); ++i) {
        differences.check(std::string("bound ") + bounds[i], a.bound[i], b.bound[i]);
    }
    differences.check("idle", a.idle, b.idle);
    differences.check("any_waiting", a.any_waiting, b.any_waiting);
    differences.check("finished_while_waiting", a.finished_while_waiting, b.finished_while_waiting);
    differences.check("stepping", a.stepping, b.stepping);
    differences.check_near("recompute_ns", a.recompute_ns, b.recompute_ns);
}

void compare_counters(const Counters& a, const Counters& b, Differences& differences) {
    differences.check("arrivals", a.arrivals, b.arrivals);
    differences.check("completed", a.completed, b.completed);
    differences.check("rejected", a.rejected, b.rejected);
    differences.check("queue_full", a.queue_full, b.queue_full);
    differences.check("timed_out", a.timed_out, b.timed_out);
    differences.check("cancelled", a.cancelled, b.cancelled);
    differences.check("retries", a.retries, b.retries);
    differences.check("wasted_tokens", a.wasted_tokens, b.wasted_tokens);
    differences.check("wasted_output_tokens", a.wasted_output_tokens, b.wasted_output_tokens);
    differences.check("steps", a.steps, b.steps);
    differences.check("rows", a.rows, b.rows);
    differences.check("tokens", a.tokens, b.tokens);
    differences.check("recomputed_tokens", a.recomputed_tokens, b.recomputed_tokens);
    differences.check("preemptions", a.preemptions, b.preemptions);
    differences.check("swapped_tokens", a.swapped_tokens, b.swapped_tokens);
    differences.check("dropped", a.dropped, b.dropped);
    differences.check("preempted_requests", a.preempted_requests, b.preempted_requests);
    differences.check("hit_tokens_first", a.hit_tokens_first, b.hit_tokens_first);
    differences.check("prompt_tokens_first", a.prompt_tokens_first, b.prompt_tokens_first);
    differences.check("hit_tokens_resume", a.hit_tokens_resume, b.hit_tokens_resume);
    differences.check("tokens_resume", a.tokens_resume, b.tokens_resume);
    differences.check("completed_by_last_arrival", a.completed_by_last_arrival, b.completed_by_last_arrival);
    differences.check("waiting_at_last_arrival", a.waiting_at_last_arrival, b.waiting_at_last_arrival);
    differences.check("max_in_system", a.max_in_system, b.max_in_system);
    differences.check("max_output_tokens_per_s", a.max_output_tokens_per_s, b.max_output_tokens_per_s);
    if (!(a == b)) differences.say("counters differ in a field this comparison does not know");
}

void compare_timelines(const std::vector<TimelineSample>& a, const std::vector<TimelineSample>& b, Differences& differences) {
    for (std::size_t i = 0; i < std::min(a.size(), b.size()) && !differences.found(); ++i) {
        const std::string s = fmt::format("timeline sample {} at {} ", i, text(a[i].at));
        differences.check(s + "at", a[i].at, b[i].at);
        differences.check(s + "replica", std::int64_t{a[i].replica}, std::int64_t{b[i].replica});
        differences.check(s + "running", a[i].running, b[i].running);
        differences.check(s + "waiting", a[i].waiting, b[i].waiting);
        differences.check(s + "kv_blocks_used", a[i].kv_blocks_used, b[i].kv_blocks_used);
        differences.check(s + "step", a[i].step, b[i].step);
        differences.check(s + "batch_tokens", a[i].batch_tokens, b[i].batch_tokens);
        differences.check(s + "prefill_tokens", a[i].prefill_tokens, b[i].prefill_tokens);
        differences.check(s + "decode_tokens", a[i].decode_tokens, b[i].decode_tokens);
        differences.check(s + "preemptions", a[i].preemptions, b[i].preemptions);
        differences.check(s + "reserved_slots", a[i].reserved_slots, b[i].reserved_slots);
        differences.check(s + "internal_slots", a[i].internal_slots, b[i].internal_slots);
    }
    differences.check("timeline samples", static_cast<std::int64_t>(a.size()), static_cast<std::int64_t>(b.size()));
}

void compare_marks(const std::vector<WindowMark>& a, const std::vector<WindowMark>& b, Differences& differences) {
    for (std::size_t i = 0; i < std::min(a.size(), b.size()) && !differences.found(); ++i) {
        const std::string w = fmt::format("window mark {} at {} ", i, text(a[i].at));
        differences.check(w + "at", a[i].at, b[i].at);
        differences.check(w + "blocks_used_dt", a[i].blocks_used_dt, b[i].blocks_used_dt);
        differences.check(w + "in_system_dt", a[i].in_system_dt, b[i].in_system_dt);
        differences.check(w + "slots_busy_dt", a[i].slots_busy_dt, b[i].slots_busy_dt);
        differences.check(w + "slots_token_dt", a[i].slots_token_dt, b[i].slots_token_dt);
        differences.check(w + "slots_reserved_dt", a[i].slots_reserved_dt, b[i].slots_reserved_dt);
        differences.check(w + "slots_internal_dt", a[i].slots_internal_dt, b[i].slots_internal_dt);
        differences.check(w + "steps", a[i].steps, b[i].steps);
        differences.check(w + "rows", a[i].rows, b[i].rows);
        differences.check(w + "tokens", a[i].tokens, b[i].tokens);
        differences.check(w + "preemptions", a[i].preemptions, b[i].preemptions);
    }
    differences.check("window marks", static_cast<std::int64_t>(a.size()), static_cast<std::int64_t>(b.size()));
}

}  // namespace

std::string to_string(const StepRecord& record) {
    std::string rows;
    for (const ScheduledRow& row : record.scheduled) {
        const char* kind = row.kind == ScheduledRow::Kind::fresh     ? "new"
                           : row.kind == ScheduledRow::Kind::resumed ? "resumed"
                                                                     : "running";
        rows += fmt::format(" {}: n {}, c {}, {}, b {}{};", row.id, row.tokens, row.computed, kind, text(row.blocks),
                            row.tables.empty() ? "" : " of tables " + text(row.tables));
    }
    return fmt::format(
        "step {} [{}] total {} preempted {} free_sched {} upd {} tok {} finished {} free {} running {} waiting {} start {} "
        "duration {}",
        record.step, rows, record.total_tokens, text(record.preempted), record.free_after_schedule, record.updated_step,
        text(record.received), text(record.finished), record.free_after_update, text(record.running), text(record.waiting),
        text(record.start), text(record.duration));
}

std::string first_difference(const Run& expected, const Run& actual) {
    Differences differences;
    differences.check("refused", std::int64_t{expected.refused}, std::int64_t{actual.refused});
    differences.check("endless", std::int64_t{expected.endless}, std::int64_t{actual.endless});
    if (expected.recorded && actual.recorded) compare_steps(expected, actual, differences);
    for (std::size_t i = 0; i < std::min(expected.loads.size(), actual.loads.size()); ++i) {
        differences.check(fmt::format("replica load {} requests", i), expected.loads[i].first, actual.loads[i].first);
        differences.check(fmt::format("replica load {} tokens", i), expected.loads[i].second, actual.loads[i].second);
    }
    if (expected.endless) return differences.first();
    differences.check("routings", static_cast<std::int64_t>(expected.loads.size()),
                      static_cast<std::int64_t>(actual.loads.size()));
    const Outcome& a = expected.outcome;
    const Outcome& b = actual.outcome;
    compare_requests(a, b, differences);
    compare_counters(a.counters, b.counters, differences);
    differences.check("first_arrival", a.first_arrival, b.first_arrival);
    differences.check("last_arrival", a.last_arrival, b.last_arrival);
    differences.check("end", a.end, b.end);
    differences.check("usable_blocks", a.usable_blocks, b.usable_blocks);
    differences.check("block_size", a.block_size, b.block_size);
    differences.check("replicas", a.replicas, b.replicas);
    differences.check("stalled", std::int64_t{!a.stall_report.empty()}, std::int64_t{!b.stall_report.empty()});
    compare_integrals(a.integrals, b.integrals, differences);
    compare_histogram("itl", a.itl, b.itl, differences);
    compare_histogram("itl_all", a.itl_all, b.itl_all, differences);
    compare_timelines(a.timeline, b.timeline, differences);
    compare_marks(a.window_marks, b.window_marks, differences);
    if (a.external_ids != b.external_ids) differences.say("external_ids differ");
    if (a.classes != b.classes) differences.say("classes differ");
    if (a.sessions != b.sessions) differences.say("sessions differ");
    if (a.tenants != b.tenants) differences.say("tenants differ");
    if (a.attempts != b.attempts) differences.say("attempts differ");
    if (a.client_queue != b.client_queue) differences.say("client_queue differs");
    if (a.unfinished_after != b.unfinished_after) differences.say("unfinished_after differs");
    if (a.wasted != b.wasted) differences.say("wasted differs");
    if (a.itl_p99 != b.itl_p99) differences.say("itl_p99 differs");
    if (expected.left != actual.left) differences.say("calls of Workload::finished differ");
    return differences.first();
}

}  // namespace kvsim::oracle
