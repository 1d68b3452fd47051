// SPDX-License-Identifier: Apache-2.0
// Dequantise. A flat run where x.data is there; otherwise x.columnwise is transposed a tile at a time, in the cache.
#include "cpu/rows.h"
#include "libte/quantize.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

constexpr int64_t kFlat = 32768, kStrip = 64, kTile = 256, kAheadBytes = 1024;

struct Scale {
  float exact;  // scale_inv
  vf unit;      // scale_inv * kUnit, where `folds`
  bool folds;   // it is finite: (x / kUnit) * (scale_inv * kUnit) is x * scale_inv rounded once, as both factors are exact
};

#if defined(__AVX2__)
// Without the NaN test of encode(): a NaN made from a code has no low mantissa bits that the rounding could carry out of.
TE_INLINE ni round_bf16(nf x) { return (ni)x + 0x7fff + (ni)(((nu)x >> 16) & 1); }
TE_INLINE ni n_load(const void *p) { return *(const ni_mem1 *)p; }

// Interleaves even and odd elements (f32 in the high halves) to bf16.
TE_INLINE ni pair_bf16(nf even, nf odd) {
  const ni a = (ni)((nu)round_bf16(even) >> 16), b = round_bf16(odd);
#if defined(__AVX512F__)
  return (ni)_mm512_mask_blend_epi16(0xaaaaaaaa, (__m512i)a, (__m512i)b);
#else
  return (ni)_mm256_blend_epi16((__m256i)a, (__m256i)b, 0xaa);
#endif
}
TE_INLINE void widen_f16(ni h, nf (&f)[2]) {
#if defined(__AVX512F__)
  f[0] = _mm512_cvtph_ps(_mm512_castsi512_si256((__m512i)h));
  f[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64((__m512i)h, 1));
#else
  f[0] = _mm256_cvtph_ps(_mm256_castsi256_si128((__m256i)h));
  f[1] = _mm256_cvtph_ps(_mm256_extracti128_si256((__m256i)h, 1));
#endif
}
TE_INLINE ni n_shl16(ni a, int n) {
#if defined(__AVX512F__)
  return (ni)_mm512_slli_epi16((__m512i)a, n);
#else
  return (ni)_mm256_slli_epi16((__m256i)a, n);
#endif
}
TE_INLINE ni n_sar16(ni a, int n) {
#if defined(__AVX512F__)
  return (ni)_mm512_srai_epi16((__m512i)a, n);
#else
  return (ni)_mm256_srai_epi16((__m256i)a, n);
#endif
}
TE_INLINE bool any(ni mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#else
  return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#endif
}

// 4 * kNative codes to bf16; false, with nothing done, where E4M3 has a NaN among them.
template <class T> TE_INLINE bool codes_to_bf16(const T *x, bf16 *y, nf scale, bool stream) {
  const ni c = n_load(x);
  ni even, odd;  // f16 bits of codes 2i and 2i + 1
  if constexpr (__is_same(T, e4m3)) {
    if (__builtin_expect(any(n_equal8(c | n_set8(0x80), n_set8(0xff))), 0)) return false;
    // the sign, an exponent bit that is 0, the seven bits of magnitude
    even = n_sar16(n_shl16(c, 8), 1) & n_set16(0xbf80);
    odd = n_sar16(c, 1) & n_set16(0xbf80);
  } else {
    even = n_shl16(c, 8);
    odd = c & n_set16(0xff00);
  }
  nf e[2], o[2];
  widen_f16(even, e);
  widen_f16(odd, o);
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) {
    const ni v = pair_bf16(e[i] * scale, o[i] * scale);
    char *p = (char *)y + i * kNativeBytes;
#if defined(__AVX512F__)
    if (stream) _mm512_stream_si512((__m512i *)p, (__m512i)v);
#else
    if (stream) _mm256_stream_si256((__m256i *)p, (__m256i)v);
#endif
    else *(ni_mem1 *)p = v;
  }
  return true;
}
#endif

template <class T> TE_INLINE vf scaled(const T *x, int n, const Scale &s) {
  const vf v = load(x, n);
  return v * set1(s.exact);
}

// n codes of a row. stream: y goes past the caches.
template <class T, class O> void run(const char *x_, char *y_, int64_t n, const Scale &s, bool stream) {
  const T *x = (const T *)x_;
  O *y = (O *)y_;
  stream = stream && (uintptr_t)y % 64 == 0;
  int64_t j = 0;
  if (s.folds) {
#if defined(__AVX2__)
    if constexpr (__is_same(O, bf16) && !kIsFnuz<T>) {
      for (; j + 4 * kNative <= n; j += 4 * kNative) {
        __builtin_prefetch(x_ + j + kAheadBytes);
        if (codes_to_bf16(x + j, y + j, s.unit.v[0], stream)) continue;
        for (int q = 0; q < 4 * kNative; q += 16) store(y + j + q, load_unit(x + j + q) * s.unit);
      }
    }
#endif
    for (; j + 64 <= n; j += 64) {
      __builtin_prefetch(x_ + j + kAheadBytes);
#pragma GCC unroll 4
      for (int q = 0; q < 64; q += 16) {
        const vf v = load_unit(x + j + q) * s.unit;
        if constexpr (__is_same(O, float)) {
          if (stream) {
            store_stream(y + j + q, v);
            continue;
          }
        }
        store(y + j + q, v);
      }
    }
  }
  for (; j < n; j += 16) {
    const int m = int(n - j < 16 ? n - j : 16);
    store(y + j, scaled(x + j, m, s), m);
  }
}
typedef void (*RunFunction)(const char *x, char *y, int64_t n, const Scale &s, bool stream);

}  // namespace

nvte_status dequantize(const nvte_exec &, const nvte_dequantize_args &a) {
  const bool row = present(a.x->data);
  const DLTensor &x = row ? a.x->data : a.x->columnwise, &y = a.y->data;
  const DLTensor &inverse = !row && present(a.x->columnwise_scale_inv) ? a.x->columnwise_scale_inv : a.x->scale_inv;
  const int64_t M = rows(a.x->data), K = columns(a.x->data), y_bytes = element_bytes(y), cost = M * K * (1 + y_bytes);
  if (M == 0 || K == 0) return NVTE_OK;
  RunFunction run_row = nullptr;
  Scale s = {*address_as<const float>(inverse), zero(), false};
  visit_fp8(dtype_of(x.dtype), [&](auto t) {
    typedef decltype(t) T;
    const float unit = s.exact * kUnit<T>;
    s.unit = set1(unit);
    s.folds = unit - unit == 0.f;
    visit_float(dtype_of(y.dtype), [&](auto o) { run_row = run<T, decltype(o)>; });
  });
  const char *from = (const char *)address(x);
  char *to = (char *)address(y);
  const bool stream = M * K * y_bytes >= kStreamBytes;
  bool ok;
  if (row) {
    ok = parallel_for((M * K + kFlat - 1) / kFlat, cost, [&](int64_t c) {
      const int64_t at = c * kFlat;
      run_row(from + at, to + at * y_bytes, M * K - at < kFlat ? M * K - at : kFlat, s, stream);
      if (stream) _mm_sfence();
    });
  } else {
    // [K, M]: strips of 64 of its rows are 64 columns of y
    const int64_t ld = stride_of(x, 0), across = (M + kTile - 1) / kTile;
    ok = parallel_for((K + kStrip - 1) / kStrip * across, cost, [&](int64_t c) {
      alignas(64) char tile[kTile * kStrip];
      const int64_t k0 = c / across * kStrip, m0 = c % across * kTile;
      const int64_t n = K - k0 < kStrip ? K - k0 : kStrip, m = M - m0 < kTile ? M - m0 : kTile;
      const char *p[kStrip];
      for (int64_t i = 0; i < kStrip; i++) p[i] = from + (k0 + (i < n ? i : 0)) * ld + m0;
      transpose_strip<1>(p, int(n), m, tile, kStrip, false);
      for (int64_t i = 0; i < m; i++) run_row(tile + i * kStrip, to + ((m0 + i) * K + k0) * y_bytes, n, s, stream && n == kStrip);
      if (stream) _mm_sfence();
    });
  }
  return ok ? NVTE_OK : fail(NVTE_ERR_OUT_OF_MEMORY, "a worker thread failed");
}

}  // namespace te::cpu::TE_CPU_ISA
