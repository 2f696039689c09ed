#pragma once
// Helpers of the workload tests.

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvsim/base/check.hpp"
#include "kvsim/config/load.hpp"
#include "kvsim/model/pieces.hpp"
#include "kvsim/model/workload_pieces.hpp"

namespace kvsim::test {

inline config::Value yaml(const std::string& text) {
    config::Diagnostics diagnostics;
    config::Value value = config::parse_yaml(text, "t.yaml", diagnostics);
    REQUIRE_MESSAGE(diagnostics.ok(), text);
    return value;
}

/// The law of `{tokens: TEXT}`.
inline std::unique_ptr<LengthLaw> law(const std::string& text) {
    config::Diagnostics diagnostics;
    auto made = make_length_law(*yaml("tokens: " + text).find("tokens"), "tokens", diagnostics);
    for (const std::string& e : diagnostics.errors()) MESSAGE(e);
    REQUIRE(made);
    return made;
}

/// The first line of the only error, or every error if there are several.
inline std::string only_error(const config::Diagnostics& diagnostics) {
    std::string all;
    for (const std::string& e : diagnostics.errors()) {
        if (!all.empty()) all += '\n';
        all.append(e, 0, e.find('\n'));
    }
    return all;
}

inline std::string law_error(const std::string& text) {
    config::Diagnostics diagnostics;
    const auto made = make_length_law(*yaml("tokens: " + text).find("tokens"), "tokens", diagnostics);
    CHECK(made == nullptr);
    return only_error(diagnostics);
}

inline config::WorkloadConfig workload_config(const std::string& text) {
    const config::Value root = yaml(text);
    config::WorkloadConfig c;
    c.mark = root.mark;
    config::Diagnostics d;
    if (const auto* v = root.find("requests")) decode(*v, c.requests, "requests", config::any, d);
    if (const auto* v = root.find("duration")) decode(*v, c.duration, "duration", config::any, d);
    if (const auto* v = root.find("rate_scale")) decode(*v, c.rate_scale, "rate_scale", config::any, d);
    if (const auto* v = root.find("max_concurrency")) decode(*v, c.max_concurrency, "max_concurrency", config::any, d);
    REQUIRE(d.ok());
    for (const auto& [key, value] :
         {std::pair{"arrivals", &c.arrivals}, std::pair{"prompt_tokens", &c.prompt_tokens},
          std::pair{"output_tokens", &c.output_tokens}, std::pair{"prefix", &c.prefix}, std::pair{"trace", &c.trace}}) {
        if (const auto* v = root.find(key)) *value = *v;
    }
    return c;
}

inline std::unique_ptr<Workload> workload(const std::string& text, std::uint64_t seed = 1) {
    config::Diagnostics diagnostics;
    auto made = make_workload(workload_config(text), seed, {}, diagnostics);
    for (const std::string& e : diagnostics.errors()) MESSAGE(e);
    REQUIRE(made);
    return made;
}

inline std::string workload_error(const std::string& text) {
    config::Diagnostics diagnostics;
    CHECK(make_workload(workload_config(text), 1, {}, diagnostics) == nullptr);
    return only_error(diagnostics);
}

inline std::vector<Arrival> drain(Workload& w) {
    std::vector<Arrival> out;
    while (const auto t = w.next_time()) {
        Arrival a;
        w.pop(a);
        CHECK(a.time == *t);
        out.push_back(a);
    }
    return out;
}

inline std::int64_t ns(const Arrival& a) {
    return a.time.time_since_epoch().count();
}

/// The shared data folder, or nullopt after saying that the test is skipped; in CI its absence fails.
inline std::optional<std::filesystem::path> shared_trace(const std::string& file) {
    const char* root = std::getenv("KVSIM_SHARED");
    const std::filesystem::path base = root ? root : KVSIM_SOURCE_DIR "/../shared";
    std::filesystem::path path = base / "data" / "traces" / file;
    if (std::filesystem::exists(path)) return path;
    const char* ci = std::getenv("CI");
    if (ci && std::string(ci) == "true") {
        FAIL("missing " << path.string());
    } else {
        MESSAGE("skipped: no " << path.string());
    }
    return std::nullopt;
}

}  // namespace kvsim::test
