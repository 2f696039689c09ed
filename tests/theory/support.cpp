#include "support.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

namespace kvsim::theory {

void check_known(const std::string& what, double known, const std::vector<double>& samples, double relative) {
    const selftest::Estimate e = selftest::estimate(samples);
    const std::string text = fmt::format("{}: known {:.5f}, measured {:.5f} +- {:.5f} (99.9 %), off by {:.2f} %", what, known,
                                         e.mean, e.half_width_999, (e.mean / known - 1) * 100);
    CHECK_MESSAGE(std::abs(e.mean - known) <= e.half_width_999, text);
    CHECK_MESSAGE(std::abs(e.mean - known) <= relative * known, text);
    // An interval wider than the bound would prove nothing.
    CHECK_MESSAGE(e.half_width_999 <= 2 * relative * known, text);
    if (std::getenv("KVSIM_THEORY_VERBOSE") != nullptr) MESSAGE(text);
}

}  // namespace kvsim::theory
