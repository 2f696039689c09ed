#pragma once
// RunKv where nothing is shared and no block has an id: their number is all there is.

#include <cstdint>

#include "kvsim/base/check.hpp"
#include "kvsim/engine/kv_manager.hpp"

namespace kvsim {

class CountedKv {
public:
    static constexpr bool counts_only = true;
    struct Holding {};

    CountedKv(std::int64_t usable, std::int64_t /*block_size*/, bool prefix_caching) : usable_(usable), free_(usable) {
        KVSIM_CHECK(!prefix_caching, "counted blocks are not shared");
    }
    [[nodiscard]] std::int64_t usable() const { return usable_; }
    [[nodiscard]] std::int64_t free() const { return free_; }
    [[nodiscard]] static constexpr bool caching() { return false; }
    [[nodiscard]] static constexpr bool keeps_ids() { return false; }

    [[nodiscard]] static PrefixHit lookup(const Holding& /*holding*/, std::int64_t /*tokens*/) { return {}; }
    void admit(Holding& /*holding*/, PrefixHit /*hit*/, std::int64_t fresh) { take(fresh); }
    void extend(Holding& /*holding*/, std::int64_t blocks) { take(blocks); }
    void take(std::int64_t blocks) {
        KVSIM_DCHECK(blocks <= free_, "blocks are only taken when they are free");
        free_ -= blocks;
    }
    static void publish(Holding& /*holding*/, std::int64_t /*upto*/) {}
    void release(Holding& /*holding*/, std::int64_t held, std::int64_t /*registered_tokens*/) { free_ += held; }
    static void forget(Holding& /*holding*/) {}

private:
    std::int64_t usable_;
    std::int64_t free_;
};

}  // namespace kvsim
