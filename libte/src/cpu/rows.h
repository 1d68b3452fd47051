// SPDX-License-Identifier: Apache-2.0
// What the row-wise operators (norms, activations, softmax) share: rows of any float type as f32 and back, streaming stores, and
// column sums. scratch(1) of the calling thread holds the partial column sums.
#pragma once
#include "cpu/writer.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

#define TE_FLAT __attribute__((always_inline))  // after a lambda's parameters

static inline bool given(const nvte_tensor *t) { return t && present(t->data); }
// Terms of an exponential that a plain output of this kind needs; 0 for codes, whose bits are promised.
static inline int exp_degree(const nvte_tensor &y) { return is_fp8(dtype_of(y.data.dtype)) || !present(y.data) ? 0 : element_bytes(y.data) == 2 ? 4 : 6; }
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
static __attribute__((noinline, unused)) const char *row_of(const nvte_tensor *t, const RowIndex &index, int64_t r) {
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

// The sum of term(j) over a row; four accumulators and a fixed tree.
template <class F> TE_INLINE float sum_row(int64_t h, F &&term) {
  vf a[4] = {zero(), zero(), zero(), zero()};
  int64_t j = 0;
  for (; j + 64 <= h; j += 64)
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) a[k] = a[k] + term(j + 16 * k);
  for (; j < h; j += 16) a[0] = a[0] + term(j);
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
#if defined(__AVX512BW__)
TE_INLINE void store_stream(bf16 *p, vf v) { _mm256_stream_si256((__m256i *)p, to_bf16(v)); }
#endif
template <class T> TE_INLINE void store_stream(T *p, vf v) {
  alignas(64) T t[16];
  store((T *)t, v);
#if defined(__AVX2__)
  _mm256_stream_si256((__m256i *)p, *(const __m256i *)t);
#else
  for (int i = 0; i < 2; i++) _mm_stream_si128((__m128i *)p + i, *((const __m128i *)t + i));
#endif
}

// n values at column j of row i. `stream`: past the caches (see can_stream; n a multiple of 16).
static __attribute__((noinline, unused)) void write_any(Block &b, int64_t i, int64_t j, const float *v, int64_t n, bool stream = false) {
  char *p = b.row_address(i) + j * b.bytes;
  if (stream)
    visit_float(b.dtype, [&](auto type) {
      auto *y = (decltype(type) *)p;
      if (!present(b.out->y->amax)) {
        for (int64_t k = 0; k < n; k += 16) store_stream(y + k, load(v + k));
        return;
      }
      vf top = b.max;
      for (int64_t k = 0; k < n; k += 16) {
        const vf x = load(v + k);
        top = amax(top, x);
        store_stream(y + k, x);
      }
      b.max = top;
    });
  else
    visit_any(b.dtype, [&](auto type) {
      Block c = b;  // a copy that nothing else sees keeps its maximum in registers
      c.put_many((decltype(type) *)p, v, n);
      b.max = c.max;
    });
}
// True when whole rows of `out` can be written past the caches in whole vectors.
static inline bool can_stream(const Output &out, int64_t h) {
  return out.stream && !out.columnwise && out.bytes > 1 && out.index.uniform && h % 16 == 0 && (uintptr_t)out.data % 64 == 0 &&
         (out.index.stride * out.bytes) % 64 == 0;
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

}  // namespace
}  // namespace te::cpu::TE_CPU_ISA
