#pragma once
// Draws from a length law by table look-up instead of logarithms and exponentials, with the law's own result on every draw.

#include <cstdint>
#include <span>
#include <vector>

#include "kvsim/model/workload_pieces.hpp"
#include "kvsim/random/stream.hpp"

namespace kvsim {

/// The thresholds between neighbouring lengths in u, found by LengthLaw::up_to(), behind a guide table. A draw so close to a
/// threshold that rounding could matter (2^-40), or beyond the last one, is left to the law's formula: so every draw gives what
/// sample(to_uniform(bits)) gives, table or not, and monotone draws stay monotone.
class LengthTable {
public:
    explicit LengthTable(const LengthLaw& law) : law_(law) {}

    /// Worth it when many draws follow: the number of entries grows with `draws`, up to 1 MiB. Without it, or where the law
    /// has no thresholds or too many, sample() is the law's.
    void build(std::int64_t draws);

    [[nodiscard]] std::int64_t sample(std::uint64_t bits) const {
        if (last_ != 0) {
            std::size_t k = guide_[bits >> guide_shift_];
            if (k >= whole_cell) return static_cast<std::int64_t>(k - whole_cell);
            const std::uint64_t u = bits >> 11 | 1;  // of 2^53
            while (u > upper_[k]) ++k;
            if (k < last_ && u + 2 * guard < upper_[k]) return first_ + static_cast<std::int64_t>(k);
        }
        return law_.sample(to_uniform(bits));
    }
    /// The same for each of `bits`, into as many.
    void sample(std::span<const std::uint64_t> bits, std::span<std::int64_t> out) const;
    [[nodiscard]] std::size_t size() const { return last_; }

    static constexpr std::uint64_t guard = std::uint64_t{1} << 13;  ///< 2^-40 in units of 2^-53

private:
    static constexpr std::uint32_t whole_cell = std::uint32_t{1} << 31;

    const LengthLaw& law_;
    std::int64_t first_ = 0;            // the shortest length
    std::size_t last_ = 0;              // entries; upper_[last_] stops the search
    std::vector<std::uint64_t> upper_;  // k: u at or below threshold k + guard is at most length first_ + k
    // By leading bits of u: whole_cell + the length if all u that begin so have the same, else the first k whose upper_ is not
    // below all of them.
    std::vector<std::uint32_t> guide_;
    int guide_shift_ = 0;
};

}  // namespace kvsim
