// SPDX-License-Identifier: Apache-2.0
// Storage types and their conversions: round to nearest even, fp8 saturates (infinity too), NaN stays NaN, in fp8 with its sign (FNUZ: 0x80).
// Numbers are bit for bit the CPU's cpu/vec.h. Hardware converts where the chip has that format; the rest is arithmetic.
#pragma once
#include "gpu/device/wave.h"

namespace te::device {

struct f16 { unsigned short b; };
struct bf16 { unsigned short b; };
struct e4m3 { unsigned char b; };
struct e5m2 { unsigned char b; };
struct e4m3fnuz { unsigned char b; };
struct e5m2fnuz { unsigned char b; };
// By the numbers of core's DType, for run-time compilation.
template <int> struct Numbered;
template <> struct Numbered<0> { using type = float; };
template <> struct Numbered<1> { using type = f16; };
template <> struct Numbered<2> { using type = bf16; };
template <> struct Numbered<3> { using type = e4m3; };
template <> struct Numbered<4> { using type = e5m2; };
template <> struct Numbered<5> { using type = e4m3fnuz; };
template <> struct Numbered<6> { using type = e5m2fnuz; };

TE_DEVICE unsigned bits(float x) { return __float_as_uint(x); }
TE_DEVICE float from_bits(unsigned u) { return __uint_as_float(u); }

// Correctly rounded division and root whatever the compiler's defaults (HIP's are not exact for f32 without a flag).
TE_DEVICE float divide(float a, float b) { return __fdiv_rn(a, b); }
TE_DEVICE float root(float a) { return __fsqrt_rn(a); }
// 2^a: relative error 2^-22, subnormal results are 0.
TE_DEVICE float exp2_fast(float a) {
#if defined(TE_VENDOR_HIP)
  return __builtin_amdgcn_exp2f(a);
#else
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
  return r;
#endif
}
// 1 / a for a in [1, 2^60], to the last bit or nearly: divide() costs five times as much, most of it for quotients at the edges.
TE_DEVICE float reciprocal(float a) {
#if defined(TE_VENDOR_HIP)
  const float r = __builtin_amdgcn_rcpf(a);
#else
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
#endif
  return fmaf(r, fmaf(-a, r, 1.f), r);
}

// ---- 16-bit ----
TE_DEVICE float to_f32(float x) { return x; }
TE_DEVICE float to_f32(bf16 x) { return from_bits((unsigned)x.b << 16); }
TE_DEVICE float to_f32(f16 x) {
#if defined(TE_VENDOR_HIP)
  return (float)__builtin_bit_cast(_Float16, x.b);
#else
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x.b));
  return f;
#endif
}
template <class T> TE_DEVICE T from_f32(float x);
template <> TE_DEVICE float from_f32<float>(float x) { return x; }
template <> TE_DEVICE bf16 from_f32<bf16>(float x) {
#if defined(TE_VENDOR_HIP)
  const unsigned u = bits(x);
  const unsigned r = x != x ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return bf16{(unsigned short)r};
#else
  unsigned short r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return bf16{r};
#endif
}
template <> TE_DEVICE f16 from_f32<f16>(float x) {
#if defined(TE_VENDOR_HIP)
  return f16{__builtin_bit_cast(unsigned short, (_Float16)x)};
#else
  unsigned short h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return f16{h};
#endif
}
// Two at once in a word, low half first.
template <class T> TE_DEVICE unsigned pack2(float a, float b) { return from_f32<T>(a).b | (unsigned)from_f32<T>(b).b << 16; }
#if !defined(TE_VENDOR_HIP)
template <> TE_DEVICE unsigned pack2<bf16>(float a, float b) {
  unsigned w;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(b), "f"(a));
  return w;
}
template <> TE_DEVICE unsigned pack2<f16>(float a, float b) {
  unsigned w;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(b), "f"(a));
  return w;
}
#endif

// ---- fp8 by arithmetic: adding 2^(e + 23 - mantissa bits) rounds the magnitude to the format's grid, subnormals included ----
template <int kMinExponent, int kShift> TE_DEVICE unsigned fp8_code(float x, float largest) {
  const float a = fminf(fabsf(x), largest);
  const unsigned low = (unsigned)kMinExponent << 23, field = bits(a) & 0x7f800000u, e = field > low ? field : low;
  const unsigned m = e + ((unsigned)kShift << 23);
  return (bits(a + from_bits(m)) - m) + ((e - low) >> kShift);
}
TE_DEVICE unsigned sign8(float x) { return bits(x) >> 24 & 0x80u; }
template <> TE_DEVICE e4m3 from_f32<e4m3>(float x) { return e4m3{(unsigned char)((x != x ? 0x7fu : fp8_code<121, 20>(x, 448.f)) | sign8(x))}; }
template <> TE_DEVICE e5m2 from_f32<e5m2>(float x) { return e5m2{(unsigned char)((x != x ? 0x7fu : fp8_code<113, 21>(x, 57344.f)) | sign8(x))}; }
TE_DEVICE unsigned char fnuz(unsigned c, float x) { return (unsigned char)(x != x ? 0x80u : c == 0 ? 0u : c | sign8(x)); }
template <> TE_DEVICE e4m3fnuz from_f32<e4m3fnuz>(float x) { return e4m3fnuz{fnuz(fp8_code<120, 20>(x, 240.f), x)}; }
template <> TE_DEVICE e5m2fnuz from_f32<e5m2fnuz>(float x) { return e5m2fnuz{fnuz(fp8_code<112, 21>(x, 57344.f), x)}; }

TE_DEVICE float to_f32(e4m3 x) {
  const unsigned m = x.b & 0x7fu;
  const float f = m == 0x7f ? from_bits(0x7fc00000u) : from_bits(m << 20) * 0x1p120f;
  return from_bits(bits(f) | (unsigned)(x.b & 0x80u) << 24);
}
TE_DEVICE float to_f32(e5m2 x) {
  const unsigned m = x.b & 0x7fu;
  const float f = m > 0x7b ? from_bits(m << 21 | 0x7f800000u) : from_bits(m << 21) * 0x1p112f;
  return from_bits(bits(f) | (unsigned)(x.b & 0x80u) << 24);
}
TE_DEVICE float to_f32(e4m3fnuz x) {
  const float f = from_bits((unsigned)(x.b & 0x7fu) << 20) * 0x1p119f;
  return x.b == 0x80 ? from_bits(0x7fc00000u) : from_bits(bits(f) | (unsigned)(x.b & 0x80u) << 24);
}
TE_DEVICE float to_f32(e5m2fnuz x) {
  const float f = from_bits((unsigned)(x.b & 0x7fu) << 21) * 0x1p111f;
  return x.b == 0x80 ? from_bits(0x7fc00000u) : from_bits(bits(f) | (unsigned)(x.b & 0x80u) << 24);
}

// Four codes at once in a word, low byte first: the form kernels use. The chip's own conversion where it has the format.
template <class T> TE_DEVICE void unpack4(unsigned w, float (&v)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = to_f32(T{(unsigned char)(w >> 8 * i)});
}
template <class T> TE_DEVICE unsigned pack4(float a, float b, float c, float d) {
  return from_f32<T>(a).b | (unsigned)from_f32<T>(b).b << 8 | (unsigned)from_f32<T>(c).b << 16 | (unsigned)from_f32<T>(d).b << 24;
}
#if defined(TE_VENDOR_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
// The instruction saturates but gives one positive NaN, 0x7f, and that to nothing else: put the sign back.
TE_DEVICE unsigned nan_signs(unsigned codes, float a, float b, float c, float d) {
  if ((((codes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) == 0) return codes;
  return codes | (a != a ? sign8(a) : 0u) | (b != b ? sign8(b) : 0u) << 8 | (c != c ? sign8(c) : 0u) << 16 | (d != d ? sign8(d) : 0u) << 24;
}
template <> TE_DEVICE unsigned pack4<e4m3>(float a, float b, float c, float d) {
  unsigned short lo, hi;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(lo) : "f"(b), "f"(a));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(hi) : "f"(d), "f"(c));
  return nan_signs(lo | (unsigned)hi << 16, a, b, c, d);
}
template <> TE_DEVICE unsigned pack4<e5m2>(float a, float b, float c, float d) {
  unsigned short lo, hi;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(lo) : "f"(b), "f"(a));
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(hi) : "f"(d), "f"(c));
  return nan_signs(lo | (unsigned)hi << 16, a, b, c, d);
}
// Each code is a number of f16.
TE_DEVICE void halves(unsigned two, float &a, float &b) { a = to_f32(f16{(unsigned short)two}), b = to_f32(f16{(unsigned short)(two >> 16)}); }
template <> TE_DEVICE void unpack4<e4m3>(unsigned w, float (&v)[4]) {
  unsigned lo, hi;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(lo) : "h"((unsigned short)w));
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(hi) : "h"((unsigned short)(w >> 16)));
  halves(lo, v[0], v[1]), halves(hi, v[2], v[3]);
}
template <> TE_DEVICE void unpack4<e5m2>(unsigned w, float (&v)[4]) {
  unsigned lo, hi;
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(lo) : "h"((unsigned short)w));
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(hi) : "h"((unsigned short)(w >> 16)));
  halves(lo, v[0], v[1]), halves(hi, v[2], v[3]);
}
#elif defined(TE_VENDOR_HIP) && (defined(__gfx942__) || defined(__gfx950__))
// One mnemonic, two meanings: FNUZ codes on gfx942, OCP codes on gfx950. It does not saturate by itself: clamp, keeping NaN.
TE_DEVICE float clamped(float x, float largest) { return x != x ? x : __builtin_amdgcn_fmed3f(x, -largest, largest); }
#if defined(__gfx942__)
using hw_e4m3 = e4m3fnuz;
using hw_e5m2 = e5m2fnuz;
TE_DEVICE unsigned fix4(unsigned codes, float a, float b, float c, float d) {
  codes = a != a ? (codes & ~0xffu) | 0x80u : codes;
  codes = b != b ? (codes & ~0xff00u) | 0x8000u : codes;
  codes = c != c ? (codes & ~0xff0000u) | 0x800000u : codes;
  return d != d ? (codes & ~0xff000000u) | 0x80000000u : codes;
}
#else
using hw_e4m3 = e4m3;
using hw_e5m2 = e5m2;
TE_DEVICE unsigned fix4(unsigned codes, float a, float b, float c, float d) {
  codes = a != a ? (codes & ~0xffu) | 0x7fu | sign8(a) : codes;
  codes = b != b ? (codes & ~0xff00u) | (0x7fu | sign8(b)) << 8 : codes;
  codes = c != c ? (codes & ~0xff0000u) | (0x7fu | sign8(c)) << 16 : codes;
  return d != d ? (codes & ~0xff000000u) | (0x7fu | sign8(d)) << 24 : codes;
}
#endif
template <> TE_DEVICE unsigned pack4<hw_e4m3>(float a, float b, float c, float d) {
  constexpr float kMax = sizeof(hw_e4m3) && __is_same(hw_e4m3, e4m3) ? 448.f : 240.f;
  int r = __builtin_amdgcn_cvt_pk_fp8_f32(clamped(a, kMax), clamped(b, kMax), 0, false);
  r = __builtin_amdgcn_cvt_pk_fp8_f32(clamped(c, kMax), clamped(d, kMax), r, true);
  return fix4((unsigned)r, a, b, c, d);
}
template <> TE_DEVICE unsigned pack4<hw_e5m2>(float a, float b, float c, float d) {
  int r = __builtin_amdgcn_cvt_pk_bf8_f32(clamped(a, 57344.f), clamped(b, 57344.f), 0, false);
  r = __builtin_amdgcn_cvt_pk_bf8_f32(clamped(c, 57344.f), clamped(d, 57344.f), r, true);
  return fix4((unsigned)r, a, b, c, d);
}
#endif

}  // namespace te::device
