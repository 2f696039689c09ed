#include "length_table.hpp"

#include <algorithm>
#include <bit>
#include <limits>

namespace kvsim {

namespace {

constexpr double grid = 0x1p53;
constexpr std::int64_t most_entries = 65'536;
constexpr std::int64_t draws_per_entry = 4;  // an entry costs about as much as one draw by formula
// What lies above the table is left to the formula.
constexpr double enough = 1 - 0x1p-10;
constexpr double least = 0.5;

}  // namespace

void LengthTable::build(std::int64_t draws) {
    const std::int64_t most = std::min(most_entries, draws / draws_per_entry);
    if (most < 16) return;
    first_ = law_.sample(to_uniform(0));
    const std::optional<double> covered = law_.up_to(first_ + most - 1);
    if (!covered || !(*covered >= least)) return;
    double u = 0;
    for (std::int64_t k = 0; k < most && u < enough; ++k) {
        u = std::clamp(law_.up_to(first_ + k).value_or(u), u, 1.0);
        upper_.push_back(static_cast<std::uint64_t>(u * grid) + guard);
    }
    last_ = upper_.size();
    upper_.push_back(std::numeric_limits<std::uint64_t>::max());

    const int guide_bits = std::clamp(static_cast<int>(std::bit_width(last_)) + 2, 6, 14);
    guide_shift_ = 64 - guide_bits;
    guide_.resize(std::size_t{1} << guide_bits);
    std::size_t k = 0;
    for (std::size_t cell = 0; cell < guide_.size(); ++cell) {
        const std::uint64_t least_u = static_cast<std::uint64_t>(cell) << (53 - guide_bits) | 1;
        while (least_u > upper_[k]) ++k;
        const std::uint64_t greatest_u = least_u | ((std::uint64_t{1} << (53 - guide_bits)) - 1);
        const bool whole = k < last_ && greatest_u + 2 * guard < upper_[k];
        guide_[cell] = static_cast<std::int32_t>(whole ? first_ + static_cast<std::int64_t>(k) : ~static_cast<std::int64_t>(k));
    }
}

std::int64_t LengthTable::search(std::uint64_t bits, std::size_t k) const {
    if (last_ != 0) {
        const std::uint64_t u = bits >> 11 | 1;  // of 2^53
        while (u > upper_[k]) ++k;
        if (k < last_ && u + 2 * guard < upper_[k]) return first_ + static_cast<std::int64_t>(k);
    }
    return law_.sample(to_uniform(bits));
}

}  // namespace kvsim
