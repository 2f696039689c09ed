#include "kvsim/report/exact_tally.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "four_records.hpp"
#include "kvsim/report/output_analysis.hpp"
#include "kvsim/report/quantile.hpp"

namespace kvsim {
namespace {

constexpr double ns_per_ms = 1e6;
constexpr std::array<double, 6> statistics{0.5, 0.9, 0.95, 0.99, 0, 1};  // percentile_ranks, least, greatest

/// `at`: the quantiles `statistics`; `squares`: sum of squared distances from `centre`, which is close to the mean.
Distribution distribution(std::int64_t count, double mean, double centre, double squares, std::span<const double> at,
                          double unit) {
    const double beside = mean - centre;
    Distribution d;
    d.count = count;
    d.mean = mean / unit;
    d.standard_deviation = std::sqrt(std::max(0.0, squares / static_cast<double>(count) - beside * beside)) / unit;
    d.min = at[4] / unit;
    d.max = at[5] / unit;
    d.p50 = at[0] / unit;
    d.p90 = at[1] / unit;
    d.p95 = at[2] / unit;
    d.p99 = at[3] / unit;
    return d;
}

/// `sum` of the `count` numbers.
Distribution distribution(const NumberCounts& numbers, std::int64_t count, std::int64_t sum) {
    if (count == 0) return {};
    const double mean = static_cast<double>(sum) / static_cast<double>(count);
    const auto centre = static_cast<std::int64_t>(mean);
    return distribution(count, mean, static_cast<double>(centre), numbers.squares(count, centre),
                        numbers.quantiles(count, statistics), 1);
}

/// One quantity of every request, in two passes over the records: no column is made. The caller counts the values and ends each
/// batch, then collects each value.
class ManyQuantity {
public:
    static constexpr bool by_four = true;
    /// `values`: how many there will be. `intervals`: of their quantiles.
    ManyQuantity(std::int64_t values, bool intervals)
        : values_(values),
          batches_(values),
          intervals_(intervals && batches_.batches() > 0),
          collected_(intervals_ ? batches_.batches() : 0) {}
    void count(std::int64_t value) {
        collected_.passes.count(value);
        batches_.count(value);
    }
    /// Instead of count(): where to count the bins of values, and their sum.
    [[nodiscard]] BinCounters counters() { return collected_.passes.counters(); }
    void add_sum(std::int64_t sum) { batches_.count(sum); }
    void end_batch() {
        batches_.close();
        if (intervals_) collected_.passes.end_batch();
    }

    void turn() {
        if (values_ == 0) return;
        collected_.centre = static_cast<double>(static_cast<std::int64_t>(batches_.mean()));
        std::vector<ShareRange> wanted;
        wanted.reserve(statistics.size() + 2 * percentile_ranks.size());
        for (const double q : statistics) wanted.push_back({q, q});
        if (intervals_) {
            const QuantileEnds expected =
                quantile_ends(shares(collected_.passes.about_below(values_, percentile_ranks)), values_);
            for (std::size_t i = 0; i < expected.ends.size(); ++i) {
                const double end = expected.ends[i];
                const double margin = 0.1 * std::abs(end - percentile_ranks[expected.of[i / 2]]);
                wanted.push_back({std::max(0.0, end - margin), std::min(1.0, end + margin)});
            }
        }
        collected_.passes.want(values_, wanted);
    }
    [[gnu::always_inline]] void collect(std::int64_t value) { collected_.collect(value); }
    [[nodiscard]] Collected& collected() { return collected_; }
    [[nodiscard]] Distribution distribution(double unit) {
        if (values_ == 0) return {};
        at_ = collected_.passes.values(statistics);
        return kvsim::distribution(values_, batches_.mean(), collected_.centre, collected_.squares, at_, unit);
    }

    /// Once the distribution was taken. True: the intervals end outside of where turn() expected it, so each value has to be
    /// collected once more (collect_end()).
    [[nodiscard]] bool turn_to_intervals() {
        if (!intervals_) return false;
        QuantilePasses<std::int64_t>& passes = collected_.passes;
        const std::span<const double> percentiles = std::span(at_).first(percentile_ranks.size());
        ends_ = quantile_ends(shares(passes.at_or_below(percentiles)), values_);
        if (std::all_of(ends_.ends.begin(), ends_.ends.end(), [&](double q) { return passes.wanted(q); })) return false;
        std::vector<ShareRange> wanted;
        for (const double q : ends_.ends) wanted.push_back({q, q});
        passes.want(values_, wanted);
        return true;
    }
    void collect_end(std::int64_t value) { collected_.passes.collect(value); }
    [[nodiscard]] Confidence confidence() const {
        return kvsim::confidence(batches_, ends_, collected_.passes.values(ends_.ends));
    }
    [[nodiscard]] const BatchMeans& batches() const { return batches_; }

private:
    /// Of each batch's values, from their numbers.
    [[nodiscard]] std::array<std::vector<double>, percentile_ranks.size()> shares(
        const std::vector<std::vector<double>>& numbers) const {
        std::array<std::vector<double>, percentile_ranks.size()> shares;
        for (std::size_t q = 0; q < shares.size(); ++q) {
            for (std::size_t b = 0; b < numbers[q].size(); ++b)
                shares[q].push_back(numbers[q][b] / static_cast<double>(batches_.size(b)));
        }
        return shares;
    }

    std::int64_t values_;
    BatchMeans batches_;
    bool intervals_;
    Collected collected_;
    std::vector<double> at_;  // the quantiles `statistics`
    QuantileEnds ends_;
};

/// The same of a few requests: the values stand in a column.
class FewQuantity {
public:
    static constexpr bool by_four = false;
    FewQuantity(std::int64_t values, bool intervals) : intervals_(intervals), batches_(values) {
        column_.reserve(static_cast<std::size_t>(values));
    }
    void count(std::int64_t value) {
        column_.push_back(value);
        batches_.count(value);
    }
    void end_batch() { batches_.close(); }
    void turn() {}
    void collect(std::int64_t) {}
    [[nodiscard]] Distribution distribution(double unit) {
        if (column_.empty()) return {};
        at_ = quantiles(column_, statistics);
        const auto centre = static_cast<double>(static_cast<std::int64_t>(batches_.mean()));
        double squares = 0;
        for (const std::int64_t value : column_) {
            const double beside = static_cast<double>(value) - centre;
            squares += beside * beside;
        }
        return kvsim::distribution(static_cast<std::int64_t>(column_.size()), batches_.mean(), centre, squares, at_, unit);
    }
    [[nodiscard]] bool turn_to_intervals() { return false; }
    void collect_end(std::int64_t) {}
    [[nodiscard]] Confidence confidence() const {
        if (!intervals_ || column_.empty()) return {};
        std::array<double, percentile_ranks.size()> at{};
        for (std::size_t q = 0; q < at.size(); ++q) at[q] = std::floor(at_[q]);
        return kvsim::confidence(column_, at);
    }
    [[nodiscard]] const BatchMeans& batches() const { return batches_; }

private:
    bool intervals_;
    BatchMeans batches_;
    std::vector<std::int64_t> column_;
    std::vector<double> at_;  // the quantiles `statistics`
};

/// Up to here the counters of many bins and batches cost more than a column.
constexpr std::int64_t few_requests = 8192;

/// Says when a batch of several series of the same length is full.
class BatchEnds {
public:
    explicit BatchEnds(std::int64_t values) : batches_(values), left_(batches_.batches() > 0 ? batches_.size(0) : values + 1) {}
    /// Values that the batch in progress still takes, at least 1.
    [[nodiscard]] std::int64_t left() const { return left_; }
    /// Of up to so many values; true: the last of them was the last of its batch.
    bool pass(std::int64_t values) {
        left_ -= values;
        if (left_ != 0) return false;
        left_ = ++batch_ < batches_.batches() ? batches_.size(batch_) : 1;
        return true;
    }

private:
    BatchMeans batches_;
    std::size_t batch_ = 0;
    std::int64_t left_;  // in the batch in progress
};

/// In order of arrival.
template <class Take>
void each_completed(std::span<const RequestRecord> records, bool measured_only, Take&& take) {
    for (const RequestRecord& r : records) {
        if ((r.measured || !measured_only) && completed(r)) take(r);
    }
}

DistributionInterval scaled(const Confidence& c, double unit) {
    const auto part = [unit](const std::optional<Interval>& i) {
        return i ? std::optional(Interval{i->low / unit, i->high / unit}) : std::nullopt;
    };
    return {part(c.mean), part(c.quantile[0]), part(c.quantile[1]), part(c.quantile[2]), part(c.quantile[3])};
}

/// What is known of the requests after a pass over their records, and after the second.
template <class Quantity>
class RecordPasses {
public:
    RecordPasses(std::span<const RequestRecord> records, const CompletedRequests& n, bool measured_only, bool intervals,
                 bool by_four)
        : queue(n.all, intervals),
          ttft(n.all, intervals),
          e2e(n.all, intervals),
          tpot(n.gapped, intervals),
          decoding(n.gapped),
          gaps(n.gapped),
          records_(records),
          measured_only_(measured_only),
          by_four_(by_four && Quantity::by_four),
          ends_(n.all),
          gapped_ends_(n.gapped) {}

    void count() {
        std::size_t alone = by_four_ ? 4 : records_.size();  // records between two attempts to take some by four
        for (std::size_t at = 0; at < records_.size();) {
            if constexpr (Quantity::by_four) {
                if (by_four_) {
                    const std::size_t taken = count_some_ordinary(at);
                    at += taken;
                    alone = taken > 0 ? 4 : std::min(2 * alone, std::size_t{64});
                }
            }
            const std::size_t end = std::min(at + alone, records_.size());
            for (; at < end; ++at) count(records_[at]);
        }
        for (Quantity* const q : {&queue, &ttft, &e2e, &tpot}) q->turn();
    }
    void collect() {
        std::size_t at = 0;
        if constexpr (Quantity::by_four) {
            for (const Stretch& s : ordinary_) {
                collect(records_.subspan(at, s.begin - at));
                collect_ordinary(records_.subspan(s.begin, s.end - s.begin),
                                 {&queue.collected(), &ttft.collected(), &e2e.collected(), &tpot.collected()});
                at = s.end;
            }
        }
        collect(records_.subspan(at));
    }

    RequestCounts counts;
    NumberCounts prompt, output;
    Quantity queue, ttft, e2e, tpot;
    BatchMeans decoding, gaps;  // sums over the requests of tpot: from the first to the last token, tokens after the first

private:
    struct Stretch {
        std::size_t begin, end;
    };

    void count(const RequestRecord& r) {
        if (measured_only_ && !r.measured) return;
        counts.add(r);
        if (!completed(r)) return;
        prompt.count(r.prompt_tokens);
        output.count(r.output_tokens);
        queue.count(r.queue.count());
        ttft.count(r.ttft.count());
        e2e.count(r.e2e.count());
        const bool gapped = r.output_tokens > 1;
        if (gapped) {
            tpot.count(mean_gap(r).count());
            decoding.count((r.e2e - r.ttft).count());
            gaps.count(r.output_tokens - 1);
        }
        pass(1, gapped ? 1 : 0);
    }
    void pass(std::int64_t values, std::int64_t gapped) {
        if (ends_.pass(values)) {
            for (Quantity* const q : {&queue, &ttft, &e2e}) q->end_batch();
        }
        if (gapped > 0 && gapped_ends_.pass(gapped)) {
            tpot.end_batch();
            decoding.close();
            gaps.close();
        }
    }
    /// Ordinary records from there on, of the batches in progress; returns how many.
    std::size_t count_some_ordinary(std::size_t at) {
        const auto room = static_cast<std::size_t>(std::min(ends_.left(), gapped_ends_.left()));
        const OrdinarySums s = count_ordinary(
            records_.subspan(at, std::min(room, records_.size() - at)), measured_only_,
            {queue.counters(), ttft.counters(), e2e.counters(), tpot.counters(), prompt.counters(), output.counters()});
        if (s.records == 0) return 0;
        const auto n = static_cast<std::int64_t>(s.records);
        counts.requests += n;
        counts.completed += n;
        counts.prompt_tokens += s.prompt;
        counts.output_tokens += s.output;
        counts.preemptions += s.preemptions;
        counts.preempted_requests += s.preempted;
        counts.first_arrival = std::min(counts.first_arrival, s.first_arrival);
        counts.last_completion = std::max(counts.last_completion, s.last_completion);
        queue.add_sum(s.queue);
        ttft.add_sum(s.ttft);
        e2e.add_sum(s.e2e);
        tpot.add_sum(s.tpot);
        decoding.count(s.e2e - s.ttft);
        gaps.count(s.output - n);
        pass(n, n);
        if (ordinary_.empty() || ordinary_.back().end != at) ordinary_.push_back({at, at});
        ordinary_.back().end += s.records;
        return s.records;
    }
    void collect(std::span<const RequestRecord> records) {
        each_completed(records, measured_only_, [this](const RequestRecord& r) {
            queue.collect(r.queue.count());
            ttft.collect(r.ttft.count());
            e2e.collect(r.e2e.count());
            if (r.output_tokens > 1) tpot.collect(mean_gap(r).count());
        });
    }

    std::span<const RequestRecord> records_;
    bool measured_only_, by_four_;
    BatchEnds ends_, gapped_ends_;
    std::vector<Stretch> ordinary_;  // of the records, counted four at a time
};

template <class Quantity>
Tally exact_tally(const std::vector<RequestRecord>& records, const CompletedRequests& n, bool measured_only, bool intervals,
                  bool by_four) {
    RecordPasses<Quantity> passes(records, n, measured_only, intervals, by_four);
    passes.count();
    passes.collect();
    Tally t;
    static_cast<RequestCounts&>(t) = passes.counts;
    t.prompt = distribution(passes.prompt, n.all, t.prompt_tokens);
    t.output = distribution(passes.output, n.all, t.output_tokens);
    t.ttft = passes.ttft.distribution(ns_per_ms);
    t.tpot = passes.tpot.distribution(ns_per_ms);
    t.e2e = passes.e2e.distribution(ns_per_ms);
    t.queue = passes.queue.distribution(ns_per_ms);
    if (!intervals) return t;

    const auto interval = [&](std::string_view name, Quantity& quantity, auto value_of) {
        if (quantity.turn_to_intervals()) {
            each_completed(records, measured_only, [&](const RequestRecord& r) {
                if (const std::optional<SimDuration> value = value_of(r)) quantity.collect_end(value->count());
            });
        }
        const Confidence c = quantity.confidence();
        if (c.correlated) t.correlated.emplace_back(name);
        return scaled(c, ns_per_ms);
    };
    t.ttft_ci95 = interval("TTFT", passes.ttft, [](const RequestRecord& r) { return std::optional(r.ttft); });
    t.e2e_ci95 = interval("E2E", passes.e2e, [](const RequestRecord& r) { return std::optional(r.e2e); });
    t.queue_ci95 = interval("queue", passes.queue, [](const RequestRecord& r) { return std::optional(r.queue); });
    t.tpot_ci95 = interval("TPOT", passes.tpot, time_per_output_token);
    t.drift = drift(passes.e2e.batches());
    // The gaps between tokens are pooled, so their mean is a ratio of sums over requests.
    const RatioConfidence itl = ratio_confidence(passes.decoding, passes.gaps);
    if (itl.interval) t.itl_ci95.mean = Interval{itl.interval->low / ns_per_ms, itl.interval->high / ns_per_ms};
    if (itl.correlated) t.correlated.emplace_back("ITL");
    return t;
}

CompletedRequests completed_requests(std::span<const RequestRecord> records, bool measured_only, bool by_four) {
    const std::size_t fours = by_four ? records.size() / 4 * 4 : 0;
    CompletedRequests n = fours > 0 ? completed_by_four(records.first(fours), measured_only) : CompletedRequests();
    each_completed(records.subspan(fours), measured_only, [&](const RequestRecord& r) {
        ++n.all;
        n.gapped += r.output_tokens > 1;
    });
    return n;
}

}  // namespace

Tally exact_tally(const std::vector<RequestRecord>& records, bool measured_only, bool intervals, bool by_four) {
    const CompletedRequests n = completed_requests(records, measured_only, by_four);
    if (n.all <= few_requests) return exact_tally<FewQuantity>(records, n, measured_only, intervals, by_four);
    return exact_tally<ManyQuantity>(records, n, measured_only, intervals, by_four);
}

Distribution exact_client_queue(const Outcome& outcome, std::int64_t completed_requests) {
    if (outcome.client_queue.empty()) return {};
    ManyQuantity waits(completed_requests, false);
    const auto each = [&](auto&& take) {
        DurationColumn::Reader waited(outcome.client_queue);
        for (RequestId id = 0; id < outcome.requests.size(); ++id) {
            const std::int64_t ns = waited.of(id).count();
            if (outcome.requests[id].measured && completed(outcome.requests[id])) take(ns);
        }
    };
    each([&](std::int64_t ns) { waits.count(ns); });
    waits.turn();
    each([&](std::int64_t ns) { waits.collect(ns); });
    return waits.distribution(ns_per_ms);
}

}  // namespace kvsim
