// What a run costs besides simulating: set-up and files.

#include <benchmark/benchmark.h>

#include <cstdint>

#include "kvsim/engine/simulation.hpp"
#include "kvsim/report/writers.hpp"
#include "support.hpp"

namespace kvsim::bench {
namespace {

/// Scenario and catalogue read and checked, every piece built.
void load_scenario(benchmark::State& state) {
    for (auto _ : state) benchmark::DoNotOptimize(prepared({}).options.replicas);
}
BENCHMARK(load_scenario)->Unit(benchmark::kMicrosecond);

/// The same and the first request through the engine.
void set_up_to_first_event(benchmark::State& state) {
    for (auto _ : state) {
        const app::Prepared p = prepared({"workload.requests=1", "workload.output_tokens=1"});
        benchmark::DoNotOptimize(simulate(p.options, *p.step_time, *p.router, *p.workload).counters.completed);
    }
}
BENCHMARK(set_up_to_first_event)->Unit(benchmark::kMicrosecond);

/// Items are rows.
void write_requests(benchmark::State& state) {
    const Outcome outcome = finished_run(100'000);
    const std::filesystem::path path = scratch() / "requests.csv";
    for (auto _ : state) write_requests_csv(path, outcome, {});
    state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(outcome.requests.size()));
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(std::filesystem::file_size(path)));
}
BENCHMARK(write_requests)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvsim::bench
