#include "kvsim/report/quantile.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>

using kvsim::quantiles;

namespace {

// splitmix64: any deterministic stream does.
struct Stream {
    std::uint64_t state;
    std::uint64_t next() {
        std::uint64_t z = state += 0x9E3779B97F4A7C15U;
        z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
        z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
        return z ^ (z >> 31U);
    }
};

// The definition, spelled out on a sorted copy.
template <class T>
double reference(std::vector<T> column, double q) {
    std::sort(column.begin(), column.end());
    const double rank = static_cast<double>(column.size() - 1) * q;
    const auto below = static_cast<std::size_t>(rank);
    const auto above = std::min(below + 1, column.size() - 1);
    const double low = static_cast<double>(column[below]);
    return low + (static_cast<double>(column[above]) - low) * (rank - static_cast<double>(below));
}

constexpr std::array<double, 9> qs{0.99, 0, 0.5, 0.9, 0.95, 1, 0.001, 0.999, 0.25};

template <class T>
void check(const std::vector<T>& column) {
    const std::vector<double> found = quantiles(std::span<const T>(column), qs);
    REQUIRE(found.size() == qs.size());
    for (std::size_t i = 0; i < qs.size(); ++i) {
        CAPTURE(column.size());
        CAPTURE(qs[i]);
        CHECK(found[i] == doctest::Approx(reference(column, qs[i])).epsilon(1e-14));
    }
}

}  // namespace

TEST_CASE("quantiles of nothing, one and two values") {
    using Column = std::vector<std::int64_t>;
    CHECK(quantiles(std::span<const std::int64_t>(), qs) == std::vector<double>(qs.size(), 0.0));
    CHECK(quantiles(Column{7}, qs) == std::vector<double>(qs.size(), 7.0));
    CHECK(quantiles(Column{20, 10}, std::array{0.0, 0.5, 0.75, 1.0}) == std::vector<double>{10, 15, 17.5, 20});
    CHECK(quantiles(Column{1, 2}, std::span<const double>()).empty());
}

TEST_CASE("quantiles agree with numpy.percentile") {
    // numpy.percentile([15, 20, 35, 40, 50], [5, 30, 40, 95, 99])
    const std::vector<double> found =
        quantiles(std::vector<std::int64_t>{50, 15, 35, 20, 40}, std::array{.05, .3, .4, .95, .99});
    const std::array<double, 5> expected{16, 23, 29, 48, 49.6};
    for (std::size_t i = 0; i < expected.size(); ++i) CHECK(found[i] == doctest::Approx(expected[i]).epsilon(1e-14));
    CHECK(quantiles(std::vector<std::int64_t>{1, 2, 3, 4, 5}, std::array{.99})[0] == doctest::Approx(4.96));
}

TEST_CASE("quantiles equal the sorted definition on every kind of column") {
    Stream stream{1};
    for (const std::size_t n : {3U, 100U, 2047U, 2048U, 2049U, 30'000U}) {
        std::vector<std::int64_t> wide, ties, constant(n, 12'345'678'901), narrow, drift, huge, signs;
        std::vector<double> real, real_signs;
        for (std::size_t i = 0; i < n; ++i) {
            const std::uint64_t word = stream.next();
            wide.push_back(static_cast<std::int64_t>(word >> (1 + word % 60)));
            ties.push_back(static_cast<std::int64_t>(word % 5) * 1'000'000'000);
            narrow.push_back(1'000'000'000 + static_cast<std::int64_t>(word % 1000));
            drift.push_back(static_cast<std::int64_t>(i * 1'000'000 + word % 7'000'000));
            huge.push_back(INT64_MAX - static_cast<std::int64_t>(word % 3));
            real.push_back(static_cast<double>(word >> 11U) * 0x1p-20);
            signs.push_back(static_cast<std::int64_t>(word % 2001) * 1'000'000 - 1'000'000'000);
            real_signs.push_back(real.back() - 0x1p+32);
        }
        check(wide);
        check(ties);
        check(constant);
        check(narrow);
        check(drift);
        check(huge);
        check(real);
        check(signs);
        check(real_signs);
    }
}

TEST_CASE("passes: quantiles twice over, and each batch's share at or below one") {
    Stream stream{5};
    std::vector<std::int64_t> column;
    for (int i = 0; i < 6'000; ++i) {
        // Ties, gaps between powers of two, and a drift that makes the batches differ.
        const std::uint64_t draw = stream.next();
        column.push_back(
            static_cast<std::int64_t>(draw % 7 == 0 ? 1'000 : (draw >> (20 + draw % 30)) + static_cast<unsigned>(i)));
    }
    kvsim::QuantilePasses<std::int64_t> passes(12);
    for (std::size_t i = 0; i < column.size(); ++i) {
        passes.count(column[i]);
        if (i % 500 == 499) passes.end_batch();
    }
    const std::array about_at{0.49, 0.5, 0.99};
    const std::vector<std::vector<double>> about = passes.about_below(6'000, about_at);
    for (const std::array<double, 3>& wanted : {std::array{0.0, 0.5, 0.99}, std::array{0.49, 0.51, 1.0}}) {
        std::vector<kvsim::ShareRange> shares{{0.7, 0.72}, {0.715, 0.73}};
        for (const double q : wanted) shares.push_back({q, q});
        passes.want(6'000, shares);
        for (const std::int64_t value : column) passes.collect(value);
        const std::vector<double> values = passes.values(wanted);
        CHECK(values == quantiles(column, wanted));
        for (const double q : {0.7, 0.71, 0.72, 0.725, 0.73}) {
            CHECK(passes.wanted(q));
            CHECK(passes.values(std::array{q})[0] == reference(column, q));
        }
        CHECK_FALSE(passes.wanted(0.6));
        CHECK_THROWS_AS(static_cast<void>(passes.values(std::array{0.6})), kvsim::InternalError);
        const std::vector<std::vector<double>> below = passes.at_or_below(values);
        for (std::size_t q = 0; q < wanted.size(); ++q) {
            CHECK(values[q] == reference(column, wanted[q]));
            REQUIRE(below[q].size() == 12);
            for (std::size_t batch = 0; batch < 12; ++batch) {
                const auto from = column.begin() + static_cast<std::ptrdiff_t>(batch * 500);
                const double limit = values[q];
                CHECK(below[q][batch] == static_cast<double>(std::count_if(from, from + 500, [limit](std::int64_t v) {
                          return static_cast<double>(v) <= limit;
                      })));
                for (std::size_t a = 0; a < about_at.size(); ++a) {
                    if (about_at[a] == wanted[q]) CHECK(std::abs(about[a][batch] - below[q][batch]) < 10);
                }
            }
        }
    }
}

TEST_CASE("numbers counted one by one: the same quantiles, and squares, above and below what is counted directly") {
    Stream stream{6};
    for (const int bits : {3, 12, 17, 30}) {
        CAPTURE(bits);
        std::vector<std::int64_t> column;
        kvsim::NumberCounts numbers;
        for (int i = 0; i < 5'000; ++i) {
            const auto value = static_cast<std::int32_t>(stream.next() >> (64 - bits));
            column.push_back(value);
            numbers.count(value);
        }
        CHECK(numbers.quantiles(5'000, qs) == quantiles(column, qs));
        double squares = 0;
        for (const std::int64_t value : column) squares += static_cast<double>(value - 7) * static_cast<double>(value - 7);
        CHECK(numbers.squares(5'000, 7) == doctest::Approx(squares).epsilon(1e-12));
    }
}
