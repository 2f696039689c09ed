#pragma once
// The dimensions a result carries: a token-per-second number without them means little.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kvsim/config/scenario.hpp"
#include "kvsim/engine/outcome.hpp"
#include "kvsim/model/engine_args.hpp"

namespace kvsim {

struct RunInfo {
    std::string scenario;
    std::string scenario_hash;
    std::string version;
    std::int64_t seed = 1;
    std::string model;
    std::string gpu;  ///< empty: none named
    std::int64_t tensor_parallel_size = 1;
    std::int64_t pipeline_parallel_size = 1;
    std::int64_t data_parallel_size = 1;
    EngineArgs engine;
    std::string kv_policy;  ///< PolicyArgs::kv, else "paged", "paged_prefix" or "radix"
    std::string preemption = "recompute";
    std::string step_time_model;          ///< constant | affine | roofline | fitted | ...
    std::string step_time_description;    ///< StepTimeModel::describe()
    std::int64_t kv_bytes_per_token = 0;  ///< per rank; 0: unknown
    double gpu_memory_utilization = 0;    ///< 0: not used
    std::vector<std::string> derivation;  ///< the KV budget term by term, one line each, ready to print
    std::string modelled_from;            ///< as Deployment::modelled_from
    std::vector<std::string> deviations;  ///< "max_num_seqs=64 (vllm-v1: 1024)"
    std::vector<std::string> warnings;
    std::optional<std::int64_t> max_concurrency;
    std::optional<double> request_rate;  ///< configured rate, requests/s; infinity = all at once; nullopt = trace
    double burstiness = 1;
    bool paced_by_answers = false;         ///< users wait for answers, so the rate says nothing about the load
    std::optional<double> capacity_req_s;  ///< served when work never runs out (engine/capacity.hpp); nullopt: not known
    config::SloConfig slo;
    std::map<std::string, config::SloConfig> class_slos;  ///< of classes with one of their own
    [[nodiscard]] bool any_slo() const {
        for (const auto& [name, own] : class_slos) {
            if (own.any()) return true;
        }
        return slo.any();
    }
    bool exact_percentiles = true;
};

}  // namespace kvsim
