// SPDX-License-Identifier: Apache-2.0
// What happens to a row of a score tile: scale, bias, ALiBi and mask, the running softmax of forward and the gradient of backward.
#pragma once
#include "cpu/exp2.h"
#include "cpu/philox.h"
#include "ops/attention/problem.h"
#include "ops/attention/tiles.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

constexpr int kBlockRows = 96;   // a multiple of every kRows
constexpr int kBlockKeys = 256;  // at most; a multiple of 16
constexpr float kMinusInf = -__builtin_inff();
constexpr double kLn2 = 0.6931471805599453;

// Flattened rows f = iq * heads + (head - head0) of one batch entry: all query heads of a key/value head (or one head) share its
// tiles, and neighbours in f have neighbouring intervals of keys, both ends growing with f.
struct Row { int64_t q, lo, hi; int head; };
struct RowBlock {
  int64_t b;
  Sequence seq;
  int rows;
  int64_t lo, hi;  // keys that any row keeps
  Row r[kBlockRows];
};
inline void fill_rows(const Problem &p, int64_t b, int64_t head0, int64_t heads, int64_t first, int64_t end, RowBlock *out) {
  out->b = b;
  out->seq = p.sequence(b);
  out->rows = (int)(end - first < kBlockRows ? end - first : kBlockRows);
  out->lo = INT64_MAX;
  out->hi = 0;
  for (int i = 0; i < out->rows; i++) {
    Row &r = out->r[i];
    r.q = (first + i) / heads;
    r.head = (int)(head0 + (first + i) % heads);
    p.keys_of(out->seq, r.q, &r.lo, &r.hi);
    if (r.lo < r.hi) {
      if (r.lo < out->lo) out->lo = r.lo;
      if (r.hi > out->hi) out->hi = r.hi;
    }
  }
  if (out->lo > out->hi) out->lo = out->hi = 0;
}

// Keys [k0, k0 + n) of a row, relative to k0; lo = hi = 0 when none.
struct Span { int lo, hi; };
TE_INLINE Span span_of(const Row &r, int64_t k0, int n) {
  const int64_t lo = r.lo - k0, hi = r.hi - k0;
  const Span s = {(int)(lo < 0 ? 0 : lo > n ? n : lo), (int)(hi < 0 ? 0 : hi > n ? n : hi)};
  return s.lo < s.hi ? s : Span{0, 0};
}
TE_INLINE int down16(int n) { return n & ~15; }
TE_INLINE int up16(int n) { return (n + 15) & ~15; }
TE_INLINE int64_t up16(int64_t n) { return (n + 15) & ~(int64_t)15; }

// Strips over the rows of a block, with the 16-aligned columns that their rows keep.
inline int row_strips(const RowBlock &rb, int64_t k0, int n, Strip *out) {
  int count = 0;
  for (int at = 0; at < rb.rows;) {
    Strip &s = out[count++];
    s = {at, strip_rows(rb.rows - at), INT32_MAX, 0};
    for (int i = at; i < at + s.rows; i++) {
      const Span x = span_of(rb.r[i], k0, n);
      if (x.lo >= x.hi) continue;
      if (down16(x.lo) < s.lo) s.lo = down16(x.lo);
      if (up16(x.hi) > s.hi) s.hi = up16(x.hi);
    }
    if (s.lo > s.hi) s.lo = s.hi = 0;
    at += s.rows;
  }
  return count;
}
// Strips over the keys, with the rows that keep any of them (one run, since intervals grow with the row).
inline int key_strips(const RowBlock &rb, int64_t k0, int n, Strip *out) {
  int count = 0;
  for (int at = 0; at < n;) {
    Strip &s = out[count++];
    s = {at, strip_rows(n - at), INT32_MAX, 0};
    for (int i = 0; i < rb.rows; i++) {
      const Span x = span_of(rb.r[i], k0, n);
      if (x.lo >= at + s.rows || x.hi <= at) continue;
      if (s.lo > i) s.lo = i;
      s.hi = i + 1;
    }
    if (s.lo > s.hi) s.lo = s.hi = 0;
    at += s.rows;
  }
  return count;
}

TE_INLINE float exp2_one(float x) { return exp2_fast<6>(set1(x)).v[0][0]; }

const int32_t kLane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
// Lanes j .. j + 15 outside [lo, hi) become -inf.
TE_INLINE vf fence(vf x, int j, int lo, int hi) {
  const vi at = load((const Pair *)kLane) + set1i(j);
  return select((at > set1i(lo - 1)) & (set1i(hi) > at), x, set1(kMinusInf));
}

// Whether scores need more than a multiplication by a positive scale.
TE_INLINE bool has_extras(const Problem &p) { return p.bias.base || p.mask.base || p.slopes || !(p.scale > 0); }

// True where the boolean mask drops key k.
TE_INLINE bool masked_out(const Problem &p, const RowBlock &rb, const Row &r, int64_t k) {
  return p.mask.base && p.mask.row(rb.b, r.q, r.head)[k * p.mask.d] != 0;
}
TE_INLINE bool kept(const Problem &p, const RowBlock &rb, const Row &r, int64_t k) {
  return k >= r.lo && k < r.hi && !masked_out(p, rb, r, k);
}

// x[j] = Q K^T becomes the logit for columns [v0, v1) of a row; keys from k0 + n on are not read.
inline void transform_row(const Problem &p, const RowBlock &rb, const Row &r, int64_t k0, int n, int v0, int v1, float *x) {
  alignas(64) float bias[kBlockKeys];
  if (p.bias.base) {
    vf taint = zero();
    const char *row = p.bias.row(rb.b, r.q, r.head) + (k0 + v0) * p.bias.d * p.bias.bytes;
    load_rows(p.bias.dtype, [&](int) { return row; }, 1, p.bias.d, n - v0 < v1 - v0 ? n - v0 : v1 - v0, (float *)bias, 0, taint);
  }
  const vf scale = set1(p.scale), slope = set1(p.slopes ? p.slopes[r.head] : 0.f);
  const int64_t distance = k0 - p.aligned(rb.seq, r.q);
  const char *mask = p.mask.base ? p.mask.row(rb.b, r.q, r.head) + k0 * p.mask.d : nullptr;
  for (int j = v0; j < v1; j += 16) {
    vf s = load((const float *)x + j);
    if (!p.bias.base) s = s * scale;
    else if (p.bias_kind == NVTE_BIAS_PRE_SCALE) s = (s + load((const float *)bias + j - v0)) * scale;
    else s = s * scale + load((const float *)bias + j - v0);
    if (p.slopes) s = s + slope * to_float(load((const Pair *)kLane) + set1i((int32_t)(distance + j)));
    if (mask) {
      alignas(16) uint8_t m[16] = {};
      for (int i = 0; i < 16 && j + i < n; i++) m[i] = (uint8_t)mask[(j + i) * p.mask.d];
      s = select(load_u8(m) == set1i(0), s, set1(kMinusInf));
    }
    store(x + j, s);
  }
}

// keep[j] = -1 where dropout keeps column j, for [v0, v1); up to 48 columns more are written.
struct Dropout {
  philox_key key;
  uint64_t threshold;
};
inline Dropout dropout_of(const Problem &p) { return {philox_seed(p.seed), philox_threshold(p.dropout)}; }
inline void keep_row(const Problem &p, const Dropout &drop, const RowBlock &rb, const Row &r, int64_t k0, int v0, int v1, Pair *keep) {
  const uint64_t head = p.offset + (uint64_t)(rb.b * p.h_q + r.head);
  for (int j = v0; j < v1; j += 64) {
    vi w[4];
    philox64_word2(drop.key, (uint32_t)head, (uint32_t)r.q, (uint32_t)((k0 + j) / 4), (uint32_t)(p.offset >> 32), w);
    for (int i = 0; i < 4; i++) store(keep + j + 16 * i, philox_keep(w[i], drop.threshold));
  }
}

TE_INLINE void put(float *row, int j, vf p, float) { store(row + j, p); }
TE_INLINE void put(float *row, int j, vf p, Pair) { store((bf16 *)row + j, p); }

// Running softmax of one row. State in units of log2: m is the largest logit so far (the softmax kind's term included), sum the
// lanes' sums of 2^(x - m); `seen` once a logit above -inf was met. x[lo, hi) are logits over c, and become 2^(c x - m), zeros in the
// rest of [z0, z1) (all 16-aligned). With E = Pair the row is rewritten as bf16. Returns what earlier sums must be multiplied by.
template <class E> TE_INLINE float softmax_row(float *x, Span at, int z0, int z1, float c, float *m, float *sum, bool *seen) {
  constexpr int kDegree = sizeof(E) == sizeof(float) && __is_same(E, float) ? 6 : 5;
  const int v0 = down16(at.lo), v1 = up16(at.hi);
  if (at.lo > v0 || at.hi < v0 + 16) store(x + v0, fence(load((const float *)x + v0), v0, at.lo, at.hi));
  if (at.hi < v1 && v1 - 16 > v0) store(x + v1 - 16, fence(load((const float *)x + v1 - 16), v1 - 16, at.lo, at.hi));
  vf top = set1(kMinusInf), top2 = top;
  int j = v0;
  for (; j + 32 <= v1; j += 32) {
    top = max(load((const float *)x + j), top);  // in this order NaN is skipped
    top2 = max(load((const float *)x + j + 16), top2);
  }
  if (j < v1) top = max(load((const float *)x + j), top);
  const float best = highest(max(top, top2)) * c;
  float factor = 1;
  if (best > kMinusInf) *seen = true;
  if (best > *m) {
    if (*m > kMinusInf) factor = exp2_one(*m - best);
    *m = best;
  }
  const vf shift = set1(*m == kMinusInf ? 0.f : -*m), cv = set1(c);
  vf s = load((const float *)sum) * set1(factor);
  for (int z = z0; z < v0; z += 16) put(x, z, zero(), E{});
  for (j = v0; j < v1; j += 16) {
    const vf p = exp2_fast<kDegree>(fma(load((const float *)x + j), cv, shift));
    s = s + p;
    put(x, j, p, E{});
  }
  for (int z = v1; z < z1; z += 16) put(x, z, zero(), E{});
  store(sum, s);
  return factor;
}

// Zeros the columns of a finished row that dropout drops; sums were taken before.
template <class E> TE_INLINE void drop_row(float *x, Span at, const Pair *keep) {
  for (int j = down16(at.lo); j < at.hi; j += 16) {
    const vf p = __is_same(E, float) ? load((const float *)x + j) : load((const bf16 *)x + j);
    put(x, j, select(load(keep + j), p, zero()), E{});
  }
}

}  // namespace
}  // namespace te::cpu::TE_CPU_ISA
