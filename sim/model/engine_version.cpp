#include "kvsim/model/engine_version.hpp"

#include <algorithm>
#include <cctype>
#include <tuple>

namespace kvsim {

bool EngineVersion::at_least(int want_major, int want_minor, int want_patch) const {
    return std::tuple(major, minor, patch) >= std::tuple(want_major, want_minor, want_patch);
}

std::string EngineVersion::text() const {
    const std::string number = std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
    switch (family) {
        case EngineFamily::sglang:
            return "SGLang";
        case EngineFamily::trtllm:
            return "TensorRT-LLM";
        case EngineFamily::vllm:
            break;
    }
    return "vLLM " + number + (v0 && at_least(0, 8) ? " V0" : "");
}

std::optional<EngineVersion> parse_engine_version(std::string_view text) {
    std::string low;
    for (const char c : text) low += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const auto take = [&low](std::string_view word) {
        if (!std::string_view(low).starts_with(word)) return false;
        low.erase(0, word.size());
        return true;
    };
    EngineVersion version;
    const bool named = take("vllm");
    if (!named) {
        if (take("sglang")) {
            version.family = EngineFamily::sglang;
        } else if (take("tensorrt-llm") || take("tensorrt_llm") || take("trtllm") || take("trt-llm")) {
            version.family = EngineFamily::trtllm;
        } else if (low.empty() || std::isdigit(static_cast<unsigned char>(low[0])) == 0) {
            return std::nullopt;
        }
    }
    while (!low.empty() && std::string_view("-_@ =v").find(low[0]) != std::string_view::npos) low.erase(0, 1);
    if (low.empty()) return version;
    // major.minor[.patch][anything]
    int numbers[3] = {0, 0, 0};
    std::size_t at = 0;
    int count = 0;
    for (; count < 3; ++count) {
        const std::size_t begin = at;
        int value = 0;
        while (at < low.size() && std::isdigit(static_cast<unsigned char>(low[at])) != 0 && at - begin < 6) {
            value = value * 10 + (low[at++] - '0');
        }
        if (at == begin) break;
        numbers[count] = value;
        if (at >= low.size() || low[at] != '.') {
            ++count;
            break;
        }
        ++at;
    }
    if (count == 0 || (version.is_vllm() && count < 2)) return std::nullopt;
    const std::string rest = low.substr(at);
    if (!rest.empty() && std::isdigit(static_cast<unsigned char>(rest[0])) != 0) return std::nullopt;
    version.major = numbers[0];
    version.minor = numbers[1];
    version.patch = numbers[2];
    version.v0 = version.is_vllm() && (rest.find("v0") != std::string::npos || !version.at_least(0, 8));
    return version;
}

EngineVersion version_of_preset(std::string_view preset) {
    EngineVersion version;
    if (preset == "vllm-v1-2026-01") version.minor = 13;
    if (preset == "vllm-v0") {
        version.minor = 8;
        version.patch = 5;
        version.v0 = true;
    }
    if (preset.starts_with("sglang")) version.family = EngineFamily::sglang;
    if (preset.starts_with("trtllm")) version.family = EngineFamily::trtllm;
    return version;
}

double default_memory_utilization(const EngineVersion& version, std::int64_t tp) {
    if (version.family == EngineFamily::sglang)
        return tp >= 16 ? 0.79 : tp >= 8 ? 0.81 : tp >= 4 ? 0.85 : tp >= 2 ? 0.87 : 0.88;
    if (version.family == EngineFamily::trtllm) return 0.9;
    return version.at_least(0, 21) ? 0.92 : 0.9;
}

}  // namespace kvsim
