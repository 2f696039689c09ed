#include "kvsim/report/output_analysis.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvsim/random/stream.hpp"
#include "kvsim/report/quantile.hpp"

using namespace kvsim;

namespace {

double uniform(Stream& stream) {
    return stream.uniform();
}

double normal(Stream& stream) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform(stream);
    return sum;
}

/// AR(1) around `level` with unit innovations, in millionths.
std::vector<std::int64_t> autoregressive(std::uint64_t seed, std::size_t n, double phi, double level) {
    Stream stream(seed, "test.ar1", 0);
    std::vector<std::int64_t> out;
    double x = 0;
    for (std::size_t i = 0; i < n; ++i) {
        x = phi * x + normal(stream);
        out.push_back(static_cast<std::int64_t>((level + x) * 1e6));
    }
    return out;
}

/// Times in system of M/M/1 with mean service 1, from empty (Lindley), in ns.
std::vector<std::int64_t> single_server(std::uint64_t seed, std::size_t n, double load) {
    Stream stream(seed, "test.mm1", 0);
    std::vector<std::int64_t> out;
    double wait = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const double service = -std::log(1 - uniform(stream));
        out.push_back(static_cast<std::int64_t>((wait + service) * 1e9));
        wait = std::max(0.0, wait + service + std::log(1 - uniform(stream)) / load);
    }
    return out;
}

Confidence confidence_of(const std::vector<std::int64_t>& series) {
    const std::vector<double> at = quantiles(series, std::vector<double>{0.5, 0.9, 0.95, 0.99});
    return confidence(series, {at[0], at[1], at[2], at[3]});
}

}  // namespace

TEST_CASE("output analysis: Student's t against its tables") {
    CHECK(student_t(0.025, 1) == doctest::Approx(12.7062).epsilon(1e-5));
    CHECK(student_t(0.025, 4) == doctest::Approx(2.77645).epsilon(1e-5));
    CHECK(student_t(0.025, 19) == doctest::Approx(2.09302).epsilon(1e-5));
    CHECK(student_t(0.0005, 10) == doctest::Approx(4.58689).epsilon(1e-5));
    CHECK(student_t(0.025, 100'000) == doctest::Approx(1.95999).epsilon(1e-4));
}

TEST_CASE("output analysis: MSER-5 by hand") {
    // Batch means 100, 40, 10, 12, 10, 12, 10, 12, 10, 12. Cutting d = 0 ... 4 leaves (k - d)^2 below the squares around the
    // mean: 7,377.6/100 = 73.8, 755.6/81 = 9.33, 8/64 = 0.125, 6.857/49 = 0.140, 6/36 = 0.167: two batches of 5 are cut.
    std::vector<std::int64_t> series;
    for (const std::int64_t z : {100, 40, 10, 12, 10, 12, 10, 12, 10, 12}) {
        for (const std::int64_t offset : {-2, -1, 0, 1, 2}) series.push_back(z + offset);
    }
    CHECK(mser5(series).found);
    CHECK(mser5(series).values == 10);
    series.insert(series.end(), {500, 500, 500, 500});  // no whole batch
    CHECK(mser5(series).values == 10);
    // Fewer than 10 batches say nothing.
    CHECK_FALSE(mser5(std::vector<std::int64_t>(49, 3)).found);
    // A constant series has nothing to cut, whatever its value rounds to.
    const WarmUp constant = mser5(std::vector<std::int64_t>(5'000, 333'333'333));
    CHECK(constant.found);
    CHECK(constant.values == 0);
    // Growing without end: the minimum lies at the end.
    std::vector<std::int64_t> growing;
    for (std::int64_t i = 0; i < 1000; ++i) growing.push_back(i * i);
    CHECK_FALSE(mser5(growing).found);
    CHECK(mser5(growing).values == 0);
}

TEST_CASE("output analysis: MSER-5 cuts a transient off AR(1) and little of what has none") {
    std::size_t cut = 0;
    std::size_t needless = 0;
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
        std::vector<std::int64_t> series = autoregressive(seed, 4'000, 0.7, 100);
        needless += mser5(series).values > 800 ? 1U : 0U;
        for (std::size_t i = 0; i < 400; ++i)
            series[i] -= static_cast<std::int64_t>(80e6 * std::exp(-static_cast<double>(i) / 80));
        const WarmUp w = mser5(series);
        // 80 exp(-x / 80) is below the noise's 1.4 from x = 320 on.
        cut += w.found && w.values >= 150 && w.values <= 800 ? 1U : 0U;
    }
    CHECK(cut >= 38);
    CHECK(needless <= 4);
}

TEST_CASE("output analysis: the interval of a mean by hand") {
    // 20 values: 10 batches of 2 with means 1 ... 10, descending and ascending in turn so that r is negative.
    std::vector<std::int64_t> series;
    for (const std::int64_t mean : {10, 1, 9, 2, 8, 3, 7, 4, 6, 5}) {
        series.push_back(mean * 10 - 1);
        series.push_back(mean * 10 + 1);
    }
    const Confidence c = confidence_of(series);
    // Mean 55; sample variance of 10 ... 100 is 916.67; t(9) = 2.26216.
    REQUIRE(c.mean);
    CHECK(c.mean->low == doctest::Approx(55 - 2.262157 * std::sqrt(916.6667 / 10)));
    CHECK(c.mean->high == doctest::Approx(55 + 2.262157 * std::sqrt(916.6667 / 10)));
    CHECK_FALSE(c.correlated);
    CHECK_FALSE(c.quantile[3]);  // 20 values have no p99
    CHECK_FALSE(confidence_of({1, 2, 3}).mean);
    // A trend is as correlated as can be.
    std::vector<std::int64_t> trend;
    for (std::int64_t i = 0; i < 400; ++i) trend.push_back(i);
    CHECK(confidence_of(trend).correlated);
    // Nothing varies: no width, and no division by it.
    const Confidence flat = confidence_of(std::vector<std::int64_t>(2'000, 7));
    CHECK(flat.mean->half_width() == 0);
    CHECK(flat.quantile[3]->low == 7);
    CHECK_FALSE(flat.correlated);
}

TEST_CASE("output analysis: 95 % intervals cover in 88 to 99 % of short M/M/1 runs") {
    constexpr double load = 0.5;
    constexpr double mean = 2;  // exponential: the quantiles are 2 ln 1/(1 - q)
    const double known[] = {2 * std::log(2), 2 * std::log(10), 2 * std::log(20), 2 * std::log(100)};
    std::int64_t covered = 0;
    std::int64_t correlated = 0;
    std::int64_t quantile_covered[4] = {};
    std::int64_t quantile_known[4] = {};
    constexpr std::int64_t runs = 200;
    for (std::uint64_t seed = 1; seed <= runs; ++seed) {
        const Confidence c = confidence_of(single_server(seed, 4'000, load));
        covered += c.mean->low <= mean * 1e9 && mean * 1e9 <= c.mean->high ? 1 : 0;
        correlated += c.correlated ? 1 : 0;
        for (std::size_t q = 0; q < 4; ++q) {
            if (!c.quantile[q]) continue;
            ++quantile_known[q];
            quantile_covered[q] += c.quantile[q]->low <= known[q] * 1e9 && known[q] * 1e9 <= c.quantile[q]->high ? 1 : 0;
        }
    }
    MESSAGE("covered: mean ", covered, ", p50 ", quantile_covered[0], ", p90 ", quantile_covered[1], ", p95 ",
            quantile_covered[2], ", p99 ", quantile_covered[3], " of ", quantile_known[3], "; correlated ", correlated);
    CHECK(covered >= 176);
    CHECK(covered <= 198);
    for (std::size_t q = 0; q < 3; ++q) {
        CAPTURE(q);
        CHECK(quantile_known[q] >= 190);
        CHECK(quantile_covered[q] >= quantile_known[q] * 88 / 100);
    }
    CHECK(quantile_known[3] >= 190);
    CHECK(quantile_covered[3] >= quantile_known[3] * 91 / 100);
    CHECK(correlated <= 20);
    // At load 0.95 4,000 requests are fewer than the queue remembers: the warning is there for that.
    correlated = 0;
    for (std::uint64_t seed = 1; seed <= 50; ++seed) correlated += confidence_of(single_server(seed, 4'000, 0.95)).correlated;
    CHECK(correlated >= 20);
}

TEST_CASE("output analysis: 95 % intervals of p99 cover, whether neighbours depend on each other or not") {
    struct Series {
        std::string name;
        std::size_t n;
        double load, p99;
    };
    for (const Series& s :
         {Series{"independent", 2'000, 1e-6, std::log(100)}, Series{"load 0.8", 20'000, 0.8, 5 * std::log(100)}}) {
        std::int64_t known = 0;
        std::int64_t covered = 0;
        double width = 0;
        constexpr std::int64_t runs = 200;
        for (std::uint64_t seed = 1; seed <= runs; ++seed) {
            const std::optional<Interval> i = confidence_of(single_server(seed, s.n, s.load)).quantile[3];
            if (!i) continue;
            ++known;
            covered += i->low <= s.p99 * 1e9 && s.p99 * 1e9 <= i->high ? 1 : 0;
            width += i->half_width() / (s.p99 * 1e9);
        }
        width /= static_cast<double>(known);
        MESSAGE(s.name, ": p99 covered in ", covered, " of ", known, " runs, half width ", 100 * width, " %");
        CHECK(known >= 190);
        CHECK(covered >= known * 91 / 100);
        CHECK(width < 0.4);  // an interval that says nothing covers too
    }
    // Nineteen values beyond are too few.
    CHECK_FALSE(confidence_of(single_server(1, 1'999, 1e-6)).quantile[3]);
}

TEST_CASE("output analysis: the interval of a pooled ratio") {
    // 40 requests with gaps of 2 throughout: no spread, however many gaps each has.
    std::vector<std::int64_t> sums;
    std::vector<std::int64_t> counts;
    for (std::int64_t i = 1; i <= 40; ++i) {
        counts.push_back(i);
        sums.push_back(2 * i);
    }
    const RatioConfidence flat = ratio_confidence(sums, counts);
    REQUIRE(flat.interval);
    CHECK(flat.interval->low == doctest::Approx(2));
    CHECK(flat.interval->high == doctest::Approx(2));
    sums[39] += 80;
    const RatioConfidence wide = ratio_confidence(sums, counts);
    CHECK(wide.interval->low < (1640.0 + 80) / 820);
    CHECK(wide.interval->half_width() > 0.05);
    CHECK_FALSE(ratio_confidence(std::span(sums).first(19), std::span(counts).first(19)).interval);
}

TEST_CASE("output analysis: drift is seen where there is one, and rarely elsewhere") {
    // By hand: 20 batch means ascending: every one of the 190 pairs agrees, z = 189 / sqrt(950).
    std::vector<std::int64_t> rising;
    for (std::int64_t i = 0; i < 40; ++i) rising.push_back(100 + i);
    const auto up = drift(rising);
    REQUIRE(up);
    CHECK(up->tau == doctest::Approx(1));
    CHECK(up->p == doctest::Approx(std::erfc(189 / std::sqrt(950.0) / std::sqrt(2.0))));
    CHECK(up->change == doctest::Approx((100 + 29.5) / (100 + 9.5) - 1));
    CHECK(up->drifting);
    // Significant, but nothing to speak of.
    for (std::int64_t& x : rising) x += 100'000;
    CHECK_FALSE(drift(rising)->drifting);
    CHECK_FALSE(drift(std::vector<std::int64_t>(39, 1)));
    CHECK_FALSE(drift(std::vector<std::int64_t>(100, 0)));
    CHECK(drift(std::vector<std::int64_t>(100, 5))->p == 1);

    std::int64_t false_alarms = 0;
    std::int64_t seen = 0;
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
        false_alarms += drift(single_server(seed, 4'000, 0.5))->drifting ? 1 : 0;
        seen += drift(single_server(seed, 4'000, 1.2))->drifting ? 1 : 0;
    }
    MESSAGE("drift: ", false_alarms, " false alarms, ", seen, " seen of 200");
    CHECK(false_alarms <= 6);
    CHECK(seen >= 195);
}

TEST_CASE("output analysis: mean over replications by hand") {
    const std::vector<double> runs{10, 12, 11, 13, 9};
    const ReplicationMean m = replication_mean(runs);
    CHECK(m.mean == doctest::Approx(11));
    CHECK(*m.half_width == doctest::Approx(2.776445 * std::sqrt(2.5 / 5)));  // sample variance 10 / 4
    CHECK_FALSE(replication_mean(std::vector<double>{3}).half_width);
    CHECK(*replication_mean(std::vector<double>{0.1, 0.1, 0.1}).half_width == 0);
}

TEST_CASE("output analysis: batch sums beyond 64 bits") {
    constexpr std::int64_t large = INT64_MAX - 40;
    BatchMeans batches(40);  // 20 batches of 2
    for (std::int64_t i = 0; i < 40; ++i) batches.add(large + i);
    REQUIRE(batches.means().size() == 20);
    for (std::size_t j = 0; j < 20; ++j) CHECK(batches.means()[j] == static_cast<double>(large));
    CHECK(batches.mean() == static_cast<double>(large));
    BatchMeans signs(40);
    for (std::int64_t i = 0; i < 40; ++i) signs.add(i % 2 == 0 ? -large - i : -large + i);
    CHECK(signs.mean() == static_cast<double>(-large));
    BatchMeans small(40);
    for (std::int64_t i = 0; i < 40; ++i) small.add(i);
    CHECK(small.means()[3] == 6.5);
    CHECK(small.mean() == 19.5);
}
