#pragma once
// A bijective 64-bit mixer for hash keys.

#include <cstdint>

namespace kvsim {

/// Xor-shift and multiply, twice; every input bit reaches every output bit.
constexpr std::uint64_t mix(std::uint64_t x) {
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ULL;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ULL;
    x ^= x >> 32;
    return x;
}

}  // namespace kvsim
