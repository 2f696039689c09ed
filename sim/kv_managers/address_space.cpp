#include "address_space.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <set>

#include "kvsim/base/check.hpp"

namespace kvsim {
namespace {

class FirstFit final : public AddressSpace {
public:
    explicit FirstFit(std::int64_t size) : size_(size), holes_{{0, size}} {}

    [[nodiscard]] std::optional<std::int64_t> find(std::int64_t length) const override {
        const auto hole = first(length);
        return hole == holes_.end() ? std::nullopt : std::optional(hole->first);
    }

    std::int64_t take(std::int64_t length) override {
        const auto hole = first(length);
        KVSIM_CHECK(hole != holes_.end(), "a range is only taken where it fits");
        const auto [at, room] = *hole;
        holes_.erase(hole);
        if (room > length) holes_.emplace(at + length, room - length);
        return at;
    }

    void give(std::int64_t at, std::int64_t length) override {
        auto next = holes_.lower_bound(at);
        if (next != holes_.end() && next->first == at + length) {
            length += next->second;
            next = holes_.erase(next);
        }
        if (next != holes_.begin()) {
            const auto previous = std::prev(next);
            KVSIM_DCHECK(previous->first + previous->second <= at, "what is given back was taken");
            if (previous->first + previous->second == at) {
                previous->second += length;
                return;
            }
        }
        holes_.emplace_hint(next, at, length);
    }

    [[nodiscard]] std::int64_t longest() const override { return size_; }

private:
    [[nodiscard]] std::map<std::int64_t, std::int64_t>::const_iterator first(std::int64_t length) const {
        return std::find_if(holes_.begin(), holes_.end(), [length](const auto& hole) { return hole.second >= length; });
    }

    std::int64_t size_;
    std::map<std::int64_t, std::int64_t> holes_;  // first slot -> length
};

class Buddy final : public AddressSpace {
public:
    explicit Buddy(std::int64_t size) : longest_(static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(size)))) {
        for (std::int64_t at = 0; at < size;) {
            const std::int64_t chunk = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(size - at)));
            free_[order_of(chunk)].insert(at);
            at += chunk;
        }
    }

    [[nodiscard]] std::optional<std::int64_t> find(std::int64_t length) const override {
        const std::size_t order = smallest(length);
        return order == free_.size() ? std::nullopt : std::optional(*free_[order].begin());
    }

    std::int64_t take(std::int64_t length) override {
        std::size_t order = smallest(length);
        KVSIM_CHECK(order < free_.size(), "a range is only taken where it fits");
        const std::int64_t at = *free_[order].begin();
        free_[order].erase(free_[order].begin());
        for (const std::size_t wanted = order_of(length); order > wanted;) {
            --order;
            free_[order].insert(at + (std::int64_t{1} << order));
        }
        return at;
    }

    void give(std::int64_t at, std::int64_t length) override {
        std::size_t order = order_of(length);
        for (; order + 1 < free_.size() && free_[order].erase(at ^ (std::int64_t{1} << order)) == 1; ++order)
            at &= ~(std::int64_t{1} << order);
        free_[order].insert(at);
    }

    [[nodiscard]] std::int64_t longest() const override { return longest_; }

private:
    static std::size_t order_of(std::int64_t length) {
        return static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(length) - 1));
    }
    /// The order of the chunk to take or to halve; free_.size(): there is none.
    [[nodiscard]] std::size_t smallest(std::int64_t length) const {
        std::size_t order = order_of(length);
        while (order < free_.size() && free_[order].empty()) ++order;
        return order;
    }

    std::int64_t longest_;
    std::array<std::set<std::int64_t>, 63> free_;  // of chunks of 2^i slots: their first slots
};

}  // namespace

std::unique_ptr<AddressSpace> make_first_fit(std::int64_t size) {
    return std::make_unique<FirstFit>(size);
}

std::unique_ptr<AddressSpace> make_buddy(std::int64_t size) {
    return std::make_unique<Buddy>(size);
}

}  // namespace kvsim
