// A run from the outside: files, formats, gates, interruption.

#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>

#include "cli.hpp"

using namespace kvsim::test;

namespace {

const std::vector<std::string> all_files{"requests.csv", "summary.csv", "summary.json", "timeline.csv"};

bool has(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

std::vector<std::string> below(const std::string& folder) {
    std::vector<std::string> out;
    for (const std::string& file : all_files) out.push_back(folder + "/" + file);
    return out;
}

}  // namespace

TEST_CASE("run: prints the summary and writes results/NAME under the working directory") {
    const TemporaryFolder folder;
    folder.write("sub/s.yaml", small_scenario());
    const Finished done = run_in(folder, {"sub/s.yaml"});
    CAPTURE(done.err);
    CHECK(done.exit == 0);
    CHECK_FALSE(done.out.empty());
    std::vector<std::string> expected = below("results/small");
    expected.push_back("sub/s.yaml");
    CHECK(folder.files() == expected);
    const std::string requests = slurp(folder.path() / "results/small/requests.csv");
    CHECK(std::count(requests.begin(), requests.end(), '\n') == 61);
}

TEST_CASE("run: the same seed gives the same bytes, another seed other ones") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    REQUIRE(run_in(folder, {"s.yaml", "--out", "a"}).exit == 0);
    REQUIRE(run_in(folder, {"s.yaml", "--out", "b/deep/er"}).exit == 0);
    REQUIRE(run_in(folder, {"s.yaml", "--out", "c", "--seed", "2"}).exit == 0);
    for (const std::string& file : all_files) {
        CAPTURE(file);
        CHECK(slurp(folder.path() / "a" / file) == slurp(folder.path() / "b/deep/er" / file));
        CHECK(slurp(folder.path() / "a" / file) != slurp(folder.path() / "c" / file));
    }
}

TEST_CASE("run: --seed is --set seed, and the last --set wins") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    REQUIRE(run_in(folder, {"s.yaml", "--out", "a", "--seed", "7"}).exit == 0);
    REQUIRE(run_in(folder, {"s.yaml", "--out", "b", "--set", "seed=6", "--set", "seed=7"}).exit == 0);
    CHECK(slurp(folder.path() / "a/summary.csv") == slurp(folder.path() / "b/summary.csv"));
}

TEST_CASE("run: several scenarios get a folder each and one table") {
    const TemporaryFolder folder;
    folder.write("a.yaml", small_scenario());
    folder.write("b.yaml", small_scenario("seed: 2\n").replace(0, 12, "name: other\n"));
    const Finished done = run_in(folder, {"a.yaml", "b.yaml", "--out", "o"});
    CAPTURE(done.err);
    CHECK(done.exit == 0);
    std::vector<std::string> expected{"a.yaml", "b.yaml"};
    for (const std::string& file : below("o/other")) expected.push_back(file);
    for (const std::string& file : below("o/small")) expected.push_back(file);
    expected.emplace_back("o/summary.csv");
    CHECK(folder.files() == expected);
    const std::string table = slurp(folder.path() / "o/summary.csv");
    const std::string small = slurp(folder.path() / "o/small/summary.csv");
    const std::string other = slurp(folder.path() / "o/other/summary.csv");
    CHECK(table == small + other.substr(other.find('\n') + 1));
}

TEST_CASE("run: several scenarios: one wrong one stops all before the first runs") {
    const TemporaryFolder folder;
    folder.write("a.yaml", small_scenario());
    folder.write("b.yaml", small_scenario("wrong: 1\n"));
    folder.write("c.yaml", small_scenario("false: 1\n"));
    const Finished done = run_in(folder, {"a.yaml", "b.yaml", "c.yaml"});
    CHECK(done.exit == 2);
    CHECK(has(done.err, "b.yaml:10:1: error: unknown key 'wrong'"));
    CHECK(has(done.err, "c.yaml:10:1: error: unknown key 'false'"));
    CHECK_FALSE(std::filesystem::exists(folder.path() / "results"));
}

TEST_CASE("run: a switched-off file is not written, and an old one stays") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    REQUIRE(run_in(folder, {"s.yaml", "--out", "o", "--set", "output.requests=false", "--set", "output.timeline=false"}).exit ==
            0);
    CHECK(folder.files() == std::vector<std::string>{"o/summary.csv", "o/summary.json", "s.yaml"});
    folder.write("o/requests.csv", "old\n");
    REQUIRE(run_in(folder, {"s.yaml", "--out", "o", "--set", "output.requests=false"}).exit == 0);
    CHECK(slurp(folder.path() / "o/requests.csv") == "old\n");
    CHECK(std::filesystem::exists(folder.path() / "o/timeline.csv"));
}

TEST_CASE("run: --format chooses what is printed, --quiet prints nothing") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    const auto printed = [&folder](const std::string& format) {
        const Finished done = run_in(folder, {"s.yaml", "--out", "o", "--format", format});
        CHECK(done.exit == 0);
        return done.out;
    };
    CHECK(printed("table") == run_in(folder, {"s.yaml", "--out", "o"}).out);
    CHECK(printed("csv") == slurp(folder.path() / "o/summary.csv"));
    CHECK(nlohmann::json::parse(printed("json")) == nlohmann::json::parse(slurp(folder.path() / "o/summary.json")));
    CHECK(has(printed("vllm"), "============ Serving Benchmark Result ============"));
    CHECK(has(printed("markdown"), "|"));
    const Finished quiet = run_in(folder, {"s.yaml", "--out", "o", "--quiet"});
    CHECK(quiet.exit == 0);
    CHECK(quiet.out.empty());
    CHECK(quiet.err.empty());
}

TEST_CASE("run: a failed assertion exits 1, is named, and the files are written all the same") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    const Finished good =
        run_in(folder, {"s.yaml", "--out", "o", "--assert", "completed == 60", "--assert", "ttft_p99 <= 10min"});
    CAPTURE(good.err);
    CHECK(good.exit == 0);
    const Finished bad = run_in(folder, {"s.yaml", "--out", "p", "--assert", "ttft_p99 <= 1us", "--assert", "completed == 60",
                                         "--assert", "preemptions > 1000000"});
    CHECK(bad.exit == 1);
    CHECK(has(bad.err, "ttft_p99 <= 1us"));
    CHECK(has(bad.err, "preemptions > 1000000"));
    CHECK(std::filesystem::exists(folder.path() / "p/summary.csv"));
}

TEST_CASE("run: --steps writes one JSON object a step") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    REQUIRE(run_in(folder, {"s.yaml", "--out", "o", "--steps", "steps.jsonl"}).exit == 0);
    const std::string log = slurp(folder.path() / "steps.jsonl");
    const auto first = nlohmann::json::parse(log.substr(0, log.find('\n')));
    CHECK(first.contains("t_ns"));
    CHECK(first.contains("duration_ns"));
    CHECK(std::count(log.begin(), log.end(), '\n') > 100);
}

namespace {

/// A log makes every step a single one; without one, steady steps are taken at once.
void check_logged_as_plain(const std::string& engine, const std::string& classes) {
    CAPTURE(engine);
    const TemporaryFolder folder;
    folder.write("s.yaml",
                 "name: s\nmodel: meta-llama/Llama-3.1-8B-Instruct\nhardware: {gpu: H100-SXM-80GB}\n"
                 "engine: {preset: vllm-v1, enable_prefix_caching: false, max_model_len: 160, " +
                     engine +
                     "}\nstep_time: {model: affine, c0: 5ms, per_sequence: 1ms}\n"
                     "workload:\n  arrivals: all_at_once\n  prompt_tokens: 10\n  classes:\n" +
                     classes);
    REQUIRE(run_in(folder, {"s.yaml", "--out", "logged", "--steps", "steps.jsonl"}).exit == 0);
    REQUIRE(run_in(folder, {"s.yaml", "--out", "plain"}).exit == 0);
    for (const std::string& file : all_files) {
        CAPTURE(file);
        CHECK(slurp(folder.path() / "logged" / file) == slurp(folder.path() / "plain" / file));
    }
}

}  // namespace

TEST_CASE("run: static: a client that leaves after its last but one token takes the idle row with it, logged or not") {
    check_logged_as_plain("batching: static, num_gpu_blocks_override: 100",
                          "    - {name: brief, requests: 1, output_tokens: 5, cancel: {share: 1, after: 100ms}}\n"
                          "    - {name: long, requests: 1, output_tokens: 140}\n");
}

TEST_CASE("run: equal progress: who was paused starts again with one block, logged or not") {
    for (const char* batching : {"decode-first", "max-utilization"}) {
        check_logged_as_plain(std::string("scheduler_reserve_full_isl: false, async_scheduling: false, context_chunking: "
                                          "equal_progress, num_gpu_blocks_override: 13, batching: ") +
                                  batching,
                              "    - {name: two, requests: 2, prompt_tokens: 60, output_tokens: 80}\n");
    }
}

TEST_CASE("run: a signal ends it at once, with nothing half-written and old files untouched") {
    for (const int signal : {SIGINT, SIGTERM}) {
        CAPTURE(signal);
        const TemporaryFolder folder;
        folder.write("s.yaml", small_scenario());
        folder.write("o/summary.csv", "old\n");
        const std::vector<std::string> before = folder.files();
        // Far more requests than the signal leaves time for. What is being written has no name on most file systems.
        const auto started = [polls = 0]() mutable { return ++polls > 200; };
        const Finished done =
            run_program({"s.yaml", "--out", "o", "--steps", "steps.jsonl", "--set", "workload.requests=5000000"},
                        {.folder = folder.path(), .output = {}, .interrupt_when = started, .signal = signal});
        CHECK(done.exit == 128 + signal);
        CHECK(done.out.empty());
        CHECK(folder.files() == before);
        CHECK(slurp(folder.path() / "o/summary.csv") == "old\n");
    }
}

TEST_CASE("check: says what is fine and lists everything that is not") {
    const TemporaryFolder folder;
    folder.write("good.yaml", small_scenario());
    folder.write("bad.yaml", small_scenario("wrong: 1\n"));
    const Finished good = run_in(folder, {"check", "good.yaml"});
    CHECK(good.exit == 0);
    CHECK(has(good.out, "good.yaml: ok"));
    const Finished bad = run_in(folder, {"check", "bad.yaml", "missing.yaml", "good.yaml"});
    CHECK(bad.exit == 2);
    CHECK(has(bad.err, "bad.yaml:10:1: error: unknown key 'wrong'"));
    CHECK(has(bad.err, "missing.yaml"));
    CHECK(has(bad.out, "good.yaml: ok"));
    CHECK(folder.files() == std::vector<std::string>{"bad.yaml", "good.yaml"});
}
