// Figures of records taken one by one and four at a time: the same to the last bit.

#include "kvsim/report/exact_tally.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "kvsim/base/check.hpp"
#include "kvsim/random/stream.hpp"

using namespace kvsim;

namespace {

constexpr std::int64_t limit = std::int64_t{1} << 51;  // of the times that are taken four at a time

struct Figures {
    std::vector<double> values;
    std::vector<std::int64_t> counts;
    std::vector<std::string> correlated;
    bool operator==(const Figures&) const = default;
};

Figures figures(const Tally& t) {
    Figures f;
    for (const Distribution* const d : {&t.prompt, &t.output, &t.ttft, &t.tpot, &t.e2e, &t.queue}) {
        f.counts.push_back(d->count);
        for (const double v : {d->mean, d->standard_deviation, d->min, d->max, d->p50, d->p90, d->p95, d->p99})
            f.values.push_back(v);
    }
    const auto add = [&f](const std::optional<Interval>& i) {
        f.counts.push_back(i.has_value());
        f.values.push_back(i ? i->low : 0);
        f.values.push_back(i ? i->high : 0);
    };
    for (const DistributionInterval* const d : {&t.ttft_ci95, &t.tpot_ci95, &t.itl_ci95, &t.e2e_ci95, &t.queue_ci95}) {
        for (const auto& interval : {d->mean, d->p50, d->p90, d->p95, d->p99}) add(interval);
    }
    f.counts.push_back(t.drift.has_value());
    if (t.drift) f.values.insert(f.values.end(), {t.drift->tau, t.drift->p, t.drift->change});
    f.counts.insert(f.counts.end(), {t.requests, t.completed, t.rejected, t.timed_out, t.cancelled, t.failed, t.never_started,
                                     t.prompt_tokens, t.output_tokens, t.preemptions, t.preempted_requests,
                                     t.first_arrival.time_since_epoch().count(), t.last_completion.time_since_epoch().count()});
    f.correlated = t.correlated;
    return f;
}

void check_forms_agree(const std::vector<RequestRecord>& records) {
    for (const bool measured_only : {true, false}) {
        for (const bool intervals : {true, false}) {
            CAPTURE(measured_only);
            CAPTURE(intervals);
            CHECK(figures(exact_tally(records, measured_only, intervals, has_avx2)) ==
                  figures(exact_tally(records, measured_only, intervals, false)));
        }
    }
}

class Records {
public:
    explicit Records(std::uint64_t seed) : stream_(seed, "test.records") {}
    std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(stream_.uniform() * static_cast<double>(n)); }

    RequestRecord ordinary() {
        RequestRecord r;
        r.arrival = SimTime(SimDuration(below(1'000'000'000'000)));
        r.queue = SimDuration(below(3) == 0 ? 0 : below(20'000'000));
        r.ttft = r.queue + SimDuration(below(2) + below(2) * below(300'000'000));
        r.prompt_tokens = static_cast<std::int32_t>(1 + below(below(8) == 0 ? 65'535 : 1'000));
        r.output_tokens = static_cast<std::int32_t>(2 + below(below(8) == 0 ? 65'534 : 300));
        r.e2e = r.ttft + SimDuration(below(2) + below(r.output_tokens * std::int64_t{30'000'000}));
        r.preemptions = static_cast<std::int32_t>(below(4) == 0 ? below(6) : 0);
        r.replica = static_cast<std::uint16_t>(below(65'536));
        r.finish = FinishReason::length;
        return r;
    }
    RequestRecord odd() {
        RequestRecord r = ordinary();
        const SimDuration huge(limit - 2 + below(below(2) == 0 ? 4 : 1000 * limit));
        switch (below(10)) {
            case 0:
                r.measured = false;
                break;
            case 1:
                r.finish = FinishReason::stop;
                break;
            case 2:
                r.output_tokens = 1;
                break;
            case 3:
                r.prompt_tokens = 65'534 + static_cast<std::int32_t>(below(4));
                break;
            case 4:
                r.output_tokens = 65'534 + static_cast<std::int32_t>(below(70'000));
                break;
            case 5:
                r.preemptions = 65'534 + static_cast<std::int32_t>(below(1'000'000'000));
                break;
            case 6:
                r.e2e = std::max(r.e2e, huge);
                break;
            case 7:
                r.ttft = r.e2e = huge;
                break;
            case 8:
                r.queue = r.ttft = r.e2e = huge;
                break;
            default:
                r.finish = std::array{FinishReason::unfinished, FinishReason::rejected, FinishReason::timed_out,
                                      FinishReason::cancelled, FinishReason::failed}[static_cast<std::size_t>(below(5))];
                r.e2e = SimDuration(-1);
                if (below(2) == 0) r.queue = r.ttft = SimDuration(-1);
        }
        return r;
    }

private:
    Stream stream_;
};

}  // namespace

TEST_CASE("exact tally: four at a time, whatever lies between ordinary records and wherever batches end") {
    Records make(1);
    // Odd ones: none, a few, many, most, and all but a few.
    for (const double odd : {0.0, 0.001, 0.05, 0.5, 0.998}) {
        // Of all of these more than 8192 complete, below which nothing is taken four at a time.
        for (const std::size_t n : std::initializer_list<std::size_t>{11'000, 11'001, 11'022, 11'043, 18'000}) {
            CAPTURE(odd);
            CAPTURE(n);
            std::vector<RequestRecord> records;
            for (std::size_t i = 0; i < n; ++i)
                records.push_back(static_cast<double>(make.below(1000)) < 1000 * odd ? make.odd() : make.ordinary());
            check_forms_agree(records);
        }
    }
}

TEST_CASE("exact tally: four at a time, few requests with gaps") {
    Records make(5);
    for (const std::size_t gapped : std::initializer_list<std::size_t>{0, 8, 19, 20, 41, 83, 4'000}) {
        CAPTURE(gapped);
        std::vector<RequestRecord> records;
        for (std::size_t i = 0; i < 9'001; ++i) {
            records.push_back(make.ordinary());
            if (i < 3'000 || i >= 3'000 + gapped) records.back().output_tokens = 1;
        }
        check_forms_agree(records);
    }
}

TEST_CASE("exact tally: four at a time, times up to where one is taken alone") {
    Records make(2);
    std::vector<RequestRecord> records(90'003, make.ordinary());
    for (RequestRecord& r : records) {
        r.e2e = SimDuration(limit - 1 - make.below(3));
        r.ttft = r.e2e - SimDuration(make.below(2));
        r.queue = r.ttft - SimDuration(make.below(2));
        r.preemptions = 65'535;
    }
    const Tally t = exact_tally(records, true, true, has_avx2);
    CHECK(t.preemptions == 90'003 * std::int64_t{65'535});
    CHECK(t.preempted_requests == 90'003);
    CHECK(t.e2e.max == static_cast<double>(limit - 1) / 1e6);
    CHECK(t.e2e.mean == doctest::Approx(static_cast<double>(limit - 2) / 1e6).epsilon(1e-15));
    check_forms_agree(records);
}

TEST_CASE("exact tally: four at a time, mean gaps around the halves between whole ns") {
    Records make(3);
    std::vector<RequestRecord> records;
    std::int64_t sum = 0;
    for (int i = 0; i < 9'000; ++i) {
        RequestRecord r = make.ordinary();
        const std::int64_t gaps = r.output_tokens - 1;
        const std::int64_t whole = 1 + make.below(std::min(limit / gaps - 2, std::int64_t{1} << 36));
        r.queue = r.ttft = SimDuration(0);
        r.e2e = SimDuration(whole * gaps - gaps / 2 - make.below(2));
        sum += mean_gap(r).count();
        records.push_back(r);
    }
    const Tally t = exact_tally(records, true, true, has_avx2);
    CHECK(t.tpot.mean == static_cast<double>(sum) / 9'000 / 1e6);
    check_forms_agree(records);
}

TEST_CASE("exact tally: a record whose times are out of order is a bug wherever it stands") {
    Records make(4);
    std::vector<RequestRecord> records;
    for (int i = 0; i < 9'000; ++i) records.push_back(make.ordinary());
    for (const std::size_t at : std::initializer_list<std::size_t>{0, 4'001, 4'002, 4'003, 8'999}) {
        for (int kind = 0; kind < 3; ++kind) {
            std::vector<RequestRecord> wrong = records;
            RequestRecord& r = wrong[at];
            if (kind == 0) r.queue = SimDuration(-1);
            if (kind == 1) r.ttft = r.queue - SimDuration(1);
            if (kind == 2) r.e2e = r.ttft - SimDuration(1);
            CHECK_THROWS_AS(static_cast<void>(exact_tally(wrong, true, false, has_avx2)), InternalError);
        }
    }
}
