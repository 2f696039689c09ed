#include "kvsim/base/duration_column.hpp"

#include <doctest/doctest.h>

#include <map>

#include "kvsim/random/stream.hpp"

using kvsim::DurationColumn;
using kvsim::SimDuration;

TEST_CASE("DurationColumn: rows with and without a value") {
    DurationColumn column;
    CHECK(column.empty());
    CHECK(column.of(0) == SimDuration(0));
    column.append(3, SimDuration(30));
    column.append(4, SimDuration(1));
    column.append(7, SimDuration(20));
    CHECK(!column.empty());
    for (const auto& [row, value] :
         std::map<std::uint64_t, int>{{0, 0}, {2, 0}, {3, 30}, {4, 1}, {5, 0}, {6, 0}, {7, 20}, {8, 0}})
        CHECK(column.of(row) == SimDuration(value));
    DurationColumn same;
    same.reserve(100);
    same.append(3, SimDuration(30));
    same.append(4, SimDuration(1));
    CHECK(same != column);
    same.append(7, SimDuration(20));
    CHECK(same == column);
}

TEST_CASE("DurationColumn: gaps between rows and jumps between values of every size") {
    kvsim::Stream stream(3, "rows");
    for (const int gap_bits : {0, 1, 3, 8}) {
        DurationColumn column;
        DurationColumn::Reader growing(column);
        bool same = true;
        std::map<std::uint64_t, SimDuration> expected;
        std::uint64_t row = 0;
        std::int64_t value = 1;
        for (int i = 0; i < 3'000; ++i) {
            row += 1 + static_cast<std::uint64_t>(stream.uniform() * static_cast<double>((1 << gap_bits) - 1) + 0.5);
            // Now and then beyond what fits in 40 bits, up and down, and just at the edge.
            const double u = stream.uniform();
            const std::int64_t edge = std::int64_t{1} << 39;
            if (u < 0.02) {
                value = static_cast<std::int64_t>(stream.uniform() * 4e18) + 1;
            } else if (u < 0.04) {
                value = i % 2 == 0 ? 1 : INT64_MAX;
            } else if (u < 0.5) {
                value = std::max<std::int64_t>(1, value - 1'000'000'007);
            } else if (value < INT64_MAX - 2 * edge) {
                value += u < 0.52 ? edge - 1 : u < 0.54 ? edge : 900'000'011;
            }
            column.append(row, SimDuration(value));
            expected[row] = SimDuration(value);
            same = same && growing.of(row) == SimDuration(value) && growing.of(row + 1) == SimDuration(0);
        }
        CHECK(same);
        DurationColumn::Reader forward(column);
        for (std::uint64_t r = 0; r <= row + 3; ++r) {
            const auto at = expected.find(r);
            const SimDuration value_of = at == expected.end() ? SimDuration(0) : at->second;
            same = same && column.of(r) == value_of && forward.of(r) == value_of;
        }
        CHECK(same);
        DurationColumn::Reader anywhere(column);
        for (int i = 0; i < 1'000; ++i) {
            const auto r = static_cast<std::uint64_t>(stream.uniform() * static_cast<double>(row + 3));
            same = same && anywhere.of(r) == column.of(r);
        }
        CHECK(same);
    }
}
