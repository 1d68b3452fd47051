// SPDX-License-Identifier: Apache-2.0
// Activation functions and their derivatives on 16 f32 lanes. Nothing here uses fma(): a multiplication and an addition round the
// same at every level, so values, and with them the codes of fused outputs, do not depend on the level. NaN in, NaN out.
// Polynomial coefficients are our own: Lawson-weighted least squares on Chebyshev points (minimax in relative error), computed in
// double against 40-digit values, then rounded to f32; the error quoted is that of the unrounded fit. Measured against long double
// over all exponents: tanh, erf, silu, sigmoid within 3 ulp; both GELUs and qgelu 3 ulp for x > -1, then relative error grows with
// the exponent, as it does in any f32 evaluation (7 to 13 ulp at -5); results below 1e-36 are right to 1e-36.
#pragma once
#include "cpu/exp2.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

struct ValueAndSlope { vf value, slope; };  // f(x), f'(x)

// c[0] + c[1] x + ... + c[N-1] x^(N-1). The high terms go in pairs and pairs of pairs (Estrin), which is log2 N steps deep where
// Horner's scheme has N; the two lowest, which decide the rounding, go by Horner.
template <int N> TE_INLINE vf polynomial(vf x, const float (&c)[N]) {
  vf p[N], power = x;
#pragma GCC unroll 16
  for (int i = 2; i < N; i++) p[i - 2] = set1(c[i]);
#pragma GCC unroll 4
  for (int n = N - 2; n > 1; n = (n + 1) / 2) {
#pragma GCC unroll 8
    for (int i = 0; 2 * i < n; i++) p[i] = 2 * i + 1 < n ? p[2 * i] + p[2 * i + 1] * power : p[2 * i];
    power = power * power;
  }
  return (p[0] * x + set1(c[1])) * x + set1(c[0]);
}
// x limited to [lo, hi]; the operand order keeps NaN.
TE_INLINE vf clamp(vf x, float lo, float hi) { return min(set1(hi), max(set1(lo), x)); }

// ---- exponentials ----
// 2 e^r, |r| <= 0.35: relative error 2.0e-9.
constexpr float kTwoExp[] = {2.f, 2.0000000770f, 0.99999983188f, 0.33332820488f, 0.083336577497f, 0.016751290044f, 0.0027671601540f};
// 2 * 2^r, |r| <= 1/2: 1.9e-9.
constexpr float kTwoExp2[] = {2.f, 1.3862944115f, 0.48045293781f, 0.11100657554f, 0.019236977917f, 0.0026799862432f, 3.0691623166e-4f};
// ln 2 in two pieces; the first has 9 bits, so that its product with an exponent is exact.
constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440055e-4f;
// e^x is 0 from kExpZero down and inf from kExpInf up (both inside the range that the words below accept).
constexpr float kExpZero = -87.33f, kExpInf = 88.725f;

// two_p * 2^(n-1), n a whole number in [-126, 128]; n = -126 gives 0.
TE_INLINE vf times_power(vf two_p, vf n) { return two_p * floats(shl<23>(to_int(n) + set1i(126))); }
// e^x for kExpZero <= x <= kExpInf.
TE_INLINE vf exp_inside(vf x) {
  const vf n = round(x * set1(kLog2e));
  return times_power(polynomial((x - n * set1(kLn2High)) - n * set1(kLn2Low), kTwoExp), n);
}
// 2^t for -126 <= t <= 128.5.
TE_INLINE vf exp2_inside(vf t) {
  const vf n = round(t);
  return times_power(polynomial(t - n, kTwoExp2), n);
}

// ---- sigmoid family ----
// 1 + e^-x; x beyond the range gives 1 or inf.
TE_INLINE vf one_plus_exp_minus(vf x) { return set1(1.f) + exp_inside(-clamp(x, -kExpInf, -kExpZero)); }
TE_INLINE vf logistic(vf x) { return set1(1.f) / one_plus_exp_minus(x); }
// x sigmoid(alpha x) for any alpha; -inf gives -0 where alpha > 0, the limit.
TE_INLINE vf swish(vf x, vf alpha) { return max(set1(-0x1.fffffep127f), x) / one_plus_exp_minus(alpha * x); }

// A logistic value and what derivatives need: s = 1 / (1 + e^-z), slope = s (1 - s), from e^-|z| so that both tails stay exact.
struct Logistic { vf s, slope; };
TE_INLINE Logistic logistic_from(vf e, vf z) {
  const vf q = set1(1.f) / (set1(1.f) + e), eq = e * q;
  return {select(z < zero(), eq, q), eq * q};
}
TE_INLINE Logistic logistic_with_slope(vf z) {
  z = clamp(z, kExpZero, -kExpZero);
  return logistic_from(exp_inside(-abs(z)), z);
}

// ---- tanh and the GELU that is made of it ----
TE_INLINE vf tanh(vf x) {
  // (tanh x - x) / x^3 in x^2 up to 0.625^2: 4.4e-9
  constexpr float kSmall[] = {-0.33333281942f, 0.13331442195f, -0.053739714846f, 0.020639086567f, -0.0057049863266f};
  const vf a = abs(x), z = x * x;
  const vf small = x + x * z * polynomial(z, kSmall);
  const vf e = exp_inside(set1(2.f) * min(set1(9.1f), a));
  const vf large = set1(1.f) - set1(2.f) / (set1(1.f) + e);
  return select(a < set1(0.625f), small, floats(bits(large) | (bits(x) & set1i(int32_t(0x80000000)))));
}
// 1/2 + 1/2 tanh(u) = 1 / (1 + e^-2u);  e^-2u = 2^-(x (kGelu0 + kGelu1 x^2)), 2 sqrt(2/pi) log2(e) and 0.044715 times it.
constexpr float kGelu0 = 2.3022081981f, kGelu1 = 0.10294323952f;
TE_INLINE vf gelu_exponent(vf x) { return x * (set1(kGelu0) + set1(kGelu1) * (x * x)); }
TE_INLINE vf gelu(vf x) {
  x = max(set1(-10.0655f), x);  // the exponent is 128.2 there: e^-2u = inf, the result -0
  return x / (set1(1.f) + exp2_inside(-gelu_exponent(min(set1(10.f), x))));
}
TE_INLINE ValueAndSlope gelu_both(vf x) {
  const vf c = clamp(x, -10.f, 10.f);  // exponent +-125.97: the logistic is 0 or 1 from there on
  const Logistic l = logistic_from(exp2_inside(-gelu_exponent(abs(c))), c);
  // 2 u' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
  return {max(set1(-10.f), x) * l.s, l.s + c * (set1(1.5957691216f) + set1(0.21406444877f) * (c * c)) * l.slope};
}

// ---- the normal distribution: erf and the exact GELU ----
// Upper tail Q(a) = 1/2 erfc(a / sqrt 2) = e^(-a^2/2) T(a) and e^(-a^2/2), for 0 <= a <= 13.2 (both 0 at the end).
struct Normal { vf tail, density; };  // density without 1 / sqrt(2 pi)
TE_INLINE Normal normal_tail(vf a) {
  // T(a) = t P(t), t = 1 / (1 + 0.24 a), a <= 14.5: 3.2e-9
  constexpr float kTail[] = {0.095742136822f, 0.095856072179f, 0.088943645142f, 0.087722536005f, 0.028259044261f,
                             0.14127472279f,  -0.14407656274f, 0.20534579561f,  -0.12458436409f, 0.025516985598f};
  // a^2 / 2 = z + d, z exact (the leading 12 bits squared): rounding a^2 would cost a^2/2 ulp of the exponential
  const vf h = floats(bits(a) & set1i(int32_t(0xfffff000)));
  const vf z = set1(0.5f) * (h * h), d = set1(0.5f) * ((a - h) * (a + h));
  const vf n = round((z + d) * set1(-kLog2e));
  const vf r = (((-z) - n * set1(kLn2High)) - n * set1(kLn2Low)) - d;
  const vf e = times_power(polynomial(r, kTwoExp), n);
  const vf t = set1(1.f) / (set1(1.f) + set1(0.24f) * a);
  return {e * (t * polynomial(t, kTail)), e};
}
constexpr float kNormalEnd = 13.2f;  // e^(-13.2^2/2) = 2^-125.7, which is 0 here
TE_INLINE vf erf(vf x) {
  // erf(x) / x in x^2 up to 1: 1.2e-9
  constexpr float kSmall[] = {1.1283791657f, -0.37612625824f,  0.11283583549f,  -0.026853811928f,
                              0.0051883276712f, -8.0101934975e-4f, 7.8538609321e-5f};
  const vf a = abs(x), small = x * polynomial(x * x, kSmall);
  const vf large = set1(1.f) - set1(2.f) * normal_tail(min(set1(kNormalEnd), set1(1.41421356f) * a)).tail;
  return select(a < set1(1.f), small, floats(bits(large) | (bits(x) & set1i(int32_t(0x80000000)))));
}
// Phi(x) and e^(-x^2/2), for |x| <= kNormalEnd.
struct Cdf { vf value, density; };
TE_INLINE Cdf normal_cdf(vf x) {
  // (Phi(x) - 1/2) / x in x^2 up to 1: 5.1e-10
  constexpr float kSmall[] = {0.39894227768f, -0.066490314362f, 0.0099730783802f, -0.0011857849858f, 1.1295217322e-4f, -7.4628947355e-6f};
  const vf a = abs(x);
  const Normal n = normal_tail(a);
  const vf large = select(x < zero(), n.tail, set1(1.f) - n.tail);
  return {select(a < set1(1.f), set1(0.5f) + x * polynomial(x * x, kSmall), large), n.density};
}
TE_INLINE vf gelu_erf(vf x) { return max(set1(-kNormalEnd), x) * normal_cdf(clamp(x, -kNormalEnd, kNormalEnd)).value; }
TE_INLINE ValueAndSlope gelu_erf_both(vf x) {
  const vf c = clamp(x, -kNormalEnd, kNormalEnd);
  const Cdf p = normal_cdf(c);
  return {max(set1(-kNormalEnd), x) * p.value, p.value + c * (set1(0.39894228040f) * p.density)};
}

// ---- every activation of libte/activation.h: f(x), f'(x), or both ----
struct Gelu {
  static TE_INLINE vf value(vf x) { return gelu(x); }
  static TE_INLINE vf slope(vf x) { return gelu_both(x).slope; }
  static TE_INLINE ValueAndSlope both(vf x) { return gelu_both(x); }
};
struct GeluErf {
  static TE_INLINE vf value(vf x) { return gelu_erf(x); }
  static TE_INLINE vf slope(vf x) { return gelu_erf_both(x).slope; }
  static TE_INLINE ValueAndSlope both(vf x) { return gelu_erf_both(x); }
};
// x sigmoid(alpha x), alpha in 1/1000.
template <int kAlpha> struct Swish {
  static TE_INLINE vf scaled(vf x) { return kAlpha == 1000 ? x : x * set1(kAlpha / 1000.f); }
  static TE_INLINE vf value(vf x) {
    x = max(set1(-kExpInf / (kAlpha / 1000.f)), x);  // e^-z is inf there, the result -0
    return x / (set1(1.f) + exp_inside(-min(set1(-kExpZero), scaled(x))));
  }
  static TE_INLINE vf slope(vf x) { return both(x).slope; }
  static TE_INLINE ValueAndSlope both(vf x) {
    constexpr float kEnd = 87.33f / (kAlpha / 1000.f);
    const vf c = clamp(x, -kEnd, kEnd), z = scaled(c);
    const Logistic l = logistic_from(exp_inside(-abs(z)), z);
    return {max(set1(-kEnd), x) * l.s, l.s + z * l.slope};
  }
};
using Silu = Swish<1000>;
using Qgelu = Swish<1702>;
struct Relu {
  static TE_INLINE vf value(vf x) { return max(zero(), x); }
  static TE_INLINE vf slope(vf x) { return select(x <= zero(), zero(), set1(1.f)); }
  static TE_INLINE ValueAndSlope both(vf x) { return {value(x), slope(x)}; }
};
struct Srelu {
  static TE_INLINE vf value(vf x) { const vf m = max(zero(), x); return m * m; }
  static TE_INLINE vf slope(vf x) { const vf m = max(zero(), x); return m + m; }
  static TE_INLINE ValueAndSlope both(vf x) { const vf m = max(zero(), x); return {m * m, m + m}; }
};
struct Sigmoid {
  static TE_INLINE vf value(vf x) { return logistic(x); }
  static TE_INLINE vf slope(vf x) { return logistic_with_slope(x).slope; }
  static TE_INLINE ValueAndSlope both(vf x) { const Logistic l = logistic_with_slope(x); return {l.s, l.slope}; }
};

}  // namespace
}  // namespace te::cpu::TE_CPU_ISA
