#include "four_records.hpp"

#include <algorithm>
#include <bit>

#include "kvsim/base/avx2.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/engine/request_totals.hpp"

#ifdef KVSIM_AVX2
#include <immintrin.h>
#endif

namespace kvsim {

#ifdef KVSIM_AVX2
namespace {

#define KVSIM_FOUR [[gnu::target("avx2"), gnu::always_inline]] inline

constexpr int length_bits = 16;
constexpr int time_bits = 51;
// Added to the bits of 2^52, a whole number below 2^52 is the mantissa of the sum's double.
constexpr double large = 0x1p52;

static_assert(sizeof(RequestRecord) == 48 && offsetof(RequestRecord, queue) == 8 && offsetof(RequestRecord, ttft) == 16 &&
              offsetof(RequestRecord, e2e) == 24 && offsetof(RequestRecord, prompt_tokens) == 32 &&
              offsetof(RequestRecord, output_tokens) == 36 && offsetof(RequestRecord, preemptions) == 40 &&
              offsetof(RequestRecord, replica) == 44 && offsetof(RequestRecord, finish) == 46 &&
              offsetof(RequestRecord, measured) == 47 && std::endian::native == std::endian::little);

/// Of four records.
struct Times {
    __m256i arrival, queue, ttft, e2e;
};
struct Lengths {
    __m128i prompt, output, preemptions, rest;  // replica, from bit 16 on finish, from bit 24 on measured
};

/// rest's bits of how a request ended, and whether it is measured.
struct EndBits {
    std::int32_t mask, length, stop;
    explicit EndBits(bool measured_only)
        : mask(0xFF << 16 | (measured_only ? 0xFF << 24 : 0)), length(of(FinishReason::length)), stop(of(FinishReason::stop)) {}
    [[nodiscard]] std::int32_t of(FinishReason finish) const {
        return mask & (1 << 24 | static_cast<std::int32_t>(finish) << 16);
    }
};

KVSIM_FOUR void transpose(__m256i& a, __m256i& b, __m256i& c, __m256i& d) {
    const __m256i ab_even = _mm256_unpacklo_epi64(a, b);
    const __m256i ab_odd = _mm256_unpackhi_epi64(a, b);
    const __m256i cd_even = _mm256_unpacklo_epi64(c, d);
    const __m256i cd_odd = _mm256_unpackhi_epi64(c, d);
    a = _mm256_permute2x128_si256(ab_even, cd_even, 0x20);
    b = _mm256_permute2x128_si256(ab_odd, cd_odd, 0x20);
    c = _mm256_permute2x128_si256(ab_even, cd_even, 0x31);
    d = _mm256_permute2x128_si256(ab_odd, cd_odd, 0x31);
}

KVSIM_FOUR Times times_of(const RequestRecord* four) {
    const auto row = [four](std::size_t i) __attribute__((target("avx2"), always_inline)) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(four + i));
    };
    Times t{row(0), row(1), row(2), row(3)};
    transpose(t.arrival, t.queue, t.ttft, t.e2e);
    return t;
}

KVSIM_FOUR Lengths lengths_of(const RequestRecord* four) {
    const auto row = [four](std::size_t i) __attribute__((target("avx2"), always_inline)) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(&four[i].prompt_tokens));
    };
    const __m128i low01 = _mm_unpacklo_epi32(row(0), row(1));
    const __m128i low23 = _mm_unpacklo_epi32(row(2), row(3));
    const __m128i high01 = _mm_unpackhi_epi32(row(0), row(1));
    const __m128i high23 = _mm_unpackhi_epi32(row(2), row(3));
    return {_mm_unpacklo_epi64(low01, low23), _mm_unpackhi_epi64(low01, low23), _mm_unpacklo_epi64(high01, high23),
            _mm_unpackhi_epi64(high01, high23)};
}

/// Whole numbers from 0 up to 2^52 as doubles, less the whole `less`, exactly.
KVSIM_FOUR __m256d real(__m256i whole, double less = 0) {
    return _mm256_or_pd(_mm256_castsi256_pd(whole), _mm256_set1_pd(large)) - _mm256_set1_pd(large + less);
}
/// And back.
KVSIM_FOUR __m256i whole(__m256d real) {
    const __m256d shifted = _mm256_set1_pd(large);
    return _mm256_castpd_si256(_mm256_xor_pd(real + shifted, shifted));
}
/// QuantileBins::of() of one less.
KVSIM_FOUR __m256i bins_below(__m256d real) {
    return _mm256_srli_epi64(_mm256_castpd_si256(real), QuantileBins::shift) -
           _mm256_set1_epi64x(static_cast<std::int64_t>(QuantileBins::first));
}
KVSIM_FOUR __m256i bins_of(__m256d real) {
    return bins_below(real + _mm256_set1_pd(1));
}

/// As mean_gap(). A quotient that is not whole lies at least 1 / gaps below the next whole number, which is more than the 2^-53
/// of it that the double is off at most, because the dividend and gaps are below 2^52: floor() gives the same.
KVSIM_FOUR __m256d mean_gaps(const Times& t, const Lengths& l) {
    const __m128i gaps = _mm_sub_epi32(l.output, _mm_set1_epi32(1));
    const __m256i rounded = t.e2e - t.ttft + _mm256_cvtepi32_epi64(_mm_srli_epi32(gaps, 1));
    return _mm256_floor_pd(real(rounded) / _mm256_cvtepi32_pd(gaps));
}

KVSIM_FOUR bool ordinary(const Times& t, const Lengths& l, const EndBits& ends) {
    const __m128i end = _mm_xor_si128(_mm_and_si128(l.rest, _mm_set1_epi32(ends.mask)), _mm_set1_epi32(ends.length));
    const __m128i lengths = _mm_or_si128(_mm_or_si128(l.prompt, l.output), _mm_or_si128(l.preemptions, end));
    const __m128i gapless = _mm_cmpgt_epi32(_mm_set1_epi32(2), l.output);
    const __m256i times = _mm256_or_si256(t.queue, t.e2e);
    const __m256i disordered = _mm256_or_si256(_mm256_cmpgt_epi64(t.queue, t.ttft), _mm256_cmpgt_epi64(t.ttft, t.e2e));
    return _mm_testz_si128(_mm_or_si128(lengths, gapless), _mm_set1_epi32(-(1 << length_bits))) != 0 &&
           _mm256_testz_si256(_mm256_or_si256(times, disordered), _mm256_set1_epi64x(-(std::int64_t{1} << time_bits))) != 0;
}

KVSIM_FOUR std::array<std::int64_t, 4> lanes(__m256i v) {
    std::array<std::int64_t, 4> out;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.data()), v);
    return out;
}
KVSIM_FOUR std::array<std::uint32_t, 4> lanes(__m128i v) {
    std::array<std::uint32_t, 4> out;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out.data()), v);
    return out;
}
template <class Lanes>
KVSIM_FOUR std::int64_t sum(Lanes v) {
    const auto all = lanes(v);
    return std::int64_t{all[0]} + all[1] + all[2] + all[3];
}

/// By bytes, or the compiler would multiply each index by itself, because two counters share it.
KVSIM_FOUR void count(BinCounters counters, __m256i bins) {
    const auto at = [](std::uint32_t* first, std::int64_t bytes) -> std::uint32_t& {
        return *reinterpret_cast<std::uint32_t*>(reinterpret_cast<char*>(first) + bytes);
    };
    for (const std::int64_t bytes : lanes(_mm256_slli_epi64(bins, 2))) {
        ++at(counters.all, bytes);
        ++at(counters.batch, bytes);
    }
}
KVSIM_FOUR void count(std::int64_t* counters, __m128i numbers) {
    for (const std::uint32_t number : lanes(numbers)) ++counters[number];
}

/// In the lower half of each lane.
KVSIM_FOUR __m128i windows_of(const QuantilePasses<std::int64_t>& passes, __m256i bins) {
    static_assert(sizeof(*passes.windows()) == 2);
    return _mm256_i64gather_epi32(reinterpret_cast<const int*>(passes.windows()), bins, 2);
}

}  // namespace

[[gnu::target("avx2")]] CompletedRequests completed_by_four(std::span<const RequestRecord> records, bool measured_only) {
    const EndBits ends(measured_only);
    __m128i all = _mm_setzero_si128();
    __m128i gapped = all;
    for (std::size_t i = 0; i < records.size(); i += 4) {
        const Lengths l = lengths_of(records.data() + i);
        const __m128i end = _mm_and_si128(l.rest, _mm_set1_epi32(ends.mask));
        const __m128i completed =
            _mm_or_si128(_mm_cmpeq_epi32(end, _mm_set1_epi32(ends.length)), _mm_cmpeq_epi32(end, _mm_set1_epi32(ends.stop)));
        all = _mm_sub_epi32(all, completed);
        gapped = _mm_sub_epi32(gapped, _mm_and_si128(completed, _mm_cmpgt_epi32(l.output, _mm_set1_epi32(1))));
    }
    return {sum(all), sum(gapped)};
}

[[gnu::target("avx2")]] OrdinarySums count_ordinary(std::span<const RequestRecord> records, bool measured_only,
                                                    const OrdinaryCounters& counters) {
    constexpr std::size_t most = 4096;
    static_assert(most / 4 < std::size_t{1} << (32 - length_bits) && most <= std::size_t{1} << (63 - time_bits),
                  "sums fit into their lanes, and the sum of the lanes into int64");
    const EndBits ends(measured_only);
    const std::size_t n = std::min(records.size(), most) & ~std::size_t{3};
    __m256i queue = _mm256_setzero_si256();
    __m256i ttft = queue;
    __m256i e2e = queue;
    __m256i tpot = queue;
    __m256i last = queue;
    __m256i first = _mm256_set1_epi64x(never.time_since_epoch().count());
    __m128i prompt = _mm_setzero_si128();
    __m128i output = prompt;
    __m128i preemptions = prompt;
    std::int64_t preempted = 0;
    std::size_t i = 0;
    for (; i < n; i += 4) {
        const Times t = times_of(records.data() + i);
        const Lengths l = lengths_of(records.data() + i);
        if (!ordinary(t, l, ends)) break;
        first = _mm256_blendv_epi8(first, t.arrival, _mm256_cmpgt_epi64(first, t.arrival));
        const __m256i end = t.arrival + t.e2e;
        last = _mm256_blendv_epi8(last, end, _mm256_cmpgt_epi64(end, last));
        queue += t.queue;
        ttft += t.ttft;
        e2e += t.e2e;
        prompt = _mm_add_epi32(prompt, l.prompt);
        output = _mm_add_epi32(output, l.output);
        if (_mm_testz_si128(l.preemptions, l.preemptions) == 0) {
            preemptions = _mm_add_epi32(preemptions, l.preemptions);
            preempted -= sum(_mm256_cvtepi32_epi64(_mm_cmpgt_epi32(l.preemptions, _mm_setzero_si128())));
        }
        const __m256d gaps = mean_gaps(t, l);
        tpot += whole(gaps);
        count(counters.prompt, l.prompt);
        count(counters.output, l.output);
        count(counters.queue, bins_below(real(t.queue, -1)));
        count(counters.ttft, bins_below(real(t.ttft, -1)));
        count(counters.e2e, bins_below(real(t.e2e, -1)));
        count(counters.tpot, bins_of(gaps));
    }
    const auto firsts = lanes(first);
    const auto lasts = lanes(last);
    return {.records = i,
            .queue = sum(queue),
            .ttft = sum(ttft),
            .e2e = sum(e2e),
            .tpot = sum(tpot),
            .prompt = sum(prompt),
            .output = sum(output),
            .preemptions = sum(preemptions),
            .preempted = preempted,
            .first_arrival = SimTime(SimDuration(*std::min_element(firsts.begin(), firsts.end()))),
            .last_completion = SimTime(SimDuration(*std::max_element(lasts.begin(), lasts.end())))};
}

[[gnu::target("avx2")]] void collect_ordinary(std::span<const RequestRecord> records,
                                              const std::array<Collected*, 4>& quantities) {
    std::array<double, 4> sums;
    __m256d centres[4];
    for (std::size_t q = 0; q < 4; ++q) {
        sums[q] = quantities[q]->squares;
        centres[q] = _mm256_set1_pd(quantities[q]->centre);
    }
    __m256d squares = _mm256_loadu_pd(sums.data());
    for (std::size_t i = 0; i < records.size(); i += 4) {
        const Times t = times_of(records.data() + i);
        const __m256d values[]{real(t.queue), real(t.ttft), real(t.e2e), mean_gaps(t, lengths_of(records.data() + i))};
        __m256i own[4];
        for (std::size_t q = 0; q < 4; ++q) {
            Collected& c = *quantities[q];
            const __m256d beside = values[q] - centres[q];
            own[q] = _mm256_castpd_si256(beside * beside);
            const __m128i windows = windows_of(c.passes, bins_of(values[q]));
            if (_mm_testz_si128(windows, _mm_set1_epi32(0xFFFF)) != 0) continue;
            const auto window = lanes(windows);
            const auto value = lanes(whole(values[q]));
            for (std::size_t k = 0; k < 4; ++k) c.passes.collect(value[k], static_cast<std::uint16_t>(window[k]));
        }
        transpose(own[0], own[1], own[2], own[3]);  // by record, so that each quantity's are added in their order
        for (const __m256i& of_record : own) squares += _mm256_castsi256_pd(of_record);
    }
    _mm256_storeu_pd(sums.data(), squares);
    for (std::size_t q = 0; q < 4; ++q) quantities[q]->squares = sums[q];
}

#else

CompletedRequests completed_by_four(std::span<const RequestRecord>, bool) {
    KVSIM_CHECK(false, "there is no AVX2");
}
OrdinarySums count_ordinary(std::span<const RequestRecord>, bool, const OrdinaryCounters&) {
    KVSIM_CHECK(false, "there is no AVX2");
}
void collect_ordinary(std::span<const RequestRecord>, const std::array<Collected*, 4>&) {
    KVSIM_CHECK(false, "there is no AVX2");
}

#endif

}  // namespace kvsim
