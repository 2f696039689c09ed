// kvsim from-vllm: a scenario from an engine's command line and, if there is one, its start-up log.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>

#include "kvsim/app/command.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/base/units.hpp"
#include "kvsim/config/load.hpp"
#include "kvsim/config/scenario.hpp"
#include "kvsim/model/deployment.hpp"
#include "kvsim/model/engine_version.hpp"

namespace kvsim::app {
namespace {

const Usage& usage() {
    static const Usage table{
        "from-vllm",
        "kvsim from-vllm 'vllm serve MODEL --flags...' [options]",
        "Writes a scenario that takes the decisions of that engine. What the start-up log prints (blocks, weights, "
        "activation,\n"
        "version, GPU) replaces what would be estimated. The workload it ends with is an example to be edited.",
        {{"log", "FILE", "the engine's start-up log"},
         {"gpu", "GPU", "a catalogue name; command lines do not say it"},
         {"catalog", "DIR", "own models.yaml and gpus.yaml, asked before the shipped ones"},
         {"out", "FILE", "where the scenario goes (standard output)"}},
        "the command line, in quotes",
        1,
        1};
    return table;
}

/// Splits as a POSIX shell does: blanks, quotes, backslashes, line continuations. No expansion.
std::vector<std::string> shell_words(const std::string& line) {
    std::vector<std::string> words;
    std::string word;
    bool open = false;  // a word has begun, be it empty
    char quote = 0;
    for (std::size_t i = 0; i < line.size(); ++i) {
        const char c = line[i];
        if (quote == '\'') {
            if (c == '\'') {
                quote = 0;
            } else {
                word += c;
            }
        } else if (c == '\\' && i + 1 < line.size() && (quote == 0 || line[i + 1] == '"' || line[i + 1] == '\\')) {
            ++i;
            if (line[i] != '\n') word += line[i];
            open = open || line[i] != '\n';
        } else if (quote == '"') {
            if (c == '"') {
                quote = 0;
            } else {
                word += c;
            }
        } else if (c == '\'' || c == '"') {
            quote = c;
            open = true;
        } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
            if (open || !word.empty()) words.push_back(word);
            word.clear();
            open = false;
        } else {
            word += c;
        }
    }
    if (quote != 0) throw UserError("error: the command line ends inside a quote");
    if (open || !word.empty()) words.push_back(word);
    return words;
}

enum class Kind { text, integer, number, human, bytes, on, off };
struct Flag {
    std::string_view name;  ///< without the dashes, with hyphens
    Kind kind;
    std::string_view key;  ///< of the scenario; empty: changes nothing that is simulated
};
// Those of vLLM's engine arguments that change batching, memory or the model.
constexpr std::array flags{Flag{"model", Kind::text, "model"},
                           Flag{"tensor-parallel-size", Kind::integer, "hardware.tensor_parallel_size"},
                           Flag{"tp", Kind::integer, "hardware.tensor_parallel_size"},
                           Flag{"pipeline-parallel-size", Kind::integer, "hardware.pipeline_parallel_size"},
                           Flag{"pp", Kind::integer, "hardware.pipeline_parallel_size"},
                           Flag{"data-parallel-size", Kind::integer, "hardware.data_parallel_size"},
                           Flag{"dp", Kind::integer, "hardware.data_parallel_size"},
                           Flag{"decode-context-parallel-size", Kind::integer, "hardware.decode_context_parallel_size"},
                           Flag{"dcp", Kind::integer, "hardware.decode_context_parallel_size"},
                           Flag{"max-model-len", Kind::human, "engine.max_model_len"},
                           Flag{"max-num-seqs", Kind::integer, "engine.max_num_seqs"},
                           Flag{"max-num-batched-tokens", Kind::human, "engine.max_num_batched_tokens"},
                           Flag{"block-size", Kind::integer, "engine.block_size"},
                           Flag{"gpu-memory-utilization", Kind::number, "engine.gpu_memory_utilization"},
                           Flag{"num-gpu-blocks-override", Kind::integer, "engine.num_gpu_blocks_override"},
                           Flag{"kv-cache-memory-bytes", Kind::bytes, "engine.kv_cache_memory_bytes"},
                           Flag{"kv-cache-memory", Kind::bytes, "engine.kv_cache_memory_bytes"},
                           Flag{"kv-cache-dtype", Kind::text, "engine.kv_cache_dtype"},
                           Flag{"dtype", Kind::text, "engine.dtype"},
                           Flag{"quantization", Kind::text, "engine.quantization"},
                           Flag{"q", Kind::text, "engine.quantization"},
                           Flag{"scheduling-policy", Kind::text, "engine.scheduling_policy"},
                           Flag{"long-prefill-token-threshold", Kind::integer, "engine.long_prefill_token_threshold"},
                           Flag{"enable-prefix-caching", Kind::on, "engine.enable_prefix_caching"},
                           Flag{"no-enable-prefix-caching", Kind::off, "engine.enable_prefix_caching"},
                           Flag{"enable-chunked-prefill", Kind::on, "engine.enable_chunked_prefill"},
                           Flag{"no-enable-chunked-prefill", Kind::off, "engine.enable_chunked_prefill"},
                           Flag{"async-scheduling", Kind::on, "engine.async_scheduling"},
                           Flag{"no-async-scheduling", Kind::off, "engine.async_scheduling"},
                           Flag{"enforce-eager", Kind::on, "engine.enforce_eager"},
                           Flag{"enable-expert-parallel", Kind::on, "engine.enable_expert_parallel"},
                           Flag{"disable-hybrid-kv-cache-manager", Kind::on, "engine.disable_hybrid_kv_cache_manager"},
                           Flag{"seed", Kind::integer, "seed"}};
// Known to change nothing that is simulated, and how many values each takes.
constexpr std::array<std::string_view, 27> silent_values{"host",
                                                         "port",
                                                         "api-key",
                                                         "served-model-name",
                                                         "chat-template",
                                                         "tokenizer",
                                                         "tokenizer-mode",
                                                         "revision",
                                                         "download-dir",
                                                         "load-format",
                                                         "config-format",
                                                         "uvicorn-log-level",
                                                         "tool-call-parser",
                                                         "reasoning-parser",
                                                         "max-log-len",
                                                         "root-path",
                                                         "ssl-keyfile",
                                                         "ssl-certfile",
                                                         "hf-token",
                                                         "swap-space",
                                                         "attention-backend",
                                                         "generation-config",
                                                         "limit-mm-per-prompt",
                                                         "chat-template-content-format",
                                                         "distributed-executor-backend",
                                                         "api-server-count",
                                                         "max-seq-len-to-capture"};
constexpr std::array<std::string_view, 10> silent_switches{
    "trust-remote-code",         "disable-log-requests",  "disable-log-stats",          "enable-auto-tool-choice",
    "disable-custom-all-reduce", "enable-log-requests",   "disable-uvicorn-access-log", "enable-sleep-mode",
    "enable-reasoning",          "no-enable-log-requests"};

/// One line of the scenario and where it came from.
struct Setting {
    std::string key;
    std::string value;
    std::string source;
};

class Settings {
public:
    void set(std::string_view key, std::string value, std::string source) {
        for (Setting& s : all_) {
            if (s.key == key) {
                s.value = std::move(value);
                s.source = std::move(source);
                return;
            }
        }
        all_.push_back({std::string(key), std::move(value), std::move(source)});
    }
    void erase(std::string_view key) {
        all_.erase(std::remove_if(all_.begin(), all_.end(), [&](const Setting& s) { return s.key == key; }), all_.end());
    }
    [[nodiscard]] const Setting* find(std::string_view key) const {
        for (const Setting& s : all_) {
            if (s.key == key) return &s;
        }
        return nullptr;
    }
    [[nodiscard]] const std::vector<Setting>& all() const { return all_; }
    std::vector<std::string> notes;

private:
    std::vector<Setting> all_;
};

/// "8192", "8k" (1000), "8K" (1024), "1.5m": vLLM's human-readable integers. Empty: not one.
std::string human_integer(const std::string& text) {
    static const std::regex form(R"(([0-9]+)(\.[0-9]+)?([kKmMgG]?))");
    std::smatch match;
    if (!std::regex_match(text, match, form) || match[1].length() > 12) return "";
    double factor = 1;
    if (match[3].length() > 0) {
        const char c = match[3].str()[0];
        const double base = std::islower(static_cast<unsigned char>(c)) != 0 ? 1000 : 1024;
        const char low = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        factor = std::pow(base, low == 'k' ? 1 : low == 'm' ? 2 : 3);
    }
    double value = 0;
    const std::string digits = match[1].str() + match[2].str();
    double scale = 0;
    for (const char c : digits) {
        if (c == '.') {
            scale = 1;
            continue;
        }
        value = value * 10 + (c - '0');
        scale *= 10;
    }
    value = (scale > 0 ? value / scale : value) * factor;
    return value >= 1 && value < 1e15 && value == std::floor(value) ? std::to_string(static_cast<std::int64_t>(value)) : "";
}

bool is_switch_value(const std::string& word) {
    return word == "true" || word == "True" || word == "false" || word == "False";
}

/// {"method": "mtp", "num_speculative_tokens": 2}: what of it needs memory.
void read_speculation(const std::string& text, Settings& settings) {
    const auto config = nlohmann::json::parse(text, nullptr, false);
    if (!config.is_object()) throw UserError("error: --speculative-config is not a JSON object: " + excerpt(text));
    const auto tokens = config.find("num_speculative_tokens");
    if (tokens != config.end() && tokens->is_number_integer()) {
        settings.set("engine.num_speculative_tokens", tokens->dump(), "--speculative-config");
    }
    const std::string method = config.value("method", std::string());
    if (method.find("mtp") != std::string::npos || method.starts_with("eagle")) {
        settings.set("engine.draft_layers", "1", "--speculative-config: " + method);
    }
    settings.notes.push_back("speculative decoding: its memory is counted, its speed-up is not simulated");
}

void read_command(const std::vector<std::string>& all, Settings& settings) {
    // Environment assignments, launchers (sudo, nohup, uv run, docker run ...) and the program itself stand before the first
    // argument; a pipe or a redirection ends the arguments.
    const auto is_program = [](const std::string& word, std::string_view name) {
        return word == name || word.ends_with("/" + std::string(name));
    };
    const auto ends = [](const std::string& word) {
        constexpr std::array<std::string_view, 5> operators{"|", "||", "&", "&&", ";"};
        if (std::find(operators.begin(), operators.end(), word) != operators.end()) return true;
        const std::size_t digit = !word.empty() && word[0] >= '0' && word[0] <= '9' ? 1 : 0;
        return word.size() > digit && word[digit] == '>';  // `> log`, `2>&1`
    };
    std::vector<std::string> words;
    for (const std::string& word : all) {
        if (ends(word)) break;
        words.push_back(word);
    }
    std::size_t at = 0;
    bool positional = false;
    for (std::size_t i = 0; i < words.size() && at == 0; ++i) {
        const std::string next = i + 1 < words.size() ? words[i + 1] : "";
        if (is_program(words[i], "vllm") && next == "serve") {
            at = i + 2;
            positional = true;
        } else if (words[i] == "-m" && next.starts_with("vllm.")) {
            at = i + 2;
        } else if (const std::size_t image = words[i].find("vllm-openai"); image != std::string::npos && words[i][0] != '-') {
            at = i + 1;
            if (is_program(next, "vllm")) ++at;
            if (at < words.size() && words[at] == "serve") ++at;
            positional = true;
            static const std::regex tag(R"(:v?([0-9]+\.[0-9]+\.[0-9]+)[A-Za-z0-9.+-]*$)");
            if (std::smatch m; words[i].size() < 300 && std::regex_search(words[i], m, tag))
                settings.set("engine.version", "vllm-" + m[1].str(), "image");
        }
    }
    if (at == 0) {
        const bool vllm = std::any_of(words.begin(), words.end(), [&](const std::string& w) { return is_program(w, "vllm"); });
        const bool python =
            std::any_of(words.begin(), words.end(), [](const std::string& w) { return w.find("python") != std::string::npos; });
        if (vllm) throw UserError("error: expected `vllm serve MODEL ...`");
        if (python) throw UserError("error: expected `python -m vllm.entrypoints.openai.api_server ...`");
        throw UserError("error: expected a command line such as 'vllm serve MODEL --max-model-len 8192', not '" +
                        excerpt(words.empty() ? std::string() : words[0]) + "'");
    }
    std::vector<std::string_view> names;
    for (const Flag& flag : flags) names.push_back(flag.name);
    for (; at < words.size(); ++at) {
        std::string word = words[at];
        if (word.size() < 2 || word[0] != '-') {
            if (!positional || settings.find("model") != nullptr) {
                throw UserError("error: unexpected argument '" + excerpt(word) + "'");
            }
            settings.set("model", word, "command line");
            continue;
        }
        word.erase(0, word[1] == '-' ? 2 : 1);
        std::optional<std::string> value;
        if (const std::size_t equals = word.find('='); equals != std::string::npos) {
            value = word.substr(equals + 1);
            word.erase(equals);
        }
        std::replace(word.begin(), word.end(), '_', '-');
        const std::string shown = "--" + word;
        const auto need = [&]() -> std::string {
            if (value) return *value;
            if (at + 1 >= words.size()) throw UserError("error: " + shown + " has no value");
            return words[++at];
        };
        const auto known = std::find_if(flags.begin(), flags.end(), [&](const Flag& f) { return f.name == word; });
        if (known == flags.end()) {
            if (word == "speculative-config") {
                read_speculation(need(), settings);
            } else if (std::find(silent_values.begin(), silent_values.end(), word) != silent_values.end()) {
                need();
            } else if (std::find(silent_switches.begin(), silent_switches.end(), word) == silent_switches.end()) {
                const std::string_view near = nearest(word, names);
                settings.notes.push_back("ignored: " + shown +
                                         (near.empty() ? std::string() : "; did you mean --" + std::string(near) + "?"));
                if (!value && at + 1 < words.size() && words[at + 1][0] != '-') ++at;
            }
            continue;
        }
        switch (known->kind) {
            case Kind::on:
            case Kind::off: {
                bool on = known->kind == Kind::on;
                if (!value && at + 1 < words.size() && is_switch_value(words[at + 1])) value = words[++at];
                if (value && !is_switch_value(*value))
                    throw UserError("error: " + shown + " is a switch, not '" + *value + "'");
                if (value && (*value == "false" || *value == "False")) on = !on;
                settings.set(known->key, on ? "true" : "false", shown);
                break;
            }
            case Kind::human:
            case Kind::integer:
            case Kind::bytes: {
                const std::string text = need();
                if (word == "max-model-len" && (text == "auto" || text == "-1")) {
                    settings.notes.push_back(shown + " " + text + ": the model's own length is taken");
                    break;
                }
                const std::string number = human_integer(text);
                if (number.empty() || (known->kind == Kind::integer && number != text)) {
                    throw UserError("error: " + shown + " must be a whole number, not '" + excerpt(text) + "'");
                }
                settings.set(known->key, number, shown);
                break;
            }
            case Kind::number:
            case Kind::text: {
                std::string text = need();
                if (word == "quantization" || word == "q") {
                    for (const char* suffix : {"_marlin", "-marlin"}) {
                        if (text.ends_with(suffix)) text.erase(text.size() - std::string_view(suffix).size());
                    }
                    // Named by the checkpoint, which says more than the flag does.
                    if (text == "compressed-tensors" || text == "modelopt" || text == "gguf") {
                        settings.notes.push_back("--quantization " + text + ": taken from the model's own facts");
                        break;
                    }
                }
                if (known->key == "engine.dtype" && text == "half") text = "float16";
                settings.set(known->key, text, shown);
                break;
            }
        }
    }
    if (settings.find("model") == nullptr) throw UserError("error: the command line names no model");
}

std::string without_commas(std::string text) {
    text.erase(std::remove(text.begin(), text.end(), ','), text.end());
    return text;
}

/// What a start-up log of vLLM (0.4 to 0.2x) prints of the memory; the last line of a kind counts for figures, the smallest for
/// blocks and KV bytes (one line a rank, the least decides).
struct LogFigures {
    std::optional<std::string> version, gpu;
    std::optional<std::int64_t> blocks, tokens, max_model_len, max_num_batched_tokens, block_size;
    std::optional<double> weights, activation, non_torch, graphs, kv;  ///< GiB
};

LogFigures read_log(const std::string& text) {
    static const std::regex version(
        R"((?:vLLM API server version |LLM engine \(v|vLLM version )v?([0-9]+\.[0-9]+\.[0-9]+[A-Za-z0-9.+-]*))");
    static const std::regex blocks(
        R"((?:# GPU blocks|# cuda blocks|num_gpu_blocks is): *([0-9,]+)|num_gpu_blocks is:? *([0-9,]+))");
    static const std::regex tokens(R"(GPU KV cache size: ([0-9,]+) tokens)");
    static const std::regex available(R"((?:Available KV cache memory: |reserved for KV Cache is )(-?[0-9.]+) ?Gi?B)");
    static const std::regex weights(
        R"((?:[Mm]odel loading took |Loading model weights took |model weights take )([0-9.]+) ?Gi?B)");
    static const std::regex activation(R"(PyTorch activation peak memory takes ([0-9.]+) ?Gi?B)");
    static const std::regex non_torch(R"(non_torch_memory takes ([0-9.]+) ?Gi?B)");
    static const std::regex graphs(R"(Graph capturing finished in [0-9]+ secs?, took (-?[0-9.]+) Gi?B)");
    static const std::regex batched(R"(max_num_batched_tokens=([0-9]+))");
    static const std::regex length(R"(max_seq_len=([0-9]+))");
    static const std::regex size(R"([Ss]etting attention block size to ([0-9]+) tokens)");
    LogFigures out;
    const auto number = [](const std::string& digits) -> std::optional<double> {
        double value = 0;
        double scale = 0;
        const bool negative = !digits.empty() && digits[0] == '-';
        for (const char c : digits) {
            if (c == '-') continue;
            if (c == '.') {
                if (scale > 0) return std::nullopt;
                scale = 1;
                continue;
            }
            value = value * 10 + (c - '0');
            scale *= 10;
        }
        value = scale > 0 ? value / scale : value;
        return negative ? -value : value;
    };
    const auto integer = [](const std::string& digits) -> std::optional<std::int64_t> {
        const std::string plain = without_commas(digits);
        if (plain.empty() || plain.size() > 15) return std::nullopt;
        std::int64_t value = 0;
        for (const char c : plain) value = value * 10 + (c - '0');
        return value;
    };
    const auto least = [](std::optional<std::int64_t>& into, std::optional<std::int64_t> value) {
        if (value && (!into || *value < *into)) into = value;
    };
    static const std::regex colour("\x1b\\[[0-9;]*[A-Za-z]");
    static const std::regex device(R"(device_name=([A-Za-z0-9_-]+?)(?:,|\.json|$|['" ]))");
    std::smatch m;
    bool v0 = false;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t stop = std::min(text.find('\n', at), text.size());
        std::string line = text.substr(at, std::min<std::size_t>(stop - at, 4000));
        if (line.find('\x1b') != std::string::npos) line = std::regex_replace(line, colour, "");
        at = stop + 1;
        if (std::regex_search(line, m, version) && !out.version) out.version = m[1];
        if (line.find("a V0 LLM engine") != std::string::npos) v0 = true;
        if (std::regex_search(line, m, blocks)) least(out.blocks, integer(m[1].matched ? m[1].str() : m[2].str()));
        if (std::regex_search(line, m, tokens)) least(out.tokens, integer(m[1]));
        if (std::regex_search(line, m, device)) out.gpu = m[1];
        if (std::regex_search(line, m, available)) {
            const std::optional<double> kv = number(m[1]);
            if (kv && (!out.kv || *kv < *out.kv)) out.kv = kv;  // one line a rank
        }
        if (std::regex_search(line, m, weights)) out.weights = number(m[1]);
        if (std::regex_search(line, m, activation)) out.activation = number(m[1]);
        if (std::regex_search(line, m, non_torch)) out.non_torch = number(m[1]);
        if (std::regex_search(line, m, graphs)) out.graphs = number(m[1]);
        if (std::regex_search(line, m, batched)) out.max_num_batched_tokens = integer(m[1]);
        if (std::regex_search(line, m, length)) out.max_model_len = integer(m[1]);
        if (std::regex_search(line, m, size)) out.block_size = integer(m[1]);
    }
    if (v0 && out.version) *out.version += "-v0";
    return out;
}

/// NVIDIA_GeForce_RTX_4090 -> RTX-4090; empty: not in the catalogue.
std::string gpu_of_device(std::string name, const Catalog& catalog) {
    for (const std::string_view maker : {"NVIDIA_", "GeForce_", "AMD_Instinct_"}) {
        if (name.starts_with(maker)) name.erase(0, maker.size());
    }
    std::replace(name.begin(), name.end(), '_', '-');
    const auto known = [&catalog](const std::string& gpu) {
        config::Diagnostics ignored;
        return catalog.gpu(gpu, {}, ignored).has_value();
    };
    if (known(name)) return name;
    const std::size_t dash = name.rfind('-');  // MI300X-OAM; a size or form factor in that place is another card
    const bool module = dash != std::string::npos && (name.substr(dash) == "-OAM" || name.substr(dash).starts_with("-HBM"));
    return module && known(name.substr(0, dash)) ? name.substr(0, dash) : "";
}

void apply_log(const LogFigures& log, const std::string& file, bool several_tables, Settings& settings) {
    const std::string from = "log " + std::filesystem::path(file).filename().string();
    const auto gib = [](double amount) { return shortest(amount) + "GiB"; };
    if (log.version) settings.set("engine.version", "vllm-" + *log.version, from);
    if (log.max_model_len && settings.find("engine.max_model_len") == nullptr) {
        settings.set("engine.max_model_len", std::to_string(*log.max_model_len), from);
    }
    if (log.max_num_batched_tokens && settings.find("engine.max_num_batched_tokens") == nullptr) {
        settings.set("engine.max_num_batched_tokens", std::to_string(*log.max_num_batched_tokens), from);
    }
    if (log.weights) settings.set("engine.weights_memory_bytes", gib(*log.weights), from);
    if (log.activation) settings.set("engine.activation_memory_bytes", gib(*log.activation), from);
    if (log.non_torch) settings.set("engine.non_torch_memory_bytes", gib(*log.non_torch), from);
    if (log.graphs && *log.graphs >= 0) settings.set("engine.cuda_graph_memory_bytes", gib(*log.graphs), from);
    // The blocks themselves are the best there is: nothing is left to derive.
    const Setting* size = settings.find("engine.block_size");
    std::int64_t block = 16;
    if (size != nullptr) block = std::stoll(size->value);
    // The printed tokens are those of all ranks that share a context.
    if (const Setting* ranks = settings.find("hardware.decode_context_parallel_size")) block *= std::stoll(ranks->value);
    if (log.blocks) {
        settings.set("engine.num_gpu_blocks_override", std::to_string(*log.blocks), from);
        settings.erase("engine.kv_cache_memory_bytes");
    } else if (log.tokens && !several_tables) {
        std::int64_t blocks = *log.tokens / block;
        const auto version = log.version ? parse_engine_version("vllm-" + *log.version) : std::nullopt;
        const Setting* length = settings.find("engine.max_model_len");
        if (version && version->at_least(0, 21) && length != nullptr) {
            // From 0.21 on the line is floor(blocks / blocks of a longest request x max_model_len).
            const std::int64_t longest = std::stoll(length->value);
            if (*log.tokens < 1'000'000'000'000 && longest <= 1'000'000'000)
                blocks = ceil_div(*log.tokens * ceil_div(longest, block), longest);
        }
        settings.set("engine.num_gpu_blocks_override", std::to_string(blocks), from + ": tokens / block_size");
        settings.erase("engine.kv_cache_memory_bytes");
    } else if (log.kv && *log.kv > 0) {
        settings.set("engine.kv_cache_memory_bytes", gib(*log.kv), from);
    } else if (!log.weights) {
        settings.notes.push_back(from + " prints no blocks, tokens or memory figures that are known");
    }
}

/// A plain scalar where YAML reads it as text, else quoted.
std::string yaml_scalar(const std::string& text) {
    static const std::regex plain(R"([A-Za-z0-9_./+-][A-Za-z0-9_./+ -]*)");
    if (std::regex_match(text, plain) && text.back() != ' ') return text;
    std::string out = "'";
    for (const char c : text) {
        out += c;
        if (c == '\'') out += c;
    }
    out += '\'';
    return out;
}

std::string scenario_text(const Settings& settings, const std::string& command) {
    std::string out = "# How does this deployment behave under load?\n# " + excerpt(command, 1000) + "\n";
    for (const std::string& note : settings.notes) out += "# " + note + "\n";
    const auto line = [&](const Setting& s, std::string_view key, std::string_view indent) {
        const std::string text = std::string(indent) + std::string(key) + ": " + yaml_scalar(s.value);
        out += fmt::format("{:<52}# {}\n", text, s.source);
    };
    for (const char* section : {"", "hardware", "engine"}) {
        bool opened = false;
        for (const Setting& s : settings.all()) {
            const std::size_t dot = s.key.find('.');
            const std::string own = dot == std::string::npos ? "" : s.key.substr(0, dot);
            if (own != section) continue;
            if (!own.empty() && !opened) out += own + ":\n";
            opened = true;
            line(s, own.empty() ? s.key : s.key.substr(dot + 1), own.empty() ? "" : "  ");
        }
    }
    out +=
        "workload:                                           # an example: put your own here\n"
        "  requests: 1000\n"
        "  arrivals: {process: poisson, rate: 1/s}\n"
        "  prompt_tokens: {distribution: lognormal, p50: 512, p90: 1500, max: 4000}\n"
        "  output_tokens: {distribution: lognormal, p50: 128, p90: 400, max: 1000}\n";
    return out;
}

}  // namespace

int from_vllm_command(const std::vector<std::string>& args) {
    const std::optional<Arguments> given = parse(usage(), args);
    if (!given) return exit_done;
    const std::string command = given->positional.front();
    Settings settings;
    read_command(shell_words(command), settings);
    if (const auto gpu = given->text("gpu")) settings.set("hardware.gpu", *gpu, "--gpu");

    const Catalog catalog = Catalog::open(given->text("catalog").value_or(""));
    config::Diagnostics diagnostics;
    config::Value name;
    name.kind = config::Value::Kind::scalar;
    name.scalar = settings.find("model")->value;
    name.mark.source = std::make_shared<const config::Source>(config::Source{"model", {}});
    const std::optional<ModelSpec> model = resolve_model(name, "", catalog, diagnostics);
    diagnostics.throw_if_errors();
    if (const auto log = given->text("log")) {
        const LogFigures figures = read_log(read_file(*log, std::size_t{1} << 28));
        if (figures.gpu && settings.find("hardware.gpu") == nullptr) {
            if (const std::string gpu = gpu_of_device(*figures.gpu, catalog); !gpu.empty())
                settings.set("hardware.gpu", gpu, "log: device_name");
        }
        if (figures.block_size) settings.set("engine.block_size", std::to_string(*figures.block_size), "log");
        apply_log(figures, *log, model->attention.size() > 1, settings);
    }
    if (settings.find("hardware.gpu") == nullptr && settings.find("engine.num_gpu_blocks_override") == nullptr) {
        settings.notes.push_back("name the GPU (--gpu) or give the start-up log (--log): the KV budget needs one");
    } else if (settings.find("hardware.gpu") == nullptr) {
        settings.notes.push_back("name the GPU (hardware.gpu) for step times");
    }
    const std::string text = scenario_text(settings, command);

    // What was written must be a scenario; what only a GPU could settle is left to the user.
    const config::Value root = config::parse_yaml(text, "from-vllm", diagnostics);
    const config::Scenario scenario = config::read_scenario(root, "from-vllm", diagnostics);
    diagnostics.throw_if_errors();
    if (settings.find("hardware.gpu") != nullptr || settings.find("engine.num_gpu_blocks_override") != nullptr) {
        resolve_deployment(scenario, catalog, diagnostics);
        diagnostics.throw_if_errors();
    }
    for (const std::string& note : settings.notes) log_warning(note);
    if (const auto out = given->text("out")) {
        AtomicFile file(*out);
        file.write(text);
        file.commit();
    } else {
        print(text);
    }
    return exit_done;
}

}  // namespace kvsim::app
