#include "kvsim/report/render.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>

#include "kvsim/base/check.hpp"
#include "kvsim/report/writers.hpp"
#include "sample_run.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

std::string rendered(Format format, const RunInfo& info = sample_info(), const Outcome& outcome = sample_outcome(),
                     RenderOptions options = {}) {
    return render(format, info, outcome, summarize(info, outcome), options);
}

bool contains(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

// Without line breaks and alignment.
std::string flowing(const std::string& text) {
    std::string out;
    for (const char c : text) {
        const char flat = c == '\n' ? ' ' : c;
        if (flat != ' ' || !out.ends_with(' ')) out += flat;
    }
    return out;
}

}  // namespace

TEST_CASE("vllm format: the console block, character by character") {
    RunInfo info = sample_info();
    info.max_concurrency = 8;
    const std::string expected =
        "============ Serving Benchmark Result ============\n"
        "Successful requests:                     3         \n"
        "Failed requests:                         1         \n"
        "Maximum request concurrency:             8         \n"
        "Request rate configured (RPS):           4.00      \n"
        "Benchmark duration (s):                  2.50      \n"
        "Total input tokens:                      600       \n"
        "Total generated tokens:                  43        \n"
        "Request throughput (req/s):              1.20      \n"
        "Request goodput (req/s):                 0.80      \n"
        "Output token throughput (tok/s):         17.20     \n"
        "Peak output token throughput (tok/s):    25.00     \n"
        "Peak concurrent requests:                3.00      \n"
        "Total token throughput (tok/s):          257.20    \n"
        "---------------Time to First Token----------------\n"
        "Mean TTFT (ms):                          110.00    \n"
        "Median TTFT (ms):                        80.00     \n"
        "P99 TTFT (ms):                           197.60    \n"
        "-----Time per Output Token (excl. 1st token)------\n"
        "Mean TPOT (ms):                          26.67     \n"
        "Median TPOT (ms):                        26.67     \n"
        "P99 TPOT (ms):                           43.00     \n"
        "---------------Inter-token Latency----------------\n"
        "Mean ITL (ms):                           0.00      \n"
        "Median ITL (ms):                         0.00      \n"
        "P99 ITL (ms):                            0.00      \n";
    const std::string e2el =
        "----------------End-to-end Latency----------------\n"
        "Mean E2EL (ms):                          576.67    \n"
        "Median E2EL (ms):                        150.00    \n"
        "P99 E2EL (ms):                           1473.00   \n";
    const std::string end = "==================================================\n";
    CHECK(rendered(Format::vllm, info) == expected + e2el + end);
    RenderOptions without;
    without.e2el = false;
    CHECK(rendered(Format::vllm, info, sample_outcome(), without) == expected + end);

    info.max_concurrency.reset();
    info.request_rate = std::numeric_limits<double>::infinity();
    info.slo = {};
    const std::string plain = rendered(Format::vllm, info);
    CHECK_FALSE(contains(plain, "Maximum request concurrency"));
    CHECK_FALSE(contains(plain, "Request rate configured"));
    CHECK_FALSE(contains(plain, "goodput"));
}

TEST_CASE("table: dimensions, figures and warnings within 100 columns") {
    const std::string text = rendered(Format::table);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        CAPTURE(line);
        CHECK(line.size() <= 100);
        CHECK((line.empty() || line.back() != ' '));
        CHECK(std::all_of(line.begin(), line.end(), [](char c) { return c >= ' ' && c <= '~'; }));
    }
    for (const std::string_view part :
         {"sample kvsim 9.8.7, seed 42", "org/model-8B", "H100, TP 2, 1 replica", "max_num_seqs=8 (vllm-v1: 1024)",
          "101 blocks (100 usable) x 16 tokens = 1,600 live tokens (2.00 x max_model_len)", "64 KiB per token and rank",
          "budget 10 GiB", "TTFT <= 100 ms, TPOT <= 20 ms", "stable at load 1.33 (offered 2.67 req/s)",
          "3 completed, 1 rejected, 0 timed out", "1.20 req/s, 17.20 output tok/s, 257.2 total tok/s",
          "0.800 req/s; 50.0% of the requests met the SLO", "25.0% mean, 80.0% peak",
          "2 on 1 request (0.500 per measured request); 310 tokens recomputed", "25.0% of step time", "10.0% of prompt tokens",
          "seats 10.0%, token budget 5.0%, KV blocks 20.0%", "- a warning of the configuration"}) {
        CAPTURE(part);
        CHECK(contains(flowing(text), part));
    }
    CHECK(contains(text, "  TTFT              110.0       80.00       176.0       188.0       197.6\n"));
    CHECK(contains(text, "  E2E               576.7       150.0       1,230       1,365       1,473\n"));
    RenderOptions colour;
    colour.colour = true;
    CHECK(contains(rendered(Format::table, sample_info(), sample_outcome(), colour), "\x1b["));
}

TEST_CASE("table: a run without anything to say does not crash") {
    RunInfo info;
    const std::string text = rendered(Format::table, info, Outcome{});
    CHECK(contains(text, "0 completed"));
    CHECK_FALSE(contains(text, "nan"));
    CHECK_FALSE(contains(text, "inf"));
    Outcome stalled = sample_outcome();
    stalled.stall_report = "replica 0: 3 waiting, head needs 12 blocks, 4 free";
    CHECK(contains(rendered(Format::table, info, stalled), "head needs 12 blocks, 4 free\n"));
}

TEST_CASE("json, csv and markdown say the same as the files") {
    const RunInfo info = sample_info();
    const Outcome o = sample_outcome();
    const Summary s = summarize(info, o);
    CHECK(render(Format::json, info, o, s) == summary_json(info, o, s) + "\n");
    CHECK(render(Format::csv, info, o, s) == summary_csv_header() + summary_csv_row(s));
    const std::string text = render(Format::markdown, info, o, s);
    CHECK(contains(text, "| TTFT | 110.0 | 80.00 | 176.0 | 188.0 | 197.6 |\n"));
    CHECK(contains(text,
                   "| Verdict | stable at load 1.33 (offered 2.67 req/s); served 1.33 req/s while they arrived; 25.0% of the "
                   "requests not served |\n"));
}

TEST_CASE("formats by name") {
    CHECK(parse_format("vllm") == Format::vllm);
    CHECK(parse_format("markdown") == Format::markdown);
    CHECK_THROWS_WITH_AS(parse_format("jsn"),
                         "unknown format 'jsn'; did you mean 'json'? (one of: table, vllm, json, csv, markdown)", UserError);
}
