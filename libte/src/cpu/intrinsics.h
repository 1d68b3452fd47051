// SPDX-License-Identifier: Apache-2.0
// The 128-bit words that the `base` level is written in. On x86 they are the compiler's own; on other processors the same names are
// defined over GCC's vector extensions, with the same results, so that one set of kernels serves every processor. Only what src/ uses.
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <math.h>
#include <stdint.h>
#include <string.h>

namespace {

typedef float __m128 __attribute__((vector_size(16), may_alias));
typedef long long __m128i __attribute__((vector_size(16), may_alias));

namespace mm {  // lane views
typedef int8_t i8 __attribute__((vector_size(16)));
typedef uint8_t u8 __attribute__((vector_size(16)));
typedef int16_t i16 __attribute__((vector_size(16)));
typedef int32_t i32 __attribute__((vector_size(16)));
typedef uint32_t u32 __attribute__((vector_size(16)));
typedef uint64_t u64 __attribute__((vector_size(16)));
}  // namespace mm
#define TE_MM static inline __attribute__((always_inline, unused))

// memory
TE_MM __m128i _mm_loadu_si128(const __m128i *p) { __m128i r; memcpy(&r, p, 16); return r; }
TE_MM __m128i _mm_loadl_epi64(const __m128i *p) { __m128i r = {0, 0}; memcpy(&r, p, 8); return r; }
TE_MM void _mm_storeu_si128(__m128i *p, __m128i a) { memcpy(p, &a, 16); }
TE_MM __m128 _mm_loadu_ps(const float *p) { __m128 r; memcpy(&r, p, 16); return r; }
TE_MM void _mm_storeu_ps(float *p, __m128 a) { memcpy(p, &a, 16); }
TE_MM void _mm_stream_si128(__m128i *p, __m128i a) { memcpy(p, &a, 16); }
TE_MM void _mm_stream_ps(float *p, __m128 a) { memcpy(p, &a, 16); }
TE_MM void _mm_sfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// constants
TE_MM __m128i _mm_setzero_si128() { return __m128i{0, 0}; }
TE_MM __m128 _mm_setzero_ps() { return __m128{0, 0, 0, 0}; }
TE_MM __m128i _mm_set1_epi8(char x) { return (__m128i)(mm::i8{} + (int8_t)x); }
TE_MM __m128i _mm_set1_epi16(short x) { return (__m128i)(mm::i16{} + x); }
TE_MM __m128i _mm_set1_epi32(int x) { return (__m128i)(mm::i32{} + x); }
TE_MM __m128 _mm_set1_ps(float x) { return __m128{x, x, x, x}; }
TE_MM __m128i _mm_cvtsi32_si128(int x) { return (__m128i)mm::i32{x, 0, 0, 0}; }
TE_MM int _mm_cvtsi128_si32(__m128i a) { return ((mm::i32)a)[0]; }
TE_MM float _mm_cvtss_f32(__m128 a) { return a[0]; }
TE_MM __m128i _mm_castps_si128(__m128 a) { return (__m128i)a; }
TE_MM __m128 _mm_castsi128_ps(__m128i a) { return (__m128)a; }

// arithmetic; minimum and maximum give b where either is NaN
TE_MM __m128 _mm_min_ps(__m128 a, __m128 b) { return a < b ? a : b; }
TE_MM __m128 _mm_max_ps(__m128 a, __m128 b) { return a > b ? a : b; }
TE_MM __m128 _mm_max_ss(__m128 a, __m128 b) { a[0] = a[0] > b[0] ? a[0] : b[0]; return a; }
TE_MM __m128 _mm_sqrt_ps(__m128 a) { return __m128{sqrtf(a[0]), sqrtf(a[1]), sqrtf(a[2]), sqrtf(a[3])}; }
TE_MM int mm_to_int(float x) { return x >= -0x1p31f && x < 0x1p31f ? (int)rintf(x) : INT32_MIN; }
TE_MM __m128i _mm_cvtps_epi32(__m128 a) { return (__m128i)mm::i32{mm_to_int(a[0]), mm_to_int(a[1]), mm_to_int(a[2]), mm_to_int(a[3])}; }
TE_MM __m128 _mm_cvtepi32_ps(__m128i a) { return __builtin_convertvector((mm::i32)a, __m128); }
TE_MM __m128i _mm_and_si128(__m128i a, __m128i b) { return a & b; }
TE_MM __m128i _mm_or_si128(__m128i a, __m128i b) { return a | b; }
TE_MM __m128i _mm_xor_si128(__m128i a, __m128i b) { return a ^ b; }
TE_MM __m128i _mm_sub_epi16(__m128i a, __m128i b) { return (__m128i)((mm::i16)a - (mm::i16)b); }
TE_MM __m128i _mm_add_epi32(__m128i a, __m128i b) { return (__m128i)((mm::i32)a + (mm::i32)b); }
TE_MM __m128i _mm_cmpeq_epi8(__m128i a, __m128i b) { return (__m128i)((mm::i8)a == (mm::i8)b); }
TE_MM __m128i _mm_min_epu8(__m128i a, __m128i b) { return (__m128i)((mm::u8)a < (mm::u8)b ? (mm::u8)a : (mm::u8)b); }
TE_MM __m128i _mm_mul_epu32(__m128i a, __m128i b) { return (__m128i)(((mm::u64)a & 0xffffffffu) * ((mm::u64)b & 0xffffffffu)); }
TE_MM int _mm_movemask_ps(__m128 a) {
  const mm::i32 s = (mm::i32)((mm::u32)a >> 31);
  return s[0] | s[1] << 1 | s[2] << 2 | s[3] << 3;
}

// saturating packs: a's lanes, then b's
TE_MM int mm_clamp(int x, int lo, int hi) { return x < lo ? lo : x > hi ? hi : x; }
TE_MM __m128i _mm_packs_epi32(__m128i a, __m128i b) {
  mm::i16 r;
  for (int i = 0; i < 4; i++) r[i] = (int16_t)mm_clamp(((mm::i32)a)[i], -32768, 32767), r[i + 4] = (int16_t)mm_clamp(((mm::i32)b)[i], -32768, 32767);
  return (__m128i)r;
}
TE_MM __m128i _mm_packs_epi16(__m128i a, __m128i b) {
  mm::i8 r;
  for (int i = 0; i < 8; i++) r[i] = (int8_t)mm_clamp(((mm::i16)a)[i], -128, 127), r[i + 8] = (int8_t)mm_clamp(((mm::i16)b)[i], -128, 127);
  return (__m128i)r;
}
TE_MM __m128i _mm_packus_epi16(__m128i a, __m128i b) {
  mm::u8 r;
  for (int i = 0; i < 8; i++) r[i] = (uint8_t)mm_clamp(((mm::i16)a)[i], 0, 255), r[i + 8] = (uint8_t)mm_clamp(((mm::i16)b)[i], 0, 255);
  return (__m128i)r;
}

// interleaving
TE_MM __m128i _mm_unpacklo_epi8(__m128i a, __m128i b) {
  return (__m128i)__builtin_shuffle((mm::i8)a, (mm::i8)b, mm::i8{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
}
TE_MM __m128i _mm_unpackhi_epi8(__m128i a, __m128i b) {
  return (__m128i)__builtin_shuffle((mm::i8)a, (mm::i8)b, mm::i8{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
}
TE_MM __m128i _mm_unpacklo_epi16(__m128i a, __m128i b) { return (__m128i)__builtin_shuffle((mm::i16)a, (mm::i16)b, mm::i16{0, 8, 1, 9, 2, 10, 3, 11}); }
TE_MM __m128i _mm_unpackhi_epi16(__m128i a, __m128i b) { return (__m128i)__builtin_shuffle((mm::i16)a, (mm::i16)b, mm::i16{4, 12, 5, 13, 6, 14, 7, 15}); }
TE_MM __m128i _mm_unpacklo_epi32(__m128i a, __m128i b) { return (__m128i)__builtin_shuffle((mm::i32)a, (mm::i32)b, mm::i32{0, 4, 1, 5}); }
TE_MM __m128i _mm_unpackhi_epi32(__m128i a, __m128i b) { return (__m128i)__builtin_shuffle((mm::i32)a, (mm::i32)b, mm::i32{2, 6, 3, 7}); }
TE_MM __m128i _mm_unpacklo_epi64(__m128i a, __m128i b) { return __m128i{a[0], b[0]}; }
TE_MM __m128i _mm_unpackhi_epi64(__m128i a, __m128i b) { return __m128i{a[1], b[1]}; }
TE_MM __m128 _mm_unpacklo_ps(__m128 a, __m128 b) { return __builtin_shuffle(a, b, mm::i32{0, 4, 1, 5}); }
TE_MM __m128 _mm_unpackhi_ps(__m128 a, __m128 b) { return __builtin_shuffle(a, b, mm::i32{2, 6, 3, 7}); }
TE_MM __m128 _mm_movelh_ps(__m128 a, __m128 b) { return __m128{a[0], a[1], b[0], b[1]}; }
TE_MM __m128 _mm_movehl_ps(__m128 a, __m128 b) { return __m128{b[2], b[3], a[2], a[3]}; }
#define _mm_shuffle_ps(a, b, k) \
  (__m128{(a)[(k) & 3], (a)[(k) >> 2 & 3], (b)[(k) >> 4 & 3], (b)[(k) >> 6 & 3]})
#define _mm_shuffle_epi32(a, k) \
  ((__m128i)(::mm::i32{((::mm::i32)(a))[(k) & 3], ((::mm::i32)(a))[(k) >> 2 & 3], ((::mm::i32)(a))[(k) >> 4 & 3], ((::mm::i32)(a))[(k) >> 6 & 3]}))
#define _MM_SHUFFLE(d, c, b, a) ((d) << 6 | (c) << 4 | (b) << 2 | (a))
#define _mm_prefetch(p, hint) __builtin_prefetch(p)
#define _MM_HINT_T0 3
#define _MM_HINT_NTA 0

}  // namespace
#endif
