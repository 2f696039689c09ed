#pragma once
// Integrals over time of a replica's used blocks and of the slots it holds without a token.

#include <cstdint>

#include "kvsim/base/units.hpp"
#include "kvsim/engine/kv_manager.hpp"

namespace kvsim {

/// The integral of a value over time is its last value times the end of the run less the sum of its changes, each times its
/// instant; so only a change costs, and nothing between two of them.
class HeldIntegrals {
public:
    /// The values from `now` on.
    void set(std::int64_t used, HeldSlots held, SimTime now) {
        const std::int64_t t = now.time_since_epoch().count();
        used_.dt -= static_cast<Int128>(used - used_.last) * t;
        reserved_.dt -= static_cast<Int128>(held.reserved - reserved_.last) * t;
        internal_.dt -= static_cast<Int128>(held.internal - internal_.last) * t;
        keep(used, held);
    }
    /// Both change by so much at `now`; no slot is internal.
    void add(std::int64_t used, std::int64_t reserved, SimTime now) {
        const std::int64_t t = now.time_since_epoch().count();
        add(used, reserved, static_cast<Int128>(used) * t, static_cast<Int128>(reserved) * t);
    }
    /// The same after several changes; each sum: of a value's changes, each times its instant.
    void add(std::int64_t used, std::int64_t reserved, Int128 used_sum, Int128 reserved_sum) {
        used_.last += used;
        used_.dt -= used_sum;
        reserved_.last += reserved;
        reserved_.dt -= reserved_sum;
    }
    /// The values after several changes, likewise.
    void set(std::int64_t used, HeldSlots held, Int128 used_sum, Int128 reserved_sum, Int128 internal_sum) {
        used_.dt -= used_sum;
        reserved_.dt -= reserved_sum;
        internal_.dt -= internal_sum;
        keep(used, held);
    }
    [[nodiscard]] std::int64_t reserved() const { return reserved_.last; }
    /// From time 0 to `now`, up to which nothing more changes.
    [[nodiscard]] Int128 used_until(SimTime now) const { return used_.until(now); }
    [[nodiscard]] Int128 reserved_until(SimTime now) const { return reserved_.until(now); }
    [[nodiscard]] Int128 internal_until(SimTime now) const { return internal_.until(now); }

private:
    struct Integral {
        Int128 dt = 0;
        std::int64_t last = 0;
        [[nodiscard]] Int128 until(SimTime now) const {
            return dt + static_cast<Int128>(last) * now.time_since_epoch().count();
        }
    };
    void keep(std::int64_t used, HeldSlots held) {
        used_.last = used;
        reserved_.last = held.reserved;
        internal_.last = held.internal;
    }
    Integral used_, reserved_, internal_;
};

}  // namespace kvsim
