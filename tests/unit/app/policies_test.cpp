// kvsim policies: the same requests under several presets.

#include <doctest/doctest.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "kvsim/app/csv_table.hpp"
#include "unit/app/cli.hpp"

using namespace kvsim::test;
using Json = nlohmann::ordered_json;

namespace {

/// Too little KV for all of them at once; every preset finishes.
std::string scenario() {
    return "name: pressure\n"
           "engine: {preset: vllm-v1, num_gpu_blocks_override: 60, block_size: 16, max_model_len: 600, max_num_seqs: 32,\n"
           "  max_num_batched_tokens: 256, scheduler_reserve_full_isl: false}\n"
           "step_time: {model: affine, c0: 5ms, per_token: 20us, per_sequence: 50us}\n"
           "workload:\n  requests: 120\n  arrivals: {process: poisson, rate: 20/s}\n"
           "  prompt_tokens: {distribution: uniform, min: 20, max: 200}\n"
           "  output_tokens: {distribution: uniform, min: 10, max: 80}\n";
}

}  // namespace

TEST_CASE("policies: one row per preset, as each one's own run has it, and paired differences to the first") {
    const TemporaryFolder folder;
    folder.write("s.yaml", scenario());
    const Finished done = run_in(folder, {"policies", "s.yaml", "--presets", "vllm-v1,sglang", "--format", "json", "--quiet"});
    REQUIRE(done.exit == 0);
    const Json all = Json::parse(done.out);
    CHECK(all.at("scenario") == "pressure");
    REQUIRE(all.at("policies").size() == 2);
    for (const Json& row : all.at("policies")) {
        const std::string preset = row.at("preset");
        CAPTURE(preset);
        const Finished alone =
            run_in(folder, {"s.yaml", "--set", "engine.preset=" + preset, "--format", "json", "--quiet", "--out", preset});
        REQUIRE(alone.exit == 0);
        const Json summary = Json::parse(slurp(folder.path() / preset / "summary.json"));
        CHECK(row.at("ttft_mean_ms").get<double>() == doctest::Approx(summary.at("mean_ttft_ms").get<double>()));
        CHECK(row.at("tpot_p99_ms").get<double>() == doctest::Approx(summary.at("p99_tpot_ms").get<double>()));
        CHECK(row.at("completed") == 120);
    }
    const Json& first = all.at("policies")[0];
    const Json& second = all.at("policies")[1];
    CHECK(first.at("ttft_difference_ms").at("mean").is_null());
    for (const std::string metric : {"ttft", "tpot", "e2e"}) {
        CAPTURE(metric);
        // All complete under both: the mean of the differences is the difference of the means, inside its interval.
        const Json& difference = second.at(metric + "_difference_ms");
        const double mean = difference.at("mean").get<double>();
        CHECK(difference.at("requests") == 120);
        CHECK(mean ==
              doctest::Approx(second.at(metric + "_mean_ms").get<double>() - first.at(metric + "_mean_ms").get<double>())
                  .epsilon(1e-3));
        CHECK(difference.at("ci95")[0].get<double>() < mean);
        CHECK(difference.at("ci95")[1].get<double>() > mean);
    }
}

TEST_CASE("policies: table, markdown and CSV name every preset, without --presets all of them run") {
    const TemporaryFolder folder;
    folder.write("s.yaml", scenario());
    for (const std::string format : {"table", "markdown", "csv"}) {
        CAPTURE(format);
        // The longest range of a buddy allocator is a power of two of slots: it has to hold max_model_len.
        const Finished done =
            run_in(folder, {"policies", "s.yaml", "--format", format, "--quiet", "--set", "engine.num_gpu_blocks_override=80"});
        CHECK(done.exit == 0);
        for (const char* preset : {"vllm-v1", "vllm-v1-2026-01", "sglang", "orca-pow2", "fastserve", "lightllm"})
            CHECK(done.out.find(preset) != std::string::npos);
        CHECK(done.out.find(format == "csv" ? "e2e_difference_low_ms" : "TTFT - vllm-v1's (ms)") != std::string::npos);
        CHECK(done.err.empty());
    }
    const Finished again = run_in(folder, {"policies", "s.yaml", "--format", "csv", "--quiet"});
    CHECK(again.out == run_in(folder, {"policies", "s.yaml", "--format", "csv", "--quiet"}).out);
}

TEST_CASE("policies: a pool given in blocks is warned of where they are of another size") {
    const TemporaryFolder folder;
    std::string text = scenario();
    const Finished equal =
        run_in(folder, {"policies", folder.write("equal.yaml", text), "--presets", "vllm-v1,static,trtllm-no-evict"});
    CHECK(equal.exit == 0);
    CHECK(equal.err.find("num_gpu_blocks_override counts") == std::string::npos);
    text.erase(text.find("block_size: 16, "), std::string("block_size: 16, ").size());
    const Finished done =
        run_in(folder, {"policies", folder.write("s.yaml", text), "--presets", "vllm-v1,static,trtllm-no-evict"});
    CHECK(done.exit == 0);
    CAPTURE(done.err);
    CHECK(done.err.find(
              "trtllm-no-evict: num_gpu_blocks_override counts blocks of the preset's own size, here 1920 tokens in all, "
              "under vllm-v1 960; block_size") != std::string::npos);
    CHECK(done.err.find("static: num_gpu_blocks_override counts") == std::string::npos);
}

TEST_CASE("policies: differences of thousands of requests, shorter ones among them") {
    const TemporaryFolder folder;
    folder.write("s.yaml", scenario());
    const std::vector<std::string> command{"policies", "s.yaml",  "--presets", "vllm-v1,vllm-v0",       "--format",
                                           "json",     "--quiet", "--set",     "workload.requests=3000"};
    const Finished done = run_in(folder, command);
    REQUIRE(done.exit == 0);
    const Json difference = Json::parse(done.out).at("policies")[1].at("ttft_difference_ms");
    CHECK(difference.at("requests") == 3000);
    CHECK(difference.at("ci95")[0] < difference.at("mean"));
    CHECK(difference.at("mean") < difference.at("ci95")[1]);
}

TEST_CASE("policies: an engine that cannot run the scenario is a row with the reason, the others run, and the exit code is 1") {
    const TemporaryFolder folder;
    folder.write("s.yaml", scenario());
    Finished done = run_in(
        folder, {"policies", "s.yaml", "--presets", "vllm-v1,sglang", "--quiet", "--set", "engine.scheduling_policy=priority"});
    CHECK(done.exit == 1);
    CHECK(done.out.find("vllm-v1") != std::string::npos);
    CHECK(done.out.find("cannot run") != std::string::npos);
    CHECK(done.err.find("preset sglang has no scheduling_policy priority") != std::string::npos);
    // The first that runs is what the others are compared with; SGLang does not swap.
    const std::vector<std::string> swap{"policies",  "s.yaml",
                                        "--presets", "sglang,vllm-v0,vllm-v1",
                                        "--set",     "engine.preemption=swap",
                                        "--set",     "engine.num_cpu_blocks_override=100",
                                        "--quiet",   "--format"};
    auto as = [&swap](const char* format) {
        std::vector<std::string> args = swap;
        args.emplace_back(format);
        return args;
    };
    done = run_in(folder, as("json"));
    CHECK(done.exit == 1);
    const Json all = Json::parse(done.out);
    REQUIRE(all.at("policies").size() == 3);
    CHECK(all.at("policies")[0].at("error").get<std::string>().find("preemption") != std::string::npos);
    CHECK_FALSE(all.at("policies")[0].contains("completed"));
    CHECK(all.at("policies")[1].at("completed") == 120);
    CHECK(all.at("policies")[2].at("completed") == 120);
    done = run_in(folder, as("csv"));
    const kvsim::app::CsvTable table("csv", done.out);
    REQUIRE(table.rows().size() == 3);
    CHECK(table.text(table.rows()[0], "error").find("preemption") != std::string::npos);
    CHECK(table.text(table.rows()[0], "completed").empty());
    CHECK(table.text(table.rows()[1], "error").empty());
    CHECK(table.text(table.rows()[1], "completed") == "120");
    CHECK(run_in(folder, as("table")).out.find("TTFT - vllm-v0's (ms)") != std::string::npos);
    done = run_in(folder, {"policies", "s.yaml", "--presets", "sglang,vllm-v1", "--set", "engine.preemption=swap"});
    CHECK(done.exit == 2);
    CHECK(done.out.empty());
    done = run_in(folder, {"policies", "s.yaml", "--presets", "vllm-v1,sglnag"});
    CHECK(done.exit == 2);
    CHECK(done.err.find("did you mean 'sglang'?") != std::string::npos);
    CHECK(done.out.empty());
    CHECK(run_in(folder, {"policies", "s.yaml", "--presets", "sglang,sglang"}).exit == 2);
    CHECK(run_in(folder, {"policies"}).exit == 2);
    CHECK(run_in(folder, {"policies", "nowhere.yaml"}).exit == 2);
}

TEST_CASE("policies: an engine that dies is reported as a run that cannot go on") {
    const TemporaryFolder folder;
    folder.write("s.yaml",
                 "name: dies\nengine: {preset: sglang, num_gpu_blocks_override: 64, page_size: 1, max_model_len: 100,\n"
                 "  chunked_prefill_size: 8, enable_mixed_chunk: true, schedule_conservativeness: 0, async_scheduling: false}\n"
                 "step_time: {model: constant, step: 10ms}\nworkload: {trace: {path: t.jsonl, format: mooncake}}\n");
    std::string trace;
    for (const char* lengths : {"0, 4, 30", "10, 4, 30", "20, 4, 30", "30, 40, 2"}) {
        int at = 0;
        int prompt = 0;
        int output = 0;
        REQUIRE(std::sscanf(lengths, "%d, %d, %d", &at, &prompt, &output) == 3);
        trace += Json{{"timestamp", at}, {"input_length", prompt}, {"output_length", output}, {"hash_ids", {at}}}.dump() + "\n";
    }
    folder.write("t.jsonl", trace);
    const Finished done = run_in(folder, {"s.yaml", "--quiet"});
    CHECK(done.exit == 2);
    CHECK(done.err.find("the engine crashes at") != std::string::npos);
    CHECK(done.err.find("RuntimeError: Out of memory") != std::string::npos);
    CHECK(run_in(folder, {"s.yaml", "--quiet", "--set", "engine.enable_mixed_chunk=false"}).exit == 0);
}

TEST_CASE("a preset without recorded decisions says so, and names what it was modelled from") {
    const TemporaryFolder folder;
    folder.write("s.yaml", scenario());
    const auto decisions = [&folder](const std::string& set) {
        const Finished done = run_in(folder, {"s.yaml", "--set", set, "--out", "out"});
        REQUIRE(done.exit == 0);
        const bool told = done.out.find("modelled from documentation") != std::string::npos;
        const std::string text = Json::parse(slurp(folder.path() / "out" / "summary.json")).at("kvsim").at("decisions");
        CHECK(told == (text.find("modelled from documentation") != std::string::npos));
        return text;
    };
    CHECK(decisions("engine.preset=vllm-v1") == "as recorded from the engine");
    CHECK(decisions("engine.preset=sarathi").find("Sarathi-Serve") != std::string::npos);
    CHECK(decisions("engine.batching=iteration").find("batching iteration") != std::string::npos);
    CHECK(decisions("engine.admission=expected") != "as recorded from the engine");
    const Finished none = run_in(folder, {"s.yaml", "--set", "engine.preset=trtllm-no-evict", "--out", "out"});
    REQUIRE(none.exit == 0);
    CHECK(none.out.find("no preemption") != std::string::npos);
    CHECK(none.out.find("preemption by") == std::string::npos);
}

TEST_CASE("memory knows every preset") {
    const TemporaryFolder folder;
    const Finished listed = run_in(folder, {"list", "presets"});
    for (const std::string preset : {"static", "orca-max", "orca-pow2", "orca-oracle", "fastserve", "vtc", "sarathi",
                                     "trtllm-no-evict", "trtllm-max-utilization", "lightllm"}) {
        CAPTURE(preset);
        CHECK(listed.out.find(preset) != std::string::npos);
        const Finished done =
            run_in(folder, {"memory", "--engine", preset, "--model", "Llama-3.1-8B", "--gpu", "H100", "--format", "json"});
        REQUIRE(done.exit == 0);
        CHECK(Json::parse(done.out).at("num_gpu_blocks").get<std::int64_t>() > 1000);
    }
}

TEST_CASE("policies: fairness, waits behind the head, and latencies by class and by length") {
    const TemporaryFolder folder;
    // One tenant sends a prompt that needs all KV, the others small ones behind it.
    folder.write("t.jsonl",
                 "{\"timestamp\": 0, \"input_length\": 320, \"output_length\": 60, \"class\": \"long\", \"tenant\": \"a\"}\n"
                 "{\"timestamp\": 1, \"input_length\": 640, \"output_length\": 20, \"class\": \"long\", \"tenant\": \"a\"}\n"
                 "{\"timestamp\": 2, \"input_length\": 30, \"output_length\": 5, \"class\": \"chat\", \"tenant\": \"b\"}\n"
                 "{\"timestamp\": 3, \"input_length\": 30, \"output_length\": 5, \"class\": \"chat\", \"tenant\": \"b\"}\n");
    folder.write("s.yaml",
                 "name: head\n"
                 "engine: {num_gpu_blocks_override: 51, block_size: 16, max_model_len: 700, max_num_seqs: 8,\n"
                 "  max_num_batched_tokens: 2048, async_scheduling: false}\n"
                 "step_time: {model: constant, step: 10ms}\n"
                 "workload: {trace: {path: t.jsonl, format: mooncake}}\n");
    const Finished done =
        run_in(folder, {"policies", "s.yaml", "--presets", "vllm-v1", "--format", "json", "--quiet", "--out", "p"});
    REQUIRE(done.exit == 0);
    const Json row = Json::parse(done.out).at("policies")[0];
    // The second holds the queue from its arrival at 1 ms until the first has its 60 tokens at 600 ms: it needs 40 of the 30 or
    // fewer free blocks, each of the others 2. They are held up from the first decision after they came, at 10 ms, on.
    CHECK(row.at("head_of_line_blocking_s").get<double>() == doctest::Approx(0.59));
    CHECK(row.at("queue_max_ms").get<double>() == doctest::Approx(599));
    CHECK(row.at("jain_requests").get<double>() < 1);
    CHECK(row.at("jain_tenants").is_null());  // nobody was done when the last one came
    std::int64_t by_class = 0;
    std::int64_t by_length = 0;
    for (const Json& group : row.at("groups")) {
        (group.at("kind") == "class" ? by_class : by_length) += group.at("requests").get<std::int64_t>();
        if (group.at("group") == "chat") CHECK(group.at("requests") == 2);
    }
    CHECK(by_class == 4);
    CHECK(by_length == 4);
    CHECK(slurp(folder.path() / "p" / "groups.csv").starts_with("preset,kind,group,requests,completed,ttft_mean_ms"));
    CHECK(slurp(folder.path() / "p" / "groups.csv").find("\nvllm-v1,class,chat,2,2,") != std::string::npos);

    const Finished table = run_in(folder, {"policies", "s.yaml", "--presets", "vllm-v1,sglang", "--quiet"});
    CHECK(table.out.find("chat: TTFT mean / p99 (ms)") != std::string::npos);
    CHECK(table.out.find("fairness over tenants (Jain)") != std::string::npos);
}

TEST_CASE("policies: requests that time out, goodput and SLO, and whose latencies stand there") {
    const TemporaryFolder folder;
    // Static batches hold their seats until the longest is done: who comes meanwhile gives up.
    const std::string limits = "  timeout: 1500ms\n";
    folder.write("s.yaml", scenario() + limits + "slo: {ttft: 300ms}\n");
    const std::vector<std::string> command{"policies", "s.yaml", "--presets", "vllm-v1,static", "--format"};
    const auto as = [&](const char* format, bool quiet = true) {
        std::vector<std::string> args = command;
        args.emplace_back(format);
        if (quiet) args.emplace_back("--quiet");
        return run_in(folder, args);
    };
    const Finished csv = as("csv");
    REQUIRE(csv.exit == 0);
    const kvsim::app::CsvTable table("csv", csv.out);
    const Json all = Json::parse(as("json").out);
    REQUIRE(table.rows().size() == 2);
    for (std::size_t i = 0; i < 2; ++i) {
        const Json& row = all.at("policies")[i];
        const std::string preset = row.at("preset");
        CAPTURE(preset);
        REQUIRE(run_in(folder, {"s.yaml", "--set", "engine.preset=" + preset, "--quiet", "--out", preset}).exit == 0);
        const kvsim::app::CsvTable own("summary", slurp(folder.path() / preset / "summary.csv"));
        for (const char* column : {"completed", "rejected", "timed_out", "cancelled", "goodput_req_s", "slo_attainment"}) {
            CAPTURE(column);
            CHECK(table.text(table.rows()[i], column) == own.text(own.rows()[0], column));
            CHECK(row.at(column).get<double>() == doctest::Approx(std::stod(own.text(own.rows()[0], column))));
        }
        CHECK(table.text(table.rows()[i], "failed") == "0");
        CHECK(row.at("failed") == 0);
    }
    const Json& last = all.at("policies")[1];
    REQUIRE(last.at("timed_out").get<int>() > 0);
    const std::string of = "static " + std::to_string(last.at("completed").get<int>()) + " of 120";
    CHECK(all.at("notes").at(0).get<std::string>().find(of) != std::string::npos);
    CHECK(as("csv", false).err.find(of) != std::string::npos);
    for (const char* format : {"table", "markdown"}) {
        const Finished done = as(format);
        for (const char* text :
             {"timed out", "goodput (requests/s)", "SLO met (%)", "latencies are of the requests that completed", of.c_str()})
            CHECK(done.out.find(text) != std::string::npos);
        CHECK(done.out.find("cancelled") == std::string::npos);
    }

    // Without timeouts and limits there is nothing to say.
    folder.write("plain.yaml", scenario());
    const Finished plain = run_in(folder, {"policies", "plain.yaml", "--presets", "vllm-v1,static"});
    CHECK(plain.exit == 0);
    for (const char* text : {"timed out", "goodput", "SLO met", "latencies are of", "are in no difference"}) {
        CHECK(plain.out.find(text) == std::string::npos);
        CHECK(plain.err.find(text) == std::string::npos);
    }
}

TEST_CASE("policies: what the scenario replaces in a preset is named per preset") {
    const TemporaryFolder folder;
    folder.write("s.yaml", scenario());
    const std::string order = "engine.scheduling_policy=priority";
    const auto as = [&folder, &order](const char* format) {
        return run_in(folder, {"policies", "s.yaml", "--presets", "vllm-v1,vtc,fastserve", "--set", order, "--quiet",
                               "--format", format});
    };
    const std::string table = as("table").out;
    const std::string markdown = as("markdown").out;
    const std::string csv = as("csv").out;
    const kvsim::app::CsvTable rows("csv", csv);
    const Json all = Json::parse(as("json").out);
    REQUIRE(rows.rows().size() == 3);
    std::size_t at = 0;
    for (const std::string& preset : {std::string("vllm-v1"), std::string("vtc"), std::string("fastserve")}) {
        CAPTURE(preset);
        // As a run of its own has them.
        REQUIRE(
            run_in(folder, {"s.yaml", "--set", "engine.preset=" + preset, "--set", order, "--quiet", "--out", preset}).exit ==
            0);
        const kvsim::app::CsvTable own("summary", slurp(folder.path() / preset / "summary.csv"));
        const std::string deviations(own.text(own.rows()[0], "deviations"));
        CHECK(rows.text(rows.rows()[at], "deviations") == deviations);
        CHECK(all.at("policies")[at++].at("deviations") == deviations);
        CHECK(markdown.find("\n* " + preset + ": " + deviations + "\n") != std::string::npos);
        const std::string named = "scheduling_policy=priority (" + preset + ": ";
        CHECK(deviations.find(named) != std::string::npos);
        CHECK(table.find("\n  " + preset + " ") != std::string::npos);
        CHECK(table.find(named) != std::string::npos);
    }
    CHECK(table.find("scheduling_policy=priority (vtc: vtc)") != std::string::npos);
}

TEST_CASE("policies: where clients wait for answers, only what is the same request is paired") {
    const TemporaryFolder folder;
    std::string text = scenario();
    text.erase(text.find("workload:"));
    folder.write("s.yaml", text +
                               "workload:\n  duration: 20s\n  classes:\n"
                               "    - {name: open, arrivals: {process: poisson, rate: 2/s},\n"
                               "       prompt_tokens: {distribution: uniform, min: 20, max: 200}, output_tokens: 40}\n"
                               "    - {name: closed, users: {count: 6, think_time: 100ms},\n"
                               "       prompt_tokens: {distribution: uniform, min: 20, max: 200}, output_tokens: 40}\n");
    const std::vector<std::string> command{"policies", "s.yaml", "--presets", "vllm-v1,static", "--quiet", "--format"};
    const auto as = [&](const char* format) {
        std::vector<std::string> args = command;
        args.emplace_back(format);
        return run_in(folder, args).out;
    };
    const Json all = Json::parse(as("json"));
    // The first preset is vllm-v1, whose requests are of its own run; who arrives on its own, and the users' first, are the
    // same.
    std::map<std::string, double> e2e[2];
    for (std::size_t i = 0; i < 2; ++i) {
        const std::string preset = i == 0 ? "vllm-v1" : "static";
        REQUIRE(run_in(folder, {"s.yaml", "--set", "engine.preset=" + preset, "--quiet", "--out", preset}).exit == 0);
        const kvsim::app::CsvTable own("requests", slurp(folder.path() / preset / "requests.csv"));
        for (const auto& row : own.rows())
            e2e[i][std::string(own.text(row, "arrival_s")).append("/").append(own.text(row, "prompt_tokens"))] =
                std::stod(std::string(own.text(row, "e2e_ms")));
    }
    double sum = 0;
    int same = 0;
    for (const auto& [request, took] : e2e[0]) {
        const auto found = e2e[1].find(request);
        if (found == e2e[1].end()) continue;
        sum += found->second - took;
        ++same;
    }
    REQUIRE(same > 20);
    const Json& difference = all.at("policies")[1].at("e2e_difference_ms");
    CHECK(difference.at("requests") == same);
    CHECK(difference.at("mean").get<double>() == doctest::Approx(sum / same));
    const std::string of =
        "static " + std::to_string(e2e[1].size() - static_cast<std::size_t>(same)) + " of " + std::to_string(e2e[1].size());
    CHECK(all.at("notes").at(0).get<std::string>().find(of) != std::string::npos);
    CHECK(as("table").find(of) != std::string::npos);
}

TEST_CASE("policies: who the engine gives up, and what became of each class") {
    const TemporaryFolder folder;
    folder.write("s.yaml", scenario());
    // The watermark keeps 54 of 60 blocks: a prompt above 96 tokens never starts.
    const Finished done = run_in(
        folder, {"policies", "s.yaml", "--presets", "vllm-v0", "--set", "engine.watermark=0.9", "--quiet", "--format", "json"});
    REQUIRE(done.exit == 0);
    const Json row = Json::parse(done.out).at("policies")[0];
    CHECK(row.at("failed").get<int>() + row.at("rejected").get<int>() > 0);
    CHECK(row.at("failed").get<int>() == 120 - row.at("completed").get<int>() - row.at("rejected").get<int>());

    std::string text = scenario();
    text.erase(text.find("workload:"));
    folder.write("c.yaml",
                 text +
                     "workload:\n  duration: 20s\n  classes:\n"
                     "    - {name: urgent, arrivals: {process: poisson, rate: 5/s}, prompt_tokens: 100,\n"
                     "       output_tokens: 40, timeout: 1s, slo: {ttft: 100ms}}\n"
                     "    - {name: rest, arrivals: {process: poisson, rate: 5/s}, prompt_tokens: 100, output_tokens: 40}\n");
    const std::vector<std::string> command{"policies", "c.yaml", "--presets", "static,vllm-v1", "--quiet", "--format"};
    const auto as = [&](const char* format) {
        std::vector<std::string> args = command;
        args.emplace_back(format);
        args.insert(args.end(), {"--out", "o"});
        return run_in(folder, args).out;
    };
    const std::string table = as("table");
    CHECK(table.find("urgent: SLO met (%)") != std::string::npos);
    CHECK(table.find("rest: SLO met (%)") == std::string::npos);
    const Json all = Json::parse(as("json"));
    const kvsim::app::CsvTable groups("groups", slurp(folder.path() / "o" / "groups.csv"));
    REQUIRE(run_in(folder, {"c.yaml", "--set", "engine.preset=static", "--quiet", "--out", "static"}).exit == 0);
    const kvsim::app::CsvTable own("classes", slurp(folder.path() / "static" / "classes.csv"));
    int seen = 0;
    for (const auto& own_row : own.rows()) {
        const std::string name(own.text(own_row, "class"));
        for (const auto& group : groups.rows()) {
            if (groups.text(group, "preset") != "static" || groups.text(group, "kind") != "class" ||
                groups.text(group, "group") != name)
                continue;
            ++seen;
            for (const char* column : {"rejected", "timed_out", "cancelled", "slo_attainment"}) {
                CAPTURE(column);
                CHECK(groups.text(group, column) == own.text(own_row, column));
            }
        }
        for (const Json& group : all.at("policies")[0].at("groups")) {
            if (group.at("kind") == "class" && group.at("group") == name)
                CHECK(std::to_string(group.at("timed_out").get<int>()) == own.text(own_row, "timed_out"));
        }
    }
    CHECK(seen == 2);
    CHECK(all.at("policies")[0].at("timed_out").get<int>() > 0);
}
