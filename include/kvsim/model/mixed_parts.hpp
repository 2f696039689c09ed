#pragma once
// The price of a step with prompt chunks, put together from parts that are looked up.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvsim/model/step_time.hpp"

namespace kvsim {

/// Of a model whose layers all attend in the same way, to the whole context. Such a step costs, in us,
///   kernels[tokens] + layers attention + head[sampled] + between_us(sequences)
///   attention = floor + per_context decode_context + sum of chunk_us() + rows_us(sequences, longest chunk)
/// Sources of the formulas: sim/step_time/physics.hpp, whose model fills the tables as its duration() meets new counts.
struct MixedParts {
    /// Places of each table; NaN where no such count was met yet.
    std::size_t known = 0;
    std::vector<double> kernels;  ///< us by tokens: all that depends on these alone, all layers
    std::vector<double> head;     ///< us by sampled rows
    std::vector<double> prompts;  ///< by tokens of a chunk with nothing before it: chunk_us()

    double layers = 0;
    double floor = 0;        ///< us
    double per_context = 0;  ///< us per context token of the decode rows
    double chunk_flop = 0;   ///< per (new token x context token)

    double attention_flops = 0;  ///< per us
    double context_offset = 0;   ///< tokens: dl
    std::vector<double> fills;   ///< by tiles: how a chunk uses the SMs; beyond, 1
    double per_row_tile = 0;     ///< us: te
    double heads = 0;
    double sm_count = 1;

    double between_ns = 0;  ///< CPU time between synchronous steps
    double between_row_ns = 0;

    void grow(std::size_t places) {
        for (std::vector<double>* const part : {&kernels, &head, &prompts}) part->resize(places, std::nan(""));
        known = places;
    }

    static constexpr std::int64_t tile = 128;  ///< tokens
    [[nodiscard]] static std::int64_t tiles(std::int64_t tokens) {
        return static_cast<std::int64_t>((static_cast<std::uint64_t>(tokens) + (tile - 1)) / tile);
    }

    /// One layer's attention for a chunk whose tokens attend to `context` in the mean, half a token less. `flop` as chunk_flop.
    [[nodiscard]] double chunk_us(std::int64_t new_tokens, double context, double flop) const {
        const double full = static_cast<double>(new_tokens) * (context + context_offset) * flop / attention_flops;
        const auto at = static_cast<std::size_t>(tiles(new_tokens));
        return at < fills.size() ? full / fills[at] : full;
    }
    /// What a chunk's tokens attend to in the mean where they see everything, half a token less.
    [[nodiscard]] static double whole_context(const PrefillChunk& chunk) {
        return static_cast<double>(chunk.context_before) + static_cast<double>(chunk.new_tokens) / 2;
    }
    /// What one layer's attention takes for its number of rows beside a chunk.
    [[nodiscard]] double rows_us(std::int64_t sequences, std::int64_t longest_chunk) const {
        return per_row_tile * static_cast<double>(sequences) * heads * static_cast<double>(tiles(longest_chunk)) / sm_count;
    }
    [[nodiscard]] double between_us(std::int64_t sequences) const {
        return (between_ns + between_row_ns * static_cast<double>(sequences)) / 1e3;
    }

    /// us of a step with chunks; round_step() of a thousand times that is the model's duration(), to the bit. NaN: duration()
    /// must be asked.
    [[nodiscard, gnu::always_inline]] double us(const StepShape& shape) const {
        // No other count of a step exceeds its tokens.
        if (static_cast<std::size_t>(shape.tokens) >= known) return std::nan("");
        const auto of = [](const std::vector<double>& part, std::int64_t n) { return part[static_cast<std::size_t>(n)]; };
        Chunks done{floor + per_context * static_cast<double>(shape.decode_context), shape.chunks.front().new_tokens};
        if (shape.chunks.size() == 1 && shape.chunks.front().context_before == 0) {
            done.us += of(prompts, done.longest);
        } else {
            done = with_chunks(done, shape.chunks);
        }
        const double attention = done.us + rows_us(shape.sequences, done.longest);
        return of(kernels, shape.tokens) + layers * attention + of(head, shape.sampled) + between_us(shape.sequences);
    }

private:
    /// One layer's attention so far, and the longest chunk.
    struct Chunks {
        double us;
        std::int64_t longest;
    };
    [[nodiscard, gnu::noinline]] Chunks with_chunks(Chunks done, std::span<const PrefillChunk> chunks) const {
        for (const PrefillChunk& chunk : chunks) {
            done.us += chunk.context_before == 0 ? prompts[static_cast<std::size_t>(chunk.new_tokens)]
                                                 : chunk_us(chunk.new_tokens, whole_context(chunk), chunk_flop);
            done.longest = std::max(done.longest, chunk.new_tokens);
        }
        return done;
    }
};

}  // namespace kvsim
