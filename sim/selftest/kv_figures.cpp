// KV figures from papers and engine logs, through the same calls as `kvsim memory`.

#include <fmt/format.h>

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
    // Engine start-up logs, to the two decimals they print.
    for (const auto& [blocks, length, known] : {std::tuple{1'381, 2'048, 10.79}, std::tuple{50'231, 32'768, 24.53}})
        all.push_back({fmt::format("concurrency of {} blocks at max_model_len {}", blocks, length), known, 0.005, 1,
                       [blocks = blocks, length = length](std::uint64_t) { return concurrency(blocks, length); }});
}

}  // namespace kvsim::selftest
