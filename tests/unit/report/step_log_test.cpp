#include "kvsim/report/step_log.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "sample_run.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

StepRecord sample_record() {
    StepRecord r;
    r.step = 3;
    r.scheduled = {{0, 1, 12, ScheduledRow::Kind::running, {8}},
                   {2, 5, 4, ScheduledRow::Kind::fresh, {1, 2, 3}},
                   {1, 2, 8, ScheduledRow::Kind::resumed, {}}};
    r.total_tokens = 8;
    r.preempted = {4};
    r.free_after_schedule = 92;
    r.updated_step = 2;
    r.received = {0, 1};
    r.finished = {1};
    r.free_after_update = 93;
    r.running = {0, 2};
    r.waiting = {4};
    r.start = SimTime(ms(7));
    r.duration = SimDuration(1234);
    return r;
}

std::string named(RequestId id) {
    return id == 4 ? "a \"b\"" : std::to_string(id);
}

constexpr const char* expected_record =
    R"({"step":3,"sched":[{"id":"0","n":1,"c":12,"k":"running","b":[8]},{"id":"2","n":5,"c":4,"k":"new","b":[1,2,3]},)"
    R"({"id":"1","n":2,"c":8,"k":"resumed","b":[]}],"total":8,"preempted":["a \"b\""],"free_sched":92,"upd":2,"tok":["0","1"],)"
    R"("finished":["1"],"free":93,"running":2,"waiting":1,"running_ids":["0","2"],"waiting_ids":["a \"b\""])";

}  // namespace

TEST_CASE("step log: a record field by field") {
    CHECK(to_json(sample_record(), named, false) == std::string(expected_record) + "}");
    CHECK(to_json(sample_record(), named, true) == std::string(expected_record) + R"(,"t_ns":7000000,"duration_ns":1234})");
    StepRecord first = sample_record();
    first.updated_step = StepRecord::none;
    CHECK(to_json(first, named, false).find(R"("upd":null)") != std::string::npos);
}

TEST_CASE("step log: the file and its last line") {
    const TemporaryFile file("steps.jsonl");
    const std::vector<RequestId> unfinished{4};
    {
        StepLog log(file.path, named, 1, 100);
        log.add(0, sample_record());
        CHECK_FALSE(std::filesystem::exists(file.path));
        log.finish("stalled", unfinished);
    }
    CHECK(file.text() == std::string(expected_record) + ",\"t_ns\":7000000,\"duration_ns\":1234}\n" +
                             R"({"end":"stalled","steps":1,"last_step":3,"preemptions":1,"finished":1,"scheduled_tokens":8,)"
                             R"("hit_tokens":12,"free":93,"unfinished":["a \"b\""]})"
                             "\n");
    {
        StepLog log(file.path, named, 2, 100);
        log.add(1, sample_record());
        log.finish("done", {});
    }
    CHECK(file.text().find(R"("duration_ns":1234,"replica":1})") != std::string::npos);
    CHECK(file.text().find(R"("free":193,"unfinished":[]})") != std::string::npos);  // the idle replica's 100 are free
    {
        StepLog abandoned(file.path, named, 1, 100);
        abandoned.add(0, sample_record());
    }
    CHECK(file.text().find(R"("free":193)") != std::string::npos);
}

TEST_CASE("step log: recorded engine decisions survive being read and written, byte for byte") {
    const char* shared = std::getenv("KVSIM_SHARED");
    const std::filesystem::path folder =
        (shared != nullptr ? std::filesystem::path(shared) : std::filesystem::path(KVSIM_SOURCE_DIR) / ".." / "shared") /
        "golden" / "vllm_v1";
    if (!std::filesystem::is_directory(folder)) {
        const char* ci = std::getenv("CI");
        if (ci != nullptr && std::string(ci) == "true") FAIL("recorded decisions are missing");
        MESSAGE("skipped: no recorded decisions");
        return;
    }
    int lines = 0;
    for (const char* name : {"a10_prio_self", "a22_resume_hits", "a06_preempt_min", "a15_max_model_len"}) {
        std::ifstream in(folder / (std::string(name) + ".out.jsonl"));
        REQUIRE(in);
        std::map<std::string, RequestId> ids;
        std::vector<std::string> names;
        const auto id = [&](const nlohmann::json& text) {
            const auto [at, added] = ids.emplace(text.get<std::string>(), static_cast<RequestId>(ids.size()));
            if (added) names.push_back(at->first);
            return at->second;
        };
        const auto list = [&](const nlohmann::json& array) {
            std::vector<RequestId> out;
            for (const auto& item : array) out.push_back(id(item));
            return out;
        };
        const auto names_of = [&](RequestId i) { return names[i]; };
        StepLogSummary summary;
        std::string line;
        while (std::getline(in, line)) {
            ++lines;
            const auto json = nlohmann::json::parse(line);
            if (json.contains("end")) {
                CHECK(to_json(summary, json["end"].get<std::string>(), list(json["unfinished"]), names_of) == line);
                continue;
            }
            StepRecord r;
            r.step = json["step"];
            for (const auto& row : json["sched"]) {
                const std::string kind = row["k"];
                r.scheduled.push_back({id(row["id"]), row["n"], row["c"],
                                       kind == "new"       ? ScheduledRow::Kind::fresh
                                       : kind == "resumed" ? ScheduledRow::Kind::resumed
                                                           : ScheduledRow::Kind::running,
                                       row["b"].get<std::vector<std::int64_t>>()});
            }
            r.total_tokens = json["total"];
            r.preempted = list(json["preempted"]);
            r.free_after_schedule = json["free_sched"];
            if (!json["upd"].is_null()) r.updated_step = json["upd"];
            r.received = list(json["tok"]);
            r.finished = list(json["finished"]);
            r.free_after_update = json["free"];
            r.running = list(json["running_ids"]);
            r.waiting = list(json["waiting_ids"]);
            CHECK(to_json(r, names_of, false) == line);
            summary.add(r);
        }
    }
    CHECK(lines > 50);
}
