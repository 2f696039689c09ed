// The known answers of `kvsim selftest`, held to what their samples can show.

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "support.hpp"

namespace kvsim::theory {

TEST_CASE("theory: every known answer of selftest") {
    const char* const shared = std::getenv("KVSIM_SHARED");
    const std::filesystem::path root = shared != nullptr ? shared : KVSIM_SOURCE_DIR "/../shared";
    std::vector<std::string> missing;
    int random = 0;
    int exact = 0;
    for (const selftest::Case& c : selftest::known_answers(root / "data" / "traces", missing)) {
        CAPTURE(c.name);
        if (c.runs == 1 || !c.law) {
            const selftest::Result r = selftest::evaluate(c);
            CAPTURE(r.measured.mean);
            CHECK(r.passed);
            ++exact;
            continue;
        }
        std::vector<double> samples;
        for (std::uint64_t seed = 1; seed <= c.runs; ++seed) samples.push_back(c.measure(seed));
        check_known(c.name, c.expected, samples, c.tolerance / c.expected);
        ++random;
    }
    CHECK(random >= 18);
    CHECK(exact >= 12);
    for (const std::string& file : missing) MESSAGE("skipped: no " << file);
    if (const char* const ci = std::getenv("CI"); ci != nullptr && std::string(ci) == "true") CHECK(missing.empty());
}

TEST_CASE("theory: a case that is off fails") {
    selftest::Case c{"off", 3, 0.1, 1, [](std::uint64_t) { return 3.05; }};
    CHECK(selftest::evaluate(c).passed);
    c.tolerance = 0.01;
    CHECK(!selftest::evaluate(c).passed);
    // Within the tolerance, but further off than chance explains.
    c = {"biased", 3, 0.1, 3, [](std::uint64_t seed) { return 3.05 + 1e-9 * static_cast<double>(seed); }};
    CHECK(!selftest::evaluate(c).passed);
    const selftest::Estimate e = selftest::estimate({1, 2, 3});
    CHECK(e.mean == 2);
    CHECK(e.half_width_95 == doctest::Approx(4.303 / std::sqrt(3.0)));
}

}  // namespace kvsim::theory
