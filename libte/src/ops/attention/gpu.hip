// SPDX-License-Identifier: Apache-2.0
// Flash attention by kernels of our own (T. Dao et al., "FlashAttention", 2022): every feature of the CPU's, any size, no atomics, so results
// repeat. What gpu_flash.hip takes goes there; the general kernels are here. A block owns 64 queries of a head (forward, dQ), 64 keys of a key/value head (dK, dV) or 64 x 64 elements of dbias, each wave 16
// rows of it. Channels pass through shared memory in chunks; more than kColumns columns of a result are shared out over blocks, which compute
// the same scores again. 16-bit inputs and results are multiplied as such, anything with an f32 in it is f32 throughout.
#include "ops/attention/gpu.h"

#include "gpu/device/philox.h"
#include "gpu/device/tile.h"

namespace te {
namespace {

constexpr int kBlock = 64, kColumns = 128, kThreads = 4 * kWave, kHostThreads = 4 * kMaxWave;
template <class T> constexpr int kDepth = 128 / (int)sizeof(T);  // channels of a chunk
template <class T> constexpr int kLdDepth = padded<T>(kDepth<T>);  // of a row of a tile
template <class T> constexpr int kLdBlock = padded<T>(kBlock);
template <class T> constexpr int kChunk = kBlock * kLdDepth<T>;
template <class T> constexpr int kParts = kColumns / kDepth<T>;
static_assert(kDepth<float> * kLdBlock<float> <= kChunk<float> && kDepth<f16> * kLdBlock<f16> <= kChunk<f16>, "a transposed chunk fits too");

template <class T> using Chunks = Loader<T, kBlock, kDepth<T>, kThreads, false>;           // rows by channels
template <class T> using TransposedChunks = Loader<T, kDepth<T>, kBlock, kThreads, false>;  // channels by rows
using Operand = Source<Stride>;

// What is rare or has a branch a dtype goes through shared memory in rolled loops: a wave's 16 rows of f32 in the tiles' place.
constexpr int kSlab = 68;
static_assert(4 * 16 * kSlab * sizeof(float) <= 2 * kChunk<float> * sizeof(float), "four waves' slabs fit in two tiles");
template <class T> struct Shared {
  alignas(16) T a[kChunk<T>];
  T b[kChunk<T>];
  T weights[kBlock * kLdBlock<T>];
  unsigned char keep[kBlock * kBlock];
  TE_DEVICE float *slab() { return reinterpret_cast<float *>(a) + wave() * 16 * kSlab; }
};

// ---- what a block works on ----

// A block of queries of a head; keys [lo, hi) that each row of a lane may keep.
struct Block {
  int64_t b, head, q0;
  Sequence seq;
  int lo[kRowSlots], hi[kRowSlots];
};
__device__ __forceinline__ void fill_rows(const Problem &p, int64_t b, int64_t head, int64_t q0, const Sequence &seq, Block &out) {
  out.b = b, out.head = head, out.q0 = q0, out.seq = seq;
#pragma unroll
  for (int i = 0; i < kRowSlots; i++) {
    int64_t lo, hi;
    p.keys_of(seq, q0 + wave() * 16 + slot_row(i), &lo, &hi);
    out.lo[i] = (int)lo, out.hi[i] = (int)hi;
  }
}
// Keys [lo, hi) of a block of queries.
__device__ __forceinline__ void keys_of_block(const Problem &p, const Sequence &seq, int64_t q0, int64_t *lo, int64_t *hi) {
  int64_t ignored;
  const int64_t last = q0 + kBlock < seq.len_q ? q0 + kBlock - 1 : seq.len_q - 1;
  p.interval(seq, q0, lo, &ignored);
  p.interval(seq, last, &ignored, hi);
  if (q0 >= seq.len_q || *lo >= *hi) *lo = *hi = 0;
}

// Rows of a view as an operand: `first` is the memory position of row 0, k_unit: channels are k.
template <class T> TE_DEVICE Operand source(const View &v, int64_t b, int64_t first, int64_t head, int64_t rows, int64_t channels, bool k_unit) {
  Operand s;
  s.base = v.row(b, first, head);
  s.dtype = v.dtype;
  s.k_unit = k_unit;
  s.wide = v.dtype == kDType<T> && v.d == 1 && ((uintptr_t)s.base | (uintptr_t)(v.s * v.bytes)) % 16 == 0;
  s.n = k_unit ? rows : channels;
  s.k = k_unit ? channels : rows;
  s.unit = v.d;
  s.rows.stride = v.s;
  return s;
}

// Whether scores need more than a multiplication by a positive scale.
__device__ __forceinline__ bool has_extras(const Problem &p) { return p.bias.base || p.mask.base || p.slopes || !(p.scale > 0); }
// Q K^T of the wave's rows becomes logits.
template <class T> TE_DEVICE void add_extras(const Problem &p, const Block &block, int64_t k0, Piece (&s)[1][4], Shared<T> &shared) {
  float *const slab = shared.slab();
  __syncthreads();
#pragma unroll
  for (int j = 0; j < 4; j++)
#pragma unroll
    for (int e = 0; e < kPiece; e++) slab[piece_row(e) * kSlab + j * 16 + piece_column(e)] = s[0][j].v[e];
  __syncthreads();
  const float slope = p.slopes ? p.slopes[block.head] : 0.f;
#pragma unroll 1
  for (int i = 0; i < 16; i++) {
    const int64_t q = block.q0 + wave() * 16 + i;
    int64_t lo, hi;
    p.keys_of(block.seq, q, &lo, &hi);
    if (lo >= hi) continue;
    const char *bias = p.bias.base ? p.bias.row(block.b, q, block.head) : nullptr, *mask = p.mask.base ? p.mask.row(block.b, q, block.head) : nullptr;
    const int64_t from = p.aligned(block.seq, q);
#pragma unroll 1
    for (int j = lane(); j < kBlock; j += kWave) {
      const int64_t key = k0 + j;
      if (key < lo || key >= hi) continue;
      float x = slab[i * kSlab + j];
      const float add = bias ? load_any<false>(bias, p.bias.dtype, key * p.bias.d) : 0.f;
      if (bias && p.bias_kind == NVTE_BIAS_PRE_SCALE) x = (x + add) * p.scale;
      else x = bias ? x * p.scale + add : x * p.scale;
      if (p.slopes) x += slope * (float)(key - from);
      slab[i * kSlab + j] = mask && mask[key * p.mask.d] != 0 ? kMinusInf : x;
    }
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < 4; j++)
#pragma unroll
    for (int e = 0; e < kPiece; e++) s[0][j].v[e] = slab[piece_row(e) * kSlab + j * 16 + piece_column(e)];
}

// ---- dropout ----

// Draws for the wave's rows and the keys from k0 on: 1 = kept. A barrier must stand before they are read.
__device__ __forceinline__ void draw(const Problem &p, const Block &block, int64_t k0, unsigned char *keep) {
  const unsigned long long seed = (unsigned long long)p.rng[0], offset = (unsigned long long)p.rng[1];
  const unsigned long long threshold = (unsigned long long)((double)p.dropout * 4294967296.0);
#pragma unroll 1
  for (int i = lane(); i < 16 * 16; i += kWave) {
    const int row = wave() * 16 + i / 16;
    unsigned w[4];
    philox4(seed, (unsigned)(offset + (unsigned long long)(block.b * p.h_q + block.head)), (unsigned)(block.q0 + row), (unsigned)(k0 / 4 + i % 16),
            (unsigned)(offset >> 32), w);
#pragma unroll
    for (int j = 0; j < 4; j++) keep[row * kBlock + i % 16 * 4 + j] = w[j] >= threshold;
  }
}
__device__ __forceinline__ float inverse_of(const Problem &p) { return 1.f / (1.f - p.dropout); }

// ---- products ----

// s[16 rows of the wave, 64] = A B^T over `channels`, both in chunks; a and b are tiles of the block.
template <class T> TE_DEVICE void score_product(Piece (&s)[1][4], const Operand &a, const Operand &b, int64_t a0, int64_t b0, Shared<T> &shared) {
  clear(s);
#pragma unroll 1
  for (int64_t c = 0; c < a.k; c += kDepth<T>) {
    Chunks<T> x, y;
    x.load(a, a0, c);
    y.load(b, b0, c);
    __syncthreads();
    x.template store<false>(a, shared.a, kLdDepth<T>);
    y.template store<false>(b, shared.b, kLdDepth<T>);
    __syncthreads();
    product<T, 16, kBlock, kDepth<T>>(s, shared.a + wave() * 16 * kLdDepth<T>, kLdDepth<T>, shared.b, kLdDepth<T>);
  }
}
// out[16 rows of the wave, kColumns] += shared.weights[16, 64] V, V the rows r0.. and channels c0.. of a source whose k is its rows. A zero weight
// leaves out even infinity and NaN. Begins with a barrier, so weights may have just been written.
template <class T> TE_DEVICE void value_product(Piece (&out)[kParts<T>][1][kDepth<T> / 16], const Operand &v, int64_t c0, int64_t r0,
                                                  Shared<T> &shared) {
#pragma unroll
  for (int c = 0; c < kParts<T>; c++) {
    if (c0 + c * kDepth<T> >= v.n) break;
    TransposedChunks<T> x;
    x.load(v, c0 + c * kDepth<T>, r0);
    __syncthreads();
    const bool bad = __syncthreads_or(x.template store<true>(v, shared.b, kLdBlock<T>)) != 0;
    const T *mine = shared.weights + wave() * 16 * kLdBlock<T>;
    if (bad) careful_product<T, 16, kDepth<T>, kBlock>(out[c], mine, kLdBlock<T>, shared.b, kLdBlock<T>);
    else product<T, 16, kDepth<T>, kBlock>(out[c], mine, kLdBlock<T>, shared.b, kLdBlock<T>);
  }
}
template <class T> TE_DEVICE void clear_parts(Piece (&x)[kParts<T>][1][kDepth<T> / 16]) {
#pragma unroll
  for (int c = 0; c < kParts<T>; c++) clear(x[c]);
}
// Writes the wave's rows, columns c0.. of a view; row 0 of the block is at `first`, `count` rows exist.
template <class T> TE_DEVICE void store_rows(const View &v, int64_t b, int64_t head, int64_t first, int64_t count, int64_t width, int64_t c0,
                                                              const Piece (&x)[kParts<T>][1][kDepth<T> / 16], Shared<T> &shared) {
  float *const slab = shared.slab();
#pragma unroll
  for (int c = 0; c < kParts<T>; c++) {
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kDepth<T> / 16; j++)
#pragma unroll
      for (int e = 0; e < kPiece; e++) slab[piece_row(e) * kSlab + j * 16 + piece_column(e)] = x[c][0][j].v[e];
    __syncthreads();
    const int64_t left = width - c0 - c * kDepth<T>;
    const int n = left < kDepth<T> ? (int)left : kDepth<T>;
#pragma unroll 1
    for (int i = 0; i < 16 && wave() * 16 + i < count; i++) {
      char *row = v.row(b, first + wave() * 16 + i, head);
#pragma unroll 1
      for (int j = lane(); j < n; j += kWave) store_float(row, v.dtype, (c0 + c * kDepth<T> + j) * v.d, slab[i * kSlab + j]);
    }
  }
}
template <class T> TE_DEVICE void scale_parts(Piece (&x)[kParts<T>][1][kDepth<T> / 16], const float (&factor)[kRowSlots]) {
#pragma unroll
  for (int c = 0; c < kParts<T>; c++)
#pragma unroll
    for (int j = 0; j < kDepth<T> / 16; j++)
#pragma unroll
      for (int e = 0; e < kPiece; e++) x[c][0][j].v[e] *= factor[piece_slot(e)];
}
__device__ __forceinline__ void fill_slots(float (&x)[kRowSlots], float v) {
#pragma unroll
  for (int i = 0; i < kRowSlots; i++) x[i] = v;
}

// ---- forward ----

struct ForwardOut {
  View o;
  float *stats;
  int64_t blocks, chunks;  // of queries; of columns
};

template <class T> __global__ void __launch_bounds__(kThreads) forward_kernel(Problem p, ForwardOut out) {
  __shared__ Shared<T> shared;
  int64_t id = blockIdx.x;
  const int64_t q0 = (out.blocks - 1 - id % out.blocks) * kBlock;  // with causal masks the last blocks are the long ones
  id /= out.blocks;
  const int64_t head = id % p.h_q, b = id / p.h_q % p.b, c0 = id / p.h_q / p.b * kColumns;
  const Sequence seq = sequence_of(p, b);
  if (p.thd && q0 >= seq.len_q) return;
  Block block;
  fill_rows(p, b, head, q0, seq, block);
  const bool extras = has_extras(p);
  const float c = extras ? kLog2e : p.scale * kLog2e, c_rest = extras ? kLog2eRest : fmaf(p.scale, kLog2e, -c) + p.scale * kLog2eRest;
  const float sink = p.softmax_kind == NVTE_SOFTMAX_VANILLA ? kMinusInf : p.sink ? p.sink[head] * kLog2e : 0.f;
  const int64_t kv_head = head / p.group;
  const Operand q = source<T>(p.q, b, seq.q0, head, seq.len_q, p.d, true), k = source<T>(p.k, b, seq.k0, kv_head, seq.len_k, p.d, true);
  const Operand v = source<T>(p.v, b, seq.k0, kv_head, seq.len_k, p.d_v, false);
  Piece o[kParts<T>][1][kDepth<T> / 16];
  clear_parts<T>(o);
  float m[kRowSlots], sum[kRowSlots] = {};  // in units of log2; a lane's share of the sum
  bool seen[kRowSlots] = {};
#pragma unroll
  for (int i = 0; i < kRowSlots; i++) m[i] = sink;
  int64_t lo, hi;
  keys_of_block(p, seq, q0, &lo, &hi);
  for (int64_t k0 = lo / kBlock * kBlock; k0 < hi; k0 += kBlock) {
    Piece s[1][4];
    if (p.dropout > 0) draw(p, block, k0, shared.keep);
    score_product<T>(s, q, k, q0, k0, shared);
    if (extras) add_extras<T>(p, block, k0, s, shared);
    float best[kRowSlots], factor[kRowSlots];
#pragma unroll
    for (int i = 0; i < kRowSlots; i++) best[i] = kMinusInf;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int e = 0; e < kPiece; e++) {
        const int slot = piece_slot(e), key = (int)k0 + j * 16 + piece_column(e);
        if (key < block.lo[slot] || key >= block.hi[slot]) s[0][j].v[e] = kMinusInf;
        best[slot] = fmaxf(best[slot], s[0][j].v[e]);
      }
#pragma unroll
    for (int i = 0; i < kRowSlots; i++) {
      const float top = across_columns(best[i], Max{}) * c;
      seen[i] = seen[i] || top > kMinusInf;
      factor[i] = 1.f;
      if (top > m[i]) {
        factor[i] = m[i] > kMinusInf ? exp2_near(m[i] - top) : 1.f;
        m[i] = top;
      }
      sum[i] *= factor[i];
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int e = 0; e < kPiece; e++) {
        const int slot = piece_slot(e), row = wave() * 16 + piece_row(e), column = j * 16 + piece_column(e);
        const float score = s[0][j].v[e];
        float x = exp2_near(score == kMinusInf ? kMinusInf : fmaf(score, c, fmaf(score, c_rest, m[slot] == kMinusInf ? 0.f : -m[slot])));
        sum[slot] += x;
        if (p.dropout > 0 && !shared.keep[row * kBlock + column]) x = 0.f;
        shared.weights[row * kLdBlock<T> + column] = from_f32<T>(x);
      }
    scale_parts<T>(o, factor);
    value_product<T>(o, v, c0, k0, shared);
  }
  const int64_t count = (p.thd ? seq.len_q : p.s_q) - q0;
#pragma unroll
  for (int i = 0; i < kRowSlots; i++) {
    float total = across_columns(sum[i], Add{});
    const bool empty = !seen[i] && total == total;
    if (sink > kMinusInf) total += exp2_near(sink - m[i]);
    const int row = wave() * 16 + slot_row(i);
    if (row < count && out.stats && c0 == 0 && lane() % kLanesPerRow == 0)
      out.stats[stats_index(p, b, head, seq.q0 + q0 + row)] = empty ? kMinusInf : stats_of(m[i], total);
    sum[i] = empty ? 0.f : 1.f / (total * (1.f - p.dropout));
  }
  scale_parts<T>(o, sum);  // an empty row's sums are 0
  store_rows<T>(out.o, b, head, seq.q0 + q0, count, p.d_v, c0, o, shared);
}

// ---- backward ----

struct BackwardIn {
  View d_o;
  const float *stats, *delta;  // delta: rowsum(dO * O), laid out as stats
};
struct BackwardOut {
  View dq, dk, dv;
  int64_t blocks, chunks;  // of rows; of columns (dK, dV: of dV's)
};

// s and y become the dropped-out probabilities (without 1 / (1 - p)) and dS of a block of queries and the keys from k0 on.
template <class T> TE_DEVICE void gradient_tile(const Problem &p, const BackwardIn &in, const Block &block, int64_t k0, Shared<T> &shared,
                                                                 Piece (&s)[1][4], Piece (&y)[1][4]) {
  const int64_t kv_head = block.head / p.group;
  const Sequence &seq = block.seq;
  if (p.dropout > 0) draw(p, block, k0, shared.keep);
  const auto queries = [&](const View &v, int64_t width) { return source<T>(v, block.b, seq.q0, block.head, seq.len_q, width, true); };
  const auto keys = [&](const View &v, int64_t width) { return source<T>(v, block.b, seq.k0, kv_head, seq.len_k, width, true); };
  score_product<T>(s, queries(p.q, p.d), keys(p.k, p.d), block.q0, k0, shared);
  const bool extras = has_extras(p);
  if (extras) add_extras<T>(p, block, k0, s, shared);
  score_product<T>(y, queries(in.d_o, p.d_v), keys(p.v, p.d_v), block.q0, k0, shared);
  const float c = extras ? 1.f : p.scale, inverse = inverse_of(p);
  float lse[kRowSlots], delta[kRowSlots];
#pragma unroll
  for (int i = 0; i < kRowSlots; i++) {
    const bool any = block.lo[i] < block.hi[i];
    const int64_t at = stats_index(p, block.b, block.head, seq.q0 + block.q0 + wave() * 16 + slot_row(i));
    lse[i] = any ? in.stats[at] : kMinusInf;
    delta[i] = any ? in.delta[at] : 0.f;
  }
#pragma unroll
  for (int j = 0; j < 4; j++)
#pragma unroll
    for (int e = 0; e < kPiece; e++) {
      const int slot = piece_slot(e), column = j * 16 + piece_column(e), key = (int)k0 + column;
      float dp = y[0][j].v[e], w = 0.f;
      if (key >= block.lo[slot] && key < block.hi[slot] && lse[slot] != kMinusInf) w = exp2f(fmaf(s[0][j].v[e], c, -lse[slot]) * kLog2e);
      const float whole = w;
      if (p.dropout > 0) {
        const bool kept = shared.keep[(wave() * 16 + piece_row(e)) * kBlock + column] != 0;
        w = kept ? w : 0.f;
        dp = kept ? dp * inverse : 0.f;
      }
      s[0][j].v[e] = w;
      y[0][j].v[e] = whole == 0.f ? 0.f : whole * (dp - delta[slot]);  // V at a masked key may be NaN
    }
}
// A tile of the wave's 16 rows as an operand; transposed: [64 columns][64 rows of the block].
template <class T> TE_DEVICE void put_tile(T *tile, const Piece (&x)[1][4], bool transposed) {
#pragma unroll
  for (int j = 0; j < 4; j++)
#pragma unroll
    for (int e = 0; e < kPiece; e++) {
      const int row = wave() * 16 + piece_row(e), column = j * 16 + piece_column(e);
      tile[transposed ? column * kLdBlock<T> + row : row * kLdBlock<T> + column] = from_f32<T>(x[0][j].v[e]);
    }
}

template <class T> __global__ void __launch_bounds__(kThreads) query_gradient_kernel(Problem p, BackwardIn in, BackwardOut out) {
  __shared__ Shared<T> shared;
  int64_t id = blockIdx.x;
  const int64_t q0 = (out.blocks - 1 - id % out.blocks) * kBlock;
  id /= out.blocks;
  const int64_t head = id % p.h_q, b = id / p.h_q % p.b, c0 = id / p.h_q / p.b * kColumns;
  const Sequence seq = sequence_of(p, b);
  if (p.thd && q0 >= seq.len_q) return;
  Block block;
  fill_rows(p, b, head, q0, seq, block);
  const Operand k = source<T>(p.k, b, seq.k0, head / p.group, seq.len_k, p.d, false);
  Piece dq[kParts<T>][1][kDepth<T> / 16];
  clear_parts<T>(dq);
  int64_t lo, hi;
  keys_of_block(p, seq, q0, &lo, &hi);
  for (int64_t k0 = lo / kBlock * kBlock; k0 < hi; k0 += kBlock) {
    Piece s[1][4], ds[1][4];
    gradient_tile<T>(p, in, block, k0, shared, s, ds);
    put_tile(shared.weights, ds, false);
    value_product<T>(dq, k, c0, k0, shared);
  }
  float factor[kRowSlots];
  fill_slots(factor, p.scale);
  scale_parts<T>(dq, factor);
  store_rows<T>(out.dq, b, head, seq.q0 + q0, (p.thd ? seq.len_q : p.s_q) - q0, p.d, c0, dq, shared);
}

// A block sums columns of dV or of dK: both at once would not fit in registers.
template <class T> __global__ void __launch_bounds__(kThreads) key_gradient_kernel(Problem p, BackwardIn in, BackwardOut out) {
  __shared__ Shared<T> shared;
  int64_t id = blockIdx.x;
  const int64_t k0 = id % out.blocks * kBlock;
  id /= out.blocks;
  const int64_t kv_head = id % p.h_kv, b = id / p.h_kv % p.b, chunk = id / p.h_kv / p.b;
  const bool values = chunk < out.chunks;
  const int64_t c0 = (values ? chunk : chunk - out.chunks) * kColumns;
  const Sequence seq = sequence_of(p, b);
  if (p.thd && k0 >= seq.len_k) return;
  Piece sum[kParts<T>][1][kDepth<T> / 16];
  clear_parts<T>(sum);
  for (int64_t head = kv_head * p.group; head < (kv_head + 1) * p.group; head++)
    for (int64_t q0 = 0; q0 < seq.len_q; q0 += kBlock) {
      int64_t lo, hi;
      keys_of_block(p, seq, q0, &lo, &hi);
      if (lo >= k0 + kBlock || hi <= k0) continue;
      Block block;
      fill_rows(p, b, head, q0, seq, block);
      Piece s[1][4], ds[1][4];
      gradient_tile<T>(p, in, block, k0, shared, s, ds);
      #pragma unroll
      for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < kPiece; e++) s[0][j].v[e] = values ? s[0][j].v[e] : ds[0][j].v[e];
      put_tile(shared.weights, s, true);
      const Operand rows = values ? source<T>(in.d_o, b, seq.q0, head, seq.len_q, p.d_v, false) : source<T>(p.q, b, seq.q0, head, seq.len_q, p.d, false);
      value_product<T>(sum, rows, c0, q0, shared);
    }
  float factor[kRowSlots];
  fill_slots(factor, values ? inverse_of(p) : p.scale);
  scale_parts<T>(sum, factor);
  store_rows<T>(values ? out.dv : out.dk, b, kv_head, seq.k0 + k0, (p.thd ? seq.len_k : p.s_kv) - k0, values ? p.d_v : p.d, c0, sum, shared);
}

// dbias is owned by its elements: what batch entries, heads and rows that share a block of it give is computed again and summed in order.
struct BiasOut {
  char *base;
  DType dtype;
  int64_t b, h, q, k, blocks_q, blocks_k;
};
template <class T> __global__ void __launch_bounds__(kThreads) bias_gradient_kernel(Problem p, BackwardIn in, BiasOut out) {
  __shared__ Shared<T> shared;
  static_assert(2 * sizeof shared.a >= 64 * 65 * 4, "a block of sums fits");
  int64_t id = blockIdx.x;
  const int64_t k0 = id % out.blocks_k * kBlock, q_first = id / out.blocks_k % out.blocks_q * kBlock, ih = id / out.blocks_k / out.blocks_q % out.h;
  const int64_t ib = id / out.blocks_k / out.blocks_q / out.h;
  const bool one_row = out.q == 1;
  Piece sum[1][4];
  clear(sum);
  for (int64_t b = out.b == 1 ? 0 : ib; b < (out.b == 1 ? p.b : ib + 1); b++)
    for (int64_t head = out.h == 1 ? 0 : ih; head < (out.h == 1 ? p.h_q : ih + 1); head++) {
      const Sequence seq = sequence_of(p, b);
      for (int64_t q0 = one_row ? 0 : q_first; q0 < seq.len_q; q0 += kBlock) {
        int64_t lo, hi;
        keys_of_block(p, seq, q0, &lo, &hi);
        if (lo < k0 + kBlock && hi > k0) {
          Block block;
          fill_rows(p, b, head, q0, seq, block);
          Piece s[1][4], ds[1][4];
          gradient_tile<T>(p, in, block, k0, shared, s, ds);
#pragma unroll
          for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < kPiece; e++) sum[0][j].v[e] += ds[0][j].v[e];
        }
        if (!one_row) break;
      }
    }
  float *share = reinterpret_cast<float *>(shared.a);
  __syncthreads();
#pragma unroll
  for (int j = 0; j < 4; j++)
#pragma unroll
    for (int e = 0; e < kPiece; e++) share[(wave() * 16 + piece_row(e)) * 65 + j * 16 + piece_column(e)] = sum[0][j].v[e];
  __syncthreads();
  const float factor = p.bias_kind == NVTE_BIAS_PRE_SCALE ? p.scale : 1.f;
  for (int i = (int)threadIdx.x; i < (one_row ? kBlock : kBlock * kBlock); i += kThreads) {
    const int64_t q = q_first + i / kBlock, k = k0 + i % kBlock;
    if (q >= out.q || k >= out.k) continue;
    float v = share[i / kBlock * 65 + i % kBlock];
    for (int r = 1; one_row && r < kBlock; r++) v += share[r * 65 + i];
    store_float(out.base, out.dtype, ((ib * out.h + ih) * out.q + q) * out.k + k, v * factor);
  }
}

// delta[row] = sum(dO * O), 0 where nothing is kept. A wave a row.
__global__ void __launch_bounds__(kThreads) delta_kernel(Problem p, View d_o, View o, const float *stats, float *delta) {
  const int64_t row = (int64_t)blockIdx.x * (kThreads / kWave) + wave();
  if (row >= (p.thd ? 1 : p.b) * p.h_q * p.s_q) return;
  const int64_t at = row % p.s_q, head = row / p.s_q % p.h_q, b = row / p.s_q / p.h_q;
  float s = 0.f;
  if (stats[row] != kMinusInf)
    for (int64_t c = lane(); c < p.d_v; c += kWave)
      s = fmaf(load_any<false>(d_o.row(b, at, head), d_o.dtype, c * d_o.d), load_any<false>(o.row(b, at, head), o.dtype, c * o.d), s);
  s = wave_reduce(s, Add{});
  if (lane() == 0) delta[row] = s;
}
// The gradient of a head's softmax offset. Rows of no sequence have stats -inf, so they must not count: exp(offset + inf) * 0.
__global__ void __launch_bounds__(256) offset_gradient_kernel(Problem p, const float *stats, const float *delta, float *out) {
  const int64_t head = blockIdx.x, rows = (p.thd ? 1 : p.b) * p.s_q;
  double total = 0;
  for (int64_t i = threadIdx.x; i < rows; i += 256) {
    const int64_t at = (i / p.s_q * p.h_q + head) * p.s_q + i % p.s_q;
    if (stats[at] != kMinusInf) total += exp((double)p.sink[head] - stats[at]) * delta[at];
  }
  __shared__ double part[256];
  part[threadIdx.x] = total;
  __syncthreads();
  for (int n = 128; n; n >>= 1) {
    if ((int)threadIdx.x < n) part[threadIdx.x] += part[threadIdx.x + n];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[head] = (float)-part[0];
}

// THD: tokens of no sequence are zero (stats: -inf); the others are written afterwards.
__global__ void __launch_bounds__(256) fill_kernel(View v, int64_t tokens, int64_t heads, int64_t width) {
  for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < tokens * heads * width; i += (int64_t)gridDim.x * 256)
    store_float(v.row(0, i / width / heads, i / width % heads), v.dtype, i % width * v.d, 0.f);
}
__global__ void __launch_bounds__(256) fill_stats_kernel(float *stats, int64_t n) {
  for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < n; i += (int64_t)gridDim.x * 256) stats[i] = kMinusInf;
}

// ---- host ----

unsigned fill_blocks(int64_t n) { return (unsigned)(n > 256 * 2048 ? 2048 : gpu::ceil_div(n, 256)); }
void fill(const View &v, int64_t tokens, int64_t heads, int64_t width, hipStream_t stream) {
  if (tokens * heads * width > 0) fill_kernel<<<fill_blocks(tokens * heads * width), 256, 0, stream>>>(v, tokens, heads, width);
}

// Calls f(T{}) with the type of the products: f32 as soon as one of the tensors is.
template <class F> void visit_product(DType q, bool wide, F &&f) {
  if (wide || q == DType::f32) f(float{});
  else if (q == DType::f16) f(f16{});
  else f(bf16{});
}

constexpr int64_t kMostBlocks = INT32_MAX;
int64_t column_chunks(const Problem &p) { return gpu::ceil_div(p.d, kColumns) + gpu::ceil_div(p.d_v, kColumns); }

template <class Args> const char *refuse_size(const Args &a) {
  const Problem p = problem_of(a);
  const int64_t longest = p.s_q > p.s_kv ? p.s_q : p.s_kv;
  if ((double)gpu::ceil_div(longest, kBlock) * (double)p.h_q * (double)p.b * (double)column_chunks(p) > (double)kMostBlocks)
    return "more than 2^31 - 1 blocks of 64 rows";
  return nullptr;
}
const char *refuse_forward(const nvte_exec *, const void *args) {
  const auto &a = *static_cast<const nvte_attention_forward_args *>(args);
  if (given(a.page_table)) return "page_table: paged key/value caches are not built";
  return refuse_size(a);
}
const char *refuse_backward(const nvte_exec *, const void *args) {
  const auto &a = *static_cast<const nvte_attention_backward_args *>(args);
  if (given(a.dbias) && (double)gpu::ceil_div(a.dbias->data.shape[2], kBlock) * (double)gpu::ceil_div(a.dbias->data.shape[3], kBlock) *
                                (double)(a.dbias->data.shape[0] * a.dbias->data.shape[1]) > (double)kMostBlocks)
    return "dbias has more than 2^31 - 1 blocks of 64 x 64";
  return refuse_size(a);
}

nvte_status run_forward(const nvte_exec *e, const void *args) {
  const auto &a = *static_cast<const nvte_attention_forward_args *>(args);
  return gpu::guarded(e, [&]() -> nvte_status {
    const Problem p = problem_of(a);
    ForwardOut out = {view_of(a.o, axes_of(a.format)), given(a.stats) ? address_as<float>(a.stats->data) : nullptr,
                      gpu::ceil_div(p.s_q, kBlock), gpu::ceil_div(p.d_v, kColumns)};
    const hipStream_t stream = gpu::stream_of(*e);
    if (p.thd) {
      fill(out.o, p.s_q, p.h_q, p.d_v, stream);
      if (out.stats && p.s_q * p.h_q > 0) fill_stats_kernel<<<fill_blocks(p.s_q * p.h_q), 256, 0, stream>>>(out.stats, p.s_q * p.h_q);
    }
    if (gpu::flash_forward(*e, a)) return gpu::launched("attention_forward");
    const int64_t blocks = out.blocks * p.h_q * p.b * out.chunks;
    if (blocks > 0)
      visit_product(p.q.dtype, out.o.dtype == DType::f32, [&](auto t) { forward_kernel<decltype(t)><<<(unsigned)blocks, kHostThreads, 0, stream>>>(p, out); });
    return gpu::launched("attention_forward");
  });
}

int64_t stats_rows(const Problem &p) { return (p.thd ? 1 : p.b) * p.h_q * p.s_q; }

nvte_status workspace_backward(const nvte_exec *, const void *args, size_t *bytes) {
  *bytes = 2 * sizeof(float) * (size_t)stats_rows(problem_of(*static_cast<const nvte_attention_backward_args *>(args)));
  return NVTE_OK;
}

nvte_status run_backward(const nvte_exec *e, const void *args) {
  const auto &a = *static_cast<const nvte_attention_backward_args *>(args);
  return gpu::guarded(e, [&]() -> nvte_status {
    const Problem p = problem_of(a);
    const Axes x = axes_of(a.format);
    auto *delta = static_cast<float *>(e->workspace);
    const BackwardIn in = {view_of(a.d_o, x), address_as<const float>(a.stats->data), delta};
    BackwardOut out = {view_of(a.dq, x), view_of(a.dk, x), view_of(a.dv, x), 0, 0};
    const hipStream_t stream = gpu::stream_of(*e);
    if (p.thd) {
      fill(out.dq, p.s_q, p.h_q, p.d, stream);
      fill(out.dk, p.s_kv, p.h_kv, p.d, stream);
      fill(out.dv, p.s_kv, p.h_kv, p.d_v, stream);
    }
    const bool done = gpu::flash_backward(*e, a, delta + stats_rows(p), delta);
    if (const int64_t rows = done ? 0 : stats_rows(p))
      delta_kernel<<<(unsigned)gpu::ceil_div(rows, 4), kHostThreads, 0, stream>>>(p, in.d_o, view_of(a.o, x), in.stats, delta);
    if (given(a.dsoftmax_offset) && p.h_q > 0)
      offset_gradient_kernel<<<(unsigned)p.h_q, 256, 0, stream>>>(p, in.stats, delta, address_as<float>(a.dsoftmax_offset->data));
    if (done && !given(a.dbias)) return gpu::launched("attention_backward");
    const bool wide = in.d_o.dtype != p.q.dtype || out.dq.dtype != p.q.dtype || out.dk.dtype != p.q.dtype || out.dv.dtype != p.q.dtype;
    visit_product(p.q.dtype, wide, [&](auto t) {
      using T = decltype(t);
      out.blocks = gpu::ceil_div(p.s_q, kBlock), out.chunks = gpu::ceil_div(p.d, kColumns);
      if (const int64_t blocks = done ? 0 : out.blocks * p.h_q * p.b * out.chunks) query_gradient_kernel<T><<<(unsigned)blocks, kHostThreads, 0, stream>>>(p, in, out);
      out.blocks = gpu::ceil_div(p.s_kv, kBlock), out.chunks = gpu::ceil_div(p.d_v, kColumns);
      if (const int64_t blocks = done ? 0 : out.blocks * p.h_kv * p.b * (out.chunks + gpu::ceil_div(p.d, kColumns)))
        key_gradient_kernel<T><<<(unsigned)blocks, kHostThreads, 0, stream>>>(p, in, out);
      if (!given(a.dbias)) return;
      const DLTensor &d = a.dbias->data;
      const BiasOut bias = {address_as<char>(d), dtype_of(d.dtype), d.shape[0], d.shape[1], d.shape[2], d.shape[3],
                            gpu::ceil_div(d.shape[2], kBlock), gpu::ceil_div(d.shape[3], kBlock)};
      if (const int64_t blocks = bias.b * bias.h * bias.blocks_q * bias.blocks_k)
        bias_gradient_kernel<T><<<(unsigned)blocks, kHostThreads, 0, stream>>>(p, in, bias);
    });
    return gpu::launched("attention_backward");
  });
}

const nvte_implementation table[] = {
    {sizeof(nvte_implementation), "attention_forward", "gpu", 0, 0, refuse_forward, nullptr, run_forward},
    {sizeof(nvte_implementation), "attention_backward", "gpu", 0, 0, refuse_backward, workspace_backward, run_backward}};
}  // namespace
namespace gpu {
TE_GPU_IMPLEMENTATIONS(attention) = {table, 2};
}
}  // namespace te
