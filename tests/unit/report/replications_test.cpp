#include "kvsim/report/replications.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "kvsim/report/assertion.hpp"
#include "kvsim/report/writers.hpp"
#include "sample_run.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

std::vector<Summary> three_runs() {
    std::vector<Summary> runs(3, summarize(sample_info(), sample_outcome()));
    for (std::size_t i = 0; i < runs.size(); ++i) {
        runs[i].seed = 42 + static_cast<std::int64_t>(i);
        runs[i].e2e.p99 = std::vector<double>{100, 130, 160}[i];
        runs[i].preemptions = std::vector<std::int64_t>{0, 1, 1}[i];
    }
    runs[1].resume_hit_rate.reset();
    runs[2].verdict = "saturated";
    return runs;
}

const ReplicatedColumn& find(const std::vector<ReplicatedColumn>& columns, std::string_view name) {
    for (const ReplicatedColumn& c : columns) {
        if (c.column->name == name) return c;
    }
    throw std::runtime_error(std::string(name));
}

}  // namespace

TEST_CASE("replications: means and intervals by hand") {
    const std::vector<Summary> runs = three_runs();
    const std::vector<ReplicatedColumn> columns = replicated(runs);
    const ReplicatedColumn& p99 = find(columns, "e2e_p99_ms");
    CHECK(std::get<double>(p99.value) == doctest::Approx(130));
    CHECK(*p99.half_width == doctest::Approx(4.302653 * 30 / std::sqrt(3.0)));  // t(2), standard deviation 30
    CHECK(p99.min == 100);
    CHECK(p99.max == 160);
    CHECK(std::get<double>(find(columns, "preemptions").value) == doctest::Approx(2.0 / 3));
    CHECK(*find(columns, "completed").half_width == 0);
    CHECK(std::get<std::int64_t>(find(columns, "seed").value) == 42);
    CHECK(std::get<std::int64_t>(find(columns, "max_num_seqs").value) == 8);
    CHECK_FALSE(find(columns, "max_num_seqs").half_width);
    CHECK(std::get<std::string>(find(columns, "verdict").value) == "stable / saturated");
    CHECK(find(columns, "resume_hit_rate").half_width);  // of the two runs that have one

    const Assertion on_mean = parse_assertion("e2e_p99 <= 130ms");
    CHECK(evaluate(on_mean, runs).passed);
    const Assertion on_width = parse_assertion("e2e_p99_ms_ci95 <= 70ms");
    CHECK_FALSE(evaluate(on_width, runs).passed);
}

TEST_CASE("replications: the row has a *_ci95 column for every figure and none for a setting") {
    const std::vector<Summary> runs = three_runs();
    const std::string text = replicated_csv(runs);
    const std::string header = replicated_csv_header();
    CHECK(text.starts_with(header));
    CHECK(header.starts_with("scenario,scenario_hash,kvsim_version,seed,"));
    for (const char* name : {",ttft_mean_ms_ci95", ",e2e_p99_ms_ci95", ",request_throughput_req_s_ci95", ",kv_usage_mean_ci95",
                             ",preemptions_ci95", ",load_ci95"})
        CHECK_MESSAGE(header.find(name) != std::string::npos, name);
    for (const char* name : {"max_num_seqs_ci95", "seed_ci95", "verdict_ci95", "_ci95_ci95"})
        CHECK_MESSAGE(header.find(name) == std::string::npos, name);
    const auto commas = [](std::string_view line) { return std::count(line.begin(), line.end(), ','); };
    CHECK(commas(header) == commas(replicated_csv_row(runs)));
    CHECK(replicated_csv_row(std::span(runs).first(1)).find("nan") == std::string::npos);

    const auto json =
        nlohmann::json::parse(summary_json(sample_info(), sample_outcome(), runs.front(), replications_json(runs)));
    const auto& own = json["kvsim"]["replications"];
    CHECK(own["count"] == 3);
    CHECK(own["seeds"] == nlohmann::json::array({42, 43, 44}));
    CHECK(own["mean"]["e2e_p99_ms"].get<double>() == doctest::Approx(130));
    CHECK(own["ci95"]["e2e_p99_ms"].get<double>() == doctest::Approx(74.524));
}

TEST_CASE("replications: equal runs and few runs are warned of") {
    std::vector<Summary> runs = three_runs();
    CHECK(replication_warnings(runs).size() == 2);
    runs[1].e2e.mean += 1;
    REQUIRE(replication_warnings(runs).size() == 1);
    CHECK(replication_warnings(runs)[0].find("from 3 replications") != std::string::npos);
    runs.resize(6, runs[1]);
    CHECK(replication_warnings(runs).empty());
    CHECK(replication_warnings(std::span(runs).first(1)).empty());
}
