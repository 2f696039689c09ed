#include "kvsim/random/draw_buffer.hpp"

#include <array>
#include <cstddef>
#include <tuple>

#include "kvsim/base/avx2.hpp"
#include "kvsim/base/check.hpp"

#ifdef KVSIM_AVX2
#include <immintrin.h>
#endif

namespace kvsim {
namespace {

#ifdef KVSIM_AVX2

#define KVSIM_AVX2_INLINE __attribute__((target("avx2"), always_inline)) inline

/// The lower (upper) halves of the 64-bit lanes of `even` and `odd`: of each 128 bits two of the one, then two of the other.
KVSIM_AVX2_INLINE __m256i lows(__m256i even, __m256i odd) {
    return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(even), _mm256_castsi256_ps(odd), 0x88));
}
KVSIM_AVX2_INLINE __m256i highs(__m256i even, __m256i odd) {
    return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(even), _mm256_castsi256_ps(odd), 0xDD));
}
KVSIM_AVX2_INLINE __m256i exclusive_or(__m256i a, __m256i b, __m256i c) {
    return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
}

/// Products of the words of eight streams, those in the even and those in the odd places.
struct Products {
    __m256i even, odd;
};
KVSIM_AVX2_INLINE Products products(__m256i words, __m256i factor) {
    return {_mm256_mul_epu32(words, factor), _mm256_mul_epu32(_mm256_srli_epi64(words, 32), factor)};
}

/// A block of each of eight streams. Those of each 128 bits lie in the order p q r s in c0 and c1, in the order p r q s in c2
/// and c3: taking the halves of even and odd products leads from the one order to the other, as a round does with the words.
struct EightBlocks {
    __m256i c0, c1, c2, c3;
};
struct EightKeys {
    __m256i first, second;
};
KVSIM_AVX2_INLINE EightBlocks philox_round(const EightBlocks& x, const EightKeys& key) {
    const Products a = products(x.c0, _mm256_set1_epi32(static_cast<int>(0xD2511F53)));
    const Products b = products(x.c2, _mm256_set1_epi32(static_cast<int>(0xCD9E8D57)));
    return {exclusive_or(highs(b.even, b.odd), x.c1, key.first), lows(b.even, b.odd),
            exclusive_or(highs(a.even, a.odd), x.c3, key.second), lows(a.even, a.odd)};
}

/// Streams index ... index + 7, so placed that store() finds p q of both 128 bits, then r s.
KVSIM_AVX2_INLINE EightBlocks counters(std::uint64_t index) {
    const __m256i first = _mm256_set1_epi64x(static_cast<std::int64_t>(index));
    const __m256i even = _mm256_add_epi64(first, _mm256_set_epi64x(6, 2, 4, 0));
    const __m256i odd = _mm256_add_epi64(first, _mm256_set_epi64x(7, 3, 5, 1));
    const __m256i zero = _mm256_setzero_si256();
    return {zero, zero, lows(even, odd), highs(even, odd)};
}
KVSIM_AVX2_INLINE void store(std::uint64_t* to, __m256i low, __m256i high) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_unpacklo_epi32(low, high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 4), _mm256_unpackhi_epi32(low, high));
}

template <bool both>
__attribute__((target("avx2"))) void fill_by_eight(const PhiloxSchedule& schedule, std::uint64_t index, std::size_t n,
                                                   std::uint64_t* first, std::uint64_t* second) {
    std::array<EightKeys, std::tuple_size_v<PhiloxSchedule>> keys;
    for (std::size_t i = 0; i < keys.size(); ++i)
        keys[i] = {_mm256_set1_epi32(static_cast<int>(schedule[i][0])), _mm256_set1_epi32(static_cast<int>(schedule[i][1]))};
    for (std::size_t i = 0; i < n; i += 8) {
        EightBlocks x = counters(index + i);
        for (const EightKeys& key : keys) x = philox_round(x, key);
        store(first + i, x.c0, x.c1);
        constexpr int as_first = _MM_SHUFFLE(3, 1, 2, 0);
        if constexpr (both) store(second + i, _mm256_shuffle_epi32(x.c2, as_first), _mm256_shuffle_epi32(x.c3, as_first));
    }
}

#endif

/// Both draws of a block of each stream, or the first alone.
template <bool both>
void fill(const PhiloxSchedule& schedule, std::uint64_t index, std::size_t n, std::uint64_t* first, std::uint64_t* second) {
#ifdef KVSIM_AVX2
    if (has_avx2) return fill_by_eight<both>(schedule, index, n, first, second);
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
    KVSIM_DCHECK(out.size() % 8 == 0, "draws are made eight at a time");
    fill<false>(key.schedule(), first, out.size(), out.data(), nullptr);
}

void DrawBuffer::fill(std::uint64_t index) {
    static_assert(size % 8 == 0);
    begin_ = index;
    empty_ = false;
    kvsim::fill<true>(schedule_, index, size, draws_[0].data(), draws_[1].data());
}

}  // namespace kvsim
