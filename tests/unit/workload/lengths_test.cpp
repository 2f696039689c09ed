#include <cmath>
#include <map>

#include "kvsim/random/distribution.hpp"
#include "kvsim/random/stream.hpp"
#include "unit/workload/support.hpp"

using namespace kvsim;
using test::law;
using test::law_error;

namespace {

constexpr double tiny = 0x1p-53;

/// The law's probabilities on an even grid of u: exact to 1/grid for an inverse CDF.
std::map<std::int64_t, double> masses(const LengthLaw& l, int grid = 200'000) {
    std::map<std::int64_t, double> out;
    for (int i = 0; i < grid; ++i) out[l.sample((i + 0.5) / grid)] += 1.0 / grid;
    return out;
}

double mean(const std::map<std::int64_t, double>& mass) {
    double sum = 0;
    for (const auto& [length, p] : mass) sum += static_cast<double>(length) * p;
    return sum;
}

}  // namespace

TEST_CASE("constant lengths") {
    CHECK(law("128")->sample(0.3) == 128);
    CHECK(law("{distribution: constant, value: 7, max: 7}")->sample(tiny) == 7);
    CHECK(law_error("{distribution: constant, value: 7, max: 6}") ==
          "t.yaml:1:49: error: tokens: no length between min and max is possible under this law");
    CHECK(law_error("0").find("tokens") != std::string::npos);
    CHECK(law_error("1.5").find("tokens") != std::string::npos);
}

TEST_CASE("uniform lengths include both ends, each as likely") {
    const auto mass = masses(*law("{distribution: uniform, min: 3, max: 6}"));
    REQUIRE(mass.size() == 4);
    for (const auto& [length, p] : mass) CHECK(p == doctest::Approx(0.25).epsilon(1e-3));
    CHECK(law_error("{distribution: uniform, min: 6, max: 3}") == "t.yaml:1:38: error: tokens: min 6 is above max 3");
    CHECK(law_error("{distribution: uniform, min: 0, max: 3}").find("t.yaml:1:38: error: ") == 0);
    CHECK(law_error("{distribution: uniform, min: 1}").find("lacks the key 'max'") != std::string::npos);
}

TEST_CASE("a lognormal by its percentiles, its moments and its parameters") {
    const auto by_p = law("{distribution: lognormal, p50: 8000, p90: 48000}");
    CHECK(by_p->sample(0.5) == 8000);
    CHECK(by_p->sample(0.9) == 48'000);
    const auto by_mu = law("{distribution: lognormal, mu: 5, sigma: 0.5}");
    CHECK(by_mu->sample(0.5) == std::lround(std::exp(5)));
    const auto by_mean = law("{distribution: lognormal, mean: 1000, sd: 500}");
    const auto mass = masses(*by_mean, 1'000'000);
    CHECK(mean(mass) == doctest::Approx(1000).epsilon(1e-4));
    double square = 0;
    for (const auto& [length, p] : mass) square += static_cast<double>(length * length) * p;
    CHECK(std::sqrt(square - 1e6) == doctest::Approx(500).epsilon(1e-3));
    CHECK(law("{distribution: lognormal, p50: 100, p90: 100}")->sample(tiny) == 100);
    CHECK(law("{distribution: lognormal, p50: 0.2, p90: 0.4}")->sample(0.5) == 1);
    CHECK(law("{distribution: lognormal, mu: 5, sigma: 900}")->sample(1 - tiny) == max_request_tokens);
}

TEST_CASE("lognormal parameters come as exactly one pair") {
    CHECK(law_error("{distribution: lognormal, p50: 8}") ==
          "t.yaml:1:40: error: tokens: lognormal with 'p50' also needs 'p90'");
    CHECK(law_error("{distribution: lognormal, sd: 8}") == "t.yaml:1:39: error: tokens: lognormal with 'sd' also needs 'mean'");
    CHECK(law_error("{distribution: lognormal}") ==
          "t.yaml:1:24: error: tokens: lognormal needs p50 + p90, mean + sd, or mu + sigma");
    CHECK(law_error("{distribution: lognormal, p50: 8, p90: 9, mu: 1, sigma: 1}") ==
          "t.yaml:1:55: error: tokens: lognormal takes one pair of p50 + p90, mean + sd, mu + sigma; 'mu' does not go with "
          "'p50'");
    CHECK(law_error("{distribution: lognormal, p50: 9, p90: 8}") == "t.yaml:1:48: error: tokens: p90 is below p50");
    CHECK(law_error("{distribution: lognormal, p50: 8, p95: 9}").find("did you mean 'p90'?") != std::string::npos);
}

TEST_CASE("bounds condition a lognormal: proportions stay and no mass gathers on a bound") {
    const auto free = masses(*law("{distribution: lognormal, p50: 20, p90: 40}"), 1'000'000);
    const auto cut = masses(*law("{distribution: lognormal, p50: 20, p90: 40, min: 10, max: 30}"), 1'000'000);
    double kept = 0;
    for (std::int64_t k = 10; k <= 30; ++k) kept += free.at(k);
    REQUIRE(cut.begin()->first == 10);
    REQUIRE(cut.rbegin()->first == 30);
    for (std::int64_t k = 10; k <= 30; ++k) CHECK(cut.at(k) * kept == doctest::Approx(free.at(k)).epsilon(5e-3));
}

TEST_CASE("bounds far in a lognormal's tail keep their precision") {
    // Nine standard deviations above the median, where the CDF is 1 in double.
    const auto l = law("{distribution: lognormal, mu: 0, sigma: 1, min: 8000, max: 9000}");
    CHECK(l->sample(tiny) == 8000);
    CHECK(l->sample(1 - tiny) == 9000);
    const auto mass = masses(*l);
    CHECK(mass.size() > 900);
    CHECK(mass.at(8000) > mass.at(8500));
    CHECK(law_error("{distribution: lognormal, mu: 0, sigma: 0.1, min: 8000, max: 9000}").find("no length between") !=
          std::string::npos);
    CHECK(law_error("{distribution: lognormal, mu: 3, sigma: 0, max: 10}").find("no length between") != std::string::npos);
}

TEST_CASE("exponential lengths round up") {
    const auto l = law("{distribution: exponential, mean: 10}");
    const auto mass = masses(*l, 1'000'000);
    for (const std::int64_t k : {1, 2, 10, 30})
        CHECK(mass.at(k) == doctest::Approx(std::exp(-static_cast<double>(k - 1) / 10) * -std::expm1(-0.1)).epsilon(1e-3));
    const auto cut = masses(*law("{distribution: exponential, mean: 10, min: 5, max: 9}"), 1'000'000);
    CHECK(cut.size() == 5);
    for (std::int64_t k = 5; k < 9; ++k) CHECK(cut.at(k + 1) / cut.at(k) == doctest::Approx(std::exp(-0.1)).epsilon(1e-3));
    CHECK(law_error("{distribution: exponential, mean: 1, min: 2000}").find("no length between") != std::string::npos);
    CHECK(law_error("{distribution: exponential, mean: 0}").find("t.yaml:1:") == 0);
}

TEST_CASE("geometric lengths") {
    const auto mass = masses(*law("{distribution: geometric, mean: 4}"), 1'000'000);
    for (const std::int64_t k : {1, 2, 5, 12})
        CHECK(mass.at(k) == doctest::Approx(0.25 * std::pow(0.75, static_cast<double>(k - 1))).epsilon(1e-3));
    CHECK(mean(mass) == doctest::Approx(4).epsilon(1e-4));
    for (double u = 0.0003; u < 1; u += 0.0101)
        CHECK(static_cast<double>(law("{distribution: geometric, mean: 100}")->sample(u)) == geometric_quantile(u, 100));
    CHECK(law("{distribution: geometric, mean: 1}")->sample(1 - tiny) == 1);
    CHECK(law_error("{distribution: geometric, mean: 1, min: 2}").find("no length between") != std::string::npos);
    CHECK(law_error("{distribution: geometric, mean: 0.5}").find("t.yaml:1:") == 0);
}

TEST_CASE("empirical lengths interpolate their table") {
    for (const char* text : {"{distribution: empirical, quantiles: {0: 5, 0.5: 100, 1: 2000}}",
                             "{distribution: empirical, quantiles: [[0, 5], [0.5, 100], [1, 2000]]}"}) {
        const auto l = law(text);
        CHECK(l->sample(tiny) == 5);
        CHECK(l->sample(0.25) == 53);  // 52.5, half up
        CHECK(l->sample(0.5) == 100);
        CHECK(l->sample(0.75) == 1050);
        CHECK(l->sample(1 - tiny) == 2000);
    }
    // A flat stretch is an atom: half of the mass at 10, the rest even over (10, 20].
    const auto atom = masses(*law("{distribution: empirical, quantiles: {0: 10, 0.5: 10, 1: 20}}"));
    CHECK(atom.at(10) == doctest::Approx(0.525).epsilon(1e-3));
    const auto cut = masses(*law("{distribution: empirical, quantiles: {0: 0, 1: 100}, min: 10, max: 19}"));
    CHECK(cut.size() == 10);
    for (const auto& [length, p] : cut) CHECK(p == doctest::Approx(0.1).epsilon(1e-3));
}

TEST_CASE("empirical tables that are wrong") {
    const std::string head = "{distribution: empirical, quantiles: ";
    CHECK(law_error(head + "{0.1: 5, 1: 9}}") == "t.yaml:1:47: error: tokens: the first quantile must be 0");
    CHECK(law_error(head + "{0: 5, 0.9: 9}}") == "t.yaml:1:53: error: tokens: the last quantile must be 1");
    CHECK(law_error(head + "{0: 5, 0.5: 4, 1: 9}}") == "t.yaml:1:53: error: tokens: lengths must not decrease");
    CHECK(law_error(head + "[[0, 5], [0.5, 6], [0.5, 7], [1, 9]]}") == "t.yaml:1:65: error: tokens: quantiles must increase");
    CHECK(law_error(head + "[[0, 5], [1]]}") ==
          "t.yaml:1:55: error: tokens: each entry of quantiles must be [probability, length]");
    CHECK(law_error(head + "7}").find("quantiles must be a map or list") != std::string::npos);
    CHECK(law_error(head + "{0: 5, 1: 9}, min: 10}").find("no length between") != std::string::npos);
    CHECK(law_error(head + "{0: 5, 2: 9}}").find("t.yaml:1:53: error:") == 0);
}

TEST_CASE("a law is named, and the nearest name is offered") {
    CHECK(law_error("{distribution: lognornal}") ==
          "t.yaml:1:24: error: unknown length distribution 'lognornal'; did you mean 'lognormal'?");
    CHECK(law_error("{mean: 3}") == "t.yaml:1:9: error: tokens needs 'distribution', a name");
    CHECK(law_error("[1, 2]") == "t.yaml:1:9: error: tokens must be an integer or a map with 'distribution'");
}

TEST_CASE("every law is monotone in u and within its bounds") {
    for (const char* text : {"{distribution: lognormal, p50: 300, p90: 700, min: 4, max: 2000}",
                             "{distribution: exponential, mean: 300, min: 4, max: 2000}",
                             "{distribution: geometric, mean: 300, min: 4, max: 2000}",
                             "{distribution: empirical, quantiles: {0: 1, 0.3: 800, 1: 90000}, min: 4, max: 2000}"}) {
        const auto l = law(text);
        CHECK(l->sample(tiny) == 4);
        CHECK(l->sample(1 - tiny) == 2000);
        std::int64_t last = 0;
        for (double u = 1e-5; u < 1; u += 1e-4) {
            const std::int64_t x = l->sample(u);
            if (x < last || x < 4 || x > 2000) FAIL(text << " at " << u);
            last = x;
        }
    }
}

TEST_CASE("the registered laws document their keys") {
    for (const auto& entry : length_distributions()) {
        bool named = false;
        for (const config::FieldDoc& doc : entry.docs()) named = named || doc.key == "distribution";
        CHECK_MESSAGE(named, entry.name);
    }
}
