// SPDX-License-Identifier: Apache-2.0
// Writing a `quantized` output y (f32, f16, bf16 or an fp8 type; row-wise, column-wise or both) from f32 values:
//     Output out(*a.y);
//     parallel_for(ceil(M / 64), cost, [&](int64_t c) {
//       Block b = out.begin(64 * c, min(64, M - 64 * c));       // whole rows; begin(r, n, column, columns) = a tile (GEMM)
//       if (!b.ok) return;                                       // out of memory: finish() says so
//       for (int64_t i = 0; i < b.rows; i++)
//         b.write(i, j, values, n);                              // n f32 values at column j: any dtype, or, T known (visit_any):
//         //  T *p = b.row<T>(i);  b.put(p + j, v);  b.put(p + j, v, n);  b.put64(p + j, four_v);
//       out.end(b);                                              // transposes the block into y.columnwise, merges amax
//     });
//     return out.finish();                                       // amax and scale_inv; call it for empty y too
// Rows of a block count from its own first row and column. Element (i, j) is written once. Blocks may be any tiling of y; 64
// rows a block make whole cache lines of the columnwise side. scratch(7) belongs to this file.
// Rules: fp8 gets v * scale and amax of v; f32, f16, bf16 get v and amax of the stored value, which is the stored amax of v,
// since rounding is monotone. transpose_strip<B> is also the core of the transpose operator.
#pragma once
#include "cpu/vec.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

constexpr int kNativeBytes = 4 * kNative;

// Interleaves the low / high halves of each 128-bit lane, elements of B bytes.
#if defined(__AVX512F__)
#define TE_UNPACK(half, w) (ni)_mm512_unpack##half##_epi##w((__m512i)a, (__m512i)b)
#elif defined(__AVX2__)
#define TE_UNPACK(half, w) (ni)_mm256_unpack##half##_epi##w((__m256i)a, (__m256i)b)
#else
#define TE_UNPACK(half, w) (ni)_mm_unpack##half##_epi##w((__m128i)a, (__m128i)b)
#endif
template <int B> TE_INLINE ni unpack_low(ni a, ni b) {
  if constexpr (B == 1) return TE_UNPACK(lo, 8);
  else if constexpr (B == 2) return TE_UNPACK(lo, 16);
  else if constexpr (B == 4) return TE_UNPACK(lo, 32);
  else return TE_UNPACK(lo, 64);
}
template <int B> TE_INLINE ni unpack_high(ni a, ni b) {
  if constexpr (B == 1) return TE_UNPACK(hi, 8);
  else if constexpr (B == 2) return TE_UNPACK(hi, 16);
  else if constexpr (B == 4) return TE_UNPACK(hi, 32);
  else return TE_UNPACK(hi, 64);
}
#undef TE_UNPACK

// Stores 128-bit lane `lane` of a.
template <int Lane> TE_INLINE void store_lane(char *p, ni a) {
#if defined(__AVX512F__)
  _mm_storeu_si128((__m128i *)p, _mm512_extracti32x4_epi32((__m512i)a, Lane));
#elif defined(__AVX2__)
  _mm_storeu_si128((__m128i *)p, _mm256_extracti128_si256((__m256i)a, Lane));
#else
  _mm_storeu_si128((__m128i *)p, (__m128i)a);
#endif
}

// Transposes N = 16 / B rows of one native vector each, N x N tiles side by side: column c (c < kNativeBytes / B) becomes 16 bytes
// at tile + c * 64. log2 N perfect shuffles transpose a square (each moves one bit of the row index into the column index).
template <int B> TE_INLINE void transpose_tile(const char *const *rows, int64_t offset, char *tile) {
  constexpr int N = 16 / B;
  ni a[N], b[N];
#pragma GCC unroll 16
  for (int i = 0; i < N; i++) a[i] = *(const ni_mem1 *)(rows[i] + offset);
#pragma GCC unroll 4
  for (int n = N; n > 1; n /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < N / 2; i++) {
      b[2 * i] = unpack_low<B>(a[i], a[i + N / 2]);
      b[2 * i + 1] = unpack_high<B>(a[i], a[i + N / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; i++) a[i] = b[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < N; i++) {
    store_lane<0>(tile + 64 * i, a[i]);
    if constexpr (kNative >= 8) store_lane<kNative >= 8>(tile + 64 * (N + i), a[i]);
    if constexpr (kNative == 16) {
      store_lane<kNative == 16 ? 2 : 0>(tile + 64 * (2 * N + i), a[i]);
      store_lane<kNative == 16 ? 3 : 0>(tile + 64 * (3 * N + i), a[i]);
    }
  }
}

// One 64-byte line, past the caches where `stream` (dst 64-byte aligned then).
TE_INLINE void copy_line(char *dst, const char *src, bool stream) {
#pragma GCC unroll 4
  for (int i = 0; i < 64; i += kNativeBytes) {
    const ni v = *(const ni_mem1 *)(src + i);
    if (!stream) *(ni_mem1 *)(dst + i) = v;
#if defined(__AVX512F__)
    else _mm512_stream_si512((__m512i *)(dst + i), (__m512i)v);
#elif defined(__AVX2__)
    else _mm256_stream_si256((__m256i *)(dst + i), (__m256i)v);
#else
    else _mm_stream_si128((__m128i *)(dst + i), (__m128i)v);
#endif
  }
}

// dst[c * ld + r] = rows[r][c] for r < n <= 64 / B and c < columns; elements of B bytes, ld in bytes. `rows` has 64 / B entries,
// those from n on readable (say rows[0]). stream: whole lines go past the caches; the caller ends with an sfence.
template <int B>
static __attribute__((noinline, unused)) void transpose_strip(const char *const *rows, int n, int64_t columns, char *dst, int64_t ld,
                                                             bool stream) {
  constexpr int N = 16 / B, kRows = 64 / B, kColumns = kNativeBytes / B;
  alignas(64) char tile[kColumns * 64];
  alignas(64) char narrow[kRows * kNativeBytes];
  const char *narrow_rows[kRows];
  if (columns < kColumns) {  // too narrow for a native load: the rows move to where one is allowed
    for (int r = 0; r < n; r++) memcpy(narrow + r * kNativeBytes, rows[r], size_t(columns * B));
    for (int r = 0; r < kRows; r++) narrow_rows[r] = narrow + (r < n ? r : 0) * kNativeBytes;
    rows = narrow_rows;
  }
  const bool whole = n == kRows;
  const int width = columns < kColumns ? int(columns) : kColumns;
  stream = stream && whole && ((uintptr_t)dst % 64 == 0) && ld % 64 == 0;
  for (int64_t c = 0; c < columns; c += kColumns) {
    if (c > columns - width) c = columns - width;  // the last tile overlaps its neighbour: the same bytes again
    for (int r = 0; r < n; r += N) transpose_tile<B>(rows + r, c * B, tile + r * B);
    char *d = dst + c * ld;
    if (whole) for (int i = 0; i < width; i++) copy_line(d + i * ld, tile + 64 * i, stream);
    else if (n == N) for (int i = 0; i < width; i++) memcpy(d + i * ld, tile + 64 * i, 16);
    else for (int i = 0; i < width; i++) memcpy(d + i * ld, tile + 64 * i, size_t(n * B));
  }
}
static inline __attribute__((unused)) void transpose_strip_any(int bytes, const char *const *rows, int n, int64_t columns, char *dst,
                                                               int64_t ld, bool stream) {
  switch (bytes) {
    case 1: return transpose_strip<1>(rows, n, columns, dst, ld, stream);
    case 2: return transpose_strip<2>(rows, n, columns, dst, ld, stream);
    case 4: return transpose_strip<4>(rows, n, columns, dst, ld, stream);
    default: return transpose_strip<8>(rows, n, columns, dst, ld, stream);
  }
}

// Merges a thread's magnitudes into a shared maximum; bit patterns of non-negative floats are ordered as the floats are.
TE_INLINE void merge_max(uint32_t *bits, vf magnitudes) {
  const float m = reduce_max(magnitudes);
  uint32_t u, old = __atomic_load_n(bits, __ATOMIC_RELAXED);
  memcpy(&u, &m, 4);
  while (u > old && !__atomic_compare_exchange_n(bits, &old, u, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

// Outputs of this many bytes leave the caches before anybody reads them: non-temporal stores save the read for ownership.
constexpr int64_t kStreamBytes = 8 << 20;

struct Output;

// A tile of an output, owned by one thread.
struct Block {
  Output *out;
  int64_t row0, rows, column0, columns;
  bool ok;
  DType dtype;
  int bytes;
  char *base;       // element (0, 0)
  int64_t ld;       // bytes between rows, where `index` is not needed
  const RowIndex *index;
  vf scale, max;

  TE_INLINE char *row_address(int64_t i) const;
  template <class T> TE_INLINE T *row(int64_t i) const { return (T *)row_address(i); }

  template <class T> TE_INLINE void put(T *p, vf v) {
    max = amax(max, v);
    if constexpr (sizeof(T) == 1) v = v * scale;
    store(p, v);
  }
  template <class T> TE_INLINE void put(T *p, vf v, int n) {
    v = keep_first(v, n, 0.f);
    max = amax(max, v);
    if constexpr (sizeof(T) == 1) v = v * scale;
    store(p, v, n);
  }
  template <class T> TE_INLINE void put64(T *p, const vf (&v)[4]) {
    if constexpr (kIsFp8<T>) {
#pragma GCC unroll 4
      for (int g = 0; g < kParts; g++) {
        nf a[4];
        ni s[4];
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++) {
          const int n = 4 * g + q;
          const nf x = v[n / kParts].v[n % kParts];
          max.v[g] = n_max((nf)((ni)x & 0x7fffffff), max.v[g]);
          s[q] = (ni)(x * scale.v[0]);
          a[q] = (nf)(s[q] & 0x7fffffff);
        }
        *(ni_mem1 *)(p + 4 * kNative * g) = n_fp8<T>(a, s);
      }
    } else {
      for (int i = 0; i < 4; i++) put(p + 16 * i, v[i]);
    }
  }
  template <class T> TE_INLINE void put_many(T *p, const float *v, int64_t n) {
    int64_t j = 0;
    for (; j + 64 <= n; j += 64) {
      const vf x[4] = {load(v + j), load(v + j + 16), load(v + j + 32), load(v + j + 48)};
      put64(p + j, x);
    }
    for (; j + 16 <= n; j += 16) put(p + j, load(v + j));
    if (j < n) put(p + j, load(v + j, int(n - j)), int(n - j));
  }
  // n values at column j of row i, whatever the dtype.
  __attribute__((unused)) void write(int64_t i, int64_t j, const float *v, int64_t n) {
    char *p = row_address(i) + j * bytes;
    visit_any(dtype, [&](auto t) { put_many((decltype(t) *)p, v, n); });
  }
};

// An output, shared by the threads of a call.
struct Output {
  const nvte_tensor *y;
  DType dtype;
  int bytes;
  int64_t M, K;      // the flat 2-D view
  char *data;        // null: column-wise only
  RowIndex index;
  char *columnwise;  // null: row-wise only
  int64_t columnwise_ld;  // bytes
  float scale;
  bool stream, failed;
  uint32_t max_bits;

  explicit Output(const nvte_tensor &t) {
    y = &t;
    dtype = dtype_of(present(t.data) ? t.data.dtype : t.columnwise.dtype);
    bytes = dtype == DType::f32 ? 4 : dtype == DType::f16 || dtype == DType::bf16 ? 2 : 1;
    M = te::rows(t.data);
    K = te::columns(t.data);
    data = present(t.data) ? (char *)address(t.data) : nullptr;
    index = row_index(t.data);
    columnwise = present(t.columnwise) ? (char *)address(t.columnwise) : nullptr;
    columnwise_ld = columnwise ? bytes * stride_of(t.columnwise, 0) : 0;
    scale = bytes == 1 && t.scaling == NVTE_SCALING_TENSOR && present(t.scale) ? *address_as<const float>(t.scale) : 1.f;
    stream = M * K * bytes >= kStreamBytes;
    failed = false;
    max_bits = 0;
  }

  TE_INLINE Block begin(int64_t row0, int64_t rows) { return begin(row0, rows, 0, K); }
  __attribute__((unused)) Block begin(int64_t row0, int64_t rows, int64_t column0, int64_t columns) {
    Block b = {this, row0, rows, column0, columns, true, dtype, bytes, nullptr, 0, nullptr, set1(scale), zero()};
    if (data && index.uniform) {
      b.ld = index.stride * bytes;
      b.base = data + row0 * b.ld + column0 * bytes;
    } else if (data) {
      b.index = &index;
    } else {
      b.ld = columns * bytes;
      b.base = (char *)scratch(7, size_t(rows * b.ld));
      b.ok = b.base != nullptr;
      if (!b.ok) __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
    }
    return b;
  }

  __attribute__((unused)) void end(const Block &b) {
    merge_max(&max_bits, b.max);
    if (!columnwise) return;
    const int strip = 64 / bytes;
    for (int64_t r = 0; r < b.rows; r += strip) {
      const char *rows[64];
      const int n = int(b.rows - r < strip ? b.rows - r : strip);
      for (int i = 0; i < strip; i++) rows[i] = b.row_address(i < n ? r + i : 0);
      transpose_strip_any(bytes, rows, n, b.columns, columnwise + b.column0 * columnwise_ld + (b.row0 + r) * bytes, columnwise_ld, stream);
    }
    if (stream) _mm_sfence();
  }

  __attribute__((unused)) nvte_status finish() {
    if (failed) return fail(NVTE_ERR_OUT_OF_MEMORY, "no memory for a scratch block of the column-wise output");
    if (present(y->amax)) {
      float m;
      memcpy(&m, &max_bits, 4);
      if (dtype == DType::f16) m = to_f32(from_f32<f16>(m));
      if (dtype == DType::bf16) m = to_f32(from_f32<bf16>(m));
      float *p = address_as<float>(y->amax);
      if (!(y->flags & NVTE_TENSOR_AMAX_ACCUMULATE) || !(*p >= m)) *p = m;
    }
    if (bytes == 1) {
      const float inverse = 1.f / scale;
      if (present(y->scale_inv)) *address_as<float>(y->scale_inv) = inverse;
      if (present(y->columnwise_scale_inv)) *address_as<float>(y->columnwise_scale_inv) = inverse;
    }
    return NVTE_OK;
  }
};

TE_INLINE char *Block::row_address(int64_t i) const {
  return index ? out->data + ((*index)(row0 + i) + column0) * bytes : base + i * ld;
}

}  // namespace
}  // namespace te::cpu::TE_CPU_ISA
