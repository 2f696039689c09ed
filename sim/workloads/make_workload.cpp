// A scenario's `workload` section -> a Workload.

#include <cmath>
#include <string>

#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/model/clients.hpp"
#include "kvsim/model/pieces.hpp"
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

struct TraceConfig {
    std::string path;
    std::string format;
    std::int64_t trace_block_size = 512;
    SimDuration jitter{};
};

const config::Schema<TraceConfig>& trace_schema() {
    using P = TraceConfig;
    // A year of jitter or a block of 2^30 tokens is a mistake, and both keep sums far from overflow.
    static const config::Schema<P> table{
        config::field("path", &P::path, "the file, relative to the scenario's folder").need(),
        config::field("format", &P::format, "mooncake or azure; found by content when left out"),
        config::field("trace_block_size", &P::trace_block_size, "tokens per hash id (mooncake)",
                      {1, static_cast<double>(max_request_tokens)})
            .by_default("512"),
        config::field("jitter", &P::jitter, "each row comes uniform [0, jitter) later, to undo coarse timestamps",
                      {0, 366.0 * 86'400})
            .by_default("0s")};
    return table;
}

std::unique_ptr<Workload> replay_of(const config::WorkloadConfig& config, std::uint64_t seed, const std::filesystem::path& base,
                                    Diagnostics& diagnostics) {
    const std::size_t before = diagnostics.error_count();
    const bool told = !diagnostics.ok();  // the scenario's reader says so at the key
    for (const auto& [value, key] : {std::pair{&config.arrivals, "arrivals"}, std::pair{&config.prompt_tokens, "prompt_tokens"},
                                     std::pair{&config.output_tokens, "output_tokens"}, std::pair{&config.prefix, "prefix"}}) {
        if (!value->is_null() && !told)
            diagnostics.error(value->mark, std::string(key) + " does not go with trace: the trace has it");
    }
    TraceConfig t;
    trace_schema().read(config.trace, t, "trace", diagnostics);
    if (!t.format.empty())
        find_entry(trace_formats(), "trace format", t.format, config.trace.find("format")->mark, diagnostics);
    if (diagnostics.error_count() != before) return nullptr;

    const ReplayOptions options{{t.trace_block_size}, t.jitter, config.rate_scale, config.requests, config.duration};
    std::filesystem::path path = t.path;
    if (path.is_relative()) path = base / path;
    std::unique_ptr<TraceReader> reader;
    try {
        reader = open_trace(path, t.format, options.trace);
    } catch (const UserError& e) {
        std::string message = e.what();
        if (const std::size_t at = message.find("error: "); at != std::string::npos) message.erase(at, 7);
        diagnostics.error(config.trace.find("path")->mark, std::move(message));
        return nullptr;
    }
    // The trace's own errors are thrown; those of the scenario come first.
    if (!diagnostics.ok()) return nullptr;
    const TraceReader& watched = *reader;
    std::unique_ptr<Workload> workload = make_replay(std::move(reader), options, seed);
    for (const std::string& key : watched.unknown_keys())
        diagnostics.warning(config.trace.mark, path.string() + ": key '" + key + "' is unknown and ignored");
    return workload;
}

std::unique_ptr<ArrivalProcess> arrivals_of(const config::WorkloadConfig& config, std::uint64_t seed,
                                            Diagnostics& diagnostics) {
    if (!config.arrivals.is_null()) return make_arrivals(config.arrivals, config.rate_scale, seed, diagnostics);
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
    if (!config.trace.is_null() || !config.classes.empty() || !config.users.is_null()) return std::nullopt;
    Diagnostics ignored;
    const std::unique_ptr<ArrivalProcess> process = arrivals_of(config, 0, ignored);
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
    laws.arrivals = arrivals_of(config, seed, diagnostics);
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
