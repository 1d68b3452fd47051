// SPDX-License-Identifier: Apache-2.0
// Words of softmax: a cheap exponential for arguments up to 0, and the largest lane.
#pragma once
#include "cpu/vec.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

constexpr float kLog2e = 1.44269504f;

// 2^f, |f| <= 1/2: minimax polynomials that are exact at 0; relative error 2e-9, 1e-7 or 3e-6 (degree 6, 5, 4) before rounding.
template <int kDegree> TE_INLINE vf exp2_part(vf f) {
  vf p;
  if (kDegree == 6) {
    p = fma(set1(1.534581242592868e-4f), f, set1(1.3399930903688073e-3f));
    p = fma(p, f, set1(9.618489071726799e-3f));
    p = fma(p, f, set1(5.550328642129898e-2f));
    p = fma(p, f, set1(2.4022646248340607e-1f));
    p = fma(p, f, set1(6.931471824645996e-1f));
    p = fma(p, f, set1(1.f));
  } else if (kDegree == 5) {
    p = fma(set1(1.326472731e-3f), f, set1(9.671512991e-3f));
    p = fma(p, f, set1(5.550733581e-2f));
    p = fma(p, f, set1(2.402224243e-1f));
    p = fma(p, f, set1(6.931470037e-1f));
    p = fma(p, f, set1(1.f));
  } else {
    p = fma(set1(9.582852945e-3f), f, set1(5.590642616e-2f));
    p = fma(p, f, set1(2.402409911e-1f));
    p = fma(p, f, set1(6.931241751e-1f));
    p = fma(p, f, set1(1.f));
  }
  return p;
}
// 2^x up to x = 128.4 (inf from 127.5). Exactly 0 below -126.5; NaN stays NaN. The magic number leaves n + 127 in the low bits of z, which is 2^n once
// shifted.
template <int kDegree> TE_INLINE vf exp2_inside_fast(vf t) {  // -127 <= t
  const vf magic = set1(0x1.8p23f + 127.f), z = t + magic, f = t - (z - magic);
  return exp2_part<kDegree>(f) * floats(shl<23>(bits(z)));
}
template <int kDegree> TE_INLINE vf exp2_fast(vf x) { return exp2_inside_fast<kDegree>(max(set1(-127.f), x)); }

// e^x, 0 from about -88 down and inf from 88.8 up: the same with the argument reduced by two pieces of log2(e).
template <int kDegree> TE_INLINE vf exp_fast(vf x) {
  const vf magic = set1(0x1.8p23f + 127.f), c = min(set1(88.8f), max(set1(-88.02f), x)), z = fma(c, set1(kLog2e), magic), n = z - magic;
  return exp2_part<kDegree>(fma(c, set1(1.92596299e-8f), fma(c, set1(kLog2e), -n))) * floats(shl<23>(bits(z)));
}

// The hardware's prefetcher stops at each page, and arithmetic leaves it idle: asking for what comes a page later overlaps the two.
template <class X> TE_INLINE void fetch_ahead(const X *p) { __builtin_prefetch((const char *)p + 4096); }

// Largest lane, NaN ignored where another lane is not.
TE_INLINE float highest(vf a) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
  const __m256 y = _mm256_max_ps(_mm512_castps512_ps256(a.v[0]), _mm512_extractf32x8_ps(a.v[0], 1));
#else
  const __m256 y = _mm256_max_ps(a.v[0], a.v[1]);
#endif
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
#else
  __m128 x = _mm_max_ps(_mm_max_ps(a.v[0], a.v[1]), _mm_max_ps(a.v[2], a.v[3]));
#endif
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  x = _mm_max_ss(x, _mm_shuffle_ps(x, x, 1));
  return _mm_cvtss_f32(x);
}

}  // namespace
}  // namespace te::cpu::TE_CPU_ISA
