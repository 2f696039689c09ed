#include "kvsim/base/name_column.hpp"

#include <doctest/doctest.h>

#include <string>

namespace kvsim {

TEST_CASE("NameColumn: rows have the names that were set, each different one once") {
    NameColumn names;
    CHECK(names.empty());
    CHECK(names.different() == 0);
    CHECK(names[7].empty());
    names.set(3, "chat");
    names.set(5, "batch", 100);
    names.set(6, "chat");
    CHECK(!names.empty());
    CHECK(names[0].empty());
    CHECK(names.number(0) == NameColumn::nameless);
    CHECK(names[3] == "chat");
    CHECK(names[5] == "batch");
    CHECK(names[6] == "chat");
    CHECK(names.number(3) == names.number(6));
    CHECK(names.different() == 2);
    CHECK(names.name(names.number(5)) == "batch");
    names.set(3, "batch");
    CHECK(names[3] == "batch");
    CHECK(names.different() == 2);
    CHECK(names[100].empty());
}

TEST_CASE("NameColumn: thousands of different names, and many rows of each") {
    NameColumn names;
    const auto name_of = [](std::size_t row) { return std::to_string(row * row % 7'001); };
    std::size_t last = 0;
    for (std::size_t row = 0; row < 40'000; row += 1 + row % 3) {
        names.set(row, name_of(row));
        last = row;
    }
    CHECK(names.different() < 7'001);
    CHECK(names.different() > 1'000);
    bool right = true;
    for (std::size_t row = 0; row <= last; row += 1 + row % 3) right = right && names[row] == name_of(row);
    CHECK(right);
    for (std::uint32_t a = 1; a < 50; ++a) {
        for (std::uint32_t b = a + 1; b < 50; ++b) CHECK(names.name(a) != names.name(b));
    }
}

TEST_CASE("NameColumn: equal where the same rows have the same names, in whatever order they were set") {
    const NameColumn a{{0, "x"}, {2, "y"}};
    CHECK(a == NameColumn{{2, "y"}, {0, "x"}});
    CHECK(a != NameColumn{{0, "x"}, {2, "x"}});
    CHECK(a != NameColumn{{0, "x"}, {1, "y"}});
    CHECK(a != NameColumn{{0, "x"}, {2, "y"}, {9, "x"}});
    CHECK(NameColumn{} == NameColumn{});
    CHECK(NameColumn{} != a);
}

}  // namespace kvsim
