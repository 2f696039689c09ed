// kvsim capacity: the right limit where it is known, the same files however they were made, and no search without an end.

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "kvsim/app/csv_table.hpp"
#include "kvsim/app/load_search.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"
#include "unit/app/cli.hpp"

namespace kvsim::test {
namespace {

namespace fs = std::filesystem;
using app::CsvTable;
using app::Probe;
using app::SearchLimits;
using app::SeedSearch;

bool has(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

SeedSearch search_of(bool (*meets)(double), int& runs) {
    return SeedSearch([meets, &runs](double load) {
        ++runs;
        Probe out;
        out.meets = meets(load);
        return out;
    });
}

/// One server. Service: the prompt in one step at `per_token` a token, then a step of `c0` for each further output token.
std::string queue_scenario(std::string_view prompt, std::string_view output, std::string_view step, int requests) {
    std::string out =
        "engine: {preset: vllm-v1, async_scheduling: false, enable_prefix_caching: false, max_model_len: 100000, max_num_seqs: "
        "1, max_num_batched_tokens: 100000, num_gpu_blocks_override: 100000, block_size: 16}\nstep_time: ";
    out.append(step).append("\nworkload:\n  requests: ").append(std::to_string(requests));
    out.append("\n  arrivals: {process: poisson, rate: 0.1/s}\n  prompt_tokens: ").append(prompt);
    out.append("\n  output_tokens: ").append(output).append("\n");
    return out;
}
constexpr const char* geometric_1000 = "{distribution: geometric, mean: 1000}";

struct Found {
    double value, low, high;
};

std::vector<std::string> capacity_of(std::vector<std::string> more) {
    std::vector<std::string> args{"capacity", "s.yaml", "--out", "o"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
}

CsvTable table_of(const fs::path& path) {
    return {path.string(), slurp(path)};
}

Found search(const TemporaryFolder& folder, const std::vector<std::string>& more) {
    std::vector<std::string> args = capacity_of(more);
    args.emplace_back("--quiet");
    const Finished run = run_in(folder, args);
    CAPTURE(run.err);
    REQUIRE(run.exit == 0);
    const CsvTable points = table_of(folder.path() / "o/points.csv");
    REQUIRE(points.rows().size() == 1);
    const CsvTable::Row& row = points.rows().front();
    CHECK(points.text(row, "outcome") == "found");
    return {*points.number(row, "capacity"), *points.number(row, "capacity_low"), *points.number(row, "capacity_high")};
}

std::string long_scenario() {
    std::string out = small_scenario();
    out.replace(out.find("requests: 60"), 12, "requests: 800");
    return out;
}

}  // namespace

TEST_CASE("capacity: the search of one seed brackets the limit, finds whole numbers and always ends") {
    const SearchLimits limits{1, 1024, false, 6};
    int runs = 0;
    SUBCASE("a limit, from far below, from far above and from close by") {
        for (const double guess : {1.0, 1000.0, 37.0}) {
            runs = 0;
            SeedSearch s = search_of([](double load) { return load <= 36.6; }, runs);
            s.narrow(limits, guess, 0.002);
            CHECK(*s.low() <= 36.6);
            CHECK(*s.high() > 36.6);
            CHECK(*s.high() <= *s.low() * 1.002);
            CHECK(runs <= 22);
            const int before = runs;
            s.narrow(limits, guess, 0.002);
            CHECK(runs == before);
        }
    }
    SUBCASE("nothing fails") {
        SeedSearch s = search_of([](double) { return true; }, runs);
        s.narrow(limits, 3, 0.01);
        CHECK(*s.low() == 1024);
        CHECK(!s.high());
        CHECK(runs < 15);
    }
    SUBCASE("everything fails") {
        SeedSearch s = search_of([](double) { return false; }, runs);
        s.narrow(limits, 700, 0.01);
        CHECK(!s.low());
        CHECK(*s.high() == 1);
        CHECK(runs < 15);
    }
    SUBCASE("whole numbers") {
        SeedSearch s = search_of([](double load) { return load <= 17; }, runs);
        s.narrow({1, 4096, true, 5}, 2, 0.005);
        CHECK(*s.low() == 17);
        CHECK(*s.high() == 18);
        SeedSearch one = search_of([](double load) { return load <= 1; }, runs);
        one.narrow({1, 4096, true, 5}, 64, 0.005);
        CHECK(*one.low() == 1);
        CHECK(*one.high() == 2);
    }
    SUBCASE("not monotone: the lowest failure counts") {
        SeedSearch s = search_of([](double load) { return load <= 10 || (load > 20 && load <= 40); }, runs);
        s.probe(30);
        s.probe(15);
        s.narrow(limits, 30, 0.01);
        CHECK(*s.low() <= 10);
        CHECK(*s.high() < 10.2);
    }
}

TEST_CASE("capacity: the search goes where the excess says, and halves where it is of no help") {
    const SearchLimits limits{1, 1024, false, 6};
    const auto runs_of = [&limits](auto excess) {
        int runs = 0;
        SeedSearch s([&](double load) {
            ++runs;
            Probe out;
            out.excess = excess(load);
            out.meets = *out.excess <= 0;
            return out;
        });
        s.narrow(limits, 30, 0.002);
        CHECK(*s.low() <= 36.6);
        CHECK(*s.high() > 36.6);
        CHECK(*s.high() <= *s.low() * 1.002);
        return runs;
    };
    const int exact = runs_of([](double load) { return std::log(load / 36.6); });
    CHECK(exact <= 5);  // two that bracket, one on either side of the limit
    CHECK(runs_of([](double load) { return std::log((1 - 0.5) / std::max(1 - load / 73.2, 1e-9)); }) <= 9);  // 1 / (1 - rho)
    CHECK(runs_of([](double load) { return load <= 36.6 ? -1e-9 : 1e9; }) <= 25);
    CHECK(runs_of([](double load) { return load <= 36.6 ? -1e9 : 1e-9; }) <= 25);
}

TEST_CASE("capacity: of one server without an SLO, what it can serve for ever lies in the interval") {
    struct Case {
        const char* prompt;
        const char* output;
        const char* step;
        double exact;
    };
    for (const Case& c :
         {Case{geometric_1000, "1", "{model: affine, per_token: 1ms}", 1}, Case{"1", "1", "{model: constant, step: 250ms}", 4},
          Case{"1", "{distribution: geometric, mean: 100}", "{model: constant, step: 5ms}", 2}}) {
        CAPTURE(c.step);
        const TemporaryFolder folder;
        folder.write("s.yaml", queue_scenario(c.prompt, c.output, c.step, 5'000));
        const Found found = search(folder, {});
        CAPTURE(found.value);
        CAPTURE(found.low);
        CAPTURE(found.high);
        CHECK(found.low <= c.exact);
        CHECK(found.high >= c.exact);
        CHECK(found.high - found.low < 0.12 * c.exact);
    }
}

TEST_CASE("capacity: of seats that share steps, without an SLO, seats over the time that each is held") {
    // Four seats, 20 tokens of 10 ms each: 4 / 0.2 s, whatever the seats' order. A backlog that came at once would keep the
    // four in step; arrivals do not.
    const TemporaryFolder folder;
    std::string text = queue_scenario("1", "20", "{model: constant, step: 10ms}", 5'000);
    text.replace(text.find("max_num_seqs: 1,"), 16, "max_num_seqs: 4,");
    folder.write("s.yaml", text);
    const Found found = search(folder, {});
    CAPTURE(found.value);
    CHECK(found.low <= 20);
    CHECK(found.high >= 20);
    CHECK(found.high - found.low < 2);
}

TEST_CASE("capacity: of one server with a limit on the mean time in system, the exact answer lies in the interval") {
    struct Case {
        const char* prompt;
        const char* output;
        const char* step;
        const char* slo;
        double exact;
    };
    // M/D/1: T = S (1 + rho / (2 (1 - rho))); geometric output of mean m in tokens of t: T = m t + rho t (2m - 1) / (2 (1 -
    // rho)); M/M/1 of mean service 2 s: T = 2 / (1 - rho) = 8 s at rho = 0.75.
    for (const Case& c :
         {Case{"1", "1", "{model: constant, step: 1s}", "e2e_mean <= 3s", 0.8},
          Case{"1", "1", "{model: constant, step: 1s}", "e2e_mean <= 1.5s", 0.5},
          Case{"1", "{distribution: geometric, mean: 100}", "{model: constant, step: 10ms}", "e2e_mean <= 4.98s", 0.8},
          Case{geometric_1000, "1", "{model: affine, per_token: 2ms}", "e2e_mean_ms <= 8000", 0.375}}) {
        CAPTURE(c.slo);
        CAPTURE(c.step);
        const TemporaryFolder folder;
        folder.write("s.yaml", queue_scenario(c.prompt, c.output, c.step, 5'000));
        const Found found = search(folder, {"--slo", c.slo});
        CAPTURE(found.value);
        CAPTURE(found.low);
        CAPTURE(found.high);
        CHECK(found.low <= c.exact);
        CHECK(found.high >= c.exact);
        CHECK(found.high - found.low < 0.15 * c.exact);  // an interval that says something
        CHECK(found.low < found.value);
        CHECK(found.value < found.high);
    }
}

TEST_CASE("capacity: of users around one server, by concurrency, what mean value analysis gives") {
    // Exponential service of mean 1 s (a geometric prompt), think time 9 s: R(n) = 1 + Q(n - 1), X = n / (R + 9), Q = X R.
    int exact = 0;
    double queue = 0;
    for (int n = 1; n < 100; ++n) {
        const double response = 1 + queue;
        queue = n / (response + 9) * response;
        if (response <= 5.2) exact = n;
    }
    CHECK(exact == 13);
    const TemporaryFolder folder;
    std::string text = queue_scenario(geometric_1000, "1", "{model: affine, per_token: 1ms}", 10'000);
    text.replace(text.find("  arrivals: {process: poisson, rate: 0.1/s}"), 43,
                 "  users: {count: 2, think_time: {distribution: exponential, mean: 9s}}");
    folder.write("s.yaml", text);
    const Found found = search(folder, {"--by", "concurrency", "--slo", "e2e_mean <= 5.2s"});
    CHECK(found.low <= exact);
    CHECK(found.high >= exact);
    CHECK(found.high - found.low <= 3);
    CHECK(run_in(folder, capacity_of({})).err.find("--by concurrency") != std::string::npos);
}

TEST_CASE("capacity: the same files on one thread and on several, a row per run that a plain run repeats") {
    const TemporaryFolder folder;
    folder.write("s.yaml", long_scenario());
    const std::vector<std::string> more{
        "--slo", "ttft_p90 <= 500ms, tpot_mean <= 20ms", "--seeds", "3", "--vary", "engine.max_num_seqs=4,16", "--quiet"};
    std::vector<std::string> args = capacity_of(more);
    args.insert(args.end(), {"-j", "1"});
    REQUIRE(run_in(folder, args).exit == 0);
    const std::string curve = slurp(folder.path() / "o/capacity.csv");
    const std::string points = slurp(folder.path() / "o/points.csv");
    args.back() = "5";
    REQUIRE(run_in(folder, args).exit == 0);
    CHECK(slurp(folder.path() / "o/capacity.csv") == curve);
    CHECK(slurp(folder.path() / "o/points.csv") == points);

    const CsvTable table = table_of(folder.path() / "o/capacity.csv");
    const CsvTable::Row* some = nullptr;
    int means = 0;
    for (const CsvTable::Row& row : table.rows()) {
        if (table.text(row, "point") == "1" && table.text(row, "seed") == "2") some = &row;
        if (!table.text(row, "seed").empty()) continue;
        ++means;
        CHECK(*table.number(row, "seeds") >= 2);
        CHECK(*table.number(row, "meets") >= 0);
        CHECK(*table.number(row, "meets") <= 1);
    }
    CHECK(means >= 6);
    REQUIRE(some != nullptr);
    const std::string rate = table.text(*some, "rate");
    const Finished run = run_in(folder, {"s.yaml", "--set", "engine.max_num_seqs=16", "--set", "workload.rate_scale=1", "--set",
                                         std::string("workload.arrivals.rate=").append(rate).append("/s"), "--seed", "2",
                                         "--format", "csv", "--out", "r"});
    REQUIRE(run.exit == 0);
    const CsvTable plain("run", run.out);
    for (const std::string& column : plain.columns()) {
        CAPTURE(column);
        CHECK(plain.text(plain.rows().front(), column) == table.text(*some, column));
    }
}

TEST_CASE("capacity: a row meets the SLOs exactly where its figures do, and the bracket lies between two rows") {
    const TemporaryFolder folder;
    folder.write("s.yaml", long_scenario());
    REQUIRE(run_in(folder, capacity_of({"--slo", "ttft_p90 <= 400ms", "--slo", "e2e_mean <= 900ms", "--seeds", "2", "--quiet",
                                        "--tolerance", "0.005"}))
                .exit == 0);
    const CsvTable table = table_of(folder.path() / "o/capacity.csv");
    for (const CsvTable::Row& row : table.rows()) {
        if (table.text(row, "seed").empty()) continue;
        const bool ttft = *table.number(row, "ttft_p90_ms") <= 400;
        const bool e2e = *table.number(row, "e2e_mean_ms") <= 900;
        const bool stable = !has(table.text(row, "broken"), "stable");
        CHECK((*table.number(row, "meets") == 1) == (ttft && e2e && stable));
        CHECK(has(table.text(row, "broken"), "ttft_p90 <= 400ms") == !ttft);
        CHECK(has(table.text(row, "broken"), "e2e_mean <= 900ms") == !e2e);
        if (table.text(row, "verdict") == "overloaded") CHECK_FALSE(stable);
        if (table.text(row, "verdict") == "stable") CHECK(stable);  // nobody waits for half of the run
    }
    const CsvTable points = table_of(folder.path() / "o/points.csv");
    const CsvTable::Row& point = points.rows().front();
    double low = 0;
    double high = 0;
    for (const char* seed : {"1", "2"}) {
        double meets = 0;
        double fails = 1e9;
        for (const CsvTable::Row& row : table.rows()) {
            if (table.text(row, "seed") != seed) continue;
            const double rate = *table.number(row, "rate");
            if (*table.number(row, "meets") == 0) fails = std::min(fails, rate);
        }
        for (const CsvTable::Row& row : table.rows()) {
            if (table.text(row, "seed") != seed || *table.number(row, "meets") == 0) continue;
            const double rate = *table.number(row, "rate");
            if (rate < fails) meets = std::max(meets, rate);
        }
        CHECK(fails <= meets * 1.0051);
        low += meets / 2;
        high += fails / 2;
    }
    CHECK(*points.number(point, "capacity") == doctest::Approx((low + high) / 2));
    CHECK(!points.text(point, "breaks_first").empty());
}

TEST_CASE("capacity: points of a grid with prices and fronts, a point that cannot run beside them") {
    const TemporaryFolder folder;
    folder.write("s.yaml", long_scenario());
    const Finished run =
        run_in(folder, capacity_of({"--slo", "ttft_p90 <= 1s", "--seeds", "2", "--gpu-hour-cost", "2", "--vary",
                                    "engine.max_num_seqs=2,4,8,16", "--vary", "engine.num_gpu_blocks_override=3,400"}));
    CHECK(run.exit == 1);
    CHECK(has(run.out, "cannot run"));
    const CsvTable points = table_of(folder.path() / "o/points.csv");
    REQUIRE(points.rows().size() == 8);
    int fronts = 0;
    for (const CsvTable::Row& row : points.rows()) {
        const bool failed = points.text(row, "engine.num_gpu_blocks_override") == "3";
        CHECK(points.text(row, "outcome") == (failed ? "failed" : "found"));
        CHECK(points.text(row, "error").empty() == !failed);
        fronts += *points.number(row, "pareto") == 1 ? 1 : 0;
        if (failed) {
            CHECK(*points.number(row, "pareto") == 0);
            continue;
        }
        CHECK(*points.number(row, "gpus") == 1);
        CHECK(*points.number(row, "requests_per_usd") == doctest::Approx(*points.number(row, "capacity") * 1800));
        CHECK(*points.number(row, "usd_per_million_output_tokens") ==
              doctest::Approx(2 / (*points.number(row, "output_throughput_tok_s") * 3600) * 1e6));
        CHECK(*points.number(row, "tok_s_per_user") == doctest::Approx(1000 / *points.number(row, "tpot_mean_ms")));
        // By the definition.
        for (const CsvTable::Row& other : points.rows()) {
            if (points.text(other, "outcome") != "found" || *points.number(row, "pareto") == 0) continue;
            CHECK_FALSE((*points.number(other, "output_tok_s_per_gpu") > *points.number(row, "output_tok_s_per_gpu") &&
                         *points.number(other, "tok_s_per_user") > *points.number(row, "tok_s_per_user")));
        }
    }
    CHECK(fronts >= 1);
    const CsvTable curve = table_of(folder.path() / "o/capacity.csv");
    CHECK(curve.has("pareto"));
    CHECK(curve.has("engine.max_num_seqs"));
}

TEST_CASE("capacity: traces, mixes and processes of several rates are scaled") {
    const TemporaryFolder folder;
    folder.write("s.yaml", long_scenario());
    REQUIRE(run_in(folder, {"workload", "s.yaml", "--out", "t.jsonl"}).exit == 0);
    std::string text = long_scenario();
    text = text.substr(0, text.find("workload:"));
    const Found plain = search(folder, {"--slo", "ttft_p90 <= 500ms", "--seeds", "1"});
    folder.write("s.yaml", text + "workload: {trace: {path: t.jsonl}}\n");
    // The trace is seed 1 at 5 req/s.
    const Found scaled = search(folder, {"--slo", "ttft_p90 <= 500ms", "--seeds", "1"});
    CHECK(scaled.value * 5 == doctest::Approx(plain.value).epsilon(0.02));
    const Finished told = run_in(folder, capacity_of({"--slo", "ttft_p90 <= 500ms"}));
    CHECK(has(told.out, "(the seed changes nothing here: the bracket)"));
    const CsvTable curve = table_of(folder.path() / "o/capacity.csv");
    REQUIRE(curve.has("rate_scale"));
    const CsvTable::Row& row = curve.rows().front();
    CHECK(curve.text(row, "rate") == curve.text(row, "offered_rate_req_s"));
    for (const char* arrivals : {"{process: mmpp, on_rate: 8/s, off_rate: 2/s, on_time: 10s, off_time: 10s}",
                                 "{process: gamma, rate: 5/s, burstiness: 0.5}", "{process: constant, rate: 5/s}",
                                 "{process: diurnal, rate: 5/s, amplitude: 0.5, period: 60s}"}) {
        CAPTURE(arrivals);
        folder.write("s.yaml", long_scenario());
        const Found other = search(folder, {"--slo", "ttft_p90 <= 500ms", "--seeds", "2", "--tolerance", "2%", "--set",
                                            std::string("workload.arrivals=").append(arrivals)});
        CHECK(other.value > 0);
    }
    folder.write("s.yaml",
                 text +
                     "workload:\n  requests: 600\n  classes:\n    - {name: a, arrivals: {process: poisson, rate: 3/s}, "
                     "prompt_tokens: 200, output_tokens: 40}\n    - {name: b, users: {count: 2}, prompt_tokens: 100, "
                     "output_tokens: 20}\n");
    const Found mix = search(folder, {"--slo", "ttft_p90 <= 500ms", "--seeds", "2", "--tolerance", "2%"});
    CHECK(mix.value > 0);
}

TEST_CASE("capacity: the scenario's own limits count without --slo, and stability where it has none") {
    const TemporaryFolder folder;
    folder.write("s.yaml", long_scenario() + "slo: {ttft: 500ms}\n");
    const Found strict = search(folder, {"--seeds", "2"});
    const Found lax = search(folder, {"--seeds", "2", "--attainment", "80%"});
    const Found same = search(folder, {"--seeds", "2", "--slo", "slo_attainment >= 0.99"});
    CHECK(strict.value == same.value);
    CHECK(lax.value > strict.value * 1.02);
    folder.write("s.yaml", long_scenario());
    const Found stable = search(folder, {"--seeds", "2"});
    CHECK(stable.value > lax.value);
}

TEST_CASE("capacity: requests that are lost are not served, unless an SLO says how many may be") {
    const TemporaryFolder folder;
    folder.write("s.yaml", long_scenario());
    const double free = search(folder, {"--seeds", "2"}).value;
    const std::vector<std::string> losses[]{{"--set", "workload.timeout=3s"}, {"--set", "engine.max_queued_requests=2"}};
    for (const std::vector<std::string>& loss : losses) {
        CAPTURE(loss.back());
        std::vector<std::string> args = loss;
        args.insert(args.end(), {"--seeds", "2"});
        CHECK(search(folder, args).value < 1.1 * free);
        const CsvTable table = table_of(folder.path() / "o/capacity.csv");
        int lossy = 0;
        for (const CsvTable::Row& row : table.rows()) {
            const auto figure = [&](const char* name) { return table.number(row, name).value_or(0); };
            if (table.text(row, "seed").empty()) continue;
            const double lost = (figure("rejected") + figure("timed_out")) / figure("requests");
            if (figure("meets") == 1) CHECK(lost <= 0.01);
            lossy += lost > 0.01;
        }
        CHECK(lossy > 0);
        const double strict = search(folder, args).value;
        args.insert(args.end(), {"--slo", "slo_attainment >= 0.5", "--set", "slo.ttft=10min"});
        CHECK(search(folder, args).value > strict);
    }
    // Where even the lightest load loses some, that is why there is no capacity.
    const Finished none = run_in(folder, capacity_of({"--set", "workload.timeout=1ms", "--seeds", "2"}));
    CHECK(none.exit == 1);
    CHECK(has(none.out, "none: "));
    CHECK(has(none.out, "100 % of the requests are lost even so"));
}

TEST_CASE("capacity: no limit, no capacity and a jump are told, and the search ends") {
    const TemporaryFolder folder;
    folder.write("s.yaml", long_scenario());
    SUBCASE("an SLO that cannot be met") {
        const Finished run = run_in(folder, capacity_of({"--slo", "ttft_p50 <= 1us", "--seeds", "2"}));
        CHECK(run.exit == 1);
        CHECK(has(run.out, "none: the SLOs fail even at"));
        CHECK(has(run.out, "ttft_p50 <= 1us: 2 of 2 seeds"));
        CHECK(run_in(folder, capacity_of({"--slo", "ttft_p50 <= 1us", "--seeds", "2", "--quiet"})).exit == 1);
        const CsvTable points = table_of(folder.path() / "o/points.csv");
        CHECK(points.text(points.rows().front(), "outcome") == "none");
    }
    SUBCASE("one that nothing breaks") {
        const Finished run =
            run_in(folder, capacity_of({"--slo", "rejected == 0", "--seeds", "2", "--set", "workload.requests=20"}));
        CHECK(run.exit == 0);
        CHECK(has(run.out, "at least"));
        CHECK(has(run.out, "the highest tried"));
        CHECK(has(run.out, "percentiles rest on 20 measured requests"));
    }
    SUBCASE("a limit that a longer run would not keep") {
        folder.write("s.yaml", queue_scenario("1", "1", "{model: constant, step: 1s}", 3'000));
        const Finished lax = run_in(folder, capacity_of({"--slo", "e2e_p50 <= 10min"}));
        CHECK(has(lax.out, "E2E still grows during the run ("));
        CHECK_FALSE(has(run_in(folder, capacity_of({})).out, "still grows"));
    }
    SUBCASE("brackets below the spread of the seeds, unless they are asked for") {
        const auto widest = [&folder](const std::vector<std::string>& more) {
            std::vector<std::string> args{"--slo", "ttft_p90 <= 400ms", "--seeds", "4"};
            args.insert(args.end(), more.begin(), more.end());
            const Found found = search(folder, args);
            const CsvTable table = table_of(folder.path() / "o/capacity.csv");
            double most = 0;
            for (const char* seed : {"1", "2", "3", "4"}) {
                double low = 0;
                double high = 1e9;
                for (const CsvTable::Row& row : table.rows()) {
                    if (table.text(row, "seed") == seed && *table.number(row, "meets") == 0)
                        high = std::min(high, *table.number(row, "rate"));
                }
                for (const CsvTable::Row& row : table.rows()) {
                    const double rate = *table.number(row, "rate");
                    if (table.text(row, "seed") == seed && rate < high) low = std::max(low, rate);
                }
                most = std::max(most, high / low - 1);
            }
            CHECK(most <= std::max(0.0051, 0.1 * (found.high - found.low) / found.value));
            return most;
        };
        CHECK(widest({"--tolerance", "0.1%"}) <= 0.00101);
        CHECK(widest({}) <= 0.0201);
    }
    SUBCASE("the limits given") {
        const Finished run =
            run_in(folder, capacity_of({"--slo", "ttft_p90 <= 10min", "--seeds", "2", "--min", "1/s", "--max", "2/s"}));
        CHECK(run.exit == 0);
        CHECK(has(run.out, "at least 2 req/s"));
    }
    SUBCASE("one that asks for load") {
        const Finished run =
            run_in(folder, capacity_of({"--slo", "output_throughput >= 800tok/s", "--seeds", "2", "--min", "1"}));
        CHECK(has(run.out, "not monotone in the load"));
    }
}

TEST_CASE("capacity: what is printed in each form") {
    const TemporaryFolder folder;
    folder.write("s.yaml", long_scenario());
    const std::vector<std::string> slo{"--slo", "ttft_p90 <= 500ms", "--seeds", "2", "--format"};
    const auto shown = [&](const char* format) {
        std::vector<std::string> args = capacity_of(slo);
        args.emplace_back(format);
        const Finished run = run_in(folder, args);
        CHECK(run.exit == 0);
        return run.out;
    };
    const std::string table = shown("table");
    for (const char* part :
         {"95 % interval", "per GPU", "time bound by", "breaks above", "ttft_p90 <= 500ms: 2 of 2 seeds, first ", "no price"})
        CHECK(has(table, part));
    CHECK(has(shown("markdown"), "| capacity |"));
    CHECK(shown("csv") == slurp(folder.path() / "o/points.csv"));
    const std::string json = shown("json");
    for (const char* part :
         {"\"outcome\": \"found\"", "\"capacity_ci95\"", "\"breaks_above\"", "\"at_limit\"", "\"bound_seats\""})
        CHECK(has(json, part));
}

TEST_CASE("capacity: bad input is refused before anything is written") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    folder.write("closed.yaml", small_scenario("slo: {ttft: 1s}\n"));
    struct Case {
        std::vector<std::string> args;
        const char* message;
    };
    for (const Case& c : {Case{{"--slo", "ttft_p98 <= 2s"}, "did you mean"},
                          {{"--slo", "ttft_p99 <= 2"}, "needs a unit"},
                          {{"--slo", "ttft_p99 <= 2s,"}, "an SLO is missing"},
                          {{"--slo", "ttft_p99 <= nans"}, "is not a number"},
                          {{"--slo", ""}, "an SLO is missing"},
                          {{"--slo", "ttft_p98 <= 2s"}, "--slo:1:1: error: there is no summary column"},
                          {{"--slo", "class(chat).ttft_p99 <= 2s"}, "--slo:1:7: error: there is no class 'chat'"},
                          {{"--tolerance", "-0.01"}, "--tolerance must be a number above 0"},
                          {{"--tolerance", "nan"}, "--tolerance must be a number above 0"},
                          {{"--tolerance", "0.9"}, "--tolerance must be between"},
                          {{"--min", "0"}, "--min must be a number above 0"},
                          {{"--min", "5", "--max", "4"}, "is not below --max"},
                          {{"--max", "inf"}, "--max must be a number above 0"},
                          {{"--gpu-hour-cost", "-1"}, "--gpu-hour-cost must be a number above 0"},
                          {{"--seeds", "0"}, "--seeds must be between"},
                          {{"-j", "0"}, "--jobs must be between"},
                          {{"--by", "rates"}, "did you mean 'rate'"},
                          {{"--by", "concurrency"}, "needs --slo"},
                          {{"--by", "concurrency", "--slo", "ttft_p99 <= 1s", "--max", "2.5"}, "whole numbers"},
                          {{"--by", "concurrency", "--slo", "ttft_p99 <= 1s", "--max", "1"}, "at least 2"},
                          {{"--attainment", "0.9"}, "the scenario has no slo"},
                          {{"--attainment", "0.9", "--slo", "ttft_p99 <= 1s"}, "slo_attainment >= 0.9"},
                          {{"--vary", "workload.arrivals.rate=1/s,2/s"}, "is searched for"},
                          {{"--vary", "engine.max_num_seqs="}, "an empty value"},
                          {{"--vary", "engine.max_num_seq=1"}, "did you mean 'max_num_seqs'"},
                          {{"--set", "workload.arrivals=all_at_once"}, "all requests arrive at once"},
                          {{"--format", "yaml"}, "unknown --format"}}) {
        CAPTURE(c.message);
        const Finished run = run_in(folder, capacity_of(c.args));
        CAPTURE(run.err);
        CHECK(run.exit == 2);
        CHECK(run.out.empty());
        CHECK(has(run.err, c.message));
        CHECK_FALSE(fs::exists(folder.path() / "o"));
    }
    CHECK(has(run_in(folder, {"capacity", "closed.yaml", "--attainment", "nan", "--out", "o"}).err, "is not a number"));
    CHECK(
        has(run_in(folder, {"capacity", "closed.yaml", "--attainment", "1.5", "--out", "o"}).err, "--attainment:1:19: error"));
    // Of a trace the first run tells the classes.
    folder.write("t.jsonl", R"({"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [1], "class": "chat"})"
                            "\n");
    folder.write("t.yaml",
                 "engine: {num_gpu_blocks_override: 1000, max_model_len: 1000}\nstep_time: {model: constant, step: 10ms}\n"
                 "workload: {trace: {path: t.jsonl}}\n");
    const Finished traced = run_in(folder, {"capacity", "t.yaml", "--slo", "class(chatt).ttft_p99 <= 2s", "--out", "o"});
    CHECK(traced.exit == 2);
    CHECK(has(traced.err, "did you mean 'chat'"));
    CHECK_FALSE(fs::exists(folder.path() / "o"));
    CHECK(has(run_in(folder, {"capacity", "none.yaml", "--out", "o"}).err, "none.yaml"));
    folder.write("file", "x");
    const Finished blocked = run_in(folder, {"capacity", "s.yaml", "--out", "file"});
    CHECK(blocked.exit == 2);
    CHECK(has(blocked.err, "cannot write results to file"));
    CHECK_FALSE(fs::exists(folder.path() / "o"));
}

TEST_CASE("capacity: a sweep file brings its grid and its seeds") {
    const TemporaryFolder folder;
    folder.write("s.yaml", long_scenario());
    folder.write("grid.yaml", "base: s.yaml\nvary: {engine.max_num_seqs: [4, 16]}\nseeds: [3, 9]\n");
    REQUIRE(
        run_in(folder, {"capacity", "grid.yaml", "--slo", "ttft_p90 <= 500ms", "--tolerance", "5%", "--out", "o", "--quiet"})
            .exit == 0);
    const CsvTable table = table_of(folder.path() / "o/capacity.csv");
    for (const CsvTable::Row& row : table.rows()) {
        const std::string seed = table.text(row, "seed");
        CHECK((seed.empty() || seed == "3" || seed == "9"));
    }
    CHECK(table_of(folder.path() / "o/points.csv").rows().size() == 2);
}

TEST_CASE("capacity: an interrupted search leaves nothing") {
    const TemporaryFolder folder;
    std::string text = long_scenario();
    text.replace(text.find("requests: 800"), 13, "requests: 200000");
    folder.write("s.yaml", text);
    Launch launch;
    launch.folder = folder.path();
    launch.signal = 2;
    int polls = 0;
    launch.interrupt_when = [&] { return fs::exists(folder.path() / "o") && ++polls > 50; };
    const Finished run = run_program(capacity_of({"--slo", "ttft_p99 <= 1s"}), launch);
    CHECK(run.exit == 130);
    CHECK(run.out.empty());
    CHECK_FALSE(fs::exists(folder.path() / "o"));
}

TEST_CASE("capacity: the measured saturation of Llama-3.1-8B on an H100, with prefix caching and chunking off and on") {
    const char* const chosen = std::getenv("KVSIM_SHARED");
    const fs::path csv =
        (chosen != nullptr ? fs::path(chosen) : fs::path(KVSIM_SOURCE_DIR) / ".." / "shared") / "data/accuracy/train.csv";
    if (!fs::exists(csv)) {
        const char* const ci = std::getenv("CI");
        if (ci != nullptr && std::string(ci) == "true") FAIL("no " << csv.string());
        MESSAGE("skipped: no " << csv.string());
        return;
    }
    // kubernetes-sigs/inference-perf, demos/kubecon-na-2025: the rows say what was served; its sweeps past saturation ended at
    // 101 req/s, and at 171 with prefix caching and chunked prefill (the 100 prompts are cycled, so all but a partial block
    // hits).
    const CsvTable rows = table_of(csv);
    const CsvTable::Row* row = nullptr;
    for (const CsvTable::Row& r : rows.rows()) {
        if (rows.text(r, "dataset") == "4-kubecon") row = &r;
    }
    REQUIRE(row != nullptr);
    const auto prompt = static_cast<int>(std::lround(*rows.number(*row, "prompt_len_mean")));
    const int cached = prompt / 16 * 16;
    std::string text = "model: ";
    text.append(rows.text(*row, "model"))
        .append("\nhardware: {gpu: H100-SXM-80GB}\nengine: {preset: vllm-v1-2026-01, version: vllm-");
    text.append(rows.text(*row, "engine_version")).append(", async_scheduling: false, max_model_len: ");
    text.append(rows.text(*row, "max_model_len")).append(", max_num_seqs: ").append(rows.text(*row, "max_num_seqs"));
    text.append(", gpu_memory_utilization: 0.9, enable_prefix_caching: false, enable_chunked_prefill: false}\n");
    text.append("workload:\n  requests: 6000\n  arrivals: {process: poisson, rate: 50/s}\n  prefix: {groups: ");
    text.append(rows.text(*row, "num_distinct_prompts")).append(", tokens: ").append(std::to_string(cached));
    text.append("}\n  prompt_tokens: ").append(std::to_string(prompt - cached)).append("\n  output_tokens: 64\n");
    const TemporaryFolder folder;
    folder.write("s.yaml", text);
    const Found plain = search(folder, {});
    const Found cached_too =
        search(folder, {"--set", "engine.enable_prefix_caching=true", "--set", "engine.enable_chunked_prefill=true"});
    MESSAGE("capacity " << plain.value << " req/s of 101, " << cached_too.value << " of 171");
    CHECK(plain.value == doctest::Approx(101).epsilon(0.1));
    CHECK(cached_too.value == doctest::Approx(171).epsilon(0.1));
}

}  // namespace kvsim::test
