// kvsim validate and kvsim calibrate from the outside.

#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <sstream>
#include <string>

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

TEST_CASE("validate: one row, its error and the groups; overall comes last") {
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
    CHECK(e.at({"4-kubecon", "tpot_mean"}).mean <= 6);
    const Finished physics = run_in(folder, {"validate", file, "--where", "dataset=2-llmservingsim-bench"});
    CHECK(number_after(physics.out, "MAPE E2E ") <= 4);
    const Finished table =
        run_in(folder, {"validate", file, "--where", "dataset=2-llmservingsim-bench", "--set",
                        "step_time={model: table, path: " +
                            (data / "profiles" / "RTXPRO6000" / "meta-llama" / "Llama-3.1-8B" / "bf16").string() + "}"});
    CAPTURE(table.err);
    CHECK(number_after(table.out, "MAPE E2E ") <= 4);
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

TEST_CASE("calibrate: requests and vllm results; the error falls, also where it was held out") {
    const TemporaryFolder folder;
    folder.write("s.yaml", deployment);
    folder.write("true.yaml", deployment + "engine: {api: 12ms}\nstep_time: {model: fitted, bandwidth_scale: 0.8}\n");
    REQUIRE(run_in(folder, {"true.yaml", "--out", "o", "--quiet"}).exit == 0);
    const Finished requests = run_in(folder, {"calibrate", "o/requests.csv", "--scenario", "s.yaml", "--out", "c.yaml"});
    CAPTURE(requests.out);
    CAPTURE(requests.err);
    REQUIRE(requests.exit == 0);
    CHECK(number_after(requests.out, "bandwidth_scale = ") == doctest::Approx(0.8).epsilon(0.05));
    CHECK(has(requests.out, "held out"));
    const Finished whole = run_in(folder, {"calibrate", "o/summary.json", "--scenario", "s.yaml", "--out", "d.yaml"});
    CAPTURE(whole.err);
    CHECK(whole.exit == 0);
    CHECK(has(whole.out, "nothing can be held out"));
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
    CHECK(has(run_in(folder, {"s.yaml", "--out", "o", "--set", "model=Qwen2.5-7B-Instruct"}).out, "accuracy: Qwen2.5-7B"));
    CHECK(
        has(run_in(folder, {"s.yaml", "--out", "o", "--set", "hardware.gpu=MI300X"}).out, "accuracy: no kernel was measured"));
}
