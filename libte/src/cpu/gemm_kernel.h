// SPDX-License-Identifier: Apache-2.0
// Words of matrix multiplication: packers that convert any dtype on the way, and register-tiled kernels over packed panels. The
// scheme is Goto's: K. Goto and R. van de Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008.
//
// A *word* is the 32-bit unit that a kernel multiplies: one f32 or, with kPairs (level avx512bf16 only), two bf16 of consecutive
// k, the even one in the low half. A *panel* of width W holds W rows of the left operand or W columns of the right one: word
// (i, k) is panel[k * W + i]. Rows past the end are 0.
//
//     pack_k_unit<W, kPairs>     from memory where k is the contiguous dimension (transposes)
//     pack_k_strided<W, kPairs>  from memory where the rows are contiguous and k is strided
//     multiply<kPairs>           C[rows, kNR] (+)= A[rows, k] B[k, kNR], A from a panel of width kMR
//     multiply_rows<kPairs>      the same, A read in place from rows of words
//
// Products are summed in order of k, from 0, in f32 and added to C once a call. Pairs: vdpbf16ps treats subnormal operands and
// results as 0 and always rounds to nearest.
#pragma once
#include "cpu/vec.h"

#if defined(__AVX512BF16__)
#define TE_BF16_PAIRS 1
#else
#define TE_BF16_PAIRS 0
#endif

namespace te::cpu::TE_CPU_ISA {
namespace {

typedef uint32_t word;

// Rows and columns of the register tile: kMR * kNR / kNative accumulators, leaving room for one row of B and a broadcast.
#if defined(__AVX512F__)
constexpr int kMR = 14, kNR = 32;
#elif defined(__AVX2__)
constexpr int kMR = 6, kNR = 16;
#else
constexpr int kMR = 4, kNR = 8;
#endif
constexpr bool kHasPairs = TE_BF16_PAIRS;

template <bool kPairs> constexpr int64_t words(int64_t k) { return kPairs ? (k + 1) / 2 : k; }

// ---- native vectors of words: kNative lanes ----
typedef uint32_t nu_mem __attribute__((vector_size(4 * kNative), aligned(4), may_alias));
TE_INLINE void store_words(word *p, nu a) { *(nu_mem *)p = a; }
TE_INLINE nu load_words(const word *p) { return *(const nu_mem *)p; }

// kNative elements as f32 words. Where vec.h decodes 16 lanes, the unused parts are dead code.
TE_INLINE nu f32_words(const float *p) { return load_words((const word *)p); }
TE_INLINE nu f32_words(const bf16 *p) {
#if defined(__AVX512F__)
  return (nu)load(p).v[0];
#elif defined(__AVX2__)
  return (nu)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)) << 16;
#else
  return (nu)_mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i *)p));
#endif
}
TE_INLINE nu f32_words(const f16 *p) {
#if defined(__AVX512F__)
  return (nu)load(p).v[0];
#elif defined(__AVX2__)
  return (nu)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#else
  vi h = {};
  h.v[0] = (ni)_mm_unpacklo_epi16(_mm_loadl_epi64((const __m128i *)p), _mm_setzero_si128());
  return (nu)f16_to_f32(h).v[0];
#endif
}
template <class T> TE_INLINE nu f32_words(const T *p) {  // fp8
#if defined(__AVX512F__)
  return (nu)load(p).v[0];
#else
  vi c = {};
#if defined(__AVX2__)
  c.v[0] = (ni)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
#else
  int32_t four;
  memcpy(&four, p, 4);
  const __m128i z = _mm_setzero_si128();
  c.v[0] = (ni)_mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(four), z), z);
#endif
  return (nu)decode(c, T{}).v[0];
#endif
}

#if TE_BF16_PAIRS
// Magnitudes of the 128 non-negative fp8 codes as bf16 (every fp8 value is a normal bf16 or 0), in four registers.
struct Bf16Table { __m512i t[4]; };
template <class T> TE_INLINE Bf16Table bf16_table(T) {
  Bf16Table r;
  for (int i = 0; i < 4; i++) {
    alignas(64) uint16_t t[32];
    for (int h = 0; h < 2; h++) {
      const vi code = set1i(32 * i + 16 * h) + vi{{(ni){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}}};
      store_u16(t + 16 * h, shr<16>(bits(decode(code, T{}))));
    }
    r.t[i] = _mm512_load_si512(t);
  }
  return r;
}
TE_INLINE Bf16Table bf16_table(float) { return {}; }
TE_INLINE Bf16Table bf16_table(f16) { return {}; }
TE_INLINE Bf16Table bf16_table(bf16) { return {}; }

constexpr bool is_fnuz(e4m3fnuz) { return true; }
constexpr bool is_fnuz(e5m2fnuz) { return true; }
template <class T> constexpr bool is_fnuz(T) { return false; }

// 32 codes (0..255 in 16-bit lanes) to bf16.
template <class T> TE_INLINE __m512i fp8_to_bf16(__m512i c, const Bf16Table &t, T) {
  const __m512i lo = _mm512_permutex2var_epi16(t.t[0], c, t.t[1]), hi = _mm512_permutex2var_epi16(t.t[2], c, t.t[3]);
  const __m512i m = _mm512_mask_mov_epi16(lo, _mm512_test_epi16_mask(c, _mm512_set1_epi16(0x40)), hi);
  const __m512i r = _mm512_or_si512(m, _mm512_slli_epi16(_mm512_and_si512(c, _mm512_set1_epi16(0x80)), 8));
  if (!is_fnuz(T{})) return r;
  return _mm512_mask_mov_epi16(r, _mm512_cmpeq_epi16_mask(c, _mm512_set1_epi16(0x80)), _mm512_set1_epi16(0x7fc0));
}

// 32 consecutive elements as 16 pairs.
TE_INLINE nu pair_words(const bf16 *p, const Bf16Table &) { return (nu)_mm512_loadu_si512(p); }
template <class T> TE_INLINE nu rounded_pairs(const T *p) {
  const __m256i lo = _mm512_cvtepi32_epi16((__m512i)encode(load(p), bf16{}).v[0]);
  const __m256i hi = _mm512_cvtepi32_epi16((__m512i)encode(load(p + 16), bf16{}).v[0]);
  return (nu)_mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1);
}
TE_INLINE nu pair_words(const float *p, const Bf16Table &) { return rounded_pairs(p); }
TE_INLINE nu pair_words(const f16 *p, const Bf16Table &) { return rounded_pairs(p); }
template <class T> TE_INLINE nu pair_words(const T *p, const Bf16Table &t) {
  return (nu)fp8_to_bf16(_mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)p)), t, T{});
}

// 16 elements each of rows k and k + 1 as 16 pairs.
TE_INLINE nu pair_words(const bf16 *p, const bf16 *q, const Bf16Table &) {
  return (nu)load_u16(p).v[0] | (nu)load_u16(q).v[0] << 16;
}
template <class T> TE_INLINE nu rounded_pairs(const T *p, const T *q) {
  return (nu)encode(load(p), bf16{}).v[0] | (nu)encode(load(q), bf16{}).v[0] << 16;
}
TE_INLINE nu pair_words(const float *p, const float *q, const Bf16Table &) { return rounded_pairs(p, q); }
TE_INLINE nu pair_words(const f16 *p, const f16 *q, const Bf16Table &) { return rounded_pairs(p, q); }
template <class T> TE_INLINE nu pair_words(const T *p, const T *q, const Bf16Table &t) {
  return (nu)fp8_to_bf16((__m512i)((nu)load_u8(p).v[0] | (nu)load_u8(q).v[0] << 16), t, T{});
}
#else
struct Bf16Table {};
template <class T> TE_INLINE Bf16Table bf16_table(T) { return {}; }
#endif

// Elements in a native vector of words.
template <bool kPairs> constexpr int kStep = kPairs ? 2 * kNative : kNative;

template <bool kPairs, class T> TE_INLINE nu load_k(const T *p, const Bf16Table &t) {
#if TE_BF16_PAIRS
  if constexpr (kPairs) return pair_words(p, t);
#endif
  (void)t;
  return f32_words(p);
}
template <bool kPairs, class T> TE_INLINE nu load_k(const T *p, int64_t n, const Bf16Table &t) {  // n elements, then 0
  T tmp[kStep<kPairs>] = {};
  memcpy(tmp, p, n * sizeof(T));
  return load_k<kPairs>((const T *)tmp, t);
}

// kNative x kNative words: unpack pairs, then pairs of pairs, then exchange 128-bit blocks.
TE_INLINE void transpose(nu r[kNative]) {
#if defined(__AVX512F__)
  __m512i t[16], u[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32((__m512i)r[i], (__m512i)r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32((__m512i)r[i], (__m512i)r[i + 1]);
  }
  // u[4 g + c]: rows 4 g .. 4 g + 3 of columns c, c + 4, c + 8, c + 12
  for (int g = 0; g < 16; g += 4)
    for (int h = 0; h < 2; h++) {
      u[g + 2 * h] = _mm512_unpacklo_epi64(t[g + h], t[g + h + 2]);
      u[g + 2 * h + 1] = _mm512_unpackhi_epi64(t[g + h], t[g + h + 2]);
    }
  for (int c = 0; c < 4; c++) {
    const __m512i p = _mm512_shuffle_i32x4(u[c], u[c + 4], 0x88), q = _mm512_shuffle_i32x4(u[c + 8], u[c + 12], 0x88);
    const __m512i v = _mm512_shuffle_i32x4(u[c], u[c + 4], 0xdd), w = _mm512_shuffle_i32x4(u[c + 8], u[c + 12], 0xdd);
    r[c] = (nu)_mm512_shuffle_i32x4(p, q, 0x88);
    r[c + 8] = (nu)_mm512_shuffle_i32x4(p, q, 0xdd);
    r[c + 4] = (nu)_mm512_shuffle_i32x4(v, w, 0x88);
    r[c + 12] = (nu)_mm512_shuffle_i32x4(v, w, 0xdd);
  }
#elif defined(__AVX2__)
  __m256i t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_epi32((__m256i)r[i], (__m256i)r[i + 1]);
    t[i + 1] = _mm256_unpackhi_epi32((__m256i)r[i], (__m256i)r[i + 1]);
  }
  for (int g = 0; g < 8; g += 4)
    for (int h = 0; h < 2; h++) {
      u[g + 2 * h] = _mm256_unpacklo_epi64(t[g + h], t[g + h + 2]);
      u[g + 2 * h + 1] = _mm256_unpackhi_epi64(t[g + h], t[g + h + 2]);
    }
  for (int c = 0; c < 4; c++) {
    r[c] = (nu)_mm256_permute2x128_si256(u[c], u[c + 4], 0x20);
    r[c + 4] = (nu)_mm256_permute2x128_si256(u[c], u[c + 4], 0x31);
  }
#else
  const __m128i a = _mm_unpacklo_epi32((__m128i)r[0], (__m128i)r[1]), b = _mm_unpackhi_epi32((__m128i)r[0], (__m128i)r[1]);
  const __m128i c = _mm_unpacklo_epi32((__m128i)r[2], (__m128i)r[3]), d = _mm_unpackhi_epi32((__m128i)r[2], (__m128i)r[3]);
  r[0] = (nu)_mm_unpacklo_epi64(a, c);
  r[1] = (nu)_mm_unpackhi_epi64(a, c);
  r[2] = (nu)_mm_unpacklo_epi64(b, d);
  r[3] = (nu)_mm_unpackhi_epi64(b, d);
#endif
}

// One row of a panel from a native vector: W words, never more unless `spill` says that the next row will overwrite them.
template <int W> TE_INLINE void store_row(word *p, nu a, int g, bool spill) {
  if (W - g >= kNative || spill) store_words(p + g, a);
  else memcpy(p + g, &a, 4 * (W - g < kNative ? W - g : kNative));
}

// The uniform view for callers whose rows have one stride.
TE_INLINE RowIndex strided_rows(int64_t stride) { return {stride, true, nullptr}; }

// Element (i, k) of the operand is src[row(r0 + i) + k0 + k], i < rows <= W.
template <int W, bool kPairs, class T>
void pack_k_unit(const T *src, const RowIndex &row, int64_t r0, int rows, int64_t k0, int64_t k, word *panel) {
  const Bf16Table table = bf16_table(T{});
  constexpr int kPer = kPairs ? 2 : 1, kLine = 64 / sizeof(T);
  const int64_t ahead = row.uniform ? W * row.stride : 0;  // the caller's next panel: its lines are far apart, so fetch them now
  for (int g = 0; g < W; g += kNative) {
    const int n = rows - g < kNative ? rows - g : kNative;
    const T *p[kNative];
    for (int i = 0; i < kNative; i++) p[i] = i < n ? src + row(r0 + g + i) + k0 : src;
    nu r[kNative] = {};
    int64_t j = 0;
    if (n == (W - g < kNative ? W - g : kNative))
      for (; j + kStep<kPairs> < k; j += kStep<kPairs>) {  // leaves the last words to the tail, which does not spill
        if (j % kLine == 0)
#pragma GCC unroll 16
          for (int i = 0; i < (W < kNative ? W : kNative); i++) __builtin_prefetch(p[i] + j + ahead);
#pragma GCC unroll 16
        for (int i = 0; i < (W < kNative ? W : kNative); i++) r[i] = load_k<kPairs>(p[i] + j, table);
        for (int i = W; i < kNative; i++) r[i] = nu{};
        transpose(r);
#pragma GCC unroll 16
        for (int i = 0; i < kNative; i++) store_row<W>(panel + (j / kPer + i) * W, r[i], g, true);
      }
    for (; j < k; j += kStep<kPairs>) {
      const int64_t left = k - j < kStep<kPairs> ? k - j : kStep<kPairs>;
      for (int i = 0; i < kNative; i++) r[i] = i < n ? load_k<kPairs>(p[i] + j, left, table) : nu{};
      transpose(r);
      for (int i = 0; i < words<kPairs>(left); i++) store_row<W>(panel + (j / kPer + i) * W, r[i], g, false);
    }
  }
}

// One row of words from element row p (pairs: element rows p and q).
template <int W, bool kPairs, class T>
TE_INLINE void pack_row(const T *p, const T *q, const Bf16Table &t, word *out, bool spill) {
  (void)q, (void)t;
#pragma GCC unroll 4
  for (int g = 0; g < W; g += kNative) {
#if TE_BF16_PAIRS
    if constexpr (kPairs) store_row<W>(out, pair_words(p + g, q + g, t), g, spill);
    else
#endif
      store_row<W>(out, f32_words(p + g), g, spill);
  }
}

// Element (i, k) of the operand is src[krow(k0 + k) + r0 + i], i < rows <= W; `readable` elements from r0 on may be read. `more`:
// the words that follow in the panel are written afterwards.
template <int W, bool kPairs, class T>
void pack_k_strided(const T *src, const RowIndex &krow, int64_t r0, int rows, int64_t readable, int64_t k0, int64_t k, bool more,
                    word *panel) {
  const Bf16Table table = bf16_table(T{});
  constexpr int kPer = kPairs ? 2 : 1, kWide = (W + kNative - 1) / kNative * kNative;
  int64_t j = 0;
  if (rows == W && readable >= kWide) {
    for (; j + kPer < k + (more ? 1 : 0); j += kPer, panel += W)
      pack_row<W, kPairs>(src + krow(k0 + j) + r0, src + krow(k0 + j + kPer - 1) + r0, table, panel, true);
    if (j + kPer == k) {
      pack_row<W, kPairs>(src + krow(k0 + j) + r0, src + krow(k0 + j + kPer - 1) + r0, table, panel, false);
      return;
    }
  }
  T copy[2][kWide] = {};  // partial rows are copied; zeros stand for the missing half of a last pair
  for (; j < k; j += kPer, panel += W) {
    memcpy(copy[0], src + krow(k0 + j) + r0, rows * sizeof(T));
    if (kPairs && j + 1 < k) memcpy(copy[1], src + krow(k0 + j + 1) + r0, rows * sizeof(T));
    else memset(copy[1], 0, sizeof copy[1]);
    pack_row<W, kPairs>((const T *)copy[0], (const T *)copy[1], table, panel, false);
  }
}

// ---- kernels ----
template <bool kPairs> TE_INLINE nf multiply_add(nu a, nu b, nf c) {
#if TE_BF16_PAIRS
  if constexpr (kPairs) return (nf)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#endif
  return n_fma((nf)a, (nf)b, c);
}

// C[kRows, kNR] (+)= A B over kw words of k; word (i, k) of A is a[i * row_step + k * k_step]. kAhead: a cache line every
// kAheadSteps steps, from `ahead` on, is fetched into the second-level cache: what the caller needs next.
constexpr int kAheadSteps = kNative == 16 ? 1 : 2;  // steps of k a cache line
template <bool kPairs, int kRows, bool kAhead>
TE_INLINE void micro_kernel(const word *a, int64_t row_step, int64_t k_step, const word *b, int64_t kw, float *c, int64_t ldc,
                            bool add, const word *ahead) {
  constexpr int kVecs = kNR / kNative;
  nf acc[kRows][kVecs];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; i++) {
    __builtin_prefetch(c + i * ldc, 1);
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; v++) acc[i][v] = nf{};
  }
  int64_t k = 0;
  const auto step = [&]() __attribute__((always_inline)) {
    nu bv[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; v++) bv[v] = load_words(b + v * kNative);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; i++) {
      const nu x = nu{} + a[i * row_step];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; v++) acc[i][v] = multiply_add<kPairs>(x, bv[v], acc[i][v]);
    }
    a += k_step;
    b += kNR;
  };
  for (; k + 2 <= kw; k += 2) {
    if constexpr (kAhead) {
      __builtin_prefetch(ahead, 0, 2);
      if (kAheadSteps == 1) __builtin_prefetch(ahead + 16, 0, 2);
      ahead += 32 / kAheadSteps;
    }
    step();
    step();
  }
  if (k < kw) step();
#pragma GCC unroll 16
  for (int i = 0; i < kRows; i++)
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; v++) {
      nf_mem *p = (nf_mem *)(c + i * ldc + v * kNative);
      *p = add ? *p + acc[i][v] : acc[i][v];
    }
}

#define TE_ROW_CASES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)

// A from a panel of width kMR; rows in [1, kMR]. The second form fetches kw / kAheadSteps cache lines from `ahead` meanwhile.
template <bool kPairs>
__attribute__((noinline)) void multiply(int rows, const word *a, const word *b, int64_t kw, float *c, int64_t ldc, bool add) {
  switch (rows) {
#define TE_CASE(n) \
  case n: if constexpr (n <= kMR) micro_kernel<kPairs, n, false>(a, 1, kMR, b, kw, c, ldc, add, nullptr); break;
    TE_ROW_CASES(TE_CASE)
#undef TE_CASE
  }
}

template <bool kPairs>
__attribute__((noinline)) void multiply(int rows, const word *a, const word *b, int64_t kw, float *c, int64_t ldc, bool add,
                                        const word *ahead) {
  switch (rows) {
#define TE_CASE(n) \
  case n: if constexpr (n <= kMR) micro_kernel<kPairs, n, (n == kMR)>(a, 1, kMR, b, kw, c, ldc, add, ahead); break;
    TE_ROW_CASES(TE_CASE)
#undef TE_CASE
  }
}

// A in place: word (i, k) is a[i * lda + k]; rows in [1, kMR].
template <bool kPairs>
__attribute__((noinline)) void multiply_rows(int rows, const word *a, int64_t lda, const word *b, int64_t kw, float *c,
                                             int64_t ldc, bool add) {
  switch (rows) {
#define TE_CASE(n) \
  case n: if constexpr (n <= kMR) micro_kernel<kPairs, n, false>(a, lda, 1, b, kw, c, ldc, add, nullptr); break;
    TE_ROW_CASES(TE_CASE)
#undef TE_CASE
  }
}

}  // namespace
}  // namespace te::cpu::TE_CPU_ISA
