// SPDX-License-Identifier: Apache-2.0
// The matrix products of attention on tiles in scratch memory: C[i, j] (+)= sum_k A[i, k] B[k, j], A broadcast element by element, B
// read 16 lanes at a time, C in registers. A tile element is a float, or a Pair: two bf16 that lie next to each other along k,
// multiplied by one vdpbf16ps into f32. Leading dimensions count 32-bit elements either way.
#pragma once
#include "cpu/vec.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

struct Pair { uint32_t b; };  // low half: even k

TE_INLINE vi load(const Pair *p) { vi r; TE_PARTS r.v[p_] = *(const ni_mem *)((const int32_t *)p + p_ * kNative); return r; }
TE_INLINE void store(Pair *p, vi a) { TE_PARTS *(ni_mem *)((int32_t *)p + p_ * kNative) = a.v[p_]; }
TE_INLINE nf native(const float *p) { return *(const nf_mem *)p; }
TE_INLINE ni native(const Pair *p) { return *(const ni_mem *)(const int32_t *)p; }
TE_INLINE nf broadcast(const float *p) { return *p - nf{}; }
TE_INLINE ni broadcast(const Pair *p) { return (int32_t)p->b + ni{}; }
TE_INLINE nf multiply_add(nf a, nf b, nf c) { return n_fma(a, b, c); }
TE_INLINE nf multiply_add(ni a, ni b, nf c) {
#if defined(__AVX512BF16__)
  return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
#else  // the same sums by f32: lets every level run (and test) the Pair code
  return n_fma((nf)(a & (int32_t)0xffff0000), (nf)(b & (int32_t)0xffff0000), n_fma((nf)(a << 16), (nf)(b << 16), c));
#endif
}

// Rows and 16-lane columns of C held in registers: 12 + 3, 24 + 3 or 8 + 5 of the level's registers.
#if defined(__AVX512F__)
constexpr int kRows = 12, kColumns = 2;
#elif defined(__AVX2__)
constexpr int kRows = 6, kColumns = 1;
#else
constexpr int kRows = 2, kColumns = 1;
#endif

// kTransposed: A[i, k] lies at a[k * lda + i], else at a[i * lda + k].
template <int R, int W, bool kTransposed, class E>
__attribute__((noinline)) void micro(int64_t k, const E *a, int64_t lda, const E *b, int64_t ldb, float *c, int64_t ldc, bool add) {
  constexpr int kVectors = W * kParts;
  nf acc[R][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int w = 0; w < kVectors; w++) acc[r][w] = nf{};
#pragma GCC unroll 2
  for (int64_t i = 0; i < k; i++) {
    decltype(native(b)) bv[kVectors];
#pragma GCC unroll 8
    for (int w = 0; w < kVectors; w++) bv[w] = native(b + w * kNative);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const auto av = broadcast(kTransposed ? a + r : a + r * lda);
#pragma GCC unroll 8
      for (int w = 0; w < kVectors; w++) acc[r][w] = multiply_add(av, bv[w], acc[r][w]);
    }
    a += kTransposed ? lda : 1;
    b += ldb;
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int w = 0; w < kVectors; w++) {
      nf_mem *p = (nf_mem *)(c + r * ldc + w * kNative);
      *p = add ? *p + acc[r][w] : acc[r][w];
    }
}

template <int W, bool kTransposed, class E>
TE_INLINE void micro_rows(int rows, int64_t k, const E *a, int64_t lda, const E *b, int64_t ldb, float *c, int64_t ldc, bool add) {
  switch (rows) {
#define TE_CASE(r) case r: return micro<r, W, kTransposed>(k, a, lda, b, ldb, c, ldc, add);
    TE_CASE(1) TE_CASE(2)
#if defined(__AVX2__)
    TE_CASE(4) TE_CASE(6)
#endif
#if defined(__AVX512F__)
    TE_CASE(8) TE_CASE(12)
#endif
#undef TE_CASE
  }
}

// Rows of C that one micro() makes, and what they need of the other dimension: columns [lo, hi) in score_product, the sum's range in
// value_product. Strips with lo >= hi need nothing.
struct Strip { int at, rows, lo, hi; };

// The largest row count that micro_rows() has and that is at most n.
TE_INLINE int strip_rows(int n) {
  if (n >= kRows) return kRows;
#if defined(__AVX512F__)
  if (n >= 8) return 8;
#endif
#if defined(__AVX2__)
  if (n >= 4) return 4;
#endif
  return n >= 2 ? 2 : 1;
}

// C[rows, n] = A[rows, k] B[k, n], only the columns that a strip needs. n is a multiple of 16.
template <class E>
void score_product(const Strip *strips, int count, int64_t n, int64_t k, const E *a, int64_t lda, const E *b, int64_t ldb, float *c,
                   int64_t ldc) {
  for (int64_t j = 0; j < n;) {
    const int w = n - j >= 16 * kColumns ? kColumns : 1;
    for (int s = 0; s < count; s++) {
      const Strip &t = strips[s];
      if (t.hi <= j || t.lo >= j + 16 * w || t.lo >= t.hi) continue;
      if (w == kColumns) micro_rows<kColumns, false>(t.rows, k, a + t.at * lda, lda, b + j, ldb, c + t.at * ldc + j, ldc, false);
      else micro_rows<1, false>(t.rows, k, a + t.at * lda, lda, b + j, ldb, c + t.at * ldc + j, ldc, false);
    }
    j += 16 * w;
  }
}

// C[rows, n] += A[rows, lo:hi] B[lo:hi, n]; lo and hi in units of E's k.
template <bool kTransposed, class E>
void value_product(const Strip *strips, int count, int64_t n, const E *a, int64_t lda, const E *b, int64_t ldb, float *c, int64_t ldc) {
  for (int64_t j = 0; j < n;) {
    const int w = n - j >= 16 * kColumns ? kColumns : 1;
    for (int s = 0; s < count; s++) {
      const Strip &t = strips[s];
      if (t.lo >= t.hi) continue;
      const E *at = kTransposed ? a + t.lo * lda + t.at : a + t.at * lda + t.lo;
      const E *bt = b + t.lo * ldb + j;
      float *ct = c + t.at * ldc + j;
      if (w == kColumns) micro_rows<kColumns, kTransposed>(t.rows, t.hi - t.lo, at, lda, bt, ldb, ct, ldc, true);
      else micro_rows<1, kTransposed>(t.rows, t.hi - t.lo, at, lda, bt, ldb, ct, ldc, true);
    }
    j += 16 * w;
  }
}

// ---- loading and storing rows of any dtype and stride ----
// `count` rows of n elements, row i at address(i); n16 = n rounded up to 16 is written, zeros past n; a null address is a row of zeros.
// `taint` collects 0 * x: it turns NaN where something is not finite. E = Pair keeps bf16 as they are.
TE_INLINE void put_unit(float *row, int64_t j, vf x) { store(row + j, x); }
TE_INLINE void put_unit(Pair *row, int64_t j, vf x) { store_u16((bf16 *)row + j, shr<16>(bits(x))); }
template <class T, class E, class F>
TE_INLINE void load_rows_as(F &&address, int count, int64_t stride, int64_t n, E *out, int64_t ld, vf &taint) {
  const int64_t whole = stride == 1 ? n / 16 * 16 : 0;
  vf bad = taint;
  for (int i = 0; i < count; i++, out += ld) {
    const T *p = (const T *)address(i);
    if (!p) {
      memset((void *)out, 0, (n + 15) / 16 * 16 * (__is_same(E, float) ? 4 : 2));
      continue;
    }
    for (int64_t j = 0; j < whole; j += 16) {
      const vf x = load(p + j);
      bad = fma(x, zero(), bad);
      put_unit(out, j, x);
    }
    for (int64_t j = whole; j < n; j += 16) {
      alignas(64) T t[16] = {};
      for (int64_t k = 0; k < 16 && j + k < n; k++) t[k] = p[(j + k) * stride];
      const vf x = load((const T *)t);
      bad = fma(x, zero(), bad);
      put_unit(out, j, x);
    }
  }
  taint = bad;
}
template <class E, class F>
TE_INLINE void load_rows(DType t, F &&address, int count, int64_t stride, int64_t n, E *out, int64_t ld, vf &taint) {
  visit_float(t, [&](auto z) { load_rows_as<decltype(z)>(address, count, stride, n, out, ld, taint); });
}
inline bool tainted(vf taint) {
  alignas(64) float t[16];
  store((float *)t, taint);
  bool bad = false;
  for (int i = 0; i < 16; i++) bad |= t[i] != t[i];
  return bad;
}
template <class T> TE_INLINE void store_row_as(char *p, int64_t stride, int64_t n, const float *in, float factor) {
  for (int64_t j = 0; j < n; j += 16) {
    const vf x = load(in + j) * set1(factor);
    const int left = (int)(n - j < 16 ? n - j : 16);
    if (stride == 1) store((T *)p + j, x, left);
    else {
      alignas(64) T t[16];
      store((T *)t, x);
      for (int i = 0; i < left; i++) ((T *)p)[(j + i) * stride] = t[i];
    }
  }
}
inline void store_row(DType t, char *p, int64_t stride, int64_t n, const float *in, float factor) {
  visit_float(t, [&](auto z) { store_row_as<decltype(z)>(p, stride, n, in, factor); });
}
inline void zero_row(int64_t bytes, char *p, int64_t stride, int64_t n) {
  if (stride == 1) memset(p, 0, n * bytes);
  else for (int64_t j = 0; j < n; j++) memset(p + j * stride * bytes, 0, bytes);
}

// dst[j, i] = src[i, j] for i < 16 and j < n (a multiple of 4), 32-bit elements.
inline void transpose16(const float *src, int64_t lds, int64_t n, float *dst, int64_t ldd) {
  for (int64_t j = 0; j < n; j += 4)
    for (int i = 0; i < 16; i += 4) {
      const float *s = src + i * lds + j;
      __m128 a = _mm_loadu_ps(s), b = _mm_loadu_ps(s + lds), c = _mm_loadu_ps(s + 2 * lds), d = _mm_loadu_ps(s + 3 * lds);
      const __m128 ab0 = _mm_unpacklo_ps(a, b), cd0 = _mm_unpacklo_ps(c, d), ab1 = _mm_unpackhi_ps(a, b), cd1 = _mm_unpackhi_ps(c, d);
      float *t = dst + j * ldd + i;
      _mm_storeu_ps(t, _mm_movelh_ps(ab0, cd0));
      _mm_storeu_ps(t + ldd, _mm_movehl_ps(cd0, ab0));
      _mm_storeu_ps(t + 2 * ldd, _mm_movelh_ps(ab1, cd1));
      _mm_storeu_ps(t + 3 * ldd, _mm_movehl_ps(cd1, ab1));
    }
}

}  // namespace
}  // namespace te::cpu::TE_CPU_ISA
