#include "kvsim/base/rare_counts.hpp"

#include <doctest/doctest.h>

TEST_CASE("RareCounts: 0 until something is added") {
    kvsim::RareCounts counts;
    counts.add(7, 0, 10);
    CHECK(counts.empty());
    CHECK(counts[7] == 0);
    counts.add(7, 3, 10);
    counts.add(2, 1, 10);
    counts.add(7, -1, 10);
    counts.add(20, 5, 10);
    CHECK(!counts.empty());
    CHECK(counts[2] == 1);
    CHECK(counts[6] == 0);
    CHECK(counts[7] == 2);
    CHECK(counts[20] == 5);
    CHECK(counts[21] == 0);
    counts.clear(7);
    counts.clear(100);
    CHECK(counts[7] == 0);
    CHECK(counts[20] == 5);
}
