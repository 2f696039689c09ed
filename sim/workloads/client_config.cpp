// The client keys of a scenario's `workload` section -> ClientLaws.

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/model/clients.hpp"
#include "kvsim/random/stream.hpp"
#include "prefix_config.hpp"

namespace kvsim {

namespace {

using config::ClientConfig;
using config::Diagnostics;
using config::field;
using config::Range;
using config::Value;

constexpr Range zipf_range{0, 20};
constexpr double max_users = 1e6;

struct UserConfig {
    std::int64_t count = 1;
    Value think_time;
    SimDuration ramp_up{};
};

const config::Schema<UserConfig>& user_schema() {
    using P = UserConfig;
    static const config::Schema<P> table{
        field("count", &P::count, "how many users; each waits for its answer before it sends again", Range{1, max_users})
            .need(),
        field("think_time", &P::think_time,
              "duration or {distribution: ..., ...}: from an answer (with sessions: the end of one) to the next request; a "
              "uniform "
              "share of one passes before a user's first")
            .by_default("0s"),
        field("ramp_up", &P::ramp_up, "the users start one after the other over this time", Range{0, 366.0 * 86'400})
            .by_default("0s")};
    return table;
}

struct DocumentConfig {
    std::int64_t count = 1;
    Value tokens;
    Value per_request;
    double zipf = 0;
};

const config::Schema<DocumentConfig>& document_schema() {
    using P = DocumentConfig;
    static const config::Schema<P> table{
        field("count", &P::count, "how many different documents there are", Range{1, 1e9}).need(),
        field("tokens", &P::tokens, "length of a document: an integer or a length distribution, drawn once per document")
            .need(),
        field("per_request", &P::per_request,
              "different documents in a prompt, between the prefix and prompt_tokens: an integer or a length distribution; at "
              "most 1000")
            .by_default("1"),
        field("zipf", &P::zipf, "popularity of the k-th document: k^-zipf; 0: all equal", zipf_range).by_default("0")};
    return table;
}

struct SessionConfig {
    Value turns;
    Value think_time;
    Value steps;
    std::optional<std::int64_t> count;
    std::optional<std::int64_t> max_context;
};

const config::Schema<SessionConfig>& session_schema() {
    using P = SessionConfig;
    static const config::Schema<P> table{
        field("turns", &P::turns,
              "requests of a chat, each prompt containing all before it and its answers: an integer or a length distribution"),
        field("think_time", &P::think_time, "duration or {distribution: ..., ...}: from an answer to the next turn")
            .by_default("0s"),
        config::custom<P>("steps", "list of maps", "a tool-calling run instead of turns: requests that depend on each other",
                          [](P& into, const Value& value, Diagnostics& d) {
                              return config::decode(value, into.steps, "steps", config::any, d);
                          }),
        field("count", &P::count, "no further sessions after so many", Range{1, 1e9}),
        field("max_context", &P::max_context, "a session ends before a prompt of more tokens",
              Range{1, static_cast<double>(max_request_tokens)})};
    return table;
}

struct StepConfig {
    std::string name;
    Value after;
    std::optional<std::string> context;
    Value prompt_tokens, output_tokens, reasoning_tokens;
    Value delay, repeat, copies;
};

const config::Schema<StepConfig>& step_schema() {
    using P = StepConfig;
    static const config::Schema<P> table{
        field("name", &P::name, "how other steps refer to it").need(),
        config::custom<P>(
            "after", "list of names",
            "earlier steps that must be done first (default: the step before; [] none); their answers stand in its "
            "prompt",
            [](P& into, const Value& value, Diagnostics& d) {
                return config::decode(value, into.after, "after", config::any, d);
            }),
        field(
            "context", &P::context,
            "the earlier step whose conversation it continues, or none: a conversation of its own (a side task) (default: the "
            "first of after)"),
        field("prompt_tokens", &P::prompt_tokens, "new tokens of its prompt, e.g. a tool's result (default: the class's)"),
        field("output_tokens", &P::output_tokens, "its answer (default: the class's)"),
        field("reasoning_tokens", &P::reasoning_tokens, "thinking before the answer (default: the class's)"),
        field("delay", &P::delay,
              "duration or {distribution: ..., ...}: a tool's run time, from the last answer it needs to sending")
            .by_default("0s"),
        field("repeat", &P::repeat, "how often, each continuing the one before: an integer or a length distribution")
            .by_default("1"),
        field("copies", &P::copies, "how many side by side (side tasks): an integer or a length distribution").by_default("1")};
    return table;
}

struct CancelConfig {
    double share = 0;
    Value after;
};

const config::Schema<CancelConfig>& cancel_schema() {
    using P = CancelConfig;
    static const config::Schema<P> table{
        field("share", &P::share, "share of the requests whose client may lose interest", config::fraction).need(),
        field("after", &P::after, "duration or {distribution: ..., ...}: counted from the intended arrival").need()};
    return table;
}

struct RetryConfig {
    std::int64_t max_retries = 2;
    SimDuration backoff = RetryLaw{}.backoff;
    double multiplier = RetryLaw{}.multiplier;
    SimDuration max_backoff = RetryLaw{}.max_backoff;
    double jitter = RetryLaw{}.jitter;
};

const config::Schema<RetryConfig>& retry_schema() {
    using P = RetryConfig;
    static const config::Schema<P> table{
        field("max_retries", &P::max_retries, "how often a request that timed out, or found the queue full, is sent again",
              Range{0, 1000})
            .by_default("2"),
        field("backoff", &P::backoff, "wait before the first retry", Range{0, 366.0 * 86'400}).by_default("500ms"),
        field("multiplier", &P::multiplier, "each further wait is longer by this factor", Range{1, 100}).by_default("2"),
        field("max_backoff", &P::max_backoff, "the longest wait", Range{0, 366.0 * 86'400}).by_default("8s"),
        field("jitter", &P::jitter, "up to this share of each wait is taken off at random", config::fraction)
            .by_default("0.25")};
    return table;
}

/// The class's value, else the workload's.
Value either(const Value& own, const Value& common) {
    return own.is_null() ? common : own;
}

/// The class with the workload's keys where it has none. `requests` and `duration` of the workload hold for all classes
/// together; who names arrivals or users does not inherit the other.
ClientConfig with_defaults(const config::ClassConfig& own, const config::WorkloadConfig& common) {
    ClientConfig c = own;
    if (own.arrivals.is_null() && own.users.is_null() && !own.max_concurrency) {
        c.arrivals = common.arrivals;
        c.users = common.users;
    }
    c.prompt_tokens = either(own.prompt_tokens, common.prompt_tokens);
    c.output_tokens = either(own.output_tokens, common.output_tokens);
    c.reasoning_tokens = either(own.reasoning_tokens, common.reasoning_tokens);
    c.prefix = either(own.prefix, common.prefix);
    c.documents = either(own.documents, common.documents);
    c.sessions = either(own.sessions, common.sessions);
    c.cancel = either(own.cancel, common.cancel);
    c.retry = either(own.retry, common.retry);
    if (!own.jitter) c.jitter = common.jitter;
    if (!own.n) c.n = common.n;
    if (!own.beam_search) c.beam_search = common.beam_search;
    if (!own.priority) c.priority = common.priority;
    if (!own.tenant) c.tenant = common.tenant;
    if (!own.timeout.e2e && !own.timeout.ttft) c.timeout = common.timeout;
    if (!own.duration || (common.duration && *common.duration < *own.duration)) c.duration = common.duration;
    return c;
}

class Reader {
public:
    Reader(const config::WorkloadConfig& config, std::uint64_t seed, Diagnostics& diagnostics)
        : config_(config), seed_(seed), diagnostics_(diagnostics) {}

    std::vector<ClientLaws> classes(std::unique_ptr<Workload> replay) {
        std::vector<ClientLaws> out;
        if (config_.classes.empty()) {
            ClientLaws& only = out.emplace_back();
            only.seed = seed_;
            only.replay = std::move(replay);
            read(config_, only, config_.requests.has_value());
            return out;
        }
        for (const config::ClassConfig& own : config_.classes) {
            ClientLaws& laws = out.emplace_back();
            laws.name = own.name;
            laws.seed = StreamKey(seed_, "class " + own.name).first_u64(0);
            read(with_defaults(own, config_), laws, config_.requests.has_value());
        }
        return out;
    }

private:
    void error(const config::Mark& mark, std::string message) { diagnostics_.error(mark, std::move(message)); }

    std::unique_ptr<LengthLaw> length(const Value& value, std::string_view key) {
        return value.is_null() ? nullptr : make_length_law(value, key, diagnostics_);
    }
    std::unique_ptr<TimeLaw> time(const Value& value, std::string_view key) {
        return value.is_null() ? nullptr : make_time_law(value, key, diagnostics_);
    }

    void read(const ClientConfig& c, ClientLaws& laws, bool common_end) {
        laws.requests = c.requests;
        laws.duration = c.duration;
        laws.jitter = c.jitter.value_or(SimDuration{});
        laws.n = c.n.value_or(1);
        laws.beam_search = c.beam_search.value_or(false);
        laws.priority = c.priority.value_or(0);
        laws.tenant = c.tenant.value_or("");
        laws.timeout = c.timeout.e2e.value_or(SimDuration{});
        laws.ttft_timeout = c.timeout.ttft.value_or(SimDuration{});
        // The workload's own limit is kept by the simulation, over all classes.
        if (!config_.classes.empty()) laws.max_concurrency = c.max_concurrency;
        read_patience(c, laws);
        if (laws.replay) return;

        read_pace(c, laws);
        laws.prompt_tokens = length(c.prompt_tokens, "prompt_tokens");
        laws.output_tokens = length(c.output_tokens, "output_tokens");
        laws.reasoning_tokens = length(c.reasoning_tokens, "reasoning_tokens");
        read_shared(c, laws);
        if (!c.sessions.is_null()) read_sessions(c, laws);
        const bool steps = laws.sessions && !c.sessions.find("turns");
        for (const auto& [value, key] :
             {std::pair{&c.prompt_tokens, "prompt_tokens"}, std::pair{&c.output_tokens, "output_tokens"}}) {
            if (value->is_null() && !steps && !config_.classes.empty())
                error(c.mark, "the class lacks '" + std::string(key) + "'");
        }
        read_end(c, laws, common_end);
    }

    void read_patience(const ClientConfig& c, ClientLaws& laws) {
        if (!c.cancel.is_null()) {
            CancelConfig p;
            cancel_schema().read(c.cancel, p, "cancel", diagnostics_);
            laws.cancel_share = p.share;
            laws.cancel_after = time(p.after, "cancel.after");
        }
        if (!c.retry.is_null()) {
            RetryConfig p;
            retry_schema().read(c.retry, p, "retry", diagnostics_);
            laws.retry = RetryLaw{p.max_retries, p.backoff, p.multiplier, p.max_backoff, p.jitter};
        }
    }

    void read_pace(const ClientConfig& c, ClientLaws& laws) {
        if (!c.arrivals.is_null() && !c.users.is_null()) {
            error(c.mark, "arrivals and users both say when requests are sent; keep one");
        } else if (!c.arrivals.is_null()) {
            laws.arrivals = make_arrivals(c.arrivals, config_.rate_scale, laws.seed, diagnostics_);
            if (laws.arrivals && laws.arrivals->info().rescale && !c.requests) {
                error(c.arrivals.mark, "arrivals.rescale needs the requests of its class");
            }
        } else if (!c.users.is_null()) {
            UserConfig p;
            user_schema().read(c.users, p, "users", diagnostics_);
            laws.users.emplace();
            laws.users->count = p.count;
            laws.users->ramp_up = p.ramp_up;
            laws.users->think_time = p.think_time.is_null() ? zero_time() : time(p.think_time, "users.think_time");
        } else if (c.max_concurrency) {
            // So many users who never think.
            if (*c.max_concurrency > static_cast<std::int64_t>(max_users))
                error(c.mark, "max_concurrency without arrivals is at most 1000000");
            laws.users.emplace();
            laws.users->count = std::min(*c.max_concurrency, static_cast<std::int64_t>(max_users));
            laws.users->think_time = zero_time();
            laws.max_concurrency.reset();
        } else {
            error(c.mark, config_.classes.empty() ? "workload needs arrivals, users, max_concurrency or trace"
                                                  : "the class needs arrivals, users or max_concurrency");
        }
    }

    std::unique_ptr<TimeLaw> zero_time() {
        Value zero;
        zero.kind = Value::Kind::scalar;
        zero.scalar = "0s";
        return make_time_law(zero, "think_time", diagnostics_);
    }

    std::int64_t take_groups(std::int64_t count, const config::Mark& mark) {
        const std::int64_t first = groups_;
        if (count > max_prefix_groups - groups_) {
            error(mark, "prefixes and documents of all classes together are more than 2147483648");
            return 0;
        }
        groups_ += count;
        return first;
    }

    void read_shared(const ClientConfig& c, ClientLaws& laws) {
        if (!c.prefix.is_null()) {
            PrefixConfig p;
            prefix_schema().read(c.prefix, p, "prefix", diagnostics_);
            laws.prefix.emplace(PrefixLaw{p.groups, p.share, length(p.tokens, "prefix.tokens")});
            laws.prefix_zipf = p.zipf;
            laws.prefix_group = take_groups(p.groups, c.prefix.mark);
        }
        if (!c.documents.is_null()) {
            DocumentConfig p;
            document_schema().read(c.documents, p, "documents", diagnostics_);
            Value one;
            one.kind = Value::Kind::scalar;
            one.scalar = "1";
            laws.documents.emplace();
            laws.documents->count = p.count;
            laws.documents->zipf = p.zipf;
            laws.documents->tokens = length(p.tokens, "documents.tokens");
            laws.documents->per_request = length(p.per_request.is_null() ? one : p.per_request, "documents.per_request");
            laws.document_group = take_groups(p.count, c.documents.mark);
            if (laws.documents->per_request) {
                const std::int64_t most = laws.documents->per_request->sample(0x1.fffffffffffffp-1);
                if (most > std::min<std::int64_t>(1000, p.count))
                    error(c.documents.mark, "documents.per_request can be " + std::to_string(most) + ", above " +
                                                (p.count < 1000 ? "documents.count" : "1000"));
            }
        }
    }

    void read_sessions(const ClientConfig& c, ClientLaws& laws) {
        SessionConfig p;
        session_schema().read(c.sessions, p, "sessions", diagnostics_);
        laws.sessions.emplace();
        laws.sessions->count = p.count;
        laws.sessions->max_context = p.max_context;
        if (p.turns.is_null() == p.steps.is_null()) {
            error(c.sessions.mark, "sessions need either turns (a chat) or steps (a tool-calling run)");
            return;
        }
        if (!p.turns.is_null()) {
            StepLaw& turn = laws.sessions->steps.emplace_back();
            turn.name = "turn";
            turn.prompt_tokens = length(c.prompt_tokens, "prompt_tokens");
            turn.output_tokens = length(c.output_tokens, "output_tokens");
            turn.reasoning_tokens = length(c.reasoning_tokens, "reasoning_tokens");
            turn.delay = time(p.think_time, "sessions.think_time");
            turn.repeat = length(p.turns, "sessions.turns");
            check_calls(turn.repeat.get(), p.turns);
            return;
        }
        if (!p.think_time.is_null()) error(p.think_time.mark, "think_time belongs to turns; a step has a delay");
        if (!p.steps.is_list() || p.steps.list.empty()) {
            error(p.steps.mark, "sessions.steps must be a list of maps, each with a name");
            return;
        }
        for (const Value& item : p.steps.list) read_step(c, item, laws.sessions->steps);
    }

    void read_step(const ClientConfig& c, const Value& item, std::vector<StepLaw>& steps) {
        StepConfig p;
        step_schema().read(item, p, "the step", diagnostics_);
        std::vector<std::string_view> known;
        for (const StepLaw& s : steps) known.push_back(s.name);
        const auto find = [&](const std::string& name, const config::Mark& mark) -> std::optional<std::size_t> {
            const auto at = std::find(known.begin(), known.end(), name);
            if (at != known.end()) return static_cast<std::size_t>(at - known.begin());
            diagnostics_.unknown(mark, "earlier step", name, known);
            return std::nullopt;
        };
        StepLaw step;
        step.name = p.name;
        if (std::find(known.begin(), known.end(), p.name) != known.end())
            error(item.mark, "another step is named '" + excerpt(p.name) + "' too");
        if (p.after.is_null() && !item.find("after")) {
            if (!steps.empty()) step.after.push_back(steps.size() - 1);
        } else if (!p.after.is_list()) {
            error(p.after.mark, "after must be a list of earlier steps");
        } else {
            for (const Value& name : p.after.list) {
                if (const auto at = find(name.scalar, name.mark)) {
                    if (std::find(step.after.begin(), step.after.end(), *at) != step.after.end())
                        error(name.mark, "after names a step twice");
                    step.after.push_back(*at);
                }
            }
        }
        if (!p.context) {
            if (!step.after.empty()) step.context = step.after.front();
        } else if (*p.context != "none") {
            step.context = find(*p.context, item.find("context")->mark);
            if (step.context && !done_before(steps, step.after, *step.context))
                error(item.find("context")->mark, "the step of the context must be done before: name it under after");
        }
        step.prompt_tokens = length(either(p.prompt_tokens, c.prompt_tokens), "prompt_tokens");
        step.output_tokens = length(either(p.output_tokens, c.output_tokens), "output_tokens");
        step.reasoning_tokens = length(either(p.reasoning_tokens, c.reasoning_tokens), "reasoning_tokens");
        if (either(p.prompt_tokens, c.prompt_tokens).is_null())
            error(item.mark, "the step lacks 'prompt_tokens', and so does its class");
        if (either(p.output_tokens, c.output_tokens).is_null())
            error(item.mark, "the step lacks 'output_tokens', and so does its class");
        step.delay = time(p.delay, "delay");
        step.repeat = length(p.repeat, "repeat");
        step.copies = length(p.copies, "copies");
        check_calls(step.repeat.get(), p.repeat);
        check_calls(step.copies.get(), p.copies);
        steps.push_back(std::move(step));
    }

    static bool done_before(const std::vector<StepLaw>& steps, const std::vector<std::size_t>& after, std::size_t wanted) {
        return std::any_of(after.begin(), after.end(),
                           [&](std::size_t s) { return s == wanted || done_before(steps, steps[s].after, wanted); });
    }

    /// A session is built as a whole.
    void check_calls(const LengthLaw* law, const Value& at) {
        if (law && law->sample(0x1.fffffffffffffp-1) > 100'000)
            error(at.mark, "this can be more than 100000 requests of one session; give it a max");
    }

    void read_end(const ClientConfig& c, const ClientLaws& laws, bool common_end) {
        const bool sessions_end = laws.sessions && laws.sessions->count;
        const bool arrivals_end = laws.arrivals && laws.arrivals->info().ends;
        const bool counted = c.requests || common_end;
        if (!counted && !c.duration && !sessions_end && !arrivals_end) {
            error(c.mark, std::string(config_.classes.empty() ? "workload" : "the class") +
                              " needs requests, duration or sessions.count, or it never ends");
            return;
        }
        if (laws.arrivals && !counted && !sessions_end && !arrivals_end && std::isinf(laws.arrivals->info().rate)) {
            error(c.mark, "requests are needed: all of them arrive at once");
            return;
        }
        if (!laws.arrivals || counted || sessions_end) return;
        const double expected = laws.arrivals->info().expected > 0
                                    ? laws.arrivals->info().expected
                                    : laws.arrivals->info().rate * to_seconds(c.duration.value_or(SimDuration{}));
        if (expected > 1e9)
            error(c.mark,
                  "about " + shortest(std::round(expected)) + " requests would arrive; at most 1000000000 are simulated");
    }

    const config::WorkloadConfig& config_;
    std::uint64_t seed_;
    Diagnostics& diagnostics_;
    std::int64_t groups_ = 0;
};

}  // namespace

bool needs_clients(const config::WorkloadConfig& c) {
    const config::Value* zipf = c.prefix.find("zipf");
    return !c.classes.empty() || !c.users.is_null() || !c.sessions.is_null() || !c.documents.is_null() ||
           !c.reasoning_tokens.is_null() || !c.cancel.is_null() || !c.retry.is_null() || c.jitter || c.n || c.beam_search ||
           c.priority || c.tenant || c.timeout.e2e || c.timeout.ttft || zipf;
}

std::unique_ptr<Workload> clients_of(const config::WorkloadConfig& config, std::unique_ptr<Workload> replay, std::uint64_t seed,
                                     Diagnostics& diagnostics) {
    const std::size_t before = diagnostics.error_count();
    std::vector<ClientLaws> classes = Reader(config, seed, diagnostics).classes(std::move(replay));
    if (diagnostics.error_count() != before || !diagnostics.ok()) return nullptr;
    return make_clients(std::move(classes), config.requests);
}

std::vector<std::pair<std::string, std::vector<config::FieldDoc>>> client_docs() {
    return {{"workload.users", user_schema().docs()},
            {"workload.sessions", session_schema().docs()},
            {"workload.sessions.steps, each", step_schema().docs()},
            {"workload.documents", document_schema().docs()},
            {"workload.cancel", cancel_schema().docs()},
            {"workload.retry", retry_schema().docs()}};
}

}  // namespace kvsim
