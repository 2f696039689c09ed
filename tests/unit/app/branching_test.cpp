// Several outputs of one prompt (n > 1): what the engine makes of them, and the one request their client sees.

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvsim/app/csv_table.hpp"
#include "unit/app/cli.hpp"

namespace kvsim::test {
namespace {

using app::CsvTable;
using Json = nlohmann::ordered_json;

/// Every step takes 10 ms.
std::string constant(const std::string& engine, const std::string& workload) {
    return "name: n\nmodel: meta-llama/Llama-3.1-8B-Instruct\nhardware: {gpu: H100-SXM-80GB}\nengine: {" + engine +
           ", max_model_len: 600, max_num_seqs: 32, max_num_batched_tokens: 1024, block_size: 16}\n"
           "step_time: {model: constant, step: 10ms}\nworkload: " +
           workload + "\n";
}

struct Run {
    Json summary;
    std::vector<std::vector<std::string>> rows;
    std::vector<std::string> columns;
    [[nodiscard]] double number(std::size_t row, const std::string& column) const {
        const auto at = std::find(columns.begin(), columns.end(), column) - columns.begin();
        return std::stod(rows[row][static_cast<std::size_t>(at)]);
    }
    [[nodiscard]] double figure(const std::string& name) const { return summary.at("kvsim").at(name).get<double>(); }
};

Run run(const TemporaryFolder& folder, const std::string& scenario, const std::vector<std::string>& sets = {}) {
    folder.write("s.yaml", scenario);
    std::vector<std::string> args{"s.yaml", "--quiet", "--out", "o"};
    for (const std::string& set : sets) args.insert(args.end(), {"--set", set});
    const Finished done = run_in(folder, args);
    REQUIRE_MESSAGE(done.exit == 0, done.err);
    Run out;
    out.summary = Json::parse(slurp(folder.path() / "o/summary.json"));
    const CsvTable table("requests.csv", slurp(folder.path() / "o/requests.csv"));
    out.columns = table.columns();
    for (const CsvTable::Row& row : table.rows()) out.rows.push_back(row.cells);
    return out;
}

constexpr const char* forks = "preset: vllm-v0, version: vllm-0.6.3-v0, num_gpu_blocks_override: 100";
const std::string one_row = R"({"timestamp": 0, "input_length": 20, "output_length": 5, "n": 3})";

}  // namespace

TEST_CASE("n outputs are one request: the first token of any, the last of all, the tokens of every one") {
    const TemporaryFolder folder;
    folder.write("t.jsonl", one_row + "\n");
    for (const std::string& engine :
         {std::string("preset: vllm-v1, async_scheduling: false, num_gpu_blocks_override: 100"),
          std::string("preset: vllm-v0, async_output_processing: false, num_gpu_blocks_override: 100"),
          std::string(forks) + ", async_output_processing: false"}) {
        CAPTURE(engine);
        const Run r = run(folder, constant(engine, "{trace: {path: t.jsonl}}"), {"engine.api=0s"});
        REQUIRE(r.rows.size() == 1);
        CHECK(r.number(0, "prompt_tokens") == 20);
        CHECK(r.number(0, "output_tokens") == 15);
        CHECK(r.number(0, "ttft_ms") == 10);
        CHECK(r.number(0, "e2e_ms") == 50);
        CHECK(r.number(0, "tpot_ms") == doctest::Approx(40.0 / 14));
        CHECK(r.summary.at("completed") == 1);
        CHECK(r.summary.at("total_input_tokens") == 20);
        CHECK(r.summary.at("total_output_tokens") == 15);
        CHECK(r.figure("steps") == 5);
    }
}

TEST_CASE("forked outputs share the prompt's blocks, requests of their own do not unless they are cached") {
    const TemporaryFolder folder;
    folder.write("t.jsonl", one_row + "\n");
    const auto peak = [&](const std::string& engine) {
        const Run r = run(folder, constant(engine + ", enable_prefix_caching: false", "{trace: {path: t.jsonl}}"));
        return r.figure("kv_usage_peak") * r.figure("usable_blocks");
    };
    // 20 tokens and 4 more: one full block that all three share, and a second one each.
    CHECK(peak(forks) == doctest::Approx(4));
    CHECK(peak("preset: vllm-v0, num_gpu_blocks_override: 100") == doctest::Approx(6));
    CHECK(peak("preset: vllm-v1, num_gpu_blocks_override: 101") == doctest::Approx(6));
    const Run cached = run(folder, constant("preset: vllm-v1, enable_prefix_caching: true, num_gpu_blocks_override: 101",
                                            "{trace: {path: t.jsonl}}"));
    CHECK(cached.figure("kv_usage_peak") * cached.figure("usable_blocks") == doctest::Approx(4));
    CHECK(cached.figure("prefix_hit_rate") == doctest::Approx(32.0 / 60));
}

TEST_CASE("where the engine makes n requests of one, the run is that of n rows with the same prompt") {
    const TemporaryFolder folder;
    std::string together;
    std::string apart;
    std::vector<std::size_t> sizes;
    for (int i = 0; i < 60; ++i) {
        const int n = 1 + i * 7 % 4;
        const int prompt = 20 + i * 37 % 180;
        Json row{
            {"timestamp", i * 40}, {"input_length", prompt}, {"output_length", 5 + i * 13 % 60}, {"hash_ids", Json::array()}};
        for (int b = 0; b < (prompt + 15) / 16; ++b) row["hash_ids"].push_back(1000 * (i + 1) + b);
        row["trace_block_size"] = 16;
        for (int k = 0; k < n; ++k) apart += row.dump() + "\n";
        row["n"] = n;
        together += row.dump() + "\n";
        sizes.push_back(static_cast<std::size_t>(n));
    }
    folder.write("together.jsonl", together);
    folder.write("apart.jsonl", apart);
    for (const std::string engine :
         {"preset: vllm-v1, num_gpu_blocks_override: 61", "preset: vllm-v0, num_gpu_blocks_override: 60"}) {
        for (const std::string caching : {"true", "false"}) {
            CAPTURE(engine);
            CAPTURE(caching);
            const std::string all = engine + ", enable_prefix_caching: " + caching;
            const Run a = run(folder, constant(all, "{trace: {path: together.jsonl}}"));
            const Run b = run(folder, constant(all, "{trace: {path: apart.jsonl}}"));
            CHECK(a.figure("preemptions") > 0);
            for (const char* name : {"steps", "preemptions", "recomputed_tokens", "kv_usage_mean"})
                CHECK(a.figure(name) == doctest::Approx(b.figure(name)));
            if (caching == "true") CHECK(a.figure("prefix_hit_rate") == doctest::Approx(b.figure("prefix_hit_rate")));
            REQUIRE(a.rows.size() == 60);
            std::size_t row = 0;
            for (std::size_t i = 0; i < sizes.size(); ++i) {
                double first = 1e18;
                double last = 0;
                double tokens = 0;
                for (std::size_t k = 0; k < sizes[i]; ++k, ++row) {
                    first = std::min(first, b.number(row, "ttft_ms"));
                    last = std::max(last, b.number(row, "e2e_ms"));
                    tokens += b.number(row, "output_tokens");
                }
                CAPTURE(i);
                CHECK(a.number(i, "ttft_ms") == first);
                CHECK(a.number(i, "e2e_ms") == last);
                CHECK(a.number(i, "output_tokens") == tokens);
            }
        }
    }
}

TEST_CASE("workload.n: of the workload, of a class, written into a trace and read back") {
    const TemporaryFolder folder;
    const std::string drawn =
        "{requests: 40, arrivals: {process: poisson, rate: 20/s}, n: 3,\n  prompt_tokens: {distribution: uniform, min: 20, "
        "max: 90}, "
        "output_tokens: {distribution: uniform, min: 2, max: 30}}";
    for (const std::string& engine : {std::string("preset: vllm-v1, num_gpu_blocks_override: 60"), std::string(forks)}) {
        CAPTURE(engine);
        const Run a = run(folder, constant(engine, drawn));
        CHECK(a.summary.at("completed") == 40);
        const Run one = run(folder, constant(engine, drawn), {"workload.n=1"});
        CHECK(a.summary.at("total_output_tokens").get<int>() == 3 * one.summary.at("total_output_tokens").get<int>());
        CHECK(a.summary.at("total_input_tokens") == one.summary.at("total_input_tokens"));
        folder.write("s.yaml", constant(engine, drawn));
        REQUIRE(run_in(folder, {"workload", "s.yaml", "--out", "t.jsonl"}).exit == 0);
        const Run b = run(folder, constant(engine, "{trace: {path: t.jsonl}}"));
        CHECK(a.rows == b.rows);
    }
    const Run classes =
        run(folder, constant("preset: vllm-v1, num_gpu_blocks_override: 200",
                             "{requests: 20, arrivals: {process: poisson, rate: 5/s}, prompt_tokens: 30, output_tokens: "
                             "4,\n  classes: [{name: a, n: 4, requests: 10}, {name: b, requests: 10}]}"));
    CHECK(classes.summary.at("total_output_tokens") == 10 * 16 + 10 * 4);
}

TEST_CASE("a client that gives up takes all outputs of its request away") {
    const TemporaryFolder folder;
    folder.write("t.jsonl", R"({"timestamp": 0, "input_length": 20, "output_length": 100, "n": 3, "timeout_ms": 205})"
                            "\n"
                            R"({"timestamp": 300, "input_length": 20, "output_length": 5})"
                            "\n");
    for (const std::string& engine :
         {std::string("preset: vllm-v1, async_scheduling: false, num_gpu_blocks_override: 101"), std::string(forks)}) {
        CAPTURE(engine);
        const Run r = run(folder, constant(engine, "{trace: {path: t.jsonl}}"), {"engine.api=0s"});
        CHECK(r.summary.at("completed") == 1);
        CHECK(r.figure("timed_out") == 1);
        CHECK(r.number(0, "output_tokens") >= 3 * 19);
        CHECK(r.number(0, "output_tokens") <= 3 * 20);
        CHECK(r.number(1, "output_tokens") == 5);
        CHECK(r.number(1, "e2e_ms") <= 70);
    }
    // What was computed for outputs that had ended before counts too: one seat, so they run one after the other, and the third
    // has its prompt in the step in flight at 105 ms.
    folder.write("t.jsonl", R"({"timestamp": 0, "input_length": 20, "output_length": 5, "n": 3, "timeout_ms": 105})"
                            "\n"
                            R"({"timestamp": 300, "input_length": 20, "output_length": 5})"
                            "\n");
    const Run r = run(folder,
                      constant("preset: vllm-v1, async_scheduling: false, enable_prefix_caching: false, "
                               "num_gpu_blocks_override: 101",
                               "{trace: {path: t.jsonl}}"),
                      {"engine.api=0s", "engine.max_num_seqs=1"});
    CHECK(r.figure("timed_out") == 1);
    CHECK(r.number(0, "output_tokens") == 10);
    CHECK(r.figure("wasted_tokens") == 24 + 24 + 20);
}

TEST_CASE("n > 1 that cannot run is told") {
    const TemporaryFolder folder;
    const auto refused = [&](const std::string& engine, const std::string& n, std::string_view reason) {
        folder.write("s.yaml", constant(engine, "{requests: 4, arrivals: {process: poisson, rate: 20/s}, n: " + n +
                                                    ", prompt_tokens: 20, output_tokens: 9}"));
        const Finished done = run_in(folder, {"s.yaml", "--quiet"});
        CAPTURE(done.err);
        CHECK(done.exit == 2);
        CHECK(done.err.find(reason) != std::string::npos);
    };
    const std::string v1 = "preset: vllm-v1, num_gpu_blocks_override: 100";
    for (const char* n : {"0", "-1", "1.5", "10001", "many"}) refused(v1, n, "n");
    refused("preset: sglang, num_gpu_blocks_override: 100", "2", "asks for 2 outputs: SGLang first runs such a prompt alone");
    refused(forks, "33", "stalled");  // more than max_num_seqs: the engine never admits it
    folder.write("t.jsonl", R"({"timestamp": 0, "input_length": 20, "output_length": 5, "n": 0})");
    folder.write("s.yaml", constant(v1, "{trace: {path: t.jsonl}}"));
    CHECK(run_in(folder, {"s.yaml", "--quiet"}).err.find("n 0 is outside [1, 10000]") != std::string::npos);
}

}  // namespace kvsim::test
