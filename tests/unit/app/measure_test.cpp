// What is measured, from the outside: warm-up, cool-down, windows, replications.

#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli.hpp"

using namespace kvsim::test;

namespace {

using Row = std::map<std::string, std::string>;

/// Of files without quoted fields.
std::vector<Row> read_csv(const std::filesystem::path& path) {
    std::istringstream file(slurp(path));
    const auto cells = [](const std::string& line) {
        std::vector<std::string> out;
        std::string cell;
        std::istringstream in(line);
        while (std::getline(in, cell, ',')) out.push_back(cell);
        return out;
    };
    std::string line;
    std::getline(file, line);
    const std::vector<std::string> header = cells(line);
    std::vector<Row> rows;
    while (std::getline(file, line)) {
        std::vector<std::string> values = cells(line);
        values.resize(header.size());
        Row& row = rows.emplace_back();
        for (std::size_t i = 0; i < header.size(); ++i) row[header[i]] = values[i];
    }
    return rows;
}

std::string measured_flags(const TemporaryFolder& folder, const std::string& out) {
    std::string flags;
    for (const Row& row : read_csv(folder.path() / out / "requests.csv")) flags += row.at("measured");
    return flags;
}

bool has(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

const char* const queue =
    "name: queue\n"
    "engine: {max_num_seqs: 1, num_gpu_blocks_override: 100000, max_model_len: 4096, max_num_batched_tokens: 8192, "
    "async_scheduling: false}\n"
    "step_time: {model: affine, per_token: 1ms}\n"
    "workload: {requests: 3000, arrivals: {process: poisson, rate: 5/s}, prompt_tokens: {distribution: exponential, mean: "
    "100, max: 2000}, output_tokens: 1}\n"
    "output: {timeline: false}\n";

}  // namespace

TEST_CASE("measure: shares and counts of both ends") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());  // 60 requests
    const auto flags = [&](const std::string& warmup, const std::string& cooldown) {
        const Finished done = run_in(
            folder, {"s.yaml", "--out", "o", "--set", "measure.warmup=" + warmup, "--set", "measure.cooldown=" + cooldown});
        CAPTURE(done.err);
        REQUIRE(done.exit == 0);
        return measured_flags(folder, "o");
    };
    const auto expect = [](std::size_t cut, std::size_t kept, std::size_t rest) {
        return std::string(cut, '0') + std::string(kept, '1') + std::string(rest, '0');
    };
    CHECK(flags("10%", "none") == expect(6, 54, 0));
    CHECK(flags("11%", "25%") == expect(6, 39, 15));
    CHECK(flags("5 requests", "7 requests") == expect(5, 48, 7));
    CHECK(flags("none", "100 requests") == expect(0, 0, 60));
    const Row all = read_csv(folder.path() / "o/summary.csv").at(0);
    CHECK(all.at("unmeasured_requests") == "60");
    CHECK(all.at("requests") == "0");
}

TEST_CASE("measure: a cool-down by time ends at the last arrival") {
    const TemporaryFolder folder;
    folder.write("s.yaml", queue);
    REQUIRE(run_in(folder, {"s.yaml", "--out", "o", "--quiet", "--set", "measure.cooldown=100s"}).exit == 0);
    const std::vector<Row> rows = read_csv(folder.path() / "o/requests.csv");
    const double last = std::stod(rows.back().at("arrival_s"));
    for (const Row& row : rows) CHECK((row.at("measured") == "0") == (last - std::stod(row.at("arrival_s")) < 100));
}

TEST_CASE("measure: auto cuts an opening burst, and the pilot changes nothing else") {
    const TemporaryFolder folder;
    // 100 requests at once meet an idle server; the rest come one every 200 ms and need 100 ms each.
    std::string trace;
    for (int i = 0; i < 100; ++i)
        trace += R"({"timestamp": 0, "input_length": 100, "output_length": 1, "hash_ids": [1]})"
                 "\n";
    for (int i = 0; i < 2000; ++i)
        trace += R"({"timestamp": )" + std::to_string(200 * i) +
                 R"(, "input_length": 100, "output_length": 1, "hash_ids": [1]})"
                 "\n";
    folder.write("t.jsonl", trace);
    std::string text = queue;
    text = text.substr(0, text.find("workload:")) + "workload: {trace: {path: t.jsonl, format: mooncake}}\n";
    folder.write("s.yaml", text + "measure: {warmup: auto}\n");
    const Finished done = run_in(folder, {"s.yaml", "--out", "o", "--set", "engine.enable_prefix_caching=false"});
    CAPTURE(done.err);
    REQUIRE(done.exit == 0);
    const std::string flags = measured_flags(folder, "o");
    const std::size_t cut = flags.find('1');
    // The backlog of 10 s shrinks by 100 ms with each request behind the burst: 100 more see it.
    CHECK(cut >= 190);
    CHECK(cut <= 210);
    CHECK(flags.find('0', cut) == std::string::npos);
    const Row summary = read_csv(folder.path() / "o/summary.csv").at(0);
    CHECK(summary.at("steady_state") == "steady");
    CHECK(std::stod(summary.at("e2e_p99_ms")) < 150);
    // The same by hand gives the same figures.
    REQUIRE(run_in(folder, {"s.yaml", "--out", "p", "--set", "engine.enable_prefix_caching=false", "--set",
                            "measure.warmup=" + std::to_string(cut) + " requests"})
                .exit == 0);
    CHECK(slurp(folder.path() / "o/requests.csv") == slurp(folder.path() / "p/requests.csv"));
}

TEST_CASE("measure: auto says when a run never becomes steady") {
    const TemporaryFolder folder;
    folder.write("s.yaml", queue);
    const Finished done = run_in(folder, {"s.yaml", "--out", "o", "--set", "workload.arrivals.rate=20/s", "--set",
                                          "workload.requests=1000", "--set", "measure.warmup=auto"});
    CHECK(has(done.out, "no steady state"));
    CHECK(has(done.out, "finds no end of the warm-up"));
    CHECK(measured_flags(folder, "o") == std::string(1000, '1'));
    const Finished calm = run_in(folder, {"s.yaml", "--out", "o", "--set", "measure.warmup=auto"});
    CHECK_FALSE(has(calm.out, "no steady state"));
    CHECK_FALSE(has(calm.out, "percentiles rest"));
    CHECK_FALSE(has(calm.out, "still correlated"));
}

TEST_CASE("measure: windows add up to the run, in both engine forms") {
    const TemporaryFolder folder;
    folder.write("s.yaml", queue);
    for (const char* const seats : {"1", "8"}) {
        REQUIRE(run_in(folder, {"s.yaml", "--out", "o", "--quiet", "--set", "measure.window=30s", "--set",
                                std::string("engine.max_num_seqs=") + seats, "--set", "slo={ttft: 200ms}"})
                    .exit == 0);
        const std::vector<Row> rows = read_csv(folder.path() / "o/windows.csv");
        const Row run = read_csv(folder.path() / "o/summary.csv").at(0);
        double arrivals = 0, completions = 0, steps = 0, usage = 0, time = 0, rows_sum = 0, met = 0;
        for (const Row& row : rows) {
            const auto value = [&](const char* name) { return row.at(name).empty() ? 0 : std::stod(row.at(name)); };
            arrivals += value("arrivals");
            completions += value("completions");
            steps += value("steps");
            usage += value("kv_usage_mean") * value("window_s");
            time += value("window_s");
            rows_sum += value("batch_size_mean") * value("steps");
            met += value("slo_attainment") * value("arrivals");
        }
        CHECK(rows.size() >= 20);
        CHECK(arrivals == 3000);
        CHECK(completions == 3000);
        CHECK(steps == std::stod(run.at("steps")));
        CHECK(rows_sum / steps == doctest::Approx(std::stod(run.at("batch_size_mean"))));
        CHECK(met / 3000 == doctest::Approx(std::stod(run.at("slo_attainment"))));
        const double first = std::stod(read_csv(folder.path() / "o/requests.csv").at(0).at("arrival_s"));
        CHECK(usage / (time - first) == doctest::Approx(std::stod(run.at("kv_usage_mean"))));
    }
    // The windows change nothing.
    REQUIRE(run_in(folder, {"s.yaml", "--out", "p", "--quiet", "--set", "engine.max_num_seqs=8", "--set", "slo={ttft: 200ms}"})
                .exit == 0);
    CHECK(slurp(folder.path() / "o/requests.csv") == slurp(folder.path() / "p/requests.csv"));
}

TEST_CASE("measure: replications are the runs of the seeds") {
    const TemporaryFolder folder;
    folder.write("s.yaml", queue);
    const std::vector<std::string> common{"--quiet", "--set", "workload.requests=300"};
    const auto run = [&](std::vector<std::string> args) {
        args.insert(args.end(), common.begin(), common.end());
        return run_in(folder, args);
    };
    REQUIRE(run({"s.yaml", "--out", "r", "--replications", "5", "--seed", "3"}).exit == 0);
    REQUIRE(run({"s.yaml", "--out", "one", "--seed", "5"}).exit == 0);
    const std::vector<Row> seeds = read_csv(folder.path() / "r/replications.csv");
    REQUIRE(seeds.size() == 5);
    Row single = read_csv(folder.path() / "one/summary.csv").at(0);
    single["scenario_hash"] = seeds[2].at("scenario_hash");  // the seed is part of it
    CHECK(seeds[2] == single);
    double mean = 0;
    for (const Row& row : seeds) mean += std::stod(row.at("ttft_mean_ms")) / 5;
    const std::vector<Row> summary = read_csv(folder.path() / "r/summary.csv");
    REQUIRE(summary.size() == 1);
    CHECK(std::stod(summary[0].at("ttft_mean_ms")) == doctest::Approx(mean));
    CHECK(std::stod(summary[0].at("ttft_mean_ms_ci95")) > 0);
    CHECK(summary[0].at("completed") == "300");
    CHECK(summary[0].at("completed_ci95") == "0");
    const auto json = nlohmann::json::parse(slurp(folder.path() / "r/summary.json"));
    CHECK(json["kvsim"]["replications"]["count"] == 5);
    // Gates look at the means.
    const auto gate = [&](double limit) {
        return run({"s.yaml", "--out", "q", "--replications", "5", "--seed", "3", "--assert",
                    "ttft_mean <= " + std::to_string(limit) + "ms"})
            .exit;
    };
    CHECK(gate(mean * 1.001) == 0);
    CHECK(gate(mean * 0.999) == 1);
    CHECK(run({"s.yaml", "--out", "q", "--replications", "0"}).exit == 2);
    CHECK(run({"s.yaml", "--out", "q", "--replications", "2", "--steps", "steps.jsonl"}).exit == 2);
}

TEST_CASE("measure: classes, their limits and their windows, counted again from requests.csv") {
    const TemporaryFolder folder;
    std::string text = queue;
    text =
        text.substr(0, text.find("workload:")) +
        "workload:\n"
        "  duration: 100s\n"
        "  classes:\n"
        "    - {name: fast, arrivals: {process: poisson, rate: 4/s}, prompt_tokens: {distribution: exponential, mean: 50, max: "
        "900}, output_tokens: 4, slo: {ttft: 120ms, itl_p99: 30ms}, timeout: 400ms}\n"
        "    - {name: slow, arrivals: {process: poisson, rate: 2/s}, prompt_tokens: 150, output_tokens: 6}\n"
        "slo: {e2e: 500ms, queue: 200ms, tpot: 15ms}\n"
        "measure: {window: 10s}\n";
    folder.write("s.yaml", text);
    const Finished done = run_in(folder, {"s.yaml", "--out", "o", "--set", "workload.classes.slow.arrivals.rate=3/s", "--set",
                                          "workload.classes.0.output_tokens=5", "--set", "engine.max_num_seqs=3", "--set",
                                          "engine.max_queued_requests=4"});
    CAPTURE(done.err);
    REQUIRE(done.exit == 0);
    struct Share {
        double met = 0, judged = 0;
        void add(bool good) {
            met += good ? 1 : 0;
            judged += 1;
        }
        [[nodiscard]] double value() const { return met / judged; }
    };
    const std::vector<std::string> metrics{"ttft", "tpot", "e2e", "queue", "all"};
    std::map<std::string, std::map<int, std::map<std::string, Share>>> shares;  // class, window (-1: all), metric
    std::map<std::string, std::map<int, int>> arrivals;
    std::map<std::string, double> wasted;
    int rejected = 0;
    int timed_out = 0;
    for (const Row& r : read_csv(folder.path() / "o/requests.csv")) {
        const std::string& name = r.at("class");
        const bool fast = name == "fast";
        if (fast && r.at("finish_reason") == "length") CHECK(r.at("output_tokens") == "5");
        const int window = static_cast<int>(std::stod(r.at("arrival_s")) / 10);
        const bool finished = r.at("finish_reason") == "length";
        rejected += r.at("finish_reason") == "rejected" ? 1 : 0;
        timed_out += r.at("finish_reason") == "timed_out" ? 1 : 0;
        const auto within = [&](const char* column, double limit) { return finished && std::stod(r.at(column)) <= limit; };
        for (const std::string& of : {name, std::string()}) {
            ++arrivals[of][window];
            for (const int w : {window, -1}) {
                auto& s = shares[of][w];
                if (fast) {
                    s["ttft"].add(within("ttft_ms", 120));
                } else {
                    s["tpot"].add(within("tpot_ms", 15));
                    s["e2e"].add(within("e2e_ms", 500));
                    s["queue"].add(within("queue_ms", 200));
                    s["all"].add(within("tpot_ms", 15) && within("e2e_ms", 500) && within("queue_ms", 200));
                    CHECK((r.at("slo_met") == "1") ==
                          (within("tpot_ms", 15) && within("e2e_ms", 500) && within("queue_ms", 200)));
                }
            }
        }
    }
    CHECK(rejected > 5);
    CHECK(timed_out > 10);
    int compared = 0;
    for (const Row& row : read_csv(folder.path() / "o/windows.csv")) {
        const std::string& name = row.at("class");
        const int window = std::stoi(row.at("window"));
        CHECK(std::stoi(row.at("arrivals")) == arrivals[name][window]);
        for (const std::string& metric : metrics) {
            if (metric == "all" && name != "slow") continue;  // the gaps of one request stand in no column
            const std::string& cell = row.at(metric == "all" ? "slo_attainment" : metric + "_attainment");
            const Share& share = shares[name][window][metric];
            CHECK(cell.empty() == (share.judged == 0));
            if (cell.empty()) continue;
            CHECK(std::stod(cell) == doctest::Approx(share.value()));
            ++compared;
        }
        CHECK(row.at("itl_p99_attainment").empty() == (name == "slow" || arrivals["fast"][window] == 0));
    }
    CHECK(compared > 60);
    const auto json = nlohmann::json::parse(slurp(folder.path() / "o/summary.json"))["kvsim"];
    REQUIRE(json["classes"].size() == 2);
    for (const auto& c : json["classes"]) {
        const std::string name = c["class"];
        for (const auto& [metric, share] : shares[name][-1]) CHECK(c["attainment"][metric] == doctest::Approx(share.value()));
        CHECK(c["offered_rate_req_s"].get<double>() == doctest::Approx(name == "fast" ? 4 : 3).epsilon(0.2));
        CHECK(c["served_rate_req_s"] <= c["offered_rate_req_s"]);
    }
    // Only the impatient class wastes work.
    CHECK(json["classes"][0]["wasted_tokens"] == json["wasted_tokens"]);
    CHECK(json["wasted_tokens"] > 0);
    CHECK(json["classes"][1]["wasted_tokens"] == 0);
    CHECK(json["rejected"] == rejected);
    CHECK(json["queue_full"] == rejected);
    CHECK(json["max_queued_requests"] == 4);
    CHECK(has(done.out, "rejected (queue full)"));
    CHECK(has(run_in(folder, {"s.yaml", "--out", "p", "--set", "workload.classes.slwo.arrivals.rate=3/s"}).err,
              "did you mean 'slow'?"));
}

TEST_CASE("measure: histograms keep no records of users and retries, and say where they must") {
    const TemporaryFolder folder;
    folder.write("s.yaml",
                 "engine: {max_queued_requests: 4, num_gpu_blocks_override: 100000, max_model_len: 4096, max_num_seqs: 1}\n"
                 "step_time: {model: affine, per_token: 1ms}\n"
                 "workload: {requests: 3000, users: {count: 12, think_time: 400ms}, retry: {max_retries: 2, backoff: 50ms}, "
                 "prompt_tokens: {distribution: exponential, mean: 100, max: 2000}, output_tokens: 3}\n");
    const std::vector<std::string> lean{"--set", "metrics.percentiles=histogram", "--set",
                                        "output={requests: false, timeline: false}"};
    const auto run = [&](const std::string& out, std::vector<std::string> more) {
        more.insert(more.begin(), {"s.yaml", "--out", out});
        const Finished done = run_in(folder, more);
        CAPTURE(done.err);
        REQUIRE(done.exit == 0);
        return done.out;
    };
    run("exact", {});
    CHECK_FALSE(has(run("lean", lean), "record of every request is kept"));
    const Row exact = read_csv(folder.path() / "exact/summary.csv").at(0);
    const Row totals = read_csv(folder.path() / "lean/summary.csv").at(0);
    for (const char* const same : {"requests", "completed", "rejected", "queue_full", "retries", "steps", "duration_s"})
        CHECK(totals.at(same) == exact.at(same));
    CHECK(std::stoi(exact.at("retries")) > 100);
    CHECK(std::stoi(exact.at("queue_full")) >= std::stoi(exact.at("retries")));
    for (const char* const close : {"ttft_p99_ms", "e2e_p50_ms", "e2e_mean_ms"})
        CHECK(std::stod(totals.at(close)) == doctest::Approx(std::stod(exact.at(close))).epsilon(1e-3));
    std::vector<std::string> impatient = lean;
    impatient.insert(impatient.end(), {"--set", "workload.timeout=1s"});
    CHECK(has(run("kept", impatient), "record of every request is kept"));

    // A limit is looked up in the records where requests wait for it with times of their own.
    folder.write("limit.yaml",
                 "engine: {num_gpu_blocks_override: 100000, max_model_len: 4096, max_num_seqs: 8}\n"
                 "step_time: {model: affine, per_token: 1ms}\n"
                 "workload: {requests: 3000, max_concurrency: 4, arrivals: {process: all_at_once}, prompt_tokens: 50, "
                 "output_tokens: {distribution: exponential, mean: 20, max: 200}}\n");
    const auto limited = [&](const std::string& out, const std::vector<std::string>& more) {
        std::vector<std::string> line{"limit.yaml", "--out", out};
        line.insert(line.end(), more.begin(), more.end());
        const Finished done = run_in(folder, line);
        CAPTURE(done.err);
        REQUIRE(done.exit == 0);
        return done.out;
    };
    limited("paced", {});
    CHECK_FALSE(has(limited("paced-lean", lean), "record of every request is kept"));
    const Row paced = read_csv(folder.path() / "paced/summary.csv").at(0);
    const Row paced_lean = read_csv(folder.path() / "paced-lean/summary.csv").at(0);
    for (const char* const same :
         {"completed", "steps", "duration_s", "concurrency", "client_queue_mean_ms", "load", "verdict"})
        CHECK(paced_lean.at(same) == paced.at(same));
    CHECK(std::stod(paced_lean.at("e2e_p99_ms")) == doctest::Approx(std::stod(paced.at("e2e_p99_ms"))).epsilon(1e-3));
    std::vector<std::string> timed = lean;
    timed.insert(timed.end(), {"--set", "workload.arrivals={process: poisson, rate: 10/s}"});
    CHECK(has(limited("timed", timed), "record of every request is kept"));
}
