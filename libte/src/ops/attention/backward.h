// SPDX-License-Identifier: Apache-2.0
// Backward: probabilities are recomputed from the saved log-sum-exp, tile by tile. A block of keys is the outer loop, so dK and dV stay
// in tiles; dQ gathers in a buffer of the task.
#pragma once
#include "ops/attention/forward.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

struct BackwardIn {
  View d_o;
  const float *stats, *delta;  // delta: rowsum(dO * O), laid out as stats
};

template <class E> struct BackwardTiles {
  E *q, *q_pairs, *d_o, *do_pairs, *k, *k_pairs, *v, *kt, *vt;
  E *d_pairs, *ds_pairs;  // Pair only
  float *scores, *ds, *dk, *dv;
  Pair *keep;
  template <class F> void lay_out(const Sizes &s, F &&take) {
    const bool pairs = __is_same(E, Pair);
    q = (E *)take(s.rows * s.ld_d);
    d_o = (E *)take(s.rows * s.ld_dv);
    k = (E *)take(s.keys * s.ld_d);
    v = (E *)take(16 * s.ld_dv);
    kt = (E *)take(s.d16 * s.ld_keys);
    vt = (E *)take(s.dv16 * s.ld_keys);
    scores = take(s.rows * s.ld_keys);
    ds = take(s.rows * s.ld_keys);
    dk = take(s.keys * s.ld_d);
    dv = take(s.keys * s.ld_dv);
    keep = (Pair *)take(s.keys + 64);
    q_pairs = (E *)take(pairs ? s.rows / 2 * s.ld_d : 0);
    do_pairs = (E *)take(pairs ? s.rows / 2 * s.ld_dv : 0);
    k_pairs = (E *)take(pairs ? s.keys / 2 * s.ld_d : 0);
    d_pairs = (E *)take(pairs ? s.rows / 2 * s.ld_keys : 0);
    ds_pairs = (E *)take(pairs ? s.rows / 2 * s.ld_keys : 0);
  }
  static size_t bytes(const Sizes &s) {
    int64_t n = 0;
    BackwardTiles().lay_out(s, [&](int64_t m) { n += m; return (float *)nullptr; });
    return (size_t)n * 4;
  }
  void place(char *at, const Sizes &s) {
    lay_out(s, [&](int64_t m) { float *r = (float *)at; at += m * 4; return r; });
  }
};

// Logits x and dP y of columns [0, n16) become the (dropped-out) probabilities and dS, zeros where the row keeps nothing.
// Logits are c x. log2(e) multiplies the difference, so that large log-sum-exps cost no precision.
inline void gradient_row(float *x, float *y, Span at, int n16, float c, float minus_lse, float delta, const Pair *keep, float inverse) {
  const int v0 = down16(at.lo), v1 = up16(at.hi);
  auto clear = [&](int from, int to) {
    if (from < to) memset(x + from, 0, (size_t)(to - from) * 4), memset(y + from, 0, (size_t)(to - from) * 4);
  };
  clear(0, v0);
  const vf cv = set1(c), shift = set1(minus_lse), r = set1(delta);
  for (int j = v0; j < v1; j += 16) {
    vf s = load((const float *)x + j), dp = load((const float *)y + j);
    if (j < at.lo || j + 16 > at.hi) s = fence(s, j, at.lo, at.hi);
    vf p = exp2_fast<6>(fma(s, cv, shift) * set1(kLog2e)), dropped = p;
    if (keep) {
      const vi kept = load(keep + j);
      dropped = select(kept, p, zero());
      dp = select(kept, dp * set1(inverse), zero());
    }
    store(x + j, dropped);
    store(y + j, select(p == zero(), zero(), p * (dp - r)));  // V at a masked key may be NaN
  }
  clear(v1, n16);
}

// One block of rows against one block of keys: fills t.scores with the dropped-out probabilities (without 1 / (1 - p)) and t.ds with
// dS. Returns what was not finite: 1 = queries, 2 = dO.
template <class E>
int gradient_tile(const Problem &p, const Sizes &z, const BackwardIn &in, const Dropout &drop, const BackwardTiles<E> &t,
                  const RowBlock &rb, int64_t k0, int n, const Strip *strips, int count) {
  const int padded = (rb.rows + 1) & ~1, n16 = up16(n);
  const int bad = load_queries(p.q, rb, padded, p.d, t.q, z.ld_d) | load_queries(in.d_o, rb, padded, p.d_v, t.d_o, z.ld_dv) << 1;
  score_product(strips, count, n16, z.d16 / kPerUnit<E>, (const E *)t.q, z.ld_d, (const E *)t.kt, z.ld_keys, t.scores, z.ld_keys);
  score_product(strips, count, n16, z.dv16 / kPerUnit<E>, (const E *)t.d_o, z.ld_dv, (const E *)t.vt, z.ld_keys, t.ds, z.ld_keys);
  const bool extras = has_extras(p);
  const float c = extras ? 1.f : p.scale, inverse = 1.f / (1.f - p.dropout);
  for (int i = 0; i < rb.rows; i++) {
    const Row &r = rb.r[i];
    float *x = t.scores + i * z.ld_keys, *y = t.ds + i * z.ld_keys;
    Span at = span_of(r, k0, n);
    float lse = 0, delta = 0;
    if (at.lo < at.hi) {
      const int64_t index = stats_index(p, rb.b, r.head, rb.seq.q0 + r.q);
      lse = in.stats[index];
      delta = in.delta[index];
      if (lse == kMinusInf) at = {0, 0};  // everything masked out
    }
    if (at.lo < at.hi && extras) transform_row(p, rb, r, k0, n, down16(at.lo), up16(at.hi), x);
    if (at.lo < at.hi && p.dropout > 0) keep_row(p, drop, rb, r, k0, down16(at.lo), up16(at.hi), t.keep);
    gradient_row(x, y, at, n16, c, -lse, delta, p.dropout > 0 ? t.keep : nullptr, inverse);
  }
  return bad;
}

// Loads a block of keys and values as the tiles need them; returns whether a key is not finite.
template <class E>
bool load_key_block(const Problem &p, const Sizes &z, const BackwardTiles<E> &t, const RowBlock &rb, int64_t kv_head, int64_t k0, int n) {
  const bool bad = load_keys(p.k, rb, kv_head, k0, n, p.d, t.k, z.ld_d);
  transpose_keys(t.k, z.ld_d, up16(n), z.d16, t.kt, z.ld_keys);
  for (int i = 0; i < n; i += 16) {
    load_keys(p.v, rb, kv_head, k0 + i, n - i < 16 ? n - i : 16, p.d_v, t.v, z.ld_dv);
    transpose_keys(t.v, z.ld_dv, 16, z.dv16, t.vt + i, z.ld_keys);
  }
  return bad;
}

// Rows 2 i and 2 i + 1 of an f32 tile as bf16 pairs; and a row of it as bf16 in place.
TE_INLINE void tile_pairs(const float *tile, int64_t ld, int rows, int n16, Pair *out) {
  for (int i = 0; i < rows; i += 2)
    for (int j = 0; j < n16; j += 16) {
      const vi even = encode(load(tile + i * ld + j), bf16{});
      const vi odd = i + 1 < rows ? encode(load(tile + (i + 1) * ld + j), bf16{}) : set1i(0);
      store(out + i / 2 * ld + j, even | shl<16>(odd));
    }
}
TE_INLINE void tile_pairs(const float *, int64_t, int, int, float *) {}
TE_INLINE const float *transposed_operand(const float *tile, const float *) { return tile; }
TE_INLINE const Pair *transposed_operand(const float *, const Pair *pairs) { return pairs; }
TE_INLINE const float *row_operand(float *tile, int64_t, int, int, float) { return tile; }
TE_INLINE const Pair *row_operand(float *tile, int64_t ld, int rows, int n16, Pair) {
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < n16; j += 16) store((bf16 *)(tile + i * ld) + j, load((const float *)tile + i * ld + j));
  return (const Pair *)tile;
}

// For tiles in which something is not finite: only kept (row, key) pairs are multiplied, so that no 0 * NaN reaches a gradient.
// kKeys: C is indexed by key and B by row; else the other way round.
template <bool kKeys, class E>
void careful_product(const Problem &p, const RowBlock &rb, int64_t k0, int n, const float *a, int64_t lda, const E *b, int64_t ldb,
                     int64_t width16, float *c, int64_t ldc) {
  for (int i = 0; i < rb.rows; i++)
    for (int j = 0; j < n; j++) {
      if (!kept(p, rb, rb.r[i], k0 + j)) continue;
      float *out = c + (kKeys ? j : i) * ldc;
      const vf w = set1(a[i * lda + j]);
      for (int64_t x = 0; x < width16; x += 16)
        store(out + x, fma(w, numbers(b + (kKeys ? i : j) * ldb, x), load((const float *)out + x)));
    }
}

// Adds one tile's products to dk, dv (tiles) and dq (rows of this block in the task's buffer).
template <class E>
void add_products(const Problem &p, const Sizes &z, const BackwardTiles<E> &t, const RowBlock &rb, int64_t k0, int n, Strip *rows,
                  int row_count, int bad, bool bad_keys, float *dq) {
  const int padded = (rb.rows + 1) & ~1, n16 = up16(n);
  Strip keys[kBlockKeys];
  const int key_count = key_strips(rb, k0, n, keys);
  in_units<E>(keys, key_count);
  in_units<E>(rows, row_count);
  if (bad & 2) careful_product<true>(p, rb, k0, n, t.scores, z.ld_keys, t.d_o, z.ld_dv, z.dv16, t.dv, z.ld_dv);
  else {
    tile_pairs(t.scores, z.ld_keys, rb.rows, n16, t.d_pairs);
    const E *b = pair_rows(t.d_o, z.ld_dv, padded, z.dv16, t.do_pairs);
    value_product<true>(keys, key_count, z.dv16, transposed_operand(t.scores, t.d_pairs), z.ld_keys, b, z.ld_dv, t.dv, z.ld_dv);
  }
  if (bad & 1) careful_product<true>(p, rb, k0, n, t.ds, z.ld_keys, t.q, z.ld_d, z.d16, t.dk, z.ld_d);
  else {
    tile_pairs(t.ds, z.ld_keys, rb.rows, n16, t.ds_pairs);
    const E *b = pair_rows(t.q, z.ld_d, padded, z.d16, t.q_pairs);
    value_product<true>(keys, key_count, z.d16, transposed_operand(t.ds, t.ds_pairs), z.ld_keys, b, z.ld_d, t.dk, z.ld_d);
  }
  if (bad_keys) careful_product<false>(p, rb, k0, n, t.ds, z.ld_keys, t.k, z.ld_d, z.d16, dq, z.ld_d);
  else {
    const E *b = __is_same(E, float) ? t.k : t.k_pairs;
    value_product<false>(rows, row_count, z.d16, row_operand(t.ds, z.ld_keys, rb.rows, n16, E{}), z.ld_keys, b, z.ld_d, dq, z.ld_d);
  }
}

struct BackwardOut {
  View dq, dk, dv;
  int64_t parts;             // into which the blocks of rows of a key/value head are cut
  float *dk_part, *dv_part;  // parts > 1: [head, part, key, up16(width)]
};
TE_INLINE int64_t part_row(const Problem &p, const BackwardOut &out, int64_t b, int64_t kv_head, int64_t part, int64_t key) {
  return ((p.thd ? kv_head : b * p.h_kv + kv_head) * out.parts + part) * p.s_kv + key;
}

// Rows [first, end) of a key/value head (first a multiple of z.rows) against all its keys.
template <class E>
void backward_part(const Problem &p, const Sizes &z, const BackwardIn &in, const BackwardOut &out, const Dropout &drop,
                   const BackwardTiles<E> &t, float *dq, int64_t b, int64_t kv_head, int64_t part, int64_t first, int64_t end) {
  const Sequence seq = p.sequence(b);
  const float kept_scale = 1.f / (1.f - p.dropout);
  if (end > first) memset(dq, 0, (size_t)((end - first) * z.ld_d) * 4);
  RowBlock rb;
  Strip strips[kBlockRows];
  rb.b = b;
  rb.seq = seq;
  for (int64_t k0 = 0; k0 < seq.len_k; k0 += z.keys) {
    const int n = (int)(seq.len_k - k0 < z.keys ? seq.len_k - k0 : z.keys);
    memset(t.dk, 0, (size_t)(n * z.ld_d) * 4);
    memset(t.dv, 0, (size_t)(n * z.ld_dv) * 4);
    bool loaded = false, bad_keys = false;
    for (int64_t row = first; row < end; row += z.rows) {
      fill_rows(p, b, kv_head * p.group, p.group, row, end < row + z.rows ? end : row + z.rows, &rb);
      if (rb.lo >= k0 + n || rb.hi <= k0) continue;
      if (!loaded) {
        bad_keys = load_key_block(p, z, t, rb, kv_head, k0, n);
        pair_rows(t.k, z.ld_d, up16(n), z.d16, t.k_pairs);
        loaded = true;
      }
      const int count = row_strips(rb, k0, n, strips);
      const int bad = gradient_tile(p, z, in, drop, t, rb, k0, n, strips, count);
      add_products(p, z, t, rb, k0, n, strips, count, bad, bad_keys, dq + (row - first) * z.ld_d);
    }
    for (int i = 0; i < n; i++) {
      const int64_t key = seq.k0 + k0 + i;
      if (out.parts == 1) {
        store_row(out.dk.dtype, out.dk.row(b, key, kv_head), out.dk.d, p.d, t.dk + i * z.ld_d, p.scale);
        store_row(out.dv.dtype, out.dv.row(b, key, kv_head), out.dv.d, p.d_v, t.dv + i * z.ld_dv, kept_scale);
      } else {
        const int64_t at = part_row(p, out, b, kv_head, part, key);
        memcpy(out.dk_part + at * z.d16, t.dk + i * z.ld_d, (size_t)z.d16 * 4);
        memcpy(out.dv_part + at * z.dv16, t.dv + i * z.ld_dv, (size_t)z.dv16 * 4);
      }
    }
  }
  if (part == 0 && !p.thd)
    for (int64_t key = seq.len_k; key < p.s_kv; key++) {
      zero_row(out.dk.bytes, out.dk.row(b, key, kv_head), out.dk.d, p.d);
      zero_row(out.dv.bytes, out.dv.row(b, key, kv_head), out.dv.d, p.d_v);
    }
  for (int64_t row = first; row < end; row++)
    store_row(out.dq.dtype, out.dq.row(b, seq.q0 + row / p.group, kv_head * p.group + row % p.group), out.dq.d, p.d,
              dq + (row - first) * z.ld_d, p.scale);
}

// parts > 1: keys [first, end) of a key/value head, the parts summed in order.
inline void reduce_parts(const Problem &p, const Sizes &z, const BackwardOut &out, int64_t b, int64_t kv_head, int64_t first, int64_t end) {
  const Sequence seq = p.sequence(b);
  if (end > seq.len_k) end = seq.len_k;
  auto sum = [&](float *parts, int64_t key, int64_t width16) {
    float *total = parts + part_row(p, out, b, kv_head, 0, key) * width16;
    for (int64_t i = 1; i < out.parts; i++) {
      const float *x = parts + part_row(p, out, b, kv_head, i, key) * width16;
      for (int64_t j = 0; j < width16; j += 16) store(total + j, load((const float *)total + j) + load(x + j));
    }
    return total;
  };
  for (int64_t k = first; k < end; k++) {
    const int64_t key = seq.k0 + k;
    store_row(out.dk.dtype, out.dk.row(b, key, kv_head), out.dk.d, p.d, sum(out.dk_part, key, z.d16), p.scale);
    store_row(out.dv.dtype, out.dv.row(b, key, kv_head), out.dv.d, p.d_v, sum(out.dv_part, key, z.dv16), 1.f / (1.f - p.dropout));
  }
}

// delta[row] = sum(dO * O) of one head, 0 where nothing is kept; returns sum exp(offset - stats) * delta, the gradient of the head's
// offset with the sign turned.
inline double delta_of_head(const Problem &p, const View &d_o, const View &o, const float *stats, float *delta, float *rows, int64_t b,
                            int64_t head) {
  const Sequence s = p.sequence(b);
  const int64_t width16 = up16(p.d_v);
  double total = 0;
  for (int64_t iq = 0; iq < s.len_q; iq++) {
    const int64_t at = s.q0 + iq, index = stats_index(p, b, head, at);
    delta[index] = 0;
    if (stats[index] == kMinusInf) continue;
    vf taint = zero(), sum = zero();
    load_rows(d_o.dtype, [&](int) { return d_o.row(b, at, head); }, 1, d_o.d, p.d_v, rows, 0, taint);
    load_rows(o.dtype, [&](int) { return o.row(b, at, head); }, 1, o.d, p.d_v, rows + width16, 0, taint);
    for (int64_t j = 0; j < width16; j += 16) sum = fma(load((const float *)rows + j), load((const float *)rows + width16 + j), sum);
    delta[index] = reduce_add(sum);
    if (p.sink) total += __builtin_exp((double)p.sink[head] - stats[index]) * delta[index];
  }
  return total;
}

// dbias is owned by its elements: the tiles of all batch entries, heads and rows that share a block of it are computed again and
// summed in order. rows [q0, q0 + z.rows) of bias, or all rows where it has one; keys [k0, k0 + z.keys).
template <class E>
void bias_block(const Problem &p, const Sizes &z, const BackwardIn &in, const Dropout &drop, const BackwardTiles<E> &t, float *sum,
                const DLTensor &dbias, int64_t ib, int64_t ih, int64_t q0, int64_t k0) {
  const int64_t b_n = dbias.shape[0], h_n = dbias.shape[1], q_n = dbias.shape[2], k_n = dbias.shape[3];
  const bool one_row = q_n == 1;
  memset(sum, 0, (size_t)(z.rows * z.ld_keys) * 4);
  Strip strips[kBlockRows];
  RowBlock rb;
  for (int64_t b = b_n == 1 ? 0 : ib; b < (b_n == 1 ? p.b : ib + 1); b++)
    for (int64_t h = h_n == 1 ? 0 : ih; h < (h_n == 1 ? p.h_q : ih + 1); h++) {
      const Sequence seq = p.sequence(b);
      const int n = (int)(seq.len_k - k0 < z.keys ? seq.len_k - k0 : z.keys);
      if (n <= 0) continue;
      bool loaded = false;
      for (int64_t q = one_row ? 0 : q0; q < seq.len_q; q += z.rows) {
        fill_rows(p, b, h, 1, q, seq.len_q < q + z.rows ? seq.len_q : q + z.rows, &rb);
        if (rb.lo < k0 + n && rb.hi > k0) {
          if (!loaded) load_key_block(p, z, t, rb, h / p.group, k0, n);
          loaded = true;
          const int count = row_strips(rb, k0, n, strips);
          gradient_tile(p, z, in, drop, t, rb, k0, n, strips, count);
          for (int i = 0; i < rb.rows; i++) {
            float *to = sum + (one_row ? 0 : i) * z.ld_keys;
            for (int j = 0; j < n; j += 16) store(to + j, load((const float *)to + j) + load((const float *)t.ds + i * z.ld_keys + j));
          }
        }
        if (!one_row) break;
      }
    }
  const int64_t bytes = element_bytes(dbias), columns = k_n - k0 < z.keys ? k_n - k0 : z.keys;
  for (int64_t i = 0; i < (one_row ? 1 : z.rows) && q0 + i < q_n; i++)
    store_row(dtype_of(dbias.dtype), (char *)address(dbias) + (((ib * h_n + ih) * q_n + q0 + i) * k_n + k0) * bytes, 1, columns,
              sum + i * z.ld_keys, p.bias_kind == NVTE_BIAS_PRE_SCALE ? p.scale : 1.f);
}

}  // namespace
}  // namespace te::cpu::TE_CPU_ISA
