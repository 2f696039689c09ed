#include "kvsim/config/diagnostics.hpp"

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <string>

#include "unit/config/helpers.hpp"

using namespace kvsim;
using namespace kvsim::config;
using namespace kvsim::config::test;

namespace {

std::string one_error(std::string line, int column, std::string message = "wrong") {
    const auto source = std::make_shared<const Source>(Source{"f.yaml", {std::move(line)}});
    Diagnostics diagnostics;
    diagnostics.error(Mark{source, 1, column}, std::move(message));
    return complaints(diagnostics);
}

}  // namespace

TEST_CASE("an error shows place, line and caret") {
    CHECK(one_error("key: value", 6) == "f.yaml:1:6: error: wrong\nkey: value\n     ^");
    CHECK(one_error("", 1) == "f.yaml:1:1: error: wrong\n\n^");
    CHECK(one_error("ab", 9) == "f.yaml:1:3: error: wrong\nab\n  ^");  // beyond the end
}

TEST_CASE("columns count characters, tabs are expanded, control bytes hidden") {
    CHECK(one_error("é: x", 5) == "f.yaml:1:4: error: wrong\né: x\n   ^");
    CHECK(one_error("a:\tx", 4) == "f.yaml:1:4: error: wrong\na:  x\n    ^");
    CHECK(one_error("a\x1B[0m x", 7) == "f.yaml:1:7: error: wrong\na?[0m x\n      ^");
    CHECK(one_error("a\xFF\xC3 x", 5) == "f.yaml:1:5: error: wrong\na?? x\n    ^");
}

TEST_CASE("long lines are cut to a window around the caret") {
    const std::string line(1'000'000, 'x');
    CHECK(one_error(line, 1) == "f.yaml:1:1: error: wrong\n" + std::string(160, 'x') + "...\n^");
    CHECK(one_error(line, 500'001) ==
          "f.yaml:1:500001: error: wrong\n..." + std::string(160, 'x') + "...\n" + std::string(83, ' ') + "^");
    CHECK(one_error(line, 1'000'000) ==
          "f.yaml:1:1000000: error: wrong\n..." + std::string(81, 'x') + "\n" + std::string(83, ' ') + "^");
    CHECK(one_error(std::string(160, 'x'), 160) ==
          "f.yaml:1:160: error: wrong\n" + std::string(160, 'x') + "\n" + std::string(159, ' ') + "^");
}

TEST_CASE("without a line only the name is printed, without a source only the message") {
    Diagnostics diagnostics;
    diagnostics.error(Mark{std::make_shared<const Source>(Source{"f.yaml", {}}), 0, 0}, "a");
    diagnostics.error(Mark{}, "b");
    diagnostics.warning(Mark{}, "c");
    CHECK(complaints(diagnostics) == "f.yaml: error: a\nerror: b");
    CHECK(diagnostics.warnings() == std::vector<std::string>{"warning: c"});
}

TEST_CASE("errors come in the order of their places, at most twenty") {
    const auto source = std::make_shared<const Source>(Source{"f", std::vector<std::string>(500, "x")});
    Diagnostics diagnostics;
    CHECK(diagnostics.ok());
    CHECK_NOTHROW(diagnostics.throw_if_errors());
    for (int line = 30; line >= 1; --line) diagnostics.error(Mark{source, line, 1}, "e");
    const std::string text = complaints(diagnostics);
    CHECK(text.starts_with("f:1:1: error: e\nx\n^\nf:2:1: error: e\n"));
    CHECK(text.ends_with("f:20:1: error: e\nx\n^\n... and 10 more"));
    for (int line = 1; line <= 400; ++line) diagnostics.error(Mark{source, line, 1}, "e");
    CHECK(diagnostics.errors().size() == 200);
    CHECK(diagnostics.error_count() == 430);
    CHECK(complaints(diagnostics).ends_with("... and 410 more"));
}

TEST_CASE("unknown names come with the nearest, or all of them") {
    constexpr std::array<std::string_view, 2> known{"fcfs", "priority"};
    Diagnostics diagnostics;
    diagnostics.unknown(Mark{}, "policy", "priorty", known);
    diagnostics.unknown(Mark{}, "policy", "shortest_first", known);
    diagnostics.unknown(Mark{}, "policy", std::string(100, 'z') + "\n", {});
    CHECK(complaints(diagnostics) ==
          "error: unknown policy 'priorty'; did you mean 'priority'?\n"
          "error: unknown policy 'shortest_first' (one of: fcfs, priority)\n"
          "error: unknown policy '" +
              std::string(60, 'z') + "...'");
}
