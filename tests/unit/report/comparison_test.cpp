#include "kvsim/report/comparison.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "kvsim/base/check.hpp"
#include "kvsim/random/distribution.hpp"
#include "kvsim/random/stream.hpp"
#include "kvsim/report/assertion.hpp"
#include "kvsim/report/output_analysis.hpp"

using namespace kvsim;

namespace {

const Column& column(std::string_view name) {
    const Column* const found = find_summary_column(name);
    REQUIRE(found != nullptr);
    return *found;
}

PairedFigure figure(std::string_view name, std::vector<double> base, std::vector<double> fresh) {
    PairedFigure f;
    f.point = "p";
    f.column = &column(name);
    f.base = std::move(base);
    f.fresh = std::move(fresh);
    return f;
}

Finding found(std::string_view name, std::vector<double> base, std::vector<double> fresh, const ComparisonRules& rules = {}) {
    const std::vector<PairedFigure> one{figure(name, std::move(base), std::move(fresh))};
    return compare(one, rules).front().finding;
}

ComparisonRules with(std::string_view name, std::string_view tolerance) {
    ComparisonRules rules;
    rules.own[std::string(column(name).name)] = parse_tolerance(tolerance, column(name), true);
    return rules;
}

std::string refused(std::string_view tolerance, std::string_view name) {
    try {
        static_cast<void>(parse_tolerance(tolerance, column(name), false));
    } catch (const UserError& e) { return e.what(); }
    return "";
}

}  // namespace

TEST_CASE("comparison: each figure is worse in its own direction") {
    CHECK(found("ttft_p99", {100}, {111}) == Finding::regressed);
    CHECK(found("ttft_p99", {100}, {89}) == Finding::improved);
    CHECK(found("output_throughput", {100}, {89}) == Finding::regressed);
    CHECK(found("output_throughput", {100}, {111}) == Finding::improved);
    CHECK(found("preemptions", {0}, {1}) == Finding::regressed);
    CHECK(found("preemptions", {1}, {0}) == Finding::improved);
    CHECK(found("verdict", {0}, {1}) == Finding::regressed);
    CHECK(found("verdict", {2}, {1}) == Finding::improved);
    CHECK(found("slo_attainment", {0.99}, {0.97}) == Finding::regressed);
    // What only describes counts either way, if it is asked for.
    CHECK(found("kv_usage_mean", {0.5}, {0.6}) == Finding::changed);
    CHECK(found("kv_usage_mean", {0.6}, {0.5}) == Finding::changed);
}

TEST_CASE("comparison: every usual metric has a direction, and no setting or interval is compared") {
    for (const std::string_view name : usual_metrics()) {
        CAPTURE(name);
        CHECK(comparable(column(name)));
        CHECK(better(column(name)) != Better::neither);
    }
    for (const char* name :
         {"scenario", "seed", "max_num_seqs", "num_gpu_blocks", "ttft_p99_ms_ci95", "deviations", "steady_state"})
        CHECK_FALSE(comparable(column(name)));
    for (const Column* c : columns_named("all")) CHECK(better(*c) != Better::neither);
    CHECK(columns_named("ttft_*").size() == 5);
    CHECK(columns_named("ttft_p99").front()->name == "ttft_p99_ms");
    CHECK_THROWS_WITH_AS(columns_named("ttft_p9"), doctest::Contains("did you mean 'ttft_p90'"), UserError);
    CHECK_THROWS_AS(columns_named("seed"), UserError);
    CHECK_THROWS_AS(columns_named("tft_*"), UserError);
}

TEST_CASE("comparison: a difference at the tolerance is allowed, one beyond it is not") {
    CHECK(found("ttft_p99", {100}, {105}) == Finding::within);
    CHECK(found("ttft_p99", {100}, {105.0001}) == Finding::regressed);
    CHECK(found("ttft_p99", {0.1}, {0.105}) == Finding::within);  // 0.1 * 0.05 is no double
    CHECK(found("output_throughput", {100}, {95}) == Finding::within);
    CHECK(found("output_throughput", {100}, {94.999}) == Finding::regressed);
    CHECK(found("slo_attainment", {0.99}, {0.98}) == Finding::within);
    CHECK(found("slo_attainment", {0.99}, {0.9799}) == Finding::regressed);
    CHECK(found("ttft_p99", {100}, {110}, with("ttft_p99", "10%")) == Finding::within);
    CHECK(found("ttft_p99", {100}, {110.01}, with("ttft_p99", "10%")) == Finding::regressed);
    CHECK(found("tpot_p50", {100}, {102}, with("tpot_p50", "2ms")) == Finding::within);
    CHECK(found("tpot_p50", {100}, {102.001}, with("tpot_p50", "2ms")) == Finding::regressed);
    // Of both the larger.
    CHECK(found("tpot_p50", {10}, {11.9}, with("tpot_p50", "5%,2ms")) == Finding::within);
    CHECK(found("tpot_p50", {100}, {104.9}, with("tpot_p50", "5%,2ms")) == Finding::within);
    CHECK(found("tpot_p50", {100}, {105.1}, with("tpot_p50", "2ms,5%")) == Finding::regressed);
    CHECK(found("preemptions", {0}, {10}, with("preemptions", "10")) == Finding::within);
    CHECK(found("preemptions", {0}, {11}, with("preemptions", "10")) == Finding::regressed);
    ComparisonRules exact;
    exact.common = parse_default_tolerance("0");
    CHECK(found("ttft_p99", {100}, {100}, exact) == Finding::within);
    CHECK(found("ttft_p99", {100}, {100.000001}, exact) == Finding::regressed);
}

TEST_CASE("comparison: two-sided, what became better fails too") {
    ComparisonRules rules;
    rules.two_sided = true;
    CHECK(found("ttft_p99", {100}, {80}, rules) == Finding::changed);
    CHECK(found("ttft_p99", {100}, {120}, rules) == Finding::regressed);
    CHECK(found("ttft_p99", {100}, {98}, rules) == Finding::within);
}

TEST_CASE("comparison: malformed tolerances say what is wrong") {
    CHECK(refused("2", "ttft_p99").find("needs a unit") != std::string::npos);
    CHECK(refused("2GB", "ttft_p99").find("does not fit") != std::string::npos);
    CHECK(refused("-5%", "ttft_p99").find("not negative") != std::string::npos);
    CHECK(refused("5%,6%", "ttft_p99").find("two relative") != std::string::npos);
    CHECK(refused("1ms,2ms", "ttft_p99").find("two absolute") != std::string::npos);
    CHECK(refused("nan%", "ttft_p99").find("not a number") != std::string::npos);
    CHECK(refused("", "ttft_p99").find("missing") != std::string::npos);
    CHECK(refused("5%,", "ttft_p99").find("missing") != std::string::npos);
    CHECK(refused("1pp", "ttft_p99").find("shares") != std::string::npos);
    CHECK(refused("5%", "verdict").find("no tolerance") != std::string::npos);
    CHECK_THROWS_AS(parse_default_tolerance("2ms"), UserError);
    CHECK(*parse_tolerance("1pp", column("slo_attainment"), false).absolute == doctest::Approx(0.01));
}

TEST_CASE("comparison: the corrections on a worked example") {
    const std::vector<double> p{0.01, 0.04, 0.03, 0.005};
    const auto check = [&](Correction correction, const std::vector<double>& expected) {
        const std::vector<double> out = corrected(p, correction);
        for (std::size_t i = 0; i < p.size(); ++i) CHECK(out[i] == doctest::Approx(expected[i]));
    };
    // 4, 3, 2 and 1 times the least, the next, ...; never falling.
    check(Correction::holm, {0.03, 0.06, 0.06, 0.02});
    // 4/4, 4/3, 4/2 and 4/1 times the greatest, the next, ...; never rising.
    check(Correction::fdr, {0.02, 0.04, 0.04, 0.02});
    check(Correction::none, p);
    CHECK(corrected(std::vector<double>{0.9, 0.8}, Correction::holm) == std::vector<double>{1, 1});
    CHECK(corrected({}, Correction::fdr).empty());
}

TEST_CASE("comparison: the paired t test on a worked example") {
    // Differences 10, 12, 14, 16: mean 13, standard error sqrt(20 / 3) / 2 = 1.291; t = 10.07 with 3 degrees of freedom.
    const std::vector<PairedFigure> one{figure("ttft_p99", {100, 100, 100, 100}, {110, 112, 114, 116})};
    const ComparedFigure c = compare(one, {}).front();
    CHECK(*c.p == doctest::Approx(student_t_tail(13 / (std::sqrt(20.0 / 3) / 2), 3)));
    CHECK(*c.p == doctest::Approx(0.001039).epsilon(0.001));
    CHECK(*c.half_width == doctest::Approx(3.18245 * std::sqrt(20.0 / 3) / 2).epsilon(1e-5));
    CHECK(c.finding == Finding::regressed);
    // Beyond the tolerance, but for two seeds only just.
    CHECK(found("ttft_p99", {100, 100}, {101, 120}) == Finding::unclear);
    ComparisonRules all;
    all.unclear_fails = true;
    CHECK(found("ttft_p99", {100, 100}, {101, 120}, all) == Finding::regressed);
    CHECK(found("ttft_p99", {100, 100}, {101, 104}, all) == Finding::within);
    CHECK(found("ttft_p99", {100, 100}, {60, 99}, all) == Finding::within);
    // Significant, but within the tolerance.
    CHECK(found("ttft_p99", {100, 100, 100}, {104, 104.01, 104.02}) == Finding::within);
    // The same difference under every seed leaves no doubt.
    CHECK(found("preemptions", {0, 0}, {5, 5}) == Finding::regressed);
    // An improvement that is not significant is no warning.
    CHECK(found("ttft_p99", {100, 100}, {60, 99}) == Finding::within);
}

namespace {

/// Paired runs of `metrics` figures over `seeds` seeds: a common part of each seed, noise of either side, NEW worse by `shift`.
std::vector<PairedFigure> drawn(std::uint64_t repeat, int metrics, int seeds, double noise, double shift) {
    std::vector<PairedFigure> out;
    for (int m = 0; m < metrics; ++m) {
        Stream stream(repeat, "comparison_test", static_cast<std::uint64_t>(m));
        std::vector<double> base, fresh;
        for (int s = 0; s < seeds; ++s) {
            const double common = 100 + 30 * normal_quantile(stream.uniform());
            base.push_back(common + noise * normal_quantile(stream.uniform()));
            fresh.push_back(common + shift + noise * normal_quantile(stream.uniform()));
        }
        out.push_back(figure("ttft_p99", std::move(base), std::move(fresh)));
    }
    return out;
}

bool fails(const std::vector<PairedFigure>& figures, const ComparisonRules& rules) {
    return compare(figures, rules).front().failed();
}

}  // namespace

TEST_CASE("comparison: results of one distribution fail a gate of zero tolerance in 5 % of cases, of 20 figures together") {
    ComparisonRules rules;
    rules.common = parse_default_tolerance("0");
    constexpr int repeats = 2000;
    std::array<int, 3> alarms{};
    for (int r = 0; r < repeats; ++r) {
        const auto figures = drawn(static_cast<std::uint64_t>(r), 20, 6, 5, 0);
        for (const Correction correction : {Correction::fdr, Correction::holm, Correction::none}) {
            rules.correction = correction;
            alarms[static_cast<std::size_t>(correction)] += fails(figures, rules) ? 1 : 0;
        }
    }
    // 5 % +- 4 standard errors of 0.49 %; without a correction 1 - 0.95^20 = 64 %.
    for (const std::size_t i : {0U, 1U}) {
        CHECK(alarms[i] > repeats * 0.03);
        CHECK(alarms[i] < repeats * 0.07);
    }
    CHECK(alarms[2] > repeats * 0.58);
    CHECK(alarms[2] < repeats * 0.70);
}

TEST_CASE("comparison: a change of every point is seen however many there are, also with three seeds") {
    ComparisonRules rules;
    const auto figures = drawn(1, 2000, 3, 5, 25);
    const auto found_ones = [&] {
        std::int64_t n = 0;
        for (const ComparedFigure& c : compare(figures, rules)) n += c.failed() ? 1 : 0;
        return n;
    };
    CHECK(found_ones() > 1000);
    rules.correction = Correction::holm;
    CHECK(found_ones() < 100);
}

TEST_CASE("comparison: a regression of three times the noise is found under ten seeds, also among 20 figures") {
    ComparisonRules rules;
    int found_ones = 0;
    constexpr int repeats = 200;
    for (int r = 0; r < repeats; ++r) found_ones += fails(drawn(static_cast<std::uint64_t>(r), 20, 10, 5, 15), rules) ? 1 : 0;
    CHECK(found_ones == repeats);
}

TEST_CASE("comparison: pairing by seed finds what the spread between seeds hides") {
    // Between seeds 30, between the sides of a pair 1: an unpaired test of five seeds would see nothing of a shift by 8.
    const auto figures = drawn(1, 1, 5, 1, 8);
    CHECK(compare(figures, {}).front().finding == Finding::regressed);
}

TEST_CASE("comparison: the worst stands first") {
    std::vector<PairedFigure> figures{figure("ttft_p50", {100}, {106}),           figure("ttft_p90", {100}, {50}),
                                      figure("ttft_p95", {100}, {101}),           figure("ttft_p99", {100}, {200}),
                                      figure("tpot_p99", {100, 100}, {101, 130}), figure("preemptions", {0}, {3})};
    const std::vector<ComparedFigure> out = compare(figures, {});
    std::vector<std::string_view> names;
    for (const ComparedFigure& c : out) names.push_back(c.column->name);
    CHECK(names == std::vector<std::string_view>{"preemptions", "ttft_p99_ms", "ttft_p50_ms", "tpot_p99_ms", "ttft_p90_ms",
                                                 "ttft_p95_ms"});
}
