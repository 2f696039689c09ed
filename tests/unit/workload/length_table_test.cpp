// Draws by table are the law's own draws.

#include "../../../sim/workloads/length_table.hpp"

#include <cmath>

#include "kvsim/random/distribution.hpp"
#include "unit/workload/support.hpp"

using namespace kvsim;
using test::law;

namespace {

constexpr const char* tabled[] = {"{distribution: lognormal, p50: 400, p90: 1000}",
                                  "{distribution: lognormal, p50: 150, p90: 380, min: 30, max: 300}",
                                  "{distribution: lognormal, mu: 0, sigma: 1, min: 5, max: 900}",
                                  "{distribution: lognormal, p50: 0.7, p90: 40}",
                                  "{distribution: exponential, mean: 300}",
                                  "{distribution: exponential, mean: 300, min: 100, max: 500}",
                                  "{distribution: geometric, mean: 20}",
                                  "{distribution: empirical, quantiles: {0: 5.5, 0.3: 5.5, 0.5: 100, 0.9: 100, 1: 2000}}",
                                  "{distribution: empirical, quantiles: {0: 1, 1: 900}, min: 10, max: 19}"};

}  // namespace

TEST_CASE("length table: every draw is the formula's") {
    for (const char* text : tabled) {
        CAPTURE(text);
        const auto l = law(text);
        LengthTable table(*l);
        table.build(1'000'000);
        REQUIRE(table.size() > 0);
        const StreamKey key(3, "table");
        int differing = 0;
        for (std::uint64_t i = 0; i < 200'000; ++i) {
            const std::uint64_t bits = key.first_u64(i);
            differing += table.sample(bits) != l->sample(to_uniform(bits));
        }
        CHECK(differing == 0);
        for (const std::uint64_t bits : {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{1} << 63})
            CHECK(table.sample(bits) == l->sample(to_uniform(bits)));
    }
}

TEST_CASE("length table: also beside the thresholds, where a table that is off by 2^-42 would show") {
    for (const char* text : tabled) {
        CAPTURE(text);
        const auto l = law(text);
        LengthTable table(*l);
        table.build(1'000'000);
        const std::int64_t first = l->sample(to_uniform(0));
        int differing = 0;
        for (std::int64_t k = first; k < first + 200; ++k) {
            const double at = *l->up_to(k);
            for (const double away : {-0x1p-39, -0x1p-40, -0x1p-41, 0.0, 0x1p-41, 0x1p-40, 0x1p-39}) {
                if (!(at + away > 0 && at + away < 1)) continue;
                const auto bits = static_cast<std::uint64_t>((at + away) * 0x1p53) << 11;
                differing += table.sample(bits) != l->sample(to_uniform(bits));
            }
            // The threshold is where the formula turns, far within the guard.
            if (at > 0x1p-30 && at < 1 - 0x1p-30) {
                CHECK(l->sample(at - 0x1p-42) <= k);
                CHECK(l->sample(at + 0x1p-42) > k);
            }
        }
        CHECK(differing == 0);
    }
}

TEST_CASE("length table: none for few draws, for laws without thresholds and for laws too wide") {
    for (const char* text : {"512", "{distribution: uniform, min: 1, max: 900}", "{distribution: exponential, mean: 100000000}",
                             "{distribution: lognormal, mu: 0, sigma: 1, min: 8000, max: 8001}"}) {
        const auto l = law(text);
        LengthTable table(*l);
        table.build(1'000'000);
        CHECK(table.size() == 0);
        CHECK(table.sample(12345) == l->sample(to_uniform(12345)));
    }
    const auto l = law(tabled[0]);
    LengthTable table(*l);
    table.build(60);
    CHECK(table.size() == 0);
}

TEST_CASE("the exponential of one draw is -ln(1 - u)") {
    const StreamKey key(3, "log");
    double worst = 0;
    for (std::uint64_t i = 0; i < 200'000; ++i) {
        // Also with leading ones and zeros: u near 1 and near 0.
        const std::uint64_t word = key.first_u64(i);
        for (const std::uint64_t bits : {word, word >> (i % 52), ~(word >> (i % 52))}) {
            const double exact = -std::log1p(-to_uniform(bits));
            const double found = standard_exponential(bits);
            worst = std::max(worst, std::abs(found - exact) / exact);
            if (!(found > 0)) FAIL("at " << bits);
        }
    }
    CHECK(worst < 1e-15);
    CHECK(standard_exponential(0) == doctest::Approx(0x1p-53).epsilon(1e-15));
    CHECK(standard_exponential(~std::uint64_t{0}) == doctest::Approx(53 * std::log(2.0)).epsilon(1e-15));
}
