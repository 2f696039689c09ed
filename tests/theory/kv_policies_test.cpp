// The PagedAttention paper's comparison of KV allocation, and what its sharing of blocks saves. The figures themselves are in
// sim/selftest/kv_policies.cpp; here stand their orders, which the lengths of the data set do not decide.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "kvsim/base/check.hpp"
#include "support.hpp"

namespace kvsim::theory {
namespace {

const std::map<std::string, double>& measured() {
    static const std::map<std::string, double> all = [] {
        std::map<std::string, double> out;
        std::vector<std::string> missing;
        for (const selftest::Case& c : selftest::known_answers({}, missing)) {
            if (!c.name.starts_with("PagedAttention's comparison") && !c.name.starts_with("blocks saved by sharing")) continue;
            const selftest::Result result = selftest::evaluate(c);
            const std::string text = fmt::format("{}: published {:.4f}, measured {:.4f} +- {:.4f}", c.name, c.expected,
                                                 result.measured.mean, result.measured.half_width_95);
            CHECK_MESSAGE(result.passed, text);
            if (std::getenv("KVSIM_THEORY_VERBOSE") != nullptr) MESSAGE(text);
            out[c.name] = result.measured.mean;
        }
        return out;
    }();
    return all;
}

double comparison(const std::string& policy, const std::string& what) {
    return measured().at(fmt::format("PagedAttention's comparison, {}: {}", policy, what));
}

}  // namespace

TEST_CASE("theory: shares of KV memory and batches under four ways of allocation, in their published order") {
    const std::vector<std::string> policies{"contiguous-max", "contiguous-pow2", "contiguous-exact", "paged"};
    for (std::size_t i = 1; i < policies.size(); ++i) {
        CAPTURE(policies[i]);
        CHECK(comparison(policies[i - 1], "token share") < comparison(policies[i], "token share"));
        CHECK(comparison(policies[i - 1], "mean batch") < comparison(policies[i], "mean batch"));
    }
    CHECK(comparison("contiguous-max", "reserved share") < comparison("contiguous-pow2", "reserved share"));
    CHECK(comparison("contiguous-pow2", "reserved share") < comparison("contiguous-exact", "reserved share"));
    CHECK(comparison("contiguous-max", "internal share") > comparison("contiguous-pow2", "internal share"));
    // Buddy placement makes the holes: an exact reservation leaves fewer than a rounded one.
    CHECK(comparison("contiguous-pow2", "external share") > comparison("contiguous-exact", "external share"));
    CHECK(comparison("contiguous-exact", "external share") > comparison("contiguous-max", "external share"));
}

TEST_CASE("theory: sharing saves more with more outputs, and beams far more than parallel outputs") {
    const auto saved = [](int outputs, const char* how) {
        return measured().at(fmt::format("blocks saved by sharing, {} {}", outputs, how));
    };
    for (const char* how : {"parallel outputs", "beams"}) {
        CHECK(saved(2, how) < saved(4, how));
        CHECK(saved(4, how) < saved(6, how));
    }
    CHECK(saved(2, "beams") > 2 * saved(6, "parallel outputs"));
}

}  // namespace kvsim::theory
