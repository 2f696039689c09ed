// Classes of clients as one workload. What a class will send next stands in a heap by time: arrivals of its process, users done
// thinking, turns of sessions, retries.

#include "kvsim/model/clients.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <utility>

#include "gap_sum.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/ring.hpp"
#include "kvsim/random/distribution.hpp"
#include "kvsim/random/stream.hpp"
#include "kvsim/random/zipf.hpp"

namespace kvsim {

namespace {

constexpr int session_call_bits = 24;  // requests of one session

struct Session;

/// A request that will be sent, is on its way, or may be sent again.
struct Call {
    SimTime time{};  // intended
    std::uint32_t owner = 0;
    std::uint64_t index = 0;  // of its draws
    std::int64_t user = -1;
    std::shared_ptr<Session> session;
    std::uint32_t node = 0;  // in the session
    std::int32_t attempt = 0;
    bool drawn = false;  // what follows is known
    std::int64_t prompt_tokens = 0;
    std::int64_t output_tokens = 0;
    std::int64_t reasoning_tokens = 0;
    std::vector<TokenRun> prompt;
    std::size_t own_run = 0;  // the one of its own tokens; its ids follow from the request's id
    std::string name;         // empty: its number
    SimDuration cancel_after{};
    Arrival recorded;  // of a replayed trace
    RequestId sent_as = 0;
};

/// A request of a session and what it waits for.
struct Node {
    std::size_t step = 0;
    std::vector<std::uint32_t> inputs;      // whose answers it needs; the context's is part of the context
    std::vector<std::uint32_t> dependents;  // who needs its answer
    std::optional<std::uint32_t> context;
    std::size_t open_inputs = 0;
    SimTime ready{};                // when the last of them was there
    std::vector<TokenRun> content;  // its prompt and answer, once there
    std::optional<TokenRun> answer;
};

struct Session {
    std::uint64_t number = 0;
    std::int64_t user = -1;
    std::string name;
    std::vector<Node> nodes;
    std::size_t unanswered = 0;
    std::int64_t on_their_way = 0;
    bool dead = false;  // nothing more will be sent
    bool over = false;
};

struct Class {
    explicit Class(ClientLaws&& from)
        : laws(std::move(from)),
          prompt(laws.seed, "prompt_tokens"),
          output(laws.seed, "output_tokens"),
          reasoning(laws.seed, "reasoning_tokens"),
          group(laws.seed, "prefix_group"),
          group_zipf(laws.seed, "prefix_zipf"),
          group_tokens(laws.seed, "prefix_tokens"),
          documents(laws.seed, "documents"),
          document_count(laws.seed, "documents_per_request"),
          document_tokens(laws.seed, "document_tokens"),
          think(laws.seed, "think_time"),
          first_think(laws.seed, "first_think_time"),
          delay(laws.seed, "step_delay"),
          repeat(laws.seed, "step_repeat"),
          copies(laws.seed, "step_copies"),
          jitter(laws.seed, "jitter"),
          cancel(laws.seed, "cancel"),
          backoff(laws.seed, "retry_backoff") {}

    ClientLaws laws;
    StreamKey prompt, output, reasoning, group, group_zipf, group_tokens, documents, document_count, document_tokens, think,
        first_think, delay, repeat, copies, jitter, cancel, backoff;

    struct Pending {
        SimTime time;
        std::uint64_t sequence;
        std::uint32_t call;
        bool operator<(const Pending& other) const {  // for a heap with the earliest in front
            return time != other.time ? time > other.time : sequence > other.sequence;
        }
    };
    std::vector<Pending> pending;
    std::uint64_t pushed = 0;

    std::optional<SimTime> next_arrival;  // of its process
    std::uint64_t arrivals = 0;
    GapSum gaps;
    double stretch = 1;
    std::optional<std::int64_t> last_arrival;  // with rescale

    std::vector<std::uint64_t> thoughts;  // by user: how often it has thought
    std::uint64_t sessions = 0;
    std::int64_t sent = 0;  // without retries
    std::int64_t on_their_way = 0;
    bool changed = false;  // it stands in Clients::changed_

    [[nodiscard]] bool full() const { return laws.requests && sent >= *laws.requests; }
    [[nodiscard]] bool shares() const { return laws.prefix || laws.documents || laws.sessions || laws.retry; }
};

class Clients final : public Workload {
public:
    Clients(std::vector<ClientLaws> laws, std::optional<std::int64_t> requests) : requests_(requests) {
        for (ClientLaws& l : laws) {
            classes_.emplace_back(std::move(l));
            start(static_cast<std::uint32_t>(classes_.size() - 1));
        }
        follows_ = closed_loop();
        sends_next_.assign(classes_.size(), never);
        all_changed();
    }

    [[nodiscard]] std::optional<SimTime> next_time() override {
        const std::optional<std::size_t> next = next_class();
        if (!next) return std::nullopt;
        return std::max(sends_next_[*next], last_sent_);
    }

    void pop(Arrival& out) override {
        const std::optional<std::size_t> next = next_class();
        KVSIM_CHECK(next, "pop() without a request");
        Class& c = classes_[*next];
        note_change(static_cast<std::uint32_t>(*next));
        const std::uint32_t handle = c.pending.front().call;
        std::pop_heap(c.pending.begin(), c.pending.end());
        c.pending.pop_back();
        Call& call = calls_[handle];
        last_sent_ = std::max(last_sent_, call.time);
        const auto id = static_cast<RequestId>(oldest_ + call_of_.size());
        KVSIM_CHECK(id != std::numeric_limits<RequestId>::max(), "at most 2^32 - 1 requests");
        if (follows_) {
            call_of_.push_back() = handle;
        } else {
            ++oldest_;
        }
        if (call.attempt == 0) {
            if (!call.drawn && c.laws.users) call.index = static_cast<std::uint64_t>(c.sent);
            ++c.sent;
            if (++sent_ == requests_) all_changed();
            if (!call.drawn) draw(c, call);
            call.sent_as = id;
            if (!call.prompt.empty() && call.own_run < call.prompt.size())
                call.prompt[call.own_run].first = own_prompt_base(id);
        }
        ++c.on_their_way;
        if (call.session) ++call.session->on_their_way;
        fill(c, call, id, out);
        if (!follows_) release(handle);
    }

    void finished(RequestId id, SimTime now, FinishReason reason, std::int64_t outputs) override {
        if (!follows_) return;
        const std::uint32_t handle = take_call(id);
        Call& call = calls_[handle];
        Class& c = classes_[call.owner];
        note_change(call.owner);
        --c.on_their_way;
        last_sent_ = std::max(last_sent_, now);
        if (call.session) --call.session->on_their_way;
        const bool worth_another_try = reason == FinishReason::timed_out || reason == FinishReason::queue_full;
        if (worth_another_try && c.laws.retry && call.attempt < c.laws.retry->max_retries &&
            !(call.session && call.session->dead)) {
            call.time = now + backoff(c, call);
            ++call.attempt;
            push(c, handle);
            return;
        }
        const bool answered = reason == FinishReason::length || reason == FinishReason::stop;
        if (call.session) {
            answer(call, id, now, answered, outputs);
        } else if (call.user >= 0) {
            think(call.owner, call.user, now);
        } else if (c.laws.replay) {
            c.laws.replay->finished(static_cast<RequestId>(call.index), now, reason, outputs);
            find_arrival(c);
        }
        release(handle);
    }

    [[nodiscard]] bool closed_loop() const override {
        return any([](const ClientLaws& l) {
            return l.users || l.sessions || l.retry || l.max_concurrency || (l.replay && l.replay->closed_loop());
        });
    }
    [[nodiscard]] bool outputs_are_private() const override {
        return !any([](const ClientLaws& l) { return l.sessions || (l.replay && !l.replay->outputs_are_private()); });
    }
    [[nodiscard]] std::vector<std::string> notes() const override {
        std::vector<std::string> out;
        for (const Class& c : classes_) {
            if (!c.laws.replay) continue;
            const std::vector<std::string> own = c.laws.replay->notes();
            out.insert(out.end(), own.begin(), own.end());
        }
        return out;
    }
    [[nodiscard]] bool may_branch() const override {
        return any([](const ClientLaws& l) { return l.n > 1 || (l.replay && l.replay->may_branch()); });
    }
    [[nodiscard]] bool may_cancel() const override {
        return any([](const ClientLaws& l) {
            return l.timeout > SimDuration::zero() || l.ttft_timeout > SimDuration::zero() || l.cancel_share > 0 ||
                   (l.replay && l.replay->may_cancel());
        });
    }
    [[nodiscard]] std::optional<std::int64_t> size_hint() const override {
        if (any([](const ClientLaws& l) {
                return l.retry || l.duration || l.sessions || (l.arrivals && l.arrivals->info().ends);
            }))
            return std::nullopt;
        if (classes_.size() == 1 && classes_.front().laws.replay) return classes_.front().laws.replay->size_hint();
        std::optional<std::int64_t> sum = 0;
        for (const Class& c : classes_) {
            if (!c.laws.requests) return requests_;
            *sum += *c.laws.requests;
        }
        return requests_ ? std::min(*requests_, *sum) : sum;
    }

    [[nodiscard]] std::optional<std::int64_t> never_thinking_users() const {
        if (classes_.size() != 1 || may_cancel()) return std::nullopt;
        const ClientLaws& l = classes_.front().laws;
        constexpr double nearly_all = 1 - 1e-12;
        if (!l.users || l.sessions || l.retry || l.jitter > SimDuration::zero() || l.users->ramp_up > SimDuration::zero() ||
            l.users->think_time->sample(nearly_all) > SimDuration::zero())
            return std::nullopt;
        return l.users->count;
    }
    /// See beyond_think_times().
    [[nodiscard]] std::string beyond_think_times() const {
        for (const Class& c : classes_) {
            const ClientLaws& l = c.laws;
            const std::string of = l.name.empty() ? std::string() : "class '" + l.name + "': ";
            if (l.replay && l.replay->closed_loop()) return kvsim::beyond_think_times(*l.replay);
            if (l.max_concurrency) return of + "a limit of its concurrency holds requests back";
            if (l.users && l.sessions)
                return of + "a user's sessions follow one another, and a think time only joins the requests of one";
            if (l.users && l.users->think_time->sample(0.5) <= SimDuration::zero())
                return of + "users who send as soon as they have an answer have no session_id to follow";
            if (!l.sessions) continue;
            for (std::size_t s = 0; s < l.sessions->steps.size(); ++s) {
                const StepLaw& step = l.sessions->steps[s];
                const bool next = s == 0 ? step.after.empty() : step.after.size() == 1 && step.after.front() + 1 == s;
                if (step.copies) return of + "copies of step '" + step.name + "' are sent side by side";
                if (!next) return of + "step '" + step.name + "' waits for other requests than the one before it";
            }
        }
        return {};
    }

private:
    template <class Predicate>
    [[nodiscard]] bool any(Predicate&& predicate) const {
        return std::any_of(classes_.begin(), classes_.end(), [&](const Class& c) { return predicate(c.laws); });
    }

    // ---- what comes next
    [[nodiscard]] std::optional<std::size_t> next_class() {
        for (const std::uint32_t owner : changed_) {
            classes_[owner].changed = false;
            sends_next_[owner] = look(owner) ? classes_[owner].pending.front().time : never;
        }
        changed_.clear();
        const auto first = std::min_element(sends_next_.begin(), sends_next_.end());
        if (first == sends_next_.end() || *first == never) return std::nullopt;
        return static_cast<std::size_t>(first - sends_next_.begin());
    }

    void all_changed() {
        for (std::uint32_t owner = 0; owner < classes_.size(); ++owner) note_change(owner);
    }
    /// Of a request that leaves.
    std::uint32_t take_call(RequestId id) {
        const std::uint32_t handle = std::exchange(call_of_[id - oldest_], no_call);
        for (; !call_of_.empty() && call_of_.front() == no_call; ++oldest_) call_of_.pop_front();
        return handle;
    }
    void note_change(std::uint32_t owner) {
        if (std::exchange(classes_[owner].changed, true)) return;
        changed_.push_back(owner);
    }

    /// Whether the class can send; then its next call is at the front of the heap.
    bool look(std::uint32_t owner) {
        Class& c = classes_[owner];
        if (c.laws.max_concurrency && c.on_their_way >= *c.laws.max_concurrency) return false;
        const bool over = c.full() || (requests_ && sent_ >= *requests_);
        if (over) c.next_arrival.reset();
        for (;;) {
            // An arrival can only come later than its process says.
            while (c.next_arrival && (c.pending.empty() || *c.next_arrival < c.pending.front().time)) take_arrival(owner);
            if (c.pending.empty()) return false;
            const Call& call = calls_[c.pending.front().call];
            const bool late = c.laws.duration && call.time.time_since_epoch() > *c.laws.duration;
            if (!late && !(over && call.attempt == 0) && !(call.session && call.session->dead)) return true;
            std::pop_heap(c.pending.begin(), c.pending.end());
            release(c.pending.back().call);
            c.pending.pop_back();
        }
    }

    void push(Class& c, std::uint32_t handle) {
        c.pending.push_back({calls_[handle].time, c.pushed++, handle});
        std::push_heap(c.pending.begin(), c.pending.end());
    }

    std::uint32_t new_call(std::uint32_t owner, SimTime time, std::uint64_t index) {
        std::uint32_t handle = static_cast<std::uint32_t>(calls_.size());
        if (spare_.empty()) {
            calls_.emplace_back();
        } else {
            handle = spare_.back();
            spare_.pop_back();
            calls_[handle] = {};
        }
        calls_[handle].owner = owner;
        calls_[handle].time = time;
        calls_[handle].index = index;
        return handle;
    }
    void release(std::uint32_t handle) {
        calls_[handle].session.reset();
        spare_.push_back(handle);
    }

    /// Uniform in [0, jitter).
    [[nodiscard]] SimDuration jitter(const Class& c, std::uint64_t index) const {
        if (c.laws.jitter <= SimDuration::zero()) return {};
        return SimDuration(
            static_cast<std::int64_t>(c.jitter.first_uniform(index) * static_cast<double>(c.laws.jitter.count())));
    }

    // ---- arrivals
    void start(std::uint32_t owner) {
        Class& c = classes_[owner];
        if (c.laws.users) {
            const UserLaw& users = *c.laws.users;
            c.thoughts.resize(static_cast<std::size_t>(users.count));
            for (std::int64_t u = 0; u < users.count; ++u) {
                // Some of the first thought is over, so that users do not start as one.
                const auto whole = static_cast<double>(thought(c, u).count());
                const auto rest = static_cast<std::int64_t>(whole * c.first_think.first_uniform(static_cast<std::uint64_t>(u)));
                const auto ramp = static_cast<std::int64_t>(static_cast<double>(users.ramp_up.count()) *
                                                            static_cast<double>(u) / static_cast<double>(users.count));
                begin(owner, SimTime(SimDuration(rest + ramp)), u, user_index(c, u));
            }
            return;
        }
        if (c.laws.arrivals && c.laws.arrivals->info().rescale && c.laws.requests) {
            const ArrivalProcess& process = *c.laws.arrivals;
            GapSum sum;
            for (std::int64_t i = 0; i < *c.laws.requests; ++i) sum.add(process.gap_ns(static_cast<std::uint64_t>(i)));
            const double target = static_cast<double>(*c.laws.requests) / process.info().rate * 1e9;
            if (sum.rounded() > 0) c.stretch = target / static_cast<double>(sum.rounded());
            c.last_arrival = static_cast<std::int64_t>(std::floor(target + 0.5));
        }
        find_arrival(c);
    }

    void find_arrival(Class& c) {
        c.next_arrival.reset();
        if (c.laws.replay) {
            c.next_arrival = c.laws.replay->next_time();
        } else if (c.laws.sessions && c.laws.sessions->count &&
                   c.arrivals >= static_cast<std::uint64_t>(*c.laws.sessions->count)) {
            return;
        } else if (c.laws.requests && !c.laws.sessions && c.arrivals >= static_cast<std::uint64_t>(*c.laws.requests)) {
            return;
        } else {
            const double gap = c.laws.arrivals->gap_ns(c.arrivals);
            if (std::isinf(gap)) return;
            c.gaps.add(gap * c.stretch);
            std::int64_t t = c.gaps.rounded();
            if (c.last_arrival)
                t = static_cast<std::int64_t>(c.arrivals) + 1 == *c.laws.requests ? *c.last_arrival
                                                                                  : std::min(t, *c.last_arrival);
            if (c.laws.duration && t > c.laws.duration->count()) return;
            c.next_arrival = SimTime(SimDuration(t));
        }
    }

    void take_arrival(std::uint32_t owner) {
        Class& c = classes_[owner];
        const SimTime time = *c.next_arrival;
        const std::uint64_t index = c.arrivals++;
        if (c.laws.replay) {
            const std::uint32_t handle = new_call(owner, time + jitter(c, index), index);
            c.laws.replay->pop(calls_[handle].recorded);
            push(c, handle);
        } else {
            begin(owner, time, -1, index);
        }
        find_arrival(c);
    }

    /// A request, or a session, of nobody or of a user.
    void begin(std::uint32_t owner, SimTime time, std::int64_t user, std::uint64_t jitter_index) {
        Class& c = classes_[owner];
        time += jitter(c, jitter_index);
        if (c.laws.sessions) {
            begin_session(owner, time, user);
            return;
        }
        const std::uint32_t handle = new_call(owner, time, jitter_index);
        calls_[handle].user = user;
        push(c, handle);
    }

    // ---- users
    [[nodiscard]] static std::uint64_t user_index(const Class& c, std::int64_t user) {
        return (static_cast<std::uint64_t>(user) << 40) | c.thoughts[static_cast<std::size_t>(user)];
    }
    SimDuration thought(Class& c, std::int64_t user) {
        const SimDuration time = c.laws.users->think_time->sample(c.think.first_uniform(user_index(c, user)));
        ++c.thoughts[static_cast<std::size_t>(user)];
        return time;
    }
    void think(std::uint32_t owner, std::int64_t user, SimTime now) {
        Class& c = classes_[owner];
        const SimTime at = now + thought(c, user);
        if (c.full() || (requests_ && sent_ >= *requests_)) return;
        if (c.laws.duration && at.time_since_epoch() > *c.laws.duration) return;
        begin(owner, at, user, user_index(c, user));
    }

    [[nodiscard]] SimDuration backoff(const Class& c, const Call& call) const {
        const RetryLaw& law = *c.laws.retry;
        const double wait = std::min(static_cast<double>(law.max_backoff.count()),
                                     static_cast<double>(law.backoff.count()) * std::pow(law.multiplier, call.attempt));
        Stream stream(c.backoff, call.index);
        for (std::int32_t i = 0; i < call.attempt; ++i) stream.uniform();
        return SimDuration(static_cast<std::int64_t>(wait * (1 - law.jitter * stream.uniform())));
    }

    // ---- content
    /// What stands in front of its own tokens: a shared prefix where a conversation begins, documents.
    void put_shared(const Class& c, Call& call, bool fresh) const {
        if (fresh && c.laws.prefix) {
            const PrefixLaw& prefix = *c.laws.prefix;
            Stream stream(c.group, call.index);
            std::int64_t group = uniform_int(stream.uniform(), 0, prefix.groups - 1);
            if (c.laws.prefix_zipf > 0) {
                Stream popular(c.group_zipf, call.index);
                group = zipf_draw(popular, prefix.groups, c.laws.prefix_zipf) - 1;
            }
            if (stream.uniform() < prefix.share) {
                const std::int64_t tokens =
                    prefix.tokens->sample(c.group_tokens.first_uniform(static_cast<std::uint64_t>(group)));
                put(call, {prefix_base(c.laws.prefix_group + group), tokens});
            }
        }
        if (c.laws.documents) {
            const DocumentLaw& law = *c.laws.documents;
            const std::int64_t wanted = law.per_request->sample(c.document_count.first_uniform(call.index));
            Stream stream(c.documents, call.index);
            std::vector<std::int64_t> chosen;
            while (static_cast<std::int64_t>(chosen.size()) < wanted) {
                std::int64_t document = 0;
                int tries = 0;
                do {
                    document = law.zipf > 0 ? zipf_draw(stream, law.count, law.zipf) - 1
                                            : uniform_int(stream.uniform(), 0, law.count - 1);
                } while (std::find(chosen.begin(), chosen.end(), document) != chosen.end() && ++tries < 64);
                // Nearly all the popular ones are taken: the next free one.
                while (std::find(chosen.begin(), chosen.end(), document) != chosen.end()) document = (document + 1) % law.count;
                chosen.push_back(document);
                const std::int64_t tokens =
                    law.tokens->sample(c.document_tokens.first_uniform(static_cast<std::uint64_t>(document)));
                put(call, {prefix_base(c.laws.document_group + document), tokens});
            }
        }
    }
    static void put(Call& call, TokenRun run) {
        call.prompt.push_back(run);
        call.prompt_tokens += run.count;
    }
    static void put_own(Call& call, std::int64_t tokens) {
        call.own_run = call.prompt.size();
        put(call, {0, tokens});
    }

    void draw_patience(const Class& c, Call& call) const {
        if (c.laws.cancel_share <= 0) return;
        Stream stream(c.cancel, call.index);
        const bool may = stream.uniform() < c.laws.cancel_share;
        const double u = stream.uniform();
        if (may) call.cancel_after = std::max(SimDuration(1), c.laws.cancel_after->sample(u));
    }

    /// A request that stands alone.
    void draw(const Class& c, Call& call) const {
        call.drawn = true;
        draw_patience(c, call);
        if (c.laws.replay) {
            call.prompt = call.recorded.prompt;
            call.own_run = call.prompt.size();
            call.prompt_tokens = call.recorded.prompt_tokens;
            call.output_tokens = call.recorded.output_tokens;
            call.name = call.recorded.external_id;
            if (call.prompt.empty() && c.laws.retry) {
                // Named by its place in the trace, as the trace's own contents are.
                call.prompt.push_back({own_prompt_base(static_cast<RequestId>(call.index)), call.prompt_tokens});
                call.own_run = call.prompt.size();
            }
            return;
        }
        const std::int64_t own = c.laws.prompt_tokens->sample(c.prompt.first_uniform(call.index));
        call.output_tokens = c.laws.output_tokens->sample(c.output.first_uniform(call.index));
        if (c.laws.reasoning_tokens)
            call.reasoning_tokens = c.laws.reasoning_tokens->sample(c.reasoning.first_uniform(call.index));
        if (!c.shares()) {  // nobody else has its tokens
            call.prompt_tokens = own;
            return;
        }
        put_shared(c, call, true);
        put_own(call, own);
        if (call.prompt_tokens > max_request_tokens) throw UserError("a prompt has more than 2^30 - 1 tokens");
    }

    void fill(const Class& c, const Call& call, RequestId id, Arrival& out) const {
        out.time = call.time;
        out.prompt_tokens = call.prompt_tokens;
        out.output_tokens = std::min(max_request_tokens, call.output_tokens + call.reasoning_tokens);
        out.n = c.laws.replay && call.recorded.n > 1 ? call.recorded.n : c.laws.n;
        // Their token ids must not run into the next request's.
        out.output_tokens = std::min(out.output_tokens, max_request_tokens / out.n);
        out.beam_seed = c.laws.beam_search && out.n > 1 ? StreamKey(c.laws.seed, "beam_search").first_u64(id) | 1 : 0;
        out.priority = c.laws.replay && c.laws.priority == 0 ? call.recorded.priority : c.laws.priority;
        out.output_base = c.laws.replay ? call.recorded.output_base : own_output_base(id);
        out.prompt = call.prompt;
        out.external_id = call.name;
        if (call.attempt > 0) {
            if (out.external_id.empty()) out.external_id = std::to_string(call.sent_as);
            out.external_id += '~' + std::to_string(call.attempt);
        }
        out.request_class = c.laws.replay ? call.recorded.request_class : c.laws.name;
        out.session_id = call.session ? call.session->name : c.laws.replay ? call.recorded.session_id : std::string();
        if (call.user >= 0 && !call.session && c.laws.users->think_time->sample(0.5) > SimDuration::zero())
            out.session_id = prefixed(c, 'u', static_cast<std::uint64_t>(call.user));
        out.tenant = c.laws.replay && c.laws.tenant.empty() ? call.recorded.tenant : c.laws.tenant;
        out.timeout = c.laws.timeout > SimDuration::zero() ? c.laws.timeout : call.recorded.timeout;
        out.ttft_timeout = c.laws.ttft_timeout;
        out.cancel_after = call.cancel_after;
        out.attempt = call.attempt;
    }

    [[nodiscard]] static std::string prefixed(const Class& c, char kind, std::uint64_t number) {
        return (c.laws.name.empty() ? std::string() : c.laws.name + "-") + kind + std::to_string(number);
    }

    // ---- sessions
    void begin_session(std::uint32_t owner, SimTime time, std::int64_t user) {
        Class& c = classes_[owner];
        const SessionLaw& law = *c.laws.sessions;
        if (law.count && c.sessions >= static_cast<std::uint64_t>(*law.count)) return;
        auto session = std::make_shared<Session>();
        session->number = c.sessions++;
        session->user = user;
        session->name = prefixed(c, 's', session->number);
        std::vector<std::vector<std::uint32_t>> last_of(law.steps.size());  // by step: the last request of each copy
        for (std::size_t s = 0; s < law.steps.size(); ++s) {
            const StepLaw& step = law.steps[s];
            const std::uint64_t index = (session->number << session_call_bits) | s;
            const std::int64_t copies = step.copies ? step.copies->sample(c.copies.first_uniform(index)) : 1;
            const std::int64_t repeat = step.repeat ? step.repeat->sample(c.repeat.first_uniform(index)) : 1;
            for (std::int64_t copy = 0; copy < copies; ++copy) {
                std::optional<std::uint32_t> before;
                for (std::int64_t i = 0; i < repeat; ++i) {
                    const auto at = static_cast<std::uint32_t>(session->nodes.size());
                    KVSIM_CHECK(at < (1U << session_call_bits), "a session has fewer than 2^24 requests");
                    Node node;
                    node.step = s;
                    if (before) {
                        node.context = before;
                        node.inputs.push_back(*before);
                    } else {
                        for (const std::size_t needed : step.after) {
                            node.inputs.insert(node.inputs.end(), last_of[needed].begin(), last_of[needed].end());
                        }
                        if (step.context) node.context = last_of[*step.context].front();
                    }
                    node.open_inputs = node.inputs.size();
                    node.ready = time;
                    for (const std::uint32_t input : node.inputs) session->nodes[input].dependents.push_back(at);
                    session->nodes.push_back(std::move(node));
                    before = at;
                }
                last_of[s].push_back(*before);
            }
        }
        session->unanswered = session->nodes.size();
        for (std::uint32_t at = 0; at < session->nodes.size(); ++at) {
            if (session->nodes[at].inputs.empty()) prepare(owner, session, at);
        }
    }

    /// All it needs is there: it will be sent, unless its context has become too long.
    void prepare(std::uint32_t owner, const std::shared_ptr<Session>& session, std::uint32_t at) {
        Class& c = classes_[owner];
        const Node& node = session->nodes[at];
        const StepLaw& step = c.laws.sessions->steps[node.step];
        const std::uint64_t index = (session->number << session_call_bits) | at;
        SimTime time = node.ready;
        if (!node.inputs.empty()) {
            if (step.delay) time += step.delay->sample(c.delay.first_uniform(index));
            time += jitter(c, (std::uint64_t{1} << 63) | index);  // its beginning has had its own
        }
        const std::uint32_t handle = new_call(owner, time, index);
        Call& call = calls_[handle];
        call.session = session;
        call.node = at;
        call.user = session->user;
        call.name = session->name + "." + std::to_string(at);
        call.drawn = true;
        draw_patience(c, call);
        if (node.context) {
            for (const TokenRun& run : session->nodes[*node.context].content) put(call, run);
        }
        for (const std::uint32_t input : node.inputs) {
            if (input != node.context && session->nodes[input].answer) put(call, *session->nodes[input].answer);
        }
        put_shared(c, call, !node.context);
        put_own(call, step.prompt_tokens->sample(c.prompt.first_uniform(index)));
        call.output_tokens = step.output_tokens->sample(c.output.first_uniform(index));
        if (step.reasoning_tokens) call.reasoning_tokens = step.reasoning_tokens->sample(c.reasoning.first_uniform(index));
        if (call.prompt_tokens > std::min(max_request_tokens, c.laws.sessions->max_context.value_or(max_request_tokens))) {
            session->dead = true;
            release(handle);
            return;
        }
        push(c, handle);
    }

    void answer(const Call& call, RequestId id, SimTime now, bool answered, std::int64_t outputs) {
        const std::shared_ptr<Session> session = call.session;
        const std::uint32_t owner = call.owner;
        Node& node = session->nodes[call.node];
        if (!answered) session->dead = true;
        if (!session->dead) {
            node.content = call.prompt;
            // Later prompts hold the answer, not the thinking.
            if (const std::int64_t kept = outputs - call.reasoning_tokens; kept > 0) {
                node.answer = TokenRun{own_output_base(id) + static_cast<std::uint64_t>(call.reasoning_tokens), kept};
                node.content.push_back(*node.answer);
            }
            --session->unanswered;
            for (const std::uint32_t dependent : node.dependents) {
                Node& next = session->nodes[dependent];
                next.ready = std::max(next.ready, now);
                if (--next.open_inputs == 0 && !session->dead) prepare(owner, session, dependent);
            }
        }
        if (session->over || session->on_their_way > 0 || (!session->dead && session->unanswered > 0)) return;
        session->over = true;
        session->nodes.clear();
        if (session->user >= 0) think(owner, session->user, now);
    }

    static constexpr std::uint32_t no_call = std::numeric_limits<std::uint32_t>::max();

    std::optional<std::int64_t> requests_;
    std::deque<Class> classes_;
    std::vector<SimTime> sends_next_;     // by class, as look() found; never: it cannot
    std::vector<std::uint32_t> changed_;  // classes to look at again: what a class can send depends on its own requests, and on
                                          // whether all are sent
    std::deque<Call> calls_;              // stable addresses
    std::vector<std::uint32_t> spare_;
    bool follows_ = false;         // what becomes of a request decides what comes later; else it is forgotten once it is sent
    Ring<std::uint32_t> call_of_;  // by request, from the oldest one that is followed; no_call: it has left
    std::uint64_t oldest_ = 0;
    std::int64_t sent_ = 0;  // without retries, over all classes
    SimTime last_sent_{};
};

}  // namespace

std::string beyond_think_times(const Workload& workload) {
    if (!workload.closed_loop()) return {};
    if (const auto* clients = dynamic_cast<const Clients*>(&workload)) return clients->beyond_think_times();
    return "its requests depend on when others finish (a trace with think times: it can be replayed as it is)";
}

std::optional<std::int64_t> never_thinking_users(const Workload& workload) {
    const auto* clients = dynamic_cast<const Clients*>(&workload);
    return clients ? clients->never_thinking_users() : std::nullopt;
}

std::unique_ptr<Workload> make_clients(std::vector<ClientLaws> classes, std::optional<std::int64_t> requests) {
    return std::make_unique<Clients>(std::move(classes), requests);
}

}  // namespace kvsim
