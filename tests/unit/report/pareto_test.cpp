#include "kvsim/report/pareto.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "kvsim/random/stream.hpp"

namespace kvsim::test {
namespace {

using Points = std::vector<ParetoPoint>;
using Flags = std::vector<bool>;

/// By the definition.
Flags naive(const Points& points, Better x, Better y) {
    const auto at_least = [](double a, double b, Better better) { return better == Better::higher ? a >= b : a <= b; };
    Flags out;
    for (const ParetoPoint& p : points) {
        bool on = p.x && p.y;
        for (const ParetoPoint& q : points) {
            if (!on || !q.x || !q.y) continue;
            const bool dominates = at_least(*q.x, *p.x, x) && at_least(*q.y, *p.y, y) && (*q.x != *p.x || *q.y != *p.y);
            on = on && !dominates;
        }
        out.push_back(on);
    }
    return out;
}

}  // namespace

TEST_CASE("pareto: a point is on the front unless another one is as good in both figures and better in one") {
    const Points points{{1.0, 5.0}, {2.0, 4.0}, {1.5, 4.0}, {3.0, 1.0}, {3.0, 0.5}, {2.5, 4.5}};
    CHECK(pareto_front(points, Better::higher, Better::higher) == Flags{true, false, false, true, false, true});
    CHECK(pareto_front(points, Better::lower, Better::lower) == Flags{true, false, true, false, true, false});
    CHECK(pareto_front(points, Better::lower, Better::higher) == Flags{true, false, false, false, false, false});
}

TEST_CASE("pareto: equal points stand together, what has no figure takes no part") {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const double infinite = std::numeric_limits<double>::infinity();
    CHECK(pareto_front({}, Better::higher, Better::higher).empty());
    CHECK(pareto_front(Points{{1.0, 1.0}}, Better::lower, Better::higher) == Flags{true});
    CHECK(pareto_front(Points{{1.0, 1.0}, {1.0, 1.0}, {0.5, 1.0}}, Better::higher, Better::higher) == Flags{true, true, false});
    CHECK(pareto_front(Points{{std::nullopt, 9.0}, {9.0, std::nullopt}, {1.0, 1.0}, {std::nullopt, std::nullopt}},
                       Better::higher, Better::higher) == Flags{false, false, true, false});
    CHECK(pareto_front(Points{{nan, 9.0}, {9.0, nan}, {infinite, 2.0}, {1.0, 1.0}}, Better::higher, Better::higher) ==
          Flags{false, false, false, true});
}

TEST_CASE("pareto: random points with many ties agree with the definition") {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        Stream stream(StreamKey(seed, "pareto"), 0);
        Points points;
        for (int i = 0; i < 12; ++i) {
            const auto draw = [&stream] { return static_cast<double>(stream.next_u64() % 5); };
            ParetoPoint p{draw(), draw()};
            if (stream.next_u64() % 8 == 0) p.x.reset();
            points.push_back(p);
        }
        for (const Better x : {Better::higher, Better::lower}) {
            for (const Better y : {Better::higher, Better::lower}) CHECK(pareto_front(points, x, y) == naive(points, x, y));
        }
    }
}

}  // namespace kvsim::test
