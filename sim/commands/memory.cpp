// kvsim memory: the KV-cache arithmetic, forwards (GPU -> blocks -> requests) and backwards (users -> bytes).

#include "kvsim/model/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "kvsim/app/command.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/config/load.hpp"
#include "kvsim/config/scenario.hpp"
#include "kvsim/model/deployment.hpp"
#include "kvsim/model/pieces.hpp"
#include "kvsim/model/workload_pieces.hpp"
#include "kvsim/report/text_table.hpp"

namespace kvsim::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t most = 1'000'000'000'000;

/// An option that stands for a key of the scenario.
struct KeyOption {
    Option option;
    std::string_view path;
};
const std::vector<KeyOption>& key_options() {
    static const std::vector<KeyOption> options{
        {{"model", "MODEL", "a catalogue name or the path of a config.json"}, "model"},
        {{"gpu", "GPU", "a catalogue name"}, "hardware.gpu"},
        {{"tp", "N", "tensor_parallel_size"}, "hardware.tensor_parallel_size"},
        {{"pp", "N", "pipeline_parallel_size"}, "hardware.pipeline_parallel_size"},
        {{"dp", "N", "data_parallel_size"}, "hardware.data_parallel_size"},
        {{"dcp", "N", "decode_context_parallel_size"}, "hardware.decode_context_parallel_size"},
        {{"block-size", "N", "tokens a block"}, "engine.block_size"},
        {{"dtype", "TYPE", "auto, bfloat16, float16, float32"}, "engine.dtype"},
        {{"quantization", "METHOD", "of the weights: fp8, awq, gptq, int8, mxfp4, nvfp4, bitsandbytes, gguf_q8_0, ..."},
         "engine.quantization"},
        {{"kv-cache-dtype", "TYPE", "auto, fp8, ..."}, "engine.kv_cache_dtype"},
        {{"max-model-len", "N", "longest prompt and output together"}, "engine.max_model_len"},
        {{"max-num-seqs", "N", "requests running at once"}, "engine.max_num_seqs"},
        {{"max-num-batched-tokens", "N", "tokens a step"}, "engine.max_num_batched_tokens"},
        {{"gpu-memory-utilization", "X", "share of the GPU's memory the engine may use"}, "engine.gpu_memory_utilization"},
        {{"kv-cache-memory-bytes", "BYTES", "KV bytes per GPU; then no GPU is needed"}, "engine.kv_cache_memory_bytes"},
        {{"num-gpu-blocks", "N", "blocks, as the engine's log says"}, "engine.num_gpu_blocks_override"},
        {{"weights-memory-bytes", "BYTES", "weights per GPU, instead of computing them"}, "engine.weights_memory_bytes"},
        {{"activation-memory-bytes", "BYTES", "activation peak per GPU, instead of estimating it"},
         "engine.activation_memory_bytes"},
        {{"non-torch-memory-bytes", "BYTES", "memory outside the allocator, instead of estimating it"},
         "engine.non_torch_memory_bytes"},
        {{"cuda-graph-memory-bytes", "BYTES", "CUDA graphs, instead of estimating them"}, "engine.cuda_graph_memory_bytes"},
        {{"draft-layers", "N", "KV layers of a draft model"}, "engine.draft_layers"},
        {{"num-speculative-tokens", "N", "tokens drafted a step"}, "engine.num_speculative_tokens"}};
    return options;
}
const std::vector<KeyOption>& flag_options() {
    static const std::vector<KeyOption> options{
        {{"enforce-eager", "", "no CUDA graphs"}, "engine.enforce_eager"},
        {{"enable-prefix-caching", "", "also of recurrent states (two blocks each)"}, "engine.enable_prefix_caching"},
        {{"enable-expert-parallel", "", "ranks hold whole experts"}, "engine.enable_expert_parallel"},
        {{"disable-hybrid-kv-cache-manager", "", "windowed layers keep whole contexts"},
         "engine.disable_hybrid_kv_cache_manager"}};
    return options;
}

Usage usage() {
    Usage out{
        "memory",
        "kvsim memory [SCENARIO.yaml] [options]",
        "Derives the KV cache from model, GPU and engine arguments, term by term. The options replace the scenario's keys.",
        {},
        "a scenario file",
        0,
        1};
    for (const KeyOption& key : key_options()) out.options.push_back(key.option);
    for (const KeyOption& key : flag_options()) out.options.push_back(key.option);
    out.options.push_back({"engine", "NAME", "a preset (vllm-v1) or an engine and its version: vllm-0.11.0, sglang, trtllm"});
    out.options.push_back({"catalog", "DIR", "own models.yaml and gpus.yaml, asked before the shipped ones"});
    out.options.push_back({"tokens", "N[,N...]", "how many requests of N tokens fit: 1k,8k,32k (k = 1024)", true});
    out.options.push_back({"users", "N", "backwards: what N requests of --tokens (or max_model_len) tokens need"});
    out.options.push_back({"format", "FORMAT", "table, json, csv or markdown (table)"});
    return out;
}

/// A scalar that remembers the option it came from.
config::Value scalar(const std::string& text, const std::string& source) {
    config::Value value;
    value.kind = config::Value::Kind::scalar;
    value.scalar = text;
    value.mark.source = std::make_shared<const config::Source>(config::Source{source, {}});
    return value;
}

config::Value& member(config::Value& map, const std::string& key) {
    map.kind = config::Value::Kind::map;
    for (config::Member& m : map.map) {
        if (m.key == key) return m.value;
    }
    config::Member& m = map.map.emplace_back();
    m.key = key;
    m.key_mark = map.mark;
    m.value.mark = map.mark;
    return m.value;
}

void put(config::Value& root, std::string_view path, config::Value value) {
    const std::size_t dot = path.find('.');
    config::Value& slot = member(root, std::string(path.substr(0, dot)));
    if (dot == std::string_view::npos) {
        slot = std::move(value);
    } else {
        put(slot, path.substr(dot + 1), std::move(value));
    }
}

/// "8192", "8k", "1m" (k = 1024, m = 1024 k).
std::int64_t parse_tokens(std::string text) {
    const std::string written = text;
    std::int64_t factor = 1;
    if (!text.empty() && (text.back() == 'k' || text.back() == 'K')) factor = 1024;
    if (!text.empty() && (text.back() == 'm' || text.back() == 'M')) factor = 1024 * 1024;
    if (factor > 1) text.pop_back();
    std::int64_t value = 0;
    for (const char c : text) {
        if (c < '0' || c > '9' || value > most) value = -1;
        if (value < 0) break;
        value = value * 10 + (c - '0');
    }
    if (text.empty() || value < 1 || value > most / factor) {
        throw UserError("error: --tokens must be a count such as 8192 or 8k, not '" + excerpt(written) + "'");
    }
    return value * factor;
}

std::vector<std::int64_t> parse_lengths(const std::vector<std::string>& words) {
    std::vector<std::int64_t> out;
    for (const std::string& word : words) {
        for (std::size_t at = 0; at <= word.size();) {
            const std::size_t comma = std::min(word.find(',', at), word.size());
            out.push_back(parse_tokens(word.substr(at, comma - at)));
            at = comma + 1;
        }
    }
    return out;
}

std::int64_t checked_product(std::int64_t a, std::int64_t b) {
    std::int64_t out = 0;
    if (__builtin_mul_overflow(a, b, &out)) throw UserError("error: that many users and tokens need more than 2^63 bytes");
    return out;
}

std::string gib(std::int64_t bytes) {
    return decimals(static_cast<double>(bytes) / static_cast<double>(GiB), 2) + " GiB";
}

std::string share(double part) {
    return decimals(100 * part, 2) + " %";
}

/// The lengths (prompt and output) a scenario's first requests have when they finish.
struct Mix {
    std::vector<std::int64_t> lengths;  ///< sorted
    [[nodiscard]] std::int64_t at(double quantile) const {
        return lengths[static_cast<std::size_t>(quantile * static_cast<double>(lengths.size() - 1))];
    }
};

Mix length_mix(const config::Scenario& scenario, std::int64_t max_model_len, config::Diagnostics& diagnostics) {
    constexpr std::size_t sample = 10'000;
    Mix mix;
    const auto workload =
        make_workload(scenario.workload, static_cast<std::uint64_t>(scenario.seed), scenario.file.parent_path(), diagnostics);
    diagnostics.throw_if_errors();
    Arrival arrival;
    for (RequestId id = 0; mix.lengths.size() < sample; ++id) {
        const auto time = workload->next_time();
        if (!time) break;
        workload->pop(arrival);
        mix.lengths.push_back(std::min(arrival.prompt_tokens + arrival.output_tokens, max_model_len));
        workload->finished(id, *time, FinishReason::length, arrival.output_tokens);
    }
    std::sort(mix.lengths.begin(), mix.lengths.end());
    return mix;
}

/// What is shown beside the derivation, in every format.
struct Sections {
    Json json = Json::object();
    std::vector<TextTable> tables;
    std::string text;  ///< sentences
};

void show_requests(Sections& out, const KvBudget& b, const std::vector<std::int64_t>& lengths) {
    TextTable table{"requests that fit at once", {"tokens each", "requests", "blocks each", "wasted"}, {}};
    out.json["requests"] = Json::array();
    for (const std::int64_t tokens : lengths) {
        const std::int64_t fit = requests_that_fit(b, tokens);
        const std::int64_t blocks = blocks_held(b, tokens);
        const double waste =
            1 - static_cast<double>(tokens) / static_cast<double>(ceil_div(tokens, b.block_size) * b.block_size);
        out.json["requests"].push_back({{"tokens", tokens}, {"fit", fit}, {"blocks", blocks}});
        table.rows.push_back({std::to_string(tokens), std::to_string(fit), std::to_string(blocks), share(waste)});
    }
    out.tables.push_back(std::move(table));
}

void show_mix(Sections& out, const KvBudget& b, const Mix& mix) {
    if (mix.lengths.empty()) return;
    double blocks = 0;
    double tokens = 0;
    for (const std::int64_t length : mix.lengths) {
        blocks += static_cast<double>(blocks_held(b, length));
        tokens += static_cast<double>(length);
    }
    const auto n = static_cast<double>(mix.lengths.size());
    const auto fit = static_cast<std::int64_t>(static_cast<double>(b.num_gpu_blocks) / (blocks / n));
    out.json["length_mix"] = {{"sampled", mix.lengths.size()},
                              {"mean_tokens", tokens / n},
                              {"p50_tokens", mix.at(0.5)},
                              {"p99_tokens", mix.at(0.99)},
                              {"fit", fit}};
    out.text += fmt::format("the scenario's requests end at {} tokens in the mean (p50 {}, p99 {}): {} of them fit at once\n",
                            decimals(tokens / n, 0), mix.at(0.5), mix.at(0.99), fit);
}

/// Slots that no token ever fills, by block size.
void show_waste(Sections& out, const MemoryOptions& o, const KvBudget& b, const std::vector<std::int64_t>& lengths) {
    TextTable table{"waste by block size (last block of a request)",
                    {"block size", "blocks", "waste, tokens", "share", "of random lengths"},
                    {}};
    out.json["waste"] = Json::array();
    for (const std::int64_t size : {1, 8, 16, 32, 64, 128, 256}) {
        MemoryOptions other = o;
        other.block_size = size;
        config::Diagnostics ignored;
        other.num_gpu_blocks_override.reset();
        if (b.kv_bytes) other.kv_cache_memory_bytes = Bytes(*b.kv_bytes);
        const auto budget = derive_kv_budget(other, {}, ignored);
        if (!budget || budget->block_size != size) continue;
        double wasted = 0;
        double held = 0;
        for (const std::int64_t tokens : lengths) {
            const std::int64_t slots = ceil_div(tokens, size) * size;
            wasted += static_cast<double>(slots - tokens);
            held += static_cast<double>(slots);
        }
        const double mean = wasted / static_cast<double>(lengths.size());
        out.json["waste"].push_back({{"block_size", size},
                                     {"num_gpu_blocks", budget->num_gpu_blocks},
                                     {"wasted_tokens_per_request", mean},
                                     {"share", wasted / held},
                                     {"expected_wasted_tokens", static_cast<double>(size - 1) / 2}});
        table.rows.push_back({std::to_string(size), std::to_string(budget->num_gpu_blocks), decimals(mean, 1),
                              share(wasted / held), decimals(static_cast<double>(size - 1) / 2, 1)});
    }
    if (!table.rows.empty()) out.tables.push_back(std::move(table));
}

/// The same deployment with other KV types and tensor parallel sizes.
void show_grid(Sections& out, const MemoryOptions& o) {
    if (o.num_gpu_blocks_override) return;  // given for one layout
    TextTable table{"by kv_cache_dtype and tensor parallel size, per rank",
                    {"kv_cache_dtype", "TP", "KV bytes per token", "KV cache", "blocks", "tokens", "concurrency"},
                    {}};
    out.json["grid"] = Json::array();
    for (const char* dtype : {"auto", "fp8"}) {
        for (const std::int64_t tp : {1, 2, 4, 8}) {
            MemoryOptions other = o;
            other.kv_cache_dtype = dtype;
            other.tensor_parallel_size = tp;
            if (o.model->heads > 0 && o.model->heads % tp != 0) continue;
            config::Diagnostics problems;
            const auto budget = derive_kv_budget(other, {}, problems);
            Json row{{"kv_cache_dtype", dtype}, {"tensor_parallel_size", tp}};
            std::vector<std::string> cells{dtype, std::to_string(tp)};
            row["fits"] = budget.has_value();
            row["kv_bytes_per_token"] = budget ? Json(budget->kv_bytes_per_token) : Json();
            row["kv_bytes"] = budget && budget->kv_bytes ? Json(*budget->kv_bytes) : Json();
            row["num_gpu_blocks"] = budget ? Json(budget->num_gpu_blocks) : Json();
            row["tokens"] = budget ? Json(budget->tokens) : Json();
            row["concurrency"] = budget && budget->max_model_len > 0 ? Json(budget->concurrency) : Json();
            if (budget) {
                for (std::string cell : {std::to_string(budget->kv_bytes_per_token), gib(budget->kv_bytes.value_or(0)),
                                         std::to_string(budget->num_gpu_blocks), std::to_string(budget->tokens),
                                         fmt::format("{:.2f}x", budget->concurrency)}) {
                    cells.push_back(std::move(cell));
                }
            } else {
                cells.insert(cells.end(), {"-", "does not fit", "-", "-", "-"});
            }
            out.json["grid"].push_back(std::move(row));
            table.rows.push_back(std::move(cells));
        }
    }
    if (!table.rows.empty()) out.tables.push_back(std::move(table));
}

/// The longest request of which `users` fit at once; 0: none does.
std::int64_t longest_for(const KvBudget& b, std::int64_t users, std::int64_t limit) {
    std::int64_t low = 0;
    std::int64_t high = limit;
    while (low < high) {
        const std::int64_t middle = low + (high - low + 1) / 2;
        if (requests_that_fit(b, middle) >= users) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

/// One knob turned, everything else as asked.
void show_knobs(Sections& out, const MemoryOptions& o, std::int64_t users, std::int64_t tokens) {
    struct Knob {
        std::string text;
        MemoryOptions options;
    };
    std::vector<Knob> knobs;
    const auto add = [&](std::string text, auto change) {
        Knob knob{std::move(text), o};
        change(knob.options);
        knobs.push_back(std::move(knob));
    };
    if (kv_element_bytes(o.kv_cache_dtype, o.model->dtype).value_or(1) > 1) {
        add("kv_cache_dtype fp8", [](MemoryOptions& m) { m.kv_cache_dtype = "fp8"; });
    }
    if (!o.kv_cache_memory_bytes && !o.num_gpu_blocks_override) {
        if (o.gpu_memory_utilization < 0.95) {
            add("gpu_memory_utilization 0.95", [](MemoryOptions& m) { m.gpu_memory_utilization = 0.95; });
        }
        if (o.max_num_seqs > users) {
            add(fmt::format("max_num_seqs {}", users), [&](MemoryOptions& m) { m.max_num_seqs = users; });
        }
        add(fmt::format("tensor_parallel_size {}", 2 * o.tensor_parallel_size),
            [](MemoryOptions& m) { m.tensor_parallel_size *= 2; });
        if (bytes_per_weight(o.model->dtype) >= 2 && !o.weights_memory_bytes) {
            add("quantization fp8", [](MemoryOptions& m) { m.model->dtype = "fp8"; });
        }
    }
    TextTable table{"one knob turned", {"knob", "requests that fit", "enough"}, {}};
    out.json["knobs"] = Json::array();
    for (const Knob& knob : knobs) {
        config::Diagnostics ignored;
        const auto budget = derive_kv_budget(knob.options, {}, ignored);
        if (!budget) continue;
        const std::int64_t fit = requests_that_fit(*budget, tokens);
        out.json["knobs"].push_back({{"knob", knob.text}, {"fit", fit}, {"enough", fit >= users}});
        table.rows.push_back({knob.text, std::to_string(fit), fit >= users ? "yes" : "no"});
    }
    if (!table.rows.empty()) out.tables.push_back(std::move(table));
}

/// `derived`: the budget has memory behind it, not only a model.
void show_users(Sections& out, const Deployment& d, std::int64_t users, std::int64_t tokens, bool derived) {
    const KvBudget& b = d.budget;
    const std::int64_t each = blocks_held(b, tokens);
    const std::int64_t blocks = checked_product(users, each);
    const std::int64_t bytes = checked_product(blocks, b.block_bytes);
    out.json["users"] = users;
    out.json["user_tokens"] = tokens;
    out.json["users_blocks"] = blocks;
    out.json["users_kv_bytes"] = bytes;
    out.text += fmt::format("{} requests of {} tokens need {} blocks of {} tokens = {} bytes ({}) of KV cache per GPU", users,
                            tokens, blocks, b.block_size, bytes, gib(bytes));
    if (b.tables > 1 && b.kv_bytes_per_token > 0) {
        const std::int64_t whole =
            checked_product(users, checked_product(ceil_div(tokens, b.block_size) * b.block_size, b.kv_bytes_per_token));
        out.json["users_kv_bytes_without_windows"] = whole;
        out.text += fmt::format(" ({} if every layer kept whole contexts)", gib(whole));
    }
    const bool gpu = d.gpu && !d.memory.num_gpu_blocks_override && !d.memory.kv_cache_memory_bytes;
    if (derived) {
        const bool fits = requests_that_fit(b, tokens) >= users;
        out.json["users_fit"] = fits;
        out.text += fits ? ": they fit" : fmt::format(": they do not fit, there are {}", b.num_gpu_blocks);
        const std::int64_t limit = d.model && d.model->max_context > 0 ? d.model->max_context : b.max_model_len;
        const std::int64_t longest = longest_for(b, users, std::max(limit, tokens));
        out.json["longest_tokens"] = longest;
        out.text += longest > 0 ? fmt::format("\nhighest max_model_len at which {} requests fit at once: {}", users, longest)
                                : fmt::format("\n{} requests do not fit at any length", users);
    }
    out.text += "\n";
    if (gpu && d.model) {
        const auto tp = smallest_tensor_parallel(d.memory, users, tokens);
        out.json["smallest_tensor_parallel_size"] = tp ? Json(*tp) : Json();
        out.json["gpus"] = tp ? Json(*tp * d.pipeline_parallel_size) : Json();
        out.text += tp ? fmt::format("smallest tensor_parallel_size that holds them: {} ({} GPUs of {})\n", *tp,
                                     *tp * d.pipeline_parallel_size, d.gpu_name)
                       : "no tensor_parallel_size up to 64 holds them\n";
    }
    if (derived && d.model) show_knobs(out, d.memory, users, tokens);
}

std::string csv_cell(const Json& value) {
    if (value.is_null()) return "";
    std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (text.find_first_of(",\"\n") == std::string::npos) return text;
    std::string quoted = "\"";
    for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
    return quoted + "\"";
}

/// The asked-for deployment in the first row, the grid's in the others; requests_N: how many of N tokens fit.
std::string csv(const Deployment& d, const Json& json) {
    std::vector<std::pair<std::string, Json>> row{{"model", d.model_name},
                                                  {"gpu", d.gpu_name},
                                                  {"engine", d.version.text()},
                                                  {"tensor_parallel_size", d.tensor_parallel_size},
                                                  {"kv_cache_dtype", d.kv_cache_dtype}};
    for (const char* key : {"kv_bytes_per_token", "weights_bytes", "activation_bytes", "non_torch_bytes", "cuda_graph_bytes",
                            "kv_bytes", "block_size", "num_gpu_blocks", "tokens", "concurrency", "live_tokens"}) {
        row.emplace_back(key, json.at(key));
    }
    for (const Json& request : json.value("requests", Json::array())) {
        row.emplace_back("requests_" + request["tokens"].dump(), request["fit"]);
    }
    std::string head;
    std::string line;
    for (const auto& [key, value] : row) {
        if (!head.empty()) {
            head += ',';
            line += ',';
        }
        head += key;
        line += csv_cell(value);
    }
    std::string out = head + "\n" + line + "\n";
    for (const Json& point : json.value("grid", Json::array())) {
        std::string other;
        for (const auto& [key, value] : row) {
            const bool varies = point.contains(key);
            const bool fixed = key == "model" || key == "gpu" || key == "engine" || key == "block_size";
            if (key != "model") other += ',';
            other += csv_cell(varies ? point[key] : fixed ? value : Json());
        }
        out += other + "\n";
    }
    return out;
}

}  // namespace

int memory_command(const std::vector<std::string>& args) {
    const std::optional<Arguments> given = parse(usage(), args);
    if (!given) return exit_done;
    static constexpr std::array<std::string_view, 4> formats{"table", "json", "csv", "markdown"};
    const std::string format = given->choice("format", formats);
    const std::optional<std::int64_t> users = given->integer("users", 1, most);
    std::vector<std::int64_t> lengths = parse_lengths(given->all("tokens"));
    if (users && lengths.size() > 1) throw UserError("error: --users takes one --tokens");

    config::Diagnostics diagnostics;
    config::Value root;
    std::filesystem::path file = "command line";
    if (!given->positional.empty()) {
        file = given->positional.front();
        root = config::load_yaml(file, diagnostics);
        diagnostics.throw_if_errors();
    }
    root.kind = config::Value::Kind::map;
    for (const KeyOption& key : key_options()) {
        const std::string name(key.option.name);
        if (const auto text = given->text(name)) put(root, key.path, scalar(*text, "--" + name + " " + *text));
    }
    for (const KeyOption& key : flag_options()) {
        const std::string name(key.option.name);
        if (given->has(name)) put(root, key.path, scalar("true", "--" + name));
    }
    if (const auto engine = given->text("engine")) {
        const auto named = [&](std::string_view name) { return name == *engine; };
        const auto offered = presets();
        const bool preset = std::any_of(offered.begin(), offered.end(), [&](const Preset& p) { return named(p.name); });
        const std::string source = "--engine " + *engine;
        put(root, !preset && parse_engine_version(*engine) ? "engine.version" : "engine.preset", scalar(*engine, source));
    }
    // The arithmetic asks nothing of a workload, a scenario does.
    const bool has_workload = root.find("workload") != nullptr;
    if (!has_workload) {
        config::apply_set(root, "workload={requests: 1, arrivals: {process: all_at_once}, prompt_tokens: 1, output_tokens: 1}",
                          diagnostics);
    }
    // Backwards without any other source of memory: as many blocks as the users need.
    const auto set = [&root](const char* section, const char* key) {
        const config::Value* map = root.find(section);
        return map != nullptr && map->find(key) != nullptr;
    };
    const bool forwards =
        set("hardware", "gpu") || set("engine", "kv_cache_memory_bytes") || set("engine", "num_gpu_blocks_override");
    if (users && !forwards) put(root, "engine.num_gpu_blocks_override", scalar("2", "--users"));

    config::Scenario scenario = config::read_scenario(root, file, diagnostics);
    diagnostics.throw_if_errors();
    const Catalog catalog = Catalog::open(given->text("catalog").value_or(""));
    Deployment deployment = resolve_deployment(scenario, catalog, diagnostics);
    std::string chosen;
    if (users && !diagnostics.ok() && !set("hardware", "tensor_parallel_size")) {
        // Asked what users need, not whether one GPU is enough: the smallest number of ranks that holds the weights.
        for (std::int64_t tp = 2; tp <= 64 && chosen.empty(); tp *= 2) {
            config::Diagnostics attempt;
            scenario.hardware.tensor_parallel_size = tp;
            Deployment larger = resolve_deployment(scenario, catalog, attempt);
            if (!attempt.ok()) continue;
            deployment = std::move(larger);
            chosen = "one GPU does not hold the model; below: tensor_parallel_size " + std::to_string(tp) +
                     ", the smallest that does\n";
        }
    }
    if (chosen.empty()) diagnostics.throw_if_errors();
    const KvBudget& budget = deployment.budget;
    for (const std::string& warning : diagnostics.warnings()) log_diagnostic(warning);
    if (forwards || !users) {
        for (const std::string& warning : deployment.warnings) log_warning(warning);
    }
    if (users && budget.block_bytes <= 0) throw UserError("error: --users needs a model");

    Sections sections;
    sections.text = chosen;
    if (users) {
        show_users(sections, deployment, *users, lengths.empty() ? deployment.engine.max_model_len : lengths.front(), forwards);
    } else {
        Mix mix;
        if (has_workload) mix = length_mix(scenario, deployment.engine.max_model_len, diagnostics);
        if (lengths.empty() && mix.lengths.empty()) {
            for (const std::int64_t usual : {1024, 8192, 32768}) {
                if (usual <= deployment.engine.max_model_len) lengths.push_back(usual);
            }
        }
        if (!lengths.empty()) show_requests(sections, budget, lengths);
        show_mix(sections, budget, mix);
        if (deployment.model) {
            const std::vector<std::int64_t>& weighed = lengths.empty() ? mix.lengths : lengths;
            if (!weighed.empty() && budget.kv_bytes_per_token > 0) show_waste(sections, deployment.memory, budget, weighed);
            show_grid(sections, deployment.memory);
        }
    }

    Json json = Json::parse(memory_json(budget));
    json["model"] = deployment.model_name.empty() ? Json() : Json(deployment.model_name);
    json["gpu"] = deployment.gpu_name.empty() ? Json() : Json(deployment.gpu_name);
    json["tensor_parallel_size"] = deployment.tensor_parallel_size;
    json["pipeline_parallel_size"] = deployment.pipeline_parallel_size;
    json["kv_cache_dtype"] = deployment.kv_cache_dtype;
    json.update(sections.json);
    if (users && !forwards) {
        for (const char* derived : {"kv_bytes", "num_gpu_blocks", "tokens", "concurrency", "live_tokens", "printed_tokens"}) {
            json[derived] = nullptr;
        }
    }
    if (format == "json") {
        print(json.dump(2) + "\n");
    } else if (format == "csv") {
        print(csv(deployment, json));
    } else {
        const bool plain = format == "table";
        std::string out;
        if (forwards || !users) out = plain ? memory_table(budget) : "```\n" + memory_table(budget) + "```\n";
        if (!sections.text.empty()) out += (out.empty() ? "" : "\n") + sections.text;
        for (const TextTable& table : sections.tables) {
            out += (out.empty() ? "" : "\n") + (plain ? plain_text(table) : markdown(table));
        }
        print(out);
    }
    return exit_done;
}

}  // namespace kvsim::app
