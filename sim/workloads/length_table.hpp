#pragma once
// Draws from a length law by table look-up instead of logarithms and exponentials, with the law's own result on every draw.

#include <cstdint>
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
        const std::int64_t cell = guide_[bits >> guide_shift_];
        return cell >= 0 ? cell : search(bits, static_cast<std::size_t>(~cell));
    }
    [[nodiscard]] std::size_t size() const { return last_; }

    static constexpr std::uint64_t guard = std::uint64_t{1} << 13;  ///< 2^-40 in units of 2^-53

private:
    /// The thresholds from `k` on, then the formula.
    [[nodiscard]] std::int64_t search(std::uint64_t bits, std::size_t k) const;

    const LengthLaw& law_;
    std::int64_t first_ = 0;            // the shortest length
    std::size_t last_ = 0;              // entries; upper_[last_] stops the search
    std::vector<std::uint64_t> upper_;  // k: u at or below threshold k + guard is at most length first_ + k
    // By leading bits of u: the length if all u that begin so have the same, else ~k of the first k whose upper_ is not below
    // all of them.
    std::vector<std::int32_t> guide_{~0, ~0};
    int guide_shift_ = 63;
};

}  // namespace kvsim
