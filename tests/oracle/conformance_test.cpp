#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "naive_conformance.hpp"

namespace fs = std::filesystem;

TEST_CASE("oracle: the naive engine takes every recorded decision of vLLM V1") {
    const char* variable = std::getenv("KVSIM_SHARED");
    const fs::path shared = variable != nullptr ? fs::path(variable) : fs::path(KVSIM_SOURCE_DIR) / ".." / "shared";
    const fs::path folder = shared / "golden" / "vllm_v1";
    if (!fs::is_directory(folder)) {
        const char* ci = std::getenv("CI");
        REQUIRE_MESSAGE((ci == nullptr || std::string(ci) != "true"), "no recorded decisions at " << folder.string());
        MESSAGE("skipped: no recorded decisions at " << folder.string());
        return;
    }
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        const std::string file = entry.path().filename().string();
        if (file.ends_with(".in.json")) names.push_back(file.substr(0, file.size() - 8));
    }
    std::sort(names.begin(), names.end());
    CHECK(names.size() == 91);
    for (const std::string& name : names) {
        CAPTURE(name);
        CHECK(kvsim::oracle::first_difference_from_recording(folder / (name + ".in.json"), folder / (name + ".out.jsonl")) ==
              "");
    }
}
