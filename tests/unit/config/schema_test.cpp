#include "kvsim/config/schema.hpp"

#include <doctest/doctest.h>

#include <string>

#include "unit/config/helpers.hpp"

using namespace kvsim;
using namespace kvsim::config;
using namespace kvsim::config::test;

namespace {

struct Inner {
    SimDuration step{};
};
struct Outer {
    std::int64_t count = 7;
    std::string kind = "none";
    Inner inner;
};

const Schema<Inner>& inner_schema() {
    static const Schema<Inner> schema{field("step", &Inner::step, "time of a step", positive).need()};
    return schema;
}
const Schema<Outer>& outer_schema() {
    static const Schema<Outer> schema{field("count", &Outer::count, "how many", at_least_one).by_default("7"),
                                      field("kind", &Outer::kind, "which").one_of({"fast", "slow"}),
                                      group("inner", &Outer::inner, inner_schema(), "more")};
    return schema;
}

std::string read(std::string_view text, Outer& out) {
    Diagnostics diagnostics;
    const Value root = parse_yaml(text, "t.yaml", diagnostics);
    outer_schema().read(root, out, "outer", diagnostics);
    return complaints(diagnostics);
}

}  // namespace

TEST_CASE("a schema fills the struct and leaves defaults alone") {
    Outer out;
    CHECK(read("kind: 'slow'\ninner: {step: 10ms}\n", out).empty());
    CHECK(out.count == 7);
    CHECK(out.kind == "slow");
    CHECK(out.inner.step == std::chrono::milliseconds(10));
}

TEST_CASE("a schema reports everything wrong in one pass") {
    Outer out;
    CHECK(read("cuont: 1\nkind: slowest_of_all\ninner:\n  stop: 1s\ncount:\n", out) ==
          "t.yaml:1:1: error: unknown key 'cuont' in outer; did you mean 'count'?\ncuont: 1\n^\n"
          "t.yaml:2:7: error: unknown kind 'slowest_of_all' (one of: fast, slow)\nkind: slowest_of_all\n      ^\n"
          "t.yaml:3:1: error: inner lacks the key 'step' (duration: time of a step)\ninner:\n^\n"
          "t.yaml:4:3: error: unknown key 'stop' in inner; did you mean 'step'?\n  stop: 1s\n  ^\n"
          "t.yaml:5:1: error: count has no value; give one or remove the key\ncount:\n^");
    CHECK(out.count == 7);
    CHECK(out.kind == "none");
    CHECK(read("inner: [1]\n", out) == "t.yaml:1:8: error: inner must be a map of keys, got a list\ninner: [1]\n       ^");
    CHECK(read("zzzzzzzz: 1\n", out) ==
          "t.yaml:1:1: error: unknown key 'zzzzzzzz' in outer (one of: count, kind, inner)\nzzzzzzzz: 1\n^");
}

TEST_CASE("docs carry what the table says") {
    const std::vector<FieldDoc> docs = outer_schema().docs();
    REQUIRE(docs.size() == 3);
    CHECK(docs[0].type == "integer");
    CHECK(docs[0].default_text == "7");
    CHECK(docs[1].choices == std::vector<std::string>{"fast", "slow"});
    CHECK(describe(docs[0].range) == ">= 1");
    CHECK(describe(Range{0, 1, true}) == "> 0 to 1");
}
