#include "naive_conformance.hpp"

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "naive_engine.hpp"

namespace kvsim::oracle {

namespace {

using Json = nlohmann::json;

EngineArgs engine_args(const Json& config) {
    EngineArgs args;
    args.scheduling_policy = config.at("policy") == "priority" ? QueueOrder::priority : QueueOrder::fcfs;
    args.num_gpu_blocks = config.at("num_gpu_blocks");
    args.block_size = config.at("block_size");
    args.max_num_seqs = config.at("max_num_seqs");
    args.max_num_batched_tokens = config.at("max_num_batched_tokens");
    args.max_model_len = config.at("max_model_len");
    args.long_prefill_token_threshold = config.at("long_prefill_token_threshold");
    args.enable_chunked_prefill = config.at("enable_chunked_prefill");
    args.enable_prefix_caching = config.at("enable_prefix_caching");
    args.async_scheduling = config.at("async_scheduling");
    args.scheduler_reserve_full_isl = config.value("scheduler_reserve_full_isl", true);
    args.watermark = config.value("watermark", 0.0);
    return args;
}

struct TimedRequest {
    std::int64_t arrival_step;
    NaiveRequest request;
};

std::vector<TimedRequest> read_requests(const Json& input) {
    // Only the order of arrival times matters, so each becomes its rank.
    std::set<double> times;
    for (const Json& r : input) times.insert(r.at("arrival_time").get<double>());
    std::map<double, std::int64_t> rank;
    for (const double t : times) rank.emplace(t, static_cast<std::int64_t>(rank.size()));

    std::vector<TimedRequest> requests;
    for (const Json& r : input) {
        NaiveRequest request;
        request.id = static_cast<RequestId>(requests.size());
        request.name = r.at("id");
        request.priority = r.at("priority");
        request.arrival_time = rank.at(r.at("arrival_time").get<double>());
        request.prompt_tokens = r.at("prompt_len");
        request.max_tokens = r.at("output_len");
        request.output_base = r.at("output_base");
        for (const Json& run : r.at("prompt")) {
            const std::uint64_t first = run.at(0);
            const std::uint64_t count = run.at(1);
            for (std::uint64_t k = 0; k < count; ++k) request.tokens.push_back(first + k);
        }
        requests.push_back({r.at("arrival_step"), std::move(request)});
    }
    return requests;
}

Json to_json(const StepRecord& record, const std::vector<std::string>& names) {
    const auto ids = [&](const std::vector<RequestId>& list) {
        Json out = Json::array();
        for (const RequestId id : list) out.push_back(names[id]);
        return out;
    };
    Json rows = Json::array();
    for (const ScheduledRow& row : record.scheduled) {
        const char* kind = row.kind == ScheduledRow::Kind::fresh     ? "new"
                           : row.kind == ScheduledRow::Kind::resumed ? "resumed"
                                                                     : "running";
        rows.push_back({{"id", names[row.id]}, {"n", row.tokens}, {"c", row.computed}, {"k", kind}, {"b", row.blocks}});
    }
    Json out;
    out["step"] = record.step;
    out["sched"] = rows;
    out["total"] = record.total_tokens;
    out["preempted"] = ids(record.preempted);
    out["free_sched"] = record.free_after_schedule;
    out["upd"] = record.updated_step == StepRecord::none ? Json() : Json(record.updated_step);
    out["tok"] = ids(record.received);
    out["finished"] = ids(record.finished);
    out["free"] = record.free_after_update;
    out["running"] = record.running.size();
    out["waiting"] = record.waiting.size();
    out["running_ids"] = ids(record.running);
    out["waiting_ids"] = ids(record.waiting);
    return out;
}

/// The records and, last, the summary.
std::vector<Json> replay(const Json& scenario) {
    const std::vector<TimedRequest> requests = read_requests(scenario.at("requests"));
    const EngineArgs args = engine_args(scenario.at("config"));
    const std::int64_t max_steps = scenario.value("max_steps", std::int64_t{1'000'000});
    std::vector<std::string> names;
    for (const TimedRequest& r : requests) names.push_back(r.request.name);

    NaiveEngine engine(args);
    std::set<RequestId> to_come;
    for (const TimedRequest& r : requests) to_come.insert(r.request.id);
    const auto next_arrival_step = [&] {
        std::int64_t first = requests[*to_come.begin()].arrival_step;
        for (const RequestId id : to_come) first = std::min(first, requests[id].arrival_step);
        return first;
    };

    std::vector<Json> out;
    std::optional<NaiveBatch> in_queue;  // async: the batch of the step before
    std::string end = "done";
    std::int64_t step = 0;
    std::int64_t preemptions = 0;
    std::int64_t finished = 0;
    std::int64_t scheduled_tokens = 0;
    std::int64_t hit_tokens = 0;
    while (engine.unfinished() || !to_come.empty()) {
        if (static_cast<std::int64_t>(out.size()) == max_steps) {
            end = "max_steps";
            break;
        }
        if (!engine.unfinished()) {  // idle
            step = std::max(step, next_arrival_step());
            in_queue.reset();
        }
        for (const TimedRequest& r : requests) {
            if (r.arrival_step <= step && to_come.erase(r.request.id) > 0) engine.add(r.request);
        }

        const NaiveBatch batch = engine.schedule(step);
        const std::optional<NaiveBatch> done = args.async_scheduling ? in_queue : batch;
        if (args.async_scheduling) in_queue = batch;
        StepRecord record = batch.record;
        if (done) {
            record.updated_step = done->record.step;
            engine.update(*done, record);
        }
        engine.describe(record);
        engine.check_invariants();
        out.push_back(to_json(record, names));

        preemptions += static_cast<std::int64_t>(record.preempted.size());
        finished += static_cast<std::int64_t>(record.finished.size());
        scheduled_tokens += record.total_tokens;
        for (const std::int64_t hit : batch.hit_tokens) hit_tokens += hit;

        const bool nothing_happened = batch.empty() && record.preempted.empty() && (!done || done->empty());
        if (nothing_happened && to_come.empty() && engine.unfinished()) {
            end = "stalled";
            break;
        }
        ++step;
    }

    Json unfinished = Json::array();
    for (const TimedRequest& r : requests) {
        if (to_come.count(r.request.id) > 0 || !engine.request(r.request.id).finished) unfinished.push_back(r.request.name);
    }
    out.push_back({{"end", end},
                   {"steps", out.size()},
                   {"last_step", out.empty() ? Json() : out.back().at("step")},
                   {"preemptions", preemptions},
                   {"finished", finished},
                   {"scheduled_tokens", scheduled_tokens},
                   {"hit_tokens", hit_tokens},
                   {"free", engine.free_blocks()},
                   {"unfinished", unfinished}});
    return out;
}

}  // namespace

std::string first_difference_from_recording(const std::filesystem::path& in_json, const std::filesystem::path& out_jsonl) {
    std::ifstream in(in_json);
    const std::vector<Json> ours = replay(Json::parse(in));
    std::vector<Json> recorded;
    std::ifstream out(out_jsonl);
    for (std::string line; std::getline(out, line);) {
        if (!line.empty()) recorded.push_back(Json::parse(line));
    }
    for (std::size_t i = 0; i < std::min(ours.size(), recorded.size()); ++i) {
        if (ours[i] == recorded[i]) continue;
        return "record " + std::to_string(i) + ":\n  ours     " + ours[i].dump() + "\n  recorded " + recorded[i].dump();
    }
    if (ours.size() != recorded.size()) {
        return std::to_string(ours.size()) + " records, recorded " + std::to_string(recorded.size());
    }
    return {};
}

}  // namespace kvsim::oracle
