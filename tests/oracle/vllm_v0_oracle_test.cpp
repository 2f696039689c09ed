// vLLM V0: the naive form takes every recorded decision, the product takes the naive form's on random inputs, and no rule can
// be changed unnoticed.

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvsim/engine/conformance.hpp"
#include "naive_v0.hpp"

namespace fs = std::filesystem;

namespace kvsim::oracle {
namespace {

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
    const char* text = std::getenv(name);
    return text != nullptr ? std::stoull(text) : otherwise;
}

nlohmann::json parse_file(const fs::path& path) {
    std::ifstream in(path);
    return nlohmann::json::parse(in);
}

TEST_CASE("oracle: the naive form takes every recorded decision of vLLM V0") {
    const char* variable = std::getenv("KVSIM_SHARED");
    const fs::path shared = variable != nullptr ? fs::path(variable) : fs::path(KVSIM_SOURCE_DIR) / ".." / "shared";
    const fs::path folder = shared / "golden" / "vllm_v0";
    if (!fs::is_directory(folder)) {
        const char* ci = std::getenv("CI");
        REQUIRE_MESSAGE((ci == nullptr || std::string(ci) != "true"), "no recorded decisions at " << folder.string());
        MESSAGE("skipped: no recorded decisions at " << folder.string());
        return;
    }
    int recordings = 0;
    for (const fs::path& input : conformance_inputs(folder)) {
        CAPTURE(input.filename().string());
        ++recordings;
        nlohmann::json json = parse_file(input);
        if (!json.contains("max_steps")) json["max_steps"] = 100'000;
        const V0Replay ours = replay_v0(json);
        std::string out = input.string();
        out.replace(out.size() - std::string(".in.json").size(), std::string::npos, ".out.jsonl");
        std::ifstream lines(out);
        std::size_t i = 0;
        for (std::string line; std::getline(lines, line);) {
            if (line.empty()) continue;
            nlohmann::json recorded = nlohmann::json::parse(line);
            for (const char* pairs : {"in_b", "out_b", "copy_b"}) recorded.erase(pairs);
            REQUIRE(i < ours.lines.size());
            REQUIRE(ours.lines[i] == recorded);
            ++i;
        }
        CHECK(i == ours.lines.size());
    }
    CHECK(recordings == 94);
}

TEST_CASE("oracle: vLLM V0 decides as the naive form on random inputs") {
    const std::uint64_t first = from_environment("KVSIM_ORACLE_SEED", 0);
    const std::uint64_t scenarios = from_environment("KVSIM_ORACLE_SCENARIOS", 250);
    const fs::path folder = fs::temp_directory_path() / ("kvsim_v0_oracle_" + std::to_string(getpid()));
    fs::create_directories(folder);
    std::uint64_t compared = 0;
    for (std::uint64_t seed = first; seed < first + scenarios; ++seed) {
        const nlohmann::json input = random_v0_input(seed);
        const V0Replay naive = replay_v0(input);
        if (naive.unclear) continue;
        ++compared;
        std::ofstream(folder / "random.in.json") << input.dump();
        std::ofstream out(folder / "random.out.jsonl");
        for (const nlohmann::json& line : naive.lines) out << line.dump() << '\n';
        out.close();
        const ConformanceResult result = replay(folder / "random.in.json", "");
        CHECK_MESSAGE(result.same, "seed " << seed << ": " << result.difference);
    }
    fs::remove_all(folder);
    CHECK(compared * 10 > scenarios * 9);
}

TEST_CASE("oracle: no rule of vLLM V0 can be changed unnoticed") {
    std::vector<int> unnoticed;
    for (int m = 1; m < static_cast<int>(V0Mutation::count); ++m) unnoticed.push_back(m);
    for (std::uint64_t seed = 0; seed < 4000 && !unnoticed.empty(); ++seed) {
        const nlohmann::json input = random_v0_input(seed);
        const V0Replay right = replay_v0(input);
        std::erase_if(unnoticed, [&](int m) {
            try {
                return replay_v0(input, static_cast<V0Mutation>(m)).lines != right.lines;
            } catch (const std::exception&) { return true; }
        });
    }
    for (const int m : unnoticed) FAIL_CHECK("nothing tells mutation " << m << " from the rules");
}

}  // namespace
}  // namespace kvsim::oracle
