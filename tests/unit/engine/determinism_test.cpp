// The same seed gives the same bytes in every file a run writes, the step log included.

#include <doctest/doctest.h>

#include "kvsim/base/parallel.hpp"
#include "support.hpp"
#include "unit/app/cli.hpp"

using namespace kvsim::test;

TEST_CASE("determinism: two runs of one seed leave identical files") {
    const std::string busy =
        "model: meta-llama/Llama-3.1-8B-Instruct\n"
        "hardware: {gpu: H100-SXM-80GB, replicas: 2}\n"
        "router: {policy: least_requests}\n"
        "engine: {preset: vllm-v1, max_model_len: 4096, max_num_seqs: 32, max_num_batched_tokens: 512, "
        "num_gpu_blocks_override: 400}\n"
        "workload:\n"
        "  requests: 300\n"
        "  arrivals: {process: gamma, rate: 60/s, burstiness: 0.5}\n"
        "  prefix: {groups: 4, share: 0.7, tokens: {distribution: uniform, min: 40, max: 400}}\n"
        "  prompt_tokens: {distribution: lognormal, p50: 150, p90: 600, max: 2000}\n"
        "  output_tokens: {distribution: geometric, mean: 120, max: 600}\n"
        "slo: {ttft: 1s}\n"
        "measure: {warmup: 20 requests}\n"
        "output: {timeline_interval: 100ms}\n";
    const TemporaryFolder folder;
    folder.write("busy.yaml", busy);
    for (const std::string& form : {std::string("fast"), std::string("recorded")}) {
        std::vector<std::string> files{"requests.csv", "summary.csv", "summary.json", "timeline.csv"};
        for (const std::string& run : {std::string("a"), std::string("b")}) {
            std::vector<std::string> args{"busy.yaml", "--out", form + run, "--quiet"};
            if (form == "recorded") args.insert(args.end(), {"--steps", form + run + "/steps.jsonl"});
            const Finished done = run_in(folder, args);
            CAPTURE(done.err);
            REQUIRE(done.exit == 0);
        }
        if (form == "recorded") files.emplace_back("steps.jsonl");
        for (const std::string& file : files) {
            CAPTURE(file);
            const std::string first = slurp(folder.path() / (form + "a") / file);
            CHECK_FALSE(first.empty());
            CHECK(first == slurp(folder.path() / (form + "b") / file));
            // Neither does the step log change a number.
            if (form == "recorded" && file != "steps.jsonl") CHECK(first == slurp(folder.path() / "fasta" / file));
        }
    }
    const std::string summary = slurp(folder.path() / "fasta/summary.json");
    CHECK(summary.find("\"preemptions\":0,") == std::string::npos);
}

TEST_CASE("determinism: runs side by side are the runs one after the other") {
    constexpr std::size_t runs = 12;
    const auto results = [](std::size_t threads) {
        std::vector<std::vector<std::int64_t>> out(runs);
        kvsim::for_each_index(runs, threads, [&out](std::size_t index) {
            std::vector<kvsim::engine_test::Spec> specs;
            for (std::int64_t i = 0; i < 200; ++i) {
                const auto seed = static_cast<std::int64_t>(index);
                specs.push_back({7 * i, 1 + (i * 31 + seed * 17) % 60, 1 + (i * 13 + seed * 5) % 40});
            }
            kvsim::SimulationOptions options = kvsim::engine_test::roomy(index % 2 == 0);
            if (index % 3 == 0) options.form = kvsim::EngineForm::per_request;
            for (const kvsim::RequestRecord& record : kvsim::engine_test::run(options, specs).requests)
                out[index].push_back(record.e2e.count());
        });
        return out;
    };
    const auto one = results(1);
    CHECK(one[0] != one[1]);
    for (const std::size_t threads : {2U, 3U, 8U}) CHECK(results(threads) == one);
}
