#include <cmath>

#include "kvsim/model/trace_stats.hpp"
#include "unit/workload/support.hpp"

using namespace kvsim;

namespace {

TraceStats stats_of(const std::string& file) {
    const auto path = test::shared_trace(file);
    if (!path) return {};
    const auto reader = open_trace(*path, "", {});
    return trace_stats(*reader);
}

std::vector<std::int64_t> hits(const TraceStats& s) {
    std::vector<std::int64_t> out;
    for (const PrefixHits& h : s.hits) out.push_back(h.hits);
    return out;
}

double one_decimal(double x) {
    return std::round(x * 10) / 10;
}

}  // namespace

TEST_CASE("known answer 13: the Mooncake conversation trace") {
    const TraceStats s = stats_of("conversation_trace.jsonl");
    if (s.rows == 0) return;
    CHECK(s.format == "mooncake");
    CHECK(s.rows == 12'031);
    CHECK(s.input.total == 144'793'823);
    CHECK(s.output.total == 4'122'048);
    CHECK(s.blocks == 288'500);
    CHECK(s.unique_blocks == 182'790);
    CHECK(hits(s) == std::vector<std::int64_t>{105'710, 104'924, 102'290, 93'967, 60'921, 12'831});
    CHECK(s.ticks == 1'180);
    CHECK(s.input.max == 126'195);
    CHECK(std::lround(s.input.p90) == 27'367);
    CHECK(std::lround(s.input.p99) == 85'400);
    CHECK(s.span_s == doctest::Approx(3537.0).epsilon(1e-4));
    CHECK(s.rate == doctest::Approx(3.401).epsilon(2e-4));
    CHECK(s.gap_cv == doctest::Approx(3.03).epsilon(2e-3));
}

TEST_CASE("known answer 13: the Mooncake synthetic trace") {
    const TraceStats s = stats_of("synthetic_trace.jsonl");
    if (s.rows == 0) return;
    CHECK(s.rows == 3'993);
    CHECK(s.blocks == 121'877);
    CHECK(hits(s) == std::vector<std::int64_t>{77'953, 77'953, 77'953, 76'077, 51'614, 10'050});
    CHECK(s.gap_cv == doctest::Approx(1.01).epsilon(5e-3));
}

TEST_CASE("known answer 13: the Azure 2023 traces") {
    const TraceStats conv = stats_of("AzureLLMInferenceTrace_conv.csv");
    if (conv.rows == 0) return;
    CHECK(conv.format == "azure");
    CHECK(conv.rows == 19'366);
    CHECK(one_decimal(conv.input.mean) == 1154.7);
    CHECK(conv.input.p50 == 1020);
    CHECK(conv.input.p90 == 2734.5);
    CHECK(one_decimal(conv.output.mean) == 211.1);
    CHECK(conv.output.p50 == 129);
    CHECK(conv.rate == doctest::Approx(5.530).epsilon(2e-4));
    CHECK(conv.gap_cv == doctest::Approx(1.09).epsilon(5e-3));
    CHECK(conv.blocks == 0);

    const TraceStats code = stats_of("AzureLLMInferenceTrace_code.csv");
    CHECK(code.rows == 8'819);
    CHECK(one_decimal(code.input.mean) == 2047.8);
    CHECK(code.input.p50 == 1469);
    CHECK(one_decimal(code.output.mean) == 27.9);
    CHECK(code.output.p50 == 13);
    CHECK(code.span_s == doctest::Approx(3435.9).epsilon(1e-4));
    CHECK(code.gap_cv == doctest::Approx(13.15).epsilon(1e-3));
}

TEST_CASE("ideal LRU hits of a small trace, by hand") {
    // Capacity 3: a=[1 2], b=[1 2 3 4] evicts 1, so c=[1] misses and evicts 2; d=[3 4 1] hits all.
    const std::string text =
        R"({"timestamp": 0, "input_length": 8, "output_length": 1, "hash_ids": [1, 2]}
{"timestamp": 1000, "input_length": 16, "output_length": 2, "hash_ids": [1, 2, 3, 4]}
{"timestamp": 1000, "input_length": 1, "output_length": 3, "hash_ids": [1]}
{"timestamp": 4000, "input_length": 9, "output_length": 4, "hash_ids": [3, 4, 1]}
)";
    const TraceOptions options{4};
    const auto reader = open_trace_text("t.jsonl", text, "", options);
    const TraceStats s = trace_stats(*reader, {3, 1});
    CHECK(hits(s) == std::vector<std::int64_t>{2 + 1 + 3, 2 + 0 + 3, 0});
    CHECK(s.blocks == 10);
    CHECK(s.unique_blocks == 4);
    CHECK(s.ticks == 3);
    CHECK(s.span_s == 4);
    CHECK(s.rate == 1);
    CHECK(s.output.mean == 2.5);
    CHECK(s.output.p50 == 2.5);
    CHECK(s.output.p90 == doctest::Approx(3.7));
    CHECK(s.input.counts == std::vector<std::int64_t>{1, 0, 0, 2, 1});

    const std::string shown = render(s);
    CHECK(shown.find("requests          4\n") != std::string::npos);
    CHECK(shown.find("blocks of 4 tokens: 10, unique 4\n") != std::string::npos);
    CHECK(shown.find("       unlimited             6    60.00%\n") != std::string::npos);
    CHECK(shown.find("           8 - 15                    2 ##################################################\n") !=
          std::string::npos);
}

TEST_CASE("a trace without rows has no statistics") {
    const auto reader = open_trace_text("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\r\n", "", {});
    CHECK_THROWS_WITH_AS(static_cast<void>(trace_stats(*reader)), "t.csv:1:1: error: the trace has no rows", UserError);
}
