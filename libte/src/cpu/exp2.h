// SPDX-License-Identifier: Apache-2.0
// Words of softmax: a cheap exponential for arguments up to 0, and the largest lane.
#pragma once
#include "cpu/vec.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

constexpr float kLog2e = 1.44269504f;

// 2^x for x <= 0 (or a little above): minimax polynomials on [-1/2, 1/2] (Remez), relative error 2e-9 or 3e-6 before rounding.
// Exactly 0 below -126.5; NaN stays NaN. The magic number leaves n + 127 in the low bits of z, which is 2^n once shifted.
template <int kDegree> TE_INLINE vf exp2_fast(vf x) {
  const vf magic = set1(0x1.8p23f + 127.f), t = max(set1(-127.f), x), z = t + magic, f = t - (z - magic);
  vf p;
  if (kDegree == 6) {
    p = fma(set1(1.534581242592868e-4f), f, set1(1.3399930903688073e-3f));
    p = fma(p, f, set1(9.618489071726799e-3f));
    p = fma(p, f, set1(5.550328642129898e-2f));
    p = fma(p, f, set1(2.4022646248340607e-1f));
    p = fma(p, f, set1(6.931471824645996e-1f));
    p = fma(p, f, set1(1.f));
  } else {
    p = fma(set1(9.570102207362652e-3f), f, set1(5.591785907745361e-2f));
    p = fma(p, f, set1(2.40247443318367e-1f));
    p = fma(p, f, set1(6.931217908859253e-1f));
    p = fma(p, f, set1(9.999992847442627e-1f));
  }
  return p * floats(shl<23>(bits(z)));
}

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
