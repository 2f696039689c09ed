#include "kvsim/config/load.hpp"

#include <doctest/doctest.h>

#include <string>

#include "kvsim/base/text.hpp"
#include "unit/config/helpers.hpp"

using namespace kvsim;
using namespace kvsim::config;
using namespace kvsim::config::test;

namespace {

Value parse_ok(std::string_view text) {
    Diagnostics diagnostics;
    Value value = parse_yaml(text, "t.yaml", diagnostics);
    REQUIRE(complaints(diagnostics).empty());
    return value;
}

// The first line of what is said about `text`.
std::string first_line(std::string_view text) {
    const std::string all = parse_complaints(text);
    return all.substr(0, all.find('\n'));
}

std::string set_complaints(Value& root, std::string_view assignment) {
    Diagnostics diagnostics;
    apply_set(root, assignment, diagnostics);
    return complaints(diagnostics);
}

std::string repeated(std::string_view text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
}

}  // namespace

TEST_CASE("a tree keeps scalars as written, the file's order and every place") {
    const Value root = parse_ok("a: 010\nb: '5'\nc: [x, {d: ~}]\ne:\n  f: 1\ng:\nh: >\n  one\n  two\n");
    REQUIRE(root.is_map());
    REQUIRE(root.map.size() == 6);
    CHECK(root.map[0].key == "a");
    CHECK(root.find("a")->scalar == "010");
    CHECK_FALSE(root.find("a")->quoted);
    CHECK(root.find("a")->mark.line == 1);
    CHECK(root.find("a")->mark.column == 4);
    CHECK(root.find("b")->scalar == "5");
    CHECK(root.find("b")->quoted);
    const Value& list = *root.find("c");
    REQUIRE(list.list.size() == 2);
    CHECK(list.list[1].find("d")->is_null());
    CHECK(list.list[1].mark.column == 8);
    // A block map and a missing value stand at the key that names them.
    CHECK(root.find("e")->mark.line == 4);
    CHECK(root.find("e")->find("f")->mark.line == 5);
    CHECK(root.find("g")->is_null());
    CHECK(root.find("g")->mark.line == 6);
    CHECK(root.find("h")->scalar == "one two\n");
    CHECK(root.find("h")->quoted);
    CHECK(root.find("nothing") == nullptr);
    CHECK(list.find("a") == nullptr);
}

TEST_CASE("byte order mark, CRLF, one document marker and aliases are fine") {
    const Value root = parse_ok("\xEF\xBB\xBF---\r\na: &x {k: [1, 2]}\r\nb: *x\r\n...\r\n");
    CHECK(root.find("b")->find("k")->list[1].scalar == "2");
    CHECK(root.find("a")->mark.line == 2);
    CHECK(root.find("b")->find("k")->mark.line == 2);  // an alias stands where its anchor does
}

TEST_CASE("what YAML or yaml-cpp would let through is refused with its place") {
    CHECK(first_line("a: 1\n---\nb: 2\n") == "t.yaml:2:1: error: a second document starts here; one file holds one document");
    CHECK(first_line("---\n---\na: 1\n") == "t.yaml:2:1: error: a second document starts here; one file holds one document");
    CHECK(first_line("a: 1\nb:\n  c: 2\n  c: 3\n") ==
          "t.yaml:4:3: error: duplicate key 'c'; it first stands at line 3, column 3");
    CHECK(first_line("{é: 1, a: 2, a: 3}") == "t.yaml:1:14: error: duplicate key 'a'; it first stands at line 1, column 8");
    CHECK(first_line("a:\n\tb: 1\n\tc: 2\n\t# d\n") ==
          "t.yaml:2:1: error: a tab in the indentation; indent with spaces (and 1 more line)");
    CHECK(first_line("a:\n  \tb: 1\n") == "t.yaml:2:3: error: a tab in the indentation; indent with spaces");
    CHECK(first_line(std::string("a: \0b", 5)) == "t.yaml:1:4: error: a NUL byte; this is not a text file");
    CHECK(first_line("a: 1\nb: \xFF\n") == "t.yaml:2:4: error: not valid UTF-8; save the file as UTF-8 text");
    CHECK(first_line("a: \x1B[0m") == "t.yaml:1:4: error: a control character; this is not a text file");
    CHECK(first_line("a: 1\rb: 2\r") == "t.yaml:1:5: error: a carriage return without a line feed; end lines with LF or CRLF");
    CHECK(first_line("x: &x {a: 1}\ny:\n  <<: *x\n") ==
          "t.yaml:3:3: error: merge keys (<<) are not supported; write the keys out");
    CHECK(first_line("? [a]\n: 1\n") ==
          "t.yaml:1:3: error: a list or map cannot be a key; if it is a value, its bracket is not closed");
    CHECK(first_line("x: &a b\n*a : 3\n") == "t.yaml:2:1: error: an alias cannot be a key");
    CHECK(first_line("'': 3\n") == "t.yaml:1:1: error: a key must not be empty");
    CHECK(first_line("a: &a [*a]\n") == "t.yaml:1:8: error: an alias cannot stand inside what it refers to");
    CHECK(first_line("a: !!str 5\n") == "t.yaml:1:4: error: YAML tags ('tag:yaml.org,2002:str') are not supported; remove it");
    CHECK(first_line("") == "t.yaml: error: nothing in it but blanks and comments");
    CHECK(first_line("# a\n\n  # b\n") == "t.yaml: error: nothing in it but blanks and comments");
}

TEST_CASE("syntax errors say what they mostly mean") {
    CHECK(first_line("a: b: c\n") ==
          "t.yaml:1:5: error: a ':' where no key can stand; quote text that contains ': ', put a nested key on its own line");
    CHECK(first_line("a: [1, 2\nb: 3\n") == "t.yaml:2:2: error: a '[' above is not closed, or a ',' is missing before here");
    CHECK(first_line("a:\n    b: 1\n  c: 2\n") ==
          "t.yaml:3:3: error: this does not line up with the keys above; check the indentation");
    CHECK(first_line("a: *b\n") == "t.yaml:1:4: error: YAML: the referenced anchor is not defined");
}

TEST_CASE("an unclosed quote at the end of the file is an error, yaml-cpp closes it silently") {
    CHECK(first_line("a: \"b\n") == "t.yaml:1:4: error: this quote is not closed");
    CHECK(first_line("a: 'it''s\n") == "t.yaml:1:4: error: this quote is not closed");
    CHECK(first_line("a: &x\n  \"b\\\"\n") == "t.yaml:1:4: error: this quote is not closed");
    CHECK(first_line("a: \"b") == "t.yaml:1:6: error: a quote is not closed");
    CHECK(parse_ok("a: 'it''s'\n").find("a")->scalar == "it's");
    CHECK(parse_ok("a: &x \"b\\\"\n  c\"\n").find("a")->scalar == "b\" c");
}

TEST_CASE("a lone comma does not hang") {
    CHECK(first_line(",") == "t.yaml:1:1: error: unexpected text after the end of the document");
    CHECK(first_line("]") == "t.yaml:1:1: error: YAML: illegal flow end");
}

TEST_CASE("size, depth and aliases are bounded") {
    CHECK(parse_ok(repeated("[", 64) + "1" + repeated("]", 64)).is_list());
    CHECK(first_line(repeated("[", 65) + "1" + repeated("]", 65)) == "t.yaml:1:65: error: nested more than 64 levels deep");
    CHECK_FALSE(parse_complaints(repeated("[", 100'000)).empty());
    CHECK_FALSE(parse_complaints(repeated("{a: ", 100'000)).empty());
    CHECK_FALSE(parse_complaints(repeated("- ", 100'000)).empty());
    CHECK_FALSE(parse_complaints(repeated("? ", 100'000)).empty());
    CHECK(contains(first_line(std::string("[") + repeated("a,", 100'000) + "]"), "more than 100000 values"));
    CHECK(first_line(repeated("\n", (1 << 20) + 1)) ==
          "t.yaml: error: larger than 1 MiB; lists of requests belong in a trace file");

    std::string bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n";
    for (char c = 'b'; c <= 'j'; ++c) {
        bomb += std::string(1, c) + ": &" + c + " [";
        bomb += repeated(std::string("*") + static_cast<char>(c - 1) + " ,", 10);
        bomb += "]\n";
    }
    CHECK(contains(first_line(bomb), "more than 100000 values"));
    CHECK(contains(first_line("a: &a " + std::string(500'000, 'x') + "\nb: [" + repeated("*a ,", 1000) + "]\n"),
                   "more than 100000 values"));
    const std::string deep = "a: &a " + repeated("[", 40) + repeated("]", 40) + "\nb: ";
    CHECK(first_line(deep + repeated("[", 24) + "*a" + repeated("]", 24)).find("nested") != std::string::npos);
    CHECK(parse_ok(deep + repeated("[", 23) + "*a" + repeated("]", 23)).is_map());
}

TEST_CASE("after a duplicate key the rest is still read") {
    Diagnostics diagnostics;
    const Value root = parse_yaml("a: 1\na: 2\nb: 3\n", "t.yaml", diagnostics);
    CHECK(diagnostics.error_count() == 1);
    REQUIRE(root.is_map());
    CHECK(root.map.size() == 2);
    CHECK(root.find("a")->scalar == "1");
    CHECK(root.find("b")->scalar == "3");
}

TEST_CASE("parse_yaml: an unknown escape of several bytes leaves the message whole") {
    Diagnostics diagnostics;
    parse_yaml("a: \"\\\xC3\xA9\"\n", "s.yaml", diagnostics);
    REQUIRE(diagnostics.errors().size() == 1);
    CHECK(diagnostics.errors()[0].find("error: YAML: unknown escape character\n") != std::string::npos);
    CHECK(find_invalid_utf8(diagnostics.errors()[0]) == std::string_view::npos);
}

TEST_CASE("load_yaml: unreadable files are the user's error") {
    Diagnostics diagnostics;
    CHECK_THROWS_AS(load_yaml("no/such/file.yaml", diagnostics), UserError);
    CHECK_THROWS_AS(load_yaml("/", diagnostics), UserError);
    CHECK_THROWS_AS(load_yaml("/dev/zero", diagnostics), UserError);
}

TEST_CASE("--set replaces, adds and creates maps on the way") {
    Value root = parse_ok("a: {b: 1}\nempty:\n");
    CHECK(set_complaints(root, "a.b=2").empty());
    CHECK(root.find("a")->find("b")->scalar == "2");
    CHECK(root.find("a")->find("b")->mark.source->name == "--set a.b=2");
    CHECK(root.find("a")->find("b")->mark.line == 1);
    CHECK(root.find("a")->find("b")->mark.column == 5);
    CHECK(set_complaints(root, "a.c.d={x: [1, 2], y: 'q=r'}").empty());
    CHECK(root.find("a")->find("c")->find("d")->find("x")->list.size() == 2);
    CHECK(root.find("a")->find("c")->find("d")->find("y")->scalar == "q=r");
    CHECK(set_complaints(root, "empty.k=v").empty());
    CHECK(root.find("empty")->find("k")->scalar == "v");
    CHECK(set_complaints(root, "a=[1]").empty());
    CHECK(root.find("a")->is_list());
    Value nothing;
    CHECK(set_complaints(nothing, "x.y= 10s").empty());
    CHECK(nothing.find("x")->find("y")->scalar == "10s");
}

TEST_CASE("--set reaches into lists by name or by index") {
    Value root =
        parse_ok("w: {classes: [{name: chat, r: {rate: 1}}, {name: batch, r: {rate: 2}}, {name: '0'}], l: [5, [6]]}\n");
    const auto rate = [&](std::size_t item) {
        return root.find("w")->find("classes")->list[item].find("r")->find("rate")->scalar;
    };
    CHECK(set_complaints(root, "w.classes.batch.r.rate=3/s").empty());
    CHECK(rate(0) == "1");
    CHECK(rate(1) == "3/s");
    CHECK(set_complaints(root, "w.classes.1.r.rate=4").empty());
    CHECK(rate(1) == "4");
    CHECK(set_complaints(root, "w.classes.chat.timeout={ttft: 1s}").empty());
    CHECK(root.find("w")->find("classes")->list[0].find("timeout")->find("ttft")->scalar == "1s");
    // A name comes before an index.
    CHECK(set_complaints(root, "w.classes.0.x=1").empty());
    CHECK(root.find("w")->find("classes")->list[2].find("x")->scalar == "1");
    CHECK(root.find("w")->find("classes")->list[0].find("x") == nullptr);
    CHECK(set_complaints(root, "w.l.1.0=7").empty());
    CHECK(root.find("w")->find("l")->list[1].list[0].scalar == "7");
    const std::string unknown = set_complaints(root, "w.classes.chta.r.rate=3");
    CHECK(unknown.find("w.classes.chta.r.rate=3:1:11: error: unknown item of w.classes 'chta'; did you mean 'chat'?") !=
          std::string::npos);
}

TEST_CASE("--set mistakes are shown in the argument") {
    Value root = parse_ok("a: 1\nl: [1]\n");
    CHECK(set_complaints(root, "a") == "--set a:1:1: error: write --set key.path=value\na\n^");
    CHECK(set_complaints(root, "=1") == "--set =1:1:1: error: write --set key.path=value\n=1\n^");
    CHECK(set_complaints(root, "a..b=1") == "--set a..b=1:1:3: error: an empty key in the path\na..b=1\n  ^");
    CHECK(set_complaints(root, "a.=1") == "--set a.=1:1:3: error: an empty key in the path\na.=1\n  ^");
    CHECK(set_complaints(root, ".a=1") == "--set .a=1:1:1: error: an empty key in the path\n.a=1\n^");
    CHECK(set_complaints(root, "a b=1") == "--set a b=1:1:1: error: a blank in the key path\na b=1\n^");
    CHECK(set_complaints(root, "a=") == "--set a=:1:3: error: no value after '='\na=\n  ^");
    CHECK(set_complaints(root, "a.b=1") ==
          "--set a.b=1:1:3: error: cannot set a key of a, which is '1' and not a map\na.b=1\n  ^");
    CHECK(set_complaints(root, "l.1=1") == "--set l.1=1:1:3: error: l has 1 items; they count from 0\nl.1=1\n  ^");
    CHECK(set_complaints(root, "l.99999999999999999999=1").find("l has 1 items") != std::string::npos);
    CHECK(set_complaints(root, "l.x=1") ==
          "--set l.x=1:1:3: error: l is a list: write the index of an item, from 0, instead of 'x'\nl.x=1\n  ^");
    CHECK(set_complaints(root, "a=b: c") ==
          "--set a=b: c:1:3: error: write a map as {key: value} and a list as [a, b]\na=b: c\n  ^");
    CHECK(set_complaints(root, "a=[1, 2") ==
          "--set a=[1, 2:1:3: error: a list or map cannot be a key; if it is a value, its bracket is not closed\na=[1, 2\n  ^");
    CHECK(set_complaints(root, "a='x") == "--set a='x:1:5: error: a quote is not closed\na='x\n    ^");
    CHECK(root.find("a")->scalar == "1");
    CHECK(root.map.size() == 2);
}
