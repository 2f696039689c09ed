// KV figures from papers, lessons and engine logs, through the same calls as `kvsim memory`. Bytes per token of published
// models and the blocks of start-up logs are in tests/unit/model/memory_test.cpp.

#include <doctest/doctest.h>

#include "kvsim/model/memory.hpp"

namespace kvsim::theory {
namespace {

/// A plain decoder: 128-wide heads.
ModelSpec decoder(std::int64_t layers, std::int64_t kv_heads) {
    ModelSpec m;
    m.layers = layers;
    m.heads = 32;
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
    REQUIRE(budget.has_value());
    CHECK(budget->tokens == blocks * 16);
    return budget->concurrency;
}

}  // namespace

TEST_CASE("theory: live tokens of a textbook model") {
    // 32 layers, 8 KV heads of 128, 16 bit: 128 KiB a token, so 8,192 tokens are 1 GiB.
    const std::int64_t per_token = kv_bytes_per_token(decoder(32, 8), 1, 1, 2);
    CHECK(per_token == 128 * KiB);
    CHECK(8'192 * per_token == GiB);
    const std::int64_t tokens = blocks_in(12 * GiB, per_token, 1);
    CHECK(tokens == 98'304);
    CHECK(tokens / 1'024 == 96);
    CHECK(tokens / 8'192 == 12);
    CHECK(tokens / 32'768 == 3);
    // 40 layers: 160 KiB.
    CHECK(blocks_in(20 * GiB, kv_bytes_per_token(decoder(40, 8), 1, 1, 2), 1) == 131'072);
    CHECK(kv_bytes_per_token(decoder(32, 8), 8, 1, 2) == 16 * KiB);
    CHECK(kv_bytes_per_token(decoder(32, 8), 16, 1, 2) == 16 * KiB);
    CHECK(kv_bytes_per_token(decoder(32, 8), 1, 1, 1) == 64 * KiB);
}

TEST_CASE("theory: the concurrency engines log, to the digits they print") {
    CHECK(concurrency(1'381, 2'048) == doctest::Approx(10.79).epsilon(0.005 / 10.79));
    CHECK(concurrency(50'231, 32'768) == doctest::Approx(24.53).epsilon(0.005 / 24.53));
    // A request of one token more than whole blocks needs one block more.
    CHECK(concurrency(1'381, 2'049) == doctest::Approx(1'381.0 / 129));
}

}  // namespace kvsim::theory
