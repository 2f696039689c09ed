// Histogram, quantiles, random draws and length laws.

#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvsim/base/histogram.hpp"
#include "kvsim/model/workload_pieces.hpp"
#include "kvsim/random/draw_buffer.hpp"
#include "kvsim/random/stream.hpp"
#include "kvsim/report/quantile.hpp"
#include "kvsim/report/summary.hpp"
#include "support.hpp"

namespace kvsim::bench {
namespace {

/// Latencies in ns: uniform in the exponent, so that every bin size occurs.
std::vector<std::int64_t> latencies(std::int64_t count) {
    Stream stream(1, "bench");
    std::vector<std::int64_t> values(static_cast<std::size_t>(count));
    for (std::int64_t& value : values) {
        const std::uint64_t bits = stream.next_u64();
        value = static_cast<std::int64_t>((bits >> 32) >> (bits % 16));
    }
    return values;
}

void histogram_add(benchmark::State& state) {
    const std::vector<std::int64_t> values = latencies(4096);
    LogLinearHistogram histogram;
    std::size_t i = 0;
    for (auto _ : state) histogram.add(values[i++ & 4095], 3);
    benchmark::DoNotOptimize(histogram.count());
    state.SetItemsProcessed(state.iterations());
}
BENCHMARK(histogram_add);

void histogram_quantile(benchmark::State& state) {
    LogLinearHistogram histogram;
    for (const std::int64_t value : latencies(100'000)) histogram.add(value);
    for (auto _ : state) benchmark::DoNotOptimize(histogram.quantile(0.99));
}
BENCHMARK(histogram_quantile)->Unit(benchmark::kMicrosecond);

/// p50, p90, p95 and p99 of one column; items are values.
void exact_quantiles(benchmark::State& state) {
    const std::vector<std::int64_t> column = latencies(state.range(0));
    constexpr std::array qs{0.5, 0.9, 0.95, 0.99};
    for (auto _ : state) benchmark::DoNotOptimize(quantiles(column, qs));
    state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(exact_quantiles)->Arg(1'000)->Arg(1'000'000)->Unit(benchmark::kMicrosecond);

/// All figures of a run; items are requests.
void summary(benchmark::State& state) {
    const Outcome outcome = finished_run(state.range(0));
    const RunInfo info = prepared({}).info;
    for (auto _ : state) benchmark::DoNotOptimize(summarize(info, outcome));
    state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(summary)->Arg(100'000)->Unit(benchmark::kMillisecond);

void philox_draw(benchmark::State& state) {
    const StreamKey key(1, "bench");
    std::uint64_t i = 0;
    for (auto _ : state) benchmark::DoNotOptimize(key.first_u64(i++));
    state.SetItemsProcessed(state.iterations());
}
BENCHMARK(philox_draw);

void philox_draws(benchmark::State& state) {
    const StreamKey key(1, "bench");
    std::array<std::uint64_t, 64> draws;
    std::uint64_t i = 0;
    for (auto _ : state) {
        first_draws(key, i, draws);
        benchmark::DoNotOptimize(draws.data());
        benchmark::ClobberMemory();
        i += draws.size();
    }
    state.SetItemsProcessed(static_cast<std::int64_t>(i));
}
BENCHMARK(philox_draws);

void length_law(benchmark::State& state, const char* text) {
    const config::Value tree = yaml(std::string("tokens: ") + text);
    config::Diagnostics diagnostics;
    const std::unique_ptr<LengthLaw> law = make_length_law(*tree.find("tokens"), "tokens", diagnostics);
    if (!law) return state.SkipWithError("the law was refused");
    const StreamKey key(1, "bench");
    std::uint64_t i = 0;
    for (auto _ : state) benchmark::DoNotOptimize(law->sample(key.first_uniform(i++)));
    state.SetItemsProcessed(state.iterations());
}
BENCHMARK_CAPTURE(length_law, constant, "512");
BENCHMARK_CAPTURE(length_law, uniform, "{distribution: uniform, min: 100, max: 900}");
BENCHMARK_CAPTURE(length_law, exponential, "{distribution: exponential, mean: 500}");
BENCHMARK_CAPTURE(length_law, geometric, "{distribution: geometric, mean: 500}");
BENCHMARK_CAPTURE(length_law, lognormal, "{distribution: lognormal, p50: 400, p90: 1000}");
BENCHMARK_CAPTURE(length_law, lognormal_bounded, "{distribution: lognormal, p50: 400, p90: 1000, max: 2000}");
BENCHMARK_CAPTURE(length_law, empirical, "{distribution: empirical, quantiles: {0: 10, 0.5: 300, 0.9: 900, 1: 4000}}");

void arrival_process(benchmark::State& state, const char* text) {
    const config::Value tree = yaml(text);
    config::Diagnostics diagnostics;
    const std::unique_ptr<ArrivalProcess> arrivals = make_arrivals(tree, 1, 1, diagnostics);
    if (!arrivals) return state.SkipWithError("the process was refused");
    std::uint64_t i = 0;
    for (auto _ : state) benchmark::DoNotOptimize(arrivals->gap_ns(i++));
    state.SetItemsProcessed(state.iterations());
}
BENCHMARK_CAPTURE(arrival_process, constant, "{process: constant, rate: 40/s}");
BENCHMARK_CAPTURE(arrival_process, poisson, "{process: poisson, rate: 40/s}");
BENCHMARK_CAPTURE(arrival_process, gamma_bursty, "{process: gamma, rate: 40/s, burstiness: 0.5}");
BENCHMARK_CAPTURE(arrival_process, gamma_smooth, "{process: gamma, rate: 40/s, burstiness: 4}");

/// The whole synthetic workload; items are requests.
void synthetic_request(benchmark::State& state) {
    const app::Prepared p = prepared({"workload.requests=1000000000"});
    Arrival arrival;
    for (auto _ : state) {
        benchmark::DoNotOptimize(p.workload->next_time());
        p.workload->pop(arrival);
        benchmark::DoNotOptimize(arrival.prompt_tokens);
    }
    state.SetItemsProcessed(state.iterations());
}
BENCHMARK(synthetic_request);

/// The same, many at once.
void synthetic_plain(benchmark::State& state) {
    const app::Prepared p = prepared({"workload.requests=1000000000"});
    std::span<const PlainArrival> ahead;
    for (auto _ : state) {
        if (ahead.empty()) ahead = p.workload->take_plain();
        benchmark::DoNotOptimize(ahead.front());
        ahead = ahead.subspan(1);
    }
    state.SetItemsProcessed(state.iterations());
}
BENCHMARK(synthetic_plain);

}  // namespace
}  // namespace kvsim::bench
