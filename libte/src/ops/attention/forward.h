// SPDX-License-Identifier: Apache-2.0
// Forward: one block of rows against its keys, block by block, with a running softmax (T. Dao et al., "FlashAttention", 2022).
#pragma once
#include "ops/attention/rows.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

// Tile sizes and leading dimensions, a function of the shape alone. The 16 extra columns keep rows of a tile out of each other's
// cache sets.
struct Sizes {
  int rows, keys;
  int64_t d16, dv16, ld_d, ld_dv, ld_keys;
};
// `budget`: numbers of keys and values together in a block of keys.
constexpr int kForwardBudget = 32768, kBackwardBudget = 16384;
inline Sizes sizes_of(const Problem &p, int budget) {
  Sizes s;
  s.d16 = up16(p.d);
  s.dv16 = up16(p.d_v);
  const int64_t n = budget / (s.d16 + s.dv16) / 32 * 32;
  s.rows = s.d16 + s.dv16 <= 512 ? kBlockRows : kBlockRows / 2;
  s.keys = (int)(n < 32 ? 32 : n > kBlockKeys ? kBlockKeys : n);
  s.ld_d = s.d16 + 16;
  s.ld_dv = s.dv16 + 16;
  s.ld_keys = s.keys + 16;
  return s;
}

template <class E> constexpr int kPerUnit = __is_same(E, float) ? 1 : 2;  // numbers in a 32-bit element

// Keys (or values) [k0, k0 + n) of a key/value head as rows; rows n .. up16(n) are zero. Returns whether something is not finite.
template <class E>
bool load_keys(const View &v, const RowBlock &rb, int64_t kv_head, int64_t k0, int n, int64_t width, E *out, int64_t ld) {
  vf taint = zero();
  const char *first = v.row(rb.b, rb.seq.k0 + k0, kv_head);
  const int64_t step = v.s * v.bytes;
  load_rows(v.dtype, [&](int i) { return i < n ? first + i * step : nullptr; }, up16(n), v.d, width, out, ld, taint);
  return tainted(taint);
}
// Queries (or anything laid out alike) of the block's rows; rows without keys and rows up to `padded` are zero.
template <class E>
bool load_queries(const View &v, const RowBlock &rb, int padded, int64_t width, E *out, int64_t ld) {
  vf taint = zero();
  auto address = [&](int i) {
    const bool used = i < rb.rows && rb.r[i].lo < rb.r[i].hi;
    return used ? (const char *)v.row(rb.b, rb.seq.q0 + rb.r[i].q, rb.r[i].head) : nullptr;
  };
  load_rows(v.dtype, address, padded, v.d, width, out, ld, taint);
  return tainted(taint);
}
// B operand of score_product from rows: [units of width, n].
template <class E> TE_INLINE void transpose_keys(const E *rows, int64_t ld, int n16, int64_t width16, E *out, int64_t ld_out) {
  for (int i = 0; i < n16; i += 16) transpose16((const float *)(rows + i * ld), ld, width16 / kPerUnit<E>, (float *)out + i, ld_out);
}
// B operand of value_product from rows: floats serve as they are, bf16 rows 2 i and 2 i + 1 are interleaved. n is even.
TE_INLINE const float *pair_rows(const float *rows, int64_t, int, int64_t, float *) { return rows; }
TE_INLINE const Pair *pair_rows(const Pair *rows, int64_t ld, int n, int64_t width16, Pair *out) {
  for (int i = 0; i < n; i += 2) {
    const bf16 *even = (const bf16 *)(rows + i * ld), *odd = (const bf16 *)(rows + (i + 1) * ld);
    for (int64_t j = 0; j < width16; j += 16) store(out + i / 2 * ld + j, load_u16(even + j) | shl<16>(load_u16(odd + j)));
  }
  return out;
}
template <class E> TE_INLINE void in_units(Strip *s, int count) {
  for (int i = 0; i < count; i++) s[i].lo = s[i].lo / kPerUnit<E>, s[i].hi = (s[i].hi + kPerUnit<E> - 1) / kPerUnit<E>;
}

// 16 numbers of a row of units.
TE_INLINE vf numbers(const float *row, int64_t j) { return load(row + j); }
TE_INLINE vf numbers(const Pair *row, int64_t j) { return load((const bf16 *)row + j); }

template <class E> struct ForwardTiles {
  E *q, *rows, *kt, *v_rows, *v_pairs;
  float *scores, *o, *sums;
  Pair *keep;
  static size_t bytes(const Sizes &s) {
    return 4 * (s.rows * s.ld_d + 16 * s.ld_d + s.d16 * s.ld_keys + 2 * s.keys * s.ld_dv + s.rows * s.ld_keys + s.rows * s.ld_dv +
                s.rows * 16 + s.keys + 64);
  }
  void place(char *at, const Sizes &s) {
    float *p = (float *)at;
    auto take = [&](int64_t n) { float *r = p; p += n; return r; };
    q = (E *)take(s.rows * s.ld_d);
    rows = (E *)take(16 * s.ld_d);
    kt = (E *)take(s.d16 * s.ld_keys);
    v_rows = (E *)take(s.keys * s.ld_dv);
    v_pairs = (E *)take(s.keys * s.ld_dv);
    scores = take(s.rows * s.ld_keys);
    o = take(s.rows * s.ld_dv);
    sums = take(s.rows * 16);
    keep = (Pair *)take(s.keys + 64);
  }
};

TE_INLINE float weight_of(const float *row, int j, float) { return row[j]; }
TE_INLINE float weight_of(const float *row, int j, Pair) { return to_f32(((const bf16 *)row)[j]); }

struct ForwardOut { View o; float *stats; };
// Where stats (and delta) of a query lie; `at` is its position in memory.
TE_INLINE int64_t stats_index(const Problem &p, int64_t b, int64_t head, int64_t at) { return (p.thd ? head : b * p.h_q + head) * p.s_q + at; }

template <class E>
void forward_block(const Problem &p, const Sizes &z, const ForwardOut &out, const Dropout &drop, ForwardTiles<E> t, int64_t b,
                   int64_t kv_head, int64_t first, int64_t end) {
  RowBlock rb;
  fill_rows(p, b, kv_head * p.group, p.group, first, end, &rb);
  load_queries(p.q, rb, rb.rows, p.d, t.q, z.ld_d);
  float m[kBlockRows];
  bool seen[kBlockRows] = {};
  const bool extras = has_extras(p);
  const float c = extras ? kLog2e : p.scale * kLog2e;
  auto sink = [&](int head) {
    return p.softmax_kind == NVTE_SOFTMAX_VANILLA ? kMinusInf : p.sink ? p.sink[head] * kLog2e : 0.f;
  };
  for (int i = 0; i < rb.rows; i++) m[i] = sink(rb.r[i].head);
  memset(t.sums, 0, (size_t)rb.rows * 64);
  memset(t.o, 0, (size_t)(rb.rows * z.ld_dv) * 4);
  Strip strips[kBlockRows];
  for (int64_t k0 = rb.lo / 16 * 16; k0 < rb.hi; k0 += z.keys) {
    const int n = (int)(rb.hi - k0 < z.keys ? rb.hi - k0 : z.keys), n16 = up16(n);
    for (int i = 0; i < n; i += 16) {
      load_keys(p.k, rb, kv_head, k0 + i, n - i < 16 ? n - i : 16, p.d, t.rows, z.ld_d);
      transpose_keys(t.rows, z.ld_d, 16, z.d16, t.kt + i, z.ld_keys);
    }
    const bool bad = load_keys(p.v, rb, kv_head, k0, n, p.d_v, t.v_rows, z.ld_dv);
    const E *v = pair_rows(t.v_rows, z.ld_dv, n16, z.dv16, t.v_pairs);
    const int count = row_strips(rb, k0, n, strips);
    score_product(strips, count, n16, z.d16 / kPerUnit<E>, (const E *)t.q, z.ld_d, (const E *)t.kt, z.ld_keys, t.scores, z.ld_keys);
    for (int s = 0; s < count; s++)
      for (int i = strips[s].at; i < strips[s].at + strips[s].rows; i++) {
        float *x = t.scores + i * z.ld_keys;
        const Row &r = rb.r[i];
        const Span at = span_of(r, k0, n);
        if (at.lo >= at.hi) {
          for (int j = strips[s].lo; j < strips[s].hi; j += 16) put(x, j, zero(), E{});
          continue;
        }
        if (extras) transform_row(p, rb, r, k0, n, down16(at.lo), up16(at.hi), x);
        const float factor = softmax_row<E>(x, at, strips[s].lo, strips[s].hi, c, &m[i], t.sums + i * 16, &seen[i]);
        if (factor != 1) {
          float *o = t.o + i * z.ld_dv;
          for (int64_t j = 0; j < z.dv16; j += 16) store(o + j, load((const float *)o + j) * set1(factor));
        }
        if (p.dropout > 0) {
          keep_row(p, drop, rb, r, k0, down16(at.lo), up16(at.hi), t.keep);
          drop_row<E>(x, at, t.keep);
        }
      }
    if (!bad) {
      in_units<E>(strips, count);
      value_product<false>(strips, count, z.dv16, (const E *)t.scores, z.ld_keys, v, z.ld_dv, t.o, z.ld_dv);
    } else {
      // a value that is not finite must reach only the rows that keep its key: no 0 * NaN
      for (int i = 0; i < rb.rows; i++)
        for (int j = 0; j < n; j++) {
          if (!kept(p, rb, rb.r[i], k0 + j)) continue;
          const vf w = set1(weight_of(t.scores + i * z.ld_keys, j, E{}));
          float *o = t.o + i * z.ld_dv;
          for (int64_t x = 0; x < z.dv16; x += 16) store(o + x, fma(w, numbers(t.v_rows + j * z.ld_dv, x), load((const float *)o + x)));
        }
    }
  }
  for (int i = 0; i < rb.rows; i++) {
    const Row &r = rb.r[i];
    const float extra = sink(r.head);
    float sum = reduce_add(load((const float *)t.sums + i * 16));
    const bool empty = !seen[i] && sum == sum;
    if (extra > kMinusInf) sum += exp2_one(extra - m[i]);
    const int64_t at = rb.seq.q0 + r.q;
    char *o = out.o.row(b, at, r.head);
    if (empty) zero_row(out.o.bytes, o, out.o.d, p.d_v);
    else store_row(out.o.dtype, o, out.o.d, p.d_v, t.o + i * z.ld_dv, 1.f / (sum * (1.f - p.dropout)));
    if (out.stats)
      out.stats[stats_index(p, b, r.head, at)] = empty ? kMinusInf : (float)(((double)m[i] + __builtin_log2((double)sum)) * kLn2);
  }
}

}  // namespace
}  // namespace te::cpu::TE_CPU_ISA
