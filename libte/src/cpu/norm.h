// SPDX-License-Identifier: Apache-2.0
// Rows of LayerNorm (kMean) and RMSNorm, forward and backward; ops/layernorm and ops/rmsnorm are the two instances.
// A row stays in L1 or L2 between its passes. No fma(), so all levels give the same bits. Rows whose sums leave the range of f32
// (and rstd beyond 1e15 either way) are done again in double: values near FLT_MAX and subnormals with epsilon 0 stay finite.
// Inner loops see whole vectors only: where H is no multiple of 16 a row is copied to and from zero-padded scratch.
// Scratch of the calling thread: 0 = gamma and beta, 1 = column sums; of every thread: 2 = rows.
#pragma once
#include "cpu/rows.h"
#include "libte/norm.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

// gamma (plus one if zero-centred; ones if absent) and beta (zeros if absent) as f32.
struct Parameters { const float *gamma, *beta; };
static __attribute__((noinline, unused)) bool parameters(const nvte_tensor *gamma, const nvte_tensor *beta, uint32_t flags, int64_t h,
                                                        Parameters *out) {
  const int64_t hp = padded(h);
  float *g = (float *)scratch(0, 2 * hp * sizeof(float) + 64), *b = g + hp;
  if (!g) return false;
  if (given(gamma)) {
    widen(dtype_of(gamma->data.dtype), address(gamma->data), h, g);
    if (flags & NVTE_NORM_ZERO_CENTERED)
      for (int64_t j = 0; j < h; j++) g[j] += 1.f;
  } else {
    for (int64_t j = 0; j < hp; j++) g[j] = j < h ? 1.f : 0.f;
  }
  if (given(beta)) widen(dtype_of(beta->data.dtype), address(beta->data), h, b);
  else memset(b, 0, hp * sizeof(float));
  *out = {g, b};
  return true;
}

// ---- forward ----
struct NormForward {
  const nvte_tensor *x, *gamma, *beta, *residual;
  nvte_tensor *y, *residual_out, *mu, *rstd;
  float epsilon;
  uint32_t flags;
};
struct Statistics { float mu, rstd; bool wide; };

// Sixteen doubles, lane for lane with a vf.
typedef double nd __attribute__((vector_size(4 * kNative)));
typedef float nf_half __attribute__((vector_size(2 * kNative)));
struct vd { nd v[2 * kParts]; };
TE_INLINE void add(vd &a, vf x) {
  nf_half h[2 * kParts];
  memcpy(h, &x, sizeof h);
#pragma GCC unroll 8
  for (int i = 0; i < 2 * kParts; i++) a.v[i] = a.v[i] + __builtin_convertvector(h[i], nd);
}
TE_INLINE float reduce_add(const vd &a) {
  double t[16];
  memcpy(t, &a, sizeof t);
  for (int w = 8; w; w >>= 1)
    for (int i = 0; i < w; i++) t[i] += t[i + w];
  return float(t[0]);
}

// First pass over a row: the sum of s (kMean; f32 numbers in double, so that the mean of a row far from 0 is right) or of s^2. s as f32 goes to `wide` unless X is float and there is no residual; with
// one, s is the sum rounded to X, which also goes to `sum`. Everything may be accessed up to padded(h), zeros past h.
template <bool kMean, class X> TE_INLINE float first_pass(const X *x, const X *residual, X *sum, int64_t h, float *wide) {
  const auto term = [](vf v) TE_FLAT { return kMean ? v : v * v; };
  if (residual)
    for (int64_t j = 0; j < h; j += 16) {
      store(sum + j, load(x + j) + load(residual + j));
      store(wide + j, load((const X *)sum + j));
    }
  if (kMean && sizeof(X) == 4) {
    const float *s = residual ? wide : (const float *)x;
    vd total = {};
    for (int64_t j = 0; j < h; j += 16) add(total, load(s + j));
    return reduce_add(total);
  }
  if (residual) return sum_row(h, [&](int64_t j) TE_FLAT { return term(load((const float *)wide + j)); });
  return sum_row(h, [&](int64_t j) TE_FLAT {
    const vf v = load(x + j);
    if (sizeof(X) != 4) store(wide + j, v);
    return term(v);
  });
}
template <bool kMean> TE_INLINE Statistics statistics(float sum, const float *s, int64_t h, float epsilon) {
  const float count = float(h ? h : 1);
  float mu = 0, square = sum;
  if (kMean) {
    mu = sum / count;
    const vf m = set1(mu);
    square = sum_row(h / 16 * 16, [&](int64_t j) TE_FLAT {
      const vf v = load(s + j) - m;
      return v * v;
    });
    for (int64_t j = h / 16 * 16; j < h; j++) square += (s[j] - mu) * (s[j] - mu);
  }
  const float v = square / count + epsilon;
  return {mu, 1.f / __builtin_sqrtf(v), !(v >= 1e-30f && v <= 1e30f)};
}

// A row in double. Rows of equal values with epsilon 0 get the largest finite rstd, so that y = beta.
static __attribute__((noinline, unused)) Statistics wide_row(bool mean, const float *s, int64_t h, float epsilon, Parameters w, float *y) {
  const double count = double(h ? h : 1);
  double mu = 0, square = 0;
  for (int64_t j = 0; j < h && mean; j++) mu += s[j];
  mu /= count;
  for (int64_t j = 0; j < h; j++) square += (s[j] - mu) * (s[j] - mu);
  const double top = 0x1.fffffep127;
  double rstd = 1 / __builtin_sqrt(square / count + double(epsilon));
  if (rstd > 1e300) rstd = top;
  for (int64_t j = 0; j < h; j++) y[j] = float((s[j] - mu) * rstd * w.gamma[j] + w.beta[j]);
  return {float(mu), float(rstd > top ? top : rstd), true};
}

// y[j] = normalised s, rounded to Y. The largest |value| before rounding goes into `top`.
template <bool kMean, bool kStream, class Y>
static __attribute__((noinline)) vf normal_row(const float *s, const char *next, int64_t next_bytes, int64_t h, Statistics t, Parameters w,
                                              Y *y, vf top) {
  const vf mu = set1(t.mu), rstd = set1(t.rstd);
  for (int64_t j = 0, b = 0; j < h; j += 16, b += next_bytes) {
    __builtin_prefetch(next + b);
    vf v = load(s + j);
    if (kMean) v = (v - mu) * rstd * load(w.gamma + j) + load(w.beta + j);
    else v = v * rstd * load(w.gamma + j);
    top = amax(top, v);
    if (kStream) store_stream(y + j, v);
    else store(y + j, v);
  }
  return top;
}

// `direct`: y's rows take whole vectors of a 32- or 16-bit type, else rows go through f32 scratch.
template <bool kMean, class X>
static __attribute__((noinline)) bool forward_rows(const NormForward &f, Parameters w, const RowIndex &xi, const RowIndex &ri, Block &b,
                                                  bool direct, bool stream) {
  const int64_t h = columns(f.x->data), hp = padded(h) + 16, end = b.row0 + b.rows;
  float *const s_row = (float *)scratch(2, 4 * hp * sizeof(float)), *const y_row = s_row + hp;
  if (!s_row) return false;
  X *const x_copy = (X *)(s_row + 2 * hp), *const r_copy = (X *)(s_row + 3 * hp);
  for (int64_t r = b.row0; r < end; r++) {
    const X *x = whole_row((const X *)row_of(f.x, xi, r), h, x_copy);
    const char *next = row_of(f.x, xi, r + 1 < end ? r + 1 : r);
    const X *residual = nullptr;
    X *sum = nullptr, *out = nullptr;
    if (given(f.residual)) {
      residual = whole_row((const X *)row_of(f.residual, ri, r), h, r_copy);
      out = given(f.residual_out) ? address_as<X>(f.residual_out->data) + r * h : x_copy;
      sum = h % 16 ? x_copy : out;
    }
    const float total = first_pass<kMean>(x, residual, sum, h, s_row);
    if (sum != out) memcpy(out, sum, h * sizeof(X));
    const float *s = sizeof(X) == 4 && !residual ? (const float *)x : s_row;
    Statistics t = statistics<kMean>(total, s, h, f.epsilon);
    const int64_t i = r - b.row0, bytes = 16 * sizeof(X);
    if (__builtin_expect(t.wide, 0)) {
      t = wide_row(kMean, s, h, f.epsilon, w, y_row);
      write_any(b, i, 0, y_row, h);
    } else if (!direct) {
      normal_row<kMean, false>(s, next, bytes, h, t, w, y_row, zero());
      write_any(b, i, 0, y_row, h);
    } else {
      visit_float(b.dtype, [&](auto type) {
        auto *y = b.row<decltype(type)>(i);
        if (stream) b.max = normal_row<kMean, true>(s, next, bytes, h, t, w, y, b.max);
        else b.max = normal_row<kMean, false>(s, next, bytes, h, t, w, y, b.max);
      });
    }
    if (given(f.mu)) address_as<float>(f.mu->data)[r] = t.mu;
    if (given(f.rstd)) address_as<float>(f.rstd->data)[r] = t.rstd;
  }
  return true;
}

template <bool kMean> static nvte_status norm_forward(const NormForward &f) {
  Output out(*f.y);
  const int64_t m = out.M, h = out.K;
  Parameters w;
  if (!parameters(f.gamma, f.beta, f.flags, h, &w)) return no_memory(h);
  const RowIndex xi = row_index(f.x->data), ri = given(f.residual) ? row_index(f.residual->data) : xi;
  const DType x_type = dtype_of(f.x->data.dtype);
  // 64 rows a block fill whole lines of a column-wise output; without one, about 64 K elements a block
  const int64_t block = out.columnwise ? 64 : clamp_int(65536 / (h + 1), 1, 64);
  const bool direct = h % 16 == 0 && out.bytes > 1;
  const bool stream = can_stream(out, h);
  bool memory = true;
  const bool ok = parallel_for((m + block - 1) / block, m * h, [&](int64_t c) {
    Block b = out.begin(c * block, c * block + block < m ? block : m - c * block);
    if (!b.ok) return;
    bool done = true;
    visit_float(x_type, [&](auto xt) {
      done = forward_rows<kMean, decltype(xt)>(f, w, xi, ri, b, direct, stream);
    });
    if (!done) __atomic_store_n(&memory, false, __ATOMIC_RELAXED);
    if (stream) _mm_sfence();
    out.end(b);
  });
  return ok && memory ? out.finish() : no_memory(h);
}

// ---- backward ----
struct NormBackward {
  const nvte_tensor *dy, *x, *gamma, *mu, *rstd, *add;
  nvte_tensor *dx, *dgamma, *dbeta;
  uint32_t flags;
};

// One row in double, dx over x, where f32 would overflow. Slow and rare.
static __attribute__((noinline, unused)) void wide_backward(bool mean, float *x, const float *dy, const float *gamma, double mu, double rstd,
                                                           const float *add, int64_t h, float *dgamma, float *dbeta) {
  const double count = double(h);
  double m1 = 0, m2 = 0;
  for (int64_t j = 0; j < h; j++) {
    const double n = (x[j] - mu) * rstd, d = double(dy[j]) * gamma[j];
    m1 += d * n;
    m2 += d;
    if (dgamma) dgamma[j] += float(dy[j] * n);
    if (dbeta) dbeta[j] += dy[j];
  }
  m1 /= double(h);
  m2 = mean ? m2 / count : 0;
  for (int64_t j = 0; j < h; j++) {
    const double n = (x[j] - mu) * rstd, d = double(dy[j]) * gamma[j];
    x[j] = float(rstd * (d - n * m1 - m2) + (add ? add[j] : 0.f));
  }
}

// n and d of a row go to scratch, their means (of d * n and of d) come back; dy * n and dy are added to the column sums where
// kColumns. Lanes past h: dy is 0.
struct Means { float dn, d; };
template <bool kMean, bool kColumns, class X, class D>
TE_INLINE Means backward_means(const X *x, const D *dy, int64_t h, float mean, float scale, const float *gamma, float *n_row, float *d_row,
                               float *dgamma, float *dbeta) {
  const vf mu = set1(mean), rstd = set1(scale);
  vf dn[2] = {zero(), zero()}, sd[2] = {zero(), zero()};
  const auto step = [&](int64_t j, int k) TE_FLAT {
    const vf g = load(dy + j), d = g * load(gamma + j);
    vf n = load(x + j);
    if (kMean) n = n - mu;
    n = n * rstd;
    store(n_row + j, n);
    store(d_row + j, d);
    dn[k] = dn[k] + d * n;
    if (kMean) sd[k] = sd[k] + d;
    if (kColumns) store(dgamma + j, load((const float *)dgamma + j) + g * n);
    if (kColumns && kMean) store(dbeta + j, load((const float *)dbeta + j) + g);
  };
  int64_t j = 0;
  for (; j + 32 <= h; j += 32) step(j, 0), step(j + 16, 1);
  for (; j < h; j += 16) step(j, 0);
  const float count = float(h ? h : 1);
  return {reduce_add(dn[0] + dn[1]) / count, kMean ? reduce_add(sd[0] + sd[1]) / count : 0.f};
}
// dx = rstd * (d - n * mean(d n) - mean(d)) + add; the next row's x and dy are fetched meanwhile.
template <bool kMean, bool kAdd, bool kStream, class X>
TE_INLINE void backward_row(const float *n, const float *d, const char *next, const char *dy_next, int64_t dy_bytes, int64_t h, float scale,
                            Means m, const float *add, X *dx) {
  const vf rstd = set1(scale), dn = set1(m.dn), md = set1(m.d);
  for (int64_t j = 0; j < h; j += 16, dy_next += dy_bytes) {
    __builtin_prefetch((const X *)next + j);
    __builtin_prefetch(dy_next);
    vf v = load(d + j) - load(n + j) * dn;
    if (kMean) v = v - md;
    v = v * rstd;
    if (kAdd) v = v + load(add + j);
    if (kStream) store_stream(dx + j, v);
    else store(dx + j, v);
  }
}

// D = X or float (other types of dy are widened to it). dgamma, dbeta: partial column sums, or both null.
template <bool kMean, class X, class D>
static __attribute__((noinline)) bool backward_rows(const NormBackward &f, const float *gamma, int64_t row0, int64_t row1, float *dgamma,
                                                   float *dbeta, bool stream) {
  const int64_t h = columns(f.x->data), hp = padded(h) + 16;
  const RowIndex xi = row_index(f.x->data), di = row_index(f.dy->data), ai = given(f.add) ? row_index(f.add->data) : xi;
  const DType x_type = dtype_of(f.x->data.dtype), d_type = dtype_of(f.dy->data.dtype);
  float *buffer = (float *)scratch(2, 6 * hp * sizeof(float));
  if (!buffer) return false;
  float *const n_row = buffer, *const d_row = buffer + hp, *const dy_row = buffer + 2 * hp, *const add_row = buffer + 3 * hp;
  float *const x_row = buffer + 4 * hp, *const dx_row = buffer + 5 * hp;
  if (dgamma) memset(dgamma, 0, padded(h) * sizeof(float));
  if (dbeta) memset(dbeta, 0, padded(h) * sizeof(float));
  for (int64_t r = row0; r < row1; r++) {
    const X *x = (const X *)row_of(f.x, xi, r);
    X *const out = address_as<X>(f.dx->data) + r * h;
    const bool convert = __is_same(D, float) && d_type != DType::f32;
    const D *dy = (const D *)row_of(f.dy, di, r);
    const float *add = nullptr;
    if (given(f.add)) {
      widen(dtype_of(f.add->data.dtype), row_of(f.add, ai, r), h, add_row);
      add = add_row;
    }
    const float mean = kMean ? address_as<const float>(f.mu->data)[r] : 0.f, scale = address_as<const float>(f.rstd->data)[r];
    if (__builtin_expect(!(scale >= 1e-15f && scale <= 1e15f), 0)) {
      widen(d_type, dy, h, dy_row);
      widen(x_type, x, h, x_row);
      wide_backward(kMean, x_row, dy_row, gamma, mean, scale, add, h, dgamma, dbeta);
      narrow(x_type, x_row, h, out);
      continue;
    }
    const char *next = row_of(f.x, xi, r + 1 < row1 ? r + 1 : r), *dy_next = row_of(f.dy, di, r + 1 < row1 ? r + 1 : r);
    x = whole_row(x, h, x_row);
    if (convert) widen(d_type, dy, h, dy_row), dy = (const D *)dy_row;
    else dy = whole_row(dy, h, dy_row);
    const Means m = dgamma ? backward_means<kMean, true>(x, dy, h, mean, scale, gamma, n_row, d_row, dgamma, dbeta)
                           : backward_means<kMean, false>(x, dy, h, mean, scale, gamma, n_row, d_row, dgamma, dbeta);
    X *const dx = h % 16 ? (X *)dx_row : out;
    const int64_t dy_bytes = 16 * element_bytes(f.dy->data);
    if (add) backward_row<kMean, true, false>(n_row, d_row, next, dy_next, dy_bytes, h, scale, m, add, dx);
    else if (stream) backward_row<kMean, false, true>(n_row, d_row, next, dy_next, dy_bytes, h, scale, m, add, dx);
    else backward_row<kMean, false, false>(n_row, d_row, next, dy_next, dy_bytes, h, scale, m, add, dx);
    if (dx != out) memcpy(out, dx, h * sizeof(X));
  }
  return true;
}

template <bool kMean> static nvte_status norm_backward(const NormBackward &f) {
  const int64_t m = rows(f.x->data), h = columns(f.x->data);
  Parameters w;
  ColumnSums sums;
  const bool columns = given(f.dgamma) || given(f.dbeta);
  if (!parameters(f.gamma, nullptr, f.flags, h, &w) || !column_sums(m, h, columns * (1 + kMean), &sums)) return no_memory(h);
  const int64_t bytes = element_bytes(f.dx->data);
  const bool stream = m * h * bytes >= kStreamBytes && (uintptr_t)address(f.dx->data) % 64 == 0 && h * bytes % 64 == 0;
  bool memory = true;
  bool ok = parallel_for(sums.blocks, 2 * m * h, [&](int64_t c) {
    const int64_t r0 = c * sums.rows, r1 = r0 + sums.rows < m ? r0 + sums.rows : m;
    float *dgamma = columns ? sums.of(0, c) : nullptr, *dbeta = columns && kMean ? sums.of(1, c) : nullptr;
    bool done = true;
    visit_float(dtype_of(f.x->data.dtype), [&](auto xt) {
      using X = decltype(xt);
      if (dtype_of(f.dy->data.dtype) == dtype_of(f.x->data.dtype)) done = backward_rows<kMean, X, X>(f, w.gamma, r0, r1, dgamma, dbeta, stream);
      else done = backward_rows<kMean, X, float>(f, w.gamma, r0, r1, dgamma, dbeta, stream);
    });
    if (!done) __atomic_store_n(&memory, false, __ATOMIC_RELAXED);
    if (stream) _mm_sfence();
  });
  if (given(f.dgamma)) ok = ok && finish_columns(sums, 0, f.dgamma);
  if (given(f.dbeta)) ok = ok && finish_columns(sums, 1, f.dbeta);
  return ok && memory ? NVTE_OK : no_memory(h);
}

}  // namespace
}  // namespace te::cpu::TE_CPU_ISA
