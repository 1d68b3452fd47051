// SPDX-License-Identifier: Apache-2.0
// Products with at most kSkinny rows or columns: packing the wide operand would cost more than the product, so it is read in
// place, once, and converted on the way; the skinny one becomes f32 rows first.
#pragma once
#include "ops/gemm/epilogue.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

constexpr int kSkinny = 8;
constexpr int64_t kChunk = 1024;  // rows of the wide operand, or columns where k is strided, a task: whole pages of memory then

// The skinny operand as f32 [n, ld], zero from k on.
static inline void to_rows(const Operand &o, float *out, int64_t ld) {
  visit_any(o.dtype, [&](auto t) {
    const auto *src = (const decltype(t) *)o.data;
    if (o.k_unit) {
      for (int64_t i = 0; i < o.n; i++)
        for (int64_t j = 0; j < ld; j += 16) {
          const int64_t left = o.k - j;
          store(out + i * ld + j, left > 0 ? load(src + o.index(i) + j, lanes(left)) : zero());
        }
      return;
    }
    for (int64_t j = 0; j < ld; j++) {
      alignas(64) float column[16] = {};
      if (j < o.k) store(column, load(src + o.index(j), int(o.n)));
      for (int64_t i = 0; i < o.n; i++) out[i * ld + j] = column[i];
    }
  });
}

// out[r * ld + c] = dot(s row r, w row c): sums in kNative lanes along k, added by a fixed tree.
template <int R, int C, class T>
static void dot_rows(const float *s, int64_t s_ld, const T *const (&w)[C], int64_t k, float *out, int64_t ld) {
  nf acc[R][C] = {};
  int64_t j = 0;
  for (; j + kNative <= k; j += kNative) {
    nf wv[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) wv[c] = (nf)f32_words(w[c] + j);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
      const nf x = *(const nf_mem *)(s + r * s_ld + j);
#pragma GCC unroll 4
      for (int c = 0; c < C; c++) acc[r][c] = n_fma(x, wv[c], acc[r][c]);
    }
  }
  if (j < k)
    for (int c = 0; c < C; c++) {
      const nf v = (nf)load_k<false>(w[c] + j, k - j, Bf16Table{});
      for (int r = 0; r < R; r++) acc[r][c] = n_fma(*(const nf_mem *)(s + r * s_ld + j), v, acc[r][c]);
    }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) {
      float t[kNative];
      memcpy(t, &acc[r][c], sizeof t);
      for (int h = kNative / 2; h; h /= 2)
        for (int i = 0; i < h; i++) t[i] += t[i + h];
      out[r * ld + c] = t[0];
    }
}

// out[R, columns] += s[R, kRun] w[kRun, columns], w's rows contiguous.
constexpr int kRun = 4;
template <int R, class T>
static void add_rows(const float *s, int64_t s_ld, const T *const (&w)[kRun], int64_t columns, float *out, int64_t ld) {
  nf sv[R][kRun];
  for (int r = 0; r < R; r++)
    for (int i = 0; i < kRun; i++) sv[r][i] = set1(s[r * s_ld + i]).v[0];
  int64_t j = 0;
  for (; j + kNative <= columns; j += kNative) {
    nf v[kRun];
#pragma GCC unroll 4
    for (int i = 0; i < kRun; i++) v[i] = (nf)f32_words(w[i] + j);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
      nf_mem *p = (nf_mem *)(out + r * ld + j);
      nf x = *p;
#pragma GCC unroll 4
      for (int i = 0; i < kRun; i++) x = n_fma(sv[r][i], v[i], x);
      *p = x;
    }
  }
  if (j < columns)
    for (int r = 0; r < R; r++) {
      nf_mem *p = (nf_mem *)(out + r * ld + j);  // out is padded
      nf x = *p;
      for (int i = 0; i < kRun; i++) x = n_fma(sv[r][i], (nf)load_k<false>(w[i] + j, columns - j, Bf16Table{}), x);
      *p = x;
    }
}

// f(R) for groups of 4, 2 and 1 of n rows.
#define TE_ROW_GROUPS(n, f)                                      \
  for (int r = 0; r < (n);) {                                    \
    if ((n) - r >= 4) { f(4); r += 4; }                          \
    else if ((n) - r >= 2) { f(2); r += 2; }                     \
    else { f(1); r += 1; }                                       \
  }

// out[n, ld] = s (w rows or columns [w0, w0 + count))^T; out has room for count rounded up to 16.
static inline void skinny_tile(const float *s, int64_t s_ld, int n, const Operand &w, int64_t w0, int64_t count, float *out,
                               int64_t ld) {
  visit_any(w.dtype, [&](auto t) {
    using T = decltype(t);
    const T *src = (const T *)w.data;
    if (w.k_unit) {
      constexpr int C = kNative == 16 ? 4 : 2;  // accumulators: 4 C
      for (int64_t c = 0; c < count; c += C) {
        const T *rows[C];
        for (int i = 0; i < C; i++) rows[i] = src + w.index(w0 + (c + i < count ? c + i : count - 1));
#define TE_DOT(R) dot_rows<R, C, T>(s + r * s_ld, s_ld, rows, w.k, out + r * ld + c, ld)
        TE_ROW_GROUPS(n, TE_DOT)
#undef TE_DOT
      }
      return;
    }
    memset(out, 0, size_t(n * ld * 4));
    for (int64_t k = 0; k < w.k; k += kRun) {
      const T *rows[kRun];  // past the end: zeros
      alignas(16) T zeros[kChunk + 16];
      if (k + kRun > w.k) memset(zeros, 0, sizeof zeros);
      for (int i = 0; i < kRun; i++) rows[i] = k + i < w.k ? src + w.index(k + i) + w0 : zeros;
#define TE_ADD(R) add_rows<R, T>(s + r * s_ld + k, s_ld, rows, count, out + r * ld, ld)
      TE_ROW_GROUPS(n, TE_ADD)
#undef TE_ADD
    }
  });
}

// a.n <= kSkinny or b.n <= kSkinny. False when memory is out.
static bool skinny(const Operand &a, const Operand &b, Epilogue &e) {
  const bool swap = a.n > kSkinny;  // the wide operand is A: tiles come out transposed
  const Operand &s = swap ? b : a, &w = swap ? a : b;
  const int n = int(s.n);
  const int64_t s_ld = round_up(s.k + kRun, 16);
  float *rows = (float *)scratch(0, size_t(n * s_ld * 4));
  if (!rows) return false;
  to_rows(s, rows, s_ld);
  int64_t chunk = w.k_unit ? kMaxColumns : kChunk;
  if (w.k_unit) while (chunk > 16 && chunk * (w.k + 1) > kMaxColumns * 256) chunk /= 2;
  else while (chunk > 128 && w.n < 4 * chunk) chunk /= 2;
  const int64_t chunks = ceil_div(w.n, chunk);
  if (!e.reserve(swap ? chunks : 1)) return false;
  bool ok = true;
  const bool ran = parallel_for(chunks, w.n * (w.k + 1) * 2, [&](int64_t i) {
    const int64_t w0 = i * chunk, count = w.n - w0 < chunk ? w.n - w0 : chunk, ld = round_up(count, 16);
    float *tile = (float *)scratch(2, size_t((n * ld + count * 16) * 4)), *acc = tile + n * ld;
    if (!tile) return __atomic_store_n(&ok, false, __ATOMIC_RELAXED);
    skinny_tile(rows, s_ld, n, w, w0, count, tile, ld);
    for (int64_t j = 0; !swap && j < count; j += kMaxColumns)
      e.apply(0, n, w0 + j, count - j < kMaxColumns ? count - j : kMaxColumns, tile + j, ld, 0);
    if (!swap) return;
    for (int64_t j = 0; j < count; j++)
      for (int r = 0; r < n; r++) acc[j * 16 + r] = tile[r * ld + j];
    e.apply(w0, count, 0, n, acc, 16, i);
  });
  return ran && ok;
}

}  // namespace
}  // namespace te::cpu::TE_CPU_ISA
