// Replaying recorded decisions: all are met, and nothing that differs goes unnoticed.

#include "kvsim/engine/conformance.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvsim/base/check.hpp"
#include "unit/app/cli.hpp"

namespace fs = std::filesystem;
using namespace kvsim;
using namespace kvsim::test;
using Json = nlohmann::ordered_json;

namespace {

const fs::path recordings = fs::path(KVSIM_SOURCE_DIR) / "tests" / "golden" / "vllm_v1";

std::int64_t replay_all(const fs::path& folder) {
    std::int64_t replayed = 0;
    for (const fs::path& input : conformance_inputs(folder)) {
        const ConformanceResult result = replay(input, "");
        CHECK_MESSAGE(result.same, result.name << ": " << result.difference);
        CHECK(result.steps > 0);
        ++replayed;
    }
    return replayed;
}

/// One recording's lines in a folder of its own, to be changed.
class Copy {
public:
    explicit Copy(const std::string& name) : name_(name) {
        input_ = folder_.write(name + ".in.json", slurp(recordings / (name + ".in.json")));
        const std::string text = slurp(recordings / (name + ".out.jsonl"));
        for (std::size_t at = 0; at < text.size();) {
            const std::size_t end = text.find('\n', at);
            lines.push_back(Json::parse(text.substr(at, end - at)));
            at = end + 1;
        }
    }
    /// What replaying against the changed record says; empty: nothing differs.
    std::string difference() {
        std::string text;
        for (const Json& line : lines) text += line.dump() + "\n";
        folder_.write(name_ + ".out.jsonl", text);
        const ConformanceResult result = replay(input_, "");
        CHECK(result.same == result.difference.empty());
        return result.difference;
    }
    [[nodiscard]] const TemporaryFolder& folder() const { return folder_; }
    /// The index of the first line of which `wanted` holds.
    [[nodiscard]] std::size_t first(const std::function<bool(const Json&)>& wanted) const {
        for (std::size_t i = 0; i < lines.size(); ++i) {
            if (wanted(lines[i])) return i;
        }
        FAIL("the recording has no such line");
        return 0;
    }

    std::vector<Json> lines;

private:
    TemporaryFolder folder_;
    std::string name_;
    fs::path input_;
};

/// "/sched/0/n" -> "sched[0].n"
std::string path_of(std::string_view pointer) {
    std::string path;
    bool index = false;
    for (std::size_t i = 0; i < pointer.size(); ++i) {
        if (pointer[i] != '/') {
            path += pointer[i];
            continue;
        }
        if (index) path += ']';
        index = pointer[i + 1] >= '0' && pointer[i + 1] <= '9';
        if (index) {
            path += '[';
        } else if (i > 0) {
            path += '.';
        }
    }
    if (index) path += ']';
    return path;
}

std::string step_of(const Json& line) {
    return "step " + line.at("step").dump() + ", ";
}

}  // namespace

TEST_CASE("conformance: every recorded decision in tests/golden/vllm_v1 is taken") {
    CHECK(replay_all(recordings) == 47);
}

TEST_CASE("conformance: all recordings beside the checkout") {
    const char* variable = std::getenv("KVSIM_SHARED");
    const fs::path shared = variable != nullptr ? fs::path(variable) : fs::path(KVSIM_SOURCE_DIR) / ".." / "shared";
    const fs::path folder = shared / "golden" / "vllm_v1";
    if (!fs::is_directory(folder)) {
        const char* ci = std::getenv("CI");
        REQUIRE_MESSAGE((ci == nullptr || std::string(ci) != "true"), "no recorded decisions at " << folder.string());
        MESSAGE("skipped: no recorded decisions at " << folder.string());
        return;
    }
    CHECK(replay_all(folder) == 91);
}

TEST_CASE("conformance: a falsified step is named with its field, the recorded and our value") {
    struct Lie {
        const char* recording;
        std::function<bool(const Json&)> where;
        const char* field;  // JSON pointer
        Json value;
    };
    const auto has = [](const char* key) {
        return [key](const Json& line) { return line.contains(key) && !line.at(key).empty(); };
    };
    const auto second_step = [](const Json& line) { return line.contains("step") && line.at("step") == 2; };
    const std::vector<Lie> lies{
        {"h03_chunked_long", has("sched"), "/sched/0/n", 9},
        {"h03_chunked_long", second_step, "/sched/0/c", 1},
        {"h01_single", has("sched"), "/sched/0/k", "resumed"},
        {"h01_single", has("sched"), "/sched/0/b/2", 77},
        {"h01_single", has("sched"), "/sched/0/id", "zz"},
        {"h06_preempt_min", has("preempted"), "/preempted/0", "zz"},
        {"h06_preempt_min", has("preempted"), "/preempted", Json::array()},
        {"h01_single", second_step, "/total", 2},
        {"h01_single", second_step, "/free_sched", 4},
        {"h01_single", second_step, "/free", 4},
        {"h01_single", second_step, "/upd", 1},
        {"a01_single", second_step, "/upd", nullptr},
        {"h01_single", second_step, "/tok", Json::array()},
        {"h02_over_budget", has("finished"), "/finished/0", "zz"},
        {"h01_single", second_step, "/running", 7},
        {"h01_single", second_step, "/waiting", 7},
        {"h02_over_budget", has("running_ids"), "/running_ids/0", "zz"},
        {"h12_never_fits", has("waiting_ids"), "/waiting_ids/0", "zz"},
        {"h12_never_fits", has("waiting_ids"), "/waiting_ids", Json::array()},
        {"h01_single", second_step, "/step", 3},
    };
    for (const Lie& lie : lies) {
        CAPTURE(lie.recording);
        CAPTURE(lie.field);
        Copy copy(lie.recording);
        CHECK(copy.difference().empty());
        Json& line = copy.lines[copy.first(lie.where)];
        const Json honest = line;
        const Json::json_pointer pointer(lie.field);
        const Json truth = line.at(pointer);
        REQUIRE(truth != lie.value);
        line[pointer] = lie.value;

        CHECK(copy.difference() ==
              step_of(honest) + path_of(lie.field) + ": expected " + lie.value.dump() + ", got " + truth.dump());
    }
}

TEST_CASE("conformance: a falsified summary is named field by field") {
    Copy copy("a22_resume_hits");
    const Json honest = copy.lines.back();
    REQUIRE(honest.contains("end"));
    CHECK(honest.size() == 9);
    for (const auto& field : honest.items()) {
        const std::string& key = field.key();
        const Json& truth = field.value();
        CAPTURE(key);
        Json lie;
        if (truth.is_number()) lie = truth.get<std::int64_t>() + 1;
        if (truth.is_string()) lie = "max_steps";
        if (truth.is_array()) lie = Json::array({"zz"});
        copy.lines.back() = honest;
        copy.lines.back()[key] = lie;
        CHECK(copy.difference() == "summary, " + key + ": expected " + lie.dump() + ", got " + truth.dump());
    }
}

TEST_CASE("conformance: missing and additional lines and fields are differences") {
    const auto differs = [](const std::function<void(std::vector<Json>&)>& change) {
        Copy copy("h02_over_budget");
        change(copy.lines);
        return copy.difference();
    };
    CHECK(differs([](auto&) {}).empty());
    CHECK(differs([](auto& l) { l.erase(l.begin() + 1); }).rfind("step 1, step: expected 2, got 1", 0) == 0);
    CHECK(differs([](auto& l) { l.pop_back(); }).rfind("summary: expected the end of the record, got {", 0) == 0);
    CHECK(differs([](auto& l) { l.clear(); }).rfind("step 0: expected the end of the record, got {", 0) == 0);
    CHECK(differs([](auto& l) { l.insert(l.begin() + 1, l[0]); }).rfind("step 1, step: expected 0, got 1", 0) == 0);
    CHECK(differs([](auto& l) { l.push_back(l[0]); }).rfind("after the summary: expected {\"step\":0", 0) == 0);
    CHECK(differs([](auto& l) { l[1].erase("upd"); }) == "step 1, upd: expected nothing, got 1");
    CHECK(differs([](auto& l) { l[1]["more"] = 1; }) == "step 1, more: expected 1, got nothing");
    CHECK(differs([](auto& l) { l[0]["sched"].erase(0); }).rfind("step 0, sched", 0) == 0);
    CHECK(differs([](auto& l) { l[0]["sched"].push_back(l[0]["sched"][0]); }).rfind("step 0, sched: expected [", 0) == 0);
    CHECK(differs([](auto& l) { l[0]["sched"][0].erase("k"); }) == "step 0, sched[0].k: expected nothing, got \"new\"");
    CHECK(differs([](auto& l) { std::swap(l[0]["sched"][0], l[0]["sched"][1]); }).rfind("step 0, sched[0].id: expected ", 0) ==
          0);
}

TEST_CASE("conformance: the program exits 0, 1 for a difference, 2 for a malformed recording") {
    Copy copy("h01_single");
    const auto program = [&copy] { return run_in(copy.folder(), {"conformance", "."}); };
    CHECK(copy.difference().empty());
    Finished done = program();
    CHECK(done.exit == 0);
    CHECK(done.out == "h01_single: same (6 steps, 0 preemptions)\n1 of 1 recordings the same, 6 steps\n");

    copy.lines[3]["free"] = 5;
    CHECK_FALSE(copy.difference().empty());
    done = program();
    CHECK(done.exit == 1);
    CHECK(done.out == "h01_single: DIFFERENT: step 3, free: expected 5, got 96\n0 of 1 recordings the same, 4 steps\n");

    copy.folder().write("h01_single.out.jsonl", "{\"step\":0,\n");
    done = program();
    CHECK(done.exit == 2);
    CHECK(done.err.find("h01_single.out.jsonl:1") != std::string::npos);
    fs::remove(copy.folder().path() / "h01_single.out.jsonl");
    done = program();
    CHECK(done.exit == 2);
    CHECK(done.err.find("h01_single.out.jsonl") != std::string::npos);
    fs::remove(copy.folder().path() / "h01_single.in.json");
    CHECK(program().exit == 2);
    CHECK(run_in(copy.folder(), {"conformance", "nowhere"}).exit == 2);
    CHECK(run_in(copy.folder(), {"conformance"}).exit == 2);
}

TEST_CASE("conformance: malformed inputs are refused with the file's name, never misread") {
    const TemporaryFolder folder;
    const Json good = Json::parse(slurp(recordings / "h01_single.in.json"));
    const fs::path path = folder.write("x.in.json", good.dump());
    folder.write("x.out.jsonl", slurp(recordings / "h01_single.out.jsonl"));
    CHECK(replay(path, "").same);
    CHECK(replay(path, "vllm-v1").same);
    CHECK_THROWS_AS(replay(path, "sglang"), UserError);

    const auto refused = [&](const std::string& text) {
        CAPTURE(text);
        folder.write("x.in.json", text);
        try {
            replay(path, "");
        } catch (const UserError& e) {
            CHECK(std::string(e.what()).find(path.string()) != std::string::npos);
            return;
        }
        FAIL_CHECK("it was accepted");
    };
    for (const char* text : {"", "{", "[]", "null", "5", "{}", "{\"name\":\"x\"}"}) refused(text);
    const auto changed = [&](const char* pointer, const Json& value) {
        Json bad = good;
        bad[Json::json_pointer(pointer)] = value;
        refused(bad.dump());
    };
    changed("/config", 1);
    changed("/config/speculative", true);
    changed("/config/policy", "lifo");
    changed("/config/block_size", "4");
    changed("/config/block_size", 0);
    changed("/config/num_gpu_blocks", 0);
    changed("/config/max_num_seqs", -1);
    changed("/config/max_num_batched_tokens", 0);
    changed("/config/enable_prefix_caching", "yes");
    changed("/config/max_total_num_tokens", 100);
    changed("/config/num_cpu_blocks", 100);
    changed("/max_steps", 0);
    changed("/max_steps", "many");
    changed("/requests", 3);
    changed("/requests/0", 3);
    changed("/requests/0/id", 3);
    changed("/requests/0/prompt_len", 11);
    changed("/requests/0/prompt_len", -10);
    changed("/requests/0/output_len", 0);
    changed("/requests/0/output_len", "many");
    changed("/requests/0/prompt", Json::array());
    changed("/requests/0/prompt/0", Json::array({1}));
    changed("/requests/0/output_base", "x");
    changed("/requests/1", good["requests"][0]);
    for (const char* key : {"num_gpu_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"}) {
        Json bad = good;
        bad["config"].erase(key);
        refused(bad.dump());
    }
    for (const char* key : {"id", "arrival_step", "prompt_len", "output_len", "output_base", "prompt"}) {
        Json bad = good;
        bad["requests"][0].erase(key);
        refused(bad.dump());
    }
    for (const char* text : {"5\n", "[]\n", "{}\n", "\n", ""}) {
        CAPTURE(text);
        folder.write("x.in.json", good.dump());
        folder.write("x.out.jsonl", text);
        CHECK_FALSE(replay(path, "").same);
    }
}

TEST_CASE("conformance: a replay ends at its first difference, also where the engine itself would go on for ever") {
    const TemporaryFolder folder;
    Json input = Json::parse(slurp(recordings / "h13b_outgrows_noreserve.in.json"));
    const std::string expected = slurp(recordings / "h13b_outgrows_noreserve.out.jsonl");
    input.erase("max_steps");
    const fs::path path = folder.write("x.in.json", input.dump());
    folder.write("x.out.jsonl", expected);
    const ConformanceResult result = replay(path, "");
    CHECK_FALSE(result.same);
    CHECK(result.steps == 61);
    CHECK(result.difference.rfind("step 60, ", 0) == 0);
}
