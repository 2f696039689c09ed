#include "kvsim/app/prepare.hpp"

#include <cmath>

#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/config/load.hpp"
#include "kvsim/model/clients.hpp"
#include "kvsim/model/pieces.hpp"
#include "kvsim/model/workload_pieces.hpp"

namespace kvsim::app {
namespace {

RunInfo describe(const Prepared& p, const std::vector<std::string>& warnings) {
    const config::Scenario& scenario = p.scenario;
    const Deployment& deployment = p.deployment;
    RunInfo info;
    info.scenario = scenario.name;
    info.scenario_hash = scenario.hash;
    info.version = KVSIM_VERSION;
    info.seed = scenario.seed;
    info.model = deployment.model_name;
    info.gpu = deployment.gpu_name;
    info.tensor_parallel_size = deployment.tensor_parallel_size;
    info.pipeline_parallel_size = deployment.pipeline_parallel_size;
    info.data_parallel_size = deployment.data_parallel_size;
    info.engine = deployment.engine;
    if (deployment.engine.batching == "vllm-v0") {
        const VllmV0Args::Preemption mode = deployment.engine.v0.preemption;
        info.preemption = mode == VllmV0Args::Preemption::automatic ? "auto"
                          : mode == VllmV0Args::Preemption::swap    ? "swap"
                                                                    : "recompute";
    }
    const PolicyArgs& policy = deployment.engine.policy;
    static constexpr std::string_view modes[] = {"recompute", "swap", "cheaper", "none"};
    if (policy.preemption != PolicyArgs::Preemption::recompute)
        info.preemption = modes[static_cast<std::size_t>(policy.preemption)];
    info.kv_policy = policy.kv                                  ? policy.kv.name
                     : !deployment.engine.enable_prefix_caching ? "paged"
                     : deployment.engine.batching == "sglang"   ? "radix"
                                                                : "paged_prefix";
    info.step_time_description = p.step_time->describe();
    // An unnamed model is whichever tier was available; its description opens with its name.
    info.step_time_model = info.step_time_description.substr(0, info.step_time_description.find(':'));
    info.kv_bytes_per_token = deployment.budget.kv_bytes_per_token;
    info.gpu_memory_utilization = deployment.gpu_memory_utilization;
    info.derivation = deployment.budget.lines;
    info.deviations = deployment.deviations;
    info.modelled_from = deployment.modelled_from;
    // The source line and its caret are for the terminal.
    for (const std::string& warning : warnings) info.warnings.push_back(warning.substr(0, warning.find('\n')));
    info.warnings.insert(info.warnings.end(), deployment.warnings.begin(), deployment.warnings.end());
    info.max_concurrency = scenario.workload.max_concurrency;
    if (const std::optional<ArrivalInfo> arrivals = configured_arrivals(scenario.workload)) {
        info.request_rate = arrivals->rate;
        info.burstiness = arrivals->burstiness;
    }
    info.slo = scenario.slo;
    info.paced_by_answers = !scenario.workload.users.is_null();
    for (const config::ClassConfig& c : scenario.workload.classes) {
        if (c.slo) info.class_slos[c.name] = *c.slo;
        const bool own_pace =
            c.arrivals.is_null() && (!c.users.is_null() || c.max_concurrency || !scenario.workload.users.is_null());
        info.paced_by_answers = info.paced_by_answers || own_pace;
    }
    info.exact_percentiles = scenario.metrics.exact_percentiles;
    return info;
}

/// Whether requests are meant to be sent at different times.
bool has_timetable(const Prepared& p) {
    if (p.info.request_rate) return std::isfinite(*p.info.request_rate);
    const config::WorkloadConfig& workload = p.scenario.workload;
    if (workload.trace.is_null()) return true;
    config::Diagnostics told;  // everything was checked when it was prepared
    const auto rows = make_workload(workload, static_cast<std::uint64_t>(p.scenario.seed), p.scenario.file.parent_path(), told);
    Arrival arrival;
    std::optional<SimTime> first;
    while (const auto time = rows ? rows->next_time() : std::nullopt) {
        if (first && *time != *first) return true;
        first = time;
        rows->pop(arrival);
    }
    return false;
}

}  // namespace

Prepared prepare(const std::filesystem::path& file, const std::vector<std::string>& sets, config::Diagnostics& diagnostics,
                 const std::filesystem::path& catalog, const std::vector<std::string>& overlays) {
    Prepared p;
    config::Value root = config::load_yaml(file, diagnostics);
    if (!diagnostics.ok()) return p;
    for (const std::string& overlay : overlays) config::merge(root, config::load_yaml(overlay, diagnostics), diagnostics);
    for (const std::string& assignment : sets) config::apply_set(root, assignment, diagnostics);
    p.scenario = config::read_scenario(root, file, diagnostics);
    if (!root.is_map()) return p;  // it lacks every key; that it is no map has been reported
    const std::size_t before = diagnostics.error_count();
    p.deployment = resolve_deployment(p.scenario, Catalog::open(catalog), diagnostics);
    if (const std::string why = p.deployment.unsupported_run(); !why.empty()) {
        diagnostics.error(p.scenario.model.mark, why + "; a run does not support that in this version (`kvsim memory` does)");
    }
    // An unnamed model follows from the GPU; without one that error is enough.
    if (diagnostics.error_count() == before || !p.scenario.step_time.name.empty())
        p.step_time = make_step_time(p.scenario.step_time, p.deployment, diagnostics);
    const auto seed = static_cast<std::uint64_t>(p.scenario.seed);
    p.router = make_router(p.scenario.router, seed, diagnostics);
    p.workload = make_workload(p.scenario.workload, seed, file.parent_path(), diagnostics);
    if (!diagnostics.ok()) return p;

    p.info = describe(p, diagnostics.warnings());
    p.options.engine = p.deployment.engine;
    p.options.engine.seed = seed;
    p.options.replicas = p.deployment.engine_replicas();
    p.options.api = p.deployment.api.value_or(p.step_time->default_api());
    p.options.tokenizer_ns = p.scenario.engine.tokenizer_time.ns;
    p.options.tokenizer_ns_per_token = p.scenario.engine.tokenizer_time_per_token.ns;
    p.options.cold_start = {p.scenario.engine.cold_start, p.scenario.engine.cold_start_slowdown};
    p.options.max_concurrency = p.scenario.workload.max_concurrency;
    // Where all requests come at once, only the limit says when each is meant to be sent.
    p.options.note_client_queue = p.options.max_concurrency ? has_timetable(p) : true;
    // Who gives up, waits at the client or belongs to a class is looked up in the records.
    const bool wanted = p.scenario.output.requests || p.scenario.metrics.exact_percentiles;
    const bool waits_at_client = p.options.max_concurrency && p.options.note_client_queue;
    const char* const needed = !p.scenario.workload.classes.empty() ? "classes"
                               : p.workload->may_cancel()           ? "timeouts and cancellations"
                               : waits_at_client                    ? "max_concurrency"
                               : p.scenario.slo.itl_p99             ? "slo.itl_p99"
                                                                    : nullptr;
    p.options.keep_requests = wanted || needed != nullptr;
    if (!wanted && needed != nullptr) {
        p.info.warnings.push_back(
            std::string("the record of every request is kept in spite of percentiles: histogram, 48 bytes and more each: ") +
            needed + " are looked up in it");
    }
    p.options.latency_from_intended =
        p.options.keep_requests && p.options.note_client_queue && !p.scenario.workload.latency_from_sent;
    p.options.itl_per_request = p.scenario.slo.itl_p99.has_value();
    for (const config::ClassConfig& c : p.scenario.workload.classes)
        p.options.itl_per_request = p.options.itl_per_request || (c.slo && c.slo->itl_p99);
    p.options.warmup_time = p.scenario.measure.warmup_time;
    p.options.warmup_requests = p.scenario.measure.warmup_requests;
    if (p.scenario.output.timeline) p.options.timeline_interval = p.scenario.output.timeline_interval;
    p.options.slo = p.scenario.slo;
    p.options.window = p.scenario.measure.window.value_or(SimDuration::zero());
    p.options.stop = &stop_requested();
    return p;
}

std::vector<Prepared> prepare_all(const std::vector<std::string>& files, const std::vector<std::string>& sets,
                                  const std::filesystem::path& catalog, const std::vector<std::string>& overlays) {
    std::vector<Prepared> all;
    std::string errors;
    for (const std::string& file : files) {
        try {
            config::Diagnostics diagnostics;
            all.push_back(prepare(file, sets, diagnostics, catalog, overlays));
            diagnostics.throw_if_errors();
        } catch (const UserError& e) {
            if (!errors.empty()) errors += '\n';
            errors += headed(e.what());
        }
    }
    if (!errors.empty()) throw UserError(errors);
    return all;
}

}  // namespace kvsim::app
