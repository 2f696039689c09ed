// THE MAIN LOOP. Simulation::run: take the earliest instant at which anything happens; results arrive, requests arrive, steps
// start.

#include "kvsim/engine/simulation.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <queue>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "kvsim/base/check.hpp"
#include "kvsim/base/rank.hpp"
#include "kvsim/base/ring.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/engine/counted_kv.hpp"
#include "kvsim/engine/replica.hpp"
#include "kvsim/engine/request_totals.hpp"
#include "kvsim/engine/token_meter.hpp"
#include "kvsim/model/token_ids.hpp"

namespace kvsim {
namespace {

/// Of timeline.csv; some 2 GB of memory.
constexpr std::size_t max_timeline_samples = 20'000'000;
/// Of windows.csv.
constexpr std::size_t max_windows = 1'000'000;
/// Reserved where nobody knows how many requests will come: while a table of records grows it is there twice, and what is not
/// touched takes no memory.
constexpr std::size_t unknown_requests = std::size_t{1} << 20;
/// In a closed loop, whose clients may send again for ever without time going on.
constexpr std::int64_t most_turned_away_at_once = 10'000'000;

/// As base/rank.hpp, to the nanosecond.
SimDuration interpolated(std::vector<std::int64_t>& values, double q) {
    const auto n = static_cast<std::int64_t>(values.size());
    const Rank rank = quantile_rank(n, q);
    const auto low = values.begin() + rank.below;
    std::nth_element(values.begin(), low, values.end());
    const std::int64_t next = rank.below + 1 < n ? *std::min_element(low + 1, values.end()) : *low;
    const double at = interpolate(static_cast<double>(*low), static_cast<double>(next), rank.fraction);
    return SimDuration(static_cast<std::int64_t>(std::floor(at + 0.5)));
}

/// `Kv`: what the fast form keeps its blocks with, void: the per-request form. `one`: a single replica. Both are known to the
/// compiler, because the loop is most of a run.
template <class Kv, bool one>
class Simulation final : private EngineListener {
    static constexpr bool fast = !std::is_void_v<Kv>;
    using AnyEngine = std::conditional_t<fast, FastEngine<Simulation, Kv>, Engine>;
    friend AnyEngine;  // it calls what the listener overrides

public:
    Simulation(const SimulationOptions& options, const StepTimeModel& step_time, Router& router, Workload& workload)
        : options_(options),
          router_(router),
          workload_(workload),
          closed_loop_(options.max_concurrency.has_value() || workload.closed_loop()),
          listens_(workload.listens()),
          may_cancel_(workload.may_cancel()),
          may_branch_(workload.may_branch()),
          tokens_(out_, measures_some_),
          loads_(static_cast<std::size_t>(options.replicas)),
          last_instant_(end_of_time.time_since_epoch() / options.replicas) {
        out_.usable_blocks = options.engine.usable_blocks();
        out_.block_size = options.engine.block_size;
        out_.replicas = options.replicas;
        out_.slots_per_block = slots_per_block(options.engine);
        out_.may_share = workload.may_branch();
        KVSIM_CHECK(options.keep_requests || (!may_cancel_ && !options.latency_from_intended && !options.itl_per_request),
                    "what clients wait for is looked up in the records");
        if (!options.keep_requests) {
            totals_ = std::make_shared<RequestTotals>();
            if (options.warmup_time || options.warmup_requests) totals_all_ = std::make_shared<RequestTotals>();
            out_.requests.resize(first_pool_size);
            record_mask_ = first_pool_size - 1;
        } else if (const auto n = workload.size_hint()) {
            reserve_requests(*n);
        } else {
            out_.requests.reserve(unknown_requests);
        }
        for (std::int64_t i = 0; i < options.replicas; ++i) add_replica(i, step_time);
        for (const auto& replica : replicas_) replica->start_cold(options.cold_start);
        if (options.itl_per_request) {
            for (const auto& replica : replicas_) replica->keep_gaps();
        }
        if (options.note_head_blocking) {
            for (const auto& replica : replicas_) replica->note_head_blocking();
        }
        look_up_arrival();
    }

    Outcome run() {
        try {
            loop();
        } catch (const EngineCrash& crash) { crash_ = crash.what(); }
        close();
        return std::move(out_);
    }

private:
    using ReplicaType = Replica<AnyEngine>;
    using Request = typename AnyEngine::Request;
    /// What the fast form does not take (fast_form()), so that the compiler leaves it out there.
    struct False {
        explicit False(bool given) { KVSIM_CHECK(!given, "the fast form takes no such run"); }
        constexpr explicit operator bool() const { return false; }
    };
    using PerRequestBool = std::conditional_t<fast, False, bool>;
    static constexpr int most_in_a_row = 64;  // then the user's interrupt is looked for

    void loop() {
        for (SimTime next = next_time(); next != never; next = next_time()) {
            KVSIM_CHECK(next >= now_, "time never goes backwards");
            move_clock(next);
            finish_steps();
            if (may_cancel_) give_up();
            if (next_request() <= now_) take_arrivals_now();
            start_steps();
            // While a step is in flight a request can do no more than join the queue, so its arrival takes no turn of the loop.
            for (int i = 0; i <= most_in_a_row; ++i) {
                run_ahead();
                if (!one || !take_arrivals_in_flight()) break;
            }
            heed_interrupt();
            if ((++events_ & 255) == 0 || stuck()) look_around();
            if (livelocked_) break;
        }
    }

    void heed_interrupt() const {
        if (options_.stop && options_.stop->load(std::memory_order_relaxed)) throw Interrupted{};
    }

    void add_replica(std::int64_t index, const StepTimeModel& step_time) {
        typename ReplicaType::StepSink sink;
        if (options_.on_step) sink = [this, index](const StepRecord& record) { options_.on_step(index, record); };
        if constexpr (fast) {
            replicas_.push_back(std::make_unique<ReplicaType>(options_.engine, *this, step_time, out_.integrals, out_.counters,
                                                              std::move(sink), out_.integrals, tokens_));
        } else {
            EngineListener& listener = *this;
            replicas_.push_back(std::make_unique<ReplicaType>(options_.engine, listener, step_time, out_.integrals,
                                                              out_.counters, std::move(sink)));
        }
    }

    template <class Action>
    void each_replica(Action&& action) {
        if constexpr (one) {
            action(*replicas_.front());
        } else {
            for (const auto& replica : replicas_) action(*replica);
        }
    }

    // Order of equal times: results, then clients that give up, then arrivals, then step starts: what is there in time counts,
    // and a step sees everything that is known at its instant.
    [[nodiscard]] SimTime next_time() {
        SimTime next = next_request();
        if (may_cancel_) next = std::min(next, next_deadline());
        each_replica([&next](ReplicaType& replica) { next = std::min(next, replica.next_time()); });
        return next;
    }

    /// When the next request arrives or leaves the front end.
    [[nodiscard]] SimTime next_request() { return std::min(next_joining_, std::max(now_, next_arrival())); }
    void look_up_joining() { next_joining_ = joining_.empty() ? never : joining_.front().at; }

    void reserve_requests(std::int64_t count) {
        try {
            out_.requests.reserve(static_cast<std::size_t>(count));
        } catch (const std::bad_alloc&) {
            throw UserError("error: out of memory: " + std::to_string(count) + " requests need " +
                            std::to_string(count * std::int64_t{sizeof(RequestRecord)} / GiB) +
                            " GiB for their records alone; lower workload.requests");
        }
    }

    void move_clock(SimTime now) {
        if (now > calm_until_) look_at_clock(now);
        now_ = now;
    }

    /// A sample or mark is due before anything happens at `now`, or the time is over.
    [[gnu::noinline]] void look_at_clock(SimTime now) {
        if (now > next_sample_) sample_timeline(now);
        if (now >= next_mark_) mark_windows(now);
        if (now > last_instant_) {
            throw UserError("error: simulated time passes 146 years" +
                            std::string(replicas_.size() > 1 ? " of all replicas together" : "") +
                            ": a step takes, or requests lie, too long");
        }
        stay_calm();
    }
    void stay_calm() { calm_until_ = std::min({last_instant_, next_sample_, next_mark_ - SimDuration(1)}); }

    /// One more (or less) in the system from `at` on. The integral of their number is the number times the end less the sum of
    /// its changes, each times its instant.
    void count_in_system(std::int64_t more, SimTime at) {
        in_system_ += more;
        out_.integrals.in_system_dt -= more * static_cast<Int128>(at.time_since_epoch().count());
    }
    [[nodiscard]] Int128 in_system_until(SimTime at) const {
        return out_.integrals.in_system_dt + static_cast<Int128>(in_system_) * at.time_since_epoch().count();
    }

    [[gnu::noinline]] void finish_steps() {
        if (may_cancel_) {  // a step may end when all its requests have gone
            each_replica([this](const ReplicaType& replica) {
                if (replica.next_time() == now_) out_.end = now_;
            });
        }
        each_replica([this](ReplicaType& replica) { replica.finish_step(now_); });
    }

    [[gnu::always_inline]] void take_arrivals(SimTime calm_before) {
        while (next_joining_ <= now_) {
            Joining& next = joining_.front();
            in_front_end(next, -1);
            enter(next.replica, next.request);
            joining_.pop_front();
            look_up_joining();
        }
        while (next_arrival() <= now_) take_arrival(calm_before);
    }

    [[gnu::noinline]] void take_arrivals_now() { take_arrivals(SimTime{}); }

    struct Joining {
        SimTime at;
        std::size_t replica = 0;
        Request request;
    };

    /// `more`: 1 as it comes, -1 as it leaves. Only routers ask.
    void in_front_end(const Joining& request, std::int64_t more) {
        if constexpr (one) return;
        ReplicaLoad& load = loads_[request.replica];
        if (const Family* const family = family_of(request.request.id)) more *= family->n;
        load.requests += more;
        load.tokens += more * (request.request.prompt + request.request.max_tokens - 1);
    }

    void enter(std::size_t replica, Request& request) {
        if (replicas_[replica]->queue_full()) return turn_away(request.id);
        if constexpr (!fast) {
            if (Family* const family = family_of(request.id)) return enter_family(replica, request, *family);
        }
        const Slot slot = replicas_[replica]->enqueue(request, now_);
        if (may_cancel_) slots_[request.id] = slot;
    }

    // ---- several outputs of one prompt, where the engine makes a request of each (vLLM: ParentRequest; V0 from 0.6.4 on:
    // ParallelSampleSequenceGroup). To its client they are one: from the first token of any of them to the last of all.
    struct Family {
        std::int64_t n = 1;
        std::int64_t left = 1;       ///< have not left
        std::int64_t outputs = 0;    ///< tokens of those that have
        std::int64_t scheduled = 0;  ///< likewise
        bool dropped = false;        ///< one of them at least
        std::vector<Slot> slots;
        std::vector<std::int64_t> gaps;
    };

    /// All of them join at once, so no slot is handed on from one to another.
    void enter_family(std::size_t replica, const NewRequest& request, Family& family) {
        const bool v0 = options_.engine.batching == "vllm-v0";
        const std::string name = request.tie_id.empty() ? std::to_string(request.id) : request.tie_id;
        for (std::int64_t k = 0; k < family.n; ++k) {
            NewRequest child = request;
            // They share the prompt, and nothing they generate. Priority ties go by the names the engine gives them.
            if (child.content.empty()) child.content.push_back({own_prompt_base(request.id), request.prompt});
            child.output_base = branch_output_base(request.output_base, k, request.max_tokens);
            child.tie_id = v0 ? name + "_parallel_sample_" + std::to_string(k) : std::to_string(k) + "_" + name;
            family.slots.push_back(replicas_[replica]->enqueue(child, now_));
        }
        if (may_cancel_) slots_[request.id] = family.slots.front();
    }

    void tell_workload(RequestId id, SimTime now, FinishReason reason, std::int64_t outputs) {
        if (!leaving_matters_) return;
        if (listens_) workload_.finished(id, now, reason, outputs);
        if (closed_loop_) look_up_arrival();
    }

    /// Null: an ordinary request.
    [[nodiscard]] Family* family_of(RequestId id) {
        if (!may_branch_) return nullptr;
        const auto found = families_.find(id);
        return found == families_.end() ? nullptr : &found->second;
    }

    /// One of them has left; true: it was the last, and `outputs` becomes the sum.
    bool last_of(Family& family, std::int64_t& outputs) {
        family.outputs += outputs;
        if (--family.left > 0) return false;
        outputs = family.outputs;
        return true;
    }

    Aborted abort(RequestId id, std::size_t replica) {
        const Family* const family = family_of(id);
        if (family == nullptr) return replicas_[replica]->abort(slots_[id], now_);
        Aborted all{family->outputs, family->scheduled};
        for (const Slot slot : family->slots) {
            if (!replicas_[replica]->holds(slot, id)) continue;
            const Aborted work = replicas_[replica]->abort(slot, now_);
            all.outputs += work.outputs;
            all.scheduled += work.scheduled;
        }
        families_.erase(id);
        return all;
    }

    /// Those before the end of the step in progress, which is the only replica's; whether there were any.
    bool take_arrivals_in_flight() {
        const SimTime end = replicas_.front()->next_time();
        SimTime next = next_request();
        if (end == never || next >= end) return false;
        for (; next < end; next = next_request()) {
            move_clock(next);
            take_arrivals(end);
        }
        return true;
    }

    [[gnu::noinline]] void start_steps() {
        each_replica([this](ReplicaType& replica) { replica.start_step(now_); });
    }

    /// Steps in which nobody comes or goes concern one replica alone, so each may pass through its own up to the next arrival
    /// or sample.
    [[gnu::always_inline]] void run_ahead() {
        SimTime horizon = std::min(calm_until_ + SimDuration(1), next_joining_);
        const SimTime arrival = next_arrival();
        // One replica is chosen whatever its state, so plain steps may pass arrivals as long as nobody joins its queue.
        if (arrival < horizon) horizon = one ? std::min(horizon, arrival + options_.api) : arrival;
        if constexpr (one) {
            // What an arrival finds depends on who waits and who has finished; in a closed loop a finish brings the next one.
            const SimTime at = replicas_.front()->template run_ahead<true>(now_, horizon, arrival, !closed_loop_);
            if (at > now_) move_clock(at);
            return;
        }
        if constexpr (!fast) {
            // Of several replicas one may die (EngineCrash), which ends the run: the others must not be beyond that instant.
            // What blocks are saved by sharing is only known step by step.
            if (options_.form == EngineForm::per_request || replicas_.size() > 1 || may_branch_) return;
            if (options_.note_head_blocking && !replicas_.front()->head_blocking_is_settled()) return;
            if (may_cancel_) horizon = std::min(horizon, next_deadline());
        }
        // Tokens are counted second by second over all replicas.
        if (started_ && replicas_.size() > 1) horizon = std::min(horizon, tokens_.end_of_second(now_));
        for (const auto& replica : replicas_) {
            SimTime until = horizon;
            if (closed_loop_) {  // what finishes elsewhere may bring an arrival forward
                for (const auto& other : replicas_) {
                    if (other != replica) until = std::min(until, other->next_time());
                }
            }
            replica->template run_ahead<false>(now_, until, until, false);
        }
    }

    // ---- arrivals
    /// Intended time of the workload's next request, or never if there is none or it has to wait for another to leave.
    [[nodiscard]] SimTime next_arrival() const { return upcoming_; }
    /// It changes when one is taken, and in a closed loop when one leaves.
    void look_up_arrival() {
        if (options_.max_concurrency && in_system_ >= *options_.max_concurrency) {
            upcoming_ = never;
            return;
        }
        if (plain_.empty()) {
            heed_interrupt();  // arrivals without end may come at one instant, or while one step is in flight
            plain_ = workload_.take_plain();
        }
        if (!plain_.empty()) {
            upcoming_ = plain_.front().time;
            return;
        }
        const std::optional<SimTime> next = workload_.next_time();
        upcoming_ = next ? *next : never;
    }
    /// Whether it is a plain one.
    bool pop_arrival() {
        if (plain_.empty()) {
            workload_.pop(arrival_);
            return false;
        }
        const PlainArrival& next = plain_.front();
        arrival_.time = next.time;
        arrival_.prompt_tokens = next.prompt_tokens;
        arrival_.output_tokens = next.output_tokens;
        if constexpr (std::is_same_v<Request, NewRequest>) arrival_.prompt.clear();
        if constexpr (!fast) arrival_.output_base = own_output_base(static_cast<RequestId>(out_.counters.arrivals));
        plain_ = plain_.subspan(1);
        return true;
    }

    /// `calm_before`: until then nothing else happens, for all this function knows.
    [[gnu::always_inline]] void take_arrival(SimTime calm_before) {
        const bool plain = pop_arrival();
        look_up_arrival();
        if (!started_) begin();
        const auto id = static_cast<RequestId>(out_.counters.arrivals++);

        RequestRecord& record = new_record(id);
        const bool on_time = arrival_.time == now_;
        record.arrival = !on_time && options_.latency_from_intended ? std::min(arrival_.time, now_) : now_;
        record.prompt_tokens = static_cast<std::int32_t>(arrival_.prompt_tokens);
        if (measures_some_) record.measured = is_measured(id, record.arrival);
        if (!plain && arrival_.attempt > 0) ++out_.counters.retries;
        if ((!on_time || (!plain && arrival_.is_marked())) && options_.keep_requests) note_names(id);
        if (may_cancel_) slots_.push_back(no_slot);
        bool early = false;
        if (may_cancel_ && out_of_patience(arrival_)) {
            leave_unsent(id, record);
        } else if (fits(arrival_)) {
            if (may_cancel_) note_deadlines(id, record.arrival);
            early = issue(id, record, std::min(calm_before, upcoming_));
        } else {
            reject(id);
        }
        if (upcoming_ == never || closed_loop_) note_last_arrival(record.arrival);
        if (early) {
            move_clock(early_.at);
            enter(0, early_.request);
        }
    }

    /// It may have been the last one; an open loop knows.
    [[gnu::noinline]] void note_last_arrival(SimTime arrival) {
        out_.last_arrival = std::max(out_.last_arrival, arrival);
        completed_by_last_arrival_ = out_.counters.completed;
        out_.counters.waiting_at_last_arrival = 0;
        each_replica([this](ReplicaType& replica) { out_.counters.waiting_at_last_arrival += replica.waiting_count(); });
        if (closed_loop_) look_up_arrival();
    }

    [[nodiscard]] bool is_measured(RequestId id, SimTime arrival) const {
        return !(options_.warmup_time && arrival - out_.first_arrival < *options_.warmup_time) &&
               !(options_.warmup_requests && id < *options_.warmup_requests) &&
               !(options_.measured_end && id >= *options_.measured_end);
    }

    /// What only some requests have.
    [[gnu::noinline]] void note_names(RequestId id) {
        const std::size_t rows = out_.requests.capacity();
        if (!arrival_.external_id.empty()) out_.external_ids.set(id, arrival_.external_id, rows);
        if (!arrival_.request_class.empty()) out_.classes.set(id, arrival_.request_class, rows);
        if (!arrival_.session_id.empty()) out_.sessions.set(id, arrival_.session_id, rows);
        if (!arrival_.tenant.empty()) out_.tenants.set(id, arrival_.tenant, rows);
        out_.attempts.add(id, arrival_.attempt, rows);
        if (const SimDuration waited = now_ - arrival_.time; waited > SimDuration::zero() && options_.note_client_queue)
            note_client_queue(id, waited);
    }

    void note_client_queue(RequestId id, SimDuration waited) {
        if (out_.client_queue.empty() && out_.requests.capacity() > id)
            out_.client_queue.reserve(out_.requests.capacity() - id);
        out_.client_queue.append(id, waited);
    }

    /// Routes a request that fits; it joins its replica's queue when the front end is done with it. True: nothing comes before
    /// that, and it stands in early_.
    [[nodiscard]] bool issue(RequestId id, RequestRecord& record, SimTime calm_before) {
        const std::size_t target = route();
        record.replica = static_cast<std::uint16_t>(target);
        count_in_system(1, record.arrival);
        out_.counters.max_in_system = std::max(out_.counters.max_in_system, in_system_);

        SimDuration front = options_.api;
        if (tokenizes_) {
            const SimDuration tokenizer = tokenize(arrival_.prompt_tokens);
            record.queue = unscheduled - tokenizer;
            front += tokenizer;
        }
        if (may_branch_ && arrival_.n > 1) branch(id);
        const SimTime joins = now_ + front;
        const bool at_once = joins <= now_ && joining_.empty();
        const bool early = one && joins < calm_before && next_joining_ == never && !at_once;
        Joining& joining = at_once || early ? early_ : joining_.push_back();
        joining.at = joins;
        if (next_joining_ == never && !at_once && !early) next_joining_ = joins;
        joining.replica = target;
        Request& request = joining.request;
        request.id = id;
        request.prompt = arrival_.prompt_tokens;
        request.max_tokens = std::min(arrival_.output_tokens, options_.engine.output_limit(arrival_.prompt_tokens));
        request.measured = record.measured;
        if constexpr (std::is_same_v<Request, NewRequest>) {
            if (!fast || options_.engine.enable_prefix_caching) request.content.swap(arrival_.prompt);
        }
        if constexpr (!fast) tell_more(request);
        if (at_once) {
            enter(target, request);
        } else {
            in_front_end(joining, 1);
        }
        return early;
    }

    /// What the fast engine does not ask for.
    void tell_more(NewRequest& request) {
        request.priority = arrival_.priority;
        request.arrival_rank = request.id;
        request.arrival = now_;
        if (request.tie_id != arrival_.external_id) request.tie_id = arrival_.external_id;
        request.output_base = arrival_.output_base;
        request.sequences = forks_ ? arrival_.n : 1;
        request.beam_seed = arrival_.beam_seed;
        if (labelled_) {
            request.request_class = arrival_.request_class;
            request.tenant = arrival_.tenant;
        }
    }

    void branch(RequestId id) {
        if (options_.engine.batching == "sglang") {
            throw UserError(
                "request " + (arrival_.external_id.empty() ? std::to_string(id) : arrival_.external_id) + " asks for " +
                std::to_string(arrival_.n) +
                " outputs: SGLang first runs such a prompt alone to cache it and then sends it n times, which preset "
                "sglang does not do; presets vllm-v1 and vllm-v0 do what their engines do");
        }
        if (forks_) return;
        if (arrival_.beam_seed != 0) {
            throw UserError("request " + (arrival_.external_id.empty() ? std::to_string(id) : arrival_.external_id) +
                            " asks for beam search, which batching " + options_.engine.batching +
                            " does not have: vLLM ran it in the engine until 0.6.3 (preset: vllm-v0 with version: "
                            "vllm-0.6.3-v0); later engines leave it to their clients, which send every step of every beam as "
                            "a request");
        }
        Family& family = families_[id];
        family.n = family.left = arrival_.n;
    }

    /// What the tokenizer delays a request that arrives now, its queue and its own time.
    SimDuration tokenize(std::int64_t tokens) {
        constexpr double longest = 1e18;
        const double ns = options_.tokenizer_ns + options_.tokenizer_ns_per_token * static_cast<double>(tokens);
        tokenizer_free_ = std::max(tokenizer_free_, now_);
        // Beyond the end of time the clock complains.
        const auto own = SimDuration(std::llround(std::min(ns, longest)));
        tokenizer_free_ = tokenizer_free_ > last_instant_ ? tokenizer_free_ : tokenizer_free_ + own;
        return tokenizer_free_ - now_;
    }

    [[nodiscard]] std::size_t route() {
        if constexpr (one) return 0;
        routed_by_ = loads_;
        for (std::size_t i = 0; i < replicas_.size(); ++i) {
            const ReplicaState state = replicas_[i]->state();
            routed_by_[i].requests += state.unfinished;
            routed_by_[i].tokens += state.outstanding_tokens;
        }
        const std::size_t target = router_.pick(arrival_, routed_by_);
        KVSIM_CHECK(target < replicas_.size(), "a router picks an existing replica");
        return target;
    }

    void begin() {
        started_ = true;
        out_.first_arrival = now_;
        out_.end = now_;
        tokens_.start(now_);
        for (const auto& replica : replicas_) replica->begin(now_);
        if (options_.timeline_interval > SimDuration::zero()) {
            const std::int64_t interval = options_.timeline_interval.count();
            next_sample_ = SimTime(SimDuration(now_.time_since_epoch().count() / interval * interval));
            sample_timeline(now_);  // the one before the first arrival
        }
        if (options_.window > SimDuration::zero()) {
            const std::int64_t window = options_.window.count();
            next_mark_ = SimTime(SimDuration(now_.time_since_epoch().count() / window * window));
            mark_windows(now_);
        }
        stay_calm();
    }

    // The engine's front end refuses such requests; one more token than the prompt must fit. Whom an empty engine would not
    // start, for the blocks it keeps free, would hold up all behind it for ever.
    [[nodiscard]] bool fits(const Arrival& arrival) {
        if (guaranteed_ && !fits_to_its_end(arrival)) return false;
        if (arrival.prompt_tokens <= longest_fitting_) return true;
        const bool fits = options_.engine.output_limit(arrival.prompt_tokens) >= 1 &&
                          (options_.engine.max_prompt_len == 0 || arrival.prompt_tokens <= options_.engine.max_prompt_len) &&
                          admission_blocks(options_.engine, arrival.prompt_tokens + 1) <= out_.usable_blocks &&
                          admission_blocks(options_.engine, options_.engine.tokens_at_start(arrival.prompt_tokens)) <=
                              out_.usable_blocks - options_.engine.watermark_blocks();
        if (fits) longest_fitting_ = arrival.prompt_tokens;
        return fits;
    }

    /// Where nobody may lose blocks, who could not hold all its own is refused too.
    [[nodiscard]] bool fits_to_its_end(const Arrival& arrival) const {
        const EngineArgs& args = options_.engine;
        const std::int64_t outputs = std::min(arrival.output_tokens, args.output_limit(arrival.prompt_tokens));
        return admission_blocks(args, args.longest_final(arrival.prompt_tokens, outputs)) <=
               out_.usable_blocks - args.watermark_blocks();
    }

    /// What a start leaves free, the scheduler's own rule included.
    [[nodiscard]] std::int64_t kept_blocks() const {
        const EngineArgs& args = options_.engine;
        if (args.batching != "vllm-v0") return args.watermark_blocks();
        return static_cast<std::int64_t>(args.watermark * static_cast<double>(args.num_gpu_blocks));
    }

    /// For messages that tell how many blocks there are.
    [[nodiscard]] std::string kept_free() const {
        const std::int64_t kept = kept_blocks();
        if (kept == 0) return {};
        return ", of which engine.watermark keeps " + std::to_string(kept) + " free when a request starts";
    }

    void reject(RequestId id) {
        record(id).finish = FinishReason::rejected;
        const std::int64_t prompt = record(id).prompt_tokens;
        shortest_rejected_ = std::min(shortest_rejected_, prompt);
        if (out_.counters.rejected++ == 0) {
            const std::string name = arrival_.external_id.empty() ? std::to_string(id) : arrival_.external_id;
            const EngineArgs& args = options_.engine;
            std::string text = "request " + name + " was rejected: its prompt of " + std::to_string(prompt) +
                               " tokens needs max_model_len > " + std::to_string(prompt) + " (it is " +
                               std::to_string(args.max_model_len) + ") and " +
                               std::to_string(ceil_div(prompt + 1, args.block_size)) + " blocks (" +
                               std::to_string(out_.usable_blocks) + " are usable" + kept_free() + ")";
            if (args.max_prompt_len > 0)
                text += ", and the engine takes prompts of at most " + std::to_string(args.max_prompt_len) + " tokens";
            if (args.guarantees_room())
                text += ", and room for all its output, since nobody may lose blocks (batching " + args.batching + ")";
            out_.warnings.push_back(text + "; later ones are only counted");
        }
        if (totals_) leave(id);
        tell_workload(id, now_, FinishReason::rejected, 0);
    }

    /// The waiting queue is full.
    void turn_away(RequestId id) {
        record(id).finish = FinishReason::rejected;
        ++out_.counters.rejected;
        ++out_.counters.queue_full;
        count_in_system(-1, now_);
        const SimTime arrival = record(id).arrival;
        if (now_ > arrival && options_.keep_requests) out_.unfinished_after[id] = now_ - arrival;
        if (now_ != turned_away_at_) turned_away_now_ = 0;
        turned_away_at_ = now_;
        if (closed_loop_ && ++turned_away_now_ > most_turned_away_at_once) {
            throw UserError("error: engine.max_queued_requests: " + std::to_string(most_turned_away_at_once) +
                            " requests were refused at one instant (" + decimals(to_seconds(now_), 9) +
                            " s): clients that are turned away send again at once; give them workload.users.think_time or "
                            "workload.retry");
        }
        if (totals_) leave(id);
        tell_workload(id, now_, FinishReason::queue_full, 0);
    }

    // ---- clients that give up
    static constexpr Slot no_slot = std::numeric_limits<Slot>::max();  // in the front end

    struct Deadline {
        SimTime at;
        RequestId id = 0;
        bool first_token = false;  // it only counts until the first token
        FinishReason reason = FinishReason::timed_out;
        // For a heap with the earliest in front.
        bool operator<(const Deadline& other) const {
            return std::tie(at, id, reason) > std::tie(other.at, other.id, other.reason);
        }
    };

    void note_deadlines(RequestId id, SimTime from) {
        const auto note = [&](SimDuration after, bool first_token, FinishReason reason) {
            if (after > SimDuration::zero()) deadlines_.push({from + after, id, first_token, reason});
        };
        note(arrival_.timeout, false, FinishReason::timed_out);
        note(arrival_.ttft_timeout, true, FinishReason::timed_out);
        note(arrival_.cancel_after, false, FinishReason::cancelled);
    }

    [[nodiscard]] SimTime next_deadline() {
        while (!deadlines_.empty()) {
            const Deadline& next = deadlines_.top();
            const RequestRecord& record = out_.requests[next.id];
            const bool over = record.finish != FinishReason::unfinished || (next.first_token && record.ttft.count() >= 0);
            if (!over) return next.at;
            deadlines_.pop();
        }
        return never;
    }

    void give_up() {
        while (next_deadline() <= now_) {
            const Deadline due = deadlines_.top();
            deadlines_.pop();
            RequestRecord& record = out_.requests[due.id];
            Aborted work;
            if (slots_[due.id] != no_slot) {
                work = abort(due.id, record.replica);
            } else {
                leave_front_end(due.id);
                if (may_branch_) families_.erase(due.id);
            }
            record.output_tokens = static_cast<std::int32_t>(work.outputs);
            count_in_system(-1, now_);
            leave_unfinished(due.id, record, due.reason, work);
        }
    }

    void leave_front_end(RequestId id) {
        std::size_t at = 0;
        while (joining_[at].request.id != id) ++at;
        in_front_end(joining_[at], -1);
        joining_.erase(at);
        look_up_joining();
    }

    void leave_unfinished(RequestId id, RequestRecord& record, FinishReason reason, const Aborted& work) {
        record.finish = reason;
        out_.end = now_;
        out_.unfinished_after[id] = now_ - record.arrival;
        ++(reason == FinishReason::cancelled ? out_.counters.cancelled : out_.counters.timed_out);
        out_.counters.wasted_tokens += work.scheduled;
        if (work.scheduled > 0) out_.wasted[id] = work.scheduled;
        out_.counters.wasted_output_tokens += work.outputs;
        tell_workload(id, now_, reason, work.outputs);
    }

    /// Whether it waited at the client for longer than it wanted to wait in all.
    [[nodiscard]] bool out_of_patience(const Arrival& arrival) const {
        const SimDuration waited = options_.latency_from_intended ? now_ - arrival.time : SimDuration::zero();
        const auto over = [waited](SimDuration limit) { return limit > SimDuration::zero() && waited >= limit; };
        return over(arrival.timeout) || over(arrival.ttft_timeout) || over(arrival.cancel_after);
    }

    void leave_unsent(RequestId id, RequestRecord& record) {
        out_.integrals.in_system_dt += (now_ - record.arrival).count();
        const SimDuration waited = now_ - arrival_.time;
        const bool cancelled = arrival_.cancel_after > SimDuration::zero() && waited >= arrival_.cancel_after &&
                               (arrival_.timeout <= SimDuration::zero() || arrival_.cancel_after < arrival_.timeout) &&
                               (arrival_.ttft_timeout <= SimDuration::zero() || arrival_.cancel_after < arrival_.ttft_timeout);
        leave_unfinished(id, record, cancelled ? FinishReason::cancelled : FinishReason::timed_out, {});
    }

    /// When the request left the client.
    [[nodiscard]] SimTime sent(RequestId id) {
        const SimTime arrival = record(id).arrival;
        return options_.latency_from_intended ? arrival + client_queue_.of(id) : arrival;
    }

    // ---- records: all of them by id, or those from the oldest live request on in a ring
    static constexpr std::size_t first_pool_size = 1024;

    [[nodiscard]] RequestRecord& record(RequestId id) { return out_.requests[id & record_mask_]; }

    RequestRecord& new_record(RequestId id) {
        if (!totals_) return out_.requests.emplace_back();
        if (id - oldest_ > record_mask_) {
            std::vector<RequestRecord> larger(out_.requests.size() * 2);
            const std::size_t mask = larger.size() - 1;
            RareCounts recomputed;
            for (RequestId i = oldest_; i != id; ++i) {
                larger[i & mask] = record(i);
                recomputed.add(i & mask, recomputed_tokens(i), larger.size());
            }
            out_.requests.swap(larger);
            out_.recomputed_tokens = std::move(recomputed);
            record_mask_ = mask;
        }
        out_.recomputed_tokens.clear(id & record_mask_);
        return record(id) = {};
    }
    [[nodiscard]] std::int32_t recomputed_tokens(RequestId id) const { return out_.recomputed_tokens[id & record_mask_]; }

    /// The record of a request that has left is final.
    void leave(RequestId id) {
        add_to_totals(id);
        while (oldest_ < out_.counters.arrivals && record(oldest_).finish != FinishReason::unfinished) ++oldest_;
    }

    void add_to_totals(RequestId id) {
        if (record(id).measured) totals_->add(record(id), options_.slo, recomputed_tokens(id));
        if (totals_all_) totals_all_->add(record(id), options_.slo, recomputed_tokens(id));
    }

    void close_totals() {
        for (RequestId id = oldest_; id < out_.counters.arrivals; ++id) {  // those a stalled run leaves behind
            if (record(id).finish != FinishReason::unfinished) continue;
            add_to_totals(id);
        }
        out_.requests = {};
        out_.recomputed_tokens = {};
        out_.totals = totals_;
        out_.totals_all = totals_all_;
    }

    // ---- what the engines tell
    void on_admitted(RequestId id, bool resumed, std::int64_t tokens, std::int64_t hit, SimTime now) override {
        Counters& c = out_.counters;
        if (resumed) {
            c.hit_tokens_resume += hit;
            c.tokens_resume += tokens;
            return;
        }
        RequestRecord& record = this->record(id);
        c.hit_tokens_first += hit;
        c.prompt_tokens_first += tokens;
        if (!fast && record.queue > unscheduled) return;  // the first of several outputs counts
        const SimDuration tokenizer = unscheduled - record.queue;
        if (!totals_) out_.cached_prompt_tokens.add(id, static_cast<std::int32_t>(hit), out_.requests.capacity());
        record.queue = now - record.arrival - options_.api - tokenizer;
        if (options_.latency_from_intended && !out_.client_queue.empty()) leave_out_client(record, id);
    }
    [[gnu::noinline]] void leave_out_client(RequestRecord& record, RequestId id) { record.queue -= client_queue_.of(id); }
    void on_recompute(RequestId id, std::int64_t tokens) override {
        out_.recomputed_tokens.add(id & record_mask_, static_cast<std::int32_t>(tokens), out_.requests.capacity());
    }
    void on_preempted(RequestId id) override {
        if (record(id).preemptions++ == 0) ++out_.counters.preempted_requests;
    }
    void on_first_token(RequestId id, SimTime now) override {
        RequestRecord& record = this->record(id);
        if (fast || record.ttft.count() < 0) record.ttft = now - record.arrival;
        tokens_.add(1, now);
    }
    void on_sibling_tokens(std::int64_t count, SimTime now) override { tokens_.add(count, now); }
    void on_dropped(RequestId id, const Aborted& work, SimTime now) override {
        std::int64_t outputs = work.outputs;
        if (Family* const family = family_of(id)) {
            family->dropped = true;
            if (!last_of(*family, outputs)) return;
            families_.erase(id);
        }
        fail(id, outputs, now);
    }
    void fail(RequestId id, std::int64_t outputs, SimTime now) {
        RequestRecord& record = this->record(id);
        record.output_tokens = static_cast<std::int32_t>(outputs);
        record.finish = FinishReason::failed;
        count_in_system(-1, now);
        if (out_.counters.dropped++ == 0) {
            out_.warnings.push_back("request " + std::to_string(id) + " was given up by the engine after " +
                                    std::to_string(outputs) + " output tokens: " + why_never(record.prompt_tokens + outputs) +
                                    "; later ones are only counted");
        }
        if (record.queue <= unscheduled) {
            ++never_started_;
            shortest_rejected_ = std::min(shortest_rejected_, std::int64_t{record.prompt_tokens});
        }
        out_.end = now;
        if (totals_) leave(id);
        tell_workload(id, now, FinishReason::failed, outputs);
    }
    /// Why a request of so many tokens cannot start (again).
    [[nodiscard]] std::string why_never(std::int64_t tokens) const {
        const EngineArgs& args = options_.engine;
        const std::int64_t blocks = ceil_div(tokens, args.block_size);
        const std::int64_t kept = kept_blocks();
        if (kept > 0 && blocks > out_.usable_blocks - kept && blocks <= out_.usable_blocks)
            return "its " + std::to_string(tokens) + " tokens need " + std::to_string(blocks) + " blocks, and of the " +
                   std::to_string(out_.usable_blocks) + " usable ones engine.watermark keeps " + std::to_string(kept) +
                   " free when a request starts";
        return "with them it is longer than what the engine can ever schedule";
    }
    void on_next_tokens(std::int64_t count, std::int64_t measured, SimDuration gap, SimTime now) override {
        tokens_.next(count, measured, gap, now);
    }
    void on_work(RequestId id, std::int64_t scheduled) override {
        if (Family* const family = family_of(id)) family->scheduled += scheduled;
    }
    void on_finished(RequestId id, std::int64_t outputs, SimTime now) override {
        if (Family* const family = family_of(id)) {
            if (!last_of(*family, outputs)) return;
            const bool dropped = family->dropped;
            families_.erase(id);
            if (dropped) return fail(id, outputs, now);
        }
        RequestRecord& record = this->record(id);
        record.e2e = now - record.arrival;
        record.output_tokens = static_cast<std::int32_t>(outputs);
        record.finish = FinishReason::length;
        ++out_.counters.completed;
        count_in_system(-1, now);
        out_.end = now;
        if (totals_) leave(id);
        tell_workload(id, now, FinishReason::length, outputs);
    }
    void on_gaps(RequestId id, std::vector<std::int64_t>& gaps) override {
        out_.itl_p99.resize(out_.requests.size(), SimDuration(-1));
        if (Family* const family = family_of(id)) {
            family->gaps.insert(family->gaps.end(), gaps.begin(), gaps.end());
            if (family->left > 1) return;
            gaps.swap(family->gaps);
        }
        if (!gaps.empty()) out_.itl_p99[id] = interpolated(gaps, 0.99);
    }

    // ---- samples, progress, the end
    /// The state before `next` is the state after every event up to then: it holds at each multiple of the interval in between,
    /// from the last one up to the first arrival on.
    void sample_timeline(SimTime next) {
        for (; next_sample_ < next; next_sample_ += options_.timeline_interval) {
            if (out_.timeline.size() + replicas_.size() > max_timeline_samples) too_many_samples();
            for (std::size_t i = 0; i < replicas_.size(); ++i) {
                const ReplicaState state = replicas_[i]->sampled_state();
                TimelineSample& s = out_.timeline.emplace_back();
                s.at = next_sample_;
                s.replica = static_cast<std::int32_t>(i);
                s.running = state.running;
                s.waiting = state.waiting;
                s.kv_blocks_used = state.used_blocks;
                s.preemptions = state.preemptions;
                s.step = state.step;
                s.batch_tokens = state.batch_tokens;
                s.decode_tokens = state.decode_rows;
                s.prefill_tokens = s.batch_tokens - s.decode_tokens;
                s.reserved_slots = state.held.reserved;
                s.internal_slots = state.held.internal;
            }
        }
    }

    [[noreturn]] void too_many_samples() const {
        throw UserError("error: output.timeline_interval: timeline.csv would have more than " +
                        std::to_string(max_timeline_samples) + " rows (one each " +
                        decimals(to_seconds(options_.timeline_interval), 9) + " s and replica, " +
                        decimals(to_seconds(now_), 3) +
                        " s simulated so far); make the interval longer, or switch it off with output.timeline: false");
    }

    /// What happens at the end of a window belongs to the next one.
    void mark_windows(SimTime next) {
        for (; next_mark_ <= next; next_mark_ += options_.window) {
            if (out_.window_marks.size() >= max_windows) {
                throw UserError("error: measure.window: windows.csv would have more than " + std::to_string(max_windows) +
                                " windows of " + decimals(to_seconds(options_.window), 9) + " s (" +
                                decimals(to_seconds(now_), 3) + " s simulated so far); make the window longer");
            }
            add_mark(next_mark_);
        }
    }

    void add_mark(SimTime at) {
        WindowMark& mark = out_.window_marks.emplace_back();
        mark.at = at;
        each_replica([&](const ReplicaType& replica) {
            mark.blocks_used_dt += replica.blocks_used_until(at);
            replica.mark_slots(at, mark);
        });
        mark.slots_reserved_dt += out_.integrals.slots_reserved_dt;
        mark.slots_internal_dt += out_.integrals.slots_internal_dt;
        mark.in_system_dt = in_system_until(at);
        mark.steps = out_.counters.steps;
        mark.rows = out_.counters.rows;
        mark.tokens = out_.counters.tokens;
        mark.preemptions = out_.counters.preemptions;
    }

    /// At one instant for ever: no event may follow after which to look around.
    [[nodiscard]] bool stuck() const {
        if constexpr (fast) return false;
        return std::any_of(replicas_.begin(), replicas_.end(), [](const auto& replica) { return replica->livelocked(); });
    }

    /// Now and then: progress, and whether the run can end at all.
    void look_around() {
        if (options_.on_progress && (events_ & 4095) == 0) options_.on_progress(out_, now_);
        for (const auto& replica : replicas_) livelocked_ = livelocked_ || replica->livelocked();
        if (livelocked_ && may_cancel_ && next_deadline() != never) livelocked_ = false;  // somebody will give up
    }

    void close() {
        KVSIM_CHECK(!livelocked_ || in_system_ > 0, "an engine without requests does nothing for ever");
        if (in_system_ > 0) {
            out_.stall_report = stall_report();
            out_.end = now_;
            for (const auto& replica : replicas_) {
                for (const auto& [id, outputs] : replica->left_over()) {
                    record(id).output_tokens += static_cast<std::int32_t>(outputs);
                }
            }
            for (const auto& [id, family] : families_) record(id).output_tokens += static_cast<std::int32_t>(family.outputs);
        }
        if (options_.itl_per_request) out_.itl_p99.resize(out_.requests.size(), SimDuration(-1));
        if (next_mark_ != never) {  // the last window includes its end
            if (out_.window_marks.size() > 1 && out_.window_marks.back().at == now_) out_.window_marks.pop_back();
            add_mark(now_);
        }
        for (const auto& replica : replicas_) replica->settle(out_.end);
        out_.integrals.in_system_dt = in_system_until(now_);
        if (next_sample_ != never) sample_timeline(now_ + SimDuration(1));
        out_.counters.completed_by_last_arrival = completed_by_last_arrival_;
        if (options_.latency_from_intended && !out_.client_queue.empty()) count_at_last_arrival();
        out_.counters.max_output_tokens_per_s = tokens_.peak();
        if (out_.counters.arrivals > 0 && out_.counters.rejected + never_started_ == out_.counters.arrivals) {
            throw UserError("no request fits: every prompt (" + std::to_string(out_.counters.arrivals) +
                            " requests, the shortest of " + std::to_string(shortest_rejected_) +
                            " tokens) is at or above max_model_len " + std::to_string(options_.engine.max_model_len) +
                            " or needs more than the " + std::to_string(out_.usable_blocks) + " usable KV blocks of " +
                            std::to_string(out_.block_size) + " tokens" + kept_free());
        }
        warn_of_unmet_names();
        if (totals_) close_totals();
    }

    /// Weights of tenants of whom no replica has seen a request.
    void warn_of_unmet_names() {
        if constexpr (fast) return;  // no such orders
        std::vector<std::string> unmet = replicas_.front()->unmet_names();
        for (const auto& replica : replicas_) {
            const std::vector<std::string> own = replica->unmet_names();
            std::erase_if(unmet, [&own](const std::string& name) { return std::count(own.begin(), own.end(), name) == 0; });
        }
        std::set<std::string_view> met;
        for (const NameColumn* names : {&out_.tenants, &out_.classes}) {
            for (std::uint32_t number = 1; number <= names->different(); ++number) met.insert(names->name(number));
        }
        const std::vector<std::string_view> candidates(met.begin(), met.end());
        for (const std::string& name : unmet) {
            std::string text = "engine.scheduling_policy: no request is of tenant '";
            text.append(excerpt(name)).append("'");
            if (const std::string_view near = nearest(name, candidates); !near.empty())
                text.append("; did you mean '").append(excerpt(near)).append("'?");
            out_.warnings.push_back(std::move(text));
        }
    }

    /// The last arrival was meant to come before others were sent: what was known when it came tells nothing.
    void count_at_last_arrival() {
        out_.counters.completed_by_last_arrival = 0;
        out_.counters.waiting_at_last_arrival = 0;
        for (RequestId id = 0; id < out_.requests.size(); ++id) {
            const RequestRecord& record = out_.requests[id];
            if (record.finish == FinishReason::length && record.arrival + record.e2e <= out_.last_arrival) {
                ++out_.counters.completed_by_last_arrival;
            } else if (record.finish != FinishReason::rejected) {
                const auto gone = out_.unfinished_after.find(id);
                const bool left = gone != out_.unfinished_after.end() && record.arrival + gone->second <= out_.last_arrival;
                const bool started = record.queue.count() >= 0 && sent(id) + options_.api + record.queue <= out_.last_arrival;
                if (!left && !started) ++out_.counters.waiting_at_last_arrival;
            }
        }
    }

    [[nodiscard]] std::string stall_report() const {
        if (!crash_.empty()) {
            std::string text = "the engine crashes at " + std::to_string(to_seconds(now_)) + " s with '" + crash_ +
                               "': " + std::to_string(in_system_) + " requests are left";
            for (std::size_t i = 0; i < replicas_.size(); ++i) {
                text += "\n  replica " + std::to_string(i) + ": " + replicas_[i]->describe();
            }
            return text + "\n  the real engine raises here and dies";
        }
        std::string text = "stalled at " + std::to_string(to_seconds(now_)) + " s: " + std::to_string(in_system_) +
                           " requests are left, " +
                           (livelocked_ ? "and they preempt each other, or themselves, without ever receiving a token"
                                        : "nothing is due and nothing can be scheduled");
        for (std::size_t i = 0; i < replicas_.size(); ++i) {
            text += "\n  replica " + std::to_string(i) + ": " + replicas_[i]->describe();
        }
        text += "\n  give the engine more KV blocks, or a max_model_len that fits them";
        if (options_.engine.watermark > 0) text += ", or a smaller watermark";
        if (livelocked_ && options_.engine.order_name().starts_with("mlfq"))
            text += ", or mlfq a longer quantum and promote, so that a request gets somewhere before it gives way to another";
        return text;
    }

    /// RequestRecord::queue of a request that was never scheduled; until then less what the tokenizer took.
    static constexpr SimDuration unscheduled{-1};

    const SimulationOptions& options_;
    const bool tokenizes_ = options_.tokenizer_ns > 0 || options_.tokenizer_ns_per_token > 0;
    SimTime tokenizer_free_{};
    Router& router_;
    Workload& workload_;
    bool closed_loop_;
    bool listens_;
    const bool leaving_matters_ = listens_ || closed_loop_;
    const bool measures_some_ = options_.warmup_time || options_.warmup_requests || options_.measured_end;
    PerRequestBool may_cancel_;
    PerRequestBool may_branch_;
    /// The engine itself keeps the outputs of one prompt together.
    const PerRequestBool forks_{options_.engine.batching == "vllm-v0" &&
                                options_.engine.v0.release == VllmV0Args::Release::v0_6_3};
    const PerRequestBool guaranteed_{options_.engine.guarantees_room() && !options_.engine.policy.contiguous()};
    const PerRequestBool labelled_{options_.engine.policy.any()};  // only added policies look at classes and tenants
    Outcome out_;
    DurationColumn::Reader client_queue_{out_.client_queue};
    TokenMeter tokens_;
    std::vector<std::unique_ptr<ReplicaType>> replicas_;
    std::vector<ReplicaLoad> loads_;      // requests still in the front end
    std::vector<ReplicaLoad> routed_by_;  // and those in the engines, for the latest arrival
    SimTime last_instant_;                // so that sums over the replicas fit as well
    Ring<Joining> joining_;               // in the front end, in order of arrival
    Joining early_;
    std::map<RequestId, Family> families_;     // with may_branch_
    std::vector<Slot> slots_;                  // with may_cancel_: by request
    std::priority_queue<Deadline> deadlines_;  // those of requests that left are dropped when they come to the front
    std::shared_ptr<RequestTotals> totals_;    // null: every record is kept
    std::shared_ptr<RequestTotals> totals_all_;
    std::size_t record_mask_ = ~std::size_t{0};
    RequestId oldest_ = 0;  // live, where records are not kept
    std::int64_t longest_fitting_ = 0;
    std::int64_t shortest_rejected_ = INT64_MAX;
    std::int64_t never_started_ = 0;  // given up by the engine without a step
    SimTime turned_away_at_ = never;
    std::int64_t turned_away_now_ = 0;  // at that instant
    Arrival arrival_;
    std::span<const PlainArrival> plain_;  // those to come, where the workload tells several at once
    SimTime upcoming_ = never;
    SimTime now_{};
    SimTime next_sample_ = never;
    SimTime calm_until_ = last_instant_;  // nothing is due on the way there
    SimTime next_joining_ = never;        // of the front of joining_
    SimTime next_mark_ = never;
    bool started_ = false;
    bool livelocked_ = false;
    std::string crash_;           // what the engine died of
    std::int64_t in_system_ = 0;  // issued, neither finished nor rejected
    std::int64_t completed_by_last_arrival_ = 0;
    std::int64_t events_ = 0;
};

bool fast_form(const SimulationOptions& options, const StepTimeModel& step_time, const Workload& workload) {
    const bool exact = !options.itl_per_request && !options.note_head_blocking && !workload.may_cancel() &&
                       !workload.may_branch() && !step_time.needs_context_range() && fast_engine_handles(options.engine) &&
                       (!options.engine.enable_prefix_caching || workload.outputs_are_private());
    KVSIM_CHECK(options.form != EngineForm::fast || exact, "the fast form was asked for where it is not exact");
    return exact && options.form != EngineForm::per_request;
}

}  // namespace

Outcome simulate(const SimulationOptions& options, const StepTimeModel& step_time, Router& router, Workload& workload) {
    if (!fast_form(options, step_time, workload)) return Simulation<void, false>(options, step_time, router, workload).run();
    if (options.replicas == 1 && !options.engine.enable_prefix_caching && !options.on_step)
        return Simulation<CountedKv, true>(options, step_time, router, workload).run();
    if (options.replicas == 1) return Simulation<RunKv, true>(options, step_time, router, workload).run();
    return Simulation<RunKv, false>(options, step_time, router, workload).run();
}

}  // namespace kvsim
