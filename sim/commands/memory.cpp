// kvsim memory: the KV-cache arithmetic, forwards (GPU -> blocks -> requests) and backwards (users -> bytes).

#include "kvsim/model/memory.hpp"

#include <array>
#include <nlohmann/json.hpp>

#include "kvsim/app/command.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/config/load.hpp"
#include "kvsim/config/scenario.hpp"
#include "kvsim/model/deployment.hpp"

namespace kvsim::app {
namespace {

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
        {{"engine", "PRESET", "the engine preset (vllm-v1)"}, "engine.preset"},
        {{"block-size", "N", "tokens a block"}, "engine.block_size"},
        {{"kv-cache-dtype", "TYPE", "auto, fp8, ..."}, "engine.kv_cache_dtype"},
        {{"max-model-len", "N", "longest prompt and output together"}, "engine.max_model_len"},
        {{"max-num-seqs", "N", "requests running at once"}, "engine.max_num_seqs"},
        {{"max-num-batched-tokens", "N", "tokens a step"}, "engine.max_num_batched_tokens"},
        {{"gpu-memory-utilization", "X", "share of the GPU's memory the engine may use"}, "engine.gpu_memory_utilization"},
        {{"kv-cache-memory-bytes", "BYTES", "KV bytes per GPU; then no GPU is needed"}, "engine.kv_cache_memory_bytes"},
        {{"num-gpu-blocks", "N", "blocks, as the engine's log says"}, "engine.num_gpu_blocks_override"}};
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
    out.options.push_back({"tokens", "N", "how many requests of N tokens fit (repeatable without --users)", true});
    out.options.push_back({"users", "N", "the KV bytes that N requests of --tokens (or max_model_len) tokens need"});
    out.options.push_back({"format", "FORMAT", "table or json (table)"});
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

std::int64_t parse_count(const std::string& text, std::string_view option) {
    Arguments one;
    one.values.emplace(std::string(option), std::vector<std::string>{text});
    return *one.integer(option, 1, most);
}

std::int64_t checked_product(std::int64_t a, std::int64_t b) {
    std::int64_t out = 0;
    if (__builtin_mul_overflow(a, b, &out)) throw UserError("error: that many users and tokens need more than 2^63 bytes");
    return out;
}

std::string gib(std::int64_t bytes) {
    return decimals(static_cast<double>(bytes) / static_cast<double>(GiB), 2) + " GiB";
}

}  // namespace

int memory_command(const std::vector<std::string>& args) {
    const std::optional<Arguments> given = parse(usage(), args);
    if (!given) return exit_done;
    static constexpr std::array<std::string_view, 2> formats{"table", "json"};
    const std::string format = given->choice("format", formats);
    const std::optional<std::int64_t> users = given->integer("users", 1, most);
    std::vector<std::int64_t> lengths;
    for (const std::string& text : given->all("tokens")) lengths.push_back(parse_count(text, "tokens"));
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
    // The arithmetic asks nothing of a workload, a scenario does.
    if (root.find("workload") == nullptr) {
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

    const config::Scenario scenario = config::read_scenario(root, file, diagnostics);
    diagnostics.throw_if_errors();
    const Deployment deployment = resolve_deployment(scenario, Catalog::open(), diagnostics);
    diagnostics.throw_if_errors();
    const KvBudget& budget = deployment.budget;
    for (const std::string& warning : diagnostics.warnings()) log_diagnostic(warning);
    if (forwards || !users) {
        for (const std::string& warning : deployment.warnings) log_warning(warning);
    }
    if (users && budget.kv_bytes_per_token <= 0) throw UserError("error: --users needs a model");

    nlohmann::ordered_json json = nlohmann::ordered_json::parse(memory_json(budget));
    std::string table = forwards || !users ? memory_table(budget) : "";
    if (users) {
        const std::int64_t tokens = lengths.empty() ? deployment.engine.max_model_len : lengths.front();
        const std::int64_t blocks = checked_product(*users, ceil_div(tokens, budget.block_size));
        const std::int64_t bytes = checked_product(blocks, checked_product(budget.block_size, budget.kv_bytes_per_token));
        json["users"] = *users;
        json["user_tokens"] = tokens;
        json["users_blocks"] = blocks;
        json["users_kv_bytes"] = bytes;
        table += std::to_string(*users) + " requests of " + std::to_string(tokens) + " tokens need " + std::to_string(blocks) +
                 " blocks of " + std::to_string(budget.block_size) + " tokens = " + std::to_string(bytes) + " bytes (" +
                 gib(bytes) + ") of KV cache per GPU";
        if (forwards) {
            const bool fits = blocks <= budget.num_gpu_blocks;
            json["users_fit"] = fits;
            table += fits ? ": they fit" : ": they do not fit, there are " + std::to_string(budget.num_gpu_blocks);
        } else {
            for (const char* derived : {"kv_bytes", "num_gpu_blocks", "tokens", "concurrency"}) json[derived] = nullptr;
        }
        table += "\n";
    } else if (!lengths.empty()) {
        json["requests"] = nlohmann::ordered_json::array();
        for (const std::int64_t tokens : lengths) {
            const std::int64_t fit = budget.num_gpu_blocks / ceil_div(tokens, budget.block_size);
            json["requests"].push_back({{"tokens", tokens}, {"fit", fit}});
            table += std::to_string(fit) + " requests of " + std::to_string(tokens) + " tokens fit at once\n";
        }
    }
    print(format == "json" ? json.dump(2) + "\n" : table);
    return exit_done;
}

}  // namespace kvsim::app
