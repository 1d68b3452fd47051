// SPDX-License-Identifier: Apache-2.0
// Flash attention on strips (gpu/device/strip.h): 16-bit operands and results, 33 to 128 channels, every mask kind, window, length and layout, with
// dropout, slopes, masks and biases of the operands' type or f32 (gpu_modifiers.h); gpu.hip has general kernels for the rest, and for dbias. A block
// owns 128 queries of a head (forward, dQ) or 128 keys of a key/value head (dK, dV), each wave a strip of them, and walks over tiles of the other
// side. A result belongs to one block, so results repeat.
#include "ops/attention/gpu_modifiers.h"

#include <atomic>
#include <type_traits>

namespace te {
namespace {

// Blocks of a grid: heads that fit in the cache together come one after the other, in each such section the longest blocks first.
struct Grid {
  int blocks, heads, section;  // heads: of all batch entries
  bool last_first;             // the last blocks are the long ones
  unsigned count() const { return (unsigned)((int64_t)blocks * heads); }
};
struct Place {
  int head, first;  // head of all batch entries; first row of the block
};
TE_DEVICE Place place_of(const Grid &g) {
  const int whole = g.section * g.blocks, start = (int)blockIdx.x / whole * g.section, rest = (int)blockIdx.x % whole;
  const int here = g.heads - start < g.section ? g.heads - start : g.section, block = rest / here;
  return {start + rest % here, (g.last_first ? g.blocks - 1 - block : block) * kStripBlock};
}

// Rows [lo, hi) of the other side that a block needs; those in [whole_lo, whole_hi) every one of its rows keeps.
struct Span {
  int lo, hi, whole_lo, whole_hi;
  TE_DEVICE int tiles(int size) const { return (hi - lo / size * size + size - 1) / size; }
  TE_DEVICE bool whole(int first, int size) const { return first >= whole_lo && first + size <= whole_hi; }
};
TE_DEVICE int as_int(int64_t x) { return (int)(x < 0 ? 0 : x > INT32_MAX ? INT32_MAX : x); }
// interval(i, &lo, &hi): what row i keeps, both bounds growing with i; `rows` real rows.
template <class F> TE_DEVICE Span span_of(int64_t first, int64_t rows, F &&interval) {
  const int64_t last = first + kStripBlock < rows ? first + kStripBlock - 1 : rows - 1;
  int64_t lo, hi, whole_lo, whole_hi;
  interval(first, &lo, &whole_hi);
  interval(last, &whole_lo, &hi);
  if (first >= rows || lo >= hi) return {0, 0, 0, 0};
  return {as_int(lo), as_int(hi), as_int(whole_lo), as_int(whole_hi)};
}
// Queries [lo, hi) that keep a key; none where lo >= hi. The inverse of Problem::interval.
TE_DEVICE void queries_of(const Problem &p, const Sequence &s, int64_t key, int64_t *lo, int64_t *hi) {
  int64_t l = 0, r = s.len_q;
  const int64_t at = key - p.aligned(s, 0);  // the query at the key's position
  if (p.mask_kind == NVTE_MASK_CAUSAL && key > l) l = key;
  if (p.mask_kind == NVTE_MASK_CAUSAL_BOTTOM_RIGHT && at > l) l = at;
  if (p.window_right >= 0 && at > p.window_right && at - p.window_right > l) l = at - p.window_right;
  if (p.window_left >= 0 && p.window_left < r - at - 1) r = at + 1 + p.window_left;
  *lo = l;
  *hi = key < s.len_k ? r : 0;
}

// What each row of a lane keeps.
struct Bounds {
  int lo[kStripSlots], hi[kStripSlots];
};
template <class F> TE_DEVICE Bounds bounds_of(int64_t first, int64_t rows, F &&interval) {
  Bounds b;
#pragma unroll
  for (int i = 0; i < kStripSlots; i++) {
    const int64_t row = first + wave() * kStripRows + strip_row(i);
    int64_t lo, hi;
    interval(row, &lo, &hi);
    const bool none = row >= rows || lo >= hi;
    b.lo[i] = none ? 0 : as_int(lo), b.hi[i] = none ? 0 : as_int(hi);
  }
  return b;
}
// Puts `value` where a row does not keep column first + i.
template <int N> TE_DEVICE void mask_strip(float (&s)[N / 2], const Bounds &b, int first, float value) {
  int lo[kStripSlots], hi[kStripSlots];
#pragma unroll
  for (int i = 0; i < kStripSlots; i++) {
    lo[i] = b.lo[i] - first - run_start(), hi[i] = b.hi[i] - first - run_start();
    per_lane(lo[i]), per_lane(hi[i]);
  }
#pragma unroll
  for (int e = 0; e < N / 2; e++) {
    const int column = 8 * (e / 4) + e % kRun, slot = strip_slot(e);
    s[e] = column >= lo[slot] && column < hi[slot] ? s[e] : value;
  }
}

TE_DEVICE TileRows rows_of(const View &v, int64_t b, int64_t first, int64_t head, int64_t rows, int64_t width) {
  return {v.row(b, first, head), v.s * v.bytes, v.d * v.bytes, (int)rows, (int)width};
}
template <int N> TE_DEVICE void clear_strip(float (&x)[N]) {
#pragma unroll
  for (int e = 0; e < N; e++) x[e] = 0.f;
}
// o += W times a tile, of which a row that some of W mask may hold anything where `partial`: what is not finite there is left to
// add_not_finite(), and true returned.
template <class T, int D, int K> TE_DEVICE bool add_columns(float (&o)[D / 2], unsigned (&w)[K / 4], T *tile, bool partial) {
  const bool dirty = partial && __syncthreads_or(not_finite<T, K, D, false>(tile));
  if (dirty) {
    products_done<0>();  // the tile may be an operand of one
    __syncthreads();
    not_finite<T, K, D, true>(tile);
    tiles_ready();
  }
  multiply_columns<T, D, K>(o, w, tile);
  return dirty;
}
// Adds what is not finite in the rows that some but not all of the block's rows keep: infinity and NaN are the same whatever their weight.
// `all`: those that all keep too; keeps(row i, slot): whether a mask leaves it to a slot's row.
template <class T, int D, class F>
TE_DEVICE void add_not_finite(float (&o)[D / 2], const TileRows &x, const Span &span, int size, const Bounds &bounds, bool all, F &&keeps) {
#pragma unroll 1
  for (int i = span.lo; i < span.hi; i++) {
    if (!all && span.whole(i / size * size, size)) continue;
    unsigned zero = 0;
    opaque(zero);  // no address is worth a register outside of this loop
    bool kept[kStripSlots];
#pragma unroll
    for (int slot = 0; slot < kStripSlots; slot++) kept[slot] = keeps(i + (int)zero, slot);
#pragma unroll
    for (int e = 0; e < D / 2; e++) {
      const int column = result_column<D>(e) + (int)zero, slot = strip_slot(e);
      const float v = column < x.width ? to_f32(*reinterpret_cast<const T *>(x.at(i, column))) : 0.f;
      if (!(v - v == 0.f) && i >= bounds.lo[slot] && i < bounds.hi[slot] && kept[slot]) o[e] += v;
    }
  }
}

// ---- forward ----

struct ForwardOut {
  View o;
  float *stats;
  Grid grid;
  bool runs;  // of bias and mask, see visit_grid()
};
// Modified: there may be a bias, slopes, a mask, dropout, a scale that is not positive. That takes registers.
template <class T, int D, bool Modified> struct ForwardShape {
  static constexpr int kKeys = Modified && kSizes<D>.one_score > 64 ? 64 : kSizes<D>.one_score;  // of a tile
  static constexpr int kQueryTile = kStripBlock * D, kKeyTile = kKeys * D, kKeyTiles = 2 * kStages * kKeyTile;
  static constexpr int kBytes = (int)sizeof(T) * (!kRowsInRegisters ? kQueryTile + kKeyTiles : kQueryTile > kKeyTiles ? kQueryTile : kKeyTiles);
};

// Rows' running maxima (in units of log2), sums (a lane's share) and whether they keep a key at all.
struct Softmax {
  float m[kStripSlots], sum[kStripSlots];
  bool seen[kStripSlots];
};
// Scores become weights; factor: what earlier results shrink by.
template <int N> TE_DEVICE void softmax_step(float (&s)[N / 2], float c, Softmax &x, float (&factor)[kStripSlots]) {
  constexpr int kChains = 2;  // of groups of columns, lest each operation waits for the one before
  float best[kChains][kStripSlots], sum[kChains][kStripSlots] = {}, shift[kStripSlots];
#pragma unroll
  for (int i = 0; i < kChains * kStripSlots; i++) best[i / kStripSlots][i % kStripSlots] = kMinusInf;
#pragma unroll
  for (int e = 0; e < N / 2; e++) {
    float &b = best[e / 4 % kChains][strip_slot(e)];
    b = fmaxf(b, s[e]);
  }
#pragma unroll
  for (int i = 0; i < kStripSlots; i++) {
    const float top = across_strip(fmaxf(best[0][i], best[1][i]), Max{}) * c, m = fmaxf(x.m[i], top);
    x.seen[i] = x.seen[i] || top > kMinusInf;
    shift[i] = m == kMinusInf ? 0.f : m;
    factor[i] = exp2_fast(x.m[i] - shift[i]);
    x.m[i] = m;
  }
#pragma unroll
  for (int e = 0; e < N / 2; e++) {
    s[e] = exp2_fast(fmaf(s[e], c, -shift[strip_slot(e)]));
    sum[e / 4 % kChains][strip_slot(e)] += s[e];
  }
#pragma unroll
  for (int i = 0; i < kStripSlots; i++) x.sum[i] = fmaf(x.sum[i], factor[i], sum[0][i] + sum[1][i]);
}
template <int D> TE_DEVICE void scale_strip(float (&o)[D / 2], const float (&factor)[kStripSlots]) {
#pragma unroll
  for (int e = 0; e < D / 2; e++) o[e] *= factor[strip_slot(e)];
}

template <class T, int D, bool Wide, bool Modified>
__global__ void __launch_bounds__(kStripThreads, kSizes<D>.resident) flash_forward_kernel(Problem p, ForwardOut out) {
  using Shape = ForwardShape<T, D, Modified>;
  constexpr int kKeys = Shape::kKeys;
  TE_TILES(memory, Shape::kBytes);
  T *const q_tile = reinterpret_cast<T *>(memory), *const k_tiles = q_tile + (kRowsInRegisters ? 0 : Shape::kQueryTile);
  const auto k_tile = [&](int j) { return k_tiles + j % kStages * Shape::kKeyTile; };
  const auto v_tile = [&](int j) { return k_tiles + (kStages + j % kStages) * Shape::kKeyTile; };
  const Place place = place_of(out.grid);
  const int heads = (int)p.h_q, b = place.head / heads, head = place.head % heads, kv_head = head / (int)p.group, q0 = place.first;
  const Sequence seq = sequence_of(p, b);
  if (p.thd && q0 >= seq.len_q) return;
  const auto interval = [&](int64_t q, int64_t *lo, int64_t *hi) { p.interval(seq, q, lo, hi); };
  const Span span = span_of(q0, seq.len_q, interval);
  const Bounds bounds = bounds_of(q0, seq.len_q, interval);
  const int k0 = span.lo / kKeys * kKeys, n = span.tiles(kKeys);
  const float c = Modified && makes_logits(again(p)) ? kLog2e : p.scale * kLog2e;
  const bool masked = Modified && again(p).mask.base;
  const auto sink_of = [](const Problem &now, int of) {
    return now.softmax_kind == NVTE_SOFTMAX_VANILLA ? kMinusInf : now.sink ? now.sink[of] * kLog2e : 0.f;
  };
  const float at_start = Modified ? kMinusInf : sink_of(p, head);  // then a maximum says whether a key is kept

  float o[D / 2];
  clear_strip(o);
  Softmax x;
#pragma unroll
  for (int i = 0; i < kStripSlots; i++) x.m[i] = at_start, x.sum[i] = 0.f, x.seen[i] = false;
  if (n > 0) {
    const TileRows keys = rows_of(p.k, b, seq.k0, kv_head, seq.len_k, p.d), values = rows_of(p.v, b, seq.k0, kv_head, seq.len_k, p.d_v);
    const auto rows_now = [&](const TileRows &rows, const View &v, int64_t width) {
      if constexpr (!Modified) return rows;
      unsigned zero = 0;
      opaque(zero);  // made anew: registers are short
      return rows_of(v, b + (int)zero, (int)seq.k0, kv_head, (int)seq.len_k, width);
    };
    StripRows<T, D> q;
    TileCopy<T, kKeys, D, Wide> k_copy, v_copy;
    {
      TileCopy<T, kStripBlock, D, Wide> copy;
      copy.fetch(q_tile, rows_of(p.q, b, seq.q0, head, seq.len_q, p.d), q0);
      copy.land(q_tile);
    }
    if constexpr (kRowsInRegisters) {
      tiles_ready();
      q.load(q_tile);
      __syncthreads();
    }
    k_copy.fetch(k_tile(0), keys, k0);
    k_copy.land(k_tile(0));
    tiles_ready();
    if constexpr (!kRowsInRegisters) q.load(q_tile);
    // Tile j's keys are multiplied, and turned to weights, while tile j - 1's values are.
    const auto fetch = [&](int j) {
      if (j + 1 < n) k_copy.fetch(k_tile(j + 1), rows_now(keys, p.k, p.d), k0 + (j + 1) * kKeys);
      v_copy.fetch(v_tile(j), rows_now(values, p.v, p.d_v), k0 + j * kKeys);
    };
    const auto land = [&](int j) {
      if constexpr (kStages == 1) __syncthreads();
      if (j + 1 < n) k_copy.land(k_tile(j + 1));
      v_copy.land(v_tile(j));
      tiles_ready();
    };
    const auto partial = [&](int j) { return !span.whole(k0 + j * kKeys, kKeys); };
    float s[kKeys / 2], factor[kStripSlots];
    unsigned w[kKeys / 4];
    [[maybe_unused]] Kept<kKeys> kept;
    const auto draw = [&](int j) {
      const Problem &anew = again(p);
      if (anew.dropout > 0) keep_strip<kKeys, false>(kept, anew, place.head, q0 + wave() * kStripRows, k0 + j * kKeys);
    };
    const auto modify = [&](int j) {
      const Problem &anew = again(p);
      if (!modifies(anew)) return;
      unsigned zero = 0;
      opaque(zero);
      const int id = place.head + (int)zero, b_now = id / (int)anew.h_q;
      modify_strip<T, kKeys, false>(s, anew, out.runs, sequence_of(anew, b_now), b_now, id % (int)anew.h_q, q0 + wave() * kStripRows, k0 + j * kKeys);
    };
    bool dirty = false;
    fetch(0);
    multiply_rows<T, kKeys, D>(s, q, k_tile(0));
    if constexpr (Modified) draw(0);
    products_done<0>(s);
    if constexpr (Modified) modify(0);
    if (partial(0)) mask_strip<kKeys>(s, bounds, k0, kMinusInf);
    softmax_step<kKeys>(s, c, x, factor);
    if constexpr (Modified)
      if (again(p).dropout > 0) drop_strip<kKeys>(s, kept);
    pack_strip<T, kKeys>(w, s);
    land(0);
#pragma unroll 1
    for (int j = 1; j < n; j++) {
      if constexpr (!Wide || Modified) fetch(j);  // waits for its loads, or takes registers
      multiply_rows<T, kKeys, D>(s, q, k_tile(j));
      if constexpr (Wide && !Modified) fetch(j);
      dirty |= add_columns<T, D, kKeys>(o, w, v_tile(j - 1), partial(j - 1) || masked);
      if constexpr (Modified) draw(j);
      products_done<1>(s);
      if constexpr (Modified) modify(j);
      if (partial(j)) mask_strip<kKeys>(s, bounds, k0 + j * kKeys, kMinusInf);
      softmax_step<kKeys>(s, c, x, factor);
      if constexpr (Modified)
        if (again(p).dropout > 0) drop_strip<kKeys>(s, kept);
      finish_first(x.sum, p.b < 0);  // the last of it
      products_done<0>(o);
      pack_strip<T, kKeys>(w, s);
      scale_strip<D>(o, factor);
      land(j);
    }
    dirty |= add_columns<T, D, kKeys>(o, w, v_tile(n - 1), partial(n - 1) || masked);
    products_done<0>(o);
    if (dirty)
      add_not_finite<T, D>(o, rows_now(values, p.v, p.d_v), span, kKeys, bounds, masked, [&](int key, int slot) {
        return !Modified || mask_keeps(again(p), b, head, q0 + wave() * kStripRows + strip_row(slot), key);
      });
  }
  const Problem &late = again(p);
  unsigned zero = 0;
  if constexpr (Modified) opaque(zero);  // what is needed here only is made here
  const int id = place.head + (int)zero, b_late = Modified ? id / (int)late.h_q : b, head_late = Modified ? id % (int)late.h_q : head;
  const float sink = Modified ? sink_of(late, head_late) : at_start;
  const Sequence seq_late = Modified ? sequence_of(late, b_late) : seq;
  const int rows = (int)(late.thd ? seq_late.len_q : late.s_q);
  float inverse[kStripSlots];
  bool empty[kStripSlots];
#pragma unroll
  for (int i = 0; i < kStripSlots; i++) {
    float total = across_strip(x.sum[i], Add{});
    empty[i] = bounds.lo[i] >= bounds.hi[i] || (!(Modified ? x.m[i] > kMinusInf : x.seen[i]) && total == total);
    float shrink = 1.f;
    if (Modified && sink > x.m[i]) shrink = exp2_near(x.m[i] - sink), total *= shrink, x.m[i] = sink;
    if (sink > kMinusInf) total += exp2_near(sink - x.m[i]);
    const int row = wave() * kStripRows + strip_row(i);
    if (q0 + row < rows && out.stats && first_of_row())
      out.stats[stats_index(late, b_late, head_late, seq_late.q0 + q0 + row)] = empty[i] ? kMinusInf : stats_of(x.m[i], total);
    inverse[i] = Modified ? shrink / (total * rest_of(late)) : 1.f / total;
  }
#pragma unroll
  for (int e = 0; e < D / 2; e++) o[e] = empty[strip_slot(e)] ? 0.f : o[e] * inverse[strip_slot(e)];
  store_strip<T, D, Wide>(rows_of(out.o, b_late, seq_late.q0, head_late, rows, late.d_v), q0, o);
}

// ---- backward ----

struct BackwardIn {
  View d_o;
  const float *lse, *delta;  // laid out as stats: log-sum-exp in units of log2, +inf where nothing is kept, and rowsum(dO * O)
};
struct BackwardOut {
  View dq, dk, dv;
  Grid queries, keys;
  bool runs;
};
template <class T, int D, bool Modified> struct BackwardShape {
  static constexpr int kInner = Modified && kSizes<D>.two_scores > 64 ? 64 : kSizes<D>.two_scores;  // rows of a tile of the other side
  static constexpr int kOuterTile = kStripBlock * D, kInnerTile = kInner * D, kInnerTiles = (2 * kStages + 1) * kInnerTile;
  static constexpr int kTiles = (int)sizeof(T) * (!kRowsInRegisters ? 2 * kOuterTile + kInnerTiles : kOuterTile > kInnerTiles ? kOuterTile : kInnerTiles);
  static constexpr int kBytes = kTiles + kStages * 2 * kInner * (int)sizeof(float);
};

// A block's own rows of two tensors as left operands. `tiles`: room for both, or (in registers) for one.
template <class T, int D, bool Wide> TE_DEVICE void load_rows(StripRows<T, D> &x, const TileRows &from_x, StripRows<T, D> &y, const TileRows &from_y, int first, T *tiles) {
  TileCopy<T, kStripBlock, D, Wide> copy;
  const auto load = [&](StripRows<T, D> &rows, const TileRows &from, T *tile) {
    copy.fetch(tile, from, first);
    copy.land(tile);
    if constexpr (kRowsInRegisters) tiles_ready();
    rows.load(tile);
    if constexpr (kRowsInRegisters) __syncthreads();
  };
  load(x, from_x, tiles);
  load(y, from_y, tiles + (kRowsInRegisters ? 0 : kStripBlock * D));
}

template <class T, int D, bool Wide, bool Modified>
__global__ void __launch_bounds__(kStripThreads, 1) flash_query_gradient_kernel(Problem p, BackwardIn in, BackwardOut out) {
  using Shape = BackwardShape<T, D, Modified>;
  constexpr int kKeys = Shape::kInner;
  TE_TILES(memory, Shape::kBytes);
  T *const own = reinterpret_cast<T *>(memory), *const tiles = own + (kRowsInRegisters ? 0 : 2 * Shape::kOuterTile);
  const auto k_tile = [&](int j) { return tiles + j % (kStages + 1) * Shape::kInnerTile; };
  const auto v_tile = [&](int j) { return tiles + (kStages + 1 + j % kStages) * Shape::kInnerTile; };
  const Place place = place_of(out.queries);
  const int heads = (int)p.h_q, b = place.head / heads, head = place.head % heads, kv_head = head / (int)p.group, q0 = place.first;
  const Sequence seq = sequence_of(p, b);
  if (p.thd && q0 >= seq.len_q) return;
  const auto interval = [&](int64_t q, int64_t *lo, int64_t *hi) { p.interval(seq, q, lo, hi); };
  const Span span = span_of(q0, seq.len_q, interval);
  const Bounds bounds = bounds_of(q0, seq.len_q, interval);
  const int k0 = span.lo / kKeys * kKeys, n = span.tiles(kKeys);
  const float c = Modified && makes_logits(again(p)) ? kLog2e : p.scale * kLog2e;
  const bool masked = Modified && again(p).mask.base;

  float dq[D / 2];
  clear_strip(dq);
  if (n > 0) {
    StripRows<T, D> q, d_o;
    load_rows<T, D, Wide>(q, rows_of(p.q, b, seq.q0, head, seq.len_q, p.d), d_o, rows_of(in.d_o, b, seq.q0, head, seq.len_q, p.d_v), q0, own);
    float lse[kStripSlots], delta[kStripSlots];
#pragma unroll
    for (int i = 0; i < kStripSlots; i++) {
      const int64_t row = q0 + wave() * kStripRows + strip_row(i), at = stats_index(p, b, head, seq.q0 + row);
      lse[i] = row < seq.len_q ? in.lse[at] : -kMinusInf;
      delta[i] = row < seq.len_q ? in.delta[at] : 0.f;
      if constexpr (Modified) delta[i] *= rest_of(again(p));  // in place of what dropout divides dP by; the sum is divided
    }
    TileCopy<T, kKeys, D, Wide> k_copy, v_copy;
    const auto fetch = [&](int j) {
      const Problem &anew = again(p);
      k_copy.fetch(k_tile(j), rows_of(anew.k, b, seq.k0, kv_head, seq.len_k, anew.d), k0 + j * kKeys);
      v_copy.fetch(v_tile(j), rows_of(anew.v, b, seq.k0, kv_head, seq.len_k, anew.d_v), k0 + j * kKeys);
    };
    const auto land = [&](int j) {
      if constexpr (kStages == 1) __syncthreads();
      k_copy.land(k_tile(j)), v_copy.land(v_tile(j)), tiles_ready();
    };
    const auto partial = [&](int j) { return !span.whole(k0 + j * kKeys, kKeys); };
    float s[kKeys / 2], y[kKeys / 2];
    unsigned w[kKeys / 4];
    [[maybe_unused]] Kept<kKeys> kept;
    const auto draw = [&](int j) {
      const Problem &anew = again(p);
      if (anew.dropout > 0) keep_strip<kKeys, false>(kept, anew, place.head, q0 + wave() * kStripRows, k0 + j * kKeys);
    };
    const auto modify = [&](int j) { modify_strip<T, kKeys, false>(s, again(p), out.runs, seq, b, head, q0 + wave() * kStripRows, k0 + j * kKeys); };
    // Gradients of a tile's scores are found while those of the tile before are multiplied by its keys.
    const auto weights = [&] {
#pragma unroll
      for (int e = 0; e < kKeys / 2; e++) s[e] = exp2_fast(fmaf(s[e], c, -lse[strip_slot(e)]));
    };
    const auto gradients = [&](int j) {
      if constexpr (Modified)
        if (again(p).dropout > 0) drop_strip<kKeys>(y, kept);
#pragma unroll
      for (int e = 0; e < kKeys / 2; e++)  // V at a hidden key may be NaN
        y[e] = Modified && s[e] == 0.f ? 0.f : s[e] * (y[e] - delta[strip_slot(e)]);
      if (partial(j)) mask_strip<kKeys>(y, bounds, k0 + j * kKeys, 0.f);
    };
    fetch(0);
    land(0);
    if (n > 1) fetch(1);
    multiply_rows<T, kKeys, D>(s, q, k_tile(0));
    multiply_rows<T, kKeys, D>(y, d_o, v_tile(0));
    if constexpr (Modified) draw(0);
    products_done<0>(s, y);
    if constexpr (Modified) modify(0);
    weights();
    gradients(0);
    pack_strip<T, kKeys>(w, y);
    if (n > 1) land(1);
#pragma unroll 1
    for (int j = 1; j < n; j++) {
      multiply_rows<T, kKeys, D>(s, q, k_tile(j));
      multiply_rows<T, kKeys, D>(y, d_o, v_tile(j));
      if (j + 1 < n) fetch(j + 1);
      add_columns<T, D, kKeys>(dq, w, k_tile(j - 1), partial(j - 1) || masked);
      if constexpr (Modified) draw(j);
      products_done<2>(s);
      if constexpr (Modified) modify(j);
      weights();
      finish_first(s, p.b < 0);
      products_done<1>(y);
      gradients(j);
      finish_first(y, p.b < 0);
      products_done<0>(dq);
      pack_strip<T, kKeys>(w, y);
      if (j + 1 < n) land(j + 1);
    }
    add_columns<T, D, kKeys>(dq, w, k_tile(n - 1), partial(n - 1) || masked);
    products_done<0>(dq);
  }
  const float factor = Modified ? p.scale / rest_of(again(p)) : p.scale;
#pragma unroll
  for (int i = 0; i < D / 2; i++) dq[i] = bounds.lo[strip_slot(i)] < bounds.hi[strip_slot(i)] ? dq[i] * factor : 0.f;
  const Problem &late = again(p);
  store_strip<T, D, Wide>(rows_of(out.dq, b, seq.q0, head, late.thd ? seq.len_q : late.s_q, late.d), q0, dq);
}

// f(element, its column's number) after ready(); the first numbers are read before, since they take longer.
template <int N, class R, class F> TE_DEVICE void by_columns(const float *numbers, R &&ready, F &&f) {
#pragma unroll
  for (int h = 0; h < N; h += N < 64 ? N : 64) {
    constexpr int kGroups = N < 64 ? N / 8 : 8;
    pack<float, kRun> of_column[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; g++) of_column[g] = load<kRun>(numbers + h + 8 * g + run_start());
    if (h == 0) ready();
#pragma unroll
    for (int e = 0; e < kGroups * 4; e++) f(h / 2 + e, of_column[e / 4].v[e % kRun]);
  }
}

// Strips of keys: scores and their gradients are transposed, so that packed they are left operands of the sums over queries.
template <class T, int D, bool Wide, bool Modified>
__global__ void __launch_bounds__(kStripThreads, 1) flash_key_gradient_kernel(Problem p, BackwardIn in, BackwardOut out) {
  using Shape = BackwardShape<T, D, Modified>;
  constexpr int kQueries = Shape::kInner;
  TE_TILES(memory, Shape::kBytes);
  T *const own = reinterpret_cast<T *>(memory), *const tiles = own + (kRowsInRegisters ? 0 : 2 * Shape::kOuterTile);
  const auto q_tile = [&](int j) { return tiles + j % kStages * Shape::kInnerTile; };
  const auto do_tile = [&](int j) { return tiles + (kStages + j % kStages) * Shape::kInnerTile; };
  const auto row_tile = [&](int j) { return reinterpret_cast<float *>(memory + Shape::kTiles) + j % kStages * 2 * kQueries; };  // lse, then delta
  const Place place = place_of(out.keys);
  const int heads = (int)p.h_kv, b = place.head / heads, kv_head = place.head % heads, k0 = place.first;
  const Sequence seq = sequence_of(p, b);
  if (p.thd && k0 >= seq.len_k) return;
  const auto interval = [&](int64_t key, int64_t *lo, int64_t *hi) { queries_of(p, seq, key, lo, hi); };
  const Span span = span_of(k0, seq.len_k, interval);
  const Bounds bounds = bounds_of(k0, seq.len_k, interval);
  const int q0 = span.lo / kQueries * kQueries, n = span.tiles(kQueries) * (int)p.group;
  const float c = Modified && makes_logits(again(p)) ? kLog2e : p.scale * kLog2e;
  const bool masked = Modified && again(p).mask.base;

  float dk[D / 2], dv[D / 2];
  clear_strip(dk);
  clear_strip(dv);
  if (n > 0) {
    StripRows<T, D> k, v;
    load_rows<T, D, Wide>(k, rows_of(p.k, b, seq.k0, kv_head, seq.len_k, p.d), v, rows_of(p.v, b, seq.k0, kv_head, seq.len_k, p.d_v), k0, own);
    TileCopy<T, kQueries, D, Wide> q_copy, do_copy;
    float row_value = 0.f;
    int head = kv_head * (int)p.group, next = q0;  // of the tile that comes next: its head, its first query
    const auto fetch = [&](int j) {
      const Problem &anew = again(p);
      const int at = next + (int)threadIdx.x % kQueries;
      q_copy.fetch(q_tile(j), rows_of(anew.q, b, seq.q0, head, seq.len_q, anew.d), next);
      do_copy.fetch(do_tile(j), rows_of(in.d_o, b, seq.q0, head, seq.len_q, anew.d_v), next);
      const bool second = (int)threadIdx.x >= kQueries;
      row_value = second ? 0.f : -kMinusInf;
      if (at < seq.len_q) row_value = (second ? in.delta : in.lse)[stats_index(anew, b, head, seq.q0 + at)];
      if (Modified && second) row_value *= rest_of(anew);
      next += kQueries;
      if (next >= span.hi) next = q0, head++;
    };
    const auto land = [&](int j) {
      q_copy.land(q_tile(j)), do_copy.land(do_tile(j));
      if ((int)threadIdx.x < 2 * kQueries) row_tile(j)[threadIdx.x] = row_value;
      tiles_ready();
    };
    bool dirty = false;
    int now = next, head_now = head;
    fetch(0);
    land(0);
#pragma unroll 1
    for (int j = 0; j < n; j++) {
      float s[kQueries / 2], y[kQueries / 2];
      unsigned w[kQueries / 4], z[kQueries / 4];
      const int first = now;
      [[maybe_unused]] const int head_here = head_now;
      [[maybe_unused]] Kept<kQueries> kept;
      now = next, head_now = head;
      const bool partial = !span.whole(first, kQueries);
      const float *lse = row_tile(j), *delta = lse + kQueries;
      multiply_rows<T, kQueries, D>(s, k, q_tile(j));
      if (j + 1 < n) fetch(j + 1);
      multiply_rows<T, kQueries, D>(y, v, do_tile(j));
      if constexpr (Modified) {
        const Problem &anew = again(p);
        if (anew.dropout > 0) keep_strip<kQueries, true>(kept, anew, b * anew.h_q + head_here, k0 + wave() * kStripRows, first);
      }
      if constexpr (Modified) {
        products_done<1>(s);
        modify_strip<T, kQueries, true>(s, again(p), false, seq, b, head_here, k0 + wave() * kStripRows, first);
      }
      const auto scores = [&] {
        if constexpr (!Modified) products_done<1>(s);
      };
      by_columns<kQueries>(lse, scores, [&](int e, float l) { s[e] = exp2_fast(fmaf(s[e], c, -l)); });
      if (partial) mask_strip<kQueries>(s, bounds, first, 0.f);
      if (Modified && again(p).dropout > 0) {
#pragma unroll
        for (int i = 0; i < kQueries / 4; i++) w[i] = pack2<T>(kept.of(2 * i, s[2 * i]), kept.of(2 * i + 1, s[2 * i + 1]));
      } else {
        pack_strip<T, kQueries>(w, s);
      }
      dirty |= add_columns<T, D, kQueries>(dv, w, do_tile(j), partial || masked);
      const auto gradients = [&] {
        products_done<1>(y);
        if constexpr (Modified)
          if (again(p).dropout > 0) drop_strip<kQueries>(y, kept);
      };
      by_columns<kQueries>(delta, gradients, [&](int e, float d) { y[e] = Modified && s[e] == 0.f ? 0.f : s[e] * (y[e] - d); });
      if (partial) mask_strip<kQueries>(y, bounds, first, 0.f);
      pack_strip<T, kQueries>(z, y);
      add_columns<T, D, kQueries>(dk, z, q_tile(j), partial || masked);
      products_done<0>(dv, dk);
      if (j + 1 == n) break;
      if constexpr (kStages == 1) __syncthreads();
      land(j + 1);
    }
    if (dirty)  // of dS it shows in every column, since its scores are not finite either
      for (head = kv_head * (int)p.group; head < (kv_head + 1) * (int)p.group; head++) {
        const auto keeps = [&](int query, int slot) {
          return !Modified || mask_keeps(again(p), b, head, query, k0 + wave() * kStripRows + strip_row(slot));
        };
        add_not_finite<T, D>(dv, rows_of(in.d_o, b, seq.q0, head, seq.len_q, again(p).d_v), span, kQueries, bounds, masked, keeps);
      }
  }
  const float rest = Modified ? 1.f / rest_of(again(p)) : 1.f, factor = Modified ? p.scale * rest : p.scale;
#pragma unroll
  for (int i = 0; i < D / 2; i++) {
    const bool kept = bounds.lo[strip_slot(i)] < bounds.hi[strip_slot(i)];
    dk[i] = kept ? dk[i] * factor : 0.f, dv[i] = kept ? Modified ? dv[i] * rest : dv[i] : 0.f;
  }
  const Problem &late = again(p);
  const int64_t rows = late.thd ? seq.len_k : late.s_kv;
  store_strip<T, D, Wide>(rows_of(out.dk, b, seq.k0, kv_head, rows, late.d), k0, dk);
  store_strip<T, D, Wide>(rows_of(out.dv, b, seq.k0, kv_head, rows, late.d_v), k0, dv);
}

// D / 8 lanes a row.
template <class T, int D, bool Wide> __global__ void __launch_bounds__(256) flash_delta_kernel(Problem p, View d_o, View o, const float *stats, float *lse, float *delta) {
  const int64_t row = ((int64_t)blockIdx.x * 256 + threadIdx.x) / (D / 8);
  const bool real = row < (p.thd ? 1 : p.b) * p.h_q * p.s_q;  // who is not takes part in the sum all the same
  const int64_t at = row % p.s_q, head = row / p.s_q % p.h_q, b = row / p.s_q / p.h_q;
  const int column = (int)threadIdx.x % (D / 8) * 8;
  const float from = real ? stats[row] : kMinusInf;
  float sum = 0.f;
  if (from != kMinusInf && column < p.d_v) {
    const auto load = [&](const View &v, float (&x)[8]) {
      const uint4 w = rows_of(v, b, at, head, 1, p.d_v).template get<Wide>(0, column);
#pragma unroll
      for (int i = 0; i < 8; i++) x[i] = to_f32(T{(unsigned short)((i < 4 ? i < 2 ? w.x : w.y : i < 6 ? w.z : w.w) >> 16 * (i % 2))});
    };
    float x[8], y[8];
    load(d_o, x);
    load(o, y);
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(x[i], y[i], sum);
  }
  sum = combine_lanes<D / 8>(sum, Add{});
  if (real && column == 0) lse[row] = from == kMinusInf ? -kMinusInf : from * kLog2e, delta[row] = sum;
}

// ---- host ----

// What the layout has no part in: the same call gives the same bits in every one.
bool takes(const Problem &p) {
  const auto fits = [](int64_t d) { return d > 32 && d <= 128; };
  return p.q.dtype != DType::f32 && fits(p.d) && fits(p.d_v) && (!p.bias.base || p.bias.dtype == p.q.dtype || p.bias.dtype == DType::f32) &&
         p.b * p.h_q <= INT32_MAX && p.s_q <= INT32_MAX - 2 * kStripBlock && p.s_kv <= INT32_MAX - 2 * kStripBlock;
}
bool wide(const View &v, int64_t width) {
  return v.d == 1 && (uintptr_t)v.base % 16 == 0 && v.b % 8 == 0 && v.s % 8 == 0 && v.h % 8 == 0 && width % 8 == 0;
}
bool modified(const Problem &p) { return p.bias.base || p.mask.base || p.slopes || p.dropout > 0 || !(p.scale > 0); }
// Whether kRun numbers of a row of a grid, the first a multiple of kRun, are one access.
bool has_runs(const View &v) {
  const auto whole = [](int64_t x) { return x % kRun == 0; };
  return !v.base || (v.d == 1 && whole((int64_t)((uintptr_t)v.base / (size_t)v.bytes)) && whole(v.b) && whole(v.s) && whole(v.h));
}
// Calls f(T{}, channels of a tile, whether all accesses are wide, whether scores are modified).
template <class F> bool visit(const Problem &p, bool all_wide, F &&f) {
  const auto kind = [&](auto t, auto d, auto w) { return modified(p) ? f(t, d, w, std::true_type{}) : f(t, d, w, std::false_type{}); };
  const auto channels = [&](auto t, auto w) {
    return p.d <= 64 && p.d_v <= 64 ? kind(t, std::integral_constant<int, 64>{}, w) : kind(t, std::integral_constant<int, 128>{}, w);
  };
  const auto type = [&](auto w) { return p.q.dtype == DType::f16 ? channels(f16{}, w) : channels(bf16{}, w); };
  return all_wide && wide(p.q, p.d) && wide(p.k, p.d) && wide(p.v, p.d_v) ? type(std::true_type{}) : type(std::false_type{});
}
// `bytes`: of the other side that a head reads, `group` heads the same.
Grid grid_of(int64_t rows, int64_t heads, int64_t bytes, int64_t group, bool last_first) {
  constexpr int64_t kCache = 16 << 20;
  int64_t section = bytes > 0 && bytes < kCache ? kCache / bytes * group : group;
  if (section > heads) section = heads;
  return {(int)gpu::ceil_div(rows, kStripBlock), (int)heads, (int)section, last_first};
}
// Whether the device gives a kernel its tiles; asked once a device.
template <auto Kernel> bool has_tiles(int device, int bytes) {
  if constexpr (!kDynamicTiles) return true;
  static std::atomic<uint64_t> asked{0}, given{0};
  const uint64_t bit = 1ull << (device & 63);
  if (!(asked.load() & bit)) {
    if (hipFuncSetAttribute(reinterpret_cast<const void *>(Kernel), hipFuncAttributeMaxDynamicSharedMemorySize, bytes) == hipSuccess) given |= bit;
    else (void)hipGetLastError();
    asked |= bit;
  }
  return given.load() & bit;
}
constexpr unsigned tiles_bytes(int bytes) { return kDynamicTiles ? (unsigned)bytes : 0; }
int64_t bytes_of_head(int64_t rows, const Problem &p) { return rows * (p.d + p.d_v) * p.q.bytes; }

}  // namespace

namespace gpu {

bool flash_forward(const nvte_exec &e, const nvte_attention_forward_args &a) {
  const Problem p = problem_of(a);
  const ForwardOut out = {view_of(a.o, axes_of(a.format)), given(a.stats) ? address_as<float>(a.stats->data) : nullptr,
                          grid_of(p.s_q, p.b * p.h_q, bytes_of_head(p.s_kv, p), p.group, true), has_runs(p.bias) && has_runs(p.mask)};
  if (!takes(p) || out.o.dtype != p.q.dtype) return false;
  return visit(p, wide(out.o, p.d_v), [&](auto number, auto d, auto w, auto m) {
    using T = decltype(number);
    using Shape = ForwardShape<T, d.value, m.value>;
    constexpr auto kernel = flash_forward_kernel<T, d.value, w.value, m.value>;
    if (!has_tiles<kernel>(e.device.device_id, Shape::kBytes)) return false;
    if (const unsigned blocks = out.grid.count()) kernel<<<blocks, kStripThreads, tiles_bytes(Shape::kBytes), stream_of(e)>>>(p, out);
    return true;
  });
}

bool flash_backward(const nvte_exec &e, const nvte_attention_backward_args &a, float *lse, float *delta) {
  const Problem p = problem_of(a);
  const Axes x = axes_of(a.format);
  const DType t = p.q.dtype;
  const View o = view_of(a.o, x);
  const BackwardIn in = {view_of(a.d_o, x), lse, delta};
  const BackwardOut out = {view_of(a.dq, x), view_of(a.dk, x), view_of(a.dv, x), grid_of(p.s_q, p.b * p.h_q, bytes_of_head(p.s_kv, p), p.group, true),
                           grid_of(p.s_kv, p.b * p.h_kv, bytes_of_head(p.s_q * p.group, p), 1, false), has_runs(p.bias) && has_runs(p.mask)};
  if (!takes(p) || o.dtype != t || in.d_o.dtype != t || out.dq.dtype != t || out.dk.dtype != t || out.dv.dtype != t) return false;
  const hipStream_t stream = stream_of(e);
  const bool all_wide = wide(o, p.d_v) && wide(in.d_o, p.d_v) && wide(out.dq, p.d) && wide(out.dk, p.d) && wide(out.dv, p.d_v);
  return visit(p, all_wide, [&](auto number, auto d, auto w, auto m) {
    using T = decltype(number);
    using Shape = BackwardShape<T, d.value, m.value>;
    constexpr auto queries = flash_query_gradient_kernel<T, d.value, w.value, m.value>;
    constexpr auto keys = flash_key_gradient_kernel<T, d.value, w.value, m.value>;
    if (!has_tiles<queries>(e.device.device_id, Shape::kBytes) || !has_tiles<keys>(e.device.device_id, Shape::kBytes)) return false;
    if (const int64_t rows = numel(a.stats->data))
      flash_delta_kernel<T, d.value, w.value><<<(unsigned)ceil_div(rows * d.value / 8, 256), 256, 0, stream>>>(p, in.d_o, o, address_as<const float>(a.stats->data), lse, delta);
    if (const unsigned blocks = out.queries.count()) queries<<<blocks, kStripThreads, tiles_bytes(Shape::kBytes), stream>>>(p, in, out);
    if (const unsigned blocks = out.keys.count()) keys<<<blocks, kStripThreads, tiles_bytes(Shape::kBytes), stream>>>(p, in, out);
    return true;
  });
}

}  // namespace gpu
}  // namespace te
