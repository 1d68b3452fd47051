// SPDX-License-Identifier: Apache-2.0
// Strips: an activation, its slope, or both, over a stretch of numbers that stays in L1 while the few passes of an operator go
// over it. Choosing the function once a call keeps one small loop for each (activation, type of x), whatever else is asked for.
#pragma once
#include "cpu/math.h"
#include "cpu/rows.h"
#include "libte/activation.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

constexpr int64_t kStrip = 2048;  // f32 values of a strip: 8 KB
struct alignas(64) StripBuffer { float v[kStrip + 16]; };

// Which NaN comes out of a formula depends on the order of operands in the compiled code: one for all keeps levels equal.
TE_INLINE vf one_nan(vf v) { return select(is_nan(v), floats(set1i(0x7fc00000)), v); }

// f(x) for a plain output, with fma: kDegree 4 for 16 bits, 6 for f32. Fused codes keep to math.h, which is the same at every level.
template <int kDegree, class A> TE_INLINE vf quick(A, vf x) { return A::value(x); }
template <int kDegree> TE_INLINE vf quick(Gelu, vf x) {
  const vf c = min(set1(10.f), max(set1(-10.0655f), x));  // the exponent ends at 128.2, where the exponential is inf, and at -126
  const vf t = c * fma(set1(-kGelu1), c * c, set1(-kGelu0));
  return max(set1(-10.0655f), x) / (set1(1.f) + exp2_inside_fast<kDegree>(t));
}
template <int kDegree, int kAlpha> TE_INLINE vf quick(Swish<kAlpha>, vf x) {
  const vf z = kAlpha == 1000 ? x : x * set1(kAlpha / 1000.f);
  return max(set1(-0x1.fffffep127f), x) / (set1(1.f) + exp_fast<kDegree>(-z));
}

// n: a multiple of 16.
// kDegree: of quick(); 0: the exact words.
template <class A, class X, int kDegree> static void value_strip(const void *x, float *y, int64_t n) {
#pragma GCC unroll 2
  for (int64_t j = 0; j < n; j += 16) {
    const X *p = (const X *)x + j;
    fetch_ahead(p);
    const vf v = load(p);
    store(y + j, kDegree ? quick<kDegree>(A{}, v) : one_nan(A::value(v)));
  }
}
template <class A, class X> static void slope_strip(const void *x, float *y, int64_t n) {
  for (int64_t j = 0; j < n; j += 16) store(y + j, one_nan(A::slope(load((const X *)x + j))));
}
template <class A, class X> static void both_strip(const void *x, float *value, float *slope, int64_t n) {
  for (int64_t j = 0; j < n; j += 16) {
    const ValueAndSlope r = A::both(load((const X *)x + j));
    store(value + j, one_nan(r.value));
    store(slope + j, one_nan(r.slope));
  }
}
template <class X> static void multiply_strip(const void *x, float *y, int64_t n) {
  for (int64_t j = 0; j < n; j += 16) store(y + j, load((const float *)y + j) * load((const X *)x + j));
}
typedef void (*Strip)(const void *x, float *y, int64_t n);
typedef void (*Strip2)(const void *x, float *value, float *slope, int64_t n);

template <class F> TE_INLINE void visit_activation(int32_t activation, F &&f) {
  switch (activation) {
    case NVTE_ACTIVATION_GELU: return f(Gelu{});
    case NVTE_ACTIVATION_GELU_ERF: return f(GeluErf{});
    case NVTE_ACTIVATION_QGELU: return f(Qgelu{});
    case NVTE_ACTIVATION_RELU: return f(Relu{});
    case NVTE_ACTIVATION_SRELU: return f(Srelu{});
    case NVTE_ACTIVATION_SILU: return f(Silu{});
    case NVTE_ACTIVATION_SIGMOID: return f(Sigmoid{});
    default: return;
  }
}

// n elements of any count: the last few go through zero-padded copies. y has room up to a multiple of 16.
static inline void run_strip(Strip f, const char *x, int64_t bytes, float *y, int64_t n) {
  const int64_t whole = n / 16 * 16;
  f(x, y, whole);
  if (whole == n) return;
  alignas(64) char t[64] = {};
  memcpy(t, x + whole * bytes, (n - whole) * bytes);
  f(t, y + whole, 16);
}
static inline void run_strip(Strip2 f, const char *x, int64_t bytes, float *value, float *slope, int64_t n) {
  const int64_t whole = n / 16 * 16;
  f(x, value, slope, whole);
  if (whole == n) return;
  alignas(64) char t[64] = {};
  memcpy(t, x + whole * bytes, (n - whole) * bytes);
  f(t, value + whole, slope + whole, 16);
}
static inline void add_strip(const float *x, float *sum, int64_t n) {
  for (int64_t j = 0; j < n; j += 16) store(sum + j, load((const float *)sum + j) + load(x + j));
}

// Walks an output in row blocks (parallel), each row in strips of `columns` columns (of out.K; gated gradients write two places a
// strip). With column sums the blocks are theirs. `flat`: input and output are contiguous and nothing needs rows, so that
// everything is one row of `columns` numbers. body(Block &b, i, row, j, n, at, sums): columns [j, j + n) of row `row`, which is row i
// of b, where they start at column `at`; sums is the block's partial row or null.
struct Walk { int64_t rows, columns; bool flat; };
template <class F> TE_INLINE nvte_status walk(Output &out, const Walk &w, nvte_tensor *dbias, F &&body) {
  ColumnSums sums = {0, 0, out.K, nullptr};
  const bool bias = given(dbias);
  int64_t chunk = out.columnwise ? 64 : clamp_int(65536 / (w.columns + 1), 1, 64);
  if (bias) {
    if (!column_sums(w.rows, out.K, 1, &sums)) return no_memory(out.K);
    if (out.columnwise && sums.rows > 32) {
      sums.rows = (sums.rows + 63) / 64 * 64;
      sums.blocks = (w.rows + sums.rows - 1) / sums.rows;
    }
    chunk = sums.rows;
  }
  const int64_t stretch = 16 * kStrip;  // of a flat walk
  const int64_t chunks = w.flat ? (w.columns + stretch - 1) / stretch : (w.rows + chunk - 1) / chunk;
  const bool ok = parallel_for(chunks, w.rows * w.columns * 8, [&](int64_t c) {
    if (w.flat) {
      const int64_t j0 = c * stretch, j1 = j0 + stretch < w.columns ? j0 + stretch : w.columns;
      Block b = out.begin(0, 1, j0, j1 - j0);
      for (int64_t j = j0; j < j1; j += kStrip) body(b, 0, 0, j, j1 - j < kStrip ? j1 - j : kStrip, j - j0, (float *)nullptr);
      if (out.stream) _mm_sfence();
      out.end(b);
      return;
    }
    float *partial = bias ? sums.of(0, c) : nullptr;
    if (bias) memset(partial, 0, padded(out.K) * sizeof(float));
    const int64_t end = (c + 1) * chunk < w.rows ? (c + 1) * chunk : w.rows;
    for (int64_t r0 = c * chunk; r0 < end; r0 += 64) {
      Block b = out.begin(r0, end - r0 < 64 ? end - r0 : 64);
      if (!b.ok) return;
      for (int64_t i = 0; i < b.rows; i++)
        for (int64_t j = 0; j < w.columns; j += kStrip)
          body(b, i, r0 + i, j, w.columns - j < kStrip ? w.columns - j : kStrip, j, partial);
      if (out.stream) _mm_sfence();
      out.end(b);
    }
  });
  if (!ok || (bias && !finish_columns(sums, 0, dbias))) return no_memory(out.K);
  return out.finish();
}
// A walk in rows, or flat where that is the same.
static inline Walk walk_of(const Output &out, bool inputs_contiguous, const nvte_tensor *dbias) {
  if (inputs_contiguous && !out.columnwise && is_contiguous(out.y->data) && !given(dbias)) return {1, out.M * out.K, true};
  return {out.M, out.K, false};
}
// Strips may go past the caches.
static inline bool can_stream(const Output &out, const Walk &w) {
  return w.flat ? out.stream && out.bytes > 1 && (uintptr_t)out.data % 64 == 0 && w.columns % 16 == 0
                : can_stream(out, w.columns) && w.columns * out.bytes % 64 == 0;
}

}  // namespace
}  // namespace te::cpu::TE_CPU_ISA
