// kvsim validate and kvsim calibrate from the outside.

#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "cli.hpp"

using namespace kvsim::test;

namespace {

bool has(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

/// The folder of measured data, or empty: then the test is skipped with a message (an error under CI=true).
std::filesystem::path shared_data() {
    const char* chosen = std::getenv("KVSIM_SHARED");
    const std::filesystem::path folder =
        (chosen != nullptr ? std::filesystem::path(chosen) : std::filesystem::path(KVSIM_SOURCE_DIR) / ".." / "shared") /
        "data";
    if (std::filesystem::exists(folder)) return folder;
    const char* ci = std::getenv("CI");
    if (ci != nullptr && std::string(ci) == "true") FAIL("no shared data at " << folder.string());
    MESSAGE("skipped: no shared data at " << folder.string());
    return {};
}

struct Error {
    int n = 0;
    double mean = 0, median = 0;
};
/// (dataset, metric) -> error, from --format csv.
std::map<std::pair<std::string, std::string>, Error> errors(const std::string& csv) {
    std::map<std::pair<std::string, std::string>, Error> out;
    std::istringstream in(csv);
    std::string line;
    std::getline(in, line);
    CHECK(line == "dataset,metric,n,mape_mean,mape_median");
    while (std::getline(in, line)) {
        std::istringstream cells(line);
        std::string dataset, metric, n, mean, median;
        std::getline(cells, dataset, ',');
        std::getline(cells, metric, ',');
        std::getline(cells, n, ',');
        std::getline(cells, mean, ',');
        std::getline(cells, median, ',');
        if (n != "0") out[{dataset, metric}] = {std::stoi(n), std::stod(mean), std::stod(median)};
    }
    return out;
}

const std::string columns =
    "dataset,exp_id,stage,engine_version,model,gpu,tp,max_num_seqs,kv_blocks,block_size,prefix_caching,arrival,request_rate,"
    "concurrency,duration_s,num_requests,prompt_len_mean,prompt_len_std,output_len_mean,output_len_std,ttft_mean_ms,"
    "tpot_mean_ms,e2e_mean_ms\n";

const std::string deployment =
    "name: t\nmodel: Llama-3.1-8B\nhardware: {gpu: H100}\n"
    "workload: {requests: 200, arrivals: {process: poisson, rate: 9/s}, prompt_tokens: {distribution: uniform, min: 200, max: "
    "3000}, output_tokens: {distribution: uniform, min: 20, max: 120}}\n";

double number_after(const std::string& text, const std::string& key) {
    const std::size_t at = text.find(key);
    REQUIRE(at != std::string::npos);
    return std::stod(text.substr(at + key.size()));
}

}  // namespace

TEST_CASE("validate: one row, its error and the groups, overall comes last") {
    const TemporaryFolder folder;
    folder.write("m.csv", columns +
                              "a,x,-1,0.15.1,Llama-3.1-8B,H100,1,128,,16,on,poisson,4,,60,240,500,20,100,0,30,8,820\n"
                              "b,y,-1,0.18.0,Llama-3.1-8B,H100,1,128,,16,off,closed,,8,,80,900,50,100,5,,7,\n");
    const Finished done = run_in(folder, {"validate", "m.csv", "--format", "csv"});
    CAPTURE(done.err);
    REQUIRE(done.exit == 0);
    const auto e = errors(done.out);
    CHECK(e.at({"a", "tpot_mean"}).n == 1);
    CHECK(e.at({"b", "tpot_mean"}).n == 1);
    CHECK(e.at({"overall", "tpot_mean"}).n == 2);
    CHECK(e.at({"overall", "tpot_mean"}).mean ==
          doctest::Approx((e.at({"a", "tpot_mean"}).mean + e.at({"b", "tpot_mean"}).mean) / 2).epsilon(1e-4));
    CHECK(e.find({"b", "ttft_mean"}) == e.end());
    CHECK(done.out.rfind("overall,ttft_mean") > done.out.rfind("b,throughput"));
    CHECK(has(run_in(folder, {"validate", "m.csv"}).out, "worst rows"));
    CHECK(has(run_in(folder, {"validate", "m.csv", "--format", "markdown"}).out, "| overall |"));
    // Twice the measured TPOT halves the ratio: the figure is compared, not just printed.
    folder.write("n.csv",
                 columns + "a,x,-1,0.15.1,Llama-3.1-8B,H100,1,128,,16,on,poisson,4,,60,240,500,20,100,0,30,16000,820\n");
    CHECK(errors(run_in(folder, {"validate", "n.csv", "--format", "csv"}).out).at({"a", "tpot_mean"}).mean > 99);
}

TEST_CASE("validate: stages follow each other, and the whole-run row is not scored beside them") {
    const TemporaryFolder folder;
    const std::string tail = ",500,20,100,0,30,8,820\n";
    folder.write("m.csv", columns + "a,x,-1,0.15.1,Llama-3.1-8B,H100,1,128,,16,on,poisson,2->8,,120,600" + tail +
                              "a,x,0,0.15.1,Llama-3.1-8B,H100,1,128,,16,on,poisson,2,,60,120" + tail +
                              "a,x,1,0.15.1,Llama-3.1-8B,H100,1,128,,16,on,poisson,8,,60,480" + tail);
    REQUIRE(run_in(folder, {"validate", "m.csv", "--rows", "rows.csv"}).exit == 0);
    const std::string rows = slurp(folder.path() / "rows.csv");
    CHECK(std::count(rows.begin(), rows.end(), '\n') == 3);
    CHECK(has(rows, "stage 0"));
    CHECK(has(rows, "stage 1"));
}

TEST_CASE("validate: what is wrong with the file is said with its line") {
    const TemporaryFolder folder;
    const auto refused = [&](const std::string& text, std::string_view part) {
        folder.write("m.csv", text);
        const Finished done = run_in(folder, {"validate", "m.csv"});
        CAPTURE(text);
        CAPTURE(done.err);
        CHECK(done.exit == 2);
        CHECK(has(done.err, part));
    };
    refused("", "no header");
    refused("model,gpu\n", "no measurement");
    refused("modell,gpu,tpot_mean_ms\nx,y,1\n", "column 'model' is missing; is 'modell' meant?");
    refused("model,gpu,tpot_mean_ms\nx,y\n", "m.csv:2: error: 2 cells");
    refused("model,gpu,tpot_mean_ms\n\"x,y,1\n", "never ends");
    refused("model,gpu,gpu,tpot_mean_ms\n", "twice");
    const std::string good = "a,x,-1,0.15.1,Llama-3.1-8B,H100,1,128,,16,on,poisson,4,,60,240,500,20,100,0,30,8,820\n";
    const auto broken = [&](const std::string& from, const std::string& to) {
        std::string line = good;
        line.replace(line.find(from), from.size(), to);
        return columns + line;
    };
    refused(broken(",4,,60", ",fast,,60"), "m.csv:2: error: request_rate");
    refused(broken(",4,,60", ",0,,60"), "request_rate");
    refused(broken(",60,240,", ",,,"), "needs duration_s or num_requests");
    refused(broken(",1,128", ",1.5,128"), "tp: must be a whole number");
    refused(broken("820", "-1"), "e2e_mean_ms must be above 0");
    refused(broken("820", "nan"), "e2e_mean_ms");
    refused(broken(",on,", ",perhaps,"), "prefix_caching");
    refused(broken("Llama-3.1-8B", "Llama-3.1-9X"), "cannot be replayed");
    CHECK(run_in(folder, {"validate", "missing.csv"}).exit == 2);
    folder.write("m.csv", columns + good);
    CHECK(has(run_in(folder, {"validate", "m.csv", "--where", "modle=x"}).err, "is 'model' meant?"));
    CHECK(has(run_in(folder, {"validate", "m.csv", "--where", "dataset=z"}).err, "no rows"));
}

TEST_CASE("validate: rows that cannot be used are skipped, with the reason and their number") {
    const TemporaryFolder folder;
    const std::string good = "a,x,-1,0.15.1,Llama-3.1-8B,H100,1,128,,16,on,poisson,4,,60,240,500,20,100,0,30,8,820\n";
    const auto changed = [&](const std::string& id, const std::string& from, const std::string& to) {
        std::string line = good;
        line.replace(line.find(",x,"), 3, "," + id + ",");
        line.replace(line.find(from), from.size(), to);
        return line;
    };
    folder.write("m.csv", columns + good + changed("zero", ",4,,60", ",0,,60") + changed("gpu", "H100", "H1000") +
                              changed("model", "Llama-3.1-8B", "nobody/knows-it") + changed("lengths", ",500,", ",,") +
                              changed("few", ",128,,16,on,", ",,,,,") + changed("nothing", ",30,8,820", ",,,"));
    const Finished done = run_in(folder, {"validate", "m.csv"});
    CAPTURE(done.out);
    CAPTURE(done.err);
    CHECK(done.exit == 0);
    CHECK(has(done.out, "2 rows of 2 runs, 5 more skipped"));
    CHECK(has(done.err, "5 runs are skipped"));
    CHECK(has(done.err, "m.csv:3: error: request_rate: '0'"));
    CHECK(has(done.err, "H1000"));
    CHECK(has(done.err, "nobody/knows-it"));
    CHECK(has(done.err, "m.csv:6: error: prompt_len_mean"));
    CHECK(has(done.err, "m.csv:8: error: nothing was measured"));
    // Only the columns a row cannot do without.
    folder.write("small.csv",
                 "model,gpu,request_rate,num_requests,prompt_len_mean,output_len_mean,tpot_mean_ms\n"
                 "Llama-3.1-8B,H100,4,100,500,100,8\n");
    CHECK(has(run_in(folder, {"validate", "small.csv"}).out, "1 rows of 1 runs"));
}

TEST_CASE("validate: rows near saturation are named, and the errors given without them too") {
    const TemporaryFolder folder;
    // One H100 serves some 20 of these a second with 32 seats.
    const auto row = [](const std::string& id, const std::string& rate, const std::string& e2e) {
        return "a," + id + ",-1,0.15.1,Llama-3.1-8B,H100,1,32,,16,off,poisson," + rate + ",,60,,500,20,100,0,30,8," + e2e +
               "\n";
    };
    folder.write("m.csv", columns + row("calm", "4", "820") + row("full", "60", "2000") + row("nearly", "4", "7500"));
    const Finished done = run_in(folder, {"validate", "m.csv", "--rows", "rows.csv"});
    CAPTURE(done.out);
    CAPTURE(done.err);
    REQUIRE(done.exit == 0);
    CHECK(has(done.out, "without 2 near saturation"));
    CHECK(has(done.out, "deep overload"));
    CHECK(has(done.out, "near saturation (load 0.94)"));  // 4 x 7.5 / 32, as it was measured
    const std::string rows = slurp(folder.path() / "rows.csv");
    CHECK(has(rows, ",load,measured_load,near_saturation,why"));
    CHECK(has(rows, "0.9375,1,"));
    CHECK(has(run_in(folder, {"validate", "m.csv", "--format", "markdown"}).out, "| without 2 near saturation |"));
    // A closed loop has as many requests in the system as it has seats by its nature.
    folder.write("closed.csv", columns + "b,y,-1,0.18.0,Llama-3.1-8B,H100,1,8,,16,off,closed,,8,,80,900,50,100,5,30,7,\n");
    CHECK_FALSE(has(run_in(folder, {"validate", "closed.csv"}).out, "near saturation"));
}

TEST_CASE("validate: an engine version that is not stated is that of the other rows of the model, if they agree") {
    const TemporaryFolder folder;
    const auto row = [](const std::string& id, const std::string& version) {
        return "a," + id + ",-1," + version + ",Llama-3.1-8B,H100,1,8,,16,off,closed,,8,,80,900,50,100,5,30,7,\n";
    };
    const auto tpot = [&](const std::string& text) {
        folder.write("m.csv", columns + text);
        const Finished done = run_in(folder, {"validate", "m.csv", "--where", "exp_id=x", "--format", "csv"});
        CAPTURE(done.err);
        REQUIRE(done.exit == 0);
        return errors(done.out).at({"a", "tpot_mean"}).mean;
    };
    const double asynchronous = tpot(row("x", "0.18.0"));
    const double synchronous = tpot(row("x", "0.11.0"));
    CHECK(asynchronous != synchronous);
    CHECK(tpot(row("x", "") + row("y", "0.18.0")) == asynchronous);
    CHECK(tpot(row("x", "")) == synchronous);
    CHECK(tpot(row("x", "") + row("y", "0.18.0") + row("z", "0.12.0")) == synchronous);
}

TEST_CASE("validate: a file of requests shares prefixes with the row it names, in both forms of the engine") {
    const TemporaryFolder folder;
    std::string requests = "index,arrival_us,prompt_tokens,output_tokens,prefix_parent_index,shared_prefix_tokens_block16\n";
    for (int i = 0; i < 20; ++i) {
        requests += std::to_string(i) + "," + std::to_string(i * 500'000) + ",1600,10," + (i > 0 ? "0,1584" : "-1,0") + "\n";
    }
    folder.write("workload_own.csv", requests);
    folder.write(
        "m.csv",
        "dataset,workload,model,gpu,engine_version,prefix_caching,ttft_mean_ms\nd,own,Llama-3.1-8B,H100,0.15.1,on,20\n");
    const auto simulated = [&](const std::vector<std::string>& more) {
        std::vector<std::string> args{"validate", "m.csv", "--rows", "rows.csv"};
        args.insert(args.end(), more.begin(), more.end());
        const Finished done = run_in(folder, args);
        CAPTURE(done.err);
        REQUIRE(done.exit == 0);
        return number_after(slurp(folder.path() / "rows.csv"), ",20,");
    };
    const double shared = simulated({});
    CHECK(simulated({"--set", "engine.enable_prefix_caching=false"}) > shared + 15);
    // The engine is cold for its first seconds if it is told so.
    CHECK(simulated({"--set", "engine.cold_start=10s", "--set", "engine.cold_start_slowdown=1"}) > 1.15 * shared);
}

TEST_CASE("validate: the bounds on the measured training runs") {
    const auto data = shared_data();
    if (data.empty()) return;
    const TemporaryFolder folder;
    const std::string file = (data / "accuracy" / "train.csv").string();
    const Finished done = run_in(folder, {"validate", file, "--format", "csv"});
    CAPTURE(done.err);
    REQUIRE(done.exit == 0);
    const auto e = errors(done.out);
    CHECK(e.at({"1-inference-sim", "tpot_mean"}).mean <= 6);
    CHECK(e.at({"1-inference-sim", "e2e_mean"}).mean <= 6);
    CHECK(e.at({"1-inference-sim", "ttft_mean"}).median <= 10);
    CHECK(e.at({"1-inference-sim", "ttft_mean"}).n == 28);
    CHECK(e.at({"2-llmservingsim-bench", "e2e_mean"}).mean <= 3);
    CHECK(e.at({"2-llmservingsim-bench", "tpot_mean"}).mean <= 2);
    CHECK(e.at({"2-llmservingsim-bench", "throughput"}).mean <= 2);
    CHECK(e.at({"3-inferencex-llama70b-fp8", "tpot_mean"}).mean <= 10);
    CHECK(e.at({"3b-inferencex-gptoss", "tpot_mean"}).mean <= 10);
    CHECK(e.at({"3b-inferencex-gptoss", "ttft_mean"}).mean <= 10);
    CHECK(e.at({"5-nvidia-qwen3-32b", "tpot_mean"}).mean <= 10);
    CHECK(e.at({"4-kubecon", "tpot_mean"}).mean <= 6);
    // From the physics and from the profiled layers both.
    const std::string profile = (data / "profiles" / "RTXPRO6000" / "meta-llama" / "Llama-3.1-8B" / "bf16").string();
    for (const std::string& model : {std::string("fitted"), "{model: table, path: " + profile + "}"}) {
        CAPTURE(model);
        const std::vector<std::string> args{"validate",          file, "--where", "dataset=2-llmservingsim-bench", "--set",
                                            "step_time=" + model};
        const Finished run = run_in(folder, args);
        CAPTURE(run.err);
        CHECK(number_after(run.out, "MAPE E2E ") <= 4);
        std::vector<std::string> csv = args;
        csv.insert(csv.end(), {"--format", "csv"});
        const auto error = errors(run_in(folder, csv).out);
        CHECK(error.at({"overall", "e2e_mean"}).mean <= 3);
        CHECK(error.at({"overall", "tpot_mean"}).mean <= 2);
        CHECK(error.at({"overall", "throughput"}).mean <= 2);
    }
}

TEST_CASE("calibrate: recovers known constants from a step log and writes an overlay a run takes") {
    const TemporaryFolder folder;
    folder.write("s.yaml", deployment);
    folder.write("true.yaml", deployment + "step_time: {model: fitted, flop_scale: 0.85, bandwidth_scale: 1.1}\n");
    REQUIRE(run_in(folder, {"true.yaml", "--out", "o", "--steps", "steps.jsonl", "--quiet"}).exit == 0);
    const Finished done = run_in(folder, {"calibrate", "steps.jsonl", "--scenario", "s.yaml", "--out", "c.yaml"});
    CAPTURE(done.err);
    REQUIRE(done.exit == 0);
    CHECK(number_after(done.out, "flop_scale = ") == doctest::Approx(0.85).epsilon(0.01));
    CHECK(number_after(done.out, "bandwidth_scale = ") == doctest::Approx(1.1).epsilon(0.01));
    CHECK(has(done.out, "api is not identifiable"));
    CHECK(has(done.out, "link_scale is not identifiable"));
    CHECK(has(done.out, "held out"));
    REQUIRE(run_in(folder, {"s.yaml", "--overlay", "c.yaml", "--out", "p", "--steps", "again.jsonl", "--quiet"}).exit == 0);
    CHECK(has(slurp(folder.path() / "p/summary.json"), "calibrated"));
}

TEST_CASE("calibrate: requests and vllm results, the error falls, also where it was held out") {
    const TemporaryFolder folder;
    folder.write("s.yaml", deployment);
    folder.write("true.yaml", deployment + "engine: {api: 12ms}\nstep_time: {model: fitted, bandwidth_scale: 0.8}\n");
    REQUIRE(run_in(folder, {"true.yaml", "--out", "o", "--quiet"}).exit == 0);
    const Finished requests = run_in(folder, {"calibrate", "o/requests.csv", "--scenario", "s.yaml", "--out", "c.yaml"});
    CAPTURE(requests.out);
    CAPTURE(requests.err);
    REQUIRE(requests.exit == 0);
    CHECK(number_after(requests.out, "bandwidth_scale = ") == doctest::Approx(0.8).epsilon(0.02));
    CHECK(number_after(requests.out, "api = ") == doctest::Approx(12).epsilon(0.1));
    const std::size_t replays = requests.out.rfind('\n', requests.out.find(" replays"));
    REQUIRE(replays != std::string::npos);
    CHECK(std::stoi(requests.out.substr(replays + 1)) <= 45);
    CHECK(has(requests.out, "held out"));
    const Finished whole = run_in(folder, {"calibrate", "o/summary.json", "--scenario", "s.yaml", "--out", "d.yaml"});
    CAPTURE(whole.err);
    CHECK(whole.exit == 0);
    CHECK(has(whole.out, "nothing can be held out"));
}

TEST_CASE("calibrate: vllm bench serve --save-detailed, request by request") {
    const TemporaryFolder folder;
    folder.write("s.yaml", deployment);
    folder.write("true.yaml", deployment + "engine: {api: 8ms}\nstep_time: {model: fitted, bandwidth_scale: 0.8}\n");
    REQUIRE(run_in(folder, {"true.yaml", "--out", "o", "--quiet"}).exit == 0);
    // The same run as the client would have saved it.
    std::istringstream rows(slurp(folder.path() / "o/requests.csv"));
    std::string line;
    std::getline(rows, line);
    std::vector<std::string> names;
    std::istringstream header(line);
    for (std::string cell; std::getline(header, cell, ',');) names.push_back(cell);
    std::map<std::string, std::string> lists;
    while (std::getline(rows, line)) {
        std::map<std::string, std::string> row;
        std::istringstream cells(line);
        std::size_t i = 0;
        for (std::string cell; std::getline(cells, cell, ',');) row[names[i++]] = cell;
        const auto add = [&](const std::string& key, const std::string& value) {
            lists[key] += (lists[key].empty() ? "" : ",") + value;
        };
        add("input_lens", row["prompt_tokens"]);
        add("output_lens", row["output_tokens"]);
        add("start_times", row["arrival_s"]);
        add("ttfts", std::to_string(std::stod(row["ttft_ms"]) / 1e3));
        add("itls", "[" + std::to_string((std::stod(row["e2e_ms"]) - std::stod(row["ttft_ms"])) / 1e3) + "]");
    }
    const auto result = [&](std::initializer_list<const char*> keys) {
        std::string text = "{\"request_rate\": 9";
        for (const char* key : keys) text += std::string(", \"") + key + "\": [" + lists[key] + "]";
        return text + "}";
    };
    folder.write("detailed.json", result({"input_lens", "output_lens", "start_times", "ttfts", "itls"}));
    const Finished done = run_in(folder, {"calibrate", "detailed.json", "--scenario", "s.yaml", "--out", "c.yaml"});
    CAPTURE(done.out);
    CAPTURE(done.err);
    REQUIRE(done.exit == 0);
    CHECK(number_after(done.out, "bandwidth_scale = ") == doctest::Approx(0.8).epsilon(0.02));
    CHECK(number_after(done.out, "api = ") == doctest::Approx(8).epsilon(0.15));
    lists["ttfts"] = "0.1";
    folder.write("short.json", result({"input_lens", "output_lens", "ttfts", "itls"}));
    const Finished broken = run_in(folder, {"calibrate", "short.json", "--scenario", "s.yaml"});
    CHECK(broken.exit == 2);
    CHECK(has(broken.err, "ttfts must be a list as long as input_lens"));
}

TEST_CASE("calibrate: a table of runs, a fit that the held-out runs contradict is taken back") {
    const TemporaryFolder folder;
    folder.write("s.yaml",
                 "model: Llama-3.1-8B\nhardware: {gpu: H100}\nworkload: {requests: 1, arrivals: all_at_once, "
                 "prompt_tokens: 1, output_tokens: 1}\n");
    const auto row = [](int i, double tpot) {
        return "d,r" + std::to_string(i) + ",-1,0.15.1,Llama-3.1-8B,H100,1,128,,16,off,poisson," + std::to_string(2 + i) +
               ",,60,,500,50,200,0,40," + std::to_string(tpot) + "," + std::to_string(40 + 199 * tpot) + "\n";
    };
    std::string agree = columns;
    for (int i = 0; i < 6; ++i) agree += row(i, 9.0);
    folder.write("agree.csv", agree);
    const Finished done = run_in(folder, {"calibrate", "agree.csv", "--scenario", "s.yaml", "--out", "c.yaml"});
    CAPTURE(done.out);
    CAPTURE(done.err);
    REQUIRE(done.exit == 0);
    CHECK(has(done.out, "6 runs on"));
    CHECK(number_after(done.out, "bandwidth_scale = ") < 0.9);  // 9 ms is slower than the model says
    CHECK_FALSE(has(done.out, "bandwidth_scale stays"));
    // Every third run, which the fit does not see, says the opposite.
    std::string contradict = columns;
    for (int i = 0; i < 6; ++i) contradict += row(i, i % 3 == 2 ? 5.5 : 9.0);
    folder.write("contradict.csv", contradict);
    const Finished back = run_in(folder, {"calibrate", "contradict.csv", "--scenario", "s.yaml", "--out", "d.yaml"});
    CAPTURE(back.out);
    CHECK(back.exit == 0);
    CHECK(has(back.out, "bandwidth_scale stays as it was: fitting it did not make the held-out error smaller"));
    CHECK(number_after(back.out, "bandwidth_scale = ") == 1);
}

TEST_CASE("calibrate: refuses what it cannot use") {
    const TemporaryFolder folder;
    folder.write("s.yaml", deployment);
    folder.write("affine.yaml", small_scenario());
    folder.write("bad.json", "{\"mean_ttft_ms\": 0}");
    folder.write("none.json", "{\"date\": 1}");
    folder.write("text.json", "{broken");
    folder.write("steps.jsonl", "{\"sched\":[{\"n\":0,\"c\":1}],\"duration_ns\":5}\n{\"sched\":[],\"duration_ns\":5}\n");
    folder.write("empty", "");
    const auto refused = [&](const std::vector<std::string>& args, std::string_view part) {
        std::vector<std::string> all{"calibrate"};
        for (const std::string& arg : args) all.push_back(arg);
        const Finished done = run_in(folder, all);
        CAPTURE(done.err);
        CHECK(done.exit == 2);
        CHECK(has(done.err, part));
        CHECK_FALSE(std::filesystem::exists(folder.path() / "calibration.yaml"));
    };
    refused({"bad.json"}, "--scenario");
    refused({"bad.json", "--scenario", "s.yaml"}, "mean_ttft_ms must be above 0");
    refused({"none.json", "--scenario", "s.yaml"}, "neither");
    refused({"text.json", "--scenario", "s.yaml"}, "neither JSON");
    refused({"steps.jsonl", "--scenario", "s.yaml"}, "n must be above 0");
    refused({"empty", "--scenario", "s.yaml"}, "empty");
    refused({"bad.json", "--scenario", "affine.yaml"}, "nothing to calibrate");
}

TEST_CASE("run: a warning where the model is known to be wrong") {
    const TemporaryFolder folder;
    folder.write("s.yaml", deployment);
    CHECK_FALSE(has(run_in(folder, {"s.yaml", "--out", "o"}).out, "accuracy:"));
    const auto at_rate = [&](const std::string& rate) {
        return run_in(folder, {"s.yaml", "--out", "o", "--set", "workload.requests=2000", "--set",
                               "workload.arrivals.rate=" + rate, "--set", "engine.max_num_seqs=32"})
            .out;
    };
    CHECK_FALSE(has(at_rate("12/s"), "accuracy:"));  // of some 20/s
    CHECK(has(at_rate("18/s"), "accuracy: near saturation (load 0.9"));
    CHECK(has(at_rate("100/s"), "accuracy: deep overload (load "));
    CHECK(has(run_in(folder, {"s.yaml", "--out", "o", "--set", "hardware.gpu=GB200"}).out,
              "accuracy: no kernel was measured on GB200-NVL72; its constants are those of b200"));
    CHECK(has(run_in(folder, {"s.yaml", "--out", "o", "--set", "model=Qwen2.5-7B-Instruct"}).out, "accuracy: Qwen2.5-7B"));
    CHECK(
        has(run_in(folder, {"s.yaml", "--out", "o", "--set", "hardware.gpu=MI300X"}).out, "accuracy: no kernel was measured"));
}

TEST_CASE("run: a warning where profiled layers are extrapolated") {
    const TemporaryFolder folder;
    std::string dense = "layer,tokens,time_us\n";
    for (const char* layer : {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}) {
        dense += std::string(layer) + ",1,10\n" + layer + ",4096,400\n";
    }
    folder.write("p/dense.csv", dense);
    folder.write("p/per_sequence.csv", "layer,sequences,time_us\nlm_head,1,100\nlm_head,256,300\n");
    folder.write(
        "p/attention.csv",
        "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1,16,8\n0,0,1,1000,18\n16,0,0,0,12\n4096,0,0,0,112\n");
    const auto one = [&](int output, const std::string& extrapolate) {
        folder.write("s.yaml",
                     "model: Llama-3.1-8B\nhardware: {gpu: H100}\nengine: {max_num_batched_tokens: 2048}\n"
                     "step_time: {model: table, path: p, extrapolate: " +
                         extrapolate +
                         "}\n"
                         "workload: {requests: 1, arrivals: all_at_once, prompt_tokens: 900, output_tokens: " +
                         std::to_string(output) + "}\n");
        return run_in(folder, {"s.yaml", "--out", "o"});
    };
    CHECK(one(100, "false").exit == 0);
    CHECK_FALSE(has(one(100, "true").out, "accuracy: extrapolated"));
    CHECK(has(one(301, "true").out, "accuracy: extrapolated beyond the profile: kv_decode up to 1200, profiled up to 1000"));
    const Finished refused = one(301, "false");
    CHECK(refused.exit == 2);
    CHECK(has(refused.err, "kv_decode 1001 is outside the profile's 16 to 1000"));
}
