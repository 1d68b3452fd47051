// SPDX-License-Identifier: Apache-2.0
// The activations of libte/activation.h in f32 and their derivatives. NaN in, NaN out; infinities give the limits.
#pragma once
#include "gpu/device/convert.h"

namespace te::device {

// A NaN in x stays.
#if defined(TE_VENDOR_HIP)
TE_DEVICE float at_least(float low, float x) { return x < low ? low : x; }
TE_DEVICE float at_most(float high, float x) { return x > high ? high : x; }
#else
TE_DEVICE float at_least(float low, float x) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(low));
  return x;
}
TE_DEVICE float at_most(float high, float x) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(high));
  return x;
}
#endif
constexpr float kHuge = 3.4e38f;

// A logistic value and s (1 - s), from e^-|z|, so that neither tail is a difference. e has a relative error of |z| 2^-24 and |z| e <= 0.37, so
// s is right to 2^-24 of 1; expf would be six instructions more, of the 30 that an element may take at 4 TB/s.
struct Logistic { float s, slope; };
TE_DEVICE Logistic logistic(float z) {
  const float e = exp2_fast(-1.4426950409f * fabsf(z)), q = reciprocal(1.f + e), eq = e * q;
  return {z < 0.f ? eq : q, eq * q};
}
struct ValueAndSlope { float value, slope; };

// x sigmoid(alpha x)
TE_DEVICE float swish(float x, float alpha) { return at_least(-kHuge, x) * logistic(alpha * x).s; }
TE_DEVICE ValueAndSlope swish_both(float x, float alpha) {
  const float c = at_least(-1e4f, at_most(1e4f, x)), z = alpha * c;
  const Logistic l = logistic(z);
  return {at_least(-kHuge, x) * l.s, fmaf(z, l.slope, l.s)};
}

// 1/2 + 1/2 tanh(u) = 1 / (1 + e^-2u), u = x (0.79788456 + 0.03567741 x^2)
struct Gelu {
  static TE_DEVICE float twice_u(float x) { return x * fmaf(0.071354816272f, x * x, 1.5957691216f); }
  static TE_DEVICE float value(float x) { return at_least(-1e3f, x) * logistic(twice_u(x)).s; }
  static TE_DEVICE ValueAndSlope both(float x) {
    const float c = at_least(-1e3f, at_most(1e3f, x));
    const Logistic l = logistic(twice_u(c));
    return {at_least(-1e3f, x) * l.s, fmaf(c * fmaf(0.21406444882f, c * c, 1.5957691216f), l.slope, l.s)};
  }
};
struct GeluErf {
  static TE_DEVICE float cdf(float x) { return 0.5f * erfcf(-0.70710678f * x); }
  static TE_DEVICE float value(float x) { return at_least(-20.f, x) * cdf(at_least(-20.f, x)); }
  static TE_DEVICE ValueAndSlope both(float x) {
    const float c = at_least(-20.f, at_most(20.f, x)), p = cdf(c);
    return {at_least(-20.f, x) * p, p + c * (0.39894228f * expf(-0.5f * (c * c)))};
  }
};
struct Qgelu {
  static TE_DEVICE float value(float x) { return swish(x, 1.702f); }
  static TE_DEVICE ValueAndSlope both(float x) { return swish_both(x, 1.702f); }
};
struct Silu {
  static TE_DEVICE float value(float x) { return swish(x, 1.f); }
  static TE_DEVICE ValueAndSlope both(float x) { return swish_both(x, 1.f); }
};
struct Relu {
  static TE_DEVICE float value(float x) { return at_least(0.f, x); }
  static TE_DEVICE ValueAndSlope both(float x) { return {at_least(0.f, x), x <= 0.f ? 0.f : 1.f}; }
};
struct Srelu {
  static TE_DEVICE float value(float x) { return at_least(0.f, x) * at_least(0.f, x); }
  static TE_DEVICE ValueAndSlope both(float x) {
    const float m = at_least(0.f, x);
    return {m * m, m + m};
  }
};
struct Sigmoid {
  static TE_DEVICE float value(float x) { return logistic(x).s; }
  static TE_DEVICE ValueAndSlope both(float x) {
    const Logistic l = logistic(x);
    return {l.s, l.slope};
  }
};

// Calls f(Activation{}): a branch that a grid takes alike, outside of the loop over numbers.
template <class F> TE_DEVICE void visit_activation(int activation, F &&f) {
  switch (activation) {
    case 0: return f(Gelu{});
    case 1: return f(GeluErf{});
    case 2: return f(Qgelu{});
    case 3: return f(Relu{});
    case 4: return f(Srelu{});
    case 5: return f(Silu{});
    default: return f(Sigmoid{});
  }
}

}  // namespace te::device
