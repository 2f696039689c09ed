#pragma once
// What the model tests share: the catalogue, deployments from YAML text, and the measured data beside the checkout.

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "kvsim/config/load.hpp"
#include "kvsim/model/deployment.hpp"

namespace kvsim::test {

inline const Catalog& catalog() {
    static const Catalog opened(std::filesystem::path(KVSIM_SOURCE_DIR) / "scenarios" / "catalog");
    return opened;
}

inline ModelSpec model(const std::string& name) {
    config::Diagnostics diagnostics;
    auto found = catalog().model(name, {}, diagnostics);
    for (const std::string& error : diagnostics.errors()) FAIL_CHECK(error);
    REQUIRE(found.has_value());
    return *found;
}

inline GpuSpec gpu(const std::string& name) {
    config::Diagnostics diagnostics;
    auto found = catalog().gpu(name, {}, diagnostics);
    for (const std::string& error : diagnostics.errors()) FAIL_CHECK(error);
    REQUIRE(found.has_value());
    return *found;
}

inline config::Value yaml(const std::string& text) {
    config::Diagnostics diagnostics;
    config::Value value = config::parse_yaml(text, "test.yaml", diagnostics);
    for (const std::string& error : diagnostics.errors()) FAIL_CHECK(error);
    return value;
}

/// The folder of measured data, or empty: then the test is skipped with a message (an error under CI=true).
inline std::filesystem::path shared_data() {
    const char* chosen = std::getenv("KVSIM_SHARED");
    const std::filesystem::path folder =
        (chosen != nullptr ? std::filesystem::path(chosen) : std::filesystem::path(KVSIM_SOURCE_DIR) / ".." / "shared") /
        "data";
    if (std::filesystem::exists(folder)) return folder;
    const char* ci = std::getenv("CI");
    if (ci != nullptr && std::string(ci) == "true") FAIL("no shared data at " << folder.string());
    MESSAGE("skipped: no shared data at " << folder.string());
    return {};
}

using Row = std::map<std::string, std::string>;

/// RFC 4180 without line breaks inside fields.
inline std::vector<Row> read_csv(const std::filesystem::path& path) {
    std::ifstream in(path);
    std::vector<Row> rows;
    std::vector<std::string> header;
    std::string line;
    while (std::getline(in, line)) {
        std::vector<std::string> cells(1);
        bool quoted = false;
        for (std::size_t i = 0; i < line.size(); ++i) {
            if (line[i] == '"') {
                if (quoted && i + 1 < line.size() && line[i + 1] == '"') {
                    cells.back() += line[++i];
                } else {
                    quoted = !quoted;
                }
            } else if (line[i] == ',' && !quoted) {
                cells.emplace_back();
            } else if (line[i] != '\r') {
                cells.back() += line[i];
            }
        }
        if (header.empty()) {
            header = cells;
            continue;
        }
        Row row;
        for (std::size_t i = 0; i < header.size() && i < cells.size(); ++i) row[header[i]] = cells[i];
        rows.push_back(std::move(row));
    }
    return rows;
}

}  // namespace kvsim::test
