// Recordings of vLLM V0's scheduler: every field but the pairs of moved and copied blocks.

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "../schedulers/vllm_v0.hpp"
#include "conformance_format.hpp"
#include "kvsim/base/check.hpp"

namespace kvsim {
namespace {

struct RecordedRequest {
    NewRequest request;
    std::int64_t arrival_step = 0;
    std::optional<double> arrival_time;
};

struct Input {
    EngineArgs args;
    std::vector<RecordedRequest> requests;
    std::vector<std::string> ids;  // by RequestId
    std::int64_t max_steps = 1'000'000;
    double clock_base = 1;
    double clock_per_token = 0;
};

[[noreturn]] void refuse(const std::string& where, const std::string& why) {
    throw UserError(where + ": error: " + why);
}

VllmV0Args::Release release_of(const std::string& version, const std::string& where) {
    if (version.rfind("0.6.3", 0) == 0) return VllmV0Args::Release::v0_6_3;
    for (const char* same : {"0.7.3", "0.8.", "0.9.0"}) {
        if (version.rfind(same, 0) == 0) return VllmV0Args::Release::v0_8_5;
    }
    refuse(where, "version '" + version + "' is not known (0.6.3.post1, 0.8.5)");
}

void read_config(const Json& config, const std::string& where, Input& input) {
    EngineArgs& args = input.args;
    VllmV0Args& v0 = args.v0;
    bool startup_checks = false;
    std::int64_t lookahead = 0;
    args = {};
    args.preset = args.batching = "vllm-v0";
    args.null_blocks = 0;
    args.tokens_past_limit = 1;
    args.async_scheduling = args.enable_chunked_prefill = args.enable_prefix_caching = false;
    args.watermark = 0.01;
    v0.async_output_processing = false;
    const std::map<std::string, std::int64_t*> integers{{"num_gpu_blocks", &args.num_gpu_blocks},
                                                        {"num_cpu_blocks", &v0.num_cpu_blocks},
                                                        {"block_size", &args.block_size},
                                                        {"max_num_seqs", &args.max_num_seqs},
                                                        {"max_num_batched_tokens", &args.max_num_batched_tokens},
                                                        {"max_model_len", &args.max_model_len},
                                                        {"max_num_partial_prefills", &v0.max_num_partial_prefills},
                                                        {"max_long_partial_prefills", &v0.max_long_partial_prefills},
                                                        {"long_prefill_token_threshold", &args.long_prefill_token_threshold},
                                                        {"num_lookahead_slots", &lookahead}};
    const std::map<std::string, bool*> flags{{"chunked_prefill_enabled", &args.enable_chunked_prefill},
                                             {"enable_prefix_caching", &args.enable_prefix_caching},
                                             {"async_output_proc", &v0.async_output_processing},
                                             {"startup_checks", &startup_checks}};
    const std::map<std::string, double*> numbers{{"watermark", &args.watermark},
                                                 {"delay_factor", &v0.delay_factor},
                                                 {"clock_base", &input.clock_base},
                                                 {"clock_per_token", &input.clock_per_token}};
    for (const auto& [key, value] : config.items()) {
        if (const auto integer = integers.find(key); integer != integers.end()) {
            *integer->second = value.get<std::int64_t>();
        } else if (const auto flag = flags.find(key); flag != flags.end()) {
            *flag->second = value.get<bool>();
        } else if (const auto number = numbers.find(key); number != numbers.end()) {
            *number->second = value.get<double>();
        } else if (key == "version") {
            v0.release = release_of(value.get<std::string>(), where);
        } else if (key == "policy" && (value == "fcfs" || value == "priority")) {
            args.scheduling_policy = value == "fcfs" ? QueueOrder::fcfs : QueueOrder::priority;
        } else if (key == "preemption_mode" && (value == "auto" || value == "recompute" || value == "swap")) {
            v0.preemption = value == "auto"   ? VllmV0Args::Preemption::automatic
                            : value == "swap" ? VllmV0Args::Preemption::swap
                                              : VllmV0Args::Preemption::recompute;
        } else {
            refuse(where, "config key '" + key + "' with value " + value.dump() + " is not known");
        }
    }
    for (const char* key : {"num_gpu_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"}) {
        if (!config.contains(key) || *integers.at(key) < 1) refuse(where, std::string("config needs ") + key + " >= 1");
    }
    if (lookahead != 0) refuse(where, "num_lookahead_slots other than 0 (speculative decoding) is not covered");
    if (v0.num_cpu_blocks < 0) refuse(where, "num_cpu_blocks must not be negative");
    if (v0.max_num_partial_prefills < 1 || v0.max_long_partial_prefills < 1)
        refuse(where, "partial prefills must be at least 1");
    if (!(args.watermark >= 0) || !(v0.delay_factor >= 0)) refuse(where, "watermark and delay_factor must not be negative");
    if (!startup_checks) return;
    if (args.max_num_batched_tokens < args.max_num_seqs)
        refuse(where, "max_num_batched_tokens is less than max_num_seqs; the engine refuses to start");
    if (!args.enable_chunked_prefill && args.max_num_batched_tokens < args.max_model_len)
        refuse(where, "max_num_batched_tokens is less than max_model_len without chunking; the engine refuses to start");
    if (args.max_model_len > args.num_gpu_blocks * args.block_size)
        refuse(where, "max_model_len does not fit the GPU blocks; the engine refuses to start");
    if (v0.max_num_partial_prefills > 1 && !args.enable_chunked_prefill)
        refuse(where, "partial prefills need chunked prefill; the engine refuses to start");
}

void add_request(const Json& r, const std::string& where, Input& input) {
    RecordedRequest request;
    NewRequest& live = request.request;
    live.tie_id = r.at("id").get<std::string>();
    live.prompt = r.at("prompt_len").get<std::int64_t>();
    live.max_tokens = r.at("output_len").get<std::int64_t>();
    live.sequences = r.value("n", std::int64_t{1});
    live.priority = r.value("priority", std::int64_t{0});
    live.output_base = r.at("output_base").get<std::uint64_t>();
    if (r.contains("output_lens")) live.output_lens = r.at("output_lens").get<std::vector<std::int64_t>>();
    if (r.contains("arrival_time")) request.arrival_time = r.at("arrival_time").get<double>();
    request.arrival_step = r.at("arrival_step").get<std::int64_t>();
    std::int64_t tokens = 0;
    for (const Json& run : r.at("prompt")) {
        live.content.push_back({run.at(0).get<std::uint64_t>(), run.at(1).get<std::int64_t>()});
        tokens += live.content.back().count;
    }
    const auto bad = [](std::int64_t n) { return n < 1; };
    if (tokens != live.prompt || live.prompt < 1 || live.max_tokens < 1 || live.sequences < 1 || live.sequences > 10'000 ||
        std::any_of(live.output_lens.begin(), live.output_lens.end(), bad)) {
        refuse(where, "request " + live.tie_id + ": lengths and n must be at least 1, prompt_len the sum of its runs");
    }
    const bool splits = input.args.v0.release == VllmV0Args::Release::v0_8_5;
    const std::string name = live.tie_id;
    const std::int64_t n = splits ? live.sequences : 1;
    for (std::int64_t j = 0; j < n; ++j) {
        RecordedRequest one = request;
        if (splits && live.sequences > 1) {
            one.request.sequences = 1;
            one.request.tie_id = name + "_parallel_sample_" + std::to_string(j);
            one.request.output_base += 10'000 * static_cast<std::uint64_t>(j);
            one.request.output_lens.clear();
            if (static_cast<std::size_t>(j) < live.output_lens.size())
                one.request.output_lens = {live.output_lens[static_cast<std::size_t>(j)]};
        }
        one.request.id = static_cast<RequestId>(input.ids.size());
        input.ids.push_back(one.request.tie_id);
        input.requests.push_back(std::move(one));
    }
}

Input read_input(const Json& json, const std::string& where) {
    Input input;
    if (json.contains("max_steps")) input.max_steps = json.at("max_steps").get<std::int64_t>();
    read_config(json.at("config"), where, input);
    for (const Json& r : json.at("requests")) add_request(r, where, input);
    const std::set<std::string> names(input.ids.begin(), input.ids.end());
    if (names.size() != input.ids.size()) refuse(where, "a request id occurs twice");
    std::stable_sort(input.requests.begin(), input.requests.end(),
                     [](const auto& a, const auto& b) { return a.arrival_step < b.arrival_step; });
    return input;
}

/// Drives the engine step by step and hands out each line of the record.
class StepDriver final : private EngineListener {
public:
    explicit StepDriver(const Input& input) : input_(input), engine_(with_clock(input.args), *this) {
        const auto* scheduler = dynamic_cast<const VllmV0Scheduler*>(&engine_.scheduler());
        KVSIM_CHECK(scheduler != nullptr, "the arguments name vLLM V0's batch policy");
        v0_ = scheduler;
    }

    void run(const std::function<bool(const Json&)>& line) {
        const auto& requests = input_.requests;
        std::size_t next = 0;
        std::int64_t step = 0;
        std::string end;
        std::string error;
        while (end.empty()) {
            if (engine_.unfinished() == 0) {
                if (next == requests.size()) {
                    end = "done";
                    break;
                }
                const std::int64_t to = std::max(step, requests[next].arrival_step);
                clock_.now += static_cast<double>(to - step) * input_.clock_base;
                step = to;
            }
            for (; next < requests.size() && requests[next].arrival_step <= step; ++next) {
                NewRequest request = requests[next].request;
                clock_.arrival = requests[next].arrival_time.value_or(clock_.now);
                engine_.enqueue(request);
            }
            try {
                engine_.schedule(batch_, SimTime{});
            } catch (const EngineCrash& e) {
                end = "error";
                error = e.what();
                break;
            }
            Json record = scheduled(step);
            const bool nothing = v0_->decision().nothing();
            engine_.update(batch_, SimTime{});
            updated(record);
            clock_.now += input_.clock_base + input_.clock_per_token * static_cast<double>(v0_->decision().total);
            ++steps_;
            last_step_ = step++;
            if (!line(record)) return;
            if (engine_.unfinished() == 0) continue;
            if (nothing && engine_.finished().empty() && next == requests.size() && input_.args.v0.delay_factor == 0)
                end = "stalled";
            if (steps_ == input_.max_steps) end = "max_steps";
        }
        line(summary(end, error));
    }

    [[nodiscard]] std::int64_t steps() const { return steps_; }
    [[nodiscard]] std::int64_t preemptions() const { return recomputes_ + swaps_; }

private:
    EngineArgs with_clock(EngineArgs args) const {
        args.v0.clock = &clock_;
        return args;
    }

    [[nodiscard]] Json names(const std::vector<RequestId>& ids) const {
        Json out = Json::array();
        for (const RequestId id : ids) out.push_back(input_.ids[id]);
        return out;
    }
    template <class Slots>
    [[nodiscard]] Json names_of(const Slots& slots) const {
        Json out = Json::array();
        for (const Slot slot : slots) out.push_back(input_.ids[engine_.request(slot).id]);
        return out;
    }

    /// Of each live sequence: [position, block] where it differs from the table at its last row.
    void add_blocks(const VllmV0Scheduler::Row& r, Json& row) {
        Json lengths = Json::array();
        Json changes = Json::array();
        for (const auto& [branch, table] : r.tables) {
            std::vector<BlockId>& last = tables_[{r.id, branch}];
            Json changed = Json::array();
            for (std::size_t i = 0; i < table.size(); ++i) {
                if (i >= last.size() || last[i] != table[i]) changed.push_back({i, table[i]});
            }
            last = table;
            lengths.push_back(table.size());
            changes.push_back(std::move(changed));
        }
        row["nb"] = std::move(lengths);
        row["b"] = std::move(changes);
    }

    Json scheduled(std::int64_t step) {
        const VllmV0Scheduler::Decision& d = v0_->decision();
        Json rows = Json::array();
        for (const VllmV0Scheduler::Row& r : d.rows) {
            Json row{{"id", input_.ids[r.id]},
                     {"k", r.prefill ? "prefill" : "decode"},
                     {"n", r.tokens},
                     {"c", r.computed},
                     {"q", r.work},
                     {"s", r.samples ? 1 : 0}};
            add_blocks(r, row);
            rows.push_back(std::move(row));
            ++rows_;
            if (r.prefill) hits_ += r.tokens - r.work;
        }
        Json preempted = Json::array();
        for (const VllmV0Scheduler::Preemption& p : d.preempted) {
            Json one{input_.ids[p.id], p.swapped ? "swap" : "recompute"};
            if (p.forced) one.push_back("forced");
            preempted.push_back(std::move(one));
            ++(p.swapped ? swaps_ : recomputes_);
        }
        tokens_ += d.total;
        in_ += d.blocks_in;
        out_ += d.blocks_out;
        copies_ += d.blocks_copied;
        ignored_ += static_cast<std::int64_t>(d.ignored.size());
        return {{"step", step},
                {"t", clock_.now},
                {"rows", std::move(rows)},
                {"total", d.total},
                {"preempted", std::move(preempted)},
                {"in", d.blocks_in},
                {"out", d.blocks_out},
                {"copy", d.blocks_copied},
                {"ignored", names(d.ignored)},
                {"gpu_sched", d.gpu_free},
                {"cpu_sched", d.cpu_free}};
    }

    void updated(Json& record) {
        record["tok"] = names(engine_.received());
        record["finished"] = names(engine_.finished());
        record["gpu"] = engine_.free_blocks();
        record["cpu"] = v0_->cpu_free();
        record["running"] = names_of(v0_->running());
        record["waiting"] = names_of(v0_->waiting_queue());
        record["swapped"] = names_of(v0_->swapped_queue());
        finished_ += static_cast<std::int64_t>(engine_.finished().size());
    }

    [[nodiscard]] Json summary(const std::string& end, const std::string& error) const {
        Json out{{"end", end},
                 {"steps", steps_},
                 {"last_step", last_step_},
                 {"rows", rows_},
                 {"tokens", tokens_},
                 {"hit", hits_},
                 {"recompute", recomputes_},
                 {"swap", swaps_},
                 {"swap_in_blocks", in_},
                 {"swap_out_blocks", out_},
                 {"copies", copies_},
                 {"finished", finished_},
                 {"ignored", ignored_},
                 {"gpu", engine_.free_blocks()},
                 {"cpu", v0_->cpu_free()}};
        if (!error.empty()) out["error"] = error;
        return out;
    }

    const Input& input_;
    RecordedClock clock_;
    Engine engine_;
    const VllmV0Scheduler* v0_ = nullptr;
    Batch batch_;
    std::map<std::pair<RequestId, std::size_t>, std::vector<BlockId>> tables_;
    std::int64_t steps_ = 0;
    std::int64_t last_step_ = -1;
    std::int64_t rows_ = 0;
    std::int64_t tokens_ = 0;
    std::int64_t hits_ = 0;
    std::int64_t recomputes_ = 0;
    std::int64_t swaps_ = 0;
    std::int64_t in_ = 0;
    std::int64_t out_ = 0;
    std::int64_t copies_ = 0;
    std::int64_t finished_ = 0;
    std::int64_t ignored_ = 0;
};

class VllmV0Recording final : public Recording {
public:
    explicit VllmV0Recording(Input input) : input_(std::move(input)) {}
    [[nodiscard]] bool compares(const std::string& field) const override {
        return field != "in_b" && field != "out_b" && field != "copy_b" && field != "error";
    }
    Totals replay(const std::function<bool(const Json&)>& line) override {
        StepDriver driver(input_);
        driver.run(line);
        return {driver.steps(), driver.preemptions()};
    }

private:
    Input input_;
};

}  // namespace

bool is_vllm_v0_recording(const Json& config) {
    return config.contains("num_cpu_blocks");
}
std::unique_ptr<Recording> open_vllm_v0_recording(const Json& input, const std::string& where) {
    return std::make_unique<VllmV0Recording>(read_input(input, where));
}

}  // namespace kvsim
