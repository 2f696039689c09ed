#include "naive_simulation.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kvsim/base/check.hpp"
#include "kvsim/model/token_ids.hpp"

namespace kvsim::oracle {

namespace {

using std::chrono::seconds;

/// A batch whose price is known.
struct PricedBatch {
    NaiveBatch batch;
    SimDuration duration{};
    std::int64_t prefill_tokens = 0;
    std::int64_t decode_tokens = 0;
};

struct Replica {
    std::unique_ptr<NaiveMachine> machine;
    std::int64_t next_step = 0;
    std::optional<PricedBatch> executing;
    SimTime end{};  ///< of `executing`
    /// Async: what was scheduled last and has not started. While a batch executes there always is one, perhaps empty.
    std::optional<PricedBatch> scheduled;
    bool look = false;  ///< a step ended or a request was enqueued at this instant
    Bound bound = Bound::no_waiting;
    std::int64_t preemptions = 0;
};

/// Output k of a request is a request of its own to the machine.
constexpr RequestId outputs_apart = 1U << 16U;
RequestId output_of(RequestId request, std::int64_t k) {
    return request + static_cast<RequestId>(k) * outputs_apart;
}
RequestId request_of(RequestId id) {
    return id % outputs_apart;
}

struct Output {
    bool admitted = false;
    bool finished = false;
    std::optional<SimTime> last_token;
};

/// What the metrics need to know about one request beside its record.
struct Tracked {
    std::size_t replica = 0;
    std::int64_t max_tokens = 0;  ///< cut to what max_model_len allows
    SimTime enqueued{};
    std::vector<Output> outputs;        ///< it asked for
    std::optional<SimTime> last_token;  ///< of any of them
    std::vector<std::int64_t> gaps;
    bool in_system = false;
    SimTime intended{};
    SimTime sent{};
    std::optional<SimTime> admitted_at;
    std::optional<SimTime> left_at;
    SimDuration timeout{}, ttft_timeout{}, cancel_after{};
    NaiveRequest request;  ///< as it will be enqueued
};

class NaiveSimulation {
public:
    NaiveSimulation(const SimulationOptions& options, const StepTimeModel& step_time, Router& router, Workload& workload,
                    const MakeMachine& make, LoopMutation loop_mutation)
        : options_(options),
          args_(options.engine),
          step_time_(step_time),
          router_(router),
          workload_(workload),
          loop_mutation_(loop_mutation) {
        for (std::int64_t r = 0; r < options.replicas; ++r) {
            replicas_.push_back(Replica{make(args_), 0, {}, {}, {}, false, Bound::no_waiting, 0});
        }
        out_.usable_blocks = replicas_.front().machine->usable_blocks();
        out_.block_size = args_.block_size;
        out_.replicas = options.replicas;
    }

    Outcome run() {
        while (const std::optional<SimTime> next = next_instant()) {
            if (options_.stop != nullptr && options_.stop->load()) throw Interrupted{};
            advance(*next);
            if (is(LoopMutation::arrivals_before_step_ends)) {
                arrivals();
                step_ends();
            } else if (is(LoopMutation::schedule_before_arrivals)) {
                step_ends();
                schedules();
                arrivals();
            } else {
                if (is(LoopMutation::give_up_before_results)) departures();
                step_ends();
                departures();
                arrivals();
            }
            schedules();
            for (const Replica& replica : replicas_) replica.machine->check_invariants();
        }
        finish();
        return std::move(out_);
    }

private:
    [[nodiscard]] bool is(LoopMutation m) const { return loop_mutation_ == m; }

    // ---- the clock ----

    [[nodiscard]] std::optional<SimTime> next_instant() {
        std::optional<SimTime> next;
        const auto consider = [&](SimTime t) {
            if (!next || t < *next) next = t;
        };
        for (const Replica& replica : replicas_) {
            if (replica.executing) consider(replica.end);
        }
        for (const Tracked& t : tracked_) {
            for (const SimTime deadline : deadlines(t)) consider(deadline);
        }
        for (const RequestId id : in_front_end_) consider(tracked_[id].enqueued);
        // Without a free slot the next arrival waits for a finish, which is a step's end.
        if (const std::optional<SimTime> arrival = workload_.next_time(); arrival && slot_free()) {
            consider(std::max(*arrival, now_));
        }
        KVSIM_CHECK(!next || *next >= now_, "time goes backwards");
        return next;
    }

    [[nodiscard]] bool slot_free() const {
        if (!options_.max_concurrency) return true;
        std::int64_t issued = 0;
        for (const Tracked& t : tracked_) issued += t.in_system ? 1 : 0;
        return issued < *options_.max_concurrency;
    }

    /// The state stays as it is from now_ to `to`.
    void advance(SimTime to) {
        sample_timeline(to);
        if (out_.requests.empty()) {
            now_ = to;
            return;
        }
        for (; options_.window > SimDuration::zero() && next_mark_ <= to; next_mark_ += options_.window) {
            integrate(next_mark_ - now_);
            now_ = next_mark_;
            mark();
        }
        integrate(to - now_);
        now_ = to;
    }

    /// A window ends now; what happens at this instant belongs to the next one.
    void mark() {
        const Integrals& sums = out_.integrals;
        const Counters& counts = out_.counters;
        WindowMark& mark = out_.window_marks.emplace_back();
        mark.at = now_;
        mark.blocks_used_dt = sums.blocks_used_dt;
        mark.in_system_dt = sums.in_system_dt;
        mark.slots_busy_dt = sums.slots_busy_dt;
        mark.slots_token_dt = sums.slots_token_dt;
        mark.slots_reserved_dt = sums.slots_reserved_dt;
        mark.slots_internal_dt = sums.slots_internal_dt;
        mark.steps = counts.steps;
        mark.rows = counts.rows;
        mark.tokens = counts.tokens;
        mark.preemptions = counts.preemptions;
    }

    // ---- step ends ----

    void step_ends() {
        for (std::size_t r = 0; r < replicas_.size(); ++r) {
            Replica& replica = replicas_[r];
            if (!replica.executing || replica.end != now_) continue;
            const PricedBatch done = *std::exchange(replica.executing, std::nullopt);
            replica.look = true;
            const bool some_waited = !replica.machine->waiting().empty();
            if (args_.async_scheduling) {
                // The record that closes is that of the batch scheduled when `done` started.
                KVSIM_CHECK(replica.scheduled, "async: a batch executes and none was scheduled behind it");
                close(r, *replica.scheduled, &done.batch);
                // A batch whose requests have all gone still runs.
                if (!replica.machine->unfinished() && replica.scheduled->batch.empty() &&
                    !is(LoopMutation::async_keeps_pipeline_idle)) {
                    replica.scheduled.reset();
                }
            } else {
                close(r, done, &done.batch);
            }
            if (is(LoopMutation::waiting_after_update) ? !replica.machine->waiting().empty() : some_waited) {
                out_.integrals.finished_while_waiting += finished_at_this_end_;
            }
            // With clients that give up the last step may end when its requests have gone.
            if (finished_at_this_end_ > 0 || out_.counters.timed_out + out_.counters.cancelled > 0) {
                out_.end = now_;
                at_last_completion_ = out_.integrals;
            }
        }
    }

    // ---- clients that give up ----

    /// The instants at which its client would give up if nothing happened until then.
    [[nodiscard]] std::vector<SimTime> deadlines(const Tracked& t) const {
        std::vector<SimTime> out;
        if (!t.in_system) return out;
        const SimTime from = options_.latency_from_intended ? t.intended : t.sent;
        if (t.timeout > SimDuration::zero()) out.push_back(from + t.timeout);
        if (t.ttft_timeout > SimDuration::zero() && !t.last_token) out.push_back(from + t.ttft_timeout);
        if (t.cancel_after > SimDuration::zero()) out.push_back(from + t.cancel_after);
        return out;
    }

    void departures() {
        for (RequestId id = 0; id < tracked_.size(); ++id) {
            Tracked& t = tracked_[id];
            const std::vector<SimTime> due = deadlines(t);
            if (std::none_of(due.begin(), due.end(), [&](SimTime d) { return d <= now_; })) continue;
            const SimTime from = options_.latency_from_intended ? t.intended : t.sent;
            const bool timed_out = (t.timeout > SimDuration::zero() && from + t.timeout <= now_) ||
                                   (t.ttft_timeout > SimDuration::zero() && !t.last_token && from + t.ttft_timeout <= now_);
            const auto waits = std::find(in_front_end_.begin(), in_front_end_.end(), id);
            std::int64_t scheduled = 0;
            if (waits != in_front_end_.end()) {
                in_front_end_.erase(waits);
            } else {
                Replica& replica = replicas_[t.replica];
                for (std::int64_t k = 0; k < outputs_asked(t); ++k) {
                    scheduled += replica.machine->request(output_of(id, k)).scheduled;
                    if (!t.outputs[static_cast<std::size_t>(k)].finished) replica.machine->abort(output_of(id, k));
                }
                replica.look = true;
            }
            t.in_system = false;
            gave_up(id, timed_out ? FinishReason::timed_out : FinishReason::cancelled, scheduled);
        }
    }

    [[nodiscard]] static std::int64_t outputs_asked(const Tracked& t) { return static_cast<std::int64_t>(t.outputs.size()); }

    void gave_up(RequestId id, FinishReason reason, std::int64_t scheduled) {
        RequestRecord& record = out_.requests[id];
        record.finish = reason;
        ++(reason == FinishReason::timed_out ? out_.counters.timed_out : out_.counters.cancelled);
        out_.counters.wasted_tokens += scheduled;
        if (scheduled > 0) out_.wasted[id] = scheduled;
        out_.counters.wasted_output_tokens += record.output_tokens;
        out_.unfinished_after[id] = now_ - record.arrival;
        tracked_[id].left_at = now_;
        out_.end = now_;
        at_last_completion_ = out_.integrals;
        workload_.finished(id, now_, reason, record.output_tokens);
    }

    /// Processes the result of `done` (none: first schedule after idle) and completes the record of `scheduled`.
    void close(std::size_t r, const PricedBatch& scheduled, const NaiveBatch* done) {
        Replica& replica = replicas_[r];
        StepRecord record = scheduled.batch.record;
        record.duration = scheduled.duration;
        // Async: its batch starts now. Sync: now is its end. Without rows its start was noted by schedule().
        if (!scheduled.batch.empty()) record.start = args_.async_scheduling ? now_ : now_ - scheduled.duration;
        if (done != nullptr) {
            record.updated_step = done->record.step;
            replica.machine->update(*done, record, now_);
        }
        replica.machine->describe(record);
        for (const RequestId id : record.received) token_received(id, done->record);
        for (const RequestId id : record.finished) request_finished(id);
        finished_at_this_end_ = static_cast<std::int64_t>(record.finished.size());
        if (options_.on_step) options_.on_step(static_cast<std::int64_t>(r), as_requests(record));
    }

    /// The record names the clients' requests.
    [[nodiscard]] static StepRecord as_requests(StepRecord record) {
        for (ScheduledRow& row : record.scheduled) row.id = request_of(row.id);
        for (auto* ids : {&record.preempted, &record.received, &record.finished, &record.running, &record.waiting}) {
            for (RequestId& id : *ids) id = request_of(id);
        }
        return record;
    }

    void token_received(RequestId id, const StepRecord& batch) {
        RequestRecord& record = out_.requests[request_of(id)];
        Tracked& tracked = tracked_[request_of(id)];
        Output& output = tracked.outputs[id / outputs_apart];
        SimTime at = now_;
        if (is(LoopMutation::token_at_noticing) && args_.async_scheduling) at += batch.duration;
        if (!tracked.last_token) record.ttft = at - record.arrival;
        if (output.last_token) {
            const std::int64_t gap = (at - *output.last_token).count();
            tracked.gaps.push_back(gap);
            if (record.measured) out_.itl.add(gap);
            if (options_.warmup_time || options_.warmup_requests) out_.itl_all.add(gap);
        }
        tracked.last_token = output.last_token = at;
        ++record.output_tokens;
        ++tokens_in_second_[(now_ - out_.first_arrival) / seconds(1)];
    }

    /// Of its outputs the last one ends it.
    void request_finished(RequestId output) {
        const RequestId id = request_of(output);
        RequestRecord& record = out_.requests[id];
        Tracked& tracked = tracked_[id];
        tracked.outputs[output / outputs_apart].finished = true;
        if (std::any_of(tracked.outputs.begin(), tracked.outputs.end(), [](const Output& o) { return !o.finished; })) return;
        record.e2e = *tracked.last_token - record.arrival;
        record.finish = FinishReason::length;
        tracked.in_system = false;
        ++out_.counters.completed;
        workload_.finished(id, now_, FinishReason::length, record.output_tokens);
    }

    // ---- arrivals ----

    void arrivals() {
        // Those in the front end came earlier in the stream than any arrival of this instant.
        while (!in_front_end_.empty() && tracked_[in_front_end_.front()].enqueued == now_) {
            const RequestId id = in_front_end_.front();
            in_front_end_.erase(in_front_end_.begin());
            enqueue(id);
        }
        while (slot_free()) {
            const std::optional<SimTime> due = workload_.next_time();
            if (!due || *due > now_) break;
            Arrival arrival;
            workload_.pop(arrival);
            arrive(arrival);
            note_waiting_at_last_arrival();
        }
    }

    void arrive(const Arrival& arrival) {
        const RequestId id = static_cast<RequestId>(out_.requests.size());
        if (id == 0) {
            out_.first_arrival = now_;
            if (options_.window > SimDuration::zero()) {  // the first one began before anything came
                next_mark_ = now_ - now_.time_since_epoch() % options_.window;
                out_.window_marks.emplace_back().at = next_mark_;
                next_mark_ += options_.window;
            }
        }
        const bool intended = options_.latency_from_intended;
        const SimTime counted = intended ? std::min(arrival.time, now_) : now_;
        out_.last_arrival = std::max(out_.last_arrival, counted);
        ++out_.counters.arrivals;

        RequestRecord record;
        record.arrival = is(LoopMutation::arrival_is_intended_time) ? arrival.time : counted;
        record.prompt_tokens = static_cast<std::int32_t>(arrival.prompt_tokens);
        if (options_.warmup_time && counted < out_.first_arrival + *options_.warmup_time) record.measured = false;
        if (options_.warmup_requests && static_cast<std::int64_t>(id) < *options_.warmup_requests) record.measured = false;
        if (!arrival.external_id.empty()) out_.external_ids.set(id, arrival.external_id);
        if (!arrival.request_class.empty()) out_.classes.set(id, arrival.request_class);
        if (!arrival.session_id.empty()) out_.sessions.set(id, arrival.session_id);

        if (!arrival.tenant.empty()) out_.tenants.set(id, arrival.tenant);
        if (arrival.attempt > 0) {
            out_.attempts.add(id, arrival.attempt, 0);
            ++out_.counters.retries;
        }
        if (now_ > arrival.time) out_.client_queue.append(id, now_ - arrival.time);

        Tracked tracked;
        tracked.intended = arrival.time;
        tracked.sent = now_;
        tracked.timeout = arrival.timeout;
        tracked.ttft_timeout = arrival.ttft_timeout;
        tracked.cancel_after = arrival.cancel_after;
        if (intended && workload_.may_cancel()) {  // gave up while it waited at the client
            tracked.in_system = true;
            const std::vector<SimTime> due = deadlines(tracked);
            tracked.in_system = false;
            if (std::any_of(due.begin(), due.end(), [&](SimTime d) { return d <= now_; })) {
                const SimTime first = *std::min_element(due.begin(), due.end());
                const bool cancelled = arrival.cancel_after > SimDuration::zero() && counted + arrival.cancel_after == first &&
                                       std::count(due.begin(), due.end(), first) == 1;
                out_.requests.push_back(record);
                tracked_.push_back(tracked);
                out_.integrals.in_system_dt += (now_ - counted).count();
                gave_up(id, cancelled ? FinishReason::cancelled : FinishReason::timed_out, 0);
                return;
            }
        }
        const std::int64_t wanted = arrival.prompt_tokens + (is(LoopMutation::reject_by_prompt_only) ? 0 : 1);
        if (arrival.prompt_tokens >= args_.max_model_len || !replicas_.front().machine->can_ever_fit(wanted) ||
            !replicas_.front().machine->starts_alone(arrival.prompt_tokens) ||
            !replicas_.front().machine->can_ever_end(arrival.prompt_tokens, arrival.output_tokens)) {
            record.finish = FinishReason::rejected;
            ++out_.counters.rejected;
            out_.requests.push_back(record);
            tracked_.push_back(tracked);
            workload_.finished(id, now_, FinishReason::rejected, 0);
            return;
        }

        out_.integrals.in_system_dt += (now_ - counted).count();
        tracked.max_tokens = std::min(arrival.output_tokens, args_.max_model_len - arrival.prompt_tokens);
        tracked.replica = router_.pick(arrival, loads());
        tracked.enqueued = now_ + options_.api;
        tracked.in_system = true;
        NaiveRequest& request = tracked.request;
        tracked.outputs.resize(static_cast<std::size_t>(arrival.n));
        request.id = request.number = id;
        request.name = arrival.external_id.empty() ? std::to_string(id) : arrival.external_id;
        request.priority = arrival.priority;
        request.arrival_time = id;  // the order of issue: two requests are never equally old
        request.prompt_tokens = arrival.prompt_tokens;
        request.max_tokens = arrival.output_tokens;  // uncut: the engine stops at max_model_len by itself
        request.output_base = arrival.output_base;
        request.arrival = now_;
        request.request_class = arrival.request_class;
        request.tenant = arrival.tenant;
        for (const TokenRun& run : arrival.prompt) {
            for (std::int64_t k = 0; k < run.count; ++k) request.tokens.push_back(run.first + static_cast<std::uint64_t>(k));
        }
        if (arrival.prompt.empty()) {  // ids nobody else has
            const std::uint64_t own = (std::uint64_t{1} << 63) + (std::uint64_t{id} << 31);
            for (std::int64_t k = 0; k < arrival.prompt_tokens; ++k) {
                request.tokens.push_back(own + static_cast<std::uint64_t>(k));
            }
        }
        record.replica = static_cast<std::uint16_t>(tracked.replica);
        out_.requests.push_back(record);
        tracked_.push_back(tracked);

        std::int64_t in_system = 0;
        for (const Tracked& t : tracked_) in_system += t.in_system ? 1 : 0;
        out_.counters.max_in_system = std::max(out_.counters.max_in_system, in_system);

        if (options_.api == SimDuration::zero()) {
            enqueue(id);
        } else {
            in_front_end_.push_back(id);
        }
    }

    /// Seats that the next decision will give away do not count as waiting, unless blocks or tokens kept somebody back.
    [[nodiscard]] bool queue_full(const Replica& replica) const {
        if (args_.max_queued_requests < 0) return false;
        const auto waiting = static_cast<std::int64_t>(replica.machine->waiting().size());
        const auto running = static_cast<std::int64_t>(replica.machine->running().size());
        std::int64_t seats = args_.max_num_seqs - running;
        if (running > 0 && (replica.bound == Bound::kv_blocks || replica.bound == Bound::token_budget)) seats = 0;
        if (is(LoopMutation::queue_bound_forgets_seats)) seats = 0;
        return waiting - std::min(waiting, seats) >= args_.max_queued_requests && waiting >= seats;
    }

    void turn_away(RequestId id) {
        Tracked& t = tracked_[id];
        t.in_system = false;
        out_.requests[id].finish = FinishReason::rejected;
        ++out_.counters.rejected;
        ++out_.counters.queue_full;
        t.left_at = now_;
        if (const SimDuration after = now_ - out_.requests[id].arrival; after > SimDuration::zero()) {
            out_.unfinished_after[id] = after;
        }
        workload_.finished(id, now_, FinishReason::queue_full, 0);
    }

    void enqueue(RequestId id) {
        Replica& replica = replicas_[tracked_[id].replica];
        if (queue_full(replica)) return turn_away(id);
        const Tracked& t = tracked_[id];
        for (std::int64_t k = 0; k < outputs_asked(t); ++k) {
            NaiveRequest output = t.request;
            output.id = output_of(id, k);
            if (outputs_asked(t) > 1) output.name = std::to_string(k) + "_" + output.name;
            output.output_base = branch_output_base(output.output_base, k, t.max_tokens);
            replica.machine->add(std::move(output));
        }
        replica.look = true;
        if (is(LoopMutation::async_wakes_on_arrival) && replica.executing && replica.scheduled &&
            replica.scheduled->batch.empty()) {
            replica.scheduled = schedule(tracked_[id].replica, replica.end);
        }
    }

    void note_waiting_at_last_arrival() {
        out_.counters.waiting_at_last_arrival = 0;
        for (const Replica& replica : replicas_) {
            out_.counters.waiting_at_last_arrival += static_cast<std::int64_t>(replica.machine->waiting().size());
        }
    }

    /// Requests in the front end count for the replica they were sent to. The last output token is never computed.
    [[nodiscard]] std::vector<ReplicaLoad> loads() const {
        std::vector<ReplicaLoad> loads(replicas_.size());
        for (RequestId id = 0; id < tracked_.size(); ++id) {
            const Tracked& t = tracked_[id];
            if (!t.in_system) continue;
            const bool enqueued = std::find(in_front_end_.begin(), in_front_end_.end(), id) == in_front_end_.end();
            for (std::int64_t k = 0; k < outputs_asked(t); ++k) {
                if (t.outputs[static_cast<std::size_t>(k)].finished) continue;
                const std::int64_t computed = enqueued ? replicas_[t.replica].machine->request(output_of(id, k)).computed : 0;
                ++loads[t.replica].requests;
                loads[t.replica].tokens += t.request.prompt_tokens + t.max_tokens - 1 - computed;
            }
        }
        return loads;
    }

    // ---- schedules ----

    void schedules() {
        for (std::size_t r = 0; r < replicas_.size(); ++r) {
            Replica& replica = replicas_[r];
            if (std::exchange(replica.look, false) && !replica.executing) {
                if (args_.async_scheduling) {
                    schedule_async(r);
                } else {
                    schedule_sync(r);
                }
            }
            if (!replica.executing && !is(LoopMutation::bound_survives_idle)) replica.bound = Bound::no_waiting;
        }
    }

    void schedule_sync(std::size_t r) {
        Replica& replica = replicas_[r];
        while (replica.machine->unfinished()) {
            PricedBatch next = schedule(r, now_);
            if (!next.batch.empty()) {
                start(r, std::move(next));
                return;
            }
            close(r, next, &next.batch);
            if (next.batch.record.preempted.empty()) return;
        }
    }

    void schedule_async(std::size_t r) {
        Replica& replica = replicas_[r];
        while (true) {
            if (replica.scheduled && !replica.scheduled->batch.empty()) {
                start(r, *std::exchange(replica.scheduled, std::nullopt));
                replica.scheduled = schedule(r, replica.end);  // its record closes when the batch just started ends
                return;
            }
            if (!replica.machine->unfinished()) {
                if (!is(LoopMutation::async_keeps_pipeline_idle)) replica.scheduled.reset();
                return;
            }
            // Nothing is in flight: the result of the batch before (none, or one without rows) is there at once.
            const std::optional<PricedBatch> before = replica.scheduled;
            PricedBatch next = schedule(r, now_);
            close(r, next, before ? &before->batch : nullptr);
            replica.scheduled = next;
            if (next.batch.empty() && next.batch.record.preempted.empty()) return;
        }
    }

    void start(std::size_t r, PricedBatch batch) {
        Replica& replica = replicas_[r];
        replica.end = now_ + batch.duration;
        replica.executing = std::move(batch);
    }

    PricedBatch schedule(std::size_t r, SimTime starts) {
        Replica& replica = replicas_[r];
        PricedBatch priced;
        priced.batch = replica.machine->schedule(replica.next_step++, now_);
        NaiveBatch& batch = priced.batch;
        replica.bound = batch.bound;
        out_.counters.swapped_tokens += batch.swapped_tokens;
        batch.record.start = now_;

        for (const RequestId id : batch.record.preempted) {
            ++replica.preemptions;
            ++out_.counters.preemptions;
            if (++out_.requests[request_of(id)].preemptions == 1) ++out_.counters.preempted_requests;
        }

        StepShape shape;
        std::vector<PrefillChunk> chunks;
        std::map<std::pair<std::int64_t, bool>, std::int64_t> attended;  // by window and whether it is a chunk
        for (const BlockGroup& group : args_.kv_groups) {
            if (group.rule == BlockGroup::Rule::sliding) attended[{group.window, false}] = 0;
            if (group.rule == BlockGroup::Rule::chunked) attended[{group.window, true}] = 0;
        }
        std::int64_t recomputed = 0;
        for (std::size_t i = 0; i < batch.record.scheduled.size(); ++i) {
            const ScheduledRow& row = batch.record.scheduled[i];
            shape.tokens += row.tokens;
            ++shape.sequences;
            if (batch.samples[i]) ++shape.sampled;
            if (row.tokens == 1) {
                ++shape.decode_rows;
                shape.decode_context += row.computed + 1;
                for (auto& [window, sum] : attended) {
                    for (std::int64_t token = 0; token <= row.computed; ++token) {
                        const bool near = row.computed - token < window.first;
                        sum += (window.second ? token / window.first == row.computed / window.first : near) ? 1 : 0;
                    }
                }
                priced.decode_tokens += 1;
            } else {
                chunks.push_back({row.tokens, row.computed});
                priced.prefill_tokens += row.tokens;
            }

            std::int64_t again = batch.recomputed[i];
            if (is(LoopMutation::hit_counts_as_recompute) && row.kind == ScheduledRow::Kind::resumed) {
                again += batch.hit_tokens[i];
            }
            out_.recomputed_tokens.add(request_of(row.id), static_cast<std::int32_t>(again), 0);
            recomputed += again;

            started(row.id, row.kind, batch.hit_tokens[i], batch.tokens_present[i]);
        }
        for (const NaiveBatch::Started& s : batch.started_idle) started(s.id, s.kind, s.hit, s.tokens);
        for (const std::int64_t context : batch.idle_contexts) {
            ++shape.tokens;
            ++shape.sequences;
            ++shape.sampled;
            ++shape.decode_rows;
            shape.decode_context += context;
            priced.decode_tokens += 1;
        }
        out_.integrals.blocks_used_peak = std::max(out_.integrals.blocks_used_peak, replica.machine->used_blocks());

        if (!batch.empty()) {
            shape.chunks = chunks;
            std::vector<WindowContext> windows;
            for (const auto& [window, sum] : attended) windows.push_back({window.first, window.second, sum});
            shape.windows = windows;
            priced.duration = step_time_.duration(shape);
            const SimDuration since = starts - out_.first_arrival;
            if (const ColdStart& cold = options_.cold_start; since < cold.length) {
                const double share = static_cast<double>(since.count()) / static_cast<double>(cold.length.count());
                priced.duration = round_step(static_cast<double>(priced.duration.count()) * (1 + cold.slowdown * (1 - share)));
            }
            priced.duration =
                batch.transfer_overlaps ? std::max(priced.duration, batch.transfer) : priced.duration + batch.transfer;
            KVSIM_CHECK(priced.duration >= SimDuration(1), "a step takes at least 1 ns");
            ++out_.counters.steps;
            out_.counters.rows += shape.sequences;
            out_.counters.tokens += shape.tokens;
            out_.counters.recomputed_tokens += recomputed;
            out_.integrals.stepping += priced.duration;
            out_.integrals.recompute_ns += static_cast<double>(priced.duration.count()) * static_cast<double>(recomputed) /
                                           static_cast<double>(shape.tokens);
            batch.record.duration = priced.duration;
        }
        return priced;
    }

    /// A row's request was admitted; nothing when it was running.
    void started(RequestId id, ScheduledRow::Kind kind, std::int64_t hit, std::int64_t tokens) {
        Tracked& tracked = tracked_[request_of(id)];
        Output& output = tracked.outputs[id / outputs_apart];
        RequestRecord& record = out_.requests[request_of(id)];
        if (kind == ScheduledRow::Kind::fresh) {
            KVSIM_CHECK(!output.admitted, "admitted as new twice");
            output.admitted = true;
            out_.counters.hit_tokens_first += hit;
            out_.counters.prompt_tokens_first += record.prompt_tokens;
            if (tracked.admitted_at) return;  // the first of several outputs counts
            tracked.admitted_at = now_;
            record.queue = now_ - (is(LoopMutation::queue_from_arrival) ? record.arrival : tracked.enqueued);
            out_.cached_prompt_tokens.add(request_of(id), static_cast<std::int32_t>(hit), 0);
        } else if (kind == ScheduledRow::Kind::resumed) {
            KVSIM_CHECK(output.admitted, "resumed before it was admitted");
            out_.counters.hit_tokens_resume += hit;
            out_.counters.tokens_resume += tokens;
        }
    }

    // ---- integrals ----

    void integrate(SimDuration span) {
        const Int128 dt = span.count();
        Integrals& sums = out_.integrals;
        for (const Tracked& t : tracked_) {
            if (t.in_system) sums.in_system_dt += dt;
        }
        for (const Replica& replica : replicas_) {
            const NaiveMachine& engine = *replica.machine;
            const std::int64_t used = engine.used_blocks();
            sums.blocks_used_dt += used * dt;
            sums.bound[static_cast<std::size_t>(replica.bound)] += span;
            if (!replica.executing) sums.idle += span;
            if (!engine.waiting().empty()) sums.any_waiting += span;
            if (engine.running().empty()) continue;
            std::int64_t reserved = 0;
            std::int64_t internal = 0;
            for (const RequestId id : engine.running()) {
                const NaiveRequest& request = engine.request(id);
                const std::int64_t last =
                    request.prompt_tokens + tracked_[request.number].max_tokens - 1;  // the last token is never computed
                const bool to_the_end = is(LoopMutation::reserved_ignores_final);
                const auto slots = engine.unfilled(request, to_the_end ? args_.max_model_len * 2 : last);
                reserved += slots.first;
                internal += slots.second;
            }
            const std::int64_t size = engine.slots_per_block();
            sums.slots_busy_dt += engine.usable_blocks() * size * dt;
            sums.slots_reserved_dt += reserved * dt;
            sums.slots_internal_dt += internal * dt;
            sums.slots_token_dt += (used * size - reserved - internal) * dt;
        }
    }

    /// All samples due before `to`, from the last one up to the first arrival on: the state after every event up to their time.
    void sample_timeline(SimTime to) {
        if (options_.timeline_interval <= SimDuration::zero() || out_.requests.empty()) return;
        for (; next_sample_ < to; next_sample_ += options_.timeline_interval) {
            if (next_sample_ + options_.timeline_interval <= out_.first_arrival) continue;
            const bool before = next_sample_ < out_.first_arrival;  // nothing had come yet
            for (std::size_t r = 0; r < replicas_.size(); ++r) {
                const Replica& replica = replicas_[r];
                TimelineSample sample;
                sample.at = next_sample_;
                sample.replica = static_cast<std::int32_t>(r);
                if (before) {
                    out_.timeline.push_back(sample);
                    continue;
                }
                sample.running = static_cast<std::int64_t>(replica.machine->running().size());
                sample.waiting = static_cast<std::int64_t>(replica.machine->waiting().size());
                sample.kv_blocks_used = replica.machine->used_blocks();
                if (replica.executing) {
                    sample.step = replica.executing->duration;
                    sample.batch_tokens = replica.executing->batch.record.total_tokens;
                    sample.prefill_tokens = replica.executing->prefill_tokens;
                    sample.decode_tokens = replica.executing->decode_tokens;
                }
                sample.preemptions = replica.preemptions;
                for (const RequestId id : replica.machine->running()) {
                    const NaiveRequest& request = replica.machine->request(id);
                    const auto slots =
                        replica.machine->unfilled(request, request.prompt_tokens + tracked_[request.number].max_tokens - 1);
                    sample.reserved_slots += slots.first;
                    sample.internal_slots += slots.second;
                }
                out_.timeline.push_back(sample);
            }
        }
    }

    // ---- the end ----

    void finish() {
        if (options_.window > SimDuration::zero() && !out_.requests.empty()) {  // the last one includes its end
            if (out_.window_marks.size() > 1 && out_.window_marks.back().at == now_) out_.window_marks.pop_back();
            mark();
        }
        bool unfinished = false;
        for (const Tracked& t : tracked_) unfinished = unfinished || t.in_system;
        if (unfinished || out_.counters.completed + out_.counters.timed_out + out_.counters.cancelled == 0) {
            out_.end = now_;  // stalled, or everything was rejected: the last event
        } else {
            out_.integrals = at_last_completion_;  // rejections may follow it
        }
        sample_timeline(now_ + SimDuration(1));
        for (const RequestRecord& record : out_.requests) {
            if (record.finish == FinishReason::length && record.arrival + record.e2e <= out_.last_arrival) {
                ++out_.counters.completed_by_last_arrival;
            }
        }
        if (options_.latency_from_intended && !out_.client_queue.empty()) {
            out_.counters.waiting_at_last_arrival = 0;
            for (std::size_t i = 0; i < tracked_.size(); ++i) {
                const Tracked& t = tracked_[i];
                if (out_.requests[i].finish == FinishReason::rejected) continue;
                const bool started = t.admitted_at && *t.admitted_at <= out_.last_arrival;
                const bool left = t.left_at && *t.left_at <= out_.last_arrival;
                if (!started && !left) ++out_.counters.waiting_at_last_arrival;
            }
        }
        for (const auto& [second, tokens] : tokens_in_second_) {
            out_.counters.max_output_tokens_per_s = std::max(out_.counters.max_output_tokens_per_s, tokens);
        }
        for (std::size_t i = 0; options_.itl_per_request && i < tracked_.size(); ++i) {
            std::vector<std::int64_t>& gaps = tracked_[i].gaps;
            SimDuration p99(-1);
            if (!gaps.empty() && out_.requests[i].finish == FinishReason::length) {
                std::sort(gaps.begin(), gaps.end());
                const double rank = static_cast<double>(gaps.size() - 1) * 0.99;
                const auto below = static_cast<std::size_t>(rank);
                const auto low = static_cast<double>(gaps[below]);
                const auto high = static_cast<double>(gaps[std::min(below + 1, gaps.size() - 1)]);
                const double part = rank - static_cast<double>(below);
                p99 = SimDuration(std::llround(part < 0.5 ? low + (high - low) * part : high - (high - low) * (1 - part)));
            }
            out_.itl_p99.push_back(p99);
        }
        if (out_.counters.rejected > 0 && out_.counters.rejected == out_.counters.arrivals) throw UserError("no request fits");
        if (!unfinished) return;
        for (std::size_t r = 0; r < replicas_.size(); ++r) {
            out_.stall_report += "replica " + std::to_string(r) + ": " + "stalled\n";
        }
    }

    const SimulationOptions& options_;
    const EngineArgs& args_;
    const StepTimeModel& step_time_;
    Router& router_;
    Workload& workload_;
    LoopMutation loop_mutation_;

    SimTime now_{};
    std::vector<Replica> replicas_;
    std::vector<Tracked> tracked_;  ///< by RequestId
    std::vector<RequestId> in_front_end_;
    Outcome out_;
    Integrals at_last_completion_;
    std::int64_t finished_at_this_end_ = 0;
    std::map<std::int64_t, std::int64_t> tokens_in_second_;
    SimTime next_sample_{};
    SimTime next_mark_{};
};

}  // namespace

Outcome naive_simulate(const SimulationOptions& options, const StepTimeModel& step_time, Router& router, Workload& workload,
                       Mutation mutation, LoopMutation loop_mutation) {
    const MakeMachine make = [mutation](const EngineArgs& args) { return std::make_unique<NaiveEngine>(args, mutation); };
    return NaiveSimulation(options, step_time, router, workload, make, loop_mutation).run();
}

Outcome naive_simulate(const SimulationOptions& options, const StepTimeModel& step_time, Router& router, Workload& workload,
                       const MakeMachine& make) {
    return NaiveSimulation(options, step_time, router, workload, make, LoopMutation::none).run();
}

}  // namespace kvsim::oracle
