// THE MAIN LOOP. Simulation::run: take the earliest instant at which anything happens; results arrive, requests arrive, steps
// start.

#include "kvsim/engine/simulation.hpp"

#include <algorithm>
#include <deque>
#include <string>

#include "kvsim/base/check.hpp"
#include "kvsim/engine/replica.hpp"

namespace kvsim {
namespace {

class Simulation final : private EngineListener {
public:
    Simulation(const SimulationOptions& options, const StepTimeModel& step_time, Router& router, Workload& workload)
        : options_(options), router_(router), workload_(workload), loads_(static_cast<std::size_t>(options.replicas)) {
        out_.usable_blocks = options.engine.num_gpu_blocks - 1;
        out_.block_size = options.engine.block_size;
        out_.replicas = options.replicas;
        cut_ = options.warmup_time.has_value() || options.warmup_requests.has_value();
        if (const auto n = workload.size_hint()) out_.requests.reserve(static_cast<std::size_t>(*n));
        EngineListener& listener = *this;
        for (std::int64_t i = 0; i < options.replicas; ++i) {
            Replica::StepSink sink;
            if (options.on_step) sink = [this, i](const StepRecord& record) { options_.on_step(i, record); };
            replicas_.push_back(
                std::make_unique<Replica>(options.engine, step_time, listener, out_.integrals, out_.counters, sink));
        }
    }

    Outcome run() {
        for (SimTime next = next_time(); next != never; next = next_time()) {
            KVSIM_CHECK(next >= now_, "time never goes backwards");
            sample_timeline(next);
            move_clock(next);
            finish_steps();
            take_arrivals();
            start_steps();
            report_progress();
        }
        close();
        return std::move(out_);
    }

private:
    // Order of equal times: results, then arrivals, then step starts, so that a step sees everything that is known at its
    // instant.
    [[nodiscard]] SimTime next_time() {
        SimTime next = joining_.empty() ? never : joining_.front().at;
        if (may_issue()) {
            if (const auto arrival = workload_.next_time()) next = std::min(next, std::max(now_, *arrival));
        }
        for (const auto& replica : replicas_) next = std::min(next, replica->next_time());
        return next;
    }

    void move_clock(SimTime now) {
        if (started_) out_.integrals.in_system_dt += static_cast<Int128>(in_system_) * (now - now_).count();
        now_ = now;
    }

    void finish_steps() {
        for (replica_ = 0; replica_ < replicas_.size(); ++replica_) replicas_[replica_]->finish_step(now_);
    }

    void take_arrivals() {
        while (!joining_.empty() && joining_.front().at <= now_) {
            replicas_[joining_.front().replica]->enqueue(std::move(joining_.front().request), now_);
            joining_.pop_front();
        }
        for (;;) {
            if (!may_issue()) break;
            const auto intended = workload_.next_time();
            if (!intended || *intended > now_) break;
            take_arrival();
        }
    }

    void start_steps() {
        for (replica_ = 0; replica_ < replicas_.size(); ++replica_) replicas_[replica_]->start_step(now_);
    }

    [[nodiscard]] bool may_issue() const { return !options_.max_concurrency || in_system_ < *options_.max_concurrency; }

    void take_arrival() {
        workload_.pop(arrival_);
        if (!started_) begin();
        const auto id = static_cast<RequestId>(out_.requests.size());
        ++out_.counters.arrivals;
        out_.last_arrival = now_;
        completed_by_last_arrival_ = out_.counters.completed;

        RequestRecord& record = out_.requests.emplace_back();
        record.arrival = now_;
        record.prompt_tokens = static_cast<std::int32_t>(arrival_.prompt_tokens);
        record.measured = !(options_.warmup_time && now_ < out_.first_arrival + *options_.warmup_time) &&
                          !(options_.warmup_requests && id < *options_.warmup_requests);
        if (!arrival_.external_id.empty()) out_.external_ids[id] = arrival_.external_id;
        if (!arrival_.request_class.empty()) out_.classes[id] = arrival_.request_class;
        if (!arrival_.session_id.empty()) out_.sessions[id] = arrival_.session_id;
        if (fits(arrival_)) {
            issue(id, record);
        } else {
            reject(id);
        }
        out_.counters.waiting_at_last_arrival = 0;
        for (const auto& replica : replicas_) {
            out_.counters.waiting_at_last_arrival += static_cast<std::int64_t>(replica->engine().waiting().size());
        }
    }

    /// Routes a request that fits; it joins its replica's queue when the front end is done with it.
    void issue(RequestId id, RequestRecord& record) {
        for (std::size_t i = 0; i < replicas_.size(); ++i) {
            loads_[i] = {replicas_[i]->engine().unfinished(), replicas_[i]->engine().outstanding_tokens()};
        }
        for (const Joining& joining : joining_) {
            ++loads_[joining.replica].requests;
            loads_[joining.replica].tokens += joining.request.final_computed();
        }
        const std::size_t target = replicas_.size() == 1 ? 0 : router_.pick(arrival_, loads_);
        KVSIM_CHECK(target < replicas_.size(), "a router picks an existing replica");
        record.replica = static_cast<std::uint16_t>(target);
        ++in_system_;
        out_.counters.max_in_system = std::max(out_.counters.max_in_system, in_system_);

        LiveRequest request;
        request.id = id;
        request.priority = arrival_.priority;
        request.arrival_rank = now_.time_since_epoch().count();
        request.tie_id = arrival_.external_id.empty() ? std::to_string(id) : arrival_.external_id;
        request.prompt = arrival_.prompt_tokens;
        request.max_tokens = std::min(arrival_.output_tokens, options_.engine.max_model_len - arrival_.prompt_tokens);
        request.content = arrival_.prompt;
        request.output_base = arrival_.output_base;
        request.arrival = now_;
        request.enqueued = now_ + options_.api;
        if (options_.api > SimDuration::zero()) {
            joining_.push_back({now_ + options_.api, target, std::move(request)});
        } else {
            replicas_[target]->enqueue(std::move(request), now_);
        }
    }

    void begin() {
        started_ = true;
        out_.first_arrival = now_;
        out_.end = now_;
        for (const auto& replica : replicas_) replica->begin(now_);
        if (options_.timeline_interval > SimDuration::zero()) {
            const std::int64_t interval = options_.timeline_interval.count();
            next_sample_ = SimTime(SimDuration(ceil_div(now_.time_since_epoch().count(), interval) * interval));
        }
    }

    // The engine's front end refuses such requests; one more token than the prompt must fit.
    [[nodiscard]] bool fits(const Arrival& arrival) const {
        return arrival.prompt_tokens < options_.engine.max_model_len &&
               ceil_div(arrival.prompt_tokens + 1, options_.engine.block_size) <= out_.usable_blocks;
    }

    void reject(RequestId id) {
        out_.requests[id].finish = FinishReason::rejected;
        if (out_.counters.rejected++ == 0) {
            const std::int64_t prompt = out_.requests[id].prompt_tokens;
            out_.warnings.push_back("request " + name(id) + " was rejected: its prompt of " + std::to_string(prompt) +
                                    " tokens needs max_model_len > " + std::to_string(prompt) + " (it is " +
                                    std::to_string(options_.engine.max_model_len) + ") and " +
                                    std::to_string(ceil_div(prompt + 1, options_.engine.block_size)) + " blocks (" +
                                    std::to_string(out_.usable_blocks) + " are usable); later ones are only counted");
        }
        workload_.finished(id, now_);
    }

    [[nodiscard]] std::string name(RequestId id) const {
        const auto at = out_.external_ids.find(id);
        return at == out_.external_ids.end() ? std::to_string(id) : at->second;
    }

    // ---- what the engines tell
    void on_admitted(const LiveRequest& request, std::int64_t hit) override {
        RequestRecord& record = out_.requests[request.id];
        Counters& c = out_.counters;
        if (request.admitted_before) {
            c.hit_tokens_resume += hit;
            c.tokens_resume += request.tokens();
        } else {
            record.queue = now_ - request.enqueued;
            record.cached_prompt_tokens = static_cast<std::int32_t>(hit);
            c.hit_tokens_first += hit;
            c.prompt_tokens_first += request.prompt;
        }
    }
    void on_recompute(const LiveRequest& request, std::int64_t tokens) override {
        out_.requests[request.id].recomputed_tokens += static_cast<std::int32_t>(tokens);
    }
    void on_preempted(const LiveRequest& request) override {
        if (out_.requests[request.id].preemptions++ == 0) ++out_.counters.preempted_requests;
    }
    void on_token(LiveRequest& request) override {
        RequestRecord& record = out_.requests[request.id];
        ++record.output_tokens;
        if (request.outputs == 1) {
            record.ttft = now_ - request.arrival;
        } else {
            const std::int64_t gap = (now_ - request.last_token).count();
            if (record.measured) out_.itl.add(gap);
            if (cut_) out_.itl_all.add(gap);
        }
        request.last_token = now_;
        const std::int64_t second = (now_ - out_.first_arrival) / std::chrono::seconds(1);
        if (second != bucket_) {
            bucket_ = second;
            bucket_tokens_ = 0;
        }
        out_.counters.max_output_tokens_per_s = std::max(out_.counters.max_output_tokens_per_s, ++bucket_tokens_);
    }
    void on_finished(const LiveRequest& request) override {
        RequestRecord& record = out_.requests[request.id];
        record.e2e = now_ - request.arrival;
        record.finish = FinishReason::length;
        ++out_.counters.completed;
        --in_system_;
        out_.end = now_;
        workload_.finished(request.id, now_);
    }

    // ---- samples, progress, the end
    /// The state before `next` is the state after every event up to then: it holds at each multiple of the interval in between,
    /// from the first arrival on.
    void sample_timeline(SimTime next) {
        if (options_.timeline_interval <= SimDuration::zero() || !started_) return;
        for (; next_sample_ < next; next_sample_ += options_.timeline_interval) {
            for (std::size_t i = 0; i < replicas_.size(); ++i) {
                const Replica& replica = *replicas_[i];
                TimelineSample& s = out_.timeline.emplace_back();
                s.at = next_sample_;
                s.replica = static_cast<std::int32_t>(i);
                s.running = static_cast<std::int64_t>(replica.engine().running().size());
                s.waiting = static_cast<std::int64_t>(replica.engine().waiting().size());
                s.kv_blocks_used = replica.engine().used_blocks();
                s.preemptions = replica.preemptions();
                if (const Batch* batch = replica.in_progress()) {
                    s.step = batch->duration;
                    s.batch_tokens = batch->shape.tokens;
                    s.decode_tokens = batch->shape.decode_rows;
                    s.prefill_tokens = batch->shape.tokens - batch->shape.decode_rows;
                }
            }
        }
    }

    void report_progress() {
        if (options_.stop && options_.stop->load(std::memory_order_relaxed)) throw Interrupted{};
        if (options_.on_progress && ++events_ % 4096 == 0) options_.on_progress(out_, now_);
    }

    void close() {
        if (in_system_ > 0) {
            out_.stall_report = stall_report();
            out_.end = now_;
        }
        for (const auto& replica : replicas_) replica->integrate(out_.end);
        sample_timeline(now_ + SimDuration(1));
        out_.counters.completed_by_last_arrival = completed_by_last_arrival_;
        if (out_.counters.arrivals > 0 && out_.counters.rejected == out_.counters.arrivals) {
            throw UserError("no request fits: every prompt (" + std::to_string(out_.counters.arrivals) +
                            " requests) is at or above max_model_len " + std::to_string(options_.engine.max_model_len) +
                            " or needs more than the " + std::to_string(out_.usable_blocks) + " usable KV blocks of " +
                            std::to_string(out_.block_size) + " tokens");
        }
    }

    [[nodiscard]] std::string stall_report() const {
        std::string text = "stalled at " + std::to_string(to_seconds(now_)) + " s: " + std::to_string(in_system_) +
                           " requests are left, nothing is due and nothing can be scheduled";
        for (std::size_t i = 0; i < replicas_.size(); ++i) {
            const Engine& engine = replicas_[i]->engine();
            text += "\n  replica " + std::to_string(i) + ": " + std::to_string(engine.running().size()) + " running, " +
                    std::to_string(engine.waiting().size()) + " waiting, " + std::to_string(engine.kv().free()) + " of " +
                    std::to_string(engine.kv().usable()) + " KV blocks free";
            if (engine.waiting().empty()) continue;
            const LiveRequest& head = engine.request(engine.waiting().head());
            text += "; the head of the queue, request " + name(head.id) + ", holds " + std::to_string(head.tokens()) +
                    " tokens (prompt " + std::to_string(head.prompt) + ", outputs " + std::to_string(head.outputs) + " of " +
                    std::to_string(head.max_tokens) + ") and needs " +
                    std::to_string(ceil_div(head.tokens(), options_.engine.block_size)) + " blocks to be admitted";
            if (engine.watermark_blocks() > 0) text += " above a watermark of " + std::to_string(engine.watermark_blocks());
        }
        return text + "\n  give the engine more KV blocks, or a max_model_len that fits them";
    }

    struct Joining {
        SimTime at;
        std::size_t replica;
        LiveRequest request;
    };

    const SimulationOptions& options_;
    Router& router_;
    Workload& workload_;
    std::vector<std::unique_ptr<Replica>> replicas_;
    std::vector<ReplicaLoad> loads_;
    std::deque<Joining> joining_;  // in the front end, in order of arrival
    Arrival arrival_;
    Outcome out_;
    SimTime now_{};
    SimTime next_sample_{};
    std::size_t replica_ = 0;
    bool started_ = false;
    bool cut_ = false;
    std::int64_t in_system_ = 0;  // issued, neither finished nor rejected
    std::int64_t completed_by_last_arrival_ = 0;
    std::int64_t bucket_ = -1;
    std::int64_t bucket_tokens_ = 0;
    std::int64_t events_ = 0;
};

}  // namespace

Outcome simulate(const SimulationOptions& options, const StepTimeModel& step_time, Router& router, Workload& workload) {
    return Simulation(options, step_time, router, workload).run();
}

}  // namespace kvsim
