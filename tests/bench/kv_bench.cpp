// The two KV managers; items are requests or blocks.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kvsim/engine/kv_manager.hpp"
#include "kvsim/engine/run_kv.hpp"
#include "kvsim/model/token_ids.hpp"

namespace kvsim::bench {
namespace {

constexpr std::int64_t block_size = 16;
constexpr std::int64_t usable = 30'000;
constexpr std::int64_t shared_tokens = 1'000;
constexpr std::int64_t own_tokens = 500;
constexpr std::int64_t prompt_tokens = shared_tokens + own_tokens;
constexpr std::int64_t prompt_blocks = (prompt_tokens + block_size - 1) / block_size;

/// A prompt with one of ten system prompts in front.
void make_prompt(std::vector<TokenRun>& content, RequestId id) {
    content.assign({{prefix_base(id % 10), shared_tokens}, {own_prompt_base(id), own_tokens}});
}

/// Look-up, admission, registration and release of one request while 100 others hold theirs.
void run_kv_request(benchmark::State& state, bool ids) {
    RunKv kv(usable, block_size, true);
    if (ids) kv.keep_ids();
    struct Request {
        std::vector<TokenRun> content;
        std::vector<BlockId> table;
        RunKv::Holding holding;
    };
    std::vector<Request> held(100);
    RequestId id = 0;
    for (auto _ : state) {
        Request& request = held[id % held.size()];
        if (id >= held.size()) kv.release(request.holding, request.holding.path_blocks + request.holding.own_blocks, -1);
        make_prompt(request.content, id);
        request.holding = {};
        request.holding.table = &request.table;
        request.holding.content = &request.content;
        request.holding.shareable = kv.shareable_blocks(request.content);
        const PrefixHit hit = kv.lookup(request.holding, prompt_tokens);
        kv.admit(request.holding, hit, prompt_blocks - hit.blocks);
        kv.publish(request.holding, prompt_tokens);
        ++id;
    }
    state.SetItemsProcessed(state.iterations());
}
BENCHMARK_CAPTURE(run_kv_request, runs, false);
BENCHMARK_CAPTURE(run_kv_request, with_ids, true);

/// The same block by block, with ids and hashes.
void paged_kv_request(benchmark::State& state) {
    const std::unique_ptr<KvManager> kv = make_paged_kv(usable, block_size, true);
    std::vector<LiveRequest> held(100);
    RequestId id = 0;
    for (auto _ : state) {
        LiveRequest& request = held[id % held.size()];
        if (id >= held.size()) kv->release(request);
        request.registered = 0;
        request.keys.clear();
        request.id = id;
        request.prompt = prompt_tokens;
        make_prompt(request.content, id);
        const PrefixHit hit = kv->lookup(request);
        kv->admit(request, hit, prompt_tokens);
        kv->publish(request, prompt_tokens);
        ++id;
    }
    state.SetItemsProcessed(state.iterations());
}
BENCHMARK(paged_kv_request);

/// 64 blocks taken one by one and given back, without caching; items are blocks.
void paged_block_take_release(benchmark::State& state) {
    const std::unique_ptr<KvManager> kv = make_paged_kv(usable, block_size, false);
    LiveRequest request;
    request.prompt = 64 * block_size;
    for (auto _ : state) {
        kv->admit(request, {}, 1);
        for (int i = 1; i < 64; ++i) kv->extend(request, 0, 1);
        kv->release(request);
    }
    state.SetItemsProcessed(state.iterations() * 64);
}
BENCHMARK(paged_block_take_release);

}  // namespace
}  // namespace kvsim::bench
