// Steps and requests through the event loop, in both forms.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kvsim/base/check.hpp"
#include "kvsim/engine/simulation.hpp"
#include "kvsim/report/summary.hpp"
#include "support.hpp"

namespace kvsim::bench {
namespace {

/// Simulates the scenario; setting it up is not timed.
Counters run(benchmark::State& state, const std::vector<std::string>& sets, EngineForm form) {
    state.PauseTiming();
    app::Prepared p = prepared(sets);
    p.options.form = form;
    state.ResumeTiming();
    return simulate(p.options, *p.step_time, *p.router, *p.workload).counters;
}

/// `range` requests that decode together for 16,000 steps; items are steps.
void decode_step(benchmark::State& state, EngineForm form) {
    const std::vector<std::string> sets{"workload.requests=" + std::to_string(state.range(0)),
                                        "workload.arrivals={process: all_at_once}", "engine.max_num_seqs=1024",
                                        "engine.num_gpu_blocks_override=2000000", "workload.output_tokens=16000"};
    std::int64_t steps = 0;
    for (auto _ : state) steps += run(state, sets, form).steps;
    KVSIM_CHECK(steps >= state.iterations() * 16'000, "everybody decodes to the end");
    state.SetItemsProcessed(steps);
}
BENCHMARK_CAPTURE(decode_step, together, EngineForm::fast)->Arg(8)->Arg(1024)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(decode_step, one_by_one, EngineForm::per_request)->Arg(8)->Unit(benchmark::kMillisecond);

/// The per-request engine of another preset, outputs of 3,000 tokens in the middle, 64 requests in the system; items are rows.
void other_preset(benchmark::State& state, const char* preset, EngineForm form) {
    const std::vector<std::string> sets{std::string("engine.preset=") + preset,
                                        "engine.enable_prefix_caching=false",
                                        "workload.requests=1000",
                                        "workload.max_concurrency=64",
                                        "workload.arrivals={process: all_at_once}",
                                        "workload.output_tokens={distribution: lognormal, p50: 3000, p90: 7600}"};
    std::int64_t rows = 0;
    for (auto _ : state) rows += run(state, sets, form).rows;
    state.SetItemsProcessed(rows);
}
BENCHMARK_CAPTURE(other_preset, sglang, "sglang", EngineForm::automatic)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(other_preset, sglang_one_by_one, "sglang", EngineForm::per_request)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(other_preset, vllm_v0, "vllm-v0", EngineForm::automatic)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(other_preset, vllm_v0_one_by_one, "vllm-v0", EngineForm::per_request)->Unit(benchmark::kMillisecond);

/// Block ids kept and every step recorded, as for a step log that nobody writes; items are requests.
void identities(benchmark::State& state) {
    std::int64_t requests = 0;
    std::int64_t blocks = 0;
    for (auto _ : state) {
        state.PauseTiming();
        app::Prepared p = prepared({"workload.requests=" + std::to_string(state.range(0))});
        p.options.on_step = [&blocks](std::int64_t, const StepRecord& record) { blocks += record.free_after_update; };
        state.ResumeTiming();
        requests += simulate(p.options, *p.step_time, *p.router, *p.workload).counters.completed;
    }
    KVSIM_CHECK(blocks > 0 && requests == state.iterations() * state.range(0), "everybody finishes");
    state.SetItemsProcessed(requests);
}
BENCHMARK(identities)->Arg(10'000)->Arg(20'000)->Arg(200'000)->Unit(benchmark::kMillisecond);

/// One-token outputs: each request is admitted, prefills and finishes in one step; items are requests.
void admit_and_finish(benchmark::State& state, EngineForm form) {
    const std::vector<std::string> sets{"workload.requests=50000", "workload.arrivals={process: all_at_once}",
                                        "workload.prompt_tokens=30", "workload.output_tokens=1"};
    std::int64_t requests = 0;
    for (auto _ : state) requests += run(state, sets, form).completed;
    KVSIM_CHECK(requests == state.iterations() * 50'000, "everybody finishes");
    state.SetItemsProcessed(requests);
}
BENCHMARK_CAPTURE(admit_and_finish, together, EngineForm::fast)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(admit_and_finish, one_by_one, EngineForm::per_request)->Unit(benchmark::kMillisecond);

/// Prices of steps: decoding only, and with two prompt chunks. Contexts change, so that nothing can be remembered.
void price_decode_line(benchmark::State& state) {
    const app::Prepared p = prepared({});
    std::int64_t rows = 0;
    for (auto _ : state) {
        const auto line = p.step_time->decode_line(rows % 256 + 1);
        benchmark::DoNotOptimize(line);
        ++rows;
    }
    state.SetItemsProcessed(state.iterations());
}
BENCHMARK(price_decode_line);

void price_decode_step(benchmark::State& state) {
    const app::Prepared p = prepared({});
    StepShape shape;
    shape.tokens = shape.sequences = shape.sampled = shape.decode_rows = 200;
    shape.decode_context = 100'000;
    for (auto _ : state) {
        shape.decode_context += 200;
        benchmark::DoNotOptimize(p.step_time->duration(shape));
    }
    state.SetItemsProcessed(state.iterations());
}
BENCHMARK(price_decode_step);

void price_mixed_step(benchmark::State& state) {
    const app::Prepared p = prepared({});
    std::vector<PrefillChunk> chunks{{400, 0}, {900, 0}};
    StepShape shape;
    shape.decode_rows = 200;
    shape.tokens = shape.decode_rows + 1300;
    shape.sequences = shape.sampled = shape.decode_rows + 2;
    shape.decode_context = 100'000;
    shape.chunks = chunks;
    for (auto _ : state) {
        shape.decode_context += 200;
        benchmark::DoNotOptimize(p.step_time->duration(shape));
    }
    state.SetItemsProcessed(state.iterations());
}
BENCHMARK(price_mixed_step);

/// Points of a sweep: whole runs with their set-up and statistics, each thread its own; items are runs.
void sweep_points(benchmark::State& state) {
    for (auto _ : state) {
        const app::Prepared p = prepared({"workload.requests=5000", "seed=" + std::to_string(state.thread_index() + 1)});
        const Outcome outcome = simulate(p.options, *p.step_time, *p.router, *p.workload);
        benchmark::DoNotOptimize(summarize(p.info, outcome));
    }
    state.SetItemsProcessed(state.iterations());
}
BENCHMARK(sweep_points)->Threads(1)->Threads(2)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvsim::bench
