#pragma once
// Replays a recorded scenario (NAME.in.json) through NaiveEngine step by step and compares with NAME.out.jsonl.

#include <filesystem>
#include <string>

namespace kvsim::oracle {

/// Empty when every field of every record and of the summary agrees; else the first difference.
std::string first_difference_from_recording(const std::filesystem::path& in_json, const std::filesystem::path& out_jsonl);

}  // namespace kvsim::oracle
