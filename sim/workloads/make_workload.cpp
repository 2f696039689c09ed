// A scenario's `workload` section -> a Workload.

#include <cmath>
#include <string>
#include <utility>

#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/model/clients.hpp"
#include "kvsim/model/pieces.hpp"
#include "kvsim/model/trace_filters.hpp"
#include "kvsim/model/workload_pieces.hpp"
#include "prefix_config.hpp"

namespace kvsim {

namespace {

using config::Diagnostics;
using config::Value;

/// The name under `key` in the map, or null after reporting.
const std::string* naming_key(const Value& map, std::string_view key, std::string_view where, Diagnostics& diagnostics) {
    const Value* name = map.find(key);
    if (name && name->is_scalar()) return &name->scalar;
    diagnostics.error(name ? name->mark : map.mark, std::string(where) + " needs '" + std::string(key) + "', a name");
    return nullptr;
}

constexpr double max_expected_requests = 1e9;  // the most that workload.requests may ask for

std::unique_ptr<ArrivalProcess> arrivals_of(const config::WorkloadConfig& config, double rate_scale, std::uint64_t seed,
                                            Diagnostics& diagnostics) {
    if (!config.arrivals.is_null()) return make_arrivals(config.arrivals, rate_scale, seed, diagnostics);
    if (config.max_concurrency) {
        // A closed loop: everybody stands ready, the concurrency limit paces them.
        Value all;
        all.kind = Value::Kind::scalar;
        all.scalar = "all_at_once";
        all.mark = config.mark;
        return make_arrivals(all, 1, seed, diagnostics);
    }
    diagnostics.error(config.mark, "workload needs arrivals, max_concurrency or trace");
    return nullptr;
}

struct TraceConfig {
    std::string path;
    std::string format;
    TraceOptions read;
    SimDuration start{};
    std::optional<SimDuration> end;
    double sample = 1;
    std::optional<std::int64_t> max_prompt_tokens;
    std::optional<std::int64_t> max_output_tokens;
    bool shuffle = false;
    SimDuration jitter{};
    std::string on_error = "fail";
};

/// The same as field(), of a member's member.
template <class M>
config::Field<TraceConfig> reading(std::string_view key, M TraceOptions::*member, std::string_view doc,
                                   config::Range range = config::any) {
    return config::custom<TraceConfig>(
        key, config::TypeName<M>::text, doc,
        [key = std::string(key), member, range](TraceConfig& into, const Value& value, Diagnostics& diagnostics) {
            return decode(value, into.read.*member, key, range, diagnostics);
        },
        range);
}

const config::Schema<TraceConfig>& trace_schema() {
    using P = TraceConfig;
    constexpr config::Range tokens{1, static_cast<double>(max_request_tokens)};
    // A century of trace, a year of jitter or a block of 2^30 tokens is a mistake, and all keep sums far from overflow.
    constexpr config::Range within{0, 100 * 366.0 * 86'400};
    static const config::Schema<P> table{
        config::field("path", &P::path, "the file, relative to the scenario's folder; gzip too; a folder of session files")
            .need(),
        config::field("format", &P::format, "one of the formats below; found by content when left out"),
        config::field("start", &P::start, "rows before this recorded time are left out; it becomes 0", within).by_default("0s"),
        config::field("end", &P::end, "rows from this recorded time on are left out", within),
        config::field("sample", &P::sample,
                      "share of the rows (of the sessions, where rows have one) that is kept, by the seed", {0, 1, true})
            .by_default("1"),
        config::field("max_prompt_tokens", &P::max_prompt_tokens, "longer prompts are cut to this", tokens),
        config::field("max_output_tokens", &P::max_output_tokens, "longer outputs are cut to this", tokens),
        config::field("shuffle", &P::shuffle, "the requests in random order, by the seed, at the recorded times")
            .by_default("false"),
        config::field("jitter", &P::jitter, "each row comes uniform [0, jitter) later, to undo coarse timestamps",
                      {0, 366.0 * 86'400})
            .by_default("0s"),
        config::field("on_error", &P::on_error, "what a wrong row does: end the run, or be left out and counted")
            .one_of({"fail", "skip"})
            .by_default("fail"),
        reading("trace_block_size", &TraceOptions::trace_block_size, "tokens per hash id (default: the format's)", tokens),
        reading("characters_per_token", &TraceOptions::characters_per_token,
                "sharegpt, vllm_custom: tokens = characters / this, rounded up", {0.01, 1000})
            .by_default("4"),
        reading("prompt_tokens_field", &TraceOptions::prompt_tokens_field,
                "sharegpt, vllm_custom: field with the prompt's tokens, instead of counting characters"),
        reading("output_tokens_field", &TraceOptions::output_tokens_field, "likewise of the output's"),
        reading("custom_output_len", &TraceOptions::custom_output_len, "vllm_custom: output of a row without output_tokens",
                tokens)
            .by_default("256"),
        reading("sec_multiplier", &TraceOptions::sec_multiplier, "timed_trace: seconds per unit of a timestamp", {0, 1e9, true})
            .by_default("1")};
    return table;
}

/// The filters of `t` over the opened trace; null after reporting.
std::unique_ptr<TraceReader> filtered(std::unique_ptr<TraceReader> reader, const TraceConfig& t,
                                      const config::WorkloadConfig& config, std::uint64_t seed, Diagnostics& diagnostics) {
    const TraceTimes times = reader->times();
    const bool limited = config.max_concurrency.has_value();
    std::unique_ptr<ArrivalProcess> arrivals;
    if (!config.arrivals.is_null() || (times == TraceTimes::none && limited)) {
        arrivals = arrivals_of(config, 1, seed, diagnostics);  // rate_scale is the replay's
        if (!arrivals) return nullptr;
    }
    if (times == TraceTimes::none && !arrivals) {
        diagnostics.error(config.trace.mark, "the trace (" + std::string(reader->format()) +
                                                 ") has no times: workload needs arrivals or max_concurrency");
        return nullptr;
    }
    const bool rescale = arrivals && arrivals->info().rescale && std::isfinite(arrivals->info().rate);
    if (rescale && (!config.requests || times == TraceTimes::per_session)) {
        diagnostics.error(config.arrivals.mark, config.requests ? "arrivals.rescale does not go with sessions"
                                                                : "arrivals.rescale needs workload.requests");
        return nullptr;
    }
    if (times == TraceTimes::none && (t.start.count() > 0 || t.end)) {
        diagnostics.error(config.trace.mark, "start and end cut a trace by its recorded times, and this one has none");
        return nullptr;
    }
    if (t.on_error == "skip") reader = skip_wrong_rows(std::move(reader));
    if (times == TraceTimes::per_session) reader = merge_sessions(std::move(reader), std::move(arrivals));
    if (t.start.count() > 0 || t.end) reader = cut_window(std::move(reader), t.start, t.end);
    if (t.sample < 1) reader = sample_rows(std::move(reader), t.sample, seed);
    if (t.max_prompt_tokens || t.max_output_tokens)
        reader = clip_lengths(std::move(reader), t.max_prompt_tokens, t.max_output_tokens);
    if (t.shuffle) reader = shuffle_rows(std::move(reader), seed);
    if (arrivals)
        reader = retime(std::move(reader), std::move(arrivals), rescale ? config.requests : std::optional<std::int64_t>());
    return reader;
}

std::unique_ptr<Workload> replay_of(const config::WorkloadConfig& config, std::uint64_t seed, const std::filesystem::path& base,
                                    Diagnostics& diagnostics) {
    const std::size_t before = diagnostics.error_count();
    const bool told = !diagnostics.ok();  // the scenario's reader says so at the key
    for (const auto& [value, key] : {std::pair{&config.prompt_tokens, "prompt_tokens"},
                                     std::pair{&config.output_tokens, "output_tokens"}, std::pair{&config.prefix, "prefix"}}) {
        if (!value->is_null() && !told)
            diagnostics.error(value->mark, std::string(key) + " does not go with trace: the trace has it");
    }
    TraceConfig t;
    trace_schema().read(config.trace, t, "trace", diagnostics);
    if (!t.format.empty())
        find_entry(trace_formats(), "trace format", t.format, config.trace.find("format")->mark, diagnostics);
    if (t.end && *t.end <= t.start) diagnostics.error(config.trace.find("end")->mark, "end must lie behind start");
    if (diagnostics.error_count() != before) return nullptr;

    std::filesystem::path path = t.path;
    if (path.is_relative()) path = base / path;
    std::unique_ptr<TraceReader> reader;
    try {
        reader = open_trace(path, t.format, t.read);
    } catch (const UserError& e) {
        std::string message = e.what();
        if (const std::size_t at = message.find("error: "); at != std::string::npos) message.erase(at, 7);
        diagnostics.error(config.trace.find("path")->mark, std::move(message));
        return nullptr;
    }
    reader = filtered(std::move(reader), t, config, seed, diagnostics);
    // The trace's own errors are thrown; those of the scenario come first.
    if (!reader || !diagnostics.ok()) return nullptr;
    const TraceReader& watched = *reader;
    const ReplayOptions options{t.jitter, config.rate_scale, config.requests, config.duration};
    std::unique_ptr<Workload> workload = make_replay(std::move(reader), options, seed);
    for (const std::string& key : watched.unknown_keys())
        diagnostics.warning(config.trace.mark, path.string() + ": key '" + key + "' is unknown and ignored");
    if (!workload->next_time() && !config.duration)
        diagnostics.error(config.trace.mark, "no row of the trace is left by start, end and sample");
    return diagnostics.ok() ? std::move(workload) : nullptr;
}

}  // namespace

const config::Schema<PrefixConfig>& prefix_schema() {
    using P = PrefixConfig;
    static const config::Schema<P> table{
        config::field("groups", &P::groups, "how many different prefixes there are",
                      {1, static_cast<double>(max_prefix_groups)})
            .by_default("1"),
        config::field("tokens", &P::tokens, "length of a prefix: an integer or a length distribution, drawn once per group")
            .need(),
        config::field("share", &P::share, "share of the requests that have one", config::fraction).by_default("1"),
        config::field("zipf", &P::zipf, "popularity of the k-th prefix: k^-zipf; 0: all equal", config::Range{0, 20})
            .by_default("0")};
    return table;
}

std::unique_ptr<LengthLaw> make_length_law(const Value& value, std::string_view where, Diagnostics& diagnostics) {
    Value map = value;
    if (value.is_scalar()) {
        std::int64_t length = 0;
        if (!decode(value, length, where, {1, static_cast<double>(max_request_tokens)}, diagnostics)) return nullptr;
        map = Value{};
        map.kind = Value::Kind::map;
        map.mark = value.mark;
        map.map.push_back({"value", value.mark, value});
        return length_distributions().front().make(map, where, diagnostics);
    }
    if (!value.is_map()) {
        diagnostics.error(value.mark, std::string(where) + " must be an integer or a map with 'distribution'");
        return nullptr;
    }
    const std::string* name = naming_key(value, "distribution", where, diagnostics);
    if (!name) return nullptr;
    const auto* entry =
        find_entry(length_distributions(), "length distribution", *name, value.find("distribution")->mark, diagnostics);
    return entry ? entry->make(value, where, diagnostics) : nullptr;
}

std::unique_ptr<ArrivalProcess> make_arrivals(const Value& value, double rate_scale, std::uint64_t seed,
                                              Diagnostics& diagnostics) {
    Value map = value;
    if (value.is_scalar()) {
        map = Value{};
        map.kind = Value::Kind::map;
        map.mark = value.mark;
        map.map.push_back({"process", value.mark, value});
    } else if (!value.is_map()) {
        diagnostics.error(value.mark, "arrivals must be a process name or a map with 'process'");
        return nullptr;
    }
    const std::string* name = naming_key(map, "process", "arrivals", diagnostics);
    if (!name) return nullptr;
    const auto* entry = find_entry(arrival_processes(), "arrival process", *name, map.find("process")->mark, diagnostics);
    if (!entry) return nullptr;
    const std::size_t before = diagnostics.error_count();
    std::unique_ptr<ArrivalProcess> process = entry->make(map, rate_scale, seed, diagnostics);
    return diagnostics.error_count() == before ? std::move(process) : nullptr;
}

std::optional<ArrivalInfo> configured_arrivals(const config::WorkloadConfig& config) {
    if (!config.trace.is_null() && config.arrivals.is_null()) return std::nullopt;
    if (!config.classes.empty() || !config.users.is_null()) return std::nullopt;
    Diagnostics ignored;
    const std::unique_ptr<ArrivalProcess> process = arrivals_of(config, config.rate_scale, 0, ignored);
    return process ? std::optional(process->info()) : std::nullopt;
}

std::vector<config::FieldDoc> prefix_docs() {
    return prefix_schema().docs();
}

std::vector<config::FieldDoc> trace_docs() {
    return trace_schema().docs();
}

std::unique_ptr<Workload> make_workload(const config::WorkloadConfig& config, std::uint64_t seed,
                                        const std::filesystem::path& base, Diagnostics& diagnostics) {
    const std::size_t before = diagnostics.error_count();
    if (!(config.rate_scale > 0) || !std::isfinite(config.rate_scale))
        diagnostics.error(config.mark, "rate_scale must be above 0 and finite");
    if (config.requests && (*config.requests < 1 || *config.requests > std::int64_t{std::numeric_limits<RequestId>::max()}))
        diagnostics.error(config.mark, "requests must be between 1 and 4294967295");
    if (diagnostics.error_count() != before) return nullptr;
    if (!config.trace.is_null()) {
        std::unique_ptr<Workload> replay = replay_of(config, seed, base, diagnostics);
        if (!replay || !needs_clients(config)) return replay;
        return clients_of(config, std::move(replay), seed, diagnostics);
    }
    if (needs_clients(config)) return clients_of(config, nullptr, seed, diagnostics);

    SyntheticLaws laws;
    laws.requests = config.requests;
    laws.duration = config.duration;
    laws.arrivals = arrivals_of(config, config.rate_scale, seed, diagnostics);
    if (laws.arrivals && laws.arrivals->info().ends) return clients_of(config, nullptr, seed, diagnostics);
    const auto length = [&](const Value& value, std::string_view key) -> std::unique_ptr<LengthLaw> {
        if (!value.is_null()) return make_length_law(value, key, diagnostics);
        diagnostics.error(config.mark, "workload needs " + std::string(key) + " (or a trace)");
        return nullptr;
    };
    laws.prompt_tokens = length(config.prompt_tokens, "prompt_tokens");
    laws.output_tokens = length(config.output_tokens, "output_tokens");
    if (!config.prefix.is_null()) {
        PrefixConfig p;
        prefix_schema().read(config.prefix, p, "prefix", diagnostics);
        laws.prefix.emplace(PrefixLaw{p.groups, p.share, nullptr});
        if (!p.tokens.is_null()) laws.prefix->tokens = make_length_law(p.tokens, "prefix.tokens", diagnostics);
    }
    // A `requests` or `duration` that was wrong has been reported and is no missing one.
    if (!config.requests && diagnostics.ok()) {
        const double expected = config.duration ? to_seconds(*config.duration) * laws.arrivals->info().rate : 0;
        if (!config.duration) {
            diagnostics.error(config.mark, "workload needs requests or duration, or it never ends");
        } else if (laws.arrivals && std::isinf(laws.arrivals->info().rate)) {
            diagnostics.error(config.mark, "workload needs requests: all of them arrive at once");
        } else if (laws.arrivals && laws.arrivals->info().rescale) {
            diagnostics.error(config.mark, "arrivals.rescale needs workload.requests");
        } else if (expected > max_expected_requests) {
            diagnostics.error(config.mark, "workload.duration x arrivals.rate makes about " + shortest(std::round(expected)) +
                                               " requests; at most " + shortest(max_expected_requests) + " are simulated");
        }
    }
    if (!diagnostics.ok()) return nullptr;
    return make_synthetic(std::move(laws), seed);
}

}  // namespace kvsim
