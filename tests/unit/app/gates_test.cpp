// Gates as a user calls them: --assert of run and sweep, and kvsim compare on files made for the purpose.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "unit/app/cli.hpp"

namespace kvsim::test {
namespace {

bool contains(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

/// summary.csv with a few of its columns.
std::string summary(const std::string& rows) {
    return "scenario,scenario_hash,kvsim_version,seed,requests,request_throughput_req_s,ttft_p99_ms,preemptions,verdict\n" +
           rows;
}

Finished compare(const TemporaryFolder& folder, const std::string& base, const std::string& fresh,
                 std::vector<std::string> more = {}) {
    folder.write("base.csv", base);
    folder.write("new.csv", fresh);
    std::vector<std::string> args{"compare", "base.csv", "new.csv"};
    args.insert(args.end(), more.begin(), more.end());
    return run_in(folder, args);
}

const char* const two_classes =
    "  classes:\n"
    "    - {name: chat, requests: 30, arrivals: {process: poisson, rate: 5/s}, prompt_tokens: 100, output_tokens: 20}\n"
    "    - {name: batch, requests: 20, arrivals: {process: poisson, rate: 5/s}, prompt_tokens: 900, output_tokens: 60}\n";

std::string classes_scenario() {
    return "name: small\n"
           "model: meta-llama/Llama-3.1-8B-Instruct\n"
           "engine: {preset: vllm-v1, max_model_len: 4096, max_num_seqs: 16, max_num_batched_tokens: 512, "
           "num_gpu_blocks_override: 400, block_size: 16}\n"
           "step_time: {model: constant, step: 10ms}\n"
           "workload:\n" +
           std::string(two_classes);
}

}  // namespace

TEST_CASE("gates: requests that the engine gives up fail what requests that are rejected would") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario("slo: {ttft: 10min}\n"));
    // 40 of 400 blocks are left to start in, 640 tokens: some prompts are longer.
    std::vector<std::string> args{"s.yaml", "--set", "engine.watermark=0.9", "--assert", "slo_attainment >= 0.99"};
    const Finished rejected = run_in(folder, args);
    CHECK(rejected.exit == 1);
    args.insert(args.end(), {"--set", "engine.preset=vllm-v0"});
    const Finished failed = run_in(folder, args);
    CHECK(failed.exit == 1);
    CHECK(contains(failed.err + failed.out, "engine.watermark keeps 360 free when a request starts"));
    CHECK(contains(failed.out, " failed; "));
    CHECK(contains(failed.out, " of the requests not served"));
    args[4] = "failed == 0 or rejected > 0";
    CHECK(run_in(folder, args).exit == 1);
    args[4] = "failed > 0 and completed > 0";
    CHECK(run_in(folder, args).exit == 0);
}

TEST_CASE("gates: an expression decides the exit code of a run") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    const auto run = [&](const std::string& text) {
        return run_in(folder, {"s.yaml", "--out", "o", "--quiet", "--assert", text});
    };
    CHECK(run("completed == 60 and ttft_p99 <= 10min").exit == 0);
    CHECK(run("completed == 59 or not preemptions > 1000000").exit == 0);
    const Finished failed = run("(completed == 60 and ttft_p99 <= 1us) or preemptions > 1000000");
    CHECK(failed.exit == 1);
    CHECK(contains(failed.err, "FAIL (completed is 60; ttft_p99_ms is "));
    const Finished wrong = run("completed == 60 and ttft_p9 <= 1us");
    CHECK(wrong.exit == 2);
    CHECK(contains(wrong.err, "completed == 60 and ttft_p9 <= 1us\n                    ^"));
    CHECK(contains(wrong.err, "did you mean 'ttft_p90'?"));
}

TEST_CASE("gates: several scenarios, each is judged") {
    const TemporaryFolder folder;
    folder.write("a.yaml", small_scenario());
    std::string other = small_scenario();
    other.replace(other.find("small"), 5, "other");
    other.replace(other.find("requests: 60"), 12, "requests: 61");
    folder.write("b.yaml", other);
    const Finished done =
        run_in(folder, {"a.yaml", "b.yaml", "--out", "o", "--quiet", "--assert", "completed == 60 or completed == 0"});
    CHECK(done.exit == 1);
    CHECK(contains(done.err, "other: completed == 60 or completed == 0: FAIL (completed is 61)"));
    CHECK_FALSE(contains(done.err, "small: "));
}

TEST_CASE("gates: figures of a class, in run, replications and sweep") {
    const TemporaryFolder folder;
    folder.write("s.yaml", classes_scenario());
    const auto run = [&](const std::string& text, std::vector<std::string> args) {
        args.insert(args.end(), {"--quiet", "--assert", text});
        return run_in(folder, args);
    };
    const std::string good = "class(chat).completed == 30 and class(batch).completed == 20";
    const std::string bad = "class(chat).completed == 20 or class(batch).ttft_p99 <= 1us";
    const std::vector<std::vector<std::string>> commands{
        {"s.yaml", "--out", "o"},
        {"s.yaml", "--out", "r", "--replications", "3"},
        {"sweep", "s.yaml", "--vary", "engine.max_num_seqs=8,16", "--out", "w"},
        {"sweep", "s.yaml", "--vary", "engine.max_num_seqs=8,16", "--out", "w", "--resume"}};
    for (const std::vector<std::string>& command : commands) {
        CAPTURE(command.front());
        CHECK(run(good, command).exit == 0);
        const Finished failed = run(bad, command);
        CHECK(failed.exit == 1);
        CHECK(contains(failed.err, "class(chat).completed is 30; class(batch).ttft_p99_ms is "));
        const Finished unknown = run("class(chta).completed == 30", command);
        CHECK(unknown.exit == 2);
        CHECK(contains(unknown.err, "there is no class 'chta'; did you mean 'chat'?"));
    }
    folder.write("plain.yaml", small_scenario());
    CHECK(contains(run("class(chat).completed == 30", {"plain.yaml", "--out", "p"}).err, "no classes"));
    // Where the classes themselves vary, a later point may have what the first has not.
    const std::string rest = ", requests: 5, arrivals: all_at_once, prompt_tokens: 8, output_tokens: 2}]";
    const std::string vary = "workload.classes=[{name: a" + rest + ",[{name: b" + rest;
    const Finished varied = run("class(b).completed == 5", {"sweep", "s.yaml", "--vary", vary, "--out", "v"});
    CHECK(varied.exit == 1);
    CHECK(contains(varied.err, "class(b).completed is not applicable"));
    CHECK(run("class(a).completed == 5 or class(b).completed == 5", {"sweep", "s.yaml", "--vary", vary, "--out", "v"}).exit ==
          0);
}

TEST_CASE("gates: classes of a trace are known after it has run") {
    const TemporaryFolder folder;
    folder.write("t.jsonl",
                 "{\"timestamp\": 0, \"input_length\": 100, \"output_length\": 5, \"class\": \"chat\"}\n"
                 "{\"timestamp\": 10, \"input_length\": 100, \"output_length\": 5}\n");
    folder.write("s.yaml",
                 "name: t\nmodel: meta-llama/Llama-3.1-8B-Instruct\n"
                 "engine: {preset: vllm-v1, max_model_len: 4096, num_gpu_blocks_override: 400}\n"
                 "step_time: {model: constant, step: 10ms}\n"
                 "workload: {trace: {path: t.jsonl, format: mooncake}}\n");
    const auto run = [&](const std::string& text) {
        return run_in(folder, {"s.yaml", "--out", "o", "--quiet", "--assert", text});
    };
    CHECK(run("class(chat).completed == 1 and class(\"\").completed == 1").exit == 0);
    CHECK(run("class(chat).completed == 2").exit == 1);
    const Finished unknown = run("class(chta).completed == 1");
    CHECK(unknown.exit == 2);
    CHECK(contains(unknown.err, "did you mean 'chat'?"));
}

TEST_CASE("gates: a sweep is judged row by row") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    const std::vector<std::string> sweep{"sweep", "s.yaml", "--vary", "workload.requests=10,60", "--repeat", "2", "--out", "w"};
    const auto run = [&](const std::string& text) {
        std::vector<std::string> args = sweep;
        args.insert(args.end(), {"--quiet", "--assert", text});
        return run_in(folder, args);
    };
    CHECK(run("completed == 10 or completed == 60").exit == 0);
    const Finished failed = run("completed == 60");
    CHECK(failed.exit == 1);
    CHECK(contains(failed.err, "workload.requests=10 seed=1: completed == 60: FAIL (completed is 10)"));
    CHECK(contains(failed.err, "workload.requests=10 seed=2: "));
    CHECK_FALSE(contains(failed.err, "workload.requests=60"));
    // The rows are there all the same, and a later gate judges them without running them.
    CHECK(contains(slurp(folder.path() / "w/sweep.csv"), ",60,"));
    std::vector<std::string> again = sweep;
    again.insert(again.end(), {"--resume", "--assert", "completed == 60"});
    const Finished resumed = run_in(folder, again);
    CHECK(resumed.exit == 1);
    CHECK(contains(resumed.out, "4 of 4 runs were finished before"));
    CHECK(contains(resumed.out, "2 assertions do not hold"));
    CHECK(run("ttft_p9 <= 1s").exit == 2);
}

TEST_CASE("compare: a regression fails and is named, an improvement passes") {
    const TemporaryFolder folder;
    const std::string base = summary("a,1,1,1,10,5,100,0,stable\nb,1,1,1,10,5,100,0,stable\n");
    CHECK(compare(folder, base, base).exit == 0);
    const Finished worse = compare(folder, base, summary("a,1,1,1,10,5,106,0,stable\nb,1,1,1,10,4,100,2,saturated\n"));
    CHECK(worse.exit == 1);
    for (const char* line : {"a  ttft_p99_ms", "b  request_throughput_req_s", "b  preemptions", "b  verdict"}) {
        std::string squeezed;
        for (const char c : worse.out) {
            if (c != ' ' || !squeezed.ends_with("  ")) squeezed += c;
        }
        CAPTURE(squeezed);
        CHECK(contains(squeezed, line));
    }
    CHECK(contains(worse.out, "4 failed"));
    CHECK(worse.out.find("preemptions") < worse.out.find("ttft_p99_ms"));  // of nothing to something is worst
    const Finished better = compare(folder, base, summary("a,1,1,1,10,6,80,0,stable\nb,1,1,1,10,5,100,0,stable\n"));
    CHECK(better.exit == 0);
    CHECK(contains(better.out, "2 improved"));
    CHECK(compare(folder, base, summary("a,1,1,1,10,6,80,0,stable\nb,1,1,1,10,5,100,0,stable\n"), {"--two-sided"}).exit == 1);
}

TEST_CASE("compare: tolerances by option and file") {
    const TemporaryFolder folder;
    const std::string base = summary("a,1,1,1,10,5,100,0,stable\n");
    const std::string fresh = summary("a,1,1,1,10,5,108,3,stable\n");
    const auto code = [&](std::vector<std::string> more) { return compare(folder, base, fresh, std::move(more)).exit; };
    CHECK(code({}) == 1);
    CHECK(code({"--tolerance", "10%"}) == 1);  // 0 preemptions have no 10 %
    CHECK(code({"--tolerance", "10%", "--tolerance", "preemptions=3"}) == 0);
    CHECK(code({"--tolerance", "ttft_p99=8ms", "--tolerance", "preemptions=3"}) == 0);
    CHECK(code({"--tolerance", "ttft_p99=7.9ms", "--tolerance", "preemptions=3"}) == 1);
    CHECK(code({"--tolerance", "ttft_*=8%", "--tolerance", "preemptions=3"}) == 0);
    CHECK(code({"--tolerance", "ttft_p99=1%,8ms", "--tolerance", "preemptions=3"}) == 0);
    CHECK(code({"--metrics", "request_throughput,verdict"}) == 0);
    CHECK(code({"--metrics", "ttft_p99"}) == 1);
    folder.write("t.yaml", "default: 10%\npreemptions: 3\n");
    CHECK(code({"--tolerances", "t.yaml"}) == 0);
    CHECK(code({"--tolerances", "t.yaml", "--tolerance", "preemptions=2"}) == 1);
    folder.write("t.yaml", "ttft_p99: [1%, 8ms]\npreemptions: 3\n");
    CHECK(code({"--tolerances", "t.yaml"}) == 0);
    folder.write("t.yaml", "ttft_p99: 5%\nttft_p9: 5%\ntpot_p99: {}\n");
    const Finished wrong = compare(folder, base, fresh, {"--tolerances", "t.yaml"});
    CHECK(wrong.exit == 2);
    CHECK(contains(wrong.err, "t.yaml:2:1: error: there is no summary column 'ttft_p9'; did you mean 'ttft_p90'?"));
    CHECK(contains(wrong.err, "t.yaml:3:"));
    CHECK(code({"--tolerance", "ttft_p99=2"}) == 2);
    CHECK(code({"--tolerance", "tft_p99=2%"}) == 2);
    CHECK(code({"--metrics", "seed"}) == 2);
    CHECK(code({"--metrics", ""}) == 2);
}

TEST_CASE("compare: under several seeds a difference must be significant") {
    const TemporaryFolder folder;
    const auto rows = [](std::vector<int> values) {
        std::string out;
        for (std::size_t i = 0; i < values.size(); ++i)
            out += "a,1,1," + std::to_string(i + 1) + ",10,5," + std::to_string(values[i]) + ",0,stable\n";
        return summary(out);
    };
    const std::string base = rows({100, 200, 300, 400});
    CHECK(compare(folder, base, rows({120, 221, 319, 420})).exit == 1);
    const Finished unclear = compare(folder, base, rows({100, 200, 300, 500}));
    CHECK(unclear.exit == 0);
    CHECK(contains(unclear.out, "1 unclear"));
    CHECK(compare(folder, base, rows({100, 200, 300, 500}), {"--fail-unclear"}).exit == 1);
    CHECK(contains(unclear.out, "unclear"));
    // The order of the rows is none of the comparison's business.
    CHECK(compare(folder, base,
                  summary("a,1,1,4,10,5,400,0,stable\na,1,1,2,10,5,200,0,stable\n"
                          "a,1,1,3,10,5,300,0,stable\na,1,1,1,10,5,100,0,stable\n"))
              .exit == 0);
    const Finished fewer = compare(folder, base, rows({100, 200}));
    CHECK(fewer.exit == 2);
    CHECK(contains(fewer.err, "2 of the baseline's runs are missing in new.csv: a seed 3; a seed 4"));
    const Finished allowed = compare(folder, base, rows({100, 200}), {"--allow-missing"});
    CHECK(allowed.exit == 0);
    CHECK(contains(allowed.err, "a seed 3; a seed 4"));
    CHECK(compare(folder, rows({100, 200}), base).exit == 0);  // more of them is no loss
    const Finished none = compare(folder, base, summary("a,1,1,9,10,5,100,0,stable\n"));
    CHECK(none.exit == 2);
    CHECK(contains(none.err, "seeds"));
}

TEST_CASE("compare: missing, extra and doubled points") {
    const TemporaryFolder folder;
    const std::string both = summary("a,1,1,1,10,5,100,0,stable\nb,1,1,1,10,5,100,0,stable\n");
    const std::string one = summary("a,1,1,1,10,5,100,0,stable\n");
    const Finished missing = compare(folder, both, one);
    CHECK(missing.exit == 2);
    CHECK(contains(missing.err, "missing in new.csv: b seed 1"));
    const Finished allowed = compare(folder, both, one, {"--allow-missing"});
    CHECK(allowed.exit == 0);
    CHECK(contains(allowed.err, "b seed 1"));
    const Finished extra = compare(folder, one, both);
    CHECK(extra.exit == 0);
    CHECK(contains(extra.err, "only in NEW, not compared: b seed 1"));
    const Finished doubled = compare(folder, one, one + "a,1,1,1,10,5,100,0,stable\n");
    CHECK(doubled.exit == 2);
    CHECK(contains(doubled.err, "new.csv:3: error: the same point as new.csv:2 once more: a seed 1"));
    CHECK(compare(folder, both, summary("c,1,1,1,10,5,100,0,stable\nd,1,1,1,10,5,100,0,stable\n")).exit == 2);
}

TEST_CASE("compare: versions and scenarios") {
    const TemporaryFolder folder;
    const std::string base = summary("a,1,1,1,10,5,100,0,stable\n");
    const Finished newer = compare(folder, base, summary("a,1,2,1,10,5,100,0,stable\n"));
    CHECK(newer.exit == 0);
    CHECK(contains(newer.err, "BASE is from kvsim 1, NEW from 2"));
    CHECK(compare(folder, base, summary("a,1,2,1,10,5,100,0,stable\n"), {"--strict"}).exit == 2);
    const Finished changed = compare(folder, base, summary("a,2,1,1,10,5,100,0,stable\n"));
    CHECK(changed.exit == 0);
    CHECK(contains(changed.err, "scenario_hash"));
    CHECK(compare(folder, base, summary("a,2,1,1,10,5,100,0,stable\n"), {"--strict"}).exit == 2);
    const Finished renamed = compare(folder, base, summary("b,1,1,1,10,5,120,0,stable\n"));
    CHECK(renamed.exit == 1);
    CHECK(contains(renamed.err, "different scenarios: a and b"));
    const Finished mixed = compare(folder, summary("a,1,1,1,10,5,100,0,stable\nb,1,2,1,10,5,100,0,stable\n"), base);
    CHECK(mixed.exit == 2);
    CHECK(contains(mixed.err, "base.csv mixes the results of kvsim 1, 2"));
}

TEST_CASE("compare: what is no number in a file is refused with its line") {
    const TemporaryFolder folder;
    const std::string good = summary("a,1,1,1,10,5,100,0,stable\n");
    for (const char* cell : {"nan", "NaN", "inf", "-inf", "1e999", "fast", "12ms", "0x10", "1,5\""}) {
        CAPTURE(cell);
        const std::string bad = summary("a,1,1,1,10,5," + std::string(cell) + ",0,stable\n");
        const Finished base = compare(folder, bad, good);
        CHECK(base.exit == 2);
        CHECK(contains(base.err, "base.csv:2: error: "));
        CHECK(base.out.empty());
        CHECK(compare(folder, good, bad).exit == 2);
    }
    // Also in a figure that is not compared.
    CHECK(compare(folder, summary("a,1,1,1,x,5,100,0,stable\n"), good).exit == 2);
    CHECK(compare(folder, summary("a,1,1,1,10,5,100,0,shaky\n"), good).exit == 2);
    CHECK(compare(folder, summary("a,1,1,-1,10,5,100,0,stable\n"), good).exit == 2);
    CHECK(compare(folder, summary("a,1,1,1,10,5,100\n"), good).exit == 2);
    CHECK(compare(folder, summary(""), good).exit == 2);
    CHECK(compare(folder, "", good).exit == 2);
    CHECK(compare(folder, "x,y\n1,2\n", good).exit == 2);
    CHECK(compare(folder, "scenario,kvsim_version\na,1\n", good).exit == 2);
    CHECK(compare(folder, summary("a,1,1,1,,,,,\n"), good).exit == 2);
    CHECK(run_in(folder, {"compare", "nowhere.csv", "new.csv"}).exit == 2);
    CHECK(run_in(folder, {"compare", "base.csv"}).exit == 2);
    folder.write("j.json", "{\"kvsim\": {\"scenario\": \"a\", \"ttft_p99_ms\": NaN}}");
    CHECK(run_in(folder, {"compare", "j.json", "j.json"}).exit == 2);
    folder.write("j.json", "{\"kvsim\": {\"scenario\": \"a\", \"ttft_p99_ms\": \"12\"}}");
    CHECK(run_in(folder, {"compare", "j.json", "j.json"}).exit == 2);
    folder.write("j.json", "{\"ttft_p99_ms\": 12}");
    CHECK(contains(run_in(folder, {"compare", "j.json", "j.json"}).err, "no object 'kvsim'"));
    folder.write("j.json", "[1]");
    CHECK(run_in(folder, {"compare", "j.json", "j.json"}).exit == 2);
}

TEST_CASE("compare: a value that is gone fails, one that came does not") {
    const TemporaryFolder folder;
    const std::string with = summary("a,1,1,1,10,5,100,0,stable\n");
    const std::string without = summary("a,1,1,1,10,5,,0,stable\n");
    const Finished gone = compare(folder, with, without);
    CHECK(gone.exit == 1);
    CHECK(contains(gone.out, "none in NEW"));
    const Finished came = compare(folder, without, with);
    CHECK(came.exit == 0);
    CHECK(contains(came.err, "without a value in BASE, not compared: a ttft_p99_ms"));
}

TEST_CASE("compare: files that other programs wrote again") {
    const TemporaryFolder folder;
    const std::string header = "point,engine.max_num_seqs,scenario,scenario_hash,kvsim_version,seed,ttft_p99_ms,error\n";
    const std::string base = header + "0,8,\"a, b\",1,1,1,100,\n1,16,\"a, b\",1,1,1,200,\n";
    // Another order of columns and rows, a byte order mark, CRLF, blank lines, no last line end.
    const std::string moved =
        "\xEF\xBB\xBF"
        "error,ttft_p99_ms,seed,kvsim_version,scenario_hash,scenario,engine.max_num_seqs,point\r\n\r\n"
        ",200,1,1,1,\"a, b\",16,1\r\n,100,1,1,1,\"a, b\",8,0";
    const Finished same = compare(folder, base, moved, {"--tolerance", "0"});
    CAPTURE(same.err);
    CHECK(same.exit == 0);
    CHECK(contains(same.out, "2 points, 2 comparisons"));
    CHECK(same.err.empty());
    CHECK(compare(folder, moved, header + "0,8,\"a, b\",1,1,1,100,\n1,16,\"a, b\",1,1,1,250,\n").exit == 1);
    CHECK(contains(compare(folder, base, header + "0,8,a,1,1,1,100,\n1,16,a,1,,1,200,\n").err,
                   "new.csv mixes the results of kvsim (unnamed), 1"));
}

TEST_CASE("compare: points that failed") {
    const TemporaryFolder folder;
    const auto sweep = [](const std::string& rows) {
        return "point,engine.max_num_seqs,scenario,scenario_hash,kvsim_version,seed,ttft_p99_ms,error\n" + rows;
    };
    const std::string ran = sweep("0,8,a,1,1,1,100,\n1,16,a,1,1,1,100,\n");
    const std::string failed = sweep("0,8,a,1,1,1,100,\n1,16,,,,1,,no KV cache left\n");
    const Finished now = compare(folder, ran, failed);
    CHECK(now.exit == 1);
    CHECK(contains(now.out, "no KV cache left"));
    const Finished before = compare(folder, failed, ran);
    CHECK(before.exit == 0);
    CHECK(contains(before.err, "failed in BASE only"));
    CHECK(compare(folder, failed, failed).exit == 0);
    // The number of a point is not its name.
    CHECK(compare(folder, ran, sweep("0,16,a,1,1,1,100,\n1,8,a,1,1,1,100,\n")).exit == 0);
    const Finished other_keys =
        compare(folder, ran, "point,engine.block_size,scenario,kvsim_version,seed,ttft_p99_ms,error\n0,8,a,1,1,100,\n");
    CHECK(other_keys.exit == 2);
    CHECK(contains(other_keys.err, "varies engine.max_num_seqs, "));
}

TEST_CASE("compare: folders of run and sweep, CSV and JSON, agree with themselves and show a policy made worse") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    const auto run = [&](std::vector<std::string> args, const std::string& out) {
        args.insert(args.end(), {"--quiet", "--out", out});
        CHECK(run_in(folder, args).exit == 0);
        args.insert(args.end(), {"--set", "engine.max_num_seqs=1"});
        args[args.size() - 3] = out + "-worse";
        CHECK(run_in(folder, args).exit == 0);
    };
    run({"s.yaml"}, "one");
    run({"s.yaml", "--replications", "5"}, "many");
    run({"sweep", "s.yaml", "--vary", "workload.requests=40,60", "--repeat", "5", "--aggregate"}, "grid");
    for (const char* name : {"one", "one/summary.csv", "one/summary.json", "many", "many/replications.csv", "many/summary.csv",
                             "many/summary.json", "grid", "grid/sweep.csv", "grid/aggregate.csv"}) {
        CAPTURE(name);
        const std::string base = name;
        const std::string worse = base.substr(0, base.find('/')) + "-worse" +
                                  (base.find('/') == std::string::npos ? std::string() : base.substr(base.find('/')));
        const Finished same = run_in(folder, {"compare", base, base, "--tolerance", "0", "--metrics", "all"});
        CHECK(same.exit == 0);
        CHECK(same.err.empty());
        const Finished changed = run_in(folder, {"compare", base, worse});
        CHECK(changed.exit == 1);
        CHECK(contains(changed.out, "ttft_p99_ms"));
    }
    // A folder is read in its fullest form: the seeds are there.
    CHECK(contains(run_in(folder, {"compare", "many", "many-worse"}).out, "seeds"));
    CHECK(run_in(folder, {"compare", "one", "grid"}).exit == 2);
    // A mean over seeds is no run of the first seed.
    const Finished mean = run_in(folder, {"compare", "one", "many/summary.csv"});
    CHECK(mean.exit == 2);
    CHECK(contains(mean.err, "seed"));
    CHECK(run_in(folder, {"compare", "many/summary.json", "many/summary.csv"}).exit == 0);
    // Several scenarios under one folder.
    std::string other = small_scenario();
    other.replace(other.find("small"), 5, "other");
    folder.write("b.yaml", other);
    CHECK(run_in(folder, {"s.yaml", "b.yaml", "--replications", "3", "--out", "both", "--quiet"}).exit == 0);
    const Finished both = run_in(folder, {"compare", "both", "both"});
    CHECK(both.exit == 0);
    CHECK(contains(both.out, "2 points"));
    CHECK(run_in(folder, {"compare", ".", "both"}).exit == 2);
}

TEST_CASE("compare: figures by class of runs, replications and sweeps, each against its own tolerance") {
    const TemporaryFolder folder;
    folder.write("s.yaml", classes_scenario());
    const auto run = [&](std::vector<std::string> args, const std::string& out, const std::string& set) {
        args.insert(args.end(), {"--quiet", "--out", out, "--set", set});
        CHECK(run_in(folder, args).exit == 0);
    };
    const std::vector<std::pair<std::string, std::vector<std::string>>> kinds{
        {"one", {"s.yaml"}},
        {"many", {"s.yaml", "--replications", "3"}},
        {"grid", {"sweep", "s.yaml", "--vary", "engine.max_num_seqs=4,8", "--repeat", "3", "--aggregate"}}};
    for (const auto& [name, args] : kinds) {
        run(args, name, "workload.rate_scale=1");
        run(args, std::string(name).append("-slow"), "step_time={model: constant, step: 12ms}");
    }
    for (const std::string name : {"one", "one/summary.csv", "one/summary.json", "many", "many/summary.csv", "grid",
                                   "grid/sweep.csv", "grid/aggregate.csv"}) {
        CAPTURE(name);
        const std::size_t slash = std::min(name.find('/'), name.size());
        const std::string slow = name.substr(0, slash).append("-slow").append(name.substr(slash));
        const Finished same = run_in(folder, {"compare", name, name, "--tolerance", "0", "--metrics", "class(*).all"});
        CHECK(same.exit == 0);
        CHECK(same.err.empty());
        const Finished worse =
            run_in(folder, {"compare", name, slow, "--metrics", "completed,class(chat).e2e_mean,class(batch).e2e_*"});
        CHECK(worse.exit == 1);
        CHECK(contains(worse.out, "class(chat).e2e_mean_ms"));
        CHECK(contains(worse.out, "class(batch).e2e_p99_ms"));
        CHECK_FALSE(contains(worse.out, "class(chat).e2e_p99_ms"));
        const auto within = [&](const std::string& tolerance) {
            return run_in(folder, {"compare", name, slow, "--metrics", "class(*).e2e_mean", "--tolerance", tolerance}).exit;
        };
        CHECK(within("class(*).e2e_mean=80%") == 0);
        CHECK(within("e2e_mean=80%") == 0);
        CHECK(within("class(chat).e2e_mean=80%") == 1);
        CHECK(within("class(*).e2e_mean=10s") == 0);
    }
    // The file itself, a point a class.
    const Finished direct = run_in(folder, {"compare", "many/classes.csv", "many-slow/classes.csv", "--metrics", "e2e_mean"});
    CHECK(direct.exit == 1);
    CHECK(contains(direct.out, "small class=chat"));
    CHECK(contains(direct.out, "2 points"));
    // A baseline under a name of its own.
    folder.write("base.csv", slurp(folder.path() / "grid/sweep.csv"));
    folder.write("base.classes.csv", slurp(folder.path() / "grid/classes.csv"));
    CHECK(run_in(folder, {"compare", "base.csv", "grid", "--metrics", "class(chat).ttft_p99"}).exit == 0);
    struct Case {
        const char* metrics;
        const char* message;
    };
    for (const Case& c : {Case{"class(chta).ttft_p99", "one has no class 'chta'; did you mean 'chat'?"},
                          {"class(chat).ttft_p98", "classes have no figure 'ttft_p98'; did you mean"},
                          {"class(chat).kv_usage_mean", "classes have no figure 'kv_usage_mean'"},
                          {"class(chat).zzz_*", "no figure of a class begins with 'zzz_'"},
                          {"class(chat)", "class(NAME).FIGURE"},
                          {"class().ttft_p99", "class(NAME).FIGURE"},
                          {"class(\"chat).ttft_p99", "class(NAME).FIGURE"}}) {
        CAPTURE(c.metrics);
        const Finished wrong = run_in(folder, {"compare", "one", "one", "--metrics", c.metrics});
        CHECK(wrong.exit == 2);
        CHECK(contains(wrong.err, c.message));
    }
    folder.write("base.classes.csv", "scenario,kvsim_version,seed,class,ttft_p99_ms\nsmall,1,1,chat,nan\n");
    const Finished nan = run_in(folder, {"compare", "base.csv", "grid", "--metrics", "class(chat).ttft_p99"});
    CHECK(nan.exit == 2);
    CHECK(contains(nan.err, "base.classes.csv:2: error: ttft_p99_ms: 'nan' is no number"));
    folder.write("base.classes.csv", "scenario,kvsim_version,seed,class\nsmall,1,1,chat\nsmall,1,1,chat\n");
    CHECK(contains(run_in(folder, {"compare", "base.csv", "grid", "--metrics", "class(chat).ttft_p99"}).err,
                   "base.classes.csv:3: error: class 'chat' of the same run once more"));
    // A run without classes takes an earlier run's file away.
    folder.write("plain.yaml", small_scenario());
    CHECK(run_in(folder, {"plain.yaml", "--out", "one", "--quiet"}).exit == 0);
    CHECK(contains(run_in(folder, {"compare", "one", "one", "--metrics", "class(chat).ttft_p99"}).err,
                   "one has no figures by class (no classes.csv beside it)"));
}

TEST_CASE("compare: classes, seeds of a class and whole files of them that are missing") {
    const TemporaryFolder folder;
    const std::string head = "scenario,kvsim_version,seed,class,ttft_p99_ms\n";
    const auto files = [&](const std::string& base, const std::string& fresh) {
        folder.write("base.classes.csv", head + base);
        folder.write("new.classes.csv", head + fresh);
    };
    const std::string row = summary("a,1,1,1,10,5,100,0,stable\n");
    const std::string chat = "a,1,1,chat,5\n";
    files(chat + "a,1,1,\"odd ,)\",5\n", chat);
    CHECK(compare(folder, row, row, {"--metrics", "class(chat).ttft_p99"}).exit == 0);
    const std::vector<std::string> both{"--metrics", "class(chat).ttft_p99,class('odd ,)').ttft_p99"};
    const auto allowing = [](std::vector<std::string> args) {
        args.emplace_back("--allow-missing");
        return args;
    };
    const Finished gone = compare(folder, row, row, both);
    CHECK(gone.exit == 2);
    CHECK(contains(gone.err, "missing in new.csv: a seed 1 class(odd ,)) (--allow-missing leaves them out)"));
    const Finished left = compare(folder, row, row, allowing(both));
    CHECK(left.exit == 0);
    CHECK(contains(left.err, "a seed 1 class(odd ,))"));
    CHECK(contains(left.out, "1 comparison: 0 failed"));
    // What is compared under --allow-missing still fails.
    files(chat + "a,1,1,odd,5\n", "a,1,1,chat,50\n");
    CHECK(compare(folder, row, row, allowing({"--metrics", "class(*).ttft_p99"})).exit == 1);
    // The other way round it is only in NEW.
    files(chat, chat + "a,1,1,odd,5\n");
    const Finished extra = compare(folder, row, row, {"--metrics", "class(*).ttft_p99"});
    CHECK(extra.exit == 0);
    CHECK(contains(extra.err, "only in NEW, not compared: class(odd)"));

    // A seed of a class.
    const std::string seeds = summary("a,1,1,1,10,5,100,0,stable\na,1,1,2,10,5,100,0,stable\n");
    files(chat + "a,1,2,chat,5\n", chat);
    const std::vector<std::string> one{"--metrics", "ttft_p99,class(chat).ttft_p99"};
    const Finished seed = compare(folder, seeds, seeds, one);
    CHECK(seed.exit == 2);
    CHECK(contains(seed.err, "missing in new.csv: a seed 2 class(chat)"));
    CHECK(compare(folder, seeds, seeds, allowing(one)).exit == 0);
    // Of a mean over seeds as well: it would be one of other requests.
    const std::string mean = "scenario,scenario_hash,kvsim_version,seed,requests,requests_ci95,ttft_p99_ms\na,1,1,1,10,0,100\n";
    const Finished of_mean = compare(folder, mean, mean, {"--metrics", "ttft_p99,class(chat).ttft_p99"});
    CHECK(of_mean.exit == 2);
    CHECK(contains(of_mean.err, "missing in new.csv: a seed 2 class(chat)"));
    const Finished without = compare(folder, mean, mean, allowing({"--metrics", "ttft_p99,class(chat).ttft_p99"}));
    CHECK(without.exit == 0);
    CHECK(contains(without.out, "1 comparison:"));

    // A whole file, on either side.
    for (const std::string name : {"base", "new"}) {
        CAPTURE(name);
        files(chat, chat);
        std::filesystem::remove(folder.path() / std::string(name).append(".classes.csv"));
        const Finished none = compare(folder, row, row, one);
        CHECK(none.exit == 2);
        CHECK(contains(none.err, std::string(name).append(".csv has no figures by class (no classes.csv beside it)")));
        const Finished note = compare(folder, row, row, allowing(one));
        CHECK(note.exit == 0);
        CHECK(contains(note.err, std::string(name).append(".csv has no figures by class")));
        CHECK(compare(folder, row, row, allowing({"--metrics", "class(chat).ttft_p99"})).exit == 2);  // nothing is left
    }

    // Another version of the figures by class alone.
    files(chat, "a,2,1,chat,5\n");
    const Finished newer = compare(folder, row, row, one);
    CHECK(newer.exit == 0);
    CHECK(contains(newer.err, "the figures by class of new.csv are from kvsim 2, its others from 1"));
    CHECK(compare(folder, row, row, {"--metrics", "class(chat).ttft_p99", "--strict"}).exit == 2);
}

TEST_CASE("compare: a class that a tolerance names must be there") {
    const TemporaryFolder folder;
    const std::string row = summary("a,1,1,1,10,5,100,0,stable\n");
    const std::string classes = "scenario,kvsim_version,seed,class,ttft_p99_ms\na,1,1,chat,5\na,1,1,batch,5\n";
    folder.write("base.classes.csv", classes);
    folder.write("new.classes.csv", classes);
    for (const char* metrics : {"class(chat).ttft_p99", "class(*).ttft_p99", "ttft_p99"}) {
        CAPTURE(metrics);
        const auto with = [&](const std::string& option, const std::string& value) {
            return compare(folder, row, row, {"--metrics", metrics, option, value});
        };
        CHECK(with("--tolerance", "class(chat).ttft_p99=5%").exit == 0);
        CHECK(with("--tolerance", "class(*).ttft_p99=5%").exit == 0);
        const Finished wrong = with("--tolerance", "class(chatt).ttft_p99=5%");
        CHECK(wrong.exit == 2);
        CHECK(contains(wrong.err, "--tolerance class(chatt).ttft_p99=5%: base.csv has no class 'chatt'; did you mean 'chat'?"));
        folder.write("t.yaml", "default: 5%\nclass(bach).ttft_p99: 5%\n");
        const Finished file = with("--tolerances", "t.yaml");
        CHECK(file.exit == 2);
        CHECK(contains(file.err, "t.yaml:2:1: error: base.csv has no class 'bach'; did you mean 'batch'?"));
        folder.write("t.yaml", "default: 5%\nclass(batch).ttft_p99: 5%\n");
        CHECK(with("--tolerances", "t.yaml").exit == 0);
    }
    std::filesystem::remove(folder.path() / "base.classes.csv");
    std::filesystem::remove(folder.path() / "new.classes.csv");
    const Finished none = compare(folder, row, row, {"--tolerance", "class(chat).ttft_p99=5%"});
    CHECK(none.exit == 2);
    CHECK(contains(none.err, "base.csv has no figures by class"));
}

TEST_CASE("compare: what it prints") {
    const TemporaryFolder folder;
    const std::string base = summary("a,1,1,1,10,5,100,0,stable\n");
    const std::string fresh = summary("a,1,1,1,10,5,150,0,stable\n");
    const Finished csv = compare(folder, base, fresh, {"--format", "csv"});
    CHECK(csv.exit == 1);
    CHECK(contains(csv.out,
                   "result,point,figure,base,new,difference,allowed,seeds,p,difference_ci95,message\n"
                   "REGRESSED,a,ttft_p99_ms,100,150,50,5,1,,,\n"));
    CHECK(contains(csv.out, "within,a,preemptions,0,0,0,0,1,,,\n"));
    CHECK(contains(compare(folder, base, fresh, {"--format", "markdown"}).out,
                   "| REGRESSED | a | ttft_p99_ms | 100 | 150 | +50.00 % | 5.00 % |"));
    CHECK_FALSE(contains(compare(folder, base, fresh).out, "preemptions"));
    CHECK(contains(compare(folder, base, fresh, {"--all"}).out, "preemptions"));
    CHECK(compare(folder, base, base, {"--quiet"}).out.empty());
    CHECK(contains(compare(folder, base, fresh, {"--quiet"}).out, "REGRESSED"));
    CHECK(compare(folder, base, fresh, {"--format", "yaml"}).exit == 2);
}

}  // namespace kvsim::test
