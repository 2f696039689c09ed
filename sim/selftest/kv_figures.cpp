// KV figures from papers and engine logs, through the same calls as `kvsim memory`.

#include <fmt/format.h>

#include <cmath>
#include <tuple>

#include "kvsim/app/selftest.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/model/memory.hpp"

namespace kvsim::selftest {
namespace {

ModelSpec decoder(std::int64_t layers, std::int64_t heads, std::int64_t kv_heads) {
    ModelSpec m;
    m.layers = layers;
    m.heads = heads;
    m.kv_heads = kv_heads;
    m.head_dim = 128;
    return m;
}

double concurrency(std::int64_t blocks, std::int64_t max_model_len) {
    MemoryOptions options;
    options.num_gpu_blocks_override = blocks;
    options.max_model_len = max_model_len;
    config::Diagnostics diagnostics;
    const auto budget = derive_kv_budget(options, {}, diagnostics);
    diagnostics.throw_if_errors();
    KVSIM_CHECK(budget, "a budget that was told");
    return budget->concurrency;
}

}  // namespace

void add_kv_figures(std::vector<Case>& all) {
    // OPT: as many KV heads as heads, 16 bit; the slots of the PagedAttention paper's table.
    for (const auto& [name, layers, heads, gib, slots] :
         {std::tuple{"13B", 40, 40, 12, 15'728}, std::tuple{"66B", 64, 72, 21, 9'557}, std::tuple{"175B", 96, 96, 264, 60'074}})
        all.push_back({fmt::format("OPT-{}: token slots in {} GiB", name, gib), static_cast<double>(slots), 0, 1,
                       [layers = layers, heads = heads, gib = gib](std::uint64_t) {
                           return static_cast<double>(
                               blocks_in(gib * GiB, kv_bytes_per_token(decoder(layers, heads, heads), 1, 1, 2), 1));
                       }});
    // Contiguous reservation of max_model_len ("Max" of the same paper): whole requests, and what no request can use.
    const auto whole_requests = [](std::uint64_t) { return std::floor(concurrency(983, 2'048)); };
    all.push_back({"OPT-13B in 12 GiB: requests that reserve 2,048 slots each", 7, 0, 1, whole_requests});
    all.push_back({"OPT-13B in 12 GiB: share of the slots they leave", 0.0885, 0.00005, 1,
                   [whole_requests](std::uint64_t seed) { return 1 - whole_requests(seed) / concurrency(983, 2'048); }});
    // Per rank, 16 bit: layers x 2 x KV heads x head_dim x 2, more ranks than KV heads repeat them.
    for (const auto& [name, layers, kv_heads, tp, bytes] :
         {std::tuple{"OPT-13B", 40, 40, 1, 819'200}, std::tuple{"OPT-66B", 64, 72, 1, 2'359'296},
          std::tuple{"OPT-175B", 96, 96, 1, 4'718'592}, std::tuple{"Llama-2-7B", 32, 32, 1, 524'288},
          std::tuple{"Llama-3.1-8B, Mistral-7B", 32, 8, 1, 131'072}, std::tuple{"Llama-3-70B", 80, 8, 1, 327'680},
          std::tuple{"Qwen2.5-7B", 28, 4, 1, 57'344}, std::tuple{"Qwen3-32B", 64, 8, 1, 262'144},
          std::tuple{"Qwen3-235B-A22B, TP 4", 94, 4, 4, 48'128}, std::tuple{"Qwen3-235B-A22B, TP 8", 94, 4, 8, 48'128}})
        all.push_back({fmt::format("KV bytes per token: {}", name), static_cast<double>(bytes), 0, 1,
                       [layers = layers, kv_heads = kv_heads, tp = tp](std::uint64_t) {
                           return static_cast<double>(kv_bytes_per_token(decoder(layers, 64, kv_heads), tp, 1, 2));
                       }});
    // Multi-head latent attention is not divided by TP.
    for (const std::int64_t tp : {1, 8})
        all.push_back({fmt::format("KV bytes per token: DeepSeek-V3, TP {}", tp), 70'272, 0, 1, [tp](std::uint64_t) {
                           ModelSpec m = decoder(61, 128, 128);
                           m.mla.kv_lora_rank = 512;
                           m.mla.qk_rope_head_dim = 64;
                           return static_cast<double>(kv_bytes_per_token(m, tp, 1, 2));
                       }});
    all.push_back({"Qwen2.5-7B: blocks of 16 in 16 GiB", 18'724, 0, 1, [](std::uint64_t) {
                       return static_cast<double>(blocks_in(16 * GiB, kv_bytes_per_token(decoder(28, 28, 4), 1, 1, 2), 16));
                   }});
    // The log prints GiB to two decimals: +- 0.005 GiB is 73 tokens.
    all.push_back({"gpt-oss-120b: tokens in 5.38 GiB at 73,728 B", 78'384, 73, 1,
                   [](std::uint64_t) { return static_cast<double>(16 * blocks_in(538 * GiB / 100, 73'728, 16)); }});
    // Engine start-up logs, to the two decimals they print.
    for (const auto& [blocks, length, known] : {std::tuple{1'381, 2'048, 10.79}, std::tuple{50'231, 32'768, 24.53}})
        all.push_back({fmt::format("concurrency of {} blocks at max_model_len {}", blocks, length), known, 0.005, 1,
                       [blocks = blocks, length = length](std::uint64_t) { return concurrency(blocks, length); }});
}

}  // namespace kvsim::selftest
