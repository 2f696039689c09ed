// What a user may get wrong: exit 2, one clear message, nothing written.

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
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
    // vllm-v0 gives such requests up by itself.
    const Finished kept = run_in(folder, {"s.yaml", "--set", "engine.preset=vllm-v0", "--set", "engine.watermark=0.99", "--set",
                                          "workload.prompt_tokens=500"});
    CHECK(kept.exit == 2);
    CHECK(has(kept.err, "s.yaml: error: no request fits"));
    CHECK(has(kept.err, "of which engine.watermark keeps "));
    CHECK(folder.files() == std::vector<std::string>{"s.yaml"});
}

TEST_CASE("bad input: more mistakes than are kept do not hide that there were some") {
    std::string text;
    for (int i = 0; i < 3000; ++i) text.append("k").append(std::to_string(i)).append(": 1\n");
    check_refused(text, "... and ");
}

TEST_CASE("bad input: a mistake is reported once, without what follows from it") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    const auto errors_of = [&](const std::string& set) {
        const Finished done = run_in(folder, {"s.yaml", "--set", set});
        CHECK(done.exit == 2);
        CAPTURE(done.err);
        std::size_t count = 0;
        for (std::size_t at = 0; (at = done.err.find("error: ", at)) != std::string::npos; ++at) ++count;
        return count;
    };
    CHECK(errors_of("workload.requests=5000000000") == 1);
    CHECK(errors_of("engine=5") == 1);
    CHECK(errors_of("engine.num_gpu_blocks_override=null") == 1);
    CHECK(errors_of("step_time={}") == 1);
    CHECK(errors_of("step_time=[]") == 1);
    CHECK(errors_of("workload.trace={path: t.jsonl}") == 3);  // two keys beside it, and no such file
    CHECK(has(run_in(folder, {"s.yaml", "--set", "step_time=constant"}).err, "--set step_time=constant:1:11: error: "));
}

TEST_CASE("bad input: an alias is a near name too") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    CHECK(has(run_in(folder, {"s.yaml", "--set", "hardware.gpu=H10"}).err, "did you mean 'H100'?"));
}

TEST_CASE("bad input: a trace's error shows the line and a caret") {
    const TemporaryFolder folder;
    folder.write("s.yaml",
                 "model: meta-llama/Llama-3.1-8B-Instruct\n"
                 "engine: {preset: vllm-v1, max_model_len: 4096, num_gpu_blocks_override: 400}\n"
                 "step_time: {model: constant, step: 10ms}\n"
                 "workload: {trace: {path: t.jsonl, format: mooncake}}\n");
    folder.write("t.jsonl",
                 std::string("{\"timestamp\": 0, \"input_length\": 6, \"output_length\": 5}\n{\"timestamp\": 3, \"inp"));
    CHECK(run_in(folder, {"s.yaml"}).err ==
          "t.jsonl:2:18: error: text without its closing quote\n"
          "{\"timestamp\": 3, \"inp\n" +
              std::string(17, ' ') + "^\n");
    folder.write("t.jsonl", std::string("\0\0\n", 3));
    CHECK(run_in(folder, {"s.yaml"}).err == "t.jsonl:1:1: error: expected an object, found '?'\n??\n^\n");
    folder.write("t.jsonl", "name: small\n");
    CHECK(has(run_in(folder, {"s.yaml"}).err, "expected an object, found 'n'"));
}

TEST_CASE("bad input: what reaches the terminal is text") {
    const TemporaryFolder folder;
    CHECK(run_in(folder, {"./a\x1b[31m\xff"}).err == "error: cannot read './a?[31m?': No such file or directory\n");
    folder.write("s.yaml", small_scenario());
    folder.write("c.json", "\xff\xfe");
    const Finished done = run_in(folder, {"s.yaml", "--set", "model=./c.json"});
    CHECK(done.exit == 2);
    CHECK(has(done.err, "not a config.json: parse error at line 1, column 1"));
    CHECK_FALSE(has(done.err, "\xff"));
    CHECK(run_in(folder, {std::string(5000, 'x')}).err.size() < 400);
    CHECK(has(run_in(folder, {"check", "none.yaml"}).err, "error: cannot read 'none.yaml'"));
}

TEST_CASE("bad input: sizes beyond what can be simulated are refused with a reason") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    const auto refused = [&](const std::vector<std::string>& sets, std::string_view message) {
        std::vector<std::string> args{"s.yaml"};
        for (const std::string& set : sets) args.insert(args.end(), {"--set", set});
        const Finished done = run_in(folder, args);
        CAPTURE(done.err);
        CHECK(done.exit == 2);
        CHECK(has(done.err, message));
        CHECK_FALSE(std::filesystem::exists(folder.path() / "results"));
    };
    refused({"output.timeline_interval=1ns"}, "output.timeline_interval: timeline.csv would have more than 20000000 rows");
    refused({"hardware={data_parallel_size: 1024, replicas: 65535}"}, "at most 65535 are simulated");
    refused({"step_time={model: constant, step: 2500000h}", "output.timeline=false"}, "simulated time passes 146 years");
    refused({"engine.api=25h"}, "api must be at most 86400s");
    folder.write(
        "s.yaml",
        "model: meta-llama/Llama-3.1-8B-Instruct\n"
        "engine: {max_model_len: 4096, num_gpu_blocks_override: 400}\n"
        "step_time: {model: constant, step: 10ms}\n"
        "workload: {duration: 876000h, arrivals: {process: poisson, rate: 5/s}, prompt_tokens: 10, output_tokens: 2}\n");
    refused({}, "makes about 15768000000 requests; at most 1000000000 are simulated");
}

TEST_CASE("bad input: a warm-up longer than the run does not overflow") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    const Finished done = run_in(folder, {"s.yaml", "--set", "measure.warmup=2562047h", "--set",
                                          "workload.arrivals.rate=1e-7/s", "--set", "output.timeline=false"});
    CHECK(done.exit == 0);
}

TEST_CASE("bad input: a config.json with a wrong element type or quantization") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    const std::string head =
        "{\"model_type\": \"llama\", \"hidden_size\": 4096, \"num_hidden_layers\": 32, \"num_attention_heads\": 32, "
        "\"num_key_value_heads\": 8, \"intermediate_size\": 14336, \"vocab_size\": 128256, \"max_position_embeddings\": 131072";
    const auto run_with = [&](const std::string& more) {
        folder.write("c.json", head + more + "}");
        return run_in(folder, {"s.yaml", "--set", "model=./c.json"});
    };
    CHECK(run_with("").exit == 0);
    CHECK(run_with(", \"torch_dtype\": \"float32\"").exit == 0);
    CHECK(has(run_with(", \"torch_dtype\": \"bflot16\"").err, "torch_dtype is no element type: \"bflot16\""));
    CHECK(has(run_with(", \"torch_dtype\": 16").err, "torch_dtype is no element type: 16"));
    CHECK(has(run_with(", \"quantization_config\": 5").err, "quantization_config is not one of"));
}

TEST_CASE("bad input: outputs that would destroy something else") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    folder.write("t.yaml", "name: summary.csv\n" + small_scenario().substr(std::string("name: small\n").size()));
    CHECK(has(run_in(folder, {"s.yaml", "--steps", "./s.yaml"}).err, "would overwrite the scenario"));
    CHECK(slurp(folder.path() / "s.yaml") == small_scenario());
    CHECK(has(run_in(folder, {"s.yaml", "t.yaml", "--out", "o"}).err, "beside the folders"));
    CHECK_FALSE(std::filesystem::exists(folder.path() / "o"));
}

TEST_CASE("bad input: waiting for the other end of a pipe can be interrupted") {
    const TemporaryFolder folder;
    REQUIRE(mkfifo((folder.path() / "f.yaml").c_str(), 0600) == 0);
    const auto started = std::chrono::steady_clock::now();
    const auto after_a_while = [&] { return std::chrono::steady_clock::now() - started > std::chrono::milliseconds(200); };
    const Finished done =
        run_program({"f.yaml"}, {.folder = folder.path(), .output = {}, .interrupt_when = after_a_while, .signal = SIGINT});
    CHECK(done.exit == 130);
}

TEST_CASE("bad input: an output pipe that nobody reads does not hold the run up") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    REQUIRE(mkfifo((folder.path() / "pipe").c_str(), 0600) == 0);
    CHECK(run_in(folder, {"s.yaml", "--steps", "pipe"}).err == "error: cannot write 'pipe': nobody reads this pipe\n");
}

TEST_CASE("bad input: a file-size limit is a full disk") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    struct rlimit before {};
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
    struct rlimit small = before;
    small.rlim_cur = 2000;
    REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);  // the child inherits it
    const Finished done = run_in(folder, {"s.yaml", "--quiet"});
    REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(done.exit == 2);
    CHECK(has(done.err, "': File too large"));
    CHECK(folder.files() == std::vector<std::string>{"s.yaml"});
    CHECK_FALSE(std::filesystem::exists(folder.path() / "results"));
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

TEST_CASE("bad input: a duration in which nothing arrives is warned of") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    const Finished done = run_in(folder, {"s.yaml", "--set", "workload.duration=1ns"});
    CHECK(done.exit == 0);
    CHECK(has(done.out, "no request arrived within workload.duration"));
}

TEST_CASE("bad input: a run's files appear together or not at all") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    for (const char* taken : {"requests.csv", "timeline.csv", "summary.json", "summary.csv"}) {
        CAPTURE(taken);
        std::filesystem::create_directories(folder.path() / "o" / taken);
        const Finished done = run_in(folder, {"s.yaml", "--out", "o"});
        CHECK(done.exit == 2);
        CHECK(has(done.err, std::string("cannot write 'o/") + taken + "': Is a directory"));
        CHECK(folder.files() == std::vector<std::string>{"s.yaml"});
        std::filesystem::remove(folder.path() / "o" / taken);
    }
}

TEST_CASE("bad input: what is no map lacks no keys") {
    const TemporaryFolder folder;
    folder.write("s.yaml", "[1, 2]\n");
    CHECK(run_in(folder, {"s.yaml"}).err == "s.yaml:1:1: error: the scenario must be a map of keys, got a list\n[1, 2]\n^\n");
}
