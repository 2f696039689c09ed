#pragma once
// Scenarios small enough to work out by hand: every step takes 10 ns.

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "kvsim/engine/simulation.hpp"

namespace kvsim::engine_test {

struct Spec {
    std::int64_t at = 0;  ///< ns
    std::int64_t prompt = 1;
    std::int64_t output = 1;
};

class Requests final : public Workload {
public:
    explicit Requests(std::vector<Spec> specs) : specs_(std::move(specs)) {}
    std::optional<SimTime> next_time() override {
        if (next_ == specs_.size()) return std::nullopt;
        return SimTime(SimDuration(specs_[next_].at));
    }
    void pop(Arrival& out) override {
        const Spec& s = specs_[next_++];
        out = {};
        out.time = SimTime(SimDuration(s.at));
        out.prompt_tokens = s.prompt;
        out.output_tokens = s.output;
    }
    [[nodiscard]] bool listens() const override { return true; }
    void finished(RequestId id, SimTime now, FinishReason, std::int64_t) override { left[id] = now.time_since_epoch().count(); }
    [[nodiscard]] bool closed_loop() const override { return false; }
    [[nodiscard]] bool outputs_are_private() const override { return true; }

    std::map<RequestId, std::int64_t> left;  ///< by request, ns

private:
    std::vector<Spec> specs_;
    std::size_t next_ = 0;
};

struct TenNanoseconds final : StepTimeModel {
    [[nodiscard]] SimDuration duration(const StepShape&) const override { return SimDuration(10); }
    [[nodiscard]] std::optional<DecodeLine> decode_line(std::int64_t) const override { return DecodeLine{10, 0}; }
    [[nodiscard]] std::string describe() const override { return "10 ns"; }
};

struct InTurn final : Router {
    std::size_t pick(const Arrival&, std::span<const ReplicaLoad> loads) override { return next++ % loads.size(); }
    std::size_t next = 0;
};

/// Roomy, synchronous, no caching.
inline SimulationOptions roomy(bool async = false) {
    SimulationOptions options;
    options.engine.num_gpu_blocks = 1001;
    options.engine.block_size = 4;
    options.engine.max_num_seqs = 16;
    options.engine.max_num_batched_tokens = 64;
    options.engine.max_model_len = 128;
    options.engine.enable_prefix_caching = false;
    options.engine.async_scheduling = async;
    return options;
}

inline Outcome run(const SimulationOptions& options, Requests& requests) {
    InTurn router;
    return simulate(options, TenNanoseconds{}, router, requests);
}
inline Outcome run(const SimulationOptions& options, std::vector<Spec> specs) {
    Requests requests(std::move(specs));
    return run(options, requests);
}

/// Runs the check on the outcome of either engine form.
template <class Check>
void in_both_forms(SimulationOptions options, const std::vector<Spec>& specs, Check&& check) {
    for (const EngineForm form : {EngineForm::per_request, EngineForm::fast}) {
        CAPTURE(form == EngineForm::fast);
        options.form = form;
        check(run(options, specs));
    }
}

/// Every step record of the one replica.
inline std::vector<StepRecord> records(SimulationOptions options, const std::vector<Spec>& specs) {
    std::vector<StepRecord> out;
    options.on_step = [&out](std::int64_t, const StepRecord& record) { out.push_back(record); };
    run(options, specs);
    return out;
}

inline std::int64_t ns(SimDuration d) {
    return d.count();
}
inline std::int64_t ns(SimTime t) {
    return t.time_since_epoch().count();
}

}  // namespace kvsim::engine_test
