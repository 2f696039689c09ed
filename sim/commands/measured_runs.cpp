#include "kvsim/app/measured_runs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>

#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/config/load.hpp"
#include "kvsim/engine/simulation.hpp"
#include "kvsim/model/token_ids.hpp"
#include "kvsim/random/distribution.hpp"
#include "kvsim/random/stream.hpp"
#include "kvsim/report/quantile.hpp"
#include "kvsim/report/summary.hpp"

namespace kvsim::app {
namespace {

namespace fs = std::filesystem;
using Row = CsvTable::Row;

constexpr std::int64_t most_requests = 10'000'000;

std::string lower(std::string text) {
    for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return text;
}

std::optional<bool> boolean(const CsvTable& table, const Row& row, std::string_view column) {
    const std::string text = lower(table.text(row, column));
    if (text.empty()) return std::nullopt;
    if (text.starts_with("on") || text == "true" || text == "1") return true;
    if (text.starts_with("off") || text == "false" || text == "0") return false;
    throw UserError(table.name() + ":" + std::to_string(row.line) + ": error: " + std::string(column) +
                    ": must be on, off, true or false, is '" + excerpt(text) + "'");
}

/// "5", "5->10": requests per second of each stage.
std::vector<double> rates(const CsvTable& table, const Row& row) {
    std::string_view left;
    const std::string text = table.text(row, "request_rate");
    left = text;
    std::vector<double> out;
    while (!left.empty()) {
        double rate = 0;
        const auto [end, error] = std::from_chars(left.data(), left.data() + left.size(), rate);
        left.remove_prefix(static_cast<std::size_t>(end - left.data()));
        const bool more = left.starts_with("->");
        if (error != std::errc() || !(rate > 0) || !std::isfinite(rate) || (!left.empty() && !more)) {
            throw UserError(table.name() + ":" + std::to_string(row.line) + ": error: request_rate: '" + excerpt(text) +
                            "' is neither a rate above 0 nor several joined by '->'");
        }
        out.push_back(rate);
        if (more) left.remove_prefix(2);
    }
    return out;
}

/// Prompts as they were sent in the public inference-perf campaigns, whose rows give only the nominal length without the chat
/// template: re-tokenised length and spread by workload; elsewhere the same 4.7 % more.
struct SentPrompt {
    std::string_view workload;
    double mean, deviation;
};
constexpr std::array<SentPrompt, 4> sent_prompts{
    {{"general", 575, 7}, {"codegen", 592, 6}, {"roleplay", 786, 8}, {"reasoning", 1080, 32}}};
constexpr double template_share = 1.047;

struct Lengths {
    double mean = 0, deviation = 0;
};

/// "0.11.0" -> 11, "1.2" -> 1002; -1 when it says nothing.
int version_minor(const std::string& text) {
    int major = 0;
    int minor = 0;
    const char* const end = text.data() + text.size();
    const auto first = std::from_chars(text.data(), end, major);
    if (first.ec != std::errc() || first.ptr == end || *first.ptr != '.') return -1;
    const auto second = std::from_chars(first.ptr + 1, end, minor);
    return second.ec != std::errc() ? -1 : major * 1000 + minor;
}

/// A rule-abiding YAML scalar whatever the cell holds.
std::string in_quotes(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        out += c;
    }
    return out + "\"";
}

class Builder {
public:
    /// `peer_version`: the engine version of the other rows of its data set, model and GPU; empty: none, or several.
    Builder(const CsvTable& table, fs::path folder, std::uint64_t seed, std::vector<const Row*> rows, std::string peer_version)
        : table_(table),
          folder_(std::move(folder)),
          seed_(seed),
          rows_(std::move(rows)),
          row_(*rows_.front()),
          peer_version_(std::move(peer_version)) {}

    MeasuredRun build() {
        run_.model = need("model");
        run_.gpu = need("gpu");
        run_.tensor_parallel_size = whole("tp", 1, 65536).value_or(1);
        run_.scenario_yaml = scenario();
        auto requests = std::make_shared<std::vector<Arrival>>();
        if (const fs::path file = workload_file(); !file.empty()) {
            from_file(file, *requests);
        } else if (whole("concurrency", 1, 1'000'000)) {
            closed_loop(*requests);
        } else {
            open_loop(*requests);
        }
        run_.requests = std::move(requests);
        per_request();
        for (MeasuredStage& stage : run_.stages) anchored_at_arrival(stage);
        const auto measured = [](const std::optional<double>& value) { return value.has_value(); };
        if (std::none_of(run_.stages.begin(), run_.stages.end(), [&](const MeasuredStage& stage) {
                return std::any_of(stage.measured.begin(), stage.measured.end(), measured);
            })) {
            refuse(row_, "nothing was measured that can be compared");
        }
        return std::move(run_);
    }

private:
    [[nodiscard]] std::string text(std::string_view column) const { return table_.text(row_, column); }
    [[nodiscard]] std::string need(std::string_view column) const {
        std::string out = text(column);
        if (out.empty()) refuse(row_, std::string(column) + " is empty");
        return out;
    }
    [[nodiscard]] std::optional<std::int64_t> whole(std::string_view column, std::int64_t min, std::int64_t max) const {
        return table_.integer(row_, column, min, max);
    }
    [[noreturn]] void refuse(const Row& row, const std::string& message) const {
        throw UserError(table_.name() + ":" + std::to_string(row.line) + ": error: " + message);
    }

    // ---- the engine

    std::string scenario() {
        std::string hardware =
            "{gpu: " + in_quotes(run_.gpu) + ", tensor_parallel_size: " + std::to_string(run_.tensor_parallel_size);
        if (const auto dp = whole("dp", 1, 4096); dp.value_or(1) > 1)
            hardware += ", data_parallel_size: " + std::to_string(*dp);
        const std::int64_t ep = whole("ep", 1, 65536).value_or(1);
        std::string version = text("engine_version");
        if (version.empty() && !peer_version_.empty()) {
            version = peer_version_;
            run_.assumptions.push_back("engine version not stated: " + version + " as in the other rows of this model");
        } else if (version.empty()) {
            run_.assumptions.emplace_back("engine version not stated: synchronous scheduling assumed");
        }
        const int minor = version_minor(version);
        const bool synchronous = minor < 12;
        std::string engine = std::string("{preset: ") + (minor >= 18 ? "vllm-v1" : "vllm-v1-2026-01");
        if (synchronous) engine += ", async_scheduling: false";
        if (ep > 1) engine += ", enable_expert_parallel: true";
        const auto add = [&](std::string_view key, const std::string& value) {
            engine += ", " + std::string(key) + ": " + value;
        };
        const auto add_whole = [&](std::string_view column, std::string_view key, std::int64_t min) {
            if (const auto value = whole(column, min, 1'000'000'000)) add(key, std::to_string(*value));
        };
        add_whole("max_num_seqs", "max_num_seqs", 1);
        add_whole("max_num_batched_tokens", "max_num_batched_tokens", 1);
        add_whole("max_model_len", "max_model_len", 1);
        add_whole("block_size", "block_size", 1);
        add_whole("kv_blocks", "num_gpu_blocks_override", 2);
        if (const auto share = table_.number(row_, "gpu_memory_utilization")) add("gpu_memory_utilization", shortest(*share));
        if (const auto on = boolean(table_, row_, "prefix_caching")) add("enable_prefix_caching", *on ? "true" : "false");
        if (const auto on = boolean(table_, row_, "chunked_prefill")) add("enable_chunked_prefill", *on ? "true" : "false");
        // vLLM keeps every token of chunked-attention layers unless VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE is set;
        // its block counts are then those of full attention.
        config::Diagnostics ignored;
        const std::optional<ModelSpec> spec = Catalog::open().model(run_.model, {}, ignored);
        if (spec && std::any_of(spec->attention.begin(), spec->attention.end(),
                                [](const AttentionGroup& group) { return group.kind == "chunked"; })) {
            add("disable_hybrid_kv_cache_manager", "true");
        }
        const std::string flags = lower(text("other_flags"));
        if (flags.find("kv-cache fp8") != std::string::npos || flags.find("kv_cache_dtype=fp8") != std::string::npos) {
            add("kv_cache_dtype", "fp8");
        }
        const std::string precision = lower(text("precision"));
        const bool four_bit = spec && (spec->dtype == "mxfp4" || spec->dtype == "nvfp4");
        if (precision.starts_with("fp8")) add("quantization", "fp8");
        if (precision.starts_with("mxfp4") && !four_bit) add("quantization", "mxfp4");
        if ((precision.starts_with("fp4") || precision.starts_with("nvfp4")) && !four_bit) add("quantization", "nvfp4");
        for (const std::string_view other : {"int8", "awq", "gptq"}) {
            if (precision.starts_with(other)) add("quantization", std::string(other));
        }
        // What the client's figures contain beside the engine, measured per campaign; the default of the model elsewhere.
        const std::string source = lower(text("dataset") + " " + text("source"));
        if (source.find("kubecon") != std::string::npos) {
            add("api", "13.5ms");
        } else if (source.find("llmservingsim") != std::string::npos) {
            // Started for the run, which lasts a minute: the first seconds count. docs/accuracy.md has the figures without.
            add("api", "0ms");
            add("cold_start", "6s");
            run_.assumptions.emplace_back("a cold engine: its first 6 s slower");
        }
        return "model: " + in_quotes(run_.model) + "\nhardware: " + hardware + "}\nengine: " + engine + "}\n";
    }

    // ---- requests

    /// Distinct prompt j's length: one normal draw, so that the same prompt is as long each time it is sent.
    [[nodiscard]] std::int64_t normal_length(const Lengths& law, std::string_view purpose, std::uint64_t index) const {
        const double z = law.deviation > 0 ? normal_quantile(StreamKey(seed_, purpose).first_uniform(index)) : 0;
        return std::max<std::int64_t>(1, std::llround(law.mean + law.deviation * z));
    }

    Lengths prompt_lengths() {
        const auto mean = table_.number(row_, "prompt_len_mean");
        if (!mean || !(*mean >= 1) || *mean > 1e9) refuse(row_, "prompt_len_mean must be a length");
        if (const auto deviation = table_.number(row_, "prompt_len_std")) return {*mean, std::max(0.0, *deviation)};
        if (!whole("num_distinct_prompts", 0, most_requests) || whole("shared_prefix_len", 0, 1 << 30).value_or(0) == 0 ||
            *mean != std::floor(*mean)) {
            return {*mean, 0};  // a measured mean, or random tokens: nothing is added to them
        }
        const std::string workload = lower(text("workload"));
        for (const SentPrompt& sent : sent_prompts) {
            if (!workload.starts_with(sent.workload)) continue;
            run_.assumptions.push_back("prompt length as sent: " + shortest(sent.mean) + " +- " + shortest(sent.deviation) +
                                       " for the nominal " + shortest(*mean));
            return {sent.mean, sent.deviation};
        }
        run_.assumptions.push_back("prompt length as sent: nominal + 4.7 % for the chat template");
        return {*mean * template_share, 0.012 * *mean};
    }

    Lengths output_lengths() {
        const auto mean = table_.number(row_, "output_len_mean");
        if (!mean || !(*mean >= 1) || *mean > 1e9) refuse(row_, "output_len_mean must be a length");
        return {*mean, std::max(0.0, table_.number(row_, "output_len_std").value_or(0))};
    }

    void add_request(std::vector<Arrival>& out, SimTime at, std::int64_t prompt, std::int64_t output) const {
        Arrival& a = out.emplace_back();
        a.time = at;
        a.prompt_tokens = std::clamp<std::int64_t>(prompt, 1, max_request_tokens);
        a.output_tokens = std::clamp<std::int64_t>(output, 1, max_request_tokens);
        a.output_base = own_output_base(static_cast<RequestId>(out.size() - 1));
    }

    /// All at once, paced by the concurrency; lengths uniform with the row's mean and deviation.
    void closed_loop(std::vector<Arrival>& out) {
        run_.concurrency = whole("concurrency", 1, 1'000'000);
        const Lengths prompt = prompt_lengths();
        const Lengths output = output_lengths();
        const std::int64_t count = whole("num_requests", 1, most_requests).value_or(10 * *run_.concurrency);
        const bool stated = !text("num_requests").empty() && !text("prompt_len_std").empty();
        if (!stated) {
            run_.assumptions.emplace_back("load and spread of the lengths not stated: steady state assumed, TTFT not scored");
        }
        const auto draw = [&](const Lengths& law, std::string_view purpose, std::int64_t i) {
            const double half = std::sqrt(3.0) * law.deviation;
            const double u = StreamKey(seed_, purpose).first_uniform(static_cast<std::uint64_t>(i));
            return std::llround(law.mean - half + 2 * half * u);
        };
        for (std::int64_t i = 0; i < count; ++i) {
            std::int64_t tokens = draw(output, "validate_output", i);
            // Equal lengths that start together would finish together ever after: waves in which no request decodes beside
            // another's prompt. Without a stated start the first ones are taken as met half-way, evenly spread; not scored.
            if (!stated && i < *run_.concurrency) tokens = tokens * (i + 1) / *run_.concurrency;
            add_request(out, SimTime{}, draw(prompt, "validate_prompt", i), tokens);
        }
        MeasuredStage& stage = add_stage(row_);
        stage.first = stated || count <= *run_.concurrency ? 0 : static_cast<std::size_t>(*run_.concurrency);
        stage.last = out.size();
        if (!stated) {
            stage.measured[static_cast<std::size_t>(Metric::ttft_mean)].reset();
            stage.measured[static_cast<std::size_t>(Metric::ttft_p99)].reset();
        }
    }

    struct Stage {
        double rate = 0;
        double seconds = 0;
        std::int64_t count = 0;
        const Row* row = nullptr;  ///< null: not measured, but part of the run
    };

    /// The stages that were run, in order; those before the first measured one come from the whole-run row, if it is there.
    [[nodiscard]] std::vector<Stage> stages() const {
        std::vector<Stage> out;
        const Row* whole_run = nullptr;
        std::map<std::int64_t, const Row*> measured;
        for (const Row* row : rows_) {
            const std::int64_t index = table_.integer(*row, "stage", -1, 10'000).value_or(-1);
            if (index < 0) {
                whole_run = row;
            } else if (!measured.emplace(index, row).second) {
                refuse(*row, "stage " + std::to_string(index) + " of this run stands twice");
            }
        }
        const auto stage = [&](const Row& row, double rate, double share) {
            Stage s;
            s.rate = rate;
            s.row = &row;
            const auto seconds = table_.number(row, "duration_s");
            const auto count = table_.integer(row, "num_requests", 1, most_requests);
            if (!seconds && !count) refuse(row, "needs duration_s or num_requests");
            if (seconds && !(*seconds > 0 && *seconds < 1e8)) refuse(row, "duration_s must be above 0");
            s.seconds = seconds ? *seconds * share : static_cast<double>(*count) / rate;
            s.count = count && share == 1 ? *count : std::llround(rate * s.seconds);
            s.count = std::clamp<std::int64_t>(s.count, 1, most_requests);
            return s;
        };
        if (whole_run != nullptr) {
            const std::vector<double> all = rates(table_, *whole_run);
            for (const double rate : all) {
                Stage s = stage(*whole_run, rate, 1.0 / static_cast<double>(all.size()));
                if (!measured.empty()) s.row = nullptr;
                out.push_back(s);
            }
        }
        for (const auto& [index, row] : measured) {
            const std::vector<double> rate = rates(table_, *row);
            if (rate.size() != 1) refuse(*row, "a stage has one request_rate");
            const Stage s = stage(*row, rate.front(), 1);
            if (static_cast<std::size_t>(index) < out.size()) {
                out[static_cast<std::size_t>(index)] = s;
            } else {
                out.push_back(s);
            }
        }
        if (out.empty()) refuse(row_, "needs request_rate or concurrency");
        return out;
    }

    void open_loop(std::vector<Arrival>& out) {
        const Lengths prompt = prompt_lengths();
        const Lengths output = output_lengths();
        const std::int64_t distinct = whole("num_distinct_prompts", 0, most_requests).value_or(0);
        const std::int64_t groups = std::max<std::int64_t>(1, whole("num_prefix_groups", 0, most_requests).value_or(1));
        const std::int64_t shared = whole("shared_prefix_len", 0, 1 << 29).value_or(0);
        const bool constant = lower(text("arrival")).find("constant") != std::string::npos;
        const StreamKey gaps(seed_, "validate_arrivals");
        double begin = 0;
        const bool whole_only = rows_.size() == 1 && table_.integer(*rows_.front(), "stage", -1, 10'000).value_or(-1) < 0;
        for (const Stage& s : stages()) {
            // Independent exponential gaps, stretched so that the stage lasts exactly as long as it did.
            std::vector<double> at(static_cast<std::size_t>(s.count));
            double sum = 0;
            for (double& t : at) {
                sum += constant
                           ? 1
                           : exponential_quantile(gaps.first_uniform(out.size() + static_cast<std::size_t>(&t - at.data())), 1);
                t = sum;
            }
            const std::size_t first = out.size();
            for (const double t : at) {
                const auto i = out.size();
                const auto id = static_cast<RequestId>(i);
                const std::uint64_t which = distinct > 0 ? i % static_cast<std::uint64_t>(distinct) : i;
                const std::int64_t length = std::max(normal_length(prompt, "validate_prompt", which), shared + 1);
                const SimTime time{SimDuration(std::llround((begin + t * s.seconds / sum) * 1e9))};
                add_request(out, time, length, normal_length(output, "validate_output", i));
                if (shared > 0 || distinct > 0) {
                    Arrival& a = out.back();
                    // Content of its own, but the same each time prompt `which` comes round; groups share the beginning.
                    if (shared > 0) { a.prompt.push_back({prefix_base(static_cast<std::int64_t>(which) % groups), shared}); }
                    const std::uint64_t own =
                        distinct > 0 ? prefix_base(groups + static_cast<std::int64_t>(which)) : own_prompt_base(id);
                    a.prompt.push_back({own, a.prompt_tokens - shared});
                }
            }
            begin += s.seconds;
            if (s.row == nullptr) continue;
            if (whole_only && !run_.stages.empty()) {
                run_.stages.back().last = out.size();
                run_.stages.back().duration_s += s.seconds;
                continue;
            }
            MeasuredStage& stage = add_stage(*s.row);
            stage.first = first;
            stage.last = out.size();
            stage.duration_s = s.seconds;
        }
    }

    /// A file beside the table with the run's own arrivals and lengths.
    [[nodiscard]] fs::path workload_file() const {
        std::string name = text("workload");
        for (const std::string_view end : {".jsonl", ".csv"}) {
            if (name.ends_with(end)) name.erase(name.size() - end.size());
        }
        if (name.empty() || name.find('/') != std::string::npos || name.find_first_of(" ") != std::string::npos) return {};
        for (const std::string& candidate : {"lss_workload_" + name + ".csv", "workload_" + name + ".csv"}) {
            std::error_code ignored;
            if (fs::is_regular_file(folder_ / candidate, ignored)) return folder_ / candidate;
        }
        return {};
    }

    void from_file(const fs::path& path, std::vector<Arrival>& out) {
        const CsvTable file(path.string(), read_file(path, std::size_t{1} << 28));
        file.need({"arrival_us", "prompt_tokens", "output_tokens"});
        for (const Row& row : file.rows()) {
            const auto at = file.integer(row, "arrival_us", 0, std::int64_t{1} << 52);
            const auto prompt = file.integer(row, "prompt_tokens", 1, max_request_tokens);
            const auto output = file.integer(row, "output_tokens", 1, max_request_tokens);
            if (!at || !prompt || !output) {
                throw UserError(file.name() + ":" + std::to_string(row.line) + ": error: an empty cell");
            }
            const SimTime time{std::chrono::microseconds(*at)};
            if (!out.empty() && time < out.back().time) {
                throw UserError(file.name() + ":" + std::to_string(row.line) + ": error: arrivals must not go back in time");
            }
            const auto index = static_cast<std::int64_t>(out.size());
            add_request(out, time, *prompt, *output);
            Arrival& a = out.back();
            std::int64_t left = file.integer(row, "shared_prefix_tokens_block16", 0, max_request_tokens).value_or(0);
            const std::int64_t parent = file.integer(row, "prefix_parent_index", -1, index - 1).value_or(-1);
            left = std::min(left, a.prompt_tokens);
            if (parent >= 0) {
                for (const TokenRun& run : out[static_cast<std::size_t>(parent)].prompt) {
                    if (left == 0) break;
                    const std::int64_t take = std::min(left, run.count);
                    a.prompt.push_back({run.first, take});
                    left -= take;
                }
            }
            std::int64_t known = 0;
            for (const TokenRun& run : a.prompt) known += run.count;
            if (known < a.prompt_tokens) {
                // Not the ids that only one request may have: a later row may name this one as its parent.
                a.prompt.push_back({prefix_base(index), a.prompt_tokens - known});
            }
        }
        if (out.empty()) throw UserError(file.name() + ":1: error: no requests");
        MeasuredStage& stage = add_stage(row_);
        stage.last = out.size();
        stage.duration_s = to_seconds(out.back().time);
        run_.assumptions.push_back("arrivals and lengths from " + path.filename().string());
    }

    // ---- measurements

    MeasuredStage& add_stage(const Row& row) {
        MeasuredStage& s = run_.stages.emplace_back();
        s.line = row.line;
        for (std::size_t i = 0; i < table_.columns().size(); ++i) s.cells[table_.columns()[i]] = row.cells[i];
        s.dataset = table_.text(row, "dataset");
        if (s.dataset.empty()) s.dataset = table_.text(row, "source");
        if (s.dataset.empty()) s.dataset = "measured";
        s.label = table_.text(row, "exp_id");
        if (s.label.empty()) s.label = "line " + std::to_string(row.line);
        if (const auto index = table_.integer(row, "stage", -1, 10'000); index.value_or(-1) >= 0) {
            s.label += ", stage " + std::to_string(*index);
        }
        const auto take = [&](Metric metric, std::string_view column) {
            const auto value = table_.number(row, column);
            if (value && !(*value > 0)) refuse(row, std::string(column) + " must be above 0");
            if (value) s.measured[static_cast<std::size_t>(metric)] = value;
        };
        take(Metric::ttft_mean, "ttft_mean_ms");
        take(Metric::ttft_p99, "ttft_p99_ms");
        take(Metric::tpot_mean, "tpot_mean_ms");
        take(Metric::e2e_mean, "e2e_mean_ms");
        take(Metric::e2e_p99, "e2e_p99_ms");
        take(Metric::throughput, "req_s");
        return s;
    }

    /// Timings per request, from arrival, in FOLDER/lss_EXP_ID.csv.
    void per_request() {
        std::string name = text("exp_id");
        std::replace(name.begin(), name.end(), '/', '_');
        std::error_code ignored;
        const fs::path path = folder_ / ("lss_" + name + ".csv");
        if (name.empty() || run_.stages.size() != 1 || !fs::is_regular_file(path, ignored)) return;
        const CsvTable file(path.string(), read_file(path, std::size_t{1} << 28));
        file.need({"ttft_from_arrival_ms", "tpot_ms", "e2e_from_arrival_ms"});
        for (const Row& row : file.rows()) {
            run_.per_request.push_back({file.number(row, "ttft_from_arrival_ms").value_or(0),
                                        file.number(row, "tpot_ms").value_or(0),
                                        file.number(row, "e2e_from_arrival_ms").value_or(0)});
        }
        if (run_.per_request.size() != run_.requests->size()) {
            throw UserError(file.name() + ": error: " + std::to_string(run_.per_request.size()) +
                            " requests, the workload has " + std::to_string(run_.requests->size()));
        }
        std::vector<double> ttft;
        std::vector<double> e2e;
        Metrics& m = run_.stages.front().measured;
        double tpot = 0;
        for (const MeasuredRequest& r : run_.per_request) {
            ttft.push_back(r.ttft);
            e2e.push_back(r.e2e);
            tpot += r.tpot / static_cast<double>(run_.per_request.size());
        }
        const auto mean = [](const std::vector<double>& v) {
            double sum = 0;
            for (const double x : v) sum += x;
            return sum / static_cast<double>(v.size());
        };
        constexpr std::array<double, 1> p99{0.99};
        m[static_cast<std::size_t>(Metric::ttft_mean)] = mean(ttft);
        m[static_cast<std::size_t>(Metric::ttft_p99)] = quantiles(std::span<const double>(ttft), p99)[0];
        m[static_cast<std::size_t>(Metric::e2e_mean)] = mean(e2e);
        m[static_cast<std::size_t>(Metric::e2e_p99)] = quantiles(std::span<const double>(e2e), p99)[0];
        m[static_cast<std::size_t>(Metric::tpot_mean)] = tpot;
        run_.assumptions.push_back("measured from arrival, request by request: " + path.filename().string());
    }

    /// Figures counted from the engine's queue are replaced by those from arrival that the notes give.
    void anchored_at_arrival(MeasuredStage& stage) const {
        if (!run_.per_request.empty()) return;
        const auto at = stage.cells.find("notes");
        const std::string_view mark = "anchored at arrival:";
        const std::size_t begin = at == stage.cells.end() ? std::string::npos : at->second.find(mark);
        if (begin == std::string::npos) return;
        const std::string_view notes = std::string_view(at->second).substr(begin + mark.size());
        const auto value = [&](std::string_view key) -> std::optional<double> {
            const std::size_t found = notes.find(fmt::format(" {}=", key));
            if (found == std::string_view::npos) return std::nullopt;
            const std::string_view rest = notes.substr(found + key.size() + 2);
            double out = 0;
            if (std::from_chars(rest.data(), rest.data() + rest.size(), out).ec != std::errc()) return std::nullopt;
            return out;
        };
        for (const auto& [metric, key] : {std::pair{Metric::ttft_mean, "ttft_mean"}, std::pair{Metric::ttft_p99, "ttft_p99"},
                                          std::pair{Metric::e2e_mean, "e2e_mean"}, std::pair{Metric::e2e_p99, "e2e_p99"}}) {
            if (const auto found = value(key)) stage.measured[static_cast<std::size_t>(metric)] = found;
        }
    }

    const CsvTable& table_;
    fs::path folder_;
    std::uint64_t seed_;
    std::vector<const Row*> rows_;
    const Row& row_;
    std::string peer_version_;
    MeasuredRun run_;
};

Outcome run_requests(const MeasuredRun& run, const BuiltRun& built, const StepTimeModel& step_time, SimDuration api) {
    const Deployment& deployment = built.deployment;
    SimulationOptions options;
    options.engine = deployment.engine;
    options.replicas = deployment.engine_replicas();
    options.api = api;
    options.tokenizer_ns = built.scenario.engine.tokenizer_time.ns;
    options.tokenizer_ns_per_token = built.scenario.engine.tokenizer_time_per_token.ns;
    options.cold_start = {built.scenario.engine.cold_start, built.scenario.engine.cold_start_slowdown};
    options.max_concurrency = run.concurrency;
    options.stop = &stop_requested();
    config::Diagnostics diagnostics;
    const auto router = make_router({}, 1, diagnostics);
    ListedRequests workload(run.requests);
    return simulate(options, step_time, *router, workload);
}

}  // namespace

bool row_matches(const CsvTable& table, const Row& row, const std::vector<std::string>& where) {
    for (const std::string& condition : where) {
        const std::size_t at = condition.find('=');
        if (at == std::string::npos || at == 0) {
            throw UserError("error: --where must be COLUMN=VALUE or COLUMN!=VALUE, is '" + excerpt(condition) + "'");
        }
        const bool unequal = condition[at - 1] == '!';
        const std::string column = condition.substr(0, unequal ? at - 1 : at);
        if (!table.has(column)) {
            const std::vector<std::string_view> known(table.columns().begin(), table.columns().end());
            const std::string_view near = nearest(column, known);
            throw UserError("error: --where: " + table.name() + " has no column '" + excerpt(column) + "'" +
                            (near.empty() ? "" : "; is '" + std::string(near) + "' meant?"));
        }
        if ((table.text(row, column) == condition.substr(at + 1)) == unequal) return false;
    }
    return true;
}

MeasuredRuns read_measured_runs(const CsvTable& table, const std::filesystem::path& folder, std::uint64_t seed,
                                const std::vector<std::string>& where) {
    table.need({"model", "gpu"});
    constexpr std::array<std::string_view, 6> columns{"ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms",
                                                      "e2e_mean_ms",  "e2e_p99_ms",  "req_s"};
    if (std::none_of(columns.begin(), columns.end(), [&](std::string_view c) { return table.has(c); })) {
        throw UserError(table.name() +
                        ":1: error: no measurement: one of the columns ttft_mean_ms, ttft_p99_ms, tpot_mean_ms, "
                        "e2e_mean_ms, e2e_p99_ms, req_s is needed");
    }
    // Rows of one run, in the order of their first row. Closed loops and rows without an id stand alone.
    std::vector<std::vector<const Row*>> groups;
    std::map<std::string, std::size_t> known;
    const auto peers = [&table](const Row& row) {
        return table.text(row, "dataset") + '\x1f' + table.text(row, "model") + '\x1f' + table.text(row, "gpu");
    };
    std::map<std::string, std::string> versions;  // "?": several
    for (const Row& row : table.rows()) {
        if (const std::string version = table.text(row, "engine_version"); !version.empty()) {
            const auto [at, added] = versions.emplace(peers(row), version);
            if (!added && at->second != version) at->second = "?";
        }
        if (!row_matches(table, row, where)) continue;
        std::string key;
        for (const std::string_view column : {"source", "exp_id", "model", "gpu", "tp", "workload", "engine_version"}) {
            key += table.text(row, column) + '\x1f';
        }
        const bool alone = table.text(row, "exp_id").empty() || !table.text(row, "concurrency").empty();
        if (alone) key += std::to_string(row.line);
        const auto [at, added] = known.emplace(key, groups.size());
        if (added) groups.emplace_back();
        groups[at->second].push_back(&row);
    }
    MeasuredRuns out;
    for (const std::vector<const Row*>& rows : groups) {
        const auto version = versions.find(peers(*rows.front()));
        const bool one = version != versions.end() && version->second != "?";
        try {
            out.runs.push_back(Builder(table, folder, seed, rows, one ? version->second : "").build());
        } catch (const UserError& e) { out.skipped.push_back(headed(e.what())); }
    }
    if (out.runs.empty() && !out.skipped.empty()) {
        std::string errors;
        for (const std::string& why : out.skipped) errors += (errors.empty() ? "" : "\n") + why;
        throw UserError(errors);
    }
    return out;
}

BuiltRun build(const MeasuredRun& run, const std::vector<std::string>& overlays, const std::vector<std::string>& sets) {
    const std::string& where = run.stages.empty() ? run.model : run.stages.front().label;
    config::Diagnostics diagnostics;
    config::Value root = config::parse_yaml(
        run.scenario_yaml + "workload: {requests: 1, arrivals: all_at_once, prompt_tokens: 1, output_tokens: 1}\n", where,
        diagnostics);
    for (const std::string& overlay : overlays) config::merge(root, config::load_yaml(overlay, diagnostics), diagnostics);
    for (const std::string& assignment : sets) config::apply_set(root, assignment, diagnostics);
    BuiltRun out;
    out.scenario = config::read_scenario(root, {}, diagnostics);
    out.deployment = resolve_deployment(out.scenario, Catalog::open(), diagnostics);
    diagnostics.throw_if_errors();
    if (const std::string why = out.deployment.unsupported_run(); !why.empty()) throw UserError(why);
    return out;
}

Outcome replay_requests(const MeasuredRun& run, const BuiltRun& built, const StepTimeModel& step_time, SimDuration api) {
    return run_requests(run, built, step_time, api);
}

Metrics stage_metrics(const std::vector<RequestRecord>& requests, const MeasuredStage& stage) {
    std::vector<double> ttft;
    std::vector<double> e2e;
    double tpot = 0;
    std::int64_t tpots = 0;
    SimTime begin = never;
    SimTime end{};
    for (std::size_t i = stage.first; i < std::min(stage.last, requests.size()); ++i) {
        const RequestRecord& r = requests[i];
        if (!completed(r)) continue;
        ttft.push_back(to_ms(r.ttft));
        e2e.push_back(to_ms(r.e2e));
        if (const auto gap = time_per_output_token(r)) {
            tpot += to_ms(*gap);
            ++tpots;
        }
        begin = std::min(begin, r.arrival);
        end = std::max(end, r.arrival + r.e2e);
    }
    Metrics out;
    if (ttft.empty()) return out;
    const auto set = [&out](Metric metric, double value) { out[static_cast<std::size_t>(metric)] = value; };
    const auto mean = [](const std::vector<double>& v) {
        double sum = 0;
        for (const double x : v) sum += x;
        return sum / static_cast<double>(v.size());
    };
    constexpr std::array<double, 1> p99{0.99};
    set(Metric::ttft_mean, mean(ttft));
    set(Metric::ttft_p99, quantiles(std::span<const double>(ttft), p99)[0]);
    set(Metric::e2e_mean, mean(e2e));
    set(Metric::e2e_p99, quantiles(std::span<const double>(e2e), p99)[0]);
    if (tpots > 0) set(Metric::tpot_mean, tpot / static_cast<double>(tpots));
    if (end > begin) set(Metric::throughput, static_cast<double>(ttft.size()) / to_seconds(end - begin));
    return out;
}

Replay replay(const MeasuredRun& run, const std::vector<std::string>& overlays, const std::vector<std::string>& sets) {
    Replay out;
    BuiltRun built = build(run, overlays, sets);
    config::Diagnostics diagnostics;
    const auto step_time = make_step_time(built.scenario.step_time, built.deployment, diagnostics);
    diagnostics.throw_if_errors();
    out.step_time = step_time->describe();
    const auto begin = std::chrono::steady_clock::now();
    Outcome outcome = run_requests(run, built, *step_time, built.deployment.api.value_or(step_time->default_api()));
    out.milliseconds = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    out.deployment = std::move(built.deployment);
    if (!outcome.stall_report.empty()) throw UserError(outcome.stall_report);
    out.notes = step_time->notes();

    SimDuration total{};
    for (const SimDuration d : outcome.integrals.bound) total += d;
    const auto share = [&](Bound bound) {
        return total.count() == 0 ? 0.0
                                  : static_cast<double>(outcome.integrals.bound[static_cast<std::size_t>(bound)].count()) /
                                        static_cast<double>(total.count());
    };
    for (const MeasuredStage& stage : run.stages) {
        ReplayedStage& s = out.stages.emplace_back();
        s.simulated = stage_metrics(outcome.requests, stage);
        s.batch_size = outcome.counters.steps > 0
                           ? static_cast<double>(outcome.counters.rows) / static_cast<double>(outcome.counters.steps)
                           : 0;
        s.bound_kv = share(Bound::kv_blocks);
        s.bound_seats = share(Bound::seats);
        s.bound_budget = share(Bound::token_budget);
        double queue = 0;
        double ttft = 0;
        double busy = 0;
        SimTime first = never;
        SimTime last{};
        std::int64_t counted = 0;
        for (std::size_t i = stage.first; i < std::min(stage.last, outcome.requests.size()); ++i) {
            const RequestRecord& r = outcome.requests[i];
            s.preemptions += r.preemptions;
            if (!completed(r)) {
                ++s.not_completed;
                continue;
            }
            ++counted;
            s.context += r.prompt_tokens + 0.5 * r.output_tokens;
            queue += to_ms(r.queue);
            ttft += to_ms(r.ttft);
            busy += to_seconds(r.e2e);
            first = std::min(first, r.arrival);
            last = std::max(last, r.arrival + r.e2e);
        }
        if (counted > 0) s.context /= static_cast<double>(counted);
        if (ttft > 0) s.queue_share = queue / ttft;
        const auto seats = static_cast<double>(out.deployment.engine.max_num_seqs * out.deployment.engine_replicas());
        if (last > first && !run.concurrency) s.load = busy / to_seconds(last - first) / seats;
        if (const auto& e2e = stage.measured[static_cast<std::size_t>(Metric::e2e_mean)]; e2e && stage.duration_s > 0) {
            const auto sent = static_cast<double>(stage.last - stage.first);
            // What was in the system, or would have to be if all that came were served at once.
            s.measured_load = sent * *e2e / 1e3 / std::max(stage.duration_s, *e2e / 1e3) / seats;
        }
        constexpr double near = 0.85;
        s.near_saturation = s.load > near || s.measured_load > near || s.queue_share > 0.5;
    }
    out.requests = std::move(outcome.requests);
    return out;
}

}  // namespace kvsim::app
