#include "kvsim/report/assertion.hpp"

#include <doctest/doctest.h>

#include "kvsim/base/check.hpp"
#include "sample_run.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

std::string error_of(std::string_view text) {
    try {
        parse_assertion(text);
    } catch (const UserError& error) { return error.what(); }
    return "";
}

bool contains(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("assertions: judged in the column's unit") {
    const Summary s = summarize(sample_info(), sample_outcome());
    const auto holds = [&](std::string_view text) { return evaluate(parse_assertion(text), s).passed; };
    // ttft_p99_ms is 197.6
    CHECK(holds("ttft_p99 <= 0.2s"));
    CHECK(holds("ttft_p99_ms<=197.6ms"));
    CHECK(holds("ttft_p99_ms <= 197.6"));
    CHECK(holds("ttft_p99 < 200 ms"));
    CHECK(holds("ttft_p99 > 197000us"));
    CHECK_FALSE(holds("ttft_p99 < 197.6ms"));
    CHECK_FALSE(holds("ttft_p99 <= 0.19s"));
    CHECK(holds("itl_mean == 1250ns"));
    CHECK(holds("duration <= 1min"));
    CHECK(holds("duration_s == 2500ms"));
    CHECK(holds("goodput >= 0.8"));
    CHECK(holds("goodput_req_s >= 48/min"));
    CHECK(holds("goodput >= 0.8 req/s"));
    CHECK(holds("output_throughput > 17 tok/s"));
    CHECK(holds("kv_usage_peak <= 80%"));
    CHECK(holds("kv_usage_peak <= 0.8"));
    CHECK_FALSE(holds("kv_usage_peak < 80%"));
    CHECK(holds("load > 1.3"));
    CHECK(holds("load > 130%"));
    CHECK(holds("preemptions == 2"));
    CHECK(holds("preemptions != 3"));
    CHECK(holds("kv_bytes_per_token == 64KiB"));
    CHECK(holds("verdict == stable"));
    CHECK(holds("verdict != overloaded"));
    CHECK_FALSE(holds("verdict == saturated"));
    CHECK(holds("  seed == 42  "));
}

TEST_CASE("assertions: the message carries the measured value") {
    const Summary s = summarize(sample_info(), sample_outcome());
    CHECK(evaluate(parse_assertion("ttft_p99 <= 0.1s"), s).message == "ttft_p99 <= 0.1s: FAIL (ttft_p99_ms is 197.6 ms)");
    CHECK(evaluate(parse_assertion("goodput > 0.5/s"), s).message == "goodput > 0.5/s: pass (goodput_req_s is 0.8 req/s)");
}

TEST_CASE("assertions: a column that does not apply fails, whatever is asked of it") {
    RunInfo info = sample_info();
    info.slo = {};
    const Summary s = summarize(info, sample_outcome());
    for (const char* text : {"goodput >= 0", "goodput < 1e9", "goodput != 7"}) {
        const AssertionResult result = evaluate(parse_assertion(text), s);
        CHECK_FALSE(result.passed);
        CHECK(result.measured == "not applicable");
    }
}

TEST_CASE("assertions: what is wrong is said") {
    CHECK(contains(error_of("ttft_p9 <= 2s"), "did you mean 'ttft_p9"));
    CHECK(contains(error_of("godput >= 1"), "did you mean 'goodput'"));
    CHECK(contains(error_of("ttft_p99 <= 2"), "needs a unit (ns, us, ms, s, min, h)"));
    CHECK(contains(error_of("ttft_p99 <= 2GB"), "unit 'GB' does not fit ttft_p99_ms"));
    CHECK(contains(error_of("goodput >= 2 tok/s"), "unit 'tok/s' does not fit goodput_req_s"));
    CHECK(contains(error_of("preemptions <= 2s"), "which has none"));
    CHECK(contains(error_of("slo_attainment >= 95"), "write 0.95 or 95%"));
    CHECK(contains(error_of("verdict >= stable"), "only == and !="));
    CHECK(contains(error_of("verdict == stabel"), "stable, saturated, overloaded"));
    CHECK(contains(error_of("ttft_p99 =< 2s"), "unknown operator '=<'"));
    CHECK(contains(error_of("ttft_p99 = 2s"), "unknown operator '='"));
    CHECK(contains(error_of("ttft_p99 <= fast"), "not a number"));
    CHECK(contains(error_of("ttft_p99 <= nan"), "not a number"));
    CHECK(contains(error_of("ttft_p99 <= infs"), "not a number"));
    CHECK(contains(error_of("ttft_p99 <="), "value is missing"));
    CHECK(contains(error_of("<= 2s"), "column is missing"));
    CHECK(contains(error_of("ttft_p99"), "expected COLUMN OPERATOR VALUE"));
    CHECK(contains(error_of(""), "expected COLUMN OPERATOR VALUE"));
}
