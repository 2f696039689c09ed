#include <doctest/doctest.h>

#include <array>

#include "cli.hpp"
#include "kvsim/app/command.hpp"
#include "kvsim/base/check.hpp"

using namespace kvsim;
using test::run_program;

namespace {

const app::Usage usage{
    "test",    "kvsim test FILE [options]",
    "A test.", {{"seed", "N", "seed"}, {"set", "K=V", "set", true}, {"quiet", "", "say nothing"}, {"format", "F", ""}},
    "a file",  1,
    1};

std::string refusal(const std::vector<std::string>& args) {
    try {
        app::parse(usage, args);
    } catch (const UserError& e) { return e.what(); }
    return "";
}

bool has(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("command line: options before and after the positional, both spellings") {
    const auto args = app::parse(usage, {"--set", "a=1", "x.yaml", "--set=b=2", "--seed=-7", "--quiet"});
    REQUIRE(args);
    CHECK(args->positional == std::vector<std::string>{"x.yaml"});
    CHECK(args->all("set") == std::vector<std::string>{"a=1", "b=2"});
    CHECK(args->integer("seed", -10, 10) == -7);
    CHECK(args->has("quiet"));
    CHECK_FALSE(args->has("format"));
}

TEST_CASE("command line: everything wrong is refused with a hint") {
    CHECK(has(refusal({"x", "--sede", "3"}), "did you mean '--seed'"));
    CHECK(has(refusal({"x", "--see", "3"}), "unknown option"));  // a prefix is not an abbreviation
    CHECK(has(refusal({"x", "--argument", "3"}), "unknown option"));
    CHECK(has(refusal({"x", "--seed"}), "seed"));
    CHECK(has(refusal({"x", "--seed", "1", "--seed", "2"}), "more than once"));
    CHECK(has(refusal({"x", "--quiet=1"}), "quiet"));
    CHECK(has(refusal({"x", "y"}), "unexpected argument 'y'"));
    CHECK(has(refusal({}), "a file is missing"));
}

TEST_CASE("command line: integers are signed, whole and in range") {
    const auto value = [](const std::string& text) {
        const auto args = app::parse(usage, {"x", "--seed", text});
        return args->integer("seed", 0, 100);
    };
    CHECK(value("0") == 0);
    CHECK(value("100") == 100);
    for (const char* bad : {"-1", "101", "1.5", "1e3", "0x10", "99999999999999999999", "1 ", ""}) {
        CAPTURE(bad);
        CHECK_THROWS_AS(static_cast<void>(value(bad)), UserError);
    }
}

TEST_CASE("command line: a choice names the nearest one") {
    static constexpr std::array<std::string_view, 2> formats{"table", "json"};
    CHECK(app::parse(usage, {"x"})->choice("format", formats) == "table");
    CHECK(app::parse(usage, {"x", "--format", "json"})->choice("format", formats) == "json");
    CHECK_THROWS_WITH_AS(static_cast<void>(app::parse(usage, {"x", "--format", "jsno"})->choice("format", formats)),
                         "error: unknown --format 'jsno'; did you mean 'json'? (one of: table, json)", UserError);
}

TEST_CASE("kvsim: help and version go to standard output") {
    const auto help = run_program({"--help"});
    CHECK(help.exit == 0);
    CHECK(help.err.empty());
    for (const char* command : {"run", "memory", "conformance", "check", "list", "schema"}) {
        CAPTURE(command);
        CHECK(has(help.out, std::string("\n  ") + command + " "));
        const auto of_command = run_program({"help", command});
        CHECK(of_command.exit == 0);
        CHECK(has(of_command.out, "Usage: kvsim"));
        CHECK(run_program({command, "--help"}).out == of_command.out);
    }
    const auto version = run_program({"--version"});
    CHECK(version.exit == 0);
    CHECK(version.out == "kvsim " KVSIM_VERSION "\n");
}

TEST_CASE("kvsim schema: every section and piece, cells that stay cells") {
    const std::string text = run_program({"schema"}).out;
    for (const char* section : {"scenario", "hardware", "engine", "workload", "slo", "measure", "metrics", "output",
                                "workload.prefix", "workload.trace", "model as a map", "hardware.gpu as a map"}) {
        CAPTURE(section);
        CHECK(has(text, "## " + std::string(section) + "\n"));
    }
    CHECK(has(text, "| `groups` |"));
    CHECK(has(text, "| `jitter` |"));
    CHECK(has(text, "| `enable_prefix_caching` | true \\| false |"));
    CHECK(has(text, "| `num_gpu_blocks_override` | integer |  | 2 to 1000000000 |"));
    CHECK(has(text, "| `ttft` | duration |  | > 0 s |"));
    CHECK(has(text, "fcfs or priority"));
}

TEST_CASE("kvsim: without arguments the usage, as an error") {
    const auto nothing = run_program({});
    CHECK(nothing.exit == 2);
    CHECK(nothing.out.empty());
    CHECK(has(nothing.err, "Usage: kvsim SCENARIO.yaml"));
}

TEST_CASE("kvsim: unknown words get the nearest command") {
    const auto command = run_program({"memroy"});
    CHECK(command.exit == 2);
    CHECK(has(command.err, "did you mean 'memory'?"));
    const auto help = run_program({"help", "lsit"});
    CHECK(help.exit == 2);
    CHECK(has(help.err, "did you mean 'list'?"));
    const auto option = run_program({"--versoin"});
    CHECK(option.exit == 2);
    CHECK(option.out.empty());
}

TEST_CASE("kvsim list policies: every kind of piece that a batch policy is composed of") {
    const auto all = run_program({"list", "policies"});
    CHECK(all.exit == 0);
    for (const char* kind :
         {"presets", "batching", "scheduling_policy", "victim", "admission", "length_predictor", "kv_policy"}) {
        CAPTURE(kind);
        CHECK(has(all.out, std::string(kind) + " (engine."));
        const auto one = run_program({"list", kind});
        std::size_t lines = 0;
        for (const char c : one.out) lines += c == '\n' ? 1 : 0;
        CHECK(lines >= 4);
    }
    CHECK(!has(all.out, "routers"));
    const auto typo = run_program({"list", "policis"});
    CHECK(typo.exit == 2);
    CHECK(has(typo.err, "did you mean 'policies'?"));
    CHECK(has(typo.err, ", policies)"));
}
