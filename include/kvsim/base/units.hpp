#pragma once
// Simulated time and the three counted quantities. Mixing them does not compile (tests/compile_fail).

#include <chrono>
#include <compare>
#include <cstdint>

namespace kvsim {

/// For exact sums of value x nanoseconds.
__extension__ using Int128 = __int128;

/// The simulated clock: integer nanoseconds since the start of the run. It is a type of its own so that a wall-clock
/// time point can never be mixed in. int64 nanoseconds reach 292 years.
struct SimClock {
    using rep = std::int64_t;
    using period = std::nano;
    using duration = std::chrono::nanoseconds;
    using time_point = std::chrono::time_point<SimClock>;
    static constexpr bool is_steady = true;
};
using SimDuration = SimClock::duration;
using SimTime = SimClock::time_point;

/// Later than every event of every run; what a piece without a pending event reports.
inline constexpr SimTime never = SimTime::max();
/// Nothing is simulated beyond it (146 years), so that the sum of two times, or of a time and a step, always fits.
inline constexpr SimTime end_of_time{SimDuration((std::int64_t{1} << 62) - 1)};

constexpr double to_seconds(SimDuration d) {
    return static_cast<double>(d.count()) * 1e-9;
}
constexpr double to_seconds(SimTime t) {
    return to_seconds(t.time_since_epoch());
}
constexpr double to_ms(SimDuration d) {
    return static_cast<double>(d.count()) * 1e-6;
}

/// An int64 that counts one kind of thing. Adds and subtracts with its own kind, scales by plain integers.
template <class Tag>
class Quantity {
public:
    constexpr Quantity() = default;
    constexpr explicit Quantity(std::int64_t n) : count_(n) {}
    [[nodiscard]] constexpr std::int64_t count() const { return count_; }

    constexpr auto operator<=>(const Quantity&) const = default;
    constexpr Quantity& operator+=(Quantity o) {
        count_ += o.count_;
        return *this;
    }
    constexpr Quantity& operator-=(Quantity o) {
        count_ -= o.count_;
        return *this;
    }
    friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity(a.count_ + b.count_); }
    friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity(a.count_ - b.count_); }
    friend constexpr Quantity operator*(Quantity a, std::int64_t k) { return Quantity(a.count_ * k); }
    friend constexpr Quantity operator*(std::int64_t k, Quantity a) { return a * k; }

private:
    std::int64_t count_ = 0;
};

using Tokens = Quantity<struct TokensTag>;
using Blocks = Quantity<struct BlocksTag>;
using Bytes = Quantity<struct BytesTag>;

/// a / b rounded up; a >= 0, b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
    return (a + b - 1) / b;
}
/// The only crossing from tokens to blocks; block_size is in tokens per block.
constexpr Blocks ceil_div(Tokens t, Tokens block_size) {
    return Blocks(ceil_div(t.count(), block_size.count()));
}

inline constexpr std::int64_t KiB = 1024;
inline constexpr std::int64_t MiB = 1024 * KiB;
inline constexpr std::int64_t GiB = 1024 * MiB;

}  // namespace kvsim
