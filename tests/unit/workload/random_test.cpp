#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <type_traits>
#include <vector>

#include "kvsim/random/distribution.hpp"
#include "kvsim/random/draw_buffer.hpp"
#include "kvsim/random/stream.hpp"
#include "unit/workload/support.hpp"

using namespace kvsim;

namespace {

/// Kolmogorov-Smirnov distance of `draws` to `cdf`, times sqrt(n): above 1.95 with probability 0.001 under the law. The streams
/// are pinned, so this never flickers.
double ks(std::vector<double> draws, const std::function<double(double)>& cdf) {
    std::sort(draws.begin(), draws.end());
    const auto n = static_cast<double>(draws.size());
    double d = 0;
    for (std::size_t i = 0; i < draws.size(); ++i) {
        const double f = cdf(draws[i]);
        d = std::max({d, f - static_cast<double>(i) / n, static_cast<double>(i + 1) / n - f});
    }
    return d * std::sqrt(n);
}

constexpr std::uint64_t n_draws = 20'000;

std::vector<double> draws_of(std::string_view purpose, const std::function<double(Stream&)>& draw) {
    const StreamKey key(7, purpose);
    std::vector<double> out;
    for (std::uint64_t i = 0; i < n_draws; ++i) {
        Stream s(key, i);
        out.push_back(draw(s));
    }
    return out;
}

double mean_of(const std::vector<double>& x) {
    double sum = 0;
    for (const double v : x) sum += v;
    return sum / static_cast<double>(x.size());
}

double variance_of(const std::vector<double>& x) {
    const double m = mean_of(x);
    double sum = 0;
    for (const double v : x) sum += (v - m) * (v - m);
    return sum / static_cast<double>(x.size());
}

}  // namespace

TEST_CASE("Philox4x32-10 gives the vectors published with Random123") {
    // kat_vectors, lines "philox4x32 10".
    constexpr std::uint32_t ones = 0xffffffff;
    CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    CHECK(philox4x32({ones, ones, ones, ones}, {ones, ones}) == PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
          PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("uniforms are open, symmetric and on a 53-bit grid") {
    CHECK(to_uniform(0) == 0x1p-53);
    CHECK(to_uniform(~std::uint64_t{0}) == 1 - 0x1p-53);
    CHECK(1 - to_uniform(0) == to_uniform(~std::uint64_t{0}));
}

TEST_CASE("a stream is addressed by seed, purpose and index") {
    Stream a(1, "arrivals", 5);
    Stream b(1, "arrivals", 5);
    Stream purpose(1, "prompt_tokens", 5);
    Stream index(1, "arrivals", 6);
    Stream seed(2, "arrivals", 5);
    for (int i = 0; i < 5; ++i) {
        const std::uint64_t x = a.next_u64();
        CHECK(x == b.next_u64());
        CHECK(x != purpose.next_u64());
        CHECK(x != index.next_u64());
        CHECK(x != seed.next_u64());
    }
    Stream c(1, "arrivals", 5);
    CHECK(StreamKey(1, "arrivals").first_u64(5) == c.next_u64());
    CHECK(!std::is_copy_constructible_v<Stream>);
}

TEST_CASE("a buffer of draws gives what the streams give, in any order") {
    const StreamKey key(7, "prompt_tokens");
    DrawBuffer buffer(key);
    const std::uint64_t far = (std::uint64_t{1} << 32) - 5;  // the index's upper half changes within a buffer
    for (const std::uint64_t from : {std::uint64_t{0}, std::uint64_t{15}, std::uint64_t{3}, far}) {
        for (std::uint64_t index = from; index < from + 40; ++index) {
            Stream stream(key, index);
            CHECK(buffer.first_u64(index) == stream.next_u64());
            CHECK(buffer.second_u64(index) == stream.next_u64());
        }
        std::array<std::uint64_t, 40> draws{};
        first_draws(key, from, draws);
        for (std::size_t i = 0; i < draws.size(); ++i) CHECK(draws[i] == key.first_u64(from + i));
    }
}

TEST_CASE("exponentials made several at once are those made alone, to the bit, and the plain formula's") {
    const StreamKey key(7, "arrivals");
    std::vector<std::uint64_t> bits{0, 1, ~std::uint64_t{0}, std::uint64_t{1} << 63, (std::uint64_t{1} << 63) - 1, 1U << 11};
    for (int shift = 11; shift < 64; ++shift) {  // 1 - u at and beside every power of two
        bits.push_back(~std::uint64_t{0} << shift);
        bits.push_back(~(~std::uint64_t{0} << shift));
    }
    for (std::uint64_t i = 0; i < 20'000; ++i) bits.push_back(key.first_u64(i));
    for (const std::size_t n : {bits.size(), std::size_t{1}, std::size_t{7}}) {  // whatever is left of a multiple of four
        std::vector<double> values(n);
        standard_exponentials(std::span(bits).first(n), values);
        int differing = 0;
        int wrong = 0;
        for (std::size_t i = 0; i < n; ++i) {
            differing += values[i] != standard_exponential(bits[i]);
            const double formula = exponential_quantile(to_uniform(bits[i]), 1);
            wrong += !(std::abs(values[i] - formula) <= 1e-15 * std::max(1.0, formula));
        }
        CHECK(differing == 0);
        CHECK(wrong == 0);
    }
}

TEST_CASE("pinned draws: a change here changes every result") {
    Stream s(1, "arrivals", 0);
    CHECK(s.next_u64() == 0x5a64570c8610fab5U);
    CHECK(s.next_u64() == 0x4102b29c7ea67191U);
    CHECK(s.next_u64() == 0xa297de0382bac41aU);
    Stream g(1, "arrivals", 3);
    CHECK(gamma_draw(g, 0.5) == doctest::Approx(0.75861317947415996).epsilon(1e-13));
    Stream h(1, "arrivals", 3);
    CHECK(gamma_draw(h, 4) == doctest::Approx(5.4526381277829117).epsilon(1e-13));
}

TEST_CASE("normal quantiles") {
    // Abramowitz and Stegun, tables 26.1 and 26.5, and the tail of AS 241's own test.
    CHECK(normal_quantile(0.5) == 0);
    CHECK(normal_quantile(0.9) == doctest::Approx(1.2815515655446004).epsilon(1e-15));
    CHECK(normal_quantile(0.975) == doctest::Approx(1.959963984540054).epsilon(1e-15));
    CHECK(normal_quantile(0.001) == doctest::Approx(-3.090232306167813).epsilon(1e-14));
    CHECK(normal_quantile(1e-20) == doctest::Approx(-9.262340089798408).epsilon(1e-14));
    CHECK(normal_quantile(0) == -std::numeric_limits<double>::infinity());
    CHECK(normal_quantile(1) == std::numeric_limits<double>::infinity());
    for (double p = 1e-12; p < 0.6; p *= 1.7) CHECK(normal_cdf(normal_quantile(p)) == doctest::Approx(p).epsilon(1e-12));
}

TEST_CASE("continuous laws pass Kolmogorov-Smirnov on pinned streams") {
    CHECK(ks(draws_of("uniform", [](Stream& s) { return s.uniform(); }), [](double x) { return x; }) < 1.95);
    CHECK(ks(draws_of("exponential", [](Stream& s) { return exponential_quantile(s.uniform(), 3); }),
             [](double x) { return -std::expm1(-x / 3); }) < 1.95);
    CHECK(ks(draws_of("lognormal", [](Stream& s) { return lognormal_quantile(s.uniform(), 2, 0.7); }),
             [](double x) { return normal_cdf((std::log(x) - 2) / 0.7); }) < 1.95);
    // Gamma CDFs with a closed form: shape 1/2 is a squared normal, whole shapes are Erlang.
    CHECK(ks(draws_of("gamma", [](Stream& s) { return gamma_draw(s, 0.5); }), [](double x) { return std::erf(std::sqrt(x)); }) <
          1.95);
    CHECK(ks(draws_of("gamma", [](Stream& s) { return gamma_draw(s, 1); }), [](double x) { return -std::expm1(-x); }) < 1.95);
    CHECK(ks(draws_of("gamma", [](Stream& s) { return gamma_draw(s, 3); }),
             [](double x) { return 1 - std::exp(-x) * (1 + x + x * x / 2); }) < 1.95);
}

TEST_CASE("gamma moments") {
    for (const double shape : {0.1, 0.25, 1.0, 2.5, 100.0}) {
        const std::vector<double> x = draws_of("gamma", [&](Stream& s) { return gamma_draw(s, shape); });
        const double n = static_cast<double>(n_draws);
        // Five standard errors; the fourth central moment of a gamma is 3 k^2 + 6 k.
        CHECK(std::abs(mean_of(x) - shape) < 5 * std::sqrt(shape / n));
        CHECK(std::abs(variance_of(x) - shape) < 5 * std::sqrt((2 * shape * shape + 6 * shape) / n));
    }
}

TEST_CASE("geometric and uniform integers") {
    CHECK(geometric_quantile(0.3, 1) == 1);
    // P(X <= 2) = 1 - 0.75^2 = 0.4375 at mean 4.
    CHECK(geometric_quantile(0.2499, 4) == 1);
    CHECK(geometric_quantile(0.2501, 4) == 2);
    CHECK(geometric_quantile(0.4374, 4) == 2);
    CHECK(geometric_quantile(0.4376, 4) == 3);
    CHECK(uniform_int(0x1p-53, -3, 3) == -3);
    CHECK(uniform_int(1 - 0x1p-53, -3, 3) == 3);
    CHECK(uniform_int(0.5, 10, 10) == 10);
    std::vector<int> counts(6);
    for (const double x : draws_of("die", [](Stream& s) { return static_cast<double>(uniform_int(s.uniform(), 0, 5)); }))
        ++counts[static_cast<std::size_t>(x)];
    for (const int c : counts) CHECK(std::abs(c - 3333.3) < 5 * std::sqrt(3333.3));
}
