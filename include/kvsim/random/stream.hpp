#pragma once
// Counter-based random streams. A stream is addressed by (seed, purpose, index): a new purpose disturbs no other stream, and
// what request i draws does not depend on what was drawn before it.

#include <array>
#include <cstdint>
#include <string_view>

namespace kvsim {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

/// The keys of the ten rounds: they depend on the key alone, so a stream key keeps them.
using PhiloxSchedule = std::array<PhiloxKey, 10>;
constexpr PhiloxSchedule philox_schedule(PhiloxKey key) {
    PhiloxSchedule schedule{};
    for (PhiloxKey& round : schedule) {
        round = key;
        key[0] += 0x9E3779B9;
        key[1] += 0xBB67AE85;
    }
    return schedule;
}

/// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
constexpr PhiloxCounter philox4x32_scheduled(PhiloxCounter counter, const PhiloxSchedule& schedule) {
    for (const PhiloxKey& key : schedule) {
        const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
        const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
        counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
                   static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    }
    return counter;
}
constexpr PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
    return philox4x32_scheduled(counter, philox_schedule(key));
}

/// 64 bits -> a double in the open interval (0, 1): an odd multiple of 2^-53, so neither 0 nor 1 occurs, 1 - u is exact and
/// on the same grid.
constexpr double to_uniform(std::uint64_t bits) {
    return static_cast<double>((bits >> 11) | 1) * 0x1p-53;
}

/// The streams of one (seed, purpose). Purposes are short names ("arrivals", "prompt_tokens") and are part of a run's identity:
/// renaming one changes results.
class StreamKey {
public:
    StreamKey(std::uint64_t seed, std::string_view purpose);
    [[nodiscard]] PhiloxKey key() const { return schedule_.front(); }
    [[nodiscard]] const PhiloxSchedule& schedule() const { return schedule_; }
    /// The first 64 bits of stream `index`.
    [[nodiscard]] std::uint64_t first_u64(std::uint64_t index) const {
        const PhiloxCounter block =
            philox4x32_scheduled({0, 0, static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32)}, schedule_);
        return (std::uint64_t{block[1]} << 32) | block[0];
    }
    /// The first uniform() of stream `index`: the cheap form for one draw per request.
    [[nodiscard]] double first_uniform(std::uint64_t index) const { return to_uniform(first_u64(index)); }

private:
    PhiloxSchedule schedule_;
};

/// One stream; draw d of it is a pure function of (seed, purpose, index, d). Not copyable: a copy would repeat its draws.
class Stream {
public:
    Stream(const StreamKey& key, std::uint64_t index) : key_(key.key()), index_(index) {}
    Stream(std::uint64_t seed, std::string_view purpose, std::uint64_t index = 0) : Stream(StreamKey(seed, purpose), index) {}
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    std::uint64_t next_u64() {
        const std::size_t half = draws_ & 1;
        if (half == 0) {
            const std::uint64_t block = draws_ >> 1;
            block_ = philox4x32({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                                 static_cast<std::uint32_t>(index_), static_cast<std::uint32_t>(index_ >> 32)},
                                key_);
        }
        ++draws_;
        return (std::uint64_t{block_[2 * half + 1]} << 32) | block_[2 * half];
    }
    double uniform() { return to_uniform(next_u64()); }

private:
    PhiloxKey key_;
    std::uint64_t index_;
    std::uint64_t draws_ = 0;
    PhiloxCounter block_{};
};

}  // namespace kvsim
