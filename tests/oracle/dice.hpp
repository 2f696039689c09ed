#pragma once
// Whole numbers for random scenarios, the same everywhere.

#include <cstdint>

namespace kvsim::oracle {

/// SplitMix64.
class Dice {
public:
    explicit Dice(std::uint64_t state) : state_(state) {}
    /// In [low, high].
    std::int64_t range(std::int64_t low, std::int64_t high) {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
        z ^= z >> 31;
        return low + static_cast<std::int64_t>(z % static_cast<std::uint64_t>(high - low + 1));
    }
    bool percent(std::int64_t share) { return range(0, 99) < share; }

private:
    std::uint64_t state_;
};

}  // namespace kvsim::oracle
