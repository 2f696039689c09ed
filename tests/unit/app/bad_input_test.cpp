// What a user may get wrong: exit 2, one clear message, nothing written.

#include <doctest/doctest.h>

#include <cstdlib>

#include "cli.hpp"

using namespace kvsim::test;

namespace {

bool has(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

/// Runs the text as a scenario; expects refusal, the part in the message and an untouched folder.
void check_refused(std::string_view text, std::string_view message) {
    CAPTURE(text);
    const TemporaryFolder folder;
    folder.write("s.yaml", text);
    const Finished done = run_in(folder, {"s.yaml"});
    CHECK(done.exit == 2);
    CHECK(done.out.empty());
    CAPTURE(done.err);
    CHECK(has(done.err, message));
    CHECK(folder.files() == std::vector<std::string>{"s.yaml"});
    CHECK_FALSE(std::filesystem::exists(folder.path() / "results"));
}

}  // namespace

TEST_CASE("bad input: files that are no scenario") {
    check_refused("", "s.yaml");
    check_refused("# only a comment\n", "s.yaml");
    check_refused(",", "s.yaml:1:1");
    check_refused(": : :\n", "s.yaml");
    check_refused("{unclosed: [1, 2\n", "s.yaml");
    check_refused("- a\n- list\n", "s.yaml:1:1");
    check_refused(small_scenario() + "---\n" + small_scenario(), "document");
    check_refused(std::string("name: a\0b\n", 10), "s.yaml");
    check_refused("name: \xff\xfe\n", "s.yaml");
}

TEST_CASE("bad input: every error of a scenario in one pass, each with its place") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario("sede: 3\nslo: {ttft: 5}\nmeasure: {warmup: sometimes}\n"));
    const Finished done = run_in(folder, {"s.yaml"});
    CHECK(done.exit == 2);
    CAPTURE(done.err);
    CHECK(has(done.err, "s.yaml:10:1: error: unknown key 'sede'"));
    CHECK(has(done.err, "did you mean 'seed'?"));
    CHECK(has(done.err, "s.yaml:11:13: error:"));
    CHECK(has(done.err, "s.yaml:12:19"));
}

TEST_CASE("bad input: errors of the fixed part and of the pieces come together") {
    const TemporaryFolder folder;
    folder.write("s.yaml",
                 "model: meta-llama/Llama-3.1-8B-Instruct\n"
                 "engine: {preset: vllm-v1, num_gpu_blocks_override: 400, max_num_seqs: -1}\n"
                 "step_time: {model: affine, c0: 5}\n"
                 "workload: {requests: 10, arrivals: {process: poison, rate: 5/s}, prompt_tokens: 10, output_tokens: 10}\n");
    const Finished done = run_in(folder, {"s.yaml"});
    CHECK(done.exit == 2);
    CAPTURE(done.err);
    CHECK(has(done.err, "s.yaml:2:"));
    CHECK(has(done.err, "s.yaml:3:"));
    CHECK(has(done.err, "s.yaml:4:"));
}

TEST_CASE("bad input: --set") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    for (const char* bad : {"engine.max_num_seqs=zero", "engine.max_num_sequences=4", "engine", "=4", "engine..x=1", "seed=1.5",
                            "workload.arrivals.rate=nan", "workload.requests=0", "workload.requests=-5"}) {
        CAPTURE(bad);
        const Finished done = run_in(folder, {"s.yaml", "--set", bad});
        CHECK(done.exit == 2);
        CHECK(has(done.err, "--set"));
    }
    CHECK(run_in(folder, {"s.yaml", "--seed", "-1"}).exit == 2);
    CHECK(folder.files() == std::vector<std::string>{"s.yaml"});
}

TEST_CASE("bad input: options of a run") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    folder.write("file", "");
    CHECK(has(run_in(folder, {"s.yaml", "--fromat", "json"}).err, "did you mean '--format'?"));
    for (const std::vector<std::string>& bad : {std::vector<std::string>{"s.yaml", "--format", "xml"},
                                                {"s.yaml", "--log-level", "loud"},
                                                {"s.yaml", "--out"},
                                                {"s.yaml", "--assert", "ttft_p99 <= "},
                                                {"s.yaml", "--assert", "ttft_p98 <= 2s"},
                                                {"s.yaml", "--assert", "nonsense"},
                                                {"missing.yaml"},
                                                {"./"},
                                                {"--quiet"},
                                                {"s.yaml", "missing.yaml"},
                                                {"s.yaml", "--out", "file"},
                                                {"s.yaml", "--out", "file/below"},
                                                {"s.yaml", "--out", "/proc/no"},
                                                {"s.yaml", "--out", ""},
                                                {"s.yaml", "--steps", "no/such/folder/steps.jsonl"},
                                                {"list", "s.yaml", "more"},
                                                {"schema", "extra"}}) {
        CAPTURE(bad);
        const Finished done = run_in(folder, bad);
        CHECK(done.exit == 2);
        CHECK(done.out.empty());
        CHECK_FALSE(done.err.empty());
    }
    CHECK(folder.files() == std::vector<std::string>{"file", "s.yaml"});
    CHECK_FALSE(std::filesystem::exists(folder.path() / "results"));
}

TEST_CASE("bad input: two scenarios may not write to one folder") {
    const TemporaryFolder folder;
    folder.write("a.yaml", small_scenario());
    folder.write("b.yaml", small_scenario());
    const Finished done = run_in(folder, {"a.yaml", "b.yaml"});
    CHECK(done.exit == 2);
    CHECK(has(done.err, "small"));
    CHECK_FALSE(std::filesystem::exists(folder.path() / "results"));
}

TEST_CASE("bad input: a name is no path") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    for (const char* name : {"name=../up", "name=a/b", "name=..", "name=''"}) {
        CAPTURE(name);
        CHECK(run_in(folder, {"s.yaml", "--set", name}).exit == 2);
    }
    CHECK(folder.files() == std::vector<std::string>{"s.yaml"});
}

TEST_CASE("bad input: traces") {
    const TemporaryFolder folder;
    const std::string head =
        "model: meta-llama/Llama-3.1-8B-Instruct\n"
        "engine: {preset: vllm-v1, max_model_len: 4096, num_gpu_blocks_override: 400}\n"
        "step_time: {model: constant, step: 10ms}\n";
    folder.write("s.yaml", head + "workload: {trace: {path: t.jsonl, format: mooncake}}\n");
    const std::string row = R"({"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]})"
                            "\n";
    CHECK(has(run_in(folder, {"s.yaml"}).err, "t.jsonl"));  // missing
    for (const std::string& bad : {std::string(), row + R"({"timestamp": 3, "input_len)", row + "{}\n", row + "[1]\n",
                                   std::string(R"({"timestamp": 0, "input_length": -6, "output_length": 5, "hash_ids": []})"
                                               "\n")}) {
        CAPTURE(bad);
        folder.write("t.jsonl", bad);
        const Finished done = run_in(folder, {"s.yaml"});
        CHECK(done.exit == 2);
        CAPTURE(done.err);
        CHECK(has(done.err, "t.jsonl"));
        if (!bad.empty()) CHECK(has(done.err, "^"));
        CHECK_FALSE(std::filesystem::exists(folder.path() / "results" / "s" / "summary.csv"));
    }
}

TEST_CASE("bad input: standard output that cannot be written") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    for (const std::vector<std::string>& args : {std::vector<std::string>{"list"}, {"--help"}, {"s.yaml"}}) {
        CAPTURE(args);
        const Finished done =
            run_program(args, {.folder = folder.path(), .output = "/dev/full", .interrupt_when = {}, .signal = 0});
        CHECK(done.exit == 2);
        CHECK(has(done.err, "standard output"));
    }
}

TEST_CASE("bad input: no request can ever fit") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    const Finished done = run_in(folder, {"s.yaml", "--set", "engine.num_gpu_blocks_override=1"});
    CHECK(done.exit == 2);
    CHECK(done.out.empty());
    CHECK_FALSE(done.err.empty());
    const Finished long_prompts =
        run_in(folder, {"s.yaml", "--set", "workload.prompt_tokens=5000", "--set", "engine.max_model_len=4096"});
    CHECK(long_prompts.exit == 2);
    CHECK(has(long_prompts.err, "s.yaml: error: no request fits"));
    CHECK(folder.files() == std::vector<std::string>{"s.yaml"});
}

TEST_CASE("bad input: one mistake gives one error, at a place") {
    const TemporaryFolder folder;
    folder.write("gpu.yaml",
                 "model: meta-llama/Llama-3.1-8B-Instruct\nhardware: {gpu: H101}\n"
                 "workload: {requests: 1, arrivals: {process: all_at_once}, prompt_tokens: 9, output_tokens: 9}\n");
    const Finished gpu = run_in(folder, {"gpu.yaml"});
    CHECK(gpu.exit == 2);
    CHECK(has(gpu.err, "gpu.yaml:2:17: error: unknown GPU 'H101'; did you mean 'H100'?"));
    CHECK_FALSE(has(gpu.err, "step_time"));

    folder.write("step.yaml",
                 "engine: {max_model_len: 99, num_gpu_blocks_override: 99}\n"
                 "workload: {requests: 1, arrivals: {process: all_at_once}, prompt_tokens: 9, output_tokens: 9}\n");
    CHECK(run_in(folder, {"step.yaml"}).err.find("step.yaml:1:1: error: step_time is needed") == 0);
}

TEST_CASE("bad input: a wrong SOURCE_DATE_EPOCH leaves no files") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    setenv("SOURCE_DATE_EPOCH", "yesterday", 1);
    const Finished done = run_in(folder, {"s.yaml"});
    unsetenv("SOURCE_DATE_EPOCH");
    CHECK(done.exit == 2);
    CHECK(folder.files() == std::vector<std::string>{"s.yaml"});
}

TEST_CASE("a warning about the input is one line of the report") {
    const TemporaryFolder folder;
    folder.write("s.yaml",
                 "engine: {max_model_len: 99, num_gpu_blocks_override: 99}\nstep_time: {model: constant, step: 1ms}\n"
                 "workload: {trace: {path: t.jsonl, format: mooncake}}\n");
    folder.write("t.jsonl", "{\"timestamp\": 0, \"input_length\": 6, \"output_length\": 5, \"colour\": 1}\n");
    const Finished done = run_in(folder, {"s.yaml"});
    CHECK(done.exit == 0);
    CHECK(has(done.out, "'colour' is unknown"));
    CHECK_FALSE(has(done.out, "^"));
}
