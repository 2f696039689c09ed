#include "kvsim/engine/conformance.hpp"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"
#include "kvsim/engine/engine.hpp"

namespace kvsim {
namespace {

using Json = nlohmann::ordered_json;

Json parse(const std::string& text, const std::string& where) {
    try {
        return Json::parse(text);
    } catch (const Json::exception& e) { throw UserError(where + ": error: not JSON: " + e.what()); }
}

struct RecordedRequest {
    NewRequest request;
    std::int64_t arrival_step = 0;
};

struct Recording {
    std::string name;
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

Recording read_recording(const std::filesystem::path& path, const std::string& engine) {
    const Json json = parse(read_file(path), path.string());
    try {
        Recording recording;
        recording.name = json.at("name").get<std::string>();
        if (json.contains("max_steps")) recording.max_steps = json.at("max_steps").get<std::int64_t>();
        const Json& config = json.at("config");
        std::string told = engine;
        if (told.empty()) {
            told = config.contains("max_total_num_tokens") ? "sglang"
                   : config.contains("num_cpu_blocks")     ? "vllm-v0"
                                                           : "vllm-v1";
        }
        if (told != "vllm-v1")
            throw UserError(path.string() + ": error: recorded from " + told + "; this version replays vllm-v1 only");
        recording.args = read_config(config, path.string());

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
            if (tokens != live.prompt || live.prompt < 1 || live.max_tokens < 1 ||
                live.prompt >= recording.args.max_model_len) {
                throw UserError(path.string() + ": error: request " + live.tie_id +
                                ": lengths must be at least 1, prompt_len the sum of its runs and below max_model_len");
            }
            if (std::find(recording.ids.begin(), recording.ids.end(), live.tie_id) != recording.ids.end()) {
                throw UserError(path.string() + ": error: request id " + live.tie_id + " occurs twice");
            }
            recording.ids.push_back(live.tie_id);
            recording.requests.push_back(std::move(request));
        }
        std::stable_sort(recording.requests.begin(), recording.requests.end(),
                         [](const auto& a, const auto& b) { return a.arrival_step < b.arrival_step; });
        return recording;
    } catch (const Json::exception& e) { throw UserError(path.string() + ": error: not a recorded input: " + e.what()); }
}

/// Drives the engine step by step and hands out each line of the record.
class StepDriver final : private EngineListener {
public:
    explicit StepDriver(const Recording& recording) : recording_(recording), engine_(recording.args, *this) {}

    template <class Line>
    void run(Line&& line) {
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
                engine_.enqueue(request);
            }

            engine_.schedule(current_, SimTime{});
            current_.step = step;
            StepRecord record;
            fill_scheduled(record, engine_, current_);
            const Batch* done = async ? (in_flight ? &previous_ : nullptr) : &current_;
            const bool idle = current_.rows.empty() && current_.preempted.empty() && (!done || done->rows.empty());
            if (done) {
                record.updated_step = done->step;
                engine_.update(*done, SimTime{});
                record.received = engine_.received();
                record.finished = engine_.finished();
            }
            fill_updated(record, engine_);
            line(to_json(record));
            std::swap(previous_, current_);
            in_flight = true;

            ++steps_;
            last_step_ = step++;
            preemptions_ += static_cast<std::int64_t>(record.preempted.size());
            finished_ += static_cast<std::int64_t>(record.finished.size());
            scheduled_ += record.total_tokens;
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
                {"free", engine_.kv().free()},
                {"unfinished", unfinished}};
    }

    const Recording& recording_;
    Engine engine_;
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

/// "field: expected A, got B" for the first difference below `path`, or "".
std::string first_difference(const Json& expected, const Json& got, const std::string& path) {
    if (expected.is_object() && got.is_object()) {
        for (const auto& [key, value] : expected.items()) {
            const std::string inner = path.empty() ? key : path + "." + key;
            if (!got.contains(key)) return inner + ": expected " + value.dump() + ", got nothing";
            if (std::string d = first_difference(value, got.at(key), inner); !d.empty()) return d;
        }
        for (const auto& [key, value] : got.items()) {
            if (!expected.contains(key))
                return (path.empty() ? key : path + "." + key) + ": expected nothing, got " + value.dump();
        }
        return "";
    }
    if (expected.is_array() && got.is_array()) {
        for (std::size_t i = 0; i < std::min(expected.size(), got.size()); ++i) {
            if (std::string d = first_difference(expected[i], got[i], path + "[" + std::to_string(i) + "]"); !d.empty())
                return d;
        }
        if (expected.size() == got.size()) return "";
        return path + ": expected " + expected.dump() + ", got " + got.dump();
    }
    if (expected == got) return "";
    return path + ": expected " + expected.dump() + ", got " + got.dump();
}

std::filesystem::path expected_path(const std::filesystem::path& input) {
    std::string name = input.filename().string();
    return input.parent_path() / (name.substr(0, name.size() - std::string(".in.json").size()) + ".out.jsonl");
}

}  // namespace

std::vector<std::filesystem::path> conformance_inputs(const std::filesystem::path& directory) {
    std::error_code error;
    std::vector<std::filesystem::path> inputs;
    for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
        const std::string name = entry.path().filename().string();
        if (name.size() > 8 && name.compare(name.size() - 8, 8, ".in.json") == 0) inputs.push_back(entry.path());
    }
    if (error) throw UserError(directory.string() + ": error: " + error.message());
    if (inputs.empty()) throw UserError(directory.string() + ": error: no NAME.in.json file here");
    std::sort(inputs.begin(), inputs.end());
    for (const auto& input : inputs) {
        if (!std::filesystem::exists(expected_path(input))) {
            throw UserError(expected_path(input).string() + ": error: missing beside " + input.filename().string());
        }
    }
    return inputs;
}

ConformanceResult replay(const std::filesystem::path& input, const std::string& engine) {
    const Recording recording = read_recording(input, engine);
    const std::filesystem::path out = expected_path(input);
    const std::string text = read_file(out);
    std::size_t at = 0;
    int line_number = 0;
    ConformanceResult result;
    result.name = recording.name;

    StepDriver driver(recording);
    const auto compare = [&](const Json& got) {
        if (!result.same) return;
        while (at < text.size() && text[at] == '\n') ++at, ++line_number;
        ++line_number;
        const std::string where = got.contains("end") ? "summary" : "step " + got.at("step").dump();
        if (at >= text.size()) {
            result.same = false;
            result.difference = where + ": expected the end of the record, got " + got.dump().substr(0, 200);
            return;
        }
        const std::size_t end = std::min(text.find('\n', at), text.size());
        const Json expected = parse(text.substr(at, end - at), out.string() + ":" + std::to_string(line_number));
        at = std::min(end + 1, text.size());
        if (std::string d = first_difference(expected, got, ""); !d.empty()) {
            result.same = false;
            result.difference = where + ", " + d;
        }
    };
    driver.run(compare);
    if (result.same && text.find_first_not_of("\r\n ", at) != std::string::npos) {
        result.same = false;
        result.difference = "after the summary: expected " + text.substr(at, 200) + ", got nothing";
    }
    result.steps = driver.steps();
    result.preemptions = driver.preemptions();
    return result;
}

}  // namespace kvsim
