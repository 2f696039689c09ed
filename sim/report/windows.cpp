#include "kvsim/report/windows.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <vector>

#include "kvsim/base/text.hpp"
#include "kvsim/report/quantile.hpp"
#include "kvsim/report/summary.hpp"
#include "kvsim/report/writers.hpp"

namespace kvsim {
namespace {

constexpr std::array<double, 2> ranks{0.5, 0.99};

struct Share {
    std::int64_t met = 0;
    std::int64_t judged = 0;
};

/// Of one window and class.
struct Row {
    std::int64_t arrivals = 0, measured = 0, completions = 0, rejected = 0, timed_out = 0, cancelled = 0, failed = 0;
    std::int64_t output_tokens = 0, total_tokens = 0;    // of the completions
    std::array<std::vector<std::int64_t>, 4> latencies;  // queue, ttft, tpot, e2e
    std::array<Share, 6> attainment;                     // ttft, tpot, e2e, queue, all, itl_p99
};

constexpr std::size_t all_limits = 4;
struct Limit {
    std::optional<SimDuration> config::SloConfig::*limit;
    bool LimitsMet::*met;
    std::size_t share;  // place in Row::attainment
};
constexpr std::array limits{
    Limit{&config::SloConfig::ttft, &LimitsMet::ttft, 0}, Limit{&config::SloConfig::tpot, &LimitsMet::tpot, 1},
    Limit{&config::SloConfig::e2e, &LimitsMet::e2e, 2}, Limit{&config::SloConfig::queue, &LimitsMet::queue, 3},
    Limit{&config::SloConfig::itl_p99, &LimitsMet::itl_p99, 5}};

void judge(Row& row, const RequestRecord& r, const config::SloConfig& slo, SimDuration itl_p99) {
    const std::optional<LimitsMet> met = limits_met(r, slo, itl_p99);
    if (!met) return;
    const auto add = [&](std::size_t share, bool good) {
        ++row.attainment[share].judged;
        row.attainment[share].met += good ? 1 : 0;
    };
    add(all_limits, met->all());
    for (const Limit& l : limits) {
        if (slo.*l.limit) add(l.share, *met.*l.met);
    }
}

void add_arrival(Row& row, const RequestRecord& r) {
    ++row.arrivals;
    row.measured += r.measured ? 1 : 0;
    row.rejected += r.finish == FinishReason::rejected ? 1 : 0;
    row.timed_out += r.finish == FinishReason::timed_out ? 1 : 0;
    row.cancelled += r.finish == FinishReason::cancelled ? 1 : 0;
    row.failed += r.finish == FinishReason::failed ? 1 : 0;
    if (!completed(r)) return;
    row.latencies[0].push_back(r.queue.count());
    row.latencies[1].push_back(r.ttft.count());
    if (const auto tpot = time_per_output_token(r)) row.latencies[2].push_back(tpot->count());
    row.latencies[3].push_back(r.e2e.count());
}

class Line {
public:
    explicit Line(std::string& out) : out_(out) {}
    void cell(std::string_view text) {
        if (!first_) out_ += ',';
        first_ = false;
        out_ += text;
    }
    void count(std::int64_t value) { cell(std::to_string(value)); }
    void seconds(SimDuration d) { cell(decimals(static_cast<double>(d.count()) / 1e9, 9)); }
    void ratio(double over, double under) { cell(under > 0 ? shortest(over / under) : std::string()); }
    void end() { out_ += '\n'; }

private:
    std::string& out_;
    bool first_ = true;
};

void write_row(std::string& out, std::int64_t window, SimTime start, SimDuration span, std::string_view name, const Row& row,
               const WindowMark* from, const WindowMark* to, std::int64_t replica_blocks) {
    Line line(out);
    const double seconds = to_seconds(span);
    line.count(window);
    line.cell(decimals(static_cast<double>(start.time_since_epoch().count()) / 1e9, 9));
    line.seconds(span);
    std::string quoted;
    append_csv_field(quoted, name);
    line.cell(quoted);
    for (const std::int64_t n : {row.arrivals, row.measured, row.completions, row.rejected, row.timed_out, row.cancelled})
        line.count(n);
    line.ratio(static_cast<double>(row.arrivals), seconds);
    line.ratio(static_cast<double>(row.completions), seconds);
    line.ratio(static_cast<double>(row.output_tokens), seconds);
    line.ratio(static_cast<double>(row.total_tokens), seconds);
    for (const std::vector<std::int64_t>& column : row.latencies) {
        const std::vector<double> at = quantiles(column, ranks);
        for (const double value : at) line.cell(column.empty() ? std::string() : decimals(value / 1e6, 6));
    }
    const auto attainment = [&](const Share& share) {
        line.ratio(static_cast<double>(share.met), static_cast<double>(share.judged));
    };
    for (std::size_t i = 0; i <= all_limits; ++i) attainment(row.attainment[i]);
    if (from != nullptr) {
        const auto time = static_cast<double>(span.count());
        const auto steps = static_cast<double>(to->steps - from->steps);
        line.ratio(static_cast<double>(to->blocks_used_dt - from->blocks_used_dt), time * static_cast<double>(replica_blocks));
        line.ratio(static_cast<double>(to->in_system_dt - from->in_system_dt), time);
        line.ratio(static_cast<double>(to->rows - from->rows), steps);
        line.ratio(static_cast<double>(to->tokens - from->tokens), steps);
        line.count(to->steps - from->steps);
        line.count(to->preemptions - from->preemptions);
    } else {
        for (int i = 0; i < 6; ++i) line.cell("");
    }
    attainment(row.attainment.back());
    if (from != nullptr) {
        const auto during = [&](Int128 WindowMark::*sum) { return to->*sum - from->*sum; };
        const Int128 busy = during(&WindowMark::slots_busy_dt);
        Int128 external = busy;
        for (const auto part : {&WindowMark::slots_token_dt, &WindowMark::slots_reserved_dt, &WindowMark::slots_internal_dt}) {
            line.ratio(static_cast<double>(during(part)), static_cast<double>(busy));
            external -= during(part);
        }
        line.ratio(static_cast<double>(external), static_cast<double>(busy));
    } else {
        for (int i = 0; i < 4; ++i) line.cell("");
    }
    line.count(row.failed);
    line.end();
}

}  // namespace

std::string windows_csv(const RunInfo& info, const Outcome& outcome) {
    std::string out =
        "window,t_s,window_s,class,arrivals,measured,completions,rejected,timed_out,cancelled,offered_rate_req_s,"
        "request_throughput_req_s,output_throughput_tok_s,total_token_throughput_tok_s,queue_p50_ms,queue_p99_ms,ttft_p50_ms,"
        "ttft_p99_ms,tpot_p50_ms,tpot_p99_ms,e2e_p50_ms,e2e_p99_ms,ttft_attainment,tpot_attainment,e2e_attainment,"
        "queue_attainment,slo_attainment,kv_usage_mean,in_system_mean,batch_size_mean,batch_tokens_mean,steps,preemptions,itl_"
        "p99_attainment,kv_token_share,kv_reserved_share,kv_internal_share,kv_external_share,failed\n";
    const std::vector<WindowMark>& marks = outcome.window_marks;
    if (marks.size() < 2) return out;
    const SimTime origin = marks.front().at;
    const auto last = static_cast<std::int64_t>(marks.size()) - 2;
    // All but the last window are of one length.
    const SimDuration width = last > 0 ? marks[1].at - origin : std::max(marks[1].at - origin, SimDuration(1));
    const auto window_of = [&](SimTime at) {
        return static_cast<std::size_t>(std::clamp<std::int64_t>((at - origin) / width, 0, last));
    };

    const Slos slos(outcome, info.slo, info.class_slos);
    std::vector<Row> all(marks.size() - 1);
    std::map<std::string_view, std::vector<Row>> by_class;
    std::vector<std::vector<Row>*> of_class(outcome.classes.different() + 1, nullptr);  // by number
    for (std::uint32_t number = 1; number < of_class.size(); ++number) {
        of_class[number] = &by_class[outcome.classes.name(number)];
        of_class[number]->resize(all.size());
    }
    for (std::size_t id = 0; id < outcome.requests.size(); ++id) {
        const RequestRecord& r = outcome.requests[id];
        const auto add = [&](std::vector<Row>& rows) {
            Row& arrived = rows[window_of(r.arrival)];
            add_arrival(arrived, r);
            judge(arrived, r, slos.of(static_cast<RequestId>(id)), slos.itl_p99(static_cast<RequestId>(id)));
            if (!completed(r)) return;
            Row& row = rows[window_of(r.arrival + r.e2e)];
            ++row.completions;
            row.output_tokens += r.output_tokens;
            row.total_tokens += std::int64_t{r.output_tokens} + r.prompt_tokens;
        };
        add(all);
        if (std::vector<Row>* const own = of_class[outcome.classes.number(id)]) add(*own);
    }

    const std::int64_t blocks = outcome.usable_blocks * outcome.replicas;
    for (std::size_t i = 0; i < all.size(); ++i) {
        const SimDuration span = marks[i + 1].at - marks[i].at;
        write_row(out, static_cast<std::int64_t>(i), marks[i].at, span, "", all[i], &marks[i], &marks[i + 1], blocks);
        for (const auto& [name, rows] : by_class)
            write_row(out, static_cast<std::int64_t>(i), marks[i].at, span, name, rows[i], nullptr, nullptr, blocks);
    }
    return out;
}

}  // namespace kvsim
