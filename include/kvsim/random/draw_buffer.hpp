#pragma once
// First draws of consecutive streams, made some at a time: a Philox block costs less than half of one made alone.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvsim/random/stream.hpp"

namespace kvsim {

/// What StreamKey::first_u64() gives for the streams first, first + 1, ...; their number is a multiple of 8.
void first_draws(const StreamKey& key, std::uint64_t first, std::span<std::uint64_t> out);

/// For streams asked about in ascending order; any other order gives the same draws at a higher price.
class DrawBuffer {
public:
    explicit DrawBuffer(const StreamKey& key) : schedule_(key.schedule()) {}

    /// What StreamKey::first_u64(index) is: draw 0 of the stream.
    [[nodiscard]] std::uint64_t first_u64(std::uint64_t index) { return draws_[0][place(index)]; }
    /// Draw 1 of the stream.
    [[nodiscard]] std::uint64_t second_u64(std::uint64_t index) { return draws_[1][place(index)]; }

private:
    static constexpr std::size_t size = 16;
    std::size_t place(std::uint64_t index) {
        if (empty_ || index - begin_ >= size) fill(index);
        return static_cast<std::size_t>(index - begin_);
    }
    void fill(std::uint64_t index);

    PhiloxSchedule schedule_;
    std::array<std::array<std::uint64_t, size>, 2> draws_{};
    std::uint64_t begin_ = 0;
    bool empty_ = true;
};

}  // namespace kvsim
