// Recordings of SGLang's scheduler: every field of every pass of its event loop that does not depend on the recorder.

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "../schedulers/sglang.hpp"
#include "conformance_format.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/engine/engine.hpp"

namespace kvsim {
namespace {

using Pass = SglangScheduler::Pass;
using Row = SglangScheduler::Row;

struct RecordedRequest {
    NewRequest request;
    std::int64_t arrival_step = 0;
};

struct Input {
    EngineArgs args;
    std::vector<RecordedRequest> requests;
    std::vector<std::string> ids;  // by RequestId
    std::int64_t max_steps = INT64_MAX;
};

constexpr std::int64_t unlimited = INT64_MAX / 4;
constexpr std::int64_t longest_request = INT64_MAX / 1024;

QueueOrder read_policy(const Json& value, const std::string& where) {
    static const std::map<std::string, QueueOrder> policies{
        {"fcfs", QueueOrder::fcfs}, {"lpm", QueueOrder::lpm}, {"dfs-weight", QueueOrder::dfs_weight}, {"lof", QueueOrder::lof}};
    const auto found = policies.find(value.get<std::string>());
    if (found == policies.end())
        throw UserError(where + ": error: schedule_policy " + value.dump() + " is not known (fcfs, lpm, dfs-weight, lof)");
    return found->second;
}

EngineArgs read_config(const Json& config, const std::string& where) {
    EngineArgs args;
    SglangArgs& sglang = args.sglang;
    args.preset = args.batching = "sglang";
    args.null_blocks = 0;
    args.max_model_len = unlimited;
    args.async_scheduling = false;
    args.enable_prefix_caching = true;
    std::int64_t total = 0;
    std::int64_t chunk = 0;
    const std::map<std::string, std::int64_t*> integers{{"max_total_num_tokens", &total},
                                                        {"page_size", &args.block_size},
                                                        {"chunked_prefill_size", &chunk},
                                                        {"max_prefill_tokens", &sglang.max_prefill_tokens},
                                                        {"max_running_requests", &args.max_num_seqs},
                                                        {"context_len", &sglang.context_len},
                                                        {"clip_max_new_tokens", &sglang.clip_max_new_tokens},
                                                        {"new_token_ratio_decay_steps", &sglang.new_token_ratio_decay_steps},
                                                        {"retract_decode_steps", &sglang.retract_decode_steps},
                                                        {"in_batch_check", &sglang.in_batch_check},
                                                        {"in_batch_deprioritize", &sglang.in_batch_deprioritize}};
    const std::map<std::string, double*> numbers{{"schedule_conservativeness", &sglang.schedule_conservativeness},
                                                 {"init_new_token_ratio", &sglang.init_new_token_ratio},
                                                 {"min_new_token_ratio_factor", &sglang.min_new_token_ratio_factor}};
    bool no_radix = false;
    const std::map<std::string, bool*> flags{{"enable_mixed_chunk", &sglang.enable_mixed_chunk},
                                             {"disable_radix_cache", &no_radix},
                                             {"overlap", &args.async_scheduling}};
    for (const auto& [key, value] : config.items()) {
        if (const auto integer = integers.find(key); integer != integers.end()) {
            if (!value.is_null()) *integer->second = value.get<std::int64_t>();
        } else if (const auto number = numbers.find(key); number != numbers.end()) {
            *number->second = value.get<double>();
        } else if (const auto flag = flags.find(key); flag != flags.end()) {
            *flag->second = value.get<bool>();
        } else if (key == "schedule_policy") {
            args.scheduling_policy = read_policy(value, where);
        } else if (key == "evict" && (value == "amount" || value == "shortfall")) {
            sglang.evict_shortfall = value == "shortfall";
        } else {
            throw UserError(where + ": error: config key '" + key + "' with value " + value.dump() + " is not known");
        }
    }
    args.enable_prefix_caching = !no_radix;
    args.enable_chunked_prefill = chunk > 0;
    args.max_num_batched_tokens = chunk;
    if (args.block_size < 1 || args.max_num_seqs < 1 || total < args.block_size || sglang.context_len < 0 ||
        total > longest_request || sglang.new_token_ratio_decay_steps < 1) {
        throw UserError(where + ": error: config needs max_total_num_tokens >= page_size >= 1, max_running_requests >= 1");
    }
    args.num_gpu_blocks = total / args.block_size;
    return args;
}

Input read_input(const Json& json, const std::string& where) {
    Input recording;
    if (json.contains("max_steps")) recording.max_steps = json.at("max_steps").get<std::int64_t>();
    recording.args = read_config(json.at("config"), where);
    std::set<std::string> names;
    for (const Json& r : json.at("requests")) {
        RecordedRequest& request = recording.requests.emplace_back();
        NewRequest& live = request.request;
        live.id = static_cast<RequestId>(recording.ids.size());
        live.tie_id = r.at("id").get<std::string>();
        live.max_tokens = r.at("output_len").get<std::int64_t>();
        live.limit = r.at("max_new_tokens").get<std::int64_t>();
        live.ignore_eos = r.value("ignore_eos", false);
        live.output_base = r.at("output_base").get<std::uint64_t>();
        bool possible = true;
        for (const Json& run : r.at("prompt")) {
            live.content.push_back({run.at(0).get<std::uint64_t>(), run.at(1).get<std::int64_t>()});
            possible = possible && live.content.back().count >= 1 && live.content.back().count <= longest_request;
            live.prompt += live.content.back().count;
            possible = possible && live.prompt <= longest_request;
            if (!possible) break;
        }
        request.arrival_step = r.at("arrival_step").get<std::int64_t>();
        if (!possible || live.prompt < 1 || live.max_tokens < 1 || live.limit < live.max_tokens) {
            throw UserError(where + ": error: request " + live.tie_id +
                            ": lengths must be at least 1, max_new_tokens at least output_len");
        }
        if (!names.insert(live.tie_id).second) {
            throw UserError(where + ": error: request id " + live.tie_id + " occurs twice");
        }
        recording.ids.push_back(live.tie_id);
    }
    std::stable_sort(recording.requests.begin(), recording.requests.end(),
                     [](const auto& a, const auto& b) { return a.arrival_step < b.arrival_step; });
    return recording;
}

const char* name_of(Pass::Kind kind) {
    constexpr std::array<const char*, 4> names{"idle", "prefill", "decode", "mixed"};
    return names[static_cast<std::size_t>(kind)];
}

const char* name_of(Row::Kind kind) {
    constexpr std::array<const char*, 4> names{"new", "resumed", "chunk", "decode"};
    return names[static_cast<std::size_t>(kind)];
}

/// Drives the engine pass by pass and hands out each line of the record.
class PassDriver final : private EngineListener {
public:
    explicit PassDriver(const Input& recording)
        : recording_(recording),
          engine_(recording.args, *this),
          scheduler_(dynamic_cast<const SglangScheduler&>(engine_.scheduler())) {}

    void run(const std::function<bool(const Json&)>& line) {
        const auto& requests = recording_.requests;
        const bool overlap = recording_.args.async_scheduling;
        std::size_t next = 0;
        std::int64_t step = 0;
        std::int64_t idle_in_a_row = 0;       // passes with nothing to process
        std::int64_t idle_since_arrival = 0;  // of those, since the last arrival
        std::string end;
        std::string error;
        while (end.empty()) {
            if (steps_ == recording_.max_steps) {
                end = "max_steps";
                break;
            }
            for (; next < requests.size() && requests[next].arrival_step <= step; ++next) {
                arrive(requests[next].request);
                idle_since_arrival = 0;
            }
            ++steps_;
            last_step_ = step;
            const bool processing = overlap && !previous_.rows.empty();
            try {
                engine_.schedule(current_, SimTime{});
            } catch (const EngineCrash& crash) {
                end = "crash";
                error = crash.what();
                const bool same = line({{"step", step},
                                        {"kind", "crash"},
                                        {"error", error},
                                        {"retracted", names(current_.preempted)},
                                        {"aborted", Json::array()}});
                if (!same) return;
                retractions_ += static_cast<std::int64_t>(current_.preempted.size());
                break;
            }
            Json record = scheduled(step);
            const Batch* done = overlap ? (processing ? &previous_ : nullptr) : current_.rows.empty() ? nullptr : &current_;
            record["upd"] = done == nullptr ? Json(nullptr) : Json(overlap ? previous_step_ : step);
            if (done != nullptr) engine_.update(*done, SimTime{});
            record["tok"] = names(done != nullptr ? engine_.received() : std::vector<RequestId>{});
            record["finished"] = names(done != nullptr ? engine_.finished() : std::vector<RequestId>{});
            add_state(record);

            const bool nothing = current_.rows.empty() && done == nullptr;
            idle_in_a_row = nothing ? idle_in_a_row + 1 : 0;
            idle_since_arrival = nothing ? idle_since_arrival + 1 : 0;
            count(record);
            if (idle_in_a_row <= 1 && !line(record)) return;
            std::swap(previous_, current_);
            previous_step_ = step++;

            if (!nothing) continue;
            const bool all_came = next == requests.size();
            if (all_came && engine_.unfinished() == 0) {
                end = "done";
            } else if (all_came && idle_since_arrival >= 2) {
                end = "stalled";
            } else if (!all_came && (scheduler_.nothing_left() || idle_in_a_row >= 2)) {
                step = std::max(step, requests[next].arrival_step);
            }
        }
        line(summary(end, error));
    }

    [[nodiscard]] std::int64_t steps() const { return steps_; }
    [[nodiscard]] std::int64_t retractions() const { return retractions_; }

private:
    void on_finished(RequestId id, std::int64_t, SimTime) override { done_.insert(id); }

    void arrive(NewRequest request) {
        const std::int64_t asked = request.limit;
        const RequestId id = request.id;
        const Slot slot = engine_.enqueue(request);
        if (const std::int64_t got = scheduler_.max_new_tokens(slot); got != asked) limits_[recording_.ids[id]] = got;
    }

    [[nodiscard]] Json names(const std::vector<RequestId>& ids) const {
        Json out = Json::array();
        for (const RequestId id : ids) out.push_back(recording_.ids[id]);
        return out;
    }

    [[nodiscard]] Json scheduled(std::int64_t step) {
        const Pass& pass = scheduler_.last_plan();
        Json rows = Json::array();
        std::int64_t total = 0;
        for (const Row& row : pass.rows) {
            Json& out = rows.emplace_back(
                Json{{"id", recording_.ids[row.id]}, {"n", row.tokens}, {"p", row.before}, {"k", name_of(row.kind)}});
            if (row.more) out["more"] = true;
            total += row.tokens;
            if (row.kind == Row::Kind::fresh || row.kind == Row::Kind::resumed) hit_tokens_ += row.before;
        }
        return {{"step", step},
                {"kind", name_of(pass.kind)},
                {"rows", std::move(rows)},
                {"total", total},
                {"ratio", pass.ratio},
                {"retracted", names(current_.preempted)},
                {"aborted", Json::array()},
                {"avail_sched", scheduler_.kv().available()},
                {"evict_sched", scheduler_.kv().evictable()}};
    }

    void add_state(Json& record) const {
        record["avail"] = scheduler_.kv().available();
        record["evictable"] = scheduler_.kv().evictable();
        record["ratio_end"] = scheduler_.new_token_ratio();
        record["full"] = scheduler_.batch_is_full();
        const auto chunked = scheduler_.chunked();
        record["chunked"] = chunked ? Json(recording_.ids[*chunked]) : Json(nullptr);
        record["running_ids"] = names(scheduler_.running_batch());
        std::vector<RequestId> waiting;
        for (const Slot slot : scheduler_.waiting()) waiting.push_back(engine_.request(slot).id);
        record["waiting_ids"] = names(waiting);
    }

    void count(const Json& record) {
        ++kinds_[static_cast<std::size_t>(scheduler_.last_plan().kind)];
        retractions_ += static_cast<std::int64_t>(record.at("retracted").size());
        finished_ += static_cast<std::int64_t>(record.at("finished").size());
        tokens_ += record.at("total").get<std::int64_t>();
    }

    [[nodiscard]] Json summary(const std::string& end, const std::string& error) const {
        Json unfinished = Json::array();
        for (RequestId id = 0; id < recording_.ids.size(); ++id) {
            if (!done_.count(id)) unfinished.push_back(recording_.ids[id]);
        }
        const auto kind = [this](Pass::Kind k) { return kinds_[static_cast<std::size_t>(k)]; };
        Json out{{"end", end},
                 {"steps", steps_},
                 {"prefill", kind(Pass::Kind::prefill)},
                 {"decode", kind(Pass::Kind::decode)},
                 {"mixed", kind(Pass::Kind::mixed)},
                 {"idle", kind(Pass::Kind::idle)},
                 {"retractions", retractions_},
                 {"aborted", 0},
                 {"finished", finished_},
                 {"tokens", tokens_},
                 {"hit_tokens", hit_tokens_},
                 {"last_step", last_step_},
                 {"avail", scheduler_.kv().available()},
                 {"evictable", scheduler_.kv().evictable()},
                 {"limits", limits_},
                 {"unfinished", unfinished}};
        if (!error.empty()) out["error"] = error;
        return out;
    }

    const Input& recording_;
    Engine engine_;
    const SglangScheduler& scheduler_;
    Batch current_;
    Batch previous_;
    std::int64_t previous_step_ = 0;
    std::set<RequestId> done_;
    Json limits_ = Json::object();
    std::array<std::int64_t, 4> kinds_{};
    std::int64_t steps_ = 0;
    std::int64_t last_step_ = -1;
    std::int64_t retractions_ = 0;
    std::int64_t finished_ = 0;
    std::int64_t tokens_ = 0;
    std::int64_t hit_tokens_ = 0;
};

class SglangRecording final : public Recording {
public:
    explicit SglangRecording(Input input) : input_(std::move(input)) {}
    Totals replay(const std::function<bool(const Json&)>& line) override {
        PassDriver driver(input_);
        driver.run(line);
        return {driver.steps(), driver.retractions()};
    }
    [[nodiscard]] bool compares(const std::string& field) const override {
        return field != "steps" && field != "idle" && field != "last_step" && field != "error";
    }

private:
    Input input_;
};

}  // namespace

bool is_sglang_recording(const Json& config) {
    return config.contains("max_total_num_tokens");
}
std::unique_ptr<Recording> open_sglang_recording(const Json& input, const std::string& where) {
    return std::make_unique<SglangRecording>(read_input(input, where));
}

}  // namespace kvsim
