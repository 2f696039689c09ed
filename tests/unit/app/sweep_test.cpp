// kvsim sweep and merge: the same file however it was made.

#include "kvsim/app/sweep.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "kvsim/app/csv_table.hpp"
#include "kvsim/base/check.hpp"
#include "unit/app/cli.hpp"

namespace kvsim::test {
namespace {

namespace fs = std::filesystem;
using app::CsvTable;

std::vector<std::string> grid(std::vector<std::string> more) {
    std::vector<std::string> args{
        "sweep",    "s.yaml", "--vary", "engine.max_num_seqs=1,2,4,8", "--vary", "workload.arrivals.rate=1/s,5/s,20/s",
        "--repeat", "2"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
}

CsvTable table_of(const fs::path& path) {
    return {path.string(), slurp(path)};
}

void no_batch_system() {
    for (const char* name : {"SLURM_ARRAY_TASK_ID",
                             "SLURM_ARRAY_TASK_COUNT",
                             "SLURM_ARRAY_TASK_MIN",
                             "SLURM_ARRAY_TASK_MAX",
                             "SLURM_ARRAY_TASK_STEP",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "JOB_COMPLETION_INDEX",
                             "CLOUD_RUN_TASK_INDEX",
                             "CLOUD_RUN_TASK_COUNT",
                             "AWS_BATCH_JOB_ARRAY_INDEX",
                             "AWS_BATCH_JOB_ARRAY_SIZE",
                             "SGE_TASK_ID",
                             "SGE_TASK_FIRST",
                             "SGE_TASK_LAST",
                             "SGE_TASK_STEPSIZE",
                             "LSB_JOBINDEX",
                             "LSB_JOBINDEX_END",
                             "LSB_JOBINDEX_STEP",
                             "PBS_ARRAY_INDEX",
                             "PBS_ARRAYID",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "PMI_RANK",
                             "PMI_SIZE"})
        unsetenv(name);
}

app::Shard automatic(const std::map<std::string, std::string>& variables, std::optional<std::int64_t> shards = std::nullopt) {
    no_batch_system();
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    try {
        const app::Shard shard = app::parse_shard("auto", shards);
        no_batch_system();
        return shard;
    } catch (...) {
        no_batch_system();
        throw;
    }
}

}  // namespace

TEST_CASE("sweep: shards 0..6 of 7, merged, are the unsharded file byte for byte, on one thread or several") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    REQUIRE(run_in(folder, grid({"--out", "whole", "--quiet"})).exit == 0);
    const std::string whole = slurp(folder.path() / "whole/sweep.csv");
    REQUIRE(run_in(folder, grid({"--out", "one", "--quiet", "-j", "1"})).exit == 0);
    CHECK(slurp(folder.path() / "one/sweep.csv") == whole);

    std::vector<std::string> merge{"merge"};
    for (int i = 0; i < 7; ++i) {
        const std::string out = std::string("shard").append(std::to_string(i));
        REQUIRE(run_in(folder, grid({"--out", out, "--quiet", "--shard", std::to_string(i).append("/7")})).exit == 0);
        REQUIRE(run_in(folder, grid({"--out", "shared", "--quiet", "--shard", std::to_string(i).append("/7")})).exit == 0);
        merge.push_back(out);
    }
    merge.insert(merge.end(), {"--out", "merged"});
    CHECK(run_in(folder, merge).exit == 0);
    CHECK(slurp(folder.path() / "merged/sweep.csv") == whole);
    CHECK(run_in(folder, {"merge", "shared", "--out", "merged2"}).exit == 0);
    CHECK(slurp(folder.path() / "merged2/sweep.csv") == whole);

    SUBCASE("a missing part") {
        const Finished run = run_in(folder, {"merge", "shard0", "shard2", "--out", "m"});
        CHECK(run.exit == 2);
        CHECK(run.err.find("16 of 24 runs are missing: point 0 seed 2") != std::string::npos);
        CHECK_FALSE(fs::exists(folder.path() / "m/sweep.csv"));
    }
    SUBCASE("a part given twice") {
        const Finished run = run_in(folder, {"merge", "shard0", "whole", "--out", "m"});
        CHECK(run.exit == 2);
        CHECK(run.err.find("point 0 seed 1 is there twice") != std::string::npos);
    }
    SUBCASE("parts of different sweeps") {
        REQUIRE(run_in(folder, {"sweep", "s.yaml", "--vary", "engine.max_num_seqs=1,2", "--out", "other", "--quiet"}).exit ==
                0);
        CHECK(run_in(folder, {"merge", "shard0", "other", "--out", "m"}).err.find("another sweep") != std::string::npos);
    }
    SUBCASE("parts of different versions") {
        std::string plan = slurp(folder.path() / "shard1/plan.json");
        const std::string version = "\"kvsim_version\":\"";
        plan.insert(plan.find(version) + version.size(), 1, '9');
        folder.write("shard1/plan.json", plan);
        const Finished run = run_in(folder, {"merge", "shard0", "shard1", "--out", "m"});
        CHECK(run.exit == 2);
        CHECK(run.err.find("is from kvsim") != std::string::npos);
    }
    SUBCASE("a row of another version") {
        std::string part = slurp(folder.path() / "shard1/shard-1-of-7.csv");
        const std::string version = "," KVSIM_VERSION ",";
        const std::size_t at = part.rfind(version);
        REQUIRE(at != std::string::npos);
        part.insert(at + 1, 1, '9');
        folder.write("shard1/shard-1-of-7.csv", part);
        std::vector<std::string> all = merge;
        all.back() = "m";
        const Finished run = run_in(folder, all);
        CHECK(run.exit == 2);
        CHECK(run.err.find("error: from kvsim 9") != std::string::npos);
        CHECK_FALSE(fs::exists(folder.path() / "m/sweep.csv"));
    }
    SUBCASE("a part that was cut") {
        const std::string part = slurp(folder.path() / "shard1/shard-1-of-7.csv");
        folder.write("shard1/shard-1-of-7.csv", part.substr(0, part.size() - 5));
        CHECK(run_in(folder, {"merge", "shard0", "shard1", "--out", "m"}).exit == 2);
    }
}

TEST_CASE("sweep: killed in the middle and resumed, the file is the same") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    const std::vector<std::string> more{"--set", "workload.requests=3000", "--quiet", "-j", "2"};
    std::vector<std::string> args = grid(more);
    args.insert(args.end(), {"--out", "whole"});
    REQUIRE(run_in(folder, args).exit == 0);

    for (const int signal : {9, 2}) {
        const fs::path out = signal == 9 ? "killed" : "stopped";
        args.back() = out.string();
        const auto some_done = [&] {
            std::error_code error;
            return std::distance(fs::directory_iterator(folder.path() / out / "points", error), fs::directory_iterator()) >= 3;
        };
        const Finished run =
            run_program(args, {.folder = folder.path(), .output = {}, .interrupt_when = some_done, .signal = signal});
        REQUIRE(run.exit == 128 + signal);
        CHECK_FALSE(fs::exists(folder.path() / out / "sweep.csv"));
        CHECK_FALSE(fs::is_empty(folder.path() / out / "points"));
        args.emplace_back("--resume");
        for (int again = 0; again < 2; ++again) {  // the second time nothing is left to do
            REQUIRE(run_in(folder, args).exit == 0);
            CHECK(slurp(folder.path() / out / "sweep.csv") == slurp(folder.path() / "whole/sweep.csv"));
            CHECK_FALSE(fs::exists(folder.path() / out / "points"));
        }
        args.pop_back();
    }
    args.insert(args.end(), {"--resume", "--seed", "5"});
    CHECK(run_in(folder, args).err.find("holds another sweep") != std::string::npos);
}

TEST_CASE("sweep: the figures by class are the same whole, sharded, merged, killed and resumed, and those of a run") {
    const TemporaryFolder folder;
    std::string text = small_scenario();
    text = text.substr(0, text.find("  requests: 60"));
    folder.write("s.yaml",
                 text +
                     "  classes:\n    - {name: \"chat, urgent\", requests: 300, arrivals: {process: poisson, rate: 4/s}, "
                     "prompt_tokens: 100, output_tokens: 20, slo: {ttft: 100ms}}\n    - {name: batch, requests: 200, arrivals: "
                     "{process: poisson, rate: 2/s}, prompt_tokens: 400, output_tokens: 60}\n");
    const auto swept = [](std::vector<std::string> more) {
        std::vector<std::string> args{"sweep", "s.yaml", "--vary", "engine.max_num_seqs=2,4,8", "--repeat", "3", "--quiet"};
        args.insert(args.end(), more.begin(), more.end());
        return args;
    };
    REQUIRE(run_in(folder, swept({"--out", "whole", "-j", "3"})).exit == 0);
    const std::string whole = slurp(folder.path() / "whole/classes.csv");
    const CsvTable table = table_of(folder.path() / "whole/classes.csv");
    REQUIRE(table.rows().size() == 18);
    CHECK(table.columns()[1] == "engine.max_num_seqs");
    for (int i = 0; i < 2; ++i)
        REQUIRE(run_in(folder, swept({"--out", "parts", "--shard", std::to_string(i).append("/2")})).exit == 0);
    CHECK_FALSE(fs::exists(folder.path() / "parts/classes.csv"));
    REQUIRE(run_in(folder, {"merge", "parts", "--out", "merged", "--quiet"}).exit == 0);
    CHECK(slurp(folder.path() / "merged/classes.csv") == whole);

    std::vector<std::string> args = swept({"--out", "killed", "-j", "1"});
    const auto some_done = [&] {
        std::error_code error;
        return std::distance(fs::directory_iterator(folder.path() / "killed/points", error), fs::directory_iterator()) >= 3;
    };
    const Finished run = run_program(args, {.folder = folder.path(), .output = {}, .interrupt_when = some_done, .signal = 9});
    CHECK((run.exit == 137 || run.exit == 0));
    args.emplace_back("--resume");
    REQUIRE(run_in(folder, args).exit == 0);
    CHECK(slurp(folder.path() / "killed/classes.csv") == whole);

    REQUIRE(
        run_in(folder, {"s.yaml", "--set", "engine.max_num_seqs=4", "--replications", "3", "--out", "alone", "--quiet"}).exit ==
        0);
    const CsvTable alone = table_of(folder.path() / "alone/classes.csv");
    REQUIRE(alone.rows().size() == 6);
    for (std::size_t i = 0; i < 6; ++i) {
        for (const std::string& column : alone.columns()) {
            if (column == "scenario_hash") continue;  // the seed is a key of the sweep's
            CHECK(table.text(table.rows()[6 + i], column) == alone.text(alone.rows()[i], column));
        }
    }
    // Requests sum up to those of the row, and only the class with a limit has an attainment.
    const CsvTable sums = table_of(folder.path() / "alone/replications.csv");
    for (std::size_t i = 0; i < 3; ++i) {
        CHECK(*alone.number(alone.rows()[2 * i], "requests") + *alone.number(alone.rows()[2 * i + 1], "requests") ==
              *sums.number(sums.rows()[i], "requests"));
        CHECK(alone.text(alone.rows()[2 * i], "class") == "batch");
        CHECK(alone.text(alone.rows()[2 * i], "slo_attainment").empty());
        CHECK(*alone.number(alone.rows()[2 * i + 1], "slo_attainment") > 0);
    }

    SUBCASE("rows of a class that stand for no run") {
        std::string part = slurp(folder.path() / "parts/classes-1-of-2.csv");
        folder.write("parts/classes-0-of-2.csv", part);
        const Finished wrong = run_in(folder, {"merge", "parts", "--out", "m"});
        CHECK(wrong.exit == 2);
        CHECK(wrong.err.find("which is not in ") != std::string::npos);
        CHECK_FALSE(fs::exists(folder.path() / "m"));
    }
    SUBCASE("a companion that is gone, cut, renamed or not proven: merge refuses, resume makes it anew") {
        const fs::path companion = folder.path() / "parts/classes-1-of-2.csv";
        const std::string part = slurp(companion);
        const std::string proofs = slurp(folder.path() / "parts/classes-1-of-2.done");
        const std::size_t last = part.rfind('\n', part.size() - 2) + 1;
        struct Damage {
            std::string what;
            std::string classes, proofs, message;
        };
        std::string renamed = part;
        renamed.replace(renamed.rfind(",batch,"), 7, ",botch,");
        std::string other = proofs;
        other.replace(other.find(' '), 1, "0 ");
        for (const Damage& damage : {
                 Damage{"gone", "", proofs, "classes-1-of-2.csv is missing: point 0 seed 2"},
                 Damage{"a line less", part.substr(0, last), proofs, "rows by class of point 2 seed 2 are 1 of 2"},
                 Damage{"a run less", part.substr(0, part.rfind('\n', last - 2) + 1), proofs, "point 2 seed 2 are 0 of 2"},
                 Damage{"the header alone", part.substr(0, part.find('\n') + 1), proofs, "point 0 seed 2 are 0 of 2"},
                 Damage{"empty", "\n", proofs, "classes-1-of-2.csv"},
                 Damage{"cut", part.substr(0, part.size() - 9), proofs, "classes-1-of-2.csv"},
                 Damage{"renamed", renamed, proofs, "are not those of its run"},
                 Damage{"without proofs", part, "", "classes-1-of-2.done is missing"},
                 Damage{"proofs of another part", part, other, "classes-1-of-2.done"},
                 Damage{"all gone", "", "", "classes-1-of-2.done is missing"},
             }) {
            CAPTURE(damage.what);
            fs::remove(companion);
            fs::remove(folder.path() / "parts/classes-1-of-2.done");
            if (!damage.classes.empty()) folder.write("parts/classes-1-of-2.csv", damage.classes);
            if (!damage.proofs.empty()) folder.write("parts/classes-1-of-2.done", damage.proofs);
            const Finished refused = run_in(folder, {"merge", "parts", "--out", "m"});
            CHECK(refused.exit == 2);
            CAPTURE(refused.err);
            CHECK(refused.err.find(damage.message) != std::string::npos);
            CHECK_FALSE(fs::exists(folder.path() / "m"));
            const Finished resumed = run_in(folder, swept({"--out", "parts", "--shard", "1/2", "--resume"}));
            CHECK(resumed.exit == 0);
            CHECK(resumed.err.find("not complete") != std::string::npos);
            CHECK(slurp(companion) == part);
            CHECK(run_in(folder, {"merge", "parts", "--out", "merged", "--quiet"}).exit == 0);
            CHECK(slurp(folder.path() / "merged/classes.csv") == whole);
        }
        CHECK(run_in(folder, swept({"--out", "parts", "--shard", "1/2", "--resume"})).err.empty());
        // The whole sweep's file likewise.
        folder.write("whole/classes.csv", whole.substr(0, whole.rfind('\n', whole.size() - 2) + 1));
        REQUIRE(run_in(folder, swept({"--out", "whole", "--resume"})).exit == 0);
        CHECK(slurp(folder.path() / "whole/classes.csv") == whole);
    }
    SUBCASE("an earlier sweep's go") {
        folder.write("s.yaml", small_scenario());
        REQUIRE(run_in(folder, swept({"--out", "whole"})).exit == 0);
        CHECK_FALSE(fs::exists(folder.path() / "whole/classes.csv"));
    }
}

TEST_CASE("sweep: a finished point without all of its classes runs again") {
    const TemporaryFolder folder;
    std::string text = small_scenario();
    folder.write("s.yaml", text.substr(0, text.find("workload:")));
    // The last point takes so long that the sweep is killed in it.
    folder.write("sweep.yaml",
                 "base: s.yaml\nzip:\n  - engine.max_num_seqs: [2, 4, 8, 16]\n    workload.duration: [10s, 10s, 10s, "
                 "20000000s]\n");
    const std::string set =
        "workload.classes=[{name: chat, arrivals: {process: poisson, rate: 4/s}, prompt_tokens: 100, "
        "output_tokens: 20}, {name: batch, arrivals: {process: poisson, rate: 2/s}, prompt_tokens: 400, "
        "output_tokens: 60}]";
    const auto points = folder.path() / "o/points";
    const auto some_done = [&] { return fs::exists(points / "2.csv"); };
    const Finished run = run_program({"sweep", "sweep.yaml", "--set", set, "--out", "o", "-j", "1", "--quiet"},
                                     {.folder = folder.path(), .output = {}, .interrupt_when = some_done, .signal = 9});
    REQUIRE(run.exit == 137);
    const std::string classes = slurp(points / "0.classes");
    REQUIRE(std::count(classes.begin(), classes.end(), '\n') == 2);
    const std::string first = classes.substr(0, classes.find('\n') + 1);
    std::string renamed = classes;
    renamed.replace(renamed.find(",batch,"), 7, ",botch,");
    const auto damaged = {std::string(), first, renamed, classes.substr(0, classes.size() - 4)};
    for (const std::string& damage : damaged) {
        CAPTURE(damage);
        folder.write("o/points/0.classes", damage);
        const Finished again = run_program({"sweep", "sweep.yaml", "--set", set, "--out", "o", "-j", "1", "--resume"},
                                           {.folder = folder.path(),
                                            .output = {},
                                            .interrupt_when = [&] { return slurp(points / "0.classes") == classes; },
                                            .signal = 9});
        CHECK(again.exit == 137);
        CHECK(slurp(points / "0.classes") == classes);
    }
    fs::remove(points / "0.classes");
    const Finished merged = run_in(folder, {"merge", "o", "--out", "m"});
    CHECK(merged.exit == 2);
    CHECK(merged.err.find("0.classes is missing: point 0") != std::string::npos);
    const Finished again = run_program({"sweep", "sweep.yaml", "--set", set, "--out", "o", "-j", "1", "--resume"},
                                       {.folder = folder.path(),
                                        .output = {},
                                        .interrupt_when = [&] { return fs::exists(points / "0.classes"); },
                                        .signal = 9});
    CHECK(again.exit == 137);
    CHECK(again.out.find("2 of 4 runs were finished before") != std::string::npos);
    CHECK(slurp(points / "0.classes") == classes);
}

TEST_CASE("sweep: a row is what the scenario alone gives with the point's keys") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    REQUIRE(run_in(folder, grid({"--out", "g", "--quiet"})).exit == 0);
    const CsvTable sweep = table_of(folder.path() / "g/sweep.csv");
    REQUIRE(sweep.rows().size() == 24);
    const CsvTable::Row& row = sweep.rows()[11];  // point 5: the second of max_num_seqs, the third of rate
    CHECK(sweep.text(row, "engine.max_num_seqs") == "2");
    CHECK(sweep.text(row, "workload.arrivals.rate") == "20/s");
    CHECK(sweep.text(row, "seed") == "2");
    REQUIRE(run_in(folder, {"s.yaml", "--set", "engine.max_num_seqs=2", "--set", "workload.arrivals.rate=20/s", "--seed", "2",
                            "--out", "alone", "--quiet"})
                .exit == 0);
    const CsvTable alone = table_of(folder.path() / "alone/summary.csv");
    for (const std::string& column : alone.columns()) CHECK(sweep.text(row, column) == alone.text(alone.rows()[0], column));
}

TEST_CASE("sweep file: what varies together, what is left out, overlays, seeds") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    folder.write("slow.yaml", "step_time: {model: constant, step: 40ms}\n");
    folder.write("fast.yaml", "step_time: {model: constant, step: 10ms}\n");
    folder.write("sweep.yaml",
                 "base: s.yaml\n"
                 "set: {workload.requests: 20}\n"
                 "vary:\n"
                 "  overlay: [slow.yaml, fast.yaml]\n"
                 "zip:\n"
                 "  - {engine.max_num_seqs: [2, 4, 8], engine.max_num_batched_tokens: [128, 256, 512]}\n"
                 "exclude:\n"
                 "  - {engine.max_num_seqs: 4}\n"
                 "seeds: [7, 3]\n");
    REQUIRE(run_in(folder, {"sweep", "sweep.yaml", "--out", "o", "--quiet", "--aggregate"}).exit == 0);
    const CsvTable t = table_of(folder.path() / "o/sweep.csv");
    REQUIRE(t.rows().size() == 8);
    const std::vector<std::vector<std::string>> expected{{"0", "2", "128", "7"}, {"0", "2", "128", "3"}, {"1", "8", "512", "7"},
                                                         {"1", "8", "512", "3"}, {"2", "2", "128", "7"}, {"2", "2", "128", "3"},
                                                         {"3", "8", "512", "7"}, {"3", "8", "512", "3"}};
    for (std::size_t i = 0; i < 8; ++i) {
        const CsvTable::Row& row = t.rows()[i];
        CHECK(std::vector<std::string>{t.text(row, "point"), t.text(row, "engine.max_num_seqs"),
                                       t.text(row, "engine.max_num_batched_tokens"), t.text(row, "seed")} == expected[i]);
        CHECK(t.text(row, "overlay").ends_with(i < 4 ? "slow.yaml" : "fast.yaml"));
        CHECK(t.text(row, "tpot_mean_ms") == (i < 4 ? "40" : "10"));
        CHECK(t.text(row, "requests") == "20");
    }
    const CsvTable mean = table_of(folder.path() / "o/aggregate.csv");
    REQUIRE(mean.rows().size() == 4);
    const double a = *t.number(t.rows()[2], "e2e_mean_ms");
    const double b = *t.number(t.rows()[3], "e2e_mean_ms");
    CHECK(*mean.number(mean.rows()[1], "e2e_mean_ms") == doctest::Approx((a + b) / 2));
    // Student t with one degree of freedom: 12.706 times the standard error, half the distance of two values.
    CHECK(*mean.number(mean.rows()[1], "e2e_mean_ms_ci95") == doctest::Approx(12.7062047 * std::abs(a - b) / 2));
    CHECK_FALSE(mean.has("max_num_seqs_ci95"));
}

TEST_CASE("sweep: a point that fails is recorded and the others run on") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    // 2 blocks of 16 tokens hold no request of max_model_len 4096: refused when it is prepared or run, never by the schema.
    const Finished run =
        run_in(folder, {"sweep", "s.yaml", "--vary", "engine.num_gpu_blocks_override=400,2,300", "--out", "o"});
    CHECK(run.exit == 1);
    CHECK(run.out.find("1 failed") != std::string::npos);
    const CsvTable t = table_of(folder.path() / "o/sweep.csv");
    REQUIRE(t.rows().size() == 3);
    CHECK(t.text(t.rows()[0], "error").empty());
    CHECK(t.text(t.rows()[1], "error").find("error: ") != std::string::npos);
    CHECK(t.text(t.rows()[1], "seed") == "1");
    CHECK(t.text(t.rows()[1], "completed").empty());
    CHECK(t.text(t.rows()[2], "completed") == "60");
}

TEST_CASE("sweep: bad input costs nothing and leaves nothing") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    const auto refused = [&folder](std::vector<std::string> args, std::string_view reason) {
        args.insert(args.end(), {"--out", "o"});
        const Finished run = run_in(folder, args);
        CAPTURE(reason);
        CAPTURE(run.err);
        CHECK(run.exit == 2);
        CHECK(run.err.find(reason) != std::string::npos);
        CHECK_FALSE(fs::exists(folder.path() / "o"));
    };
    const std::string vary = "--vary";
    refused({"sweep", "s.yaml"}, "nothing varies");
    refused({"sweep", "s.yaml", vary, "engine.max_num_seq=1,2"}, "did you mean 'max_num_seqs'?");
    refused({"sweep", "s.yaml", vary, "engine.max_num_seqs=1,many"}, "many");
    // Names, too, of presets, policies, models and pieces of the workload.
    refused({"sweep", "s.yaml", vary, "engine.preset=vllm-v1,vlm-v1"}, "unknown preset 'vlm-v1'; did you mean 'vllm-v1'?");
    refused({"sweep", "s.yaml", vary, "engine.scheduling_policy=fcfs,fcsf"}, "did you mean 'fcfs'?");
    refused({"sweep", "s.yaml", vary, "engine.kv_policy=paged,pagged"}, "did you mean 'paged'?");
    refused({"sweep", "s.yaml", vary, "router=round_robin,roundrobin"}, "did you mean 'round_robin'?");
    refused({"sweep", "s.yaml", vary, "model=meta-llama/Llama-3.1-8B-Instruct,meta-llama/Llama-3.1-8B-Instrukt"},
            "unknown model");
    refused({"sweep", "s.yaml", vary, "step_time={model: constant, step: 1ms},{model: constnt}"}, "unknown step-time model");
    refused({"sweep", "s.yaml", vary, "workload.arrivals={process: poisson, rate: 5/s},{process: poison, rate: 5/s}"},
            "did you mean 'poisson'?");
    refused({"sweep", "s.yaml", vary, "engine.max_num_seqs="}, "an empty value");
    refused({"sweep", "s.yaml", vary, "engine.max_num_seqs"}, "must be key.path=v1,v2");
    refused({"sweep", "s.yaml", vary, "seed=1,2"}, "--repeat");
    refused({"sweep", "s.yaml", vary, "engine.max_num_seqs=1", vary, "engine.max_num_seqs=2"}, "varies twice");
    refused({"sweep", "s.yaml", vary, "engine.max_num_seqs=1,2,1"}, "engine.max_num_seqs=1 stands twice");
    refused({"sweep", "none.yaml", vary, "engine.max_num_seqs=1"}, "none.yaml");
    std::string many = "1";
    for (int i = 2; i <= 400; ++i) many.append(",").append(std::to_string(i));
    refused({"sweep", "s.yaml", vary, "engine.max_num_seqs=" + many, vary, "engine.max_num_batched_tokens=" + many}, "--yes");
    for (const char* shard : {"2/2", "-1/2", "1", "a/2", "1/0", "1/2/3", ""})
        refused({"sweep", "s.yaml", vary, "engine.max_num_seqs=1", "--shard", shard}, "--shard must be i/N");
    refused({"merge", "nothing-here"}, "holds no sweep");

    const auto file = [&](std::string_view text, std::string_view reason) {
        folder.write("sweep.yaml", text);
        refused({"sweep", "sweep.yaml"}, reason);
    };
    file("scenario: s.yaml\nvary: {engine.max_num_seqs: [1]}\n", "a sweep file needs `base`");
    file("base: s.yaml\nvery: {engine.max_num_seqs: [1]}\n", "sweep.yaml:2:1: error: unknown key 'very'; did you mean 'vary'?");
    file("base: s.yaml\nvary: {engine.max_num_seqs: []}\n", "at least one entry");
    file("base: s.yaml\nvary: {}\n", "nothing varies");
    file("base: s.yaml\nzip: [{engine.max_num_seqs: [1, 2, 1], engine.block_size: [16, 16, 16]}]\n",
         "engine.max_num_seqs=1 engine.block_size=16 stands twice");
    file("base: s.yaml\nzip: [{engine.max_num_seqs: [1, 2], engine.block_size: [16]}]\n", "need as many");
    file("base: s.yaml\nvary: {engine.max_num_seqs: [1]}\nexclude: [{engine.max_num_seqs: 1}]\n", "every point");
    file("base: s.yaml\nvary: {engine.max_num_seqs: [1]}\nexclude: [{engine.max_num_seqs: 2}]\n", "never is 2");
    file("base: s.yaml\nvary: {engine.max_num_seqs: [1]}\nexclude: [{engine.max_num_seq: 1}]\n",
         "did you mean 'engine.max_num_seqs'?");
    file("base: s.yaml\nvary: {engine.max_num_seqs: [1]}\nseeds: [1]\nrepeat: 2\n", "exclude each other");
    file("base: s.yaml\nvary: {engine.max_num_seqs: [1]}\nrepeat: 0\n", "from 1 to 100000");
    file("base: s.yaml\nvary: {engine.max_num_seqs: [1]}\nseeds: [3, 1, 3]\n", "seed 3 stands twice");
    refused({"sweep", "s.yaml", vary, "engine.max_num_seqs=1,2", "--set", "engine.max_num_seqs=4"}, "is set, and it varies");
    refused({"sweep", "s.yaml", vary, "workload.arrivals={process: poisson, rate: 1/s}", "--set", "workload.arrivals.rate=2/s"},
            "workload.arrivals.rate is set, and workload.arrivals varies");
    refused({"sweep", "s.yaml", vary, "workload.arrivals.rate=1/s", vary, "workload.arrivals={process: poisson, rate: 1/s}"},
            "lies inside workload.arrivals");
    refused({"sweep", "s.yaml", vary, "engine.max_num_seqs=1,2", "--aggregate", "--shard", "0/2"}, "not a shard");
    refused({"sweep", "s.yaml", vary, "engine.max_num_seqs=1", "--repeat", "2", "--set", "seed=9223372036854775807"}, "seed");
}

TEST_CASE("sweep: values with commas, quotes, apostrophes and letters beyond ASCII come back as they were given") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    const Finished run = run_in(folder, {"sweep", "s.yaml", "--quiet", "--out", "o", "--vary", R"(workload.tenant=it's,"a, b)",
                                         "--vary", "workload.prompt_tokens={distribution: uniform, min: 5, max: 9},7"});
    CHECK_MESSAGE(run.exit == 2, run.out);  // a stray quote, told where it is
    const Finished good =
        run_in(folder, {"sweep", "s.yaml", "--quiet", "--out", "o", "--vary", R"(workload.tenant=it's,"a, b",Zürich,'c,d')",
                        "--vary", "workload.prompt_tokens={distribution: uniform, min: 5, max: 9},7"});
    REQUIRE_MESSAGE(good.exit == 0, good.err);
    const CsvTable t = table_of(folder.path() / "o/sweep.csv");
    REQUIRE(t.rows().size() == 8);
    CHECK(t.text(t.rows()[0], "workload.tenant") == "it's");
    CHECK(t.text(t.rows()[2], "workload.tenant") == R"("a, b")");
    CHECK(t.text(t.rows()[4], "workload.tenant") == "Zürich");
    CHECK(t.text(t.rows()[6], "workload.tenant") == "'c,d'");
    CHECK(t.text(t.rows()[0], "workload.prompt_tokens") == "{distribution: uniform, min: 5, max: 9}");
    for (const CsvTable::Row& row : t.rows()) CHECK(t.text(row, "completed") == "60");
}

TEST_CASE("sweep: a key that summary.csv has too may vary, and an overlay may give what the scenario lacks") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    const Finished run =
        run_in(folder, {"sweep", "s.yaml", "--vary", "model=meta-llama/Llama-3.1-8B-Instruct,Mistral-Nemo-Instruct-2407",
                        "--out", "o", "--aggregate"});
    CHECK_MESSAGE(run.exit == 0, run.err);
    const CsvTable models = table_of(folder.path() / "o/sweep.csv");
    CHECK(models.text(models.rows()[1], "varied.model") == "Mistral-Nemo-Instruct-2407");
    CHECK(models.text(models.rows()[0], "model") != models.text(models.rows()[1], "model"));
    folder.write("engine.yaml", "engine: {max_num_seqs: 8}\n");
    folder.write("sub/times.yaml", "workload: {output_tokens: 5}\n");
    folder.write("sub/sweep.yaml",
                 "base: ../s.yaml\nvary: {overlay: [times.yaml, ../engine.yaml], workload.arrivals.rate: [1/s, 2/s]}\n");
    const Finished other = run_in(folder, {"sweep", "sub/sweep.yaml", "--out", "p", "--quiet"});
    REQUIRE_MESSAGE(other.exit == 0, other.err);
    const CsvTable t = table_of(folder.path() / "p/sweep.csv");
    REQUIRE(t.rows().size() == 4);
    CHECK(t.text(t.rows()[0], "output_tokens_mean") == "5");
    CHECK(t.text(t.rows()[2], "output_tokens_mean") != "5");
    // The overlay is what makes the scenario whole: the other axis is tried with it.
    const std::string text = small_scenario();
    const std::size_t at = text.find("workload:");
    REQUIRE(at != std::string::npos);
    folder.write("lacking.yaml", text.substr(0, at));
    folder.write("rest.yaml", text.substr(at));
    const Finished made_whole = run_in(
        folder, {"sweep", "lacking.yaml", "--vary", "engine.max_num_seqs=1,2", "--vary", "overlay=rest.yaml", "--out", "q"});
    CHECK_MESSAGE(made_whole.exit == 0, made_whole.err);
}

TEST_CASE("sweep: a folder that cannot hold it is told, with exit code 2") {
    const TemporaryFolder folder;
    folder.write("s.yaml", small_scenario());
    const auto into = [&folder](const std::string& out) {
        return run_in(folder, {"sweep", "s.yaml", "--vary", "engine.max_num_seqs=1,2", "--out", out, "--quiet", "--resume"});
    };
    folder.write("file", "x");
    CHECK(into("file").exit == 2);
    CHECK(slurp(folder.path() / "file") == "x");
    folder.write("half/points", "x");
    const Finished half = into("half");
    CHECK(half.exit == 2);
    CHECK(half.err.find("points") != std::string::npos);
    for (const char* garbage : {"", "{", "[]", "{\"plan\": 3}", "null"}) {
        folder.write("bad/plan.json", garbage);
        const Finished bad = into("bad");
        CAPTURE(garbage);
        CHECK(bad.exit == 2);
        CHECK(bad.err.find("not a sweep's plan") != std::string::npos);
    }
    // What a lost machine leaves of a row: the name without the content.
    const Finished all = into("o");
    REQUIRE(all.exit == 0);
    const std::string whole = slurp(folder.path() / "o/sweep.csv");
    fs::remove(folder.path() / "o/sweep.csv");
    folder.write("o/points/1.csv", "");
    CHECK(into("o").exit == 0);
    CHECK(slurp(folder.path() / "o/sweep.csv") == whole);
}

TEST_CASE("--shard auto reads the batch system it runs under") {
    const auto is = [](const app::Shard& shard, std::int64_t index, std::int64_t count) {
        CHECK(shard.index == index);
        CHECK(shard.count == count);
    };
    // As sbatch --array=1-7:2 sets them; a task's own srun variables say rank 0 of 1.
    is(automatic({{"SLURM_ARRAY_TASK_ID", "5"},
                  {"SLURM_ARRAY_TASK_COUNT", "4"},
                  {"SLURM_ARRAY_TASK_MIN", "1"},
                  {"SLURM_ARRAY_TASK_MAX", "7"},
                  {"SLURM_ARRAY_TASK_STEP", "2"},
                  {"SLURM_PROCID", "0"},
                  {"SLURM_NTASKS", "1"}}),
       2, 4);
    is(automatic({{"JOB_COMPLETION_INDEX", "3"}}, 9), 3, 9);
    is(automatic({{"CLOUD_RUN_TASK_INDEX", "0"}, {"CLOUD_RUN_TASK_COUNT", "5"}}), 0, 5);
    is(automatic({{"AWS_BATCH_JOB_ARRAY_INDEX", "4"}, {"AWS_BATCH_JOB_ARRAY_SIZE", "5"}}), 4, 5);
    is(automatic({{"SGE_TASK_ID", "5"}, {"SGE_TASK_FIRST", "3"}, {"SGE_TASK_LAST", "9"}, {"SGE_TASK_STEPSIZE", "2"}}), 1, 4);
    is(automatic({{"SGE_TASK_ID", "undefined"}, {"PBS_ARRAY_INDEX", "2"}}, 4), 2, 4);
    is(automatic({{"LSB_JOBINDEX", "2"}, {"LSB_JOBINDEX_END", "8"}}), 1, 8);
    is(automatic({{"LSB_JOBINDEX", "4"}, {"LSB_JOBINDEX_END", "10"}, {"LSB_JOBINDEX_STEP", "3"}}), 1, 4);
    is(automatic({{"LSB_JOBINDEX", "0"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}), 1, 2);
    is(automatic({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "3"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "3"}}),
       1, 3);
    is(automatic({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}), 0, 1);
    CHECK_THROWS_AS(automatic({}), UserError);
    CHECK_THROWS_AS(automatic({{"JOB_COMPLETION_INDEX", "3"}}), UserError);  // how many?
    CHECK_THROWS_AS(automatic({{"JOB_COMPLETION_INDEX", "x"}}, 4), UserError);
    CHECK_THROWS_AS(automatic({{"CLOUD_RUN_TASK_INDEX", "5"}, {"CLOUD_RUN_TASK_COUNT", "5"}}), UserError);
    CHECK_THROWS_AS(automatic({{"SLURM_ARRAY_TASK_ID", "1"},
                               {"SLURM_ARRAY_TASK_COUNT", "4"},
                               {"SLURM_ARRAY_TASK_MIN", "0"},
                               {"OMPI_COMM_WORLD_RANK", "2"},
                               {"OMPI_COMM_WORLD_SIZE", "4"}}),
                    UserError);  // two that disagree
}

}  // namespace kvsim::test
