// Recordings of vLLM V1's scheduler: every field of every step.

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "conformance_format.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/engine/engine.hpp"
#include "kvsim/engine/fast_engine.hpp"
#include "kvsim/engine/outcome.hpp"
#include "kvsim/engine/token_meter.hpp"

namespace kvsim {
namespace {

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

EngineArgs read_config(const Json& config, const std::string& where) {
    EngineArgs args;
    const std::map<std::string, std::int64_t*> integers{
        {"num_gpu_blocks", &args.num_gpu_blocks}, {"block_size", &args.block_size},
        {"max_num_seqs", &args.max_num_seqs},     {"max_num_batched_tokens", &args.max_num_batched_tokens},
        {"max_model_len", &args.max_model_len},   {"long_prefill_token_threshold", &args.long_prefill_token_threshold}};
    const std::map<std::string, bool*> flags{{"enable_chunked_prefill", &args.enable_chunked_prefill},
                                             {"enable_prefix_caching", &args.enable_prefix_caching},
                                             {"async_scheduling", &args.async_scheduling},
                                             {"scheduler_reserve_full_isl", &args.scheduler_reserve_full_isl}};
    args.async_scheduling = false;
    for (const auto& [key, value] : config.items()) {
        if (const auto integer = integers.find(key); integer != integers.end()) {
            *integer->second = value.get<std::int64_t>();
        } else if (const auto flag = flags.find(key); flag != flags.end()) {
            *flag->second = value.get<bool>();
        } else if (key == "watermark") {
            args.watermark = value.get<double>();
        } else if (key == "policy" && (value == "fcfs" || value == "priority")) {
            args.scheduling_policy = value == "fcfs" ? QueueOrder::fcfs : QueueOrder::priority;
        } else {
            throw UserError(where + ": error: config key '" + key + "' with value " + value.dump() + " is not known");
        }
    }
    for (const char* key : {"num_gpu_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"}) {
        if (!config.contains(key) || *integers.at(key) < 1) throw UserError(where + ": error: config needs " + key + " >= 1");
    }
    return args;
}

Input read_input(const Json& json, const std::string& where) {
    Input recording;
    if (json.contains("max_steps")) recording.max_steps = json.at("max_steps").get<std::int64_t>();
    recording.args = read_config(json.at("config"), where);

    std::set<double> times;
    for (const Json& r : json.at("requests")) times.insert(r.value("arrival_time", 0.0));
    for (const Json& r : json.at("requests")) {
        RecordedRequest request;
        NewRequest& live = request.request;
        live.id = static_cast<RequestId>(recording.ids.size());
        live.tie_id = r.at("id").get<std::string>();
        live.prompt = r.at("prompt_len").get<std::int64_t>();
        live.max_tokens = r.at("output_len").get<std::int64_t>();
        live.priority = r.value("priority", std::int64_t{0});
        live.arrival_rank = std::distance(times.begin(), times.find(r.value("arrival_time", 0.0)));
        live.output_base = r.at("output_base").get<std::uint64_t>();
        std::int64_t tokens = 0;
        for (const Json& run : r.at("prompt")) {
            live.content.push_back({run.at(0).get<std::uint64_t>(), run.at(1).get<std::int64_t>()});
            tokens += live.content.back().count;
        }
        request.arrival_step = r.at("arrival_step").get<std::int64_t>();
        if (tokens != live.prompt || live.prompt < 1 || live.max_tokens < 1 || live.prompt >= recording.args.max_model_len) {
            throw UserError(where + ": error: request " + live.tie_id +
                            ": lengths must be at least 1, prompt_len the sum of its runs and below max_model_len");
        }
        if (std::find(recording.ids.begin(), recording.ids.end(), live.tie_id) != recording.ids.end()) {
            throw UserError(where + ": error: request id " + live.tie_id + " occurs twice");
        }
        recording.ids.push_back(live.tie_id);
        recording.requests.push_back(std::move(request));
    }
    std::stable_sort(recording.requests.begin(), recording.requests.end(),
                     [](const auto& a, const auto& b) { return a.arrival_step < b.arrival_step; });
    return recording;
}

/// Both forms of the engine with one face.
struct PerRequestForm {
    using Batch = kvsim::Batch;
    PerRequestForm(const EngineArgs& args, EngineListener& listener) : engine(args, listener) {}
    void enqueue(NewRequest& request) { engine.enqueue(request); }
    void record_scheduled(StepRecord& record, Batch& batch) const { fill_scheduled(record, engine, batch); }
    void record_updated(StepRecord& record) const { fill_updated(record, engine); }
    [[nodiscard]] const std::vector<RequestId>& received(const Batch&) const { return engine.received(); }
    [[nodiscard]] static bool idle(const Batch& batch) { return batch.rows.empty() && batch.preempted.empty(); }
    [[nodiscard]] std::int64_t free_blocks() const { return engine.free_blocks(); }
    Engine engine;
};
struct FastForm {
    using Batch = FastEngine<>::Batch;
    FastForm(const EngineArgs& args, EngineListener& listener) : engine(args, listener, unused.integrals, meter) {
        engine.keep_ids();
    }
    void enqueue(NewRequest& request) { engine.enqueue(request); }
    void record_scheduled(StepRecord& record, Batch& batch) const { engine.record_scheduled(record, batch); }
    void record_updated(StepRecord& record) const { engine.record_updated(record); }
    [[nodiscard]] const std::vector<RequestId>& received(const Batch& batch) const { return batch.received; }
    [[nodiscard]] static bool idle(const Batch& batch) { return batch.empty() && batch.preempted == 0; }
    [[nodiscard]] std::int64_t free_blocks() const { return engine.kv().free(); }
    Outcome unused;
    TokenMeter meter{unused, false};
    FastEngine<> engine;
};

/// Whether the fast form is exact: nobody's outputs are in a prompt or among another's outputs.
bool fast_form_handles(const Input& input) {
    const auto overlap = [](const TokenRun& a, const TokenRun& b) {
        return a.first < b.first + static_cast<std::uint64_t>(b.count) &&
               b.first < a.first + static_cast<std::uint64_t>(a.count);
    };
    if (!fast_engine_handles(input.args)) return false;
    if (!input.args.enable_prefix_caching) return true;
    for (const RecordedRequest& a : input.requests) {
        const TokenRun outputs{a.request.output_base, a.request.max_tokens};
        for (const RecordedRequest& b : input.requests) {
            if (&a != &b && overlap(outputs, {b.request.output_base, b.request.max_tokens})) return false;
            for (const TokenRun& run : b.request.content) {
                if (overlap(outputs, run)) return false;
            }
        }
    }
    return true;
}

/// Drives an engine step by step and hands out each line of the record.
template <class Form>
class StepDriver final : private EngineListener {
    using Batch = typename Form::Batch;

public:
    explicit StepDriver(const Input& recording) : recording_(recording), form_(recording.args, *this) {}

    void run(const std::function<bool(const Json&)>& line) {
        const bool async = recording_.args.async_scheduling;
        const auto& requests = recording_.requests;
        std::size_t next = 0;
        std::int64_t step = 0;
        bool in_flight = false;  // async: previous_ was scheduled in the step before
        std::string end;
        while (end.empty()) {
            if (engine_.unfinished() == 0) {
                if (next == requests.size()) {
                    end = "done";
                    break;
                }
                step = std::max(step, requests[next].arrival_step);
                in_flight = false;
            }
            for (; next < requests.size() && requests[next].arrival_step <= step; ++next) {
                NewRequest request = requests[next].request;
                form_.enqueue(request);
            }

            engine_.schedule(current_, SimTime{});
            current_.step = step;
            StepRecord record;
            form_.record_scheduled(record, current_);
            const Batch* done = async ? (in_flight ? &previous_ : nullptr) : &current_;
            const bool idle = Form::idle(current_) && (!done || done->empty());
            if (done) {
                record.updated_step = done->step;
                engine_.update(*done, SimTime{});
                record.received = form_.received(*done);
                record.finished = engine_.finished();
            }
            form_.record_updated(record);
            std::swap(previous_, current_);
            in_flight = true;

            ++steps_;
            last_step_ = step++;
            preemptions_ += static_cast<std::int64_t>(record.preempted.size());
            finished_ += static_cast<std::int64_t>(record.finished.size());
            scheduled_ += record.total_tokens;
            if (!line(to_json(record))) return;
            if (engine_.unfinished() == 0) continue;
            if (idle && next == requests.size()) end = "stalled";
            if (steps_ == recording_.max_steps) end = "max_steps";
        }
        line(summary(end));
    }

    [[nodiscard]] std::int64_t steps() const { return steps_; }
    [[nodiscard]] std::int64_t preemptions() const { return preemptions_; }

private:
    void on_admitted(RequestId, bool, std::int64_t, std::int64_t hit, SimTime) override { hits_ += hit; }
    void on_finished(RequestId id, std::int64_t, SimTime) override { done_.insert(id); }

    [[nodiscard]] Json names(const std::vector<RequestId>& ids) const {
        Json out = Json::array();
        for (const RequestId id : ids) out.push_back(recording_.ids[id]);
        return out;
    }

    [[nodiscard]] Json to_json(const StepRecord& record) const {
        Json sched = Json::array();
        for (const ScheduledRow& row : record.scheduled) {
            const char* kind = row.kind == ScheduledRow::Kind::fresh     ? "new"
                               : row.kind == ScheduledRow::Kind::resumed ? "resumed"
                                                                         : "running";
            sched.push_back(
                {{"id", recording_.ids[row.id]}, {"n", row.tokens}, {"c", row.computed}, {"k", kind}, {"b", row.blocks}});
        }
        return {{"step", record.step},
                {"sched", std::move(sched)},
                {"total", record.total_tokens},
                {"preempted", names(record.preempted)},
                {"free_sched", record.free_after_schedule},
                {"upd", record.updated_step == StepRecord::none ? Json(nullptr) : Json(record.updated_step)},
                {"tok", names(record.received)},
                {"finished", names(record.finished)},
                {"free", record.free_after_update},
                {"running", record.running.size()},
                {"waiting", record.waiting.size()},
                {"running_ids", names(record.running)},
                {"waiting_ids", names(record.waiting)}};
    }

    [[nodiscard]] Json summary(const std::string& end) const {
        Json unfinished = Json::array();
        for (RequestId id = 0; id < recording_.ids.size(); ++id) {
            if (!done_.count(id)) unfinished.push_back(recording_.ids[id]);
        }
        return {{"end", end},
                {"steps", steps_},
                {"last_step", last_step_},
                {"preemptions", preemptions_},
                {"finished", finished_},
                {"scheduled_tokens", scheduled_},
                {"hit_tokens", hits_},
                {"free", form_.free_blocks()},
                {"unfinished", unfinished}};
    }

    const Input& recording_;
    Form form_;
    decltype(form_.engine)& engine_ = form_.engine;
    Batch current_;
    Batch previous_;
    std::set<RequestId> done_;
    std::int64_t steps_ = 0;
    std::int64_t last_step_ = -1;
    std::int64_t preemptions_ = 0;
    std::int64_t finished_ = 0;
    std::int64_t scheduled_ = 0;
    std::int64_t hits_ = 0;
};

class VllmV1Recording final : public Recording {
public:
    explicit VllmV1Recording(Input input) : input_(std::move(input)) {}
    Totals replay(const std::function<bool(const Json&)>& line) override {
        std::vector<Json> lines;
        StepDriver<PerRequestForm> driver(input_);
        driver.run([&](const Json& json) {
            lines.push_back(json);
            return line(json);
        });
        if (fast_form_handles(input_)) {
            std::size_t at = 0;
            StepDriver<FastForm> fast(input_);
            fast.run([&](const Json& json) {
                KVSIM_CHECK(at < lines.size() && json == lines[at], "both forms of the engine take the same decisions");
                return ++at < lines.size();
            });
        }
        return {driver.steps(), driver.preemptions()};
    }

private:
    Input input_;
};

}  // namespace

bool is_vllm_v1_recording(const Json& config) {
    return config.contains("num_gpu_blocks");
}
std::unique_ptr<Recording> open_vllm_v1_recording(const Json& input, const std::string& where) {
    return std::make_unique<VllmV1Recording>(read_input(input, where));
}

}  // namespace kvsim
