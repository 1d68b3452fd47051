// SPDX-License-Identifier: Apache-2.0
// Rows of LayerNorm (kMean) and RMSNorm, forward and backward; ops/layernorm and ops/rmsnorm are the two instances.
// A row stays in L1 or L2 between its passes. No fma(), so all levels give the same bits. Rows whose sums leave the range of f32
// (and rstd beyond 1e15 either way) are done again in double: values near FLT_MAX and subnormals with epsilon 0 stay finite.
// Inner loops see whole vectors only: where H is no multiple of 16 a row is copied to and from zero-padded scratch.
// Scratch of the calling thread: 0 = gamma and beta, 1 = column sums; of every thread: 2 = rows.
#pragma once
#include "cpu/writer.h"
#include "libte/norm.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

static inline bool given(const nvte_tensor *t) { return t && present(t->data); }
static inline int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }
static inline int64_t clamp_int(int64_t v, int64_t lo, int64_t hi) { return v < lo ? lo : v > hi ? hi : v; }
static inline nvte_status no_memory(int64_t h) {
  return fail(NVTE_ERR_OUT_OF_MEMORY, "no scratch memory for rows of H = %lld", (long long)h);
}

// n elements of any float type as f32, zeros up to a multiple of 16; and back.
static __attribute__((noinline, unused)) void widen(DType t, const void *p, int64_t n, float *out) {
  visit_float(t, [&](auto type) {
    auto *q = (const decltype(type) *)p;
    int64_t j = 0;
    for (; j + 16 <= n; j += 16) store(out + j, load(q + j));
    if (j < n) store(out + j, load(q + j, int(n - j)));
  });
}
static __attribute__((noinline, unused)) void narrow(DType t, const float *p, int64_t n, void *out) {
  visit_float(t, [&](auto type) {
    auto *q = (decltype(type) *)out;
    int64_t j = 0;
    for (; j + 16 <= n; j += 16) store(q + j, load(p + j));
    if (j < n) store(q + j, load(p + j), int(n - j));
  });
}
static __attribute__((noinline, unused)) void write_any(Block &b, int64_t i, const float *row, int64_t h) { b.write(i, 0, row, h); }
static inline const char *row_of(const nvte_tensor *t, const RowIndex &index, int64_t r) {
  return (const char *)address(t->data) + index(r) * element_bytes(t->data);
}
// A row of h elements that may be read up to padded(h): the row itself or a copy.
template <class T> TE_INLINE const T *whole_row(const T *p, int64_t h, void *copy) {
  if (h % 16 == 0) return p;
  T *q = (T *)copy;
  memset(q + h / 16 * 16, 0, 16 * sizeof(T));
  memcpy(q, p, h * sizeof(T));
  return q;
}

// The sum of term(j) over a row, lanes past h left out; four accumulators and a fixed tree.
template <class F> TE_INLINE float sum_row(int64_t h, F &&term) {
  vf a[4] = {zero(), zero(), zero(), zero()};
  int64_t j = 0;
  for (; j + 64 <= h; j += 64)
    for (int k = 0; k < 4; k++) a[k] = a[k] + term(j + 16 * k);
  for (; j < h; j += 16) a[0] = a[0] + keep_first(term(j), int(h - j), 0.f);
  return reduce_add((a[0] + a[1]) + (a[2] + a[3]));
}

// v past the caches; p is aligned to the vector's stored size.
TE_INLINE void store_stream(float *p, vf v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(p, v.v[0]);
#elif defined(__AVX2__)
  TE_PARTS _mm256_stream_ps(p + p_ * kNative, v.v[p_]);
#else
  TE_PARTS _mm_stream_ps(p + p_ * kNative, v.v[p_]);
#endif
}
template <class T> TE_INLINE void store_stream(T *p, vf v) {
  alignas(64) T t[16];
  store((T *)t, v);
  for (int i = 0; i < 2; i++) _mm_stream_si128((__m128i *)p + i, *((const __m128i *)t + i));
}

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

// s may be read up to padded(h).
template <bool kMean, class X> TE_INLINE Statistics statistics(const X *s, int64_t h, float epsilon) {
  const float count = float(h ? h : 1);
  const float mu = kMean ? sum_row(h, [&](int64_t j) { return load(s + j); }) / count : 0.f;
  const vf m = set1(mu);
  const float square = sum_row(h, [&](int64_t j) {
    vf v = load(s + j);
    if (kMean) v = v - m;
    return v * v;
  });
  const float v = square / count + epsilon;
  return {mu, 1.f / __builtin_sqrtf(v), !(v >= 1e-30f && v <= 1e30f)};
}

// A row in double, y over s. A row of equal values with epsilon 0 gets the largest finite rstd, so that y = beta.
static __attribute__((noinline, unused)) Statistics wide_row(bool mean, float *s, int64_t h, float epsilon, Parameters w) {
  const double count = double(h ? h : 1);
  double mu = 0, square = 0;
  for (int64_t j = 0; j < h && mean; j++) mu += s[j];
  mu /= double(h);
  for (int64_t j = 0; j < h; j++) square += (s[j] - mu) * (s[j] - mu);
  const double top = 0x1.fffffep127;
  double rstd = 1 / __builtin_sqrt(square / count + double(epsilon));
  if (rstd > 1e300) rstd = top;
  for (int64_t j = 0; j < h; j++) s[j] = float((s[j] - mu) * rstd * w.gamma[j] + w.beta[j]);
  return {float(mu), float(rstd > top ? top : rstd), true};
}

// y[j] = normalised s, rounded to Y. The largest |value| before rounding goes into `top`.
template <bool kMean, bool kStream, class X, class Y>
TE_INLINE vf normal_row(const X *s, const X *next, int64_t h, Statistics t, Parameters w, Y *y, vf top) {
  const vf mu = set1(t.mu), rstd = set1(t.rstd);
  for (int64_t j = 0; j < h; j += 16) {
    __builtin_prefetch(next + j);
    vf v = load(s + j);
    if (kMean) v = (v - mu) * rstd * load(w.gamma + j) + load(w.beta + j);
    else v = v * rstd * load(w.gamma + j);
    top = amax(top, v);
    if (kStream) store_stream(y + j, v);
    else store(y + j, v);
  }
  return top;
}

// Y = X or float; `direct`: Y is y's dtype and its rows take whole vectors, else rows go through f32 scratch.
template <bool kMean, class X, class Y>
static __attribute__((noinline)) bool forward_rows(const NormForward &f, Parameters w, const RowIndex &xi, const RowIndex &ri, Block &b,
                                                  bool direct, bool stream) {
  const int64_t h = columns(f.x->data), end = b.row0 + b.rows;
  float *buffer = (float *)scratch(2, 2 * (padded(h) + 16) * sizeof(float));
  if (!buffer) return false;
  X *const x_copy = (X *)(buffer + padded(h) + 16);
  for (int64_t r = b.row0; r < end; r++) {
    const X *s = whole_row((const X *)row_of(f.x, xi, r), h, x_copy);
    const X *next = (const X *)row_of(f.x, xi, r + 1 < end ? r + 1 : r);
    if (given(f.residual)) {
      const X *c = whole_row((const X *)row_of(f.residual, ri, r), h, buffer);
      X *out = given(f.residual_out) ? address_as<X>(f.residual_out->data) + r * h : x_copy;
      X *sum = h % 16 ? x_copy : out;
      for (int64_t j = 0; j < h; j += 16) store(sum + j, load(s + j) + load(c + j));
      if (sum != out) memcpy(out, sum, h * sizeof(X));
      s = sum;
    }
    Statistics t = statistics<kMean>(s, h, f.epsilon);
    if (__builtin_expect(t.wide, 0)) {
      widen(dtype_of(f.x->data.dtype), s, h, buffer);
      t = wide_row(kMean, buffer, h, f.epsilon, w);
      write_any(b, r - b.row0, buffer, h);
    } else if (!direct) {
      normal_row<kMean, false>(s, next, h, t, w, buffer, zero());
      write_any(b, r - b.row0, buffer, h);
    } else if (stream) {
      b.max = normal_row<kMean, true>(s, next, h, t, w, b.row<Y>(r - b.row0), b.max);
    } else {
      b.max = normal_row<kMean, false>(s, next, h, t, w, b.row<Y>(r - b.row0), b.max);
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
  const bool direct = h % 16 == 0 && (out.dtype == x_type || out.dtype == DType::f32);
  const bool stream = direct && out.stream && !out.columnwise && out.index.uniform && (uintptr_t)out.data % 64 == 0 &&
                      (out.index.stride * out.bytes) % 64 == 0;
  bool memory = true;
  const bool ok = parallel_for((m + block - 1) / block, m * h, [&](int64_t c) {
    Block b = out.begin(c * block, c * block + block < m ? block : m - c * block);
    if (!b.ok) return;
    bool done = true;
    visit_float(x_type, [&](auto xt) {
      using X = decltype(xt);
      if (out.dtype == x_type) done = forward_rows<kMean, X, X>(f, w, xi, ri, b, direct, stream);
      else done = forward_rows<kMean, X, float>(f, w, xi, ri, b, direct, stream);
    });
    if (!done) __atomic_store_n(&memory, false, __ATOMIC_RELAXED);
    if (stream) _mm_sfence();
    out.end(b);
  });
  return ok && memory ? out.finish() : no_memory(h);
}

// ---- column sums ----
// Sums of H columns over row blocks: each block owns a partial row, a binary tree over the blocks adds them up.
struct ColumnSums {
  int64_t blocks, rows, h;  // number of blocks and rows of a block: functions of the shape only
  float *partial;           // [list][block][padded h]
  TE_INLINE float *of(int list, int64_t block) const { return partial + (list * blocks + block) * padded(h); }
};
// False when memory is out.
static inline bool column_sums(int64_t m, int64_t h, int lists, ColumnSums *s) {
  // up to 64 blocks of at least 16 rows; wide rows get smaller blocks, and fewer of them in favour of memory
  const int64_t most = clamp_int((1 << 21) / (h + 1), 16, 64), least = clamp_int(32768 / (h + 1), 1, 16);
  int64_t rows = (m + most - 1) / most;
  if (rows < least) rows = least;
  const int64_t blocks = (m + rows - 1) / rows;
  *s = {blocks, rows, h, (float *)scratch(1, size_t(lists * blocks * padded(h) + 16) * sizeof(float))};
  return s->partial != nullptr;
}
static __attribute__((noinline, unused)) bool finish_columns(const ColumnSums &s, int list, nvte_tensor *out) {
  const DType t = dtype_of(out->data.dtype);
  const int64_t bytes = element_bytes(out->data), strip = 1024;
  return parallel_for((s.h + strip - 1) / strip, s.blocks * s.h, [&](int64_t c) {
    const int64_t j0 = c * strip, n = s.h - j0 < strip ? s.h - j0 : strip;
    char *to = address_as<char>(out->data) + j0 * bytes;
    if (!s.blocks) {
      memset(to, 0, n * bytes);
      return;
    }
    for (int64_t w = 1; w < s.blocks; w *= 2)
      for (int64_t i = 0; i + w < s.blocks; i += 2 * w) {
        float *a = s.of(list, i) + j0;
        const float *b = s.of(list, i + w) + j0;
        for (int64_t j = 0; j < n; j += 16) store(a + j, load((const float *)a + j) + load(b + j));
      }
    narrow(t, s.of(list, 0) + j0, n, to);
  });
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

// Means over a row of d * n and of d; adds dy * n and dy to the column sums where kColumns.
struct Means { float dn, d; };
template <bool kMean, bool kColumns, class X, class D>
TE_INLINE Means backward_means(const X *x, const D *dy, int64_t h, float mean, float scale, const float *gamma, float *dgamma, float *dbeta) {
  const vf mu = set1(mean), rstd = set1(scale);
  vf dn[2] = {zero(), zero()}, sd[2] = {zero(), zero()};
  const auto step = [&](int64_t j, int k) {  // lanes past h: dy is 0
    const vf g = load(dy + j), d = g * load(gamma + j);
    vf n = load(x + j);
    if (kMean) n = n - mu;
    n = n * rstd;
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
template <bool kMean, bool kAdd, bool kStream, class X, class D>
TE_INLINE void backward_row(const X *x, const D *dy, const X *next, const D *dy_next, int64_t h, float mean, float scale, Means m,
                            const float *gamma, const float *add, X *dx) {
  const vf mu = set1(mean), rstd = set1(scale), dn = set1(m.dn), d = set1(m.d);
  for (int64_t j = 0; j < h; j += 16) {
    __builtin_prefetch(next + j);
    __builtin_prefetch(dy_next + j);
    vf n = load(x + j);
    if (kMean) n = n - mu;
    n = n * rstd;
    vf v = load(dy + j) * load(gamma + j) - n * dn;
    if (kMean) v = v - d;
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
  float *buffer = (float *)scratch(2, 4 * hp * sizeof(float));
  if (!buffer) return false;
  float *const dy_row = buffer, *const add_row = buffer + hp, *const x_row = buffer + 2 * hp, *const dx_row = buffer + 3 * hp;
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
    const X *next = (const X *)row_of(f.x, xi, r + 1 < row1 ? r + 1 : r);
    const D *dy_next = (const D *)row_of(f.dy, di, r + 1 < row1 ? r + 1 : r);
    x = whole_row(x, h, x_row);
    if (convert) widen(d_type, dy, h, dy_row), dy = (const D *)dy_row;
    else dy = whole_row(dy, h, dy_row);
    const Means m = dgamma ? backward_means<kMean, true>(x, dy, h, mean, scale, gamma, dgamma, dbeta)
                           : backward_means<kMean, false>(x, dy, h, mean, scale, gamma, dgamma, dbeta);
    X *const dx = h % 16 ? (X *)dx_row : out;
    if (add) backward_row<kMean, true, false>(x, dy, next, dy_next, h, mean, scale, m, gamma, add, dx);
    else if (stream) backward_row<kMean, false, true>(x, dy, next, dy_next, h, mean, scale, m, gamma, add, dx);
    else backward_row<kMean, false, false>(x, dy, next, dy_next, h, mean, scale, m, gamma, add, dx);
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
