#include "kvsim/engine/conformance.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "conformance_format.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"

namespace kvsim {
namespace {

Json parse(const std::string& text, const std::string& where) {
    try {
        return Json::parse(text);
    } catch (const Json::exception& e) { throw UserError(where + ": error: not JSON: " + e.what()); }
}

std::unique_ptr<Recording> open_recording(const Json& json, const std::string& where, const std::string& engine) {
    std::string names;
    try {
        const Json& config = json.at("config");
        for (const Entry<OpenRecording>& format : conformance_formats()) {
            names += (names.empty() ? "" : ", ") + std::string(format.name);
            if (engine.empty() ? !format.make.matches(config) : engine != format.name) continue;
            std::unique_ptr<Recording> recording = format.make.open(json, where);
            recording->name = json.at("name").get<std::string>();
            if (json.value("max_steps", std::int64_t{1}) < 1) throw UserError(where + ": error: max_steps must be at least 1");
            return recording;
        }
    } catch (const Json::exception& e) { throw UserError(where + ": error: not a recorded input: " + e.what()); }
    throw UserError(where + ": error: no recordings of " + (engine.empty() ? "this kind" : engine) + " are known (" + names +
                    ")");
}

/// "field: expected A, got B" for the first difference below `path`, or "".
std::string first_difference(const Json& expected, const Json& got, const std::string& path, const Recording& recording) {
    if (expected.is_object() && got.is_object()) {
        for (const auto& [key, value] : expected.items()) {
            const std::string inner = path.empty() ? key : path + "." + key;
            if (!recording.compares(inner)) continue;
            if (!got.contains(key)) return inner + ": expected " + value.dump() + ", got nothing";
            if (std::string d = first_difference(value, got.at(key), inner, recording); !d.empty()) return d;
        }
        for (const auto& [key, value] : got.items()) {
            const std::string inner = path.empty() ? key : path + "." + key;
            if (!expected.contains(key) && recording.compares(inner)) return inner + ": expected nothing, got " + value.dump();
        }
        return "";
    }
    if (expected.is_array() && got.is_array()) {
        for (std::size_t i = 0; i < std::min(expected.size(), got.size()); ++i) {
            if (std::string d = first_difference(expected[i], got[i], path + "[" + std::to_string(i) + "]", recording);
                !d.empty()) {
                return d;
            }
        }
        if (expected.size() == got.size()) return "";
        return path + ": expected " + expected.dump() + ", got " + got.dump();
    }
    if (expected == got) return "";
    return path + ": expected " + expected.dump() + ", got " + got.dump();
}

std::filesystem::path expected_path(const std::filesystem::path& input) {
    std::string name = input.filename().string();
    return input.parent_path() / (name.substr(0, name.size() - std::string(".in.json").size()) + ".out.jsonl");
}

}  // namespace

std::vector<std::filesystem::path> conformance_inputs(const std::filesystem::path& directory) {
    std::error_code error;
    std::vector<std::filesystem::path> inputs;
    for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
        const std::string name = entry.path().filename().string();
        if (name.size() > 8 && name.compare(name.size() - 8, 8, ".in.json") == 0) inputs.push_back(entry.path());
    }
    if (error) throw UserError(directory.string() + ": error: " + error.message());
    if (inputs.empty()) throw UserError(directory.string() + ": error: no NAME.in.json file here");
    std::sort(inputs.begin(), inputs.end());
    for (const auto& input : inputs) {
        if (!std::filesystem::exists(expected_path(input))) {
            throw UserError(expected_path(input).string() + ": error: missing beside " + input.filename().string());
        }
    }
    return inputs;
}

ConformanceResult replay(const std::filesystem::path& input, const std::string& engine) {
    const Json json = parse(read_file(input), input.string());
    const std::unique_ptr<Recording> recording = open_recording(json, input.string(), engine);
    const std::filesystem::path out = expected_path(input);
    const std::string text = read_file(out);
    std::size_t at = 0;
    int line_number = 0;
    ConformanceResult result;
    result.name = recording->name;

    // False after the first difference: a record that leaves the expected one need not end.
    const auto compare = [&](const Json& got) {
        while (at < text.size() && text[at] == '\n') ++at, ++line_number;
        ++line_number;
        const std::string where = got.contains("end") ? "summary" : "step " + got.at("step").dump();
        if (at >= text.size()) {
            result.same = false;
            result.difference = where + ": expected the end of the record, got " + got.dump().substr(0, 200);
            return false;
        }
        const std::size_t end = std::min(text.find('\n', at), text.size());
        const Json expected = parse(text.substr(at, end - at), out.string() + ":" + std::to_string(line_number));
        at = std::min(end + 1, text.size());
        if (std::string d = first_difference(expected, got, "", *recording); !d.empty()) {
            result.same = false;
            result.difference = where + ", " + d;
        }
        return result.same;
    };
    const Recording::Totals totals = recording->replay(compare);
    if (result.same && text.find_first_not_of("\r\n ", at) != std::string::npos) {
        result.same = false;
        result.difference = "after the summary: expected " + text.substr(at, 200) + ", got nothing";
    }
    result.steps = totals.steps;
    result.preemptions = totals.preemptions;
    return result;
}

}  // namespace kvsim
