// SPDX-License-Identifier: Apache-2.0
// Tensor scaling: how a scale comes from an amax. Shared by the CPU's kernels and the GPU's (TE_SCALING = __device__ there).
#pragma once

#ifndef TE_SCALING
#define TE_SCALING
#endif

namespace te::scaling {

constexpr float kLargestFloat = 3.402823466e+38f;

static inline TE_SCALING bool finite(float x) { return x - x == 0.f; }

// Floor to a power of two: the mantissa bits cleared. A subnormal (only a huge amax gives one) has no implicit bit: scale it up first.
static inline TE_SCALING float floor_pow2(float x) {
  union {
    float f;
    unsigned u;
  } b;
  const bool small = x < 1.17549435e-38f;
  b.f = small ? x * 0x1p64f : x;
  b.u &= 0x7f800000u;
  return small ? b.f * 0x1p-64f : b.f;
}

// a = max(amax, epsilon); 1 if a is 0, inf or NaN, else largest / a (correctly rounded), at most the largest float. An amax that is NaN stays
// NaN through the maximum, so it gives 1.
static inline TE_SCALING float from_amax(float amax, float largest, float epsilon, bool pow2) {
  const float a = amax < epsilon ? epsilon : amax;
  if (!finite(a) || a == 0.f) return 1.f;
  float s = largest / a;
  if (!finite(s)) s = kLargestFloat;
  return pow2 ? floor_pow2(s) : s;
}

// Delayed scaling: largest * 2^-margin / a where a is finite and positive, else the scale in use.
static inline TE_SCALING float delayed(float a, float largest_shifted, float in_use) {
  if (!finite(a) || !(a > 0.f)) return in_use;
  const float s = largest_shifted / a;
  return finite(s) ? s : kLargestFloat;
}

}  // namespace te::scaling
