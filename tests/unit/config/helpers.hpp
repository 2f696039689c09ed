#pragma once

#include <string>
#include <string_view>

#include "kvsim/base/check.hpp"
#include "kvsim/config/diagnostics.hpp"
#include "kvsim/config/load.hpp"
#include "kvsim/config/scenario.hpp"

namespace kvsim::config::test {

/// What the user would see; empty when nothing is wrong.
inline std::string complaints(const Diagnostics& diagnostics) {
    try {
        diagnostics.throw_if_errors();
    } catch (const UserError& e) { return e.what(); }
    return "";
}

/// What parse_yaml alone says about `text`, named "t.yaml".
inline std::string parse_complaints(std::string_view text) {
    Diagnostics diagnostics;
    parse_yaml(text, "t.yaml", diagnostics);
    return complaints(diagnostics);
}

struct Reading {
    Scenario scenario;
    std::string complaints;
    std::vector<std::string> warnings;
};

inline Reading read_text(std::string_view text, const std::filesystem::path& file = "t.yaml") {
    Diagnostics diagnostics;
    const Value root = parse_yaml(text, file.string(), diagnostics);
    Scenario scenario = read_scenario(root, file, diagnostics);
    return {std::move(scenario), complaints(diagnostics), diagnostics.warnings()};
}

inline bool contains(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

}  // namespace kvsim::config::test
