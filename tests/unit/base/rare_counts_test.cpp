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

TEST_CASE("RareCounts: equal where the rows are, however much room they have") {
    kvsim::RareCounts a;
    kvsim::RareCounts b;
    CHECK(a == b);
    a.add(3, 2, 10);
    CHECK(a != b);
    b.add(3, 2, 100'000);
    CHECK(a == b);
    b.add(5'000, 1, 100'000);
    CHECK(a != b);
    b.add(5'000, -1, 100'000);
    CHECK(a == b);
}
