// What batching styles are known for: published orderings and figures.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "kvsim/config/load.hpp"
#include "kvsim/config/scenario.hpp"
#include "kvsim/model/deployment.hpp"
#include "oracle/random_scenarios.hpp"
#include "support.hpp"

namespace kvsim::theory {
namespace {

constexpr const char* styles[] = {"static", "iteration", "decode-first", "no-evict", "max-utilization", "past-future"};

bool verbose() {
    return std::getenv("KVSIM_THEORY_VERBOSE") != nullptr;
}

struct Case {
    Deployment deployment;
    config::Scenario scenario;
};

Case load(const std::string& text) {
    config::Diagnostics diagnostics;
    const config::Value root = config::parse_yaml(text, "batching.yaml", diagnostics);
    Case out;
    out.scenario = config::read_scenario(root, "batching.yaml", diagnostics);
    const Catalog catalog(std::filesystem::path(KVSIM_SOURCE_DIR) / "scenarios" / "catalog");
    out.deployment = resolve_deployment(out.scenario, catalog, diagnostics);
    diagnostics.throw_if_errors();
    return out;
}

Outcome run(const Case& c, std::uint64_t seed, const std::function<void(SimulationOptions&)>& change = {}) {
    config::Diagnostics diagnostics;
    const auto model = make_step_time(c.scenario.step_time, c.deployment, diagnostics);
    const auto requests = make_workload(c.scenario.workload, seed, {}, diagnostics);
    diagnostics.throw_if_errors();
    SimulationOptions options;
    options.engine = c.deployment.engine;
    options.max_concurrency = c.scenario.workload.max_concurrency;
    if (change) change(options);
    return theory::run(options, *model, *requests);
}

double quantile(std::vector<double> values, double q) {
    REQUIRE(!values.empty());
    const auto at = static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1));
    std::nth_element(values.begin(), values.begin() + at, values.end());
    return values[static_cast<std::size_t>(at)];
}

/// Output tokens a second.
double throughput(const Outcome& outcome) {
    std::int64_t tokens = 0;
    for (const RequestRecord& r : outcome.requests) tokens += r.output_tokens;
    return static_cast<double>(tokens) / to_seconds(outcome.end - outcome.first_arrival);
}

}  // namespace

TEST_CASE("theory: with one seat every style is the same single server, under FCFS and under priorities") {
    for (const QueueOrder order : {QueueOrder::fcfs, QueueOrder::priority}) {
        std::vector<RequestRecord> expected;
        for (const char* style :
             {"vllm-v1", "static", "iteration", "decode-first", "no-evict", "max-utilization", "past-future"}) {
            CAPTURE(style);
            SimulationOptions options = plain_options();
            options.engine.max_num_seqs = 1;
            options.engine.batching = style;
            options.engine.scheduling_policy = order;
            std::vector<Arrival> arrivals(400);
            std::uint64_t state = 7;
            std::int64_t at = 0;
            for (Arrival& a : arrivals) {
                state = state * 6364136223846793005ULL + 1442695040888963407ULL;
                at += static_cast<std::int64_t>(state >> 40) * 30;
                a.time = SimTime(SimDuration(at));
                a.prompt_tokens = 1 + static_cast<std::int64_t>((state >> 20) % 50);
                a.output_tokens = 1 + static_cast<std::int64_t>((state >> 30) % 40);
                a.priority = static_cast<std::int64_t>((state >> 50) % 3);
            }
            oracle::VectorWorkload requests(arrivals);
            const Outcome outcome = theory::run(options, *step_time("{model: affine, c0: 5ms, per_token: 1ms}"), requests);
            if (expected.empty()) expected = outcome.requests;
            REQUIRE(outcome.requests.size() == expected.size());
            for (std::size_t i = 0; i < expected.size(); ++i) {
                REQUIRE(outcome.requests[i].e2e == expected[i].e2e);
                REQUIRE(outcome.requests[i].ttft == expected[i].ttft);
            }
        }
    }
}

TEST_CASE("theory: processor sharing under every style that lets requests join, as under vLLM's") {
    const auto e2e = [](const char* style, std::uint64_t seed) {
        SimulationOptions options = plain_options();
        options.engine.batching = style;
        const auto requests = workload(
            "{requests: 6000, arrivals: {process: poisson, rate: 0.8/s}, prompt_tokens: 1, output_tokens: {distribution: "
            "geometric, mean: 200}}",
            seed);
        return mean_e2e(theory::run(options, *step_time("{model: affine, per_sequence: 5ms}"), *requests));
    };
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
        const double known = e2e("vllm-v1", seed);  // selftest holds it to 5.0 s
        CHECK(known == doctest::Approx(5).epsilon(0.25));
        for (const char* style : styles) {
            CAPTURE(style);
            if (std::string(style) != "static") CHECK(e2e(style, seed) == doctest::Approx(known).epsilon(0.002));
        }
        // Who may not leave before the longest stays for longer.
        CHECK(e2e("static", seed) > 1.5 * known);
    }
}

TEST_CASE("theory: requests that may join a running batch wait less than those that may not") {
    // Orca, figure 3: who comes while a batch runs waits for its longest, and the short ones of it with him.
    const auto e2e = [](const char* style) {
        SimulationOptions options = plain_options();
        options.engine.batching = style;
        options.engine.max_num_seqs = 16;
        const auto requests = workload(
            "{requests: 4000, arrivals: {process: poisson, rate: 10/s}, prompt_tokens: 20, output_tokens: {distribution: "
            "uniform, min: 1, max: 128}}",
            1);
        return mean_e2e(theory::run(options, *step_time("{model: affine, c0: 10ms}"), *requests));
    };
    CHECK(e2e("static") > 1.5 * e2e("iteration"));
}

TEST_CASE("theory: Sarathi's ablation, hybrid batches and chunked prompts each alone and together") {
    // Yi-34B on two A100; published p50 TTFT and p99 gap, s: hybrid-only .53/.68, chunked-only 1.04/.17, both .76/.14
    // (ShareGPT) and 3.78/1.38, 5.38/.20, 3.90/.17 (arXiv). Lengths are those of its table 2; the load is not published: one at
    // which all three keep up.
    struct Lengths {
        const char* name;
        const char* prompt;
        const char* output;
        const char* rate;
    };
    for (const Lengths& lengths : {Lengths{"sharegpt", "{distribution: lognormal, p50: 1730, p90: 5696, max: 8192}",
                                           "{distribution: lognormal, p50: 415, p90: 834, max: 2000}", "0.55/s"},
                                   Lengths{"arxiv", "{distribution: lognormal, p50: 7059, p90: 12985, max: 14000}",
                                           "{distribution: lognormal, p50: 208, p90: 371, max: 2000}", "0.35/s"}}) {
        CAPTURE(lengths.name);
        const auto measure = [&](const char* engine, std::int64_t between) -> std::pair<double, double> {
            const Case c = load(fmt::format(
                "model: {{layers: 60, hidden: 7168, intermediate: 20480, heads: 56, kv_heads: 8, head_dim: 128, vocab: 64000, "
                "max_context: 16384, parameters_billion: 34.389}}\n"
                "hardware: {{gpu: A100-80GB-SXM, tensor_parallel_size: 2}}\n"
                "engine: {{preset: sarathi, max_model_len: 16384, {}}}\n"
                "workload: {{requests: 400, arrivals: {{process: poisson, rate: {}}}, prompt_tokens: {}, output_tokens: {}}}\n",
                engine, lengths.rate, lengths.prompt, lengths.output));
            std::vector<double> ttft;
            const Outcome outcome = run(c, 1, [&](SimulationOptions& options) {
                options.engine.policy.decodes_between = between;
                options.engine.policy.admission = {};
            });
            for (const RequestRecord& r : outcome.requests) ttft.push_back(to_seconds(r.ttft));
            return {quantile(ttft, 0.5), outcome.itl.quantile(0.99) * 1e-9};
        };
        const auto [hybrid_ttft, hybrid_gap] = measure("enable_chunked_prefill: false, max_num_batched_tokens: 16384", 0);
        const auto [chunked_ttft, chunked_gap] = measure("batching: past-future, max_num_batched_tokens: 1024", 1);
        const auto [both_ttft, both_gap] = measure("max_num_batched_tokens: 1024", 0);
        if (verbose())
            MESSAGE(fmt::format(
                "{}: TTFT p50 / gap p99, s: hybrid only {:.2f}/{:.2f}, chunked only {:.2f}/{:.2f}, both {:.2f}/{:.2f}",
                lengths.name, hybrid_ttft, hybrid_gap, chunked_ttft, chunked_gap, both_ttft, both_gap));
        CHECK(hybrid_ttft < both_ttft);
        CHECK(both_ttft < chunked_ttft);
        CHECK(both_gap < chunked_gap);
        CHECK(chunked_gap < hybrid_gap);
    }
}

TEST_CASE("theory: MAX_UTILIZATION loses where the KV is oversubscribed, and nowhere else") {
    // TensorRT-LLM issue 16827: Llama-3.3-70B-FP8 on an H200, 128 requests of 16,384 and 512 tokens at concurrency 32 make
    // 161.0 tok/s under GUARANTEED_NO_EVICT and 95.7 (-40.6 %) under MAX_UTILIZATION; p50 TTFT falls from 35.8 to 27.1 s, p99
    // TPOT rises from 122 to 1,111 ms, p99 E2E from 150 to 563 s. Short contexts: 574.7 against 576.1 tok/s. Not published and
    // assumed: fp8 KV, as that checkpoint says, prompts in chunks of the default max_num_tokens, and 1,024 and 256 tokens for
    // the short ones.
    struct Measured {
        double tokens = 0;
        double ttft = 0;
        double tpot = 0;
        double e2e = 0;
        std::int64_t preemptions = 0;
    };
    const auto measure = [](const char* preset, const char* lengths) {
        const Case c =
            load(fmt::format("model: RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic\n"
                             "hardware: {{gpu: H200}}\n"
                             "engine: {{preset: {}, max_model_len: 32768, kv_cache_dtype: fp8}}\n"
                             "workload: {{requests: 128, max_concurrency: 32, arrivals: all_at_once, {}}}\n",
                             preset, lengths));
        const Outcome outcome = run(c, 1);
        CHECK(outcome.counters.completed == 128);
        std::vector<double> ttft;
        std::vector<double> tpot;
        std::vector<double> e2e;
        for (const RequestRecord& r : outcome.requests) {
            ttft.push_back(to_seconds(r.ttft));
            e2e.push_back(to_seconds(r.e2e));
            tpot.push_back(to_seconds(r.e2e - r.ttft) / static_cast<double>(r.output_tokens - 1));
        }
        return Measured{throughput(outcome), quantile(ttft, 0.5), quantile(tpot, 0.99), quantile(e2e, 0.99),
                        outcome.counters.preemptions};
    };
    const char* const lengths = "prompt_tokens: 16384, output_tokens: 512";
    const Measured safe = measure("trtllm-no-evict", lengths);
    const Measured greedy = measure("trtllm-max-utilization", lengths);
    if (verbose())
        MESSAGE(
            fmt::format("{:.1f} -> {:.1f} tok/s ({:.1f} %), TTFT p50 {:.1f} -> {:.1f} s, TPOT p99 {:.0f} -> {:.0f} ms, E2E p99 "
                        "{:.0f} -> {:.0f} s, {} preemptions",
                        safe.tokens, greedy.tokens, 100 * (greedy.tokens / safe.tokens - 1), safe.ttft, greedy.ttft,
                        safe.tpot * 1000, greedy.tpot * 1000, safe.e2e, greedy.e2e, greedy.preemptions));
    CHECK(safe.preemptions == 0);
    CHECK(safe.tokens == doctest::Approx(161.0).epsilon(0.25));
    CHECK(1 - greedy.tokens / safe.tokens == doctest::Approx(0.406).epsilon(0.25));
    CHECK(greedy.ttft < safe.ttft);
    CHECK(greedy.tpot > 2 * safe.tpot);
    CHECK(greedy.e2e > 1.5 * safe.e2e);
    const char* const small = "prompt_tokens: 1024, output_tokens: 256";
    CHECK(measure("trtllm-max-utilization", small).tokens ==
          doctest::Approx(measure("trtllm-no-evict", small).tokens).epsilon(0.01));
}

TEST_CASE("theory: the share of work that is recomputed as the pool shrinks") {
    // vLLM issue 54644 (recompute tax: tokens wasted of all that are computed), a 0.5B model, 300 requests at once:
    // 0, 32.2, 57.9 and 78.8 % at 2,800, 1,600, 800 and 400 blocks. The useful tokens follow: 167,860, 560 a request. Their
    // split and the limits are not published; here prompts and outputs are uniform with means 272 and 288, in chunks of 256
    // tokens, 80 seats, which 2,800 blocks just hold. A bigger budget admits whole prompts, which are preempted less often.
    std::vector<double> taxes;
    for (const auto& [blocks, published] :
         {std::pair{2800, 0.0}, std::pair{1600, 0.322}, std::pair{800, 0.579}, std::pair{400, 0.788}}) {
        const Case c = load(fmt::format(
            "model: Qwen/Qwen2.5-0.5B-Instruct\n"
            "hardware: {{gpu: A100-80GB-SXM}}\n"
            "engine: {{preset: vllm-v1-2026-01, max_model_len: 4096, num_gpu_blocks_override: {}, block_size: 16, "
            "max_num_seqs: 80, "
            "max_num_batched_tokens: 256, enable_prefix_caching: false, async_scheduling: false}}\n"
            "workload: {{requests: 300, arrivals: all_at_once, prompt_tokens: {{distribution: uniform, min: 32, max: 512}}, "
            "output_tokens: {{distribution: uniform, min: 64, max: 512}}}}\n",
            blocks));
        double tax = 0;
        constexpr std::uint64_t seeds = 3;
        for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
            const Counters counters = run(c, seed).counters;
            CHECK(counters.completed == 300);
            tax += static_cast<double>(counters.recomputed_tokens) / static_cast<double>(counters.tokens) / seeds;
        }
        if (verbose()) MESSAGE(fmt::format("{} blocks: {:.1f} % (published {:.1f})", blocks, 100 * tax, 100 * published));
        CHECK(tax == doctest::Approx(published).epsilon(0.25));
        if (!taxes.empty()) CHECK(tax > taxes.back());
        taxes.push_back(tax);
    }
    CHECK(taxes.front() == 0);
    // It rises less and less: the pool halves and the tax does not double.
    CHECK(taxes[1] > taxes[2] - taxes[1]);
    CHECK(taxes[2] - taxes[1] > (taxes[3] - taxes[2]) * 0.9);
}

TEST_CASE("theory: a watermark saves preemptions in every style that preempts") {
    for (const char* style : {"iteration", "decode-first", "max-utilization", "past-future"}) {
        CAPTURE(style);
        std::vector<std::int64_t> preemptions;
        for (const double watermark : {0.0, 0.05, 0.15}) {
            const Case c = load(fmt::format(
                "model: Qwen/Qwen2.5-7B-Instruct\n"
                "hardware: {{gpu: GB200}}\n"
                "engine: {{batching: {}, num_gpu_blocks_override: 18724, block_size: 16, max_num_seqs: 256, "
                "max_num_batched_tokens: 32768, enable_prefix_caching: false, async_scheduling: false, watermark: {}}}\n"
                "workload: {{requests: 300, max_concurrency: 128, arrivals: all_at_once, prompt_tokens: {{distribution: "
                "uniform, min: "
                "800, max: 1200}}, output_tokens: {{distribution: uniform, min: 4000, max: 6000}}}}\n",
                style, watermark));
            preemptions.push_back(run(c, 1).counters.preemptions);
        }
        if (verbose()) MESSAGE(fmt::format("{}: {} / {} / {}", style, preemptions[0], preemptions[1], preemptions[2]));
        CHECK(preemptions[0] > 2 * preemptions[1]);
        CHECK(preemptions[1] >= preemptions[2]);
    }
}

}  // namespace kvsim::theory
