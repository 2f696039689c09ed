#include "kvsim/base/histogram.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "kvsim/report/quantile.hpp"

using namespace kvsim;

namespace {

struct Stream {
    std::uint64_t state;
    double next() {  // in (0, 1)
        std::uint64_t z = state += 0x9E3779B97F4A7C15U;
        z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
        z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
        return (static_cast<double>((z ^ (z >> 31U)) >> 11U) + 0.5) * 0x1p-53;
    }
    double normal() { return std::sqrt(-2 * std::log(next())) * std::cos(6.283185307179586 * next()); }
};

}  // namespace

TEST_CASE("histogram bins are monotone, dense and as narrow as stated") {
    for (const int bits : {1, 7, 10}) {
        CHECK(log_linear_bin(0, bits) == 0);
        CHECK(log_linear_bin(INT64_MAX, bits) == log_linear_bins(bits) - 1);
        std::size_t last = 0;
        std::int64_t jumps = 0, shared = 0;
        for (std::int64_t v = 0; v < 200'000; ++v) {
            const std::size_t bin = log_linear_bin(v, bits);
            jumps += bin != last && bin != last + 1;
            shared += v < (std::int64_t{2} << bits) && bin != static_cast<std::size_t>(v);
            last = bin;
        }
        CHECK(jumps == 0);
        CHECK(shared == 0);
    }
}

TEST_CASE("histogram: empty, one value, small values") {
    LogLinearHistogram h;
    CHECK(h.count() == 0);
    CHECK(h.mean() == 0);
    CHECK(h.standard_deviation() == 0);
    CHECK(h.min() == 0);
    CHECK(h.max() == 0);
    CHECK(h.quantile(0.5) == 0);
    h.add(123'456'789'012'345);
    CHECK(h.quantile(0) == 123'456'789'012'345.0);
    CHECK(h.quantile(0.5) == 123'456'789'012'345.0);
    CHECK(h.quantile(1) == 123'456'789'012'345.0);
    CHECK(h.mean() == 123'456'789'012'345.0);

    LogLinearHistogram exact;
    for (const std::int64_t v : {15, 20, 35, 40, 50}) exact.add(v);
    CHECK(exact.quantile(0.3) == doctest::Approx(23));  // as numpy.percentile
    CHECK(exact.quantile(0.99) == doctest::Approx(49.6));
    CHECK(exact.standard_deviation() == doctest::Approx(std::sqrt(166.0)));
}

TEST_CASE("histogram quantiles stay within the stated error on many streams") {
    constexpr std::array<double, 7> qs{0, 0.1, 0.5, 0.9, 0.95, 0.99, 1};
    const double bound = std::ldexp(1.0, -(LogLinearHistogram::bits + 1));
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        Stream stream{seed};
        std::vector<std::int64_t> column;
        LogLinearHistogram h;
        const double sigma = 0.2 + 0.1 * static_cast<double>(seed % 15);
        for (int i = 0; i < 5000; ++i) {
            const double drift = seed % 2 ? 1 + 9 * i / 5000.0 : 1;  // an overloaded server's latencies
            column.push_back(static_cast<std::int64_t>(2e7 * drift * std::exp(sigma * stream.normal())));
            h.add(column.back());
        }
        const std::vector<double> exact = quantiles(std::span<const std::int64_t>(column), qs);
        for (std::size_t i = 0; i < qs.size(); ++i) {
            CAPTURE(seed);
            CAPTURE(qs[i]);
            CHECK(std::fabs(h.quantile(qs[i]) - exact[i]) <= bound * exact[i]);
        }
        CHECK(h.min() == *std::min_element(column.begin(), column.end()));
        CHECK(h.max() == *std::max_element(column.begin(), column.end()));
    }
}

TEST_CASE("histogram: counts, merge and exact mean") {
    LogLinearHistogram a, b, both;
    Stream stream{99};
    Int128 sum = 0;
    for (int i = 0; i < 2000; ++i) {
        const auto value = static_cast<std::int64_t>(stream.next() * 1e18);
        sum += static_cast<Int128>(value) * 3;
        (i % 2 ? a : b).add(value, 3);
        for (int k = 0; k < 3; ++k) both.add(value);
    }
    a.merge(b);
    CHECK(a.count() == 6000);
    CHECK(a.mean() == static_cast<double>(sum) / 6000);
    CHECK(a.mean() == both.mean());
    CHECK(a.min() == both.min());
    CHECK(a.max() == both.max());
    for (const double q : {0.0, 0.3, 0.5, 0.99, 1.0}) CHECK(a.quantile(q) == both.quantile(q));
    CHECK(a.standard_deviation() == doctest::Approx(both.standard_deviation()));
}

TEST_CASE("histogram: many values of one count, within a power of two and beyond") {
    for (const std::int32_t last : {1'000'300, 1'100'000, 3'000'000}) {
        std::vector<std::int32_t> values;
        std::int64_t sum = 0;
        LogLinearHistogram one, many;
        for (std::int32_t value = 1'000'000; value <= last; value += (last - 1'000'000) / 6) {
            values.push_back(value);
            sum += value;
            one.add(value, 5);
        }
        many.add_each(values, 5, sum, values.front(), values.back());
        many.add_each(values, 0, sum, 0, INT32_MAX);  // nothing
        CHECK(many.count() == one.count());
        CHECK(many.mean() == one.mean());
        CHECK(many.min() == one.min());
        CHECK(many.max() == one.max());
        for (const double q : {0.0, 0.2, 0.4, 0.5, 0.6, 0.9, 1.0}) CHECK(many.quantile(q) == one.quantile(q));
    }
}
