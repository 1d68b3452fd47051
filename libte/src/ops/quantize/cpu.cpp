// SPDX-License-Identifier: Apache-2.0
// Quantise: one pass that reads x once and writes codes row-wise, column-wise (through a tile that stays in the first cache), amax
// and column sums. Two shapes of work: flat runs (row-wise only, contiguous), and blocks of 512 rows, which are also the row blocks
// of the sums. With a column-wise output a block is 256 columns wide: its 256 pages of that side stay in the TLB.
#include "cpu/writer.h"
#include "libte/quantize.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

constexpr int64_t kStrip = 64, kTile = 256, kColumns = 1024, kFlat = 32768, kBlock = 512, kAheadBytes = 2048;

TE_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// 4 native vectors from 4 * kNative elements, in an order that in_order() undoes on their codes. Natural, but for bf16: taking the
// even and the odd elements of a vector apart costs one operation each.
template <class T> TE_INLINE void load4(const T *p, nf (&x)[4], ni (&sign)[4]) {
#pragma GCC unroll 4
  for (int g = 0; g < 4 / kParts; g++) {
    const vf v = load(p + 16 * g);
#pragma GCC unroll 4
    for (int q = 0; q < kParts; q++) x[kParts * g + q] = v.v[q];
  }
#pragma GCC unroll 4
  for (int q = 0; q < 4; q++) sign[q] = (ni)x[q];
}

// |x| * scale to codes, for a scale that is positive and finite: no product is then a NaN with a sign of its own.
template <class O> TE_INLINE ni codes(const nf (&magnitude)[4], nf scale, const ni (&sign)[4]) {
  nf a[4];
#pragma GCC unroll 4
  for (int q = 0; q < 4; q++) a[q] = magnitude[q] * scale;
  return n_fp8<O>(a, sign);
}

#if defined(__AVX2__)
// bf16: elements 2i and 2i + 1 of a register are the high halves of two f32.
template <class O> TE_INLINE ni codes_bf16(const bf16 *p, nf scale, nf (&max)[2]) {
  const ni r[2] = {*(const ni_mem1 *)p, *(const ni_mem1 *)(p + 2 * kNative)};
  ni w[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) {
    const nf even = (nf)((r[i] << 16) & 0x7fffffff), odd = (nf)(r[i] & 0x7fff0000);
    max[0] = n_max(even, max[0]);
    max[1] = n_max(odd, max[1]);
    w[i] = n_codes16<O>(n_pack32(n_minus_code<O>(even * scale), n_minus_code<O>(odd * scale)));
  }
  const ni c = n_packu16(w[0], w[1]), s = n_pack16(r[0], r[1]);
#if defined(__AVX512F__)
  const __m512i order = _mm512_set4_epi32(0x0f0b0e0a, 0x0d090c08, 0x07030602, 0x05010400);
  const ni t = n_sign8<O>((ni)_mm512_shuffle_epi8((__m512i)c, order), s);
  return (ni)_mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), (__m512i)t);
#else
  const __m256i order = _mm256_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15, 0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
  const ni t = n_sign8<O>((ni)_mm256_shuffle_epi8((__m256i)c, order), s);
  return (ni)_mm256_permute4x64_epi64((__m256i)t, 0xd8);
#endif
}
#endif

TE_INLINE void stream_native(void *p, ni v) {
#if defined(__AVX512F__)
  _mm512_stream_si512((__m512i *)p, (__m512i)v);
#elif defined(__AVX2__)
  _mm256_stream_si256((__m256i *)p, (__m256i)v);
#else
  _mm_stream_si128((__m128i *)p, (__m128i)v);
#endif
}

// A piece of the work: `rows` x n elements; strides are in bytes.
struct Run {
  const char *x;
  char *y;     // may be null
  char *copy;  // may be null
  int64_t x_ld, y_ld, copy_ld, rows, n;
  int64_t ahead;  // bytes to prefetch ahead of x
  float *sum;
  vf scale, max;
  bool fast;    // the scale is positive and finite
  bool stream;  // y goes past the caches
};

// Casts x to y and to `copy`; adds the rows of x to `sum`, where kSum.
template <class T, class O, bool kSum> TE_INLINE void run_row(const T *x, O *y, O *copy, Run &r) {
  constexpr int W = 4 * kNative;
  const int64_t n = r.n;
  float *sum = r.sum;
  int64_t j = 0;
  if constexpr (kIsFp8<O>) {
    if (r.fast) {
      const bool stream = y && r.stream && (uintptr_t)y % 64 == 0;
      const nf scale = r.scale.v[0];
      nf max[2] = {r.max.v[0], r.max.v[0]};
      for (; j + W <= n; j += W) {
        ni c;
        for (int o = 0; o < W * int(sizeof(T)); o += 64) __builtin_prefetch((const char *)(x + j) + r.ahead + o);
#if defined(__AVX2__)
        if constexpr (__is_same(T, bf16) && !kSum) {
          c = codes_bf16<O>(x + j, scale, max);
        } else
#endif
        {
          nf a[4];
          ni s[4];
          load4(x + j, a, s);
#pragma GCC unroll 4
          for (int q = 0; q < 4; q++) {
            if constexpr (kSum) {
              float *t = sum + j + q * kNative;
              *(nf_mem *)t = *(const nf_mem *)t + a[q];
            }
            a[q] = (nf)(s[q] & 0x7fffffff);
            max[q % 2] = n_max(a[q], max[q % 2]);
          }
          c = codes<O>(a, scale, s);
        }
        if (stream) stream_native(y + j, c);
        else if (y) *(ni_mem1 *)(y + j) = c;
        if (copy) *(ni_mem1 *)(copy + j) = c;
      }
      r.max.v[0] = n_max(max[0], max[1]);
    }
  }
  for (; j < n; j += 16) {
    const int m = int(smaller(16, n - j));
    const vf v = load(x + j, m);  // absent lanes are 0: they do not disturb amax
    if constexpr (kSum) store(sum + j, load((const float *)sum + j, m) + v, m);
    r.max = amax(r.max, v);
    const vf q = kIsFp8<O> ? v * r.scale : v;
    if (y) store(y + j, q, m);
    if (copy) store(copy + j, q, m);
  }
}
template <class T, class O, bool kSum> void run(Run &r) {
  for (int64_t i = 0; i < r.rows; i++)
    run_row<T, O, kSum>((const T *)(r.x + i * r.x_ld), (O *)(r.y ? r.y + i * r.y_ld : nullptr), (O *)(r.copy ? r.copy + i * r.copy_ld : nullptr), r);
}
typedef void (*RunFunction)(Run &r);

RunFunction run_function(DType x, DType y, bool sum) {
  RunFunction f = nullptr;
  visit_float(x, [&](auto t) {
    visit_any(y, [&](auto o) { f = sum ? run<decltype(t), decltype(o), true> : run<decltype(t), decltype(o), false>; });
  });
  return f;
}

struct Work {
  Output out;
  const char *x;
  RowIndex x_rows;
  int64_t x_bytes;
  RunFunction run;
  Run start;
  int64_t block;  // rows of a chunk
  float *sums;    // [blocks, K], or null
};

// Rows [row0, row0 + rows) x columns [column0, column0 + columns), rows <= kStrip, columns <= kTile where there is a columnwise side.
void tile(Work &w, char *buffer, int64_t row0, int64_t rows, int64_t column0, int64_t columns, float *sum, Run &r) {
  Output &out = w.out;
  constexpr int kAhead = 4;  // rows; runs of 1 KB are too short for the hardware's prefetch
  const bool uniform = w.x_rows.uniform && out.index.uniform;
  r.rows = uniform ? rows : 1;
  r.n = columns;
  r.sum = sum;
  r.x_ld = w.x_rows.stride * w.x_bytes;
  r.y_ld = out.index.stride * out.bytes;
  r.copy_ld = kTile * out.bytes;
  r.ahead = kAhead * r.x_ld;
  for (int64_t i = 0; i < rows; i += r.rows) {
    r.x = w.x + (w.x_rows(row0 + i) + column0) * w.x_bytes;
    r.y = out.data ? out.data + (out.index(row0 + i) + column0) * out.bytes : nullptr;
    r.copy = out.columnwise ? buffer + i * r.copy_ld : nullptr;
    w.run(r);
  }
  if (!out.columnwise) return;
  const int line = 64 / out.bytes;
  for (int64_t i = 0; i < rows; i += line) {
    const char *p[64];
    const int n = int(smaller(line, rows - i));
    for (int q = 0; q < line; q++) p[q] = buffer + (q < n ? i + q : 0) * r.copy_ld;
    transpose_strip_any(out.bytes, p, n, columns, out.columnwise + column0 * out.columnwise_ld + (row0 + i) * out.bytes,
                        out.columnwise_ld, out.stream);
  }
}

// A flat run: chunk c of x and y seen as one row.
void flat(Work &w, int64_t c) {
  Run r = w.start;
  const int64_t at = c * kFlat;
  r.x = w.x + at * w.x_bytes;
  r.y = w.out.data + at * w.out.bytes;
  r.rows = 1;
  r.n = smaller(kFlat, w.out.M * w.out.K - at);
  r.ahead = kAheadBytes;
  w.run(r);
  merge_max(&w.out.max_bits, r.max);
  if (w.out.stream) _mm_sfence();
}

// Block of rows and columns c; `across` of them, `width` columns each, side by side.
void block(Work &w, int64_t across, int64_t width, int64_t c) {
  Run r = w.start;
  alignas(64) char buffer[kStrip * kTile * 4];
  const int64_t K = w.out.K, b = c / across, row0 = b * w.block, row1 = smaller(w.out.M, row0 + w.block);
  const int64_t column = c % across * width, columns = smaller(width, K - column);
  float *sums = w.sums ? w.sums + b * K + column : nullptr;
  if (sums) memset(sums, 0, size_t(columns) * sizeof(float));
  const int64_t step = w.out.columnwise ? kTile : kColumns;
  for (int64_t i = row0; i < row1; i += kStrip)
    for (int64_t j = 0; j < columns; j += step)
      tile(w, buffer, i, smaller(kStrip, row1 - i), column + j, smaller(step, columns - j), sums ? sums + j : nullptr, r);
  merge_max(&w.out.max_bits, r.max);
  if (w.out.stream) _mm_sfence();
}

// The tree over the row blocks, and the one rounding.
bool write_sums(const Work &w, int64_t blocks, nvte_tensor &dbias) {
  const int64_t K = w.out.K;
  const DType type = dtype_of(dbias.data.dtype);
  return parallel_for((K + kColumns - 1) / kColumns, blocks * K * 4, [&](int64_t c) {
    for (int64_t j = c * kColumns; j < smaller(K, (c + 1) * kColumns); j += 16) {
      const int n = int(smaller(16, K - j));
      for (int64_t step = 1; step < blocks; step *= 2)
        for (int64_t b = 0; b + step < blocks; b += 2 * step) {
          float *p = w.sums + b * K + j;
          store(p, load((const float *)p, n) + load((const float *)p + step * K, n), n);
        }
      const vf v = blocks ? load((const float *)w.sums + j, n) : zero();
      visit_float(type, [&](auto t) { store(address_as<decltype(t)>(dbias.data) + j, v, n); });
    }
  });
}

}  // namespace

nvte_status quantize(const nvte_exec &, const nvte_quantize_args &a) {
  if (noop_set(a.noop)) return NVTE_OK;
  const DLTensor &x = a.x->data;
  const bool want_sums = a.dbias && present(a.dbias->data);
  Work w = {Output(*a.y), (const char *)address(x), row_index(x), element_bytes(x), nullptr, {}, kBlock, nullptr};
  const int64_t M = w.out.M, K = w.out.K, cost = M * K * (w.x_bytes + w.out.bytes);
  w.run = run_function(dtype_of(x.dtype), w.out.dtype, want_sums);
  w.start.scale = set1(w.out.scale);
  w.start.fast = w.out.scale > 0 && w.out.scale <= 3.40282347e38f;
  w.start.stream = w.out.stream;
  int64_t blocks = 0;
  if (want_sums) {
    // higher blocks where there would be over 256 of them
    w.block = (M + 256 * kBlock - 1) / (256 * kBlock) * kBlock;
    if (w.block < kBlock) w.block = kBlock;
    blocks = (M + w.block - 1) / w.block;
    w.sums = (float *)scratch(6, size_t(blocks * K) * sizeof(float) + 64);
    if (!w.sums) return fail(NVTE_ERR_OUT_OF_MEMORY, "no memory for the column sums of %lld row blocks", (long long)blocks);
  }
  bool ok = true;
  if (M == 0 || K == 0) {
    // nothing to read
  } else if (!w.out.columnwise && !want_sums && is_contiguous(x) && is_contiguous(a.y->data)) {
    ok = parallel_for((M * K + kFlat - 1) / kFlat, cost, [&](int64_t c) { flat(w, c); });
  } else {
    const int64_t width = kColumns, across = (K + width - 1) / width;
    ok = parallel_for((M + w.block - 1) / w.block * across, cost, [&](int64_t c) { block(w, across, width, c); });
  }
  if (ok && want_sums) ok = write_sums(w, blocks, *a.dbias);
  if (!ok) return fail(NVTE_ERR_OUT_OF_MEMORY, "a worker thread failed");
  return w.out.finish();
}

}  // namespace te::cpu::TE_CPU_ISA
