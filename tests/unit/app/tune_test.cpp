// kvsim tune: the optimum of a grid at a part of its price.

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "kvsim/app/csv_table.hpp"
#include "kvsim/app/halving.hpp"
#include "kvsim/base/text.hpp"
#include "unit/app/cli.hpp"

namespace kvsim::test {
namespace {

namespace fs = std::filesystem;
using app::CsvTable;
using app::Rung;
using app::Scores;
using Choices = std::vector<std::size_t>;

bool has(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

CsvTable table_of(const fs::path& path) {
    return {path.string(), slurp(path)};
}

/// Seats cost TPOT and a small budget costs TTFT, so the best lies inside the grid.
std::string scenario() {
    std::string out = small_scenario();
    out.replace(out.find("requests: 60"), 12, "requests: 800");
    out.replace(out.find("per_sequence: 10us"), 18, "per_sequence: 400us");
    return out;
}
const std::vector<std::string> slo{"--slo", "ttft_p90 <= 300ms, tpot_p90 <= 11ms"};

std::vector<std::string> command(std::vector<std::string> args, const std::vector<std::string>& more) {
    args.insert(args.end(), slo.begin(), slo.end());
    args.insert(args.end(), more.begin(), more.end());
    return args;
}

}  // namespace

TEST_CASE("tune: successive halving gives the better half twice the work and never revives a hopeless choice") {
    std::vector<std::size_t> work_done(13, 0);
    const auto rungs = app::successive_halving(13, 8, 3, [&](const Choices& left, std::size_t effort) {
        Scores out;
        for (const std::size_t i : left) {
            work_done[i] = effort;
            out.push_back(i == 4 ? 0 : static_cast<double>(i % 7));
        }
        return out;
    });
    REQUIRE(rungs.size() == 4);
    CHECK(rungs[0].choices.size() == 13);
    CHECK(rungs[0].effort == 1);
    CHECK(rungs[0].choices.front() == 6);
    CHECK(rungs[1].choices.size() == 7);
    CHECK(rungs[1].effort == 2);
    CHECK(rungs[2].choices.size() == 4);
    CHECK(rungs[3].choices == Choices{6, 5, 12});
    CHECK(rungs[3].effort == 8);
    CHECK(work_done[4] == 1);
    CHECK(work_done[6] == 8);

    const auto none = app::successive_halving(5, 8, 3, [](const Choices& left, std::size_t) { return Scores(left.size(), 0); });
    CHECK(none.size() == 1);
    const auto few = app::successive_halving(2, 8, 3, [](const Choices& left, std::size_t) { return Scores(left.size(), 1); });
    REQUIRE(few.size() == 1);
    CHECK(few.front().effort == 8);
    CHECK(app::successive_halving(0, 8, 3, [](const Choices&, std::size_t) { return Scores(); }).empty());
}

TEST_CASE("tune: finds the optimum of the grid that a full search and a sweep find") {
    const TemporaryFolder folder;
    folder.write("s.yaml", scenario());
    const char* const seats = "2,4,6,8,16";
    const char* const budgets = "64,256,1024";
    const Finished run = run_in(folder, command({"tune", "s.yaml", "--out", "t", "--max-num-seqs", seats,
                                                 "--max-num-batched-tokens", budgets, "--seeds", "4"},
                                                {}));
    CAPTURE(run.err);
    REQUIRE(run.exit == 0);
    const CsvTable tuned = table_of(folder.path() / "t/tune.csv");
    REQUIRE(tuned.rows().size() == 15);
    const auto best =
        std::find_if(tuned.rows().begin(), tuned.rows().end(), [&](const auto& row) { return tuned.text(row, "best") == "1"; });
    REQUIRE(best != tuned.rows().end());
    CHECK(std::count_if(tuned.rows().begin(), tuned.rows().end(),
                        [&](const auto& row) { return tuned.text(row, "best") == "1"; }) == 1);

    REQUIRE(run_in(folder, command({"capacity", "s.yaml", "--out", "c", "--seeds", "4", "--quiet", "--vary",
                                    std::string("engine.max_num_seqs=").append(seats), "--vary",
                                    std::string("engine.max_num_batched_tokens=").append(budgets)},
                                   {}))
                .exit <= 1);
    const CsvTable full = table_of(folder.path() / "c/points.csv");
    double highest = 0;
    double lowest = 1e9;
    double chosen = 0;
    for (const CsvTable::Row& row : full.rows()) {
        const double capacity = *full.number(row, "capacity");
        highest = std::max(highest, capacity);
        lowest = std::min(lowest, capacity);
        if (full.text(row, "engine.max_num_seqs") == tuned.text(*best, "max_num_seqs") &&
            full.text(row, "engine.max_num_batched_tokens") == tuned.text(*best, "max_num_batched_tokens"))
            chosen = capacity;
    }
    CAPTURE(highest);
    CHECK(chosen >= 0.985 * highest);
    CHECK(chosen == doctest::Approx(*tuned.number(*best, "capacity")).epsilon(0.01));
    CHECK(lowest < 0.8 * highest);  // there was something to find
    const std::int64_t seats_found = *tuned.integer(*best, "max_num_seqs", 1, 100);
    CHECK(seats_found > 2);
    CHECK(seats_found < 16);
    double runs = 0;
    double all_runs = 0;
    for (const CsvTable::Row& row : tuned.rows()) runs += *tuned.number(row, "runs");
    for (const CsvTable::Row& row : full.rows()) all_runs += *full.number(row, "runs");
    CHECK(runs < 0.5 * all_runs);

    // A plain sweep a little above the best capacity: no point of the grid meets the limits there.
    const std::string above = decimals(1.04 * highest, 4);
    REQUIRE(run_in(folder, {"sweep", "s.yaml", "--out", "w", "--quiet", "--repeat", "4", "--aggregate", "--set",
                            std::string("workload.arrivals.rate=").append(above).append("/s"), "--vary",
                            std::string("engine.max_num_seqs=").append(seats), "--vary",
                            std::string("engine.max_num_batched_tokens=").append(budgets)})
                .exit == 0);
    const CsvTable sweep = table_of(folder.path() / "w/aggregate.csv");
    for (const CsvTable::Row& row : sweep.rows())
        CHECK((*sweep.number(row, "ttft_p90_ms") > 300 || *sweep.number(row, "tpot_p90_ms") > 11));

    // What is printed: the line that scripts read, and a command that is understood.
    const std::string line = std::string("best_max_num_seqs: ")
                                 .append(tuned.text(*best, "max_num_seqs"))
                                 .append(", best_num_batched_tokens: ")
                                 .append(tuned.text(*best, "max_num_batched_tokens"))
                                 .append(", best_throughput: ");
    CHECK(has(run.out, line));
    CHECK(run.out.rfind(line) > run.out.rfind("vllm serve"));
    const std::size_t begin = run.out.find("vllm serve ");
    REQUIRE(begin != std::string::npos);
    const std::string serve = run.out.substr(begin, run.out.find('\n', begin) - begin);
    const Finished back = run_in(folder, {"from-vllm", serve});
    CAPTURE(back.err);
    REQUIRE(back.exit == 0);
    CHECK(has(back.out, std::string("max_num_seqs: ").append(tuned.text(*best, "max_num_seqs"))));
    CHECK(has(back.out, std::string("max_num_batched_tokens: ").append(tuned.text(*best, "max_num_batched_tokens"))));
    CHECK(has(back.out, "num_gpu_blocks_override: 400"));
    CHECK_FALSE(has(back.out, "ignored"));
}

TEST_CASE("tune: the same on one thread and on several, candidates that do not fit stand in the table") {
    const TemporaryFolder folder;
    folder.write("s.yaml", scenario());
    const std::vector<std::string> args =
        command({"tune", "s.yaml", "--out", "t", "--max-num-seqs", "4,8", "--vary", "engine.num_gpu_blocks_override=3,400",
                 "--preset", "vllm-v1,sglang", "--scheduling-policy", "fcfs,priority", "--seeds", "2"},
                {"-j"});
    std::vector<std::string> one = args;
    one.emplace_back("1");
    const Finished run = run_in(folder, one);
    CAPTURE(run.err);
    REQUIRE(run.exit == 0);
    const std::string rows = slurp(folder.path() / "t/tune.csv");
    std::vector<std::string> several = args;
    several.emplace_back("4");
    CHECK(run_in(folder, several).out == run.out);
    CHECK(slurp(folder.path() / "t/tune.csv") == rows);
    const CsvTable table = table_of(folder.path() / "t/tune.csv");
    CHECK(table.rows().size() == 16);
    int refused = 0;
    for (const CsvTable::Row& row : table.rows()) {
        const bool fails = !table.text(row, "error").empty();
        refused += fails ? 1 : 0;
        if (has(table.text(row, "candidate"), "num_gpu_blocks_override=3")) CHECK(fails);
        if (fails) CHECK(table.text(row, "capacity").empty());
    }
    CHECK(refused >= 8);
    CHECK(refused < 16);
    CHECK(has(run.out, "cannot run"));
}

namespace {

/// Urgent chats beside summaries that come in bursts and fill the KV cache, in nobody's hurry.
std::string urgent_scenario() {
    std::string out = small_scenario();
    out = out.substr(0, out.find("  requests: 60"));
    out.replace(out.find("num_gpu_blocks_override: 400"), 28, "num_gpu_blocks_override: 150");
    out.replace(out.find("max_model_len: 4096"), 19, "max_model_len: 1024");
    out.replace(out.find("per_token: 20us, per_sequence: 10us, per_context_token: 1us"), 59,
                "per_token: 5us, per_sequence: 100us");
    return out +
           "  duration: 15s\n  classes:\n    - {name: chat, priority: 0, arrivals: {process: poisson, rate: 5/s}, "
           "prompt_tokens: 50, output_tokens: {distribution: geometric, mean: 20}}\n    - {name: summary, priority: 5, "
           "arrivals: {process: gamma, rate: 5/s, burstiness: 0.02}, prompt_tokens: 200, output_tokens: 60}\n";
}
const std::vector<std::string> urgent_slo{"--slo", "class(chat).ttft_p90 <= 200ms, class(chat).tpot_mean <= 7.5ms"};

}  // namespace

TEST_CASE("tune: without lists it finds the batch limits and the policy that an exhaustive search finds") {
    const TemporaryFolder folder;
    folder.write("s.yaml", urgent_scenario());
    std::vector<std::string> args{"tune", "s.yaml", "--out", "t", "--seeds", "2", "--tolerance", "3%"};
    args.insert(args.end(), urgent_slo.begin(), urgent_slo.end());
    const Finished run = run_in(folder, args);
    CAPTURE(run.err);
    REQUIRE(run.exit == 0);
    const CsvTable tuned = table_of(folder.path() / "t/tune.csv");
    const auto best =
        std::find_if(tuned.rows().begin(), tuned.rows().end(), [&](const auto& row) { return tuned.text(row, "best") == "1"; });
    REQUIRE(best != tuned.rows().end());
    CHECK(tuned.text(*best, "scheduling_policy") == "priority");
    CHECK(has(run.out, "--scheduling-policy priority"));
    CHECK(tuned.text(*best, "gpu_memory_utilization").empty());  // the blocks are given, not derived

    // Batch sizes under both policies.
    std::vector<std::string> full{"capacity",
                                  "s.yaml",
                                  "--out",
                                  "c",
                                  "--seeds",
                                  "2",
                                  "--tolerance",
                                  "3%",
                                  "--quiet",
                                  "--vary",
                                  "engine.max_num_seqs=4,8,16",
                                  "--vary",
                                  "engine.max_num_batched_tokens=512,2048",
                                  "--vary",
                                  "engine.scheduling_policy=fcfs,priority"};
    full.insert(full.end(), urgent_slo.begin(), urgent_slo.end());
    REQUIRE(run_in(folder, full).exit <= 1);
    const CsvTable all = table_of(folder.path() / "c/points.csv");
    double highest = 0;
    double highest_fcfs = 0;
    for (const CsvTable::Row& row : all.rows()) {
        double& of = all.text(row, "engine.scheduling_policy") == "fcfs" ? highest_fcfs : highest;
        of = std::max(of, *all.number(row, "capacity"));
    }
    CAPTURE(highest);
    CAPTURE(highest_fcfs);
    CHECK(highest > 1.5 * highest_fcfs);  // there was a policy to find
    CHECK(*tuned.number(*best, "capacity") >= 0.96 * highest);

    // Held, it stays; and what is set stays at that.
    std::vector<std::string> held = args;
    held[3] = "h";
    held.insert(held.end(), {"--hold", "scheduling-policy,engine.enable_chunked_prefill", "--set", "engine.max_num_seqs=16"});
    const Finished kept = run_in(folder, held);
    CAPTURE(kept.err);
    REQUIRE(kept.exit == 0);
    const CsvTable table = table_of(folder.path() / "h/tune.csv");
    for (const CsvTable::Row& row : table.rows()) {
        CHECK(table.text(row, "scheduling_policy") == "fcfs");
        CHECK(table.text(row, "enable_chunked_prefill") == "true");
        CHECK(table.text(row, "max_num_seqs") == "16");
    }
    CHECK(has(kept.out, "best_max_num_seqs: 16, best_num_batched_tokens: "));
}

TEST_CASE("tune: without lists a policy is found where no batch meets the SLOs under the scenario's own") {
    const TemporaryFolder folder;
    folder.write("s.yaml", urgent_scenario());
    std::vector<std::string> args{"tune", "s.yaml", "--out", "t", "--seeds", "1", "--tolerance", "10%", "--min", "2.5"};
    args.insert(args.end(), urgent_slo.begin(), urgent_slo.end());
    const Finished run = run_in(folder, args);
    CAPTURE(run.err);
    REQUIRE(run.exit == 0);
    CHECK(has(run.out, "scheduling_policy priority"));
    std::vector<std::string> held = args;
    held.insert(held.end(), {"--hold", "scheduling_policy"});
    const Finished none = run_in(folder, held);
    CHECK(none.exit == 1);
    CHECK(has(none.err, "no candidate meets the SLOs"));
}

TEST_CASE("tune: without lists a batch beyond them is found, and hopeless candidates cost one run") {
    const TemporaryFolder folder;
    std::string text = small_scenario();
    text.replace(text.find("requests: 60"), 12, "requests: 3000");
    text.replace(text.find("num_gpu_blocks_override: 400"), 28, "num_gpu_blocks_override: 40000");
    text.replace(text.find("per_context_token: 1us"), 22, "per_context_token: 0us");
    folder.write("s.yaml", text);
    const Finished run = run_in(folder, {"tune", "s.yaml", "--out", "t", "--slo", "ttft_p90 <= 80ms", "--seeds", "2",
                                         "--tolerance", "5%", "--hold", "long_prefill_token_threshold"});
    CAPTURE(run.err);
    REQUIRE(run.exit == 0);
    const CsvTable table = table_of(folder.path() / "t/tune.csv");
    int below = 0;
    for (const CsvTable::Row& row : table.rows()) {
        if (table.text(row, "outcome") != "below") continue;
        ++below;
        CHECK(*table.number(row, "runs") == 1);
        CHECK(table.text(row, "capacity").empty());
        CHECK(*table.number(row, "capacity_high") > 0);
        CHECK(table.text(row, "best") == "0");
    }
    CHECK(below > 0);
    CHECK(has(run.out, "< "));
}

TEST_CASE("tune: an engine has one figure in all tables, and what is recommended holds below its capacity") {
    const TemporaryFolder folder;
    std::string text = urgent_scenario();
    text.replace(text.find("per_sequence: 100us"), 19, "per_sequence: 100us, per_context_token: 1us");
    folder.write("s.yaml", text);
    const std::string limit = "class(chat).ttft_p90 <= 200ms";
    for (const char* seed : {"2", "9"}) {  // under which a load fails below others that meet the limit
        CAPTURE(seed);
        const Finished run = run_in(
            folder, {"tune", "s.yaml", "--out", "t", "--slo", limit, "--seeds", "1", "--seed", seed, "--tolerance", "2%"});
        CAPTURE(run.err);
        REQUIRE(run.exit == 0);
        const CsvTable table = table_of(folder.path() / "t/tune.csv");
        std::map<std::string, std::string> figures;
        double best = 0;
        double highest = 0;
        int now = 0;
        for (const CsvTable::Row& row : table.rows()) {
            if (!table.text(row, "error").empty()) continue;
            std::string settings;
            for (const char* name : {"scheduling_policy", "max_num_seqs", "max_num_batched_tokens", "block_size",
                                     "enable_chunked_prefill", "long_prefill_token_threshold"})
                settings.append(table.text(row, name)).append(" ");
            CAPTURE(settings);
            std::string figure = table.text(row, "outcome");
            if (figure != "below") figure.append(" ").append(table.text(row, "capacity"));
            CHECK(figures.emplace(settings, figure).first->second == figure);
            if (table.text(row, "scenario_as_is") == "1") {
                ++now;
                CHECK(figure != "below");
            }
            if (!table.number(row, "capacity")) continue;
            highest = std::max(highest, *table.number(row, "capacity"));
            if (table.text(row, "best") != "1") continue;
            best = *table.number(row, "capacity");
            std::vector<std::string> below{
                "s.yaml",   "--quiet", "--seed", seed,
                "--assert", limit,     "--set",  "workload.rate_scale=" + shortest(0.95 * *table.number(row, "capacity_low"))};
            for (const char* name : {"scheduling_policy", "max_num_seqs", "max_num_batched_tokens", "block_size",
                                     "enable_chunked_prefill", "long_prefill_token_threshold"}) {
                below.emplace_back("--set");
                below.push_back(std::string("engine.").append(name).append("=").append(table.text(row, name)));
            }
            CHECK(run_in(folder, below).exit == 0);
        }
        CHECK(now >= 1);
        CHECK(best >= 0.96 * highest);  // twice the tolerance
        CHECK(has(run.out, "the scenario as it is: "));
        if (std::string_view(seed) == "2") CHECK(has(run.out, "not monotone in the load: "));
    }
}

TEST_CASE("tune: where nothing overloads the run nothing is changed") {
    const TemporaryFolder folder;
    std::string text = small_scenario();
    text.replace(text.find("max_num_seqs: 16, max_num_batched_tokens: 512, num_gpu_blocks_override: 400"), 75,
                 "max_num_seqs: 100, max_num_batched_tokens: 65536, num_gpu_blocks_override: 40000");
    folder.write("s.yaml", text);
    const Finished run = run_in(folder, {"tune", "s.yaml", "--out", "t", "--seeds", "2"});
    CAPTURE(run.err);
    REQUIRE(run.exit == 0);
    const CsvTable table = table_of(folder.path() / "t/tune.csv");
    REQUIRE(table.rows().size() == 1);
    const CsvTable::Row& row = table.rows().front();
    CHECK(table.text(row, "outcome") == "at_least");
    CHECK(table.text(row, "max_num_seqs") == "100");
    CHECK(table.text(row, "scenario_as_is") == "1");
    CHECK(table.text(row, "best") == "1");
    CHECK(*table.number(row, "capacity") < 3000);  // 64 times the first guess
    CHECK(has(run.out, ">= "));
    CHECK(has(run.out, "capacity: at least "));
    CHECK(has(run.out, "no limit found"));
    CHECK_FALSE(has(run.out, "95 % interval 1"));

    // Of a list the first that has no limit.
    const Finished listed = run_in(folder, {"tune", "s.yaml", "--out", "l", "--seeds", "2", "--max-num-seqs", "2,70,80"});
    CAPTURE(listed.err);
    REQUIRE(listed.exit == 0);
    CHECK(has(listed.out, "best_max_num_seqs: 70,"));
}

TEST_CASE("tune: throughput and capacity are of the same seeds") {
    const TemporaryFolder folder;
    folder.write("s.yaml", scenario());
    // Alone the four seeds carry 4.5 to 5.3 requests/s: one meets the limits nowhere above 4.6.
    const Finished run =
        run_in(folder, command({"tune", "s.yaml", "--out", "t", "--max-num-seqs", "4", "--min", "4.6", "--seeds", "4"}, {}));
    CAPTURE(run.err);
    REQUIRE(run.exit == 0);
    CHECK(has(run.out, "1 of 4 seeds fail even at the lowest load tried"));
    const auto number_after = [&run](const std::string& name) {
        return std::stod(run.out.substr(run.out.find(name) + name.size()));
    };
    CHECK(number_after("best_throughput: ") == doctest::Approx(number_after("capacity: ")).epsilon(0.05));
}

TEST_CASE("tune: without lists the policies of the engine that the scenario names") {
    const TemporaryFolder folder;
    folder.write("s.yaml", scenario());
    struct Case {
        std::string preset;
        std::string orders;
        std::size_t count;
    };
    for (const Case& c :
         {Case{"vllm-v0", "fcfs priority", 2}, {"sglang", "fcfs lpm dfs-weight lof", 4}, {"orca-max", "fcfs priority", 2}}) {
        CAPTURE(c.preset);
        const Finished run = run_in(
            folder, command({"tune", "s.yaml", "--out", c.preset, "--seeds", "1", "--tolerance", "10%", "--hold",
                             "max_num_batched_tokens,max_num_seqs", "--set", std::string("engine.preset=").append(c.preset)},
                            {}));
        CAPTURE(run.err);
        REQUIRE(run.exit <= 1);
        const CsvTable table = table_of(fs::path(folder.path() / c.preset) / "tune.csv");
        std::vector<std::string> seen;
        for (const CsvTable::Row& row : table.rows()) {
            const std::string order = table.text(row, "scheduling_policy");
            if (table.text(row, "stage") != "2" || order.empty()) continue;
            CHECK(has(c.orders, order));
            if (std::find(seen.begin(), seen.end(), order) == seen.end()) seen.push_back(order);
        }
        CHECK(seen.size() == c.count);
    }
}

TEST_CASE("tune: without lists the batch limits, then memory, block size and tensor parallelism") {
    const TemporaryFolder folder;
    folder.write(
        "s.yaml",
        "model: meta-llama/Llama-3.1-8B-Instruct\nhardware: {gpu: H100-SXM-80GB}\nengine: {preset: vllm-v1, max_model_len: "
        "8192}\nworkload:\n  requests: 300\n  arrivals: {process: poisson, rate: 5/s}\n  prompt_tokens: {distribution: "
        "lognormal, p50: 500, p90: 1500, max: 4000}\n  output_tokens: {distribution: uniform, min: 50, max: 200}\n");
    const Finished run = run_in(folder, {"tune", "s.yaml", "--out", "t", "--slo", "ttft_p90 <= 300ms, tpot_mean <= 20ms",
                                         "--seeds", "2", "--tolerance", "5%", "--format", "json"});
    CAPTURE(run.err);
    REQUIRE(run.exit == 0);
    for (const char* part : {"\"max_num_seqs\"", "\"max_num_batched_tokens\"", "\"gpu_memory_utilization\"", "\"block_size\"",
                             "\"tensor_parallel_size\"", "\"preset\"", "\"scheduling_policy\"",
                             "\"command\": \"vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size "})
        CHECK(has(run.out, part));
    const CsvTable table = table_of(folder.path() / "t/tune.csv");
    CHECK(std::count_if(table.rows().begin(), table.rows().end(),
                        [&](const auto& row) { return table.text(row, "stage") == "3"; }) == 18);
    CHECK(std::any_of(table.rows().begin(), table.rows().end(),
                      [&](const auto& row) { return table.text(row, "scenario_as_is") == "1"; }));
    // Nothing carries more than the scenario's own by twice the tolerance.
    for (const char* part : {"\"max_num_seqs\": \"1024\"", "\"gpu_memory_utilization\": \"0.92\""})
        CHECK(run.out.find(part) < run.out.find("\"candidates\""));
    // So light a load never fills the KV cache: more of it is the same engine.
    CHECK(std::any_of(table.rows().begin(), table.rows().end(), [&](const auto& row) {
        return table.text(row, "gpu_memory_utilization") == "0.95" &&
               has(table.text(row, "same_as"), "gpu_memory_utilization=0.9");
    }));
}

TEST_CASE("tune: no command line for a policy that neither vLLM nor SGLang has") {
    const TemporaryFolder folder;
    folder.write("s.yaml", scenario());
    const auto tuned = [&folder](const std::string& set, const std::string& format) {
        const Finished run =
            run_in(folder, command({"tune", "s.yaml", "--out", "t", "--max-num-seqs", "4", "--seeds", "2", "--set", set},
                                   {"--format", format}));
        CAPTURE(run.err);
        REQUIRE(run.exit == 0);
        return run.out;
    };
    for (const char* set : {"engine.preset=sarathi", "engine.scheduling_policy=sjf"}) {
        const std::string text = tuned(set, "table");
        CHECK(has(text, "no command line: neither vLLM nor SGLang schedules like this ("));
        CHECK(has(text, "best_max_num_seqs: 4,"));
        CHECK_FALSE(has(text, "vllm serve"));
        CHECK(has(tuned(set, "json"), "\"command\": null"));
    }
    CHECK(has(tuned("engine.scheduling_policy=priority", "table"), "--scheduling-policy priority"));
}

TEST_CASE("tune: an interrupted search leaves nothing") {
    for (const int signal : {2, 15}) {
        const TemporaryFolder folder;
        std::string text = scenario();
        text.replace(text.find("requests: 800"), 13, "requests: 200000");
        folder.write("s.yaml", text);
        Launch launch;
        launch.folder = folder.path();
        launch.signal = signal;
        int polls = 0;
        launch.interrupt_when = [&] { return fs::exists(folder.path() / "t") && ++polls > 50; };
        const Finished run = run_program(command({"tune", "s.yaml", "--out", "t"}, {}), launch);
        CHECK(run.exit == 128 + signal);
        CHECK(run.out.empty());
        CHECK_FALSE(fs::exists(folder.path() / "t"));
    }
}

TEST_CASE("tune: what cannot be recommended") {
    const TemporaryFolder folder;
    folder.write("s.yaml", scenario());
    const Finished never =
        run_in(folder, {"tune", "s.yaml", "--out", "t", "--slo", "ttft_p50 <= 1us", "--max-num-seqs", "4,8", "--seeds", "2"});
    CHECK(never.exit == 1);
    CHECK(has(never.err, "no candidate meets the SLOs"));
    CHECK(has(never.out, "best_max_num_seqs: 0, best_num_batched_tokens: 0, best_throughput: 0"));
    struct Case {
        std::vector<std::string> args;
        const char* message;
    };
    for (const Case& c : {Case{{"--max-num-seqs", ""}, "--max-num-seqs names no candidate"},
                          {{"--max-num-seqs", "4,,8"}, "an empty value"},
                          {{"--max-num-seqs", "many"}, "max_num_seqs"},
                          {{"--block-size", "-16"}, "block_size"},
                          {{"--gpu-memory-utilization", "1.5"}, "gpu_memory_utilization"},
                          {{"--preset", "vllm-v9"}, "vllm-v9"},
                          {{"--preset", "vllm-v1,sarathy"}, "did you mean 'sarathi'?"},
                          {{"--scheduling-policy", "fcfs,sjff"}, "did you mean 'sjf'?"},
                          {{"--scheduling-policy", "fcfs,{policy: sjff}"}, "did you mean 'sjf'?"},
                          {{"--max-num-seqs", "4", "--vary", "engine.max_num_seqs=8"}, "varies twice"},
                          {{"--slo", "ttft_p98 <= 1s"}, "did you mean"},
                          {{"--hold", "max_num_seq"}, "'max_num_seq' is not searched; did you mean 'max_num_seqs'?"},
                          {{"--hold", ""}, "a name is missing"},
                          {{"--hold", "block_size", "--max-num-seqs", "4"}, "--hold is for a search without lists"},
                          {{"--vary", "engine.num_gpu_blocks_override=3"}, "no candidate can run"},
                          {{"--set", "workload.arrivals=all_at_once"}, "all requests arrive at once"}}) {
        CAPTURE(c.message);
        std::vector<std::string> args{"tune", "s.yaml", "--out", "bad"};
        args.insert(args.end(), c.args.begin(), c.args.end());
        const Finished run = run_in(folder, args);
        CAPTURE(run.err);
        CHECK(run.exit == 2);
        CHECK(run.out.empty());
        CHECK(has(run.err, c.message));
        CHECK_FALSE(fs::exists(folder.path() / "bad"));
    }
}

}  // namespace kvsim::test
