#include "kvsim/base/sparse_column.hpp"

#include <doctest/doctest.h>

TEST_CASE("SparseColumn: rows with and without a value") {
    kvsim::SparseColumn<unsigned, int> column;
    CHECK(column.empty());
    CHECK(column.find(0) == column.end());
    for (unsigned row = 3; row < 300; row += 3) column.append(row, static_cast<int>(row) * 2);
    for (unsigned row = 0; row < 310; ++row) {
        const auto at = column.find(row);
        const bool has = row >= 3 && row < 300 && row % 3 == 0;
        REQUIRE((at != column.end()) == has);
        if (has) CHECK(at->second == static_cast<int>(row) * 2);
    }
    CHECK(column.at(9) == 18);
    CHECK_THROWS(static_cast<void>(column.at(10)));
    CHECK(column == kvsim::SparseColumn<unsigned, int>(column));
    CHECK(column.size() == 99);
}
