#include "kvsim/random/draw_buffer.hpp"

#include <bit>

#include "kvsim/base/avx2.hpp"
#include "kvsim/base/check.hpp"

#ifdef KVSIM_AVX2
#include <immintrin.h>
#endif

namespace kvsim {
namespace {

#ifdef KVSIM_AVX2

/// A register holds one word of four streams in the low halves of its 64-bit lanes; what gathers in the high halves is never
/// read. A round's keys lie in one lane, the second in the high half, so it is added before the shift.
template <bool both>
__attribute__((target("avx2"))) void fill_by_four(const PhiloxSchedule& schedule, std::uint64_t index, std::size_t n,
                                                  std::uint64_t* first, std::uint64_t* second) {
    const __m256i first_factor = _mm256_set1_epi64x(0xD2511F53);
    const __m256i second_factor = _mm256_set1_epi64x(0xCD9E8D57);
    for (std::size_t i = 0; i < n; i += 4) {
        __m256i c0 = _mm256_setzero_si256();
        __m256i c1 = c0;
        __m256i c2 = _mm256_add_epi64(_mm256_set1_epi64x(static_cast<std::int64_t>(index + i)), _mm256_set_epi64x(3, 2, 1, 0));
        __m256i c3 = _mm256_srli_epi64(c2, 32);
        for (const PhiloxKey& round : schedule) {
            const __m256i keys = _mm256_set1_epi64x(std::bit_cast<std::int64_t>(round));
            const __m256i a = _mm256_mul_epu32(first_factor, c0);
            const __m256i b = _mm256_mul_epu32(second_factor, c2);
            c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(b, 32), c1), keys);
            c1 = b;
            c2 = _mm256_xor_si256(_mm256_srli_epi64(_mm256_xor_si256(a, keys), 32), c3);
            c3 = a;
        }
        const auto store = [](std::uint64_t * to, __m256i low, __m256i high) __attribute__((target("avx2"))) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_blend_epi32(low, _mm256_slli_epi64(high, 32), 0xAA));
        };
        store(first + i, c0, c1);
        if constexpr (both) store(second + i, c2, c3);
    }
}

#endif

/// Both draws of a block of each stream, or the first alone.
template <bool both>
void fill(const PhiloxSchedule& schedule, std::uint64_t index, std::size_t n, std::uint64_t* first, std::uint64_t* second) {
#ifdef KVSIM_AVX2
    if (has_avx2) return fill_by_four<both>(schedule, index, n, first, second);
#endif
    for (std::size_t i = 0; i < n; ++i) {
        const std::uint64_t stream = index + i;
        const PhiloxCounter block = philox4x32_scheduled(
            {0, 0, static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)}, schedule);
        first[i] = (std::uint64_t{block[1]} << 32) | block[0];
        if constexpr (both) second[i] = (std::uint64_t{block[3]} << 32) | block[2];
    }
}

}  // namespace

void first_draws(const StreamKey& key, std::uint64_t first, std::span<std::uint64_t> out) {
    KVSIM_DCHECK(out.size() % 4 == 0, "draws are made four at a time");
    fill<false>(key.schedule(), first, out.size(), out.data(), nullptr);
}

void DrawBuffer::fill(std::uint64_t index) {
    static_assert(size % 4 == 0);
    begin_ = index;
    empty_ = false;
    kvsim::fill<true>(schedule_, index, size, draws_[0].data(), draws_[1].data());
}

}  // namespace kvsim
