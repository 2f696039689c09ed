#include "kvsim/random/draw_buffer.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#define KVSIM_AVX2 1
#include <immintrin.h>
#endif

namespace kvsim {
namespace {

#ifdef KVSIM_AVX2

/// philox4x32_scheduled() of the streams index .. index + 3. A register holds one word of each in the low halves of its 64-bit
/// lanes; what gathers in the high halves is never read.
__attribute__((target("avx2"))) void fill_four(const PhiloxSchedule& schedule, std::uint64_t index, std::uint64_t* first,
                                               std::uint64_t* second) {
    const __m256i first_factor = _mm256_set1_epi64x(0xD2511F53);
    const __m256i second_factor = _mm256_set1_epi64x(0xCD9E8D57);
    __m256i c0 = _mm256_setzero_si256();
    __m256i c1 = c0;
    __m256i c2 = _mm256_add_epi64(_mm256_set1_epi64x(static_cast<std::int64_t>(index)), _mm256_set_epi64x(3, 2, 1, 0));
    __m256i c3 = _mm256_srli_epi64(c2, 32);
    for (const PhiloxKey& key : schedule) {
        const __m256i a = _mm256_mul_epu32(first_factor, c0);
        const __m256i b = _mm256_mul_epu32(second_factor, c2);
        c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(b, 32), c1),
                              _mm256_set1_epi32(static_cast<std::int32_t>(key[0])));
        c1 = b;
        c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(a, 32), c3),
                              _mm256_set1_epi32(static_cast<std::int32_t>(key[1])));
        c3 = a;
    }
    const __m256i low_half = _mm256_set1_epi64x(0xFFFFFFFF);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(first),
                        _mm256_or_si256(_mm256_and_si256(c0, low_half), _mm256_slli_epi64(c1, 32)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(second),
                        _mm256_or_si256(_mm256_and_si256(c2, low_half), _mm256_slli_epi64(c3, 32)));
}

const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;

#endif

}  // namespace

void DrawBuffer::fill(std::uint64_t index) {
    begin_ = index;
    empty_ = false;
#ifdef KVSIM_AVX2
    static_assert(size % 4 == 0);
    if (has_avx2) {
        for (std::size_t i = 0; i < size; i += 4) fill_four(schedule_, index + i, &draws_[0][i], &draws_[1][i]);
        return;
    }
#endif
    for (std::size_t i = 0; i < size; ++i) {
        const std::uint64_t stream = index + i;
        const PhiloxCounter block = philox4x32_scheduled(
            {0, 0, static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)}, schedule_);
        draws_[0][i] = (std::uint64_t{block[1]} << 32) | block[0];
        draws_[1][i] = (std::uint64_t{block[3]} << 32) | block[2];
    }
}

}  // namespace kvsim
