#include "kvsim/model/deployment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "kvsim/base/text.hpp"

namespace kvsim {
namespace {

using config::Diagnostics;
using config::Mark;
using config::Value;

// vLLM's EngineArgs as of 2026-05-29 and of 2026-01, from its source and documentation; decisions checked against recorded
// ones.
constexpr std::array<Preset, 2> preset_table{
    {{"vllm-v1", "vLLM V1, defaults of 2026-05-29", 0.92, true, "vLLM engine arguments, 2026-05-29"},
     {"vllm-v1-2026-01", "vLLM V1, defaults of January 2026", 0.90, false, "vLLM engine arguments, 2026-01"}}};

constexpr std::array<std::string_view, 9> planned_table{"vllm-v0",  "sglang",    "trtllm-no-evict", "trtllm-max-utilization",
                                                        "orca-max", "orca-pow2", "orca-oracle",     "sarathi",
                                                        "static"};

/// Where `section.key` was written, else where the section was, else the root.
Mark mark_of(const config::Scenario& scenario, std::string_view section, std::string_view key) {
    const Value* map = scenario.root.find(section);
    if (map == nullptr) return scenario.root.mark;
    const Value* value = map->find(key);
    return value != nullptr ? value->mark : map->mark;
}

std::string text_of(std::int64_t value) {
    return std::to_string(value);
}
std::string text_of(double value) {
    return shortest(value);
}
std::string text_of(bool value) {
    return value ? "true" : "false";
}

/// Takes explicit keys over the preset's defaults and writes down each difference.
class Settings {
public:
    Settings(const config::Scenario& scenario, Deployment& deployment, Diagnostics& diagnostics)
        : scenario_(scenario), deployment_(deployment), diagnostics_(diagnostics) {}

    template <class T>
    T take(std::string_view key, const std::optional<T>& given, T preset) {
        if (!given) return preset;
        if (*given != preset) deviate(key, text_of(*given), text_of(preset));
        return *given;
    }
    void deviate(std::string_view key, const std::string& value, const std::string& preset) {
        deployment_.deviations.push_back(fmt::format("{}={} ({}: {})", key, value, deployment_.engine.preset, preset));
    }
    [[nodiscard]] Mark mark(std::string_view key) const { return mark_of(scenario_, "engine", key); }
    void error(std::string_view key, const std::string& message) { diagnostics_.error(mark(key), message); }
    void at_least(std::string_view key, std::int64_t value, std::int64_t minimum, std::int64_t maximum = 1'000'000'000) {
        if (value < minimum || value > maximum) {
            error(key, fmt::format("{} must be from {} to {}, is {}", key, minimum, maximum, value));
        }
    }

private:
    const config::Scenario& scenario_;
    Deployment& deployment_;
    Diagnostics& diagnostics_;
};

const Preset* find_preset(const std::string& name, const Mark& at, Diagnostics& diagnostics) {
    std::vector<std::string_view> names;
    for (const Preset& preset : preset_table) {
        if (preset.name == name) return &preset;
        names.push_back(preset.name);
    }
    if (std::find(planned_table.begin(), planned_table.end(), name) != planned_table.end()) {
        diagnostics.error(
            at, fmt::format("preset {} is not supported by this version (available: {})", name, fmt::join(names, ", ")));
    } else {
        diagnostics.unknown(at, "preset", name, names);
    }
    return nullptr;
}

/// The model as the engine loads it: `quantization` and `dtype` change how weights are stored.
void apply_dtype(ModelSpec& model, const config::EngineConfig& engine, Settings& settings) {
    if (engine.dtype && *engine.dtype != "auto") {
        static constexpr std::array<std::string_view, 5> plain{"bfloat16", "float16", "half", "float", "float32"};
        if (std::find(plain.begin(), plain.end(), *engine.dtype) == plain.end()) {
            settings.error("dtype", "unknown dtype '" + *engine.dtype + "' (auto, bfloat16, float16, half, float32, float)");
        } else if (*engine.dtype == "float" || *engine.dtype == "float32") {
            model.dtype = "float32";
        } else if (model.dtype == "float32") {
            model.dtype = *engine.dtype == "bfloat16" ? "bfloat16" : "float16";
        }
    }
    if (engine.quantization && *engine.quantization != "none") {
        static constexpr std::array<std::string_view, 3> known{"fp8", "awq", "gptq"};
        if (std::find(known.begin(), known.end(), *engine.quantization) == known.end()) {
            settings.error("quantization",
                           "quantization '" + *engine.quantization + "' is not supported (none, fp8, awq, gptq)");
        } else {
            model.dtype = *engine.quantization;
        }
    }
}

/// max_num_seqs and max_num_batched_tokens, which default by GPU and depend on each other and on max_model_len.
void resolve_batch_limits(const config::EngineConfig& given, Deployment& d, Settings& settings) {
    EngineArgs& engine = d.engine;
    const bool large = d.gpu && d.gpu->memory.count() >= 70 * GiB && fold_name(d.gpu->name).find("a100") == std::string::npos;
    const std::int64_t default_seqs = large ? 1024 : 256;
    std::int64_t default_tokens = large ? 8192 : 2048;

    if (given.max_num_seqs) settings.at_least("max_num_seqs", *given.max_num_seqs, 1, 1'000'000);
    engine.max_num_seqs = settings.take("max_num_seqs", given.max_num_seqs, default_seqs);
    if (!engine.enable_chunked_prefill) default_tokens = std::max(default_tokens, engine.max_model_len);
    default_tokens = std::min(default_tokens, engine.max_num_seqs * engine.max_model_len);
    if (given.max_num_batched_tokens) settings.at_least("max_num_batched_tokens", *given.max_num_batched_tokens, 1);
    engine.max_num_batched_tokens = settings.take("max_num_batched_tokens", given.max_num_batched_tokens, default_tokens);

    if (engine.max_num_batched_tokens < engine.max_num_seqs) {
        if (given.max_num_seqs) {
            settings.error(given.max_num_batched_tokens ? "max_num_batched_tokens" : "max_num_seqs",
                           fmt::format("max_num_batched_tokens {} is less than max_num_seqs {}; the engine refuses to start",
                                       engine.max_num_batched_tokens, engine.max_num_seqs));
        } else {
            const std::int64_t seqs = engine.max_num_batched_tokens;
            settings.deviate("max_num_seqs", text_of(seqs), text_of(engine.max_num_seqs));
            d.warnings.push_back(fmt::format("max_num_seqs lowered from its default {} to max_num_batched_tokens {}",
                                             engine.max_num_seqs, seqs));
            engine.max_num_seqs = seqs;
        }
    }
    if (!engine.enable_chunked_prefill && given.max_num_batched_tokens &&
        *given.max_num_batched_tokens < engine.max_model_len) {
        settings.error("max_num_batched_tokens",
                       fmt::format("without chunked prefill max_num_batched_tokens {} must be at least max_model_len {}",
                                   *given.max_num_batched_tokens, engine.max_model_len));
    }
}

void resolve_max_model_len(const config::EngineConfig& given, Deployment& d, Settings& settings) {
    const std::int64_t longest = d.model ? d.model->max_context : 0;
    if (given.max_model_len) {
        d.engine.max_model_len = *given.max_model_len;
        settings.at_least("max_model_len", *given.max_model_len, 1);
        if (longest > 0 && *given.max_model_len > longest) {
            settings.error("max_model_len", fmt::format("max_model_len {} is larger than the {} tokens {} was made for",
                                                        *given.max_model_len, longest, d.model_name));
        } else if (longest > 0 && *given.max_model_len != longest) {
            settings.deviate("max_model_len", text_of(*given.max_model_len), text_of(longest));
        }
        return;
    }
    if (longest == 0) {
        settings.error("max_model_len", d.model
                                            ? "engine.max_model_len is needed: model " + d.model_name + " states no max_context"
                                            : "engine.max_model_len is needed when no model is named");
    }
    d.engine.max_model_len = longest;
}

}  // namespace

std::span<const Preset> presets() {
    return preset_table;
}
std::span<const std::string_view> planned_presets() {
    return planned_table;
}

Deployment resolve_deployment(const config::Scenario& scenario, const Catalog& catalog, Diagnostics& diagnostics) {
    const std::size_t before = diagnostics.error_count();
    const config::EngineConfig& given = scenario.engine;
    Deployment d;
    d.catalog = catalog;
    d.base = scenario.file.parent_path();
    d.api = given.api;
    d.tensor_parallel_size = scenario.hardware.tensor_parallel_size;
    d.pipeline_parallel_size = scenario.hardware.pipeline_parallel_size;
    d.data_parallel_size = scenario.hardware.data_parallel_size;
    d.replicas = scenario.hardware.replicas;
    for (const auto& [key, value] :
         {std::pair{"tensor_parallel_size", d.tensor_parallel_size},
          std::pair{"pipeline_parallel_size", d.pipeline_parallel_size}, std::pair{"data_parallel_size", d.data_parallel_size},
          std::pair{"replicas", d.replicas}}) {
        if (value < 1 || value > 65536) {
            diagnostics.error(mark_of(scenario, "hardware", key), fmt::format("{} must be from 1 to 65536, is {}", key, value));
        }
    }

    if (d.data_parallel_size <= 65536 && d.replicas <= 65536 && d.engine_replicas() > 65535) {
        diagnostics.error(mark_of(scenario, "hardware", "data_parallel_size"),
                          fmt::format("data_parallel_size {} x replicas {} makes {} engines; at most 65535 are simulated",
                                      d.data_parallel_size, d.replicas, d.engine_replicas()));
    }

    Settings settings(scenario, d, diagnostics);
    const Preset* preset = &preset_table[0];
    if (given.preset) preset = find_preset(*given.preset, settings.mark("preset"), diagnostics);
    if (!scenario.model.is_null()) d.model = resolve_model(scenario.model, d.base, catalog, diagnostics);
    if (!scenario.hardware.gpu.is_null()) d.gpu = resolve_gpu(scenario.hardware.gpu, catalog, diagnostics);
    if (diagnostics.error_count() != before) return d;

    EngineArgs& engine = d.engine;
    engine.preset = std::string(preset->name);
    if (d.model) {
        d.model_name = d.model->name;
        apply_dtype(*d.model, given, settings);
    }
    if (d.gpu) d.gpu_name = d.gpu->name;

    if (given.scheduling_policy && *given.scheduling_policy != "fcfs") {
        if (*given.scheduling_policy == "priority") {
            engine.scheduling_policy = QueueOrder::priority;
            settings.deviate("scheduling_policy", "priority", "fcfs");
        } else {
            const std::array<std::string_view, 2> known{"fcfs", "priority"};
            diagnostics.unknown(settings.mark("scheduling_policy"), "scheduling_policy", *given.scheduling_policy, known);
        }
    }
    engine.block_size = settings.take("block_size", given.block_size, std::int64_t{16});
    engine.enable_prefix_caching = settings.take("enable_prefix_caching", given.enable_prefix_caching, true);
    engine.enable_chunked_prefill = settings.take("enable_chunked_prefill", given.enable_chunked_prefill, true);
    engine.async_scheduling = settings.take("async_scheduling", given.async_scheduling, true);
    engine.scheduler_reserve_full_isl =
        settings.take("scheduler_reserve_full_isl", given.scheduler_reserve_full_isl, preset->scheduler_reserve_full_isl);
    engine.watermark = settings.take("watermark", given.watermark, 0.0);
    engine.long_prefill_token_threshold =
        settings.take("long_prefill_token_threshold", given.long_prefill_token_threshold, std::int64_t{0});
    settings.at_least("block_size", engine.block_size, 1, 1'000'000);
    settings.at_least("long_prefill_token_threshold", engine.long_prefill_token_threshold, 0);
    if (!(engine.watermark >= 0 && engine.watermark < 1)) settings.error("watermark", "watermark must be in [0, 1)");
    const double utilization =
        settings.take("gpu_memory_utilization", given.gpu_memory_utilization, preset->gpu_memory_utilization);
    if (!(utilization > 0 && utilization <= 1)) {
        settings.error("gpu_memory_utilization", "gpu_memory_utilization must be in (0, 1]");
    }
    if (given.num_gpu_blocks_override) {
        // One block is vLLM's null block, so two is the least that can run anything.
        settings.at_least("num_gpu_blocks_override", *given.num_gpu_blocks_override, 2);
        settings.deviate("num_gpu_blocks_override", text_of(*given.num_gpu_blocks_override), "derived");
    } else if (given.kv_cache_memory_bytes) {
        settings.deviate("kv_cache_memory_bytes", text_of(given.kv_cache_memory_bytes->count()), "derived");
    } else {
        d.gpu_memory_utilization = utilization;
    }
    d.kv_cache_dtype = given.kv_cache_dtype.value_or("auto");
    if (const auto element = kv_element_bytes(d.kv_cache_dtype, d.model ? d.model->dtype : "bfloat16")) {
        d.kv_element_bytes = *element;
        if (d.kv_cache_dtype != "auto") settings.deviate("kv_cache_dtype", d.kv_cache_dtype, "auto");
    } else {
        settings.error("kv_cache_dtype", "kv_cache_dtype '" + d.kv_cache_dtype +
                                             "' is not supported (auto, bfloat16, float16, fp8, fp8_e4m3, fp8_e5m2)");
    }

    resolve_max_model_len(given, d, settings);
    if (diagnostics.error_count() == before) resolve_batch_limits(given, d, settings);
    if (diagnostics.error_count() != before) return d;

    MemoryOptions memory;
    memory.model = d.model;
    memory.gpu = d.gpu;
    memory.tensor_parallel_size = d.tensor_parallel_size;
    memory.pipeline_parallel_size = d.pipeline_parallel_size;
    memory.block_size = engine.block_size;
    memory.max_model_len = engine.max_model_len;
    memory.max_num_seqs = engine.max_num_seqs;
    memory.max_num_batched_tokens = engine.max_num_batched_tokens;
    memory.gpu_memory_utilization = utilization;
    memory.kv_cache_dtype = d.kv_cache_dtype;
    memory.num_gpu_blocks_override = given.num_gpu_blocks_override;
    memory.kv_cache_memory_bytes = given.kv_cache_memory_bytes;
    memory.activation_memory_bytes = given.activation_memory_bytes;
    memory.non_torch_memory_bytes = given.non_torch_memory_bytes;
    // What would be missing only because it was written wrongly has been reported.
    const auto written = [&](std::string_view section, std::string_view key) {
        const Value* map = scenario.root.find(section);
        return map != nullptr && (!map->is_map() || map->find(key) != nullptr);
    };
    if (before > 0 && !d.gpu && !given.num_gpu_blocks_override && !given.kv_cache_memory_bytes &&
        (written("engine", "num_gpu_blocks_override") || written("engine", "kv_cache_memory_bytes") ||
         written("hardware", "gpu"))) {
        return d;
    }
    const Value* section = scenario.root.find(d.model ? "model" : "engine");
    if (auto budget = derive_kv_budget(memory, section != nullptr ? section->mark : scenario.root.mark, diagnostics)) {
        d.budget = std::move(*budget);
        engine.num_gpu_blocks = d.budget.num_gpu_blocks;
        d.warnings.insert(d.warnings.end(), d.budget.warnings.begin(), d.budget.warnings.end());
    }
    return d;
}

std::unique_ptr<StepTimeModel> make_step_time(const config::Choice& choice, const Deployment& deployment,
                                              Diagnostics& diagnostics) {
    std::string name = choice.name;
    if (name.empty()) {
        if (choice.written) return nullptr;  // written, wrong and reported
        if (!deployment.model || !deployment.gpu) {
            diagnostics.error(choice.name_mark,
                              fmt::format("step_time is needed: without {} only `{{model: constant, step: ...}}` and "
                                          "`{{model: affine, c0: ...}}` are possible",
                                          deployment.model ? "hardware.gpu"
                                          : deployment.gpu ? "model"
                                                           : "model and hardware.gpu"));
            return nullptr;
        }
        const bool fitted = !deployment.gpu->constants.empty() || !deployment.gpu->constants_of_family.empty();
        name = fitted ? "fitted" : "roofline";
    }
    const Entry<MakeStepTime>* entry = find_entry(step_time_models(), "step-time model", name, choice.name_mark, diagnostics);
    return entry != nullptr ? entry->make(deployment, choice.params, diagnostics) : nullptr;
}

std::unique_ptr<Router> make_router(const config::Choice& choice, std::uint64_t seed, Diagnostics& diagnostics) {
    const std::string name = choice.name.empty() ? "round_robin" : choice.name;
    const Entry<MakeRouter>* entry = find_entry(routers(), "router", name, choice.name_mark, diagnostics);
    return entry != nullptr ? entry->make(choice.params, seed, diagnostics) : nullptr;
}

}  // namespace kvsim
