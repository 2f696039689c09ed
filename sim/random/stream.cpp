#include "kvsim/random/stream.hpp"

namespace kvsim {

namespace {

// Stafford's mix 13, the finaliser of splitmix64: a bijection, so two seeds never share a key under one purpose.
std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
}

std::uint64_t fnv1a(std::string_view text) {
    std::uint64_t hash = 0xCBF29CE484222325ULL;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
    return hash;
}

}  // namespace

StreamKey::StreamKey(std::uint64_t seed, std::string_view purpose) {
    const std::uint64_t key = mix(mix(seed + 0x9E3779B97F4A7C15ULL) ^ fnv1a(purpose));
    schedule_ = philox_schedule({static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
}

}  // namespace kvsim
