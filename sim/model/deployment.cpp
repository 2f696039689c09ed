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

/// What the systems of papers and documentation have in common: nobody recorded their decisions, and they lack what vLLM V1 has
/// by default.
constexpr Preset modelled(Preset preset) {
    preset.recorded = false;
    preset.null_blocks = 0;
    preset.enable_prefix_caching = false;
    preset.async_scheduling = false;
    preset.scheduler_reserve_full_isl = false;
    return preset;
}

// vLLM's EngineArgs as of 2026-05-29 and of 2026-01, from its source and documentation; decisions checked against recorded
// ones.
constexpr std::array<Preset, 14> preset_table{
    {{.name = "vllm-v1", .summary = "vLLM V1, defaults of 2026-05-29", .source = "vLLM engine arguments, 2026-05-29"},
     {.name = "vllm-v1-2026-01",
      .summary = "vLLM V1, defaults of January 2026",
      .source = "vLLM engine arguments, 2026-01",
      .gpu_memory_utilization = 0.90,
      .scheduler_reserve_full_isl = false},
     // max_num_seqs, max_num_batched_tokens and chunked prefill follow from max_model_len (resolve_batch_limits).
     {.name = "vllm-v0",
      .summary = "vLLM V0, defaults of 0.8.5: whole prompts first, decodes wait for them",
      .source = "vLLM engine arguments, 0.8.5 with VLLM_USE_V1=0",
      .batching = "vllm-v0",
      .null_blocks = 0,
      .gpu_memory_utilization = 0.90,
      .enable_prefix_caching = false,
      .enable_chunked_prefill = false,
      .async_scheduling = false,
      .scheduler_reserve_full_isl = false,
      .watermark = 0.01,
      .tokens_past_limit = 1,
      .swap_space = Bytes(4 * GiB)},
     {.name = "sglang",
      .summary = "SGLang, main of 2026-07-13",
      .source = "SGLang server arguments, 2026-07",
      .batching = "sglang",
      .null_blocks = 0,
      .gpu_memory_utilization = 0},
     // The others follow papers and documentation.
     modelled({.name = "static",
               .summary = "FasterTransformer: a batch runs until its longest request ends, max_model_len slots each",
               .source = "Orca (OSDI 2022), of FasterTransformer",
               .batching = "static",
               .gpu_memory_utilization = 0.90,
               .enable_chunked_prefill = false,
               .kv_policy = "contiguous-max",
               .preemption = "none"}),
     modelled({.name = "orca-max",
               .summary = "Orca: requests join at every step, max_model_len slots each",
               .source = "Orca (OSDI 2022), as the PagedAttention paper (SOSP 2023) compares with it",
               .batching = "iteration",
               .gpu_memory_utilization = 0.90,
               .enable_chunked_prefill = false,
               .kv_policy = "contiguous-max",
               .preemption = "none"}),
     modelled({.name = "orca-pow2",
               .summary = "Orca: requests join at every step, the next power of two of the outputs reserved",
               .source = "Orca (OSDI 2022), as the PagedAttention paper (SOSP 2023) compares with it",
               .batching = "iteration",
               .gpu_memory_utilization = 0.90,
               .enable_chunked_prefill = false,
               .kv_policy = "contiguous-pow2",
               .preemption = "none"}),
     modelled({.name = "orca-oracle",
               .summary = "Orca: requests join at every step, exactly the final length reserved",
               .source = "Orca (OSDI 2022), as the PagedAttention paper (SOSP 2023) compares with it",
               .batching = "iteration",
               .gpu_memory_utilization = 0.90,
               .enable_chunked_prefill = false,
               .kv_policy = "contiguous-exact",
               .preemption = "none"}),
     modelled({.name = "fastserve",
               .summary = "FastServe: skip-join multi-level feedback queue, preempted requests swapped out",
               .source = "FastServe (arXiv 2305.05920)",
               .batching = "iteration",
               .gpu_memory_utilization = 0.90,
               .enable_chunked_prefill = false,
               .swap_space = Bytes(64 * GiB),
               .order = "mlfq",
               .admission = "optimistic",
               .preemption = "swap",
               .swap_overlap = true}),
     modelled({.name = "vtc",
               .summary = "virtual token counter: fair shares over tenants",
               .source = "Fairness in Serving Large Language Models (OSDI 2024)",
               .batching = "vllm-v1",
               .gpu_memory_utilization = 0.90,
               .order = "vtc"}),
     modelled({.name = "sarathi",
               .summary = "Sarathi-Serve: decodes first, prompts in chunks of what is left of 512 tokens",
               .source = "Sarathi-Serve (OSDI 2024) and its released scheduler",
               .batching = "decode-first",
               .gpu_memory_utilization = 0.90,
               .watermark = 0.01,
               .admission = "full-input",
               .max_num_seqs = 128,
               .max_num_batched_tokens = 512}),
     modelled({.name = "trtllm-no-evict",
               .summary = "TensorRT-LLM: GUARANTEED_NO_EVICT",
               .source = "TensorRT-LLM documentation (capacity scheduler policies)",
               .batching = "no-evict",
               .gpu_memory_utilization = 0,
               .preemption = "none",
               .max_num_seqs = 2048,
               .max_num_batched_tokens = 8192}),
     modelled({.name = "trtllm-max-utilization",
               .summary = "TensorRT-LLM: MAX_UTILIZATION",
               .source = "TensorRT-LLM documentation (capacity scheduler policies)",
               .batching = "max-utilization",
               .gpu_memory_utilization = 0,
               .max_num_seqs = 2048,
               .max_num_batched_tokens = 8192}),
     modelled({.name = "lightllm",
               .summary = "LightLLM: prompts and decodes apart, admission by the predicted peak",
               .source = "LightLLM (Past-Future scheduler, ASPLOS 2025)",
               .batching = "past-future",
               .gpu_memory_utilization = 0.90,
               .admission = "past-future",
               .length_predictor = "history",
               .block_size = 1})}};

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
std::string text_of(const std::string& value) {
    return value;
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
    diagnostics.unknown(at, "preset", name, names);
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
        static constexpr std::array<std::string_view, 9> known{"fp8",   "awq",          "gptq",      "int8",       "mxfp4",
                                                               "nvfp4", "bitsandbytes", "gguf_q8_0", "gguf_q4_k_m"};
        if (std::find(known.begin(), known.end(), *engine.quantization) == known.end()) {
            settings.error("quantization", "quantization '" + *engine.quantization +
                                               "' is not supported (none, fp8, awq, gptq, int8, mxfp4, nvfp4, bitsandbytes, "
                                               "gguf_q8_0, gguf_q4_k_m)");
        } else {
            model.dtype = *engine.quantization;
        }
    }
}

/// Styles whose steps take whole prompts, however many tokens that makes.
bool has_no_budget(const EngineArgs& engine) {
    return engine.batching == "static" || engine.batching == "iteration";
}

/// max_num_seqs and max_num_batched_tokens, which default by GPU and depend on each other and on max_model_len.
void resolve_batch_limits(const config::EngineConfig& given, const Preset& preset, Deployment& d, Settings& settings) {
    EngineArgs& engine = d.engine;
    const bool v0 = d.version.is_vllm() && d.version.v0;
    // V1 raises its limits on large cards other than A100; later on more on still larger ones.
    const std::int64_t memory = d.gpu ? d.gpu->memory.count() : 0;
    const bool large = memory >= 70 * GiB && !v0 && fold_name(d.gpu->name).find("a100") == std::string::npos;
    const bool huge = large && memory >= 160 * GiB && d.version.is_vllm() && d.version.at_least(0, 27);
    const std::int64_t default_seqs = preset.max_num_seqs > 0 ? preset.max_num_seqs : large ? 1024 : 256;
    std::int64_t default_tokens = preset.max_num_batched_tokens > 0 ? preset.max_num_batched_tokens
                                  : huge                            ? 16384
                                  : large                           ? 8192
                                                                    : 2048;
    // V0 has no chunked prefill unless the model is made for more than 32K tokens: one step then takes a longest prompt.
    if (v0 && !given.enable_chunked_prefill && engine.max_model_len <= 32768) {
        default_tokens = std::max(default_tokens, engine.max_model_len);
    }

    if (given.max_num_seqs) settings.at_least("max_num_seqs", *given.max_num_seqs, 1, 1'000'000);
    engine.max_num_seqs = settings.take("max_num_seqs", given.max_num_seqs, default_seqs);
    if (!engine.enable_chunked_prefill) default_tokens = std::max(default_tokens, engine.max_model_len);
    default_tokens = std::min(default_tokens, engine.max_num_seqs * engine.max_model_len);
    if (given.max_num_batched_tokens) settings.at_least("max_num_batched_tokens", *given.max_num_batched_tokens, 1);
    engine.max_num_batched_tokens = settings.take("max_num_batched_tokens", given.max_num_batched_tokens, default_tokens);

    if (has_no_budget(engine)) {
        if (given.max_num_batched_tokens) {
            d.warnings.push_back("batching " + engine.batching +
                                 " has no token budget: max_num_batched_tokens only counts for the memory of activations");
        }
        return;
    }
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

/// Styles that decide on a step when the last one has ended, and take whole prompts.
void resolve_whole_prompts(const config::EngineConfig& given, Deployment& d, Settings& settings) {
    EngineArgs& engine = d.engine;
    const auto no = [&](std::string_view key, const std::optional<bool>& written, bool& value, std::string_view why) {
        if (written.value_or(false)) settings.error(key, fmt::format("batching {} {}", engine.batching, why));
        if (!written && value) settings.deviate(key, "false", "true");
        value = false;
    };
    no("async_scheduling", given.async_scheduling, engine.async_scheduling,
       "decides who is in a step when the last one has ended: it goes without async_scheduling");
    no("enable_chunked_prefill", given.enable_chunked_prefill, engine.enable_chunked_prefill,
       "takes whole prompts: it goes without enable_chunked_prefill");
}

/// What only vLLM V0 has; before the memory is derived.
void resolve_vllm_v0(const config::EngineConfig& given, Deployment& d, Settings& settings) {
    EngineArgs& engine = d.engine;
    VllmV0Args& v0 = engine.v0;
    if (d.version.is_vllm() && !d.version.at_least(0, 7)) v0.release = VllmV0Args::Release::v0_6_3;
    if (engine.async_scheduling) {
        d.warnings.push_back("async_scheduling has no effect: vLLM V0 has none (async_output_processing is what it has)");
        engine.async_scheduling = false;
    }
    const std::string preemption = settings.take("preemption", given.preemption, std::string("auto"));
    if (preemption == "auto") {
        v0.preemption = VllmV0Args::Preemption::automatic;
    } else if (preemption == "recompute") {
        v0.preemption = VllmV0Args::Preemption::recompute;
    } else if (preemption == "swap") {
        v0.preemption = VllmV0Args::Preemption::swap;
    } else {
        settings.error("preemption", "preemption must be auto, recompute or swap, is '" + excerpt(preemption) + "'");
    }
    v0.max_num_partial_prefills = settings.take("max_num_partial_prefills", given.max_num_partial_prefills, std::int64_t{1});
    v0.max_long_partial_prefills = settings.take("max_long_partial_prefills", given.max_long_partial_prefills, std::int64_t{1});
    if (v0.max_num_partial_prefills > 1 && !engine.enable_chunked_prefill) {
        settings.error("max_num_partial_prefills",
                       "max_num_partial_prefills above 1 needs enable_chunked_prefill; the engine refuses to start");
    }
    if (v0.max_long_partial_prefills > v0.max_num_partial_prefills) {
        settings.error("max_long_partial_prefills",
                       "max_long_partial_prefills is above max_num_partial_prefills; the engine refuses to start");
    }
    v0.delay_factor = settings.take("scheduler_delay_factor", given.scheduler_delay_factor, 0.0);
    v0.async_output_processing =
        settings.take("async_output_processing", given.async_output_processing, !given.enforce_eager.value_or(false));
}

/// Where swapped requests go (EngineArgs::v0 has it for every style) and what moving them takes, from the size of a block.
void resolve_swap(const config::EngineConfig& given, const Preset& preset, Deployment& d, Settings& settings) {
    VllmV0Args& v0 = d.engine.v0;
    const PolicyArgs::Preemption mode = d.engine.policy.preemption;
    const bool moves = mode == PolicyArgs::Preemption::swap || mode == PolicyArgs::Preemption::cheaper;
    if (d.engine.batching != "vllm-v0" && !moves) {
        std::string unused;
        const auto unread = [&](std::string_view key, bool written) {
            if (written) unused += (unused.empty() ? "" : ", ") + std::string(key);
        };
        unread("swap_space", given.swap_space.has_value());
        unread("num_cpu_blocks_override", given.num_cpu_blocks_override.has_value());
        unread("swap_bandwidth_gb_s", given.swap_bandwidth_gb_s.has_value());
        unread("swap_overlap", given.swap_overlap.has_value());
        if (!unused.empty()) d.warnings.push_back(unused + " has no effect: nothing is swapped (engine.preemption)");
        return;
    }
    v0.swap_overlaps = settings.take("swap_overlap", given.swap_overlap, preset.swap_overlap);
    const std::int64_t space = given.swap_space.value_or(preset.swap_space).count();
    if (given.swap_space && *given.swap_space != preset.swap_space)
        settings.deviate("swap_space", text_of(space), text_of(preset.swap_space.count()));
    if (given.num_cpu_blocks_override) {
        v0.num_cpu_blocks = *given.num_cpu_blocks_override;
        settings.deviate("num_cpu_blocks_override", text_of(v0.num_cpu_blocks), "derived");
    } else if (d.budget.block_bytes > 0) {
        v0.num_cpu_blocks = space / d.budget.block_bytes;
    }
    // A preset's own swapping needs no more of the user than the preset does.
    if (moves && v0.num_cpu_blocks == 0 && d.budget.block_bytes == 0 && !given.preemption && !given.num_cpu_blocks_override) {
        v0.num_cpu_blocks = d.engine.num_gpu_blocks;
        d.warnings.push_back("without a model the size of a block is not known: as many are taken for the CPU as for the GPU");
    }
    const bool swaps = moves || v0.preemption == VllmV0Args::Preemption::swap || v0.release == VllmV0Args::Release::v0_6_3;
    if (swaps && v0.num_cpu_blocks == 0 && d.budget.block_bytes == 0 && !given.num_cpu_blocks_override) {
        settings.error("preemption",
                       "without a model the size of a block is not known: engine.num_cpu_blocks_override says how many the "
                       "CPU has for swapped requests");
    }
    if (moves && v0.num_cpu_blocks == 0 && (d.budget.block_bytes > 0 || given.num_cpu_blocks_override)) {
        settings.error("preemption", fmt::format("preemption {} has nowhere to move blocks to: {}",
                                                 given.preemption.value_or(std::string(preset.preemption)),
                                                 given.num_cpu_blocks_override ? "engine.num_cpu_blocks_override is 0"
                                                 : space == 0 ? "engine.swap_space is 0; it is CPU memory per GPU"
                                                              : "engine.swap_space is less than a block"));
    }
    const double bandwidth = given.swap_bandwidth_gb_s.value_or(d.gpu ? d.gpu->pcie_gb_s : 0);
    if (given.swap_bandwidth_gb_s) settings.deviate("swap_bandwidth_gb_s", text_of(bandwidth), "the GPU's");
    if (bandwidth > 0 && d.budget.block_bytes > 0) {
        v0.swap_ns_per_block = static_cast<double>(d.budget.block_bytes) / bandwidth;
    } else if (swaps) {
        d.warnings.push_back("swapping takes no time: it needs a model, and a GPU with pcie_gb_s or swap_bandwidth_gb_s");
    }
}

/// The block tables of a run's requests; none when that is one table of full attention.
std::vector<BlockGroup> block_groups(const KvBudget& budget) {
    std::vector<BlockGroup> out;
    for (const KvGroup& group : budget.groups) {
        if (group.tables == 0) continue;  // shares the first one's
        BlockGroup& block = out.emplace_back();
        if (group.kind == "sliding") block.rule = BlockGroup::Rule::sliding;
        if (group.kind == "chunked") block.rule = BlockGroup::Rule::chunked;
        if (group.kind == "linear") block.rule = BlockGroup::Rule::state;
        block.block_size = group.block_size;
        block.window = group.window;
        block.tables = group.tables;
        block.state_blocks = group.state_blocks;
    }
    const bool plain = out.size() == 1 && out[0].rule == BlockGroup::Rule::full && out[0].tables == 1 &&
                       out[0].block_size == budget.block_size;
    if (plain) out.clear();
    return out;
}

void resolve_queue_order(const std::string& given, EngineArgs& engine, Settings& settings) {
    static constexpr std::array vllm{QueueOrder::fcfs, QueueOrder::priority};
    static constexpr std::array sglang{QueueOrder::fcfs, QueueOrder::lpm, QueueOrder::dfs_weight, QueueOrder::lof};
    const std::span<const QueueOrder> orders =
        engine.batching == "sglang" ? std::span<const QueueOrder>(sglang) : std::span<const QueueOrder>(vllm);
    std::string names;
    for (const QueueOrder order : orders) {
        names += (names.empty() ? "" : ", ") + std::string(name_of(order));
        if (given != name_of(order)) continue;
        engine.scheduling_policy = order;
        if (order != QueueOrder::fcfs) settings.deviate("scheduling_policy", given, "fcfs");
        return;
    }
    settings.error("scheduling_policy",
                   fmt::format("preset {} has no scheduling_policy {} (it has {})", engine.preset, given, names));
}

std::string text_of(const Value& value) {
    std::string out;
    for (const Value& item : value.list) out += (out.empty() ? "" : " ") + text_of(item);
    for (const config::Member& member : value.map) out += (out.empty() ? "" : " ") + member.key + ":" + text_of(member.value);
    return value.is_scalar() ? value.scalar : '[' + out + ']';
}

/// A piece with its parameters, as texts name it.
std::string text_of(const config::Choice& choice) {
    std::string out = choice.name;
    for (const config::Member& member : choice.params.map) {
        if (member.key == "policy") continue;
        out += out.size() == choice.name.size() ? '(' : ' ';
        out += member.key + "=" + text_of(member.value);
    }
    if (out.size() > choice.name.size()) out += ')';
    return out;
}

/// The chosen piece, else the preset's; unset when neither names one.
template <class Piece>
Maker<Piece> resolve_piece(std::string_view key, const config::Choice& given, std::string_view preset,
                           std::span<const Entry<ReadPiece<Piece>>> table, const config::Scenario& scenario, Deployment& d,
                           Settings& settings, Diagnostics& diagnostics) {
    if (given.written && given.name.empty()) return {};  // wrong, and reported
    config::Choice choice = given;
    if (!choice.written) {
        choice.name = std::string(preset);
        choice.name_mark = settings.mark("preset");
    }
    if (choice.name.empty()) return {};
    const Entry<ReadPiece<Piece>>* entry = find_entry(table, key, choice.name, choice.name_mark, diagnostics);
    if (entry == nullptr) return {};
    Maker<Piece> out{text_of(choice), entry->make({choice, scenario, d}, diagnostics)};
    if (choice.written && out.name != preset) settings.deviate(key, out.name, preset.empty() ? "its own" : std::string(preset));
    return out;
}

/// Styles that take every piece, as against the engines' own schedulers.
bool composable(const EngineArgs& engine) {
    return engine.batching != "vllm-v0" && engine.batching != "sglang";
}

/// Contiguous KV has ranges of slots: what needs blocks is refused, and its pool counts slots.
void refuse_with_contiguous(const config::Scenario& scenario, const Preset& preset, EngineArgs& engine, Settings& settings) {
    const config::EngineConfig& given = scenario.engine;
    const auto refuse = [&](std::string_view key, std::string_view reason) {
        settings.error(key, fmt::format("engine.{} does not go with kv_policy {}: {}", key, engine.policy.kv.name, reason));
    };
    if (given.enable_prefix_caching.value_or(false))
        refuse("enable_prefix_caching", "a prefix is shared by blocks, and a range belongs to one request");
    if (!given.enable_prefix_caching && preset.enable_prefix_caching)
        settings.deviate("enable_prefix_caching", "false", "true");
    engine.enable_prefix_caching = false;
    if (engine.policy.preemption == PolicyArgs::Preemption::swap || engine.policy.preemption == PolicyArgs::Preemption::cheaper)
        refuse("preemption", "what is swapped are blocks (recompute or none)");
    for (const std::string_view order : {"lpm", "dfs-weight"}) {
        if (engine.policy.order.name == order) refuse("scheduling_policy", "it goes by cached prefixes, and ranges have none");
    }
    for (const std::string_view rule : {"expected", "past-future"}) {
        if (engine.policy.admission.name == rule)
            refuse("admission", "it counts blocks to come, and a range is reserved as a whole");
    }
}

void resolve_contiguous(const config::EngineConfig& given, Deployment& d, Settings& settings) {
    EngineArgs& engine = d.engine;
    const std::string& name = engine.policy.kv.name;
    engine.num_gpu_blocks *= engine.block_size;
    engine.block_size = 1;
    engine.null_blocks = 0;
    const std::int64_t longest = longest_range(engine.policy, engine.num_gpu_blocks);
    const std::string key = given.max_model_len ? "max_model_len" : "kv_policy";
    if (engine.max_model_len > longest) {
        settings.error(key, fmt::format("max_model_len {} is longer than the longest range of kv_policy {}, {} of {} slots",
                                        engine.max_model_len, name, longest, engine.num_gpu_blocks));
    } else if (const std::int64_t kept = engine.watermark_blocks(); engine.max_model_len > engine.num_gpu_blocks - kept) {
        settings.error(key, fmt::format("max_model_len {} is longer than what kv_policy {} may reserve of {} slots, of which "
                                        "engine.watermark keeps {} free",
                                        engine.max_model_len, name, engine.num_gpu_blocks, kept));
    }
}

/// The composed part of a batch policy.
void resolve_policy(const config::Scenario& scenario, const Preset& preset, Deployment& d, Settings& settings,
                    Diagnostics& diagnostics) {
    const config::EngineConfig& given = scenario.engine;
    EngineArgs& engine = d.engine;
    PolicyArgs& policy = engine.policy;
    if (!composable(engine)) {
        const auto refuse = [&](std::string_view key, bool written) {
            if (written)
                settings.error(key, fmt::format("batching {} decides this itself; engine.{} goes with the other styles",
                                                engine.batching, key));
        };
        refuse("victim", given.victim.written);
        refuse("admission", given.admission.written);
        refuse("kv_policy", given.kv_policy.written);
        refuse("length_predictor", given.length_predictor.written);
        refuse("requeue", given.requeue.has_value());
        refuse("max_live_tokens", given.max_live_tokens.has_value());
        refuse("context_chunking", given.context_chunking.has_value());
        refuse("router_max_wait_tokens", given.router_max_wait_tokens.has_value());
        if (engine.batching == "sglang" && given.preemption && *given.preemption != "recompute")
            settings.error("preemption", "engine.preemption: only recompute is supported by this preset");
        if (given.scheduling_policy.written) resolve_queue_order(given.scheduling_policy.name, engine, settings);
        return;
    }
    const std::string order = given.scheduling_policy.written ? given.scheduling_policy.name : std::string(preset.order);
    const bool plain = given.scheduling_policy.params.map.size() <= 1;
    // Two orders are vLLM's own, and the fast form knows the first: they are no piece.
    if (plain && (order == "fcfs" || order == "priority")) {
        engine.scheduling_policy = order == "fcfs" ? QueueOrder::fcfs : QueueOrder::priority;
        if (order != preset.order) settings.deviate("scheduling_policy", order, std::string(preset.order));
    } else {
        policy.order = resolve_piece("scheduling_policy", given.scheduling_policy, preset.order, queue_orders(), scenario, d,
                                     settings, diagnostics);
    }
    policy.victim = resolve_piece("victim", given.victim, preset.victim, victim_rules(), scenario, d, settings, diagnostics);
    // Priority with aging has vLLM's victim too.
    if (policy.order && order == "priority" && !policy.victim && !given.victim.written) {
        config::Choice least_urgent;
        least_urgent.name = "lowest-priority";
        const auto* const entry =
            find_entry(victim_rules(), "victim", least_urgent.name, settings.mark("scheduling_policy"), diagnostics);
        if (entry != nullptr) policy.victim = {least_urgent.name, entry->make({least_urgent, scenario, d}, diagnostics)};
    }
    policy.admission =
        resolve_piece("admission", given.admission, preset.admission, admission_rules(), scenario, d, settings, diagnostics);
    policy.predictor = resolve_piece("length_predictor", given.length_predictor, preset.length_predictor, length_predictors(),
                                     scenario, d, settings, diagnostics);
    // What every style has is no piece either.
    const std::string_view kv = given.kv_policy.written ? std::string_view(given.kv_policy.name) : preset.kv_policy;
    if (kv == "paged" && given.kv_policy.params.map.size() <= 1) {
        if (!preset.kv_policy.empty() && preset.kv_policy != "paged")
            settings.deviate("kv_policy", "paged", std::string(preset.kv_policy));
    } else {
        policy.kv =
            resolve_piece("kv_policy", given.kv_policy, preset.kv_policy, kv_policies(), scenario, d, settings, diagnostics);
    }
    const std::string preemption = settings.take("preemption", given.preemption, std::string(preset.preemption));
    static constexpr std::array<std::string_view, 4> modes{"recompute", "swap", "cheaper", "none"};
    const auto mode = std::find(modes.begin(), modes.end(), preemption);
    if (mode == modes.end()) {
        diagnostics.unknown(settings.mark("preemption"), "preemption", preemption, modes);
    } else {
        policy.preemption = static_cast<PolicyArgs::Preemption>(mode - modes.begin());
        if (policy.preemption == PolicyArgs::Preemption::none && (order == "srpt" || order == "mlfq"))
            settings.error("preemption", "preemption none: scheduling_policy " + order + " preempts");
    }
    const std::string requeue = settings.take("requeue", given.requeue, std::string(preset.requeue));
    policy.requeue = requeue == "back" ? PolicyArgs::Requeue::back : PolicyArgs::Requeue::front;
    policy.max_live_tokens = settings.take("max_live_tokens", given.max_live_tokens, std::int64_t{0});
    const std::string chunking =
        settings.take("context_chunking", given.context_chunking, std::string("first_come_first_served"));
    policy.decodes_between = settings.take("router_max_wait_tokens", given.router_max_wait_tokens, std::int64_t{0});
    if (policy.decodes_between > 0 && engine.batching != "past-future")
        settings.error("router_max_wait_tokens", "router_max_wait_tokens is of batching past-future (LightLLM)");
    policy.equal_progress = chunking == "equal_progress";
    const bool fills =
        engine.batching == "decode-first" || engine.batching == "no-evict" || engine.batching == "max-utilization";
    if (policy.equal_progress && !(fills && engine.enable_chunked_prefill)) {
        settings.error("context_chunking",
                       "context_chunking equal_progress is of batching decode-first, no-evict and max-utilization, with "
                       "enable_chunked_prefill");
    }
    const bool foretells = !policy.predictor || policy.predictor.name == "oracle";
    const bool reserves = policy.contiguous() && (policy.kv.name.starts_with("contiguous-max") || foretells);
    if (engine.batching == "no-evict" && policy.contiguous() && !reserves) {
        settings.error(
            given.length_predictor.written ? "length_predictor" : "kv_policy",
            fmt::format("batching no-evict does not go with ranges of predicted lengths ({}, length_predictor {}): who "
                        "outgrows one needs a longer one, which may not be free, and nobody may lose blocks; the "
                        "oracle and contiguous-max go",
                        policy.kv.name, policy.predictor.name));
    }
    const bool guaranteed = engine.batching == "no-evict" || reserves || (foretells && policy.admission.name == "expected");
    if (policy.preemption == PolicyArgs::Preemption::none && !guaranteed) {
        settings.error(given.preemption ? "preemption" : "batching",
                       "preemption none needs an admission that guarantees room to the end: batching no-evict, admission "
                       "expected with the oracle, or a contiguous kv_policy (max; pow2 and exact with the oracle)");
    }
    if (policy.contiguous()) refuse_with_contiguous(scenario, preset, engine, settings);
}

/// What one engine alone reads; under another's preset it stands for nothing, and the user is told.
void resolve_sglang(const config::EngineConfig& given, EngineArgs& engine, Deployment& d, Settings& settings) {
    std::string unused;
    const auto unread = [&](std::string_view key, bool written) {
        if (written) unused += (unused.empty() ? "" : ", ") + std::string(key);
    };
    if (engine.batching != "sglang") {
        unread("schedule_conservativeness", given.schedule_conservativeness.has_value());
        unread("max_prefill_tokens", given.max_prefill_tokens.has_value());
        unread("enable_mixed_chunk", given.enable_mixed_chunk.has_value());
        unread("evict", given.evict.has_value());
        if (engine.batching == "no-evict") {
            engine.sglang.max_new_tokens = settings.take("max_new_tokens", given.max_new_tokens, std::int64_t{0});
        } else {
            unread("max_new_tokens", given.max_new_tokens.has_value());
        }
        unread("clip_max_new_tokens", given.clip_max_new_tokens.has_value());
    } else {
        SglangArgs& args = engine.sglang;
        args.schedule_conservativeness =
            settings.take("schedule_conservativeness", given.schedule_conservativeness, args.schedule_conservativeness);
        args.max_prefill_tokens = settings.take("max_prefill_tokens", given.max_prefill_tokens, args.max_prefill_tokens);
        args.enable_mixed_chunk = settings.take("enable_mixed_chunk", given.enable_mixed_chunk, args.enable_mixed_chunk);
        args.evict_shortfall = given.evict.value_or("amount") == "shortfall";
        if (args.evict_shortfall) settings.deviate("evict", "shortfall", "amount");
        args.max_new_tokens = settings.take("max_new_tokens", given.max_new_tokens, args.max_new_tokens);
        args.clip_max_new_tokens = settings.take("clip_max_new_tokens", given.clip_max_new_tokens, args.clip_max_new_tokens);
        unread("scheduler_reserve_full_isl", given.scheduler_reserve_full_isl.has_value());
        unread("watermark", given.watermark.has_value());
        unread("long_prefill_token_threshold", given.long_prefill_token_threshold.has_value());
    }
    if (!unused.empty()) d.warnings.push_back(fmt::format("preset {} does not read engine.{}", engine.preset, unused));
}

/// SGLang's batch limits: chunked_prefill_size goes by the GPU's memory, max_running_requests by the KV pool, which is not
/// known yet.
void resolve_sglang_limits(const config::EngineConfig& given, Deployment& d, Settings& settings) {
    const std::int64_t memory = d.gpu ? d.gpu->memory.count() : 0;
    const std::int64_t chunk = memory == 0 ? 4096 : memory < 35 * GiB ? 2048 : memory < 160 * GiB ? 8192 : 16384;
    if (given.max_num_batched_tokens) settings.at_least("max_num_batched_tokens", *given.max_num_batched_tokens, 1);
    d.engine.max_num_batched_tokens = settings.take("max_num_batched_tokens", given.max_num_batched_tokens, chunk);
    if (given.max_num_seqs) settings.at_least("max_num_seqs", *given.max_num_seqs, 1, 1'000'000);
    d.engine.max_num_seqs = given.max_num_seqs.value_or(2048);
}

/// What follows from the KV pool. A prompt that leaves fewer than six tokens is refused (see SglangScheduler::arrive).
void resolve_sglang_pool(const config::EngineConfig& given, Deployment& d, Settings& settings) {
    EngineArgs& engine = d.engine;
    const std::int64_t tokens = engine.num_gpu_blocks * engine.block_size;
    const auto by_pool =
        static_cast<std::int64_t>(static_cast<double>(tokens) / static_cast<double>(engine.max_model_len) * 512);
    engine.max_num_seqs = settings.take("max_num_seqs", given.max_num_seqs, std::clamp<std::int64_t>(by_pool, 2048, 4096));
    engine.max_prompt_len = std::min(engine.max_model_len, tokens) - 7;
    if (engine.max_prompt_len < 1) {
        settings.error("max_model_len",
                       fmt::format("no prompt fits: SGLang takes at most min(max_model_len {}, {} KV tokens) - 7 "
                                   "tokens",
                                   engine.max_model_len, tokens));
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
    const std::int64_t context_parallel = scenario.hardware.decode_context_parallel_size;
    for (const auto& [key, value] :
         {std::pair{"tensor_parallel_size", d.tensor_parallel_size},
          std::pair{"pipeline_parallel_size", d.pipeline_parallel_size}, std::pair{"data_parallel_size", d.data_parallel_size},
          std::pair{"decode_context_parallel_size", context_parallel}, std::pair{"replicas", d.replicas}}) {
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
    engine.batching = std::string(preset->batching);
    engine.null_blocks = preset->null_blocks;
    if (d.model) {
        d.model_name = d.model->name;
        apply_dtype(*d.model, given, settings);
    }
    if (d.gpu) d.gpu_name = d.gpu->name;
    d.version = version_of_preset(preset->name);
    const bool versioned = given.version.has_value();
    if (versioned) {
        if (const auto version = parse_engine_version(*given.version)) {
            d.version = *version;
            settings.deviate("version", d.version.text(), version_of_preset(preset->name).text());
        } else {
            settings.error("version", "unknown engine version '" + excerpt(*given.version) +
                                          "' (vllm-0.11.0, vllm-0.8.5-v0, sglang, trtllm)");
        }
    }

    if (given.batching && *given.batching != engine.batching) {
        if (find_entry(schedulers(), "batching", *given.batching, settings.mark("batching"), diagnostics) != nullptr) {
            settings.deviate("batching", *given.batching, engine.batching);
            engine.batching = *given.batching;
        }
    }
    const bool sglang = engine.batching == "sglang";
    resolve_sglang(given, engine, d, settings);
    const std::int64_t usual_block = preset->block_size > 0                     ? preset->block_size
                                     : d.version.is_vllm()                      ? 16
                                     : d.version.family == EngineFamily::sglang ? 1
                                                                                : 32;
    engine.block_size = settings.take("block_size", given.block_size, usual_block);
    // vLLM leaves prefix caching of recurrent states off unless asked for.
    const bool recurrent = d.model && d.model->layers_of("linear") > 0;
    engine.enable_prefix_caching =
        settings.take("enable_prefix_caching", given.enable_prefix_caching, preset->enable_prefix_caching && !recurrent);
    engine.enable_chunked_prefill =
        settings.take("enable_chunked_prefill", given.enable_chunked_prefill, preset->enable_chunked_prefill);
    engine.async_scheduling = settings.take("async_scheduling", given.async_scheduling, preset->async_scheduling);
    if (has_no_budget(engine)) resolve_whole_prompts(given, d, settings);
    engine.scheduler_reserve_full_isl =
        settings.take("scheduler_reserve_full_isl", given.scheduler_reserve_full_isl, preset->scheduler_reserve_full_isl);
    engine.watermark = settings.take("watermark", given.watermark, preset->watermark);
    engine.long_prefill_token_threshold =
        settings.take("long_prefill_token_threshold", given.long_prefill_token_threshold, std::int64_t{0});
    if (given.max_queued_requests) {
        engine.max_queued_requests = *given.max_queued_requests;
        settings.at_least("max_queued_requests", engine.max_queued_requests, 0);
        settings.deviate("max_queued_requests", text_of(engine.max_queued_requests), "none");
    }
    settings.at_least("block_size", engine.block_size, 1, 1'000'000);
    settings.at_least("long_prefill_token_threshold", engine.long_prefill_token_threshold, 0);
    if (!(engine.watermark >= 0 && engine.watermark < 1)) settings.error("watermark", "watermark must be in [0, 1)");
    const double utilization = settings.take("gpu_memory_utilization", given.gpu_memory_utilization,
                                             versioned || preset->gpu_memory_utilization == 0
                                                 ? default_memory_utilization(d.version, d.tensor_parallel_size)
                                                 : preset->gpu_memory_utilization);
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
    const bool v0 = engine.batching == "vllm-v0";
    if (!preset->recorded) {
        d.modelled_from = preset->source;
    } else if (engine.batching != preset->batching) {
        d.modelled_from = "batching " + engine.batching;
    }
    if (v0) {
        engine.tokens_past_limit = preset->tokens_past_limit;
        // On by itself for long contexts, unless switched off. Where the budget is smaller than a longest prompt the engine
        // asks for it too.
        const bool small = given.max_num_batched_tokens && *given.max_num_batched_tokens < engine.max_model_len;
        if (!given.enable_chunked_prefill && (engine.max_model_len > 32768 || small)) {
            engine.enable_chunked_prefill = true;
            if (small && engine.max_model_len <= 32768) {
                d.warnings.push_back(
                    "vLLM V0 takes a max_num_batched_tokens below max_model_len only with chunked prefill, so it is on");
            }
        }
        resolve_vllm_v0(given, d, settings);
    }
    resolve_policy(scenario, *preset, d, settings, diagnostics);
    if (d.modelled_from.empty() && engine.policy.any()) d.modelled_from = "the pieces chosen beside the preset's";
    if (diagnostics.error_count() == before) {
        if (sglang) {
            resolve_sglang_limits(given, d, settings);
        } else {
            resolve_batch_limits(given, *preset, d, settings);
        }
    }
    if (diagnostics.error_count() != before) return d;

    MemoryOptions memory;
    memory.model = d.model;
    memory.gpu = d.gpu;
    memory.tensor_parallel_size = d.tensor_parallel_size;
    memory.pipeline_parallel_size = d.pipeline_parallel_size;
    memory.data_parallel_size = d.data_parallel_size;
    memory.decode_context_parallel_size = context_parallel;
    memory.enable_expert_parallel = given.enable_expert_parallel.value_or(false);
    memory.version = d.version;
    memory.enforce_eager = given.enforce_eager.value_or(false);
    memory.enable_prefix_caching = engine.enable_prefix_caching;
    memory.disable_hybrid_kv_cache_manager = given.disable_hybrid_kv_cache_manager.value_or(false);
    memory.draft_layers = given.draft_layers.value_or(0);
    memory.num_speculative_tokens = given.num_speculative_tokens.value_or(0);
    memory.weights_memory_bytes = given.weights_memory_bytes;
    memory.cuda_graph_memory_bytes = given.cuda_graph_memory_bytes;
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
        d.memory = std::move(memory);
        engine.block_size = d.budget.block_size;
        engine.num_gpu_blocks = d.budget.num_gpu_blocks;
        resolve_swap(given, *preset, d, settings);
        if (d.version.is_vllm() && !v0) engine.kv_groups = block_groups(d.budget);
        if (!engine.kv_groups.empty() && (engine.policy.preemption == PolicyArgs::Preemption::swap ||
                                          engine.policy.preemption == PolicyArgs::Preemption::cheaper))
            settings.error("preemption", "blocks of model " + d.model_name +
                                             ", which has layers of several kinds, cannot be swapped in this version");
        if (!engine.kv_groups.empty() && has_no_budget(engine)) {
            settings.error(
                given.batching ? "batching" : "preset",
                fmt::format("batching {} takes prompts of any length in one step; the windows and states of {} bound "
                            "their blocks by a token budget (disable_hybrid_kv_cache_manager: true goes)",
                            engine.batching, d.model_name));
        }
        d.warnings.insert(d.warnings.end(), d.budget.warnings.begin(), d.budget.warnings.end());
        if (sglang) resolve_sglang_pool(given, d, settings);
        if (engine.policy.kv && !engine.kv_groups.empty()) {
            settings.error("kv_policy",
                           fmt::format("kv_policy {} does not go with model {}: its layers of several kinds need block tables "
                                       "of their own, which plain paged has",
                                       engine.policy.kv.name, d.model_name));
        }
        if (engine.policy.contiguous()) resolve_contiguous(given, d, settings);
    }
    return d;
}

std::string Deployment::unsupported_run() const {
    if (!model) return "";
    bool several = false;
    for (const AttentionGroup& group : model->layer_groups()) {
        several = several || group.kind == "sliding" || group.kind == "chunked" || group.kind == "linear";
    }
    if (several && !version.is_vllm()) {
        return "model " + model_name + " has layers of several kinds, whose blocks " + version.text() +
               " keeps in separate pools";
    }
    std::int64_t tables = 0;
    double slots = 1;  // at least the least common multiple of the block sizes
    for (const BlockGroup& group : engine.kv_groups) {
        tables += group.tables;
        if (group.rule != BlockGroup::Rule::state) slots *= static_cast<double>(group.block_size);
    }
    if (tables > 4096 || slots > 1e15) {
        return "model " + model_name + " needs " + std::to_string(tables) + " block tables, or blocks of sizes too different";
    }
    if (engine.enable_prefix_caching && model->layers_of("linear") > 0) {
        return "engine.enable_prefix_caching: true with the recurrent layers of " + model_name +
               " (their states would have to be cached too)";
    }
    return "";
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
