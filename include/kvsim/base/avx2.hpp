#pragma once
// AVX2: KVSIM_AVX2 where the compiler makes it for single functions, has_avx2 where the processor has it, too.

#if defined(__x86_64__) && defined(__GNUC__)
#define KVSIM_AVX2 1
#endif

namespace kvsim {

#ifdef KVSIM_AVX2
inline const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
#else
inline constexpr bool has_avx2 = false;
#endif

}  // namespace kvsim
