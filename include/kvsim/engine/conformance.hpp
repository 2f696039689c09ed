#pragma once
// Replays recorded engine inputs with unit steps and compares every field of every decision.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvsim {

struct ConformanceResult {
    std::string name;
    std::int64_t steps = 0;  ///< replayed: to the first difference
    std::int64_t preemptions = 0;
    bool same = true;
    std::string difference;  ///< the first one: step, field, expected and got
};

/// The NAME.in.json files of `directory`, sorted. Throws UserError when there is none or NAME.out.jsonl is missing.
std::vector<std::filesystem::path> conformance_inputs(const std::filesystem::path& directory);

/// Replays one input and compares with the NAME.out.jsonl beside it. Throws UserError on a malformed file or an engine
/// that kvsim does not have. `engine`: vllm-v1, vllm-v0, sglang, or empty: told
/// from the config's keys.
ConformanceResult replay(const std::filesystem::path& input, const std::string& engine);

}  // namespace kvsim
