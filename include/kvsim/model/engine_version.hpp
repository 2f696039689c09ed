#pragma once
// Which engine's memory accounting applies: vLLM by version, SGLang, TensorRT-LLM.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvsim {

enum class EngineFamily { vllm, sglang, trtllm };

/// An engine and its version. Ordered facts about vLLM are asked as `at_least(0, 21)`.
struct EngineVersion {
    EngineFamily family = EngineFamily::vllm;
    int major = 0;
    int minor = 22;
    int patch = 0;
    bool v0 = false;  ///< vLLM's first engine, the only one before 0.8 and still chosen by some until 0.10

    [[nodiscard]] bool at_least(int want_major, int want_minor, int want_patch = 0) const;
    [[nodiscard]] bool is_vllm() const { return family == EngineFamily::vllm; }
    [[nodiscard]] std::string text() const;  ///< "vLLM 0.11.0", "vLLM 0.8.5 V0", "SGLang", "TensorRT-LLM"
};

/// "vllm", "vllm-0.11.2", "vllm 0.8 V0", "0.11.x", "sglang", "sglang-0.4.9", "trtllm", "tensorrt-llm". Letters' case and the
/// separator do not matter; what follows the patch number is ignored ("0.15.2-dev"). nullopt: not understood.
std::optional<EngineVersion> parse_engine_version(std::string_view text);

/// The version whose memory accounting a preset of that name has; vLLM 0.22 (May 2026) for unknown names.
EngineVersion version_of_preset(std::string_view preset);

/// Share of the GPU's memory the engine takes by default: vLLM 0.9, from 0.21 on 0.92 (which then pays for the CUDA graphs);
/// SGLang's mem_fraction_static falls with TP (0.88 on one GPU); TensorRT-LLM 0.9, of what is free after loading.
double default_memory_utilization(const EngineVersion& version, std::int64_t tensor_parallel_size);

}  // namespace kvsim
