#pragma once
// A run small enough to compute every column by hand.

#include <cstdint>
#include <filesystem>
#include <string>

#include "kvsim/base/file.hpp"
#include "kvsim/engine/outcome.hpp"
#include "kvsim/report/run_info.hpp"

namespace kvsim::test {

constexpr SimDuration ms(std::int64_t n) {
    return std::chrono::milliseconds(n);
}

inline RequestRecord request(SimDuration arrival, std::int32_t prompt, std::int32_t output, SimDuration queue, SimDuration ttft,
                             SimDuration e2e) {
    RequestRecord r;
    r.arrival = SimTime(arrival);
    r.prompt_tokens = prompt;
    r.output_tokens = output;
    r.queue = queue;
    r.ttft = ttft;
    r.e2e = e2e;
    r.finish = FinishReason::length;
    return r;
}

inline RunInfo sample_info() {
    RunInfo info;
    info.scenario = "sample";
    info.scenario_hash = "0123456789abcdef";
    info.version = "9.8.7";
    info.seed = 42;
    info.model = "org/model-8B";
    info.gpu = "H100";
    info.tensor_parallel_size = 2;
    info.engine.num_gpu_blocks = 101;
    info.engine.block_size = 16;
    info.engine.max_num_seqs = 8;
    info.engine.max_num_batched_tokens = 512;
    info.engine.max_model_len = 800;
    info.kv_policy = "paged_prefix";
    info.step_time_model = "constant";
    info.step_time_description = "constant: 10 ms a step";
    info.kv_bytes_per_token = 65536;
    info.derivation = {"budget 10 GiB", "- weights 8 GiB"};
    info.deviations = {"max_num_seqs=8 (vllm-v1: 1024)"};
    info.warnings = {"a warning of the configuration"};
    info.request_rate = 4;
    info.slo.ttft = ms(100);
    info.slo.tpot = ms(20);
    return info;
}

/// Four requests at 0, 0.5, 1 and 1.5 s: three complete, the last is rejected. The run ends at 2.5 s.
inline Outcome sample_outcome() {
    Outcome o;
    o.requests = {
        request(ms(0), 100, 11, ms(0), ms(50), ms(150)),         // TPOT 10 ms: meets the SLO
        request(ms(500), 200, 1, ms(20), ms(80), ms(80)),        // one output token: no TPOT, meets the SLO
        request(ms(1000), 300, 31, ms(140), ms(200), ms(1500)),  // TTFT too late; TPOT 43.333333 ms
        request(ms(1500), 900, 0, ms(0), ms(0), ms(0)),
    };
    o.requests[2].preemptions = 2;
    o.recomputed_tokens.add(2, 310, 4);
    o.cached_prompt_tokens.add(1, 64, 4);
    o.requests[3].finish = FinishReason::rejected;
    o.requests[3].queue = o.requests[3].ttft = o.requests[3].e2e = SimDuration(-1);
    // Below 2^11 ns every value has its own bin, so even the percentiles are exact.
    o.itl.add(1000, 30);
    o.itl.add(2000, 10);
    o.usable_blocks = 100;
    o.block_size = 16;
    o.first_arrival = SimTime(ms(0));
    o.last_arrival = SimTime(ms(1500));
    o.end = SimTime(ms(2500));
    Integrals& i = o.integrals;
    i.bound = {ms(500), ms(250), ms(125), ms(1625)};  // kv_blocks, seats, token_budget, no_waiting: 2.5 s
    i.blocks_used_dt = static_cast<Int128>(25) * 2'500'000'000;
    i.blocks_used_peak = 80;
    i.slots_busy_dt = 1600;
    i.slots_token_dt = 1000;
    i.slots_reserved_dt = 200;
    i.slots_internal_dt = 80;
    i.idle = ms(500);
    i.any_waiting = ms(1000);
    i.finished_while_waiting = 2;
    i.stepping = ms(2000);
    i.recompute_ns = 5e8;
    Counters& c = o.counters;
    c.arrivals = 4;
    c.completed = 3;
    c.rejected = 1;
    c.steps = 40;
    c.rows = 60;
    c.tokens = 1000;
    c.preemptions = 2;
    c.preempted_requests = 1;
    c.recomputed_tokens = 310;
    c.hit_tokens_first = 64;
    c.prompt_tokens_first = 640;
    c.hit_tokens_resume = 30;
    c.tokens_resume = 600;
    c.completed_by_last_arrival = 2;
    c.waiting_at_last_arrival = 1;
    c.max_in_system = 3;
    c.max_output_tokens_per_s = 25;
    return o;
}

/// A file that is gone when the test is.
struct TemporaryFile {
    std::filesystem::path path;
    explicit TemporaryFile(const std::string& name)
        : path(std::filesystem::temp_directory_path() / ("kvsim-report-test-" + name)) {
        std::filesystem::remove(path);
    }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;
    ~TemporaryFile() { std::filesystem::remove(path); }
    [[nodiscard]] std::string text() const { return read_file(path); }
};

}  // namespace kvsim::test
