#pragma once
// Slots 0 .. size - 1 of which ranges are given out: where a range fits decides, not only how many slots are free.

#include <cstdint>
#include <memory>
#include <optional>

namespace kvsim {

class AddressSpace {
public:
    virtual ~AddressSpace() = default;
    /// Where a range of that length, >= 1, would be placed; nothing if it fits nowhere.
    [[nodiscard]] virtual std::optional<std::int64_t> find(std::int64_t length) const = 0;
    /// Takes the range that find(length) names, which must fit.
    virtual std::int64_t take(std::int64_t length) = 0;
    /// Gives back a range that was taken.
    virtual void give(std::int64_t first, std::int64_t length) = 0;
    /// The longest range that fits while nothing is taken.
    [[nodiscard]] virtual std::int64_t longest() const = 0;
};

/// The hole with the lowest address that is long enough; neighbouring holes are one.
std::unique_ptr<AddressSpace> make_first_fit(std::int64_t size);

/// Knuth's buddy system: a range lies in a chunk of the next power of two of its length, at a multiple of its size; the
/// smallest free chunk that is large enough, of equal ones that with the lowest address, is halved until it fits. A freed
/// chunk merges with its free other half. A size that is no power of two starts as the largest chunks that fit, from address 0
/// on. What a range leaves of its chunk belongs to nobody.
std::unique_ptr<AddressSpace> make_buddy(std::int64_t size);

}  // namespace kvsim
