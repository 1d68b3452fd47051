// SPDX-License-Identifier: Apache-2.0
// The vector words kernels are written in: 16 f32 lanes at every level (1 zmm, 2 ymm or 4 xmm), so that lane order and reduction
// trees do not depend on the level; only fma() does (it rounds twice on `base`). Included once a level, inside files compiled with
// TE_CPU_ISA; everything is in an anonymous namespace (see isa.h).
#pragma once
#include <string.h>

#include "core/tensor.h"
#include "cpu/intrinsics.h"
#include "cpu/isa.h"
#include "cpu/pool.h"

#define TE_INLINE inline __attribute__((always_inline))

namespace te::cpu::TE_CPU_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kNative = 16;
#elif defined(__AVX2__)
constexpr int kNative = 8;
#else
constexpr int kNative = 4;
#endif
constexpr int kParts = 16 / kNative;
constexpr int kLanes = 16;

typedef float nf __attribute__((vector_size(4 * kNative)));
typedef int32_t ni __attribute__((vector_size(4 * kNative)));
typedef uint32_t nu __attribute__((vector_size(4 * kNative)));
typedef float nf_mem __attribute__((vector_size(4 * kNative), aligned(4), may_alias));
typedef int32_t ni_mem __attribute__((vector_size(4 * kNative), aligned(4), may_alias));
typedef int32_t ni_mem1 __attribute__((vector_size(4 * kNative), aligned(1), may_alias));

struct vf { nf v[kParts]; };  // 16 floats
struct vi { ni v[kParts]; };  // 16 int32; as a mask: lanes are 0 or -1

#define TE_PARTS for (int p_ = 0; p_ < kParts; p_++)
#define TE_VF(expr) vf r_; TE_PARTS r_.v[p_] = (expr); return r_
#define TE_VI(expr) vi r_; TE_PARTS r_.v[p_] = (expr); return r_

TE_INLINE vf set1(float x) { TE_VF(x - nf{}); }  // x - 0 keeps the sign of zero
TE_INLINE vi set1i(int32_t x) { TE_VI(ni{} + x); }
TE_INLINE vf zero() { TE_VF(nf{}); }
TE_INLINE vf operator+(vf a, vf b) { TE_VF(a.v[p_] + b.v[p_]); }
TE_INLINE vf operator-(vf a, vf b) { TE_VF(a.v[p_] - b.v[p_]); }
TE_INLINE vf operator*(vf a, vf b) { TE_VF(a.v[p_] * b.v[p_]); }
TE_INLINE vf operator/(vf a, vf b) { TE_VF(a.v[p_] / b.v[p_]); }
TE_INLINE vf operator-(vf a) { TE_VF(-a.v[p_]); }
TE_INLINE vi operator+(vi a, vi b) { TE_VI(a.v[p_] + b.v[p_]); }
TE_INLINE vi operator-(vi a, vi b) { TE_VI(a.v[p_] - b.v[p_]); }
TE_INLINE vi operator&(vi a, vi b) { TE_VI(a.v[p_] & b.v[p_]); }
TE_INLINE vi operator|(vi a, vi b) { TE_VI(a.v[p_] | b.v[p_]); }
TE_INLINE vi operator^(vi a, vi b) { TE_VI(a.v[p_] ^ b.v[p_]); }
TE_INLINE vi operator~(vi a) { TE_VI(~a.v[p_]); }
template <int N> TE_INLINE vi shl(vi a) { TE_VI(a.v[p_] << N); }
template <int N> TE_INLINE vi shr(vi a) { TE_VI((ni)((nu)a.v[p_] >> N)); }  // logical
TE_INLINE vi bits(vf a) { TE_VI((ni)a.v[p_]); }
TE_INLINE vf floats(vi a) { TE_VF((nf)a.v[p_]); }
TE_INLINE vi operator<(vf a, vf b) { TE_VI(a.v[p_] < b.v[p_]); }
TE_INLINE vi operator>(vf a, vf b) { TE_VI(a.v[p_] > b.v[p_]); }
TE_INLINE vi operator>=(vf a, vf b) { TE_VI(a.v[p_] >= b.v[p_]); }
TE_INLINE vi operator<=(vf a, vf b) { TE_VI(a.v[p_] <= b.v[p_]); }
TE_INLINE vi operator==(vf a, vf b) { TE_VI(a.v[p_] == b.v[p_]); }
TE_INLINE vi operator==(vi a, vi b) { TE_VI(a.v[p_] == b.v[p_]); }
TE_INLINE vi operator>(vi a, vi b) { TE_VI(a.v[p_] > b.v[p_]); }
TE_INLINE vi is_nan(vf a) { TE_VI(a.v[p_] != a.v[p_]); }
TE_INLINE vf select(vi mask, vf a, vf b) { TE_VF(mask.v[p_] ? a.v[p_] : b.v[p_]); }
TE_INLINE vi select(vi mask, vi a, vi b) { TE_VI(mask.v[p_] ? a.v[p_] : b.v[p_]); }
TE_INLINE vf abs(vf a) { TE_VF((nf)((ni)a.v[p_] & 0x7fffffff)); }

#if defined(__AVX512F__)
TE_INLINE nf n_min(nf a, nf b) { return _mm512_min_ps(a, b); }
TE_INLINE nf n_max(nf a, nf b) { return _mm512_max_ps(a, b); }
TE_INLINE nf n_fma(nf a, nf b, nf c) { return _mm512_fmadd_ps(a, b, c); }
TE_INLINE nf n_sqrt(nf a) { return _mm512_sqrt_ps(a); }
TE_INLINE nf n_round(nf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
TE_INLINE ni n_to_int(nf a) { return (ni)_mm512_cvtps_epi32(a); }
TE_INLINE nf n_to_float(ni a) { return _mm512_cvtepi32_ps((__m512i)a); }
TE_INLINE ni n_maxi(ni a, ni b) { return (ni)_mm512_max_epi32((__m512i)a, (__m512i)b); }
#elif defined(__AVX2__)
TE_INLINE nf n_min(nf a, nf b) { return _mm256_min_ps(a, b); }
TE_INLINE nf n_max(nf a, nf b) { return _mm256_max_ps(a, b); }
TE_INLINE nf n_fma(nf a, nf b, nf c) { return _mm256_fmadd_ps(a, b, c); }
TE_INLINE nf n_sqrt(nf a) { return _mm256_sqrt_ps(a); }
TE_INLINE nf n_round(nf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
TE_INLINE ni n_to_int(nf a) { return (ni)_mm256_cvtps_epi32(a); }
TE_INLINE nf n_to_float(ni a) { return _mm256_cvtepi32_ps((__m256i)a); }
TE_INLINE ni n_maxi(ni a, ni b) { return (ni)_mm256_max_epi32((__m256i)a, (__m256i)b); }
#else
TE_INLINE nf n_min(nf a, nf b) { return _mm_min_ps(a, b); }
TE_INLINE nf n_max(nf a, nf b) { return _mm_max_ps(a, b); }
TE_INLINE nf n_fma(nf a, nf b, nf c) { return a * b + c; }
TE_INLINE nf n_sqrt(nf a) { return _mm_sqrt_ps(a); }
TE_INLINE ni n_to_int(nf a) { return (ni)_mm_cvtps_epi32(a); }
TE_INLINE nf n_to_float(ni a) { return _mm_cvtepi32_ps((__m128i)a); }
// |a| < 2^31 is all that callers need
TE_INLINE nf n_round(nf a) { return n_to_float(n_to_int(a)); }
TE_INLINE ni n_maxi(ni a, ni b) { return a > b ? a : b; }
#endif
// x86 rule: if either is NaN the result is b.
TE_INLINE vf min(vf a, vf b) { TE_VF(n_min(a.v[p_], b.v[p_])); }
TE_INLINE vf max(vf a, vf b) { TE_VF(n_max(a.v[p_], b.v[p_])); }
TE_INLINE vi max(vi a, vi b) { TE_VI(n_maxi(a.v[p_], b.v[p_])); }
TE_INLINE vf fma(vf a, vf b, vf c) { TE_VF(n_fma(a.v[p_], b.v[p_], c.v[p_])); }  // a * b + c
TE_INLINE vf sqrt(vf a) { TE_VF(n_sqrt(a.v[p_])); }
TE_INLINE vf round(vf a) { TE_VF(n_round(a.v[p_])); }  // to nearest even; |a| < 2^31
TE_INLINE vi to_int(vf a) { TE_VI(n_to_int(a.v[p_])); }
TE_INLINE vf to_float(vi a) { TE_VF(n_to_float(a.v[p_])); }
// max(acc, |x|) that ignores NaN in x: the amax rule.
TE_INLINE vf amax(vf acc, vf x) { return max(abs(x), acc); }

// Fixed trees: lane i with lane i + 8, then 4, 2, 1.
TE_INLINE float reduce_add(vf a) {
#if defined(__AVX512F__)
  const __m256 e = _mm512_castps512_ps256(a.v[0]) + _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v[0]), 1));
  __m128 q = _mm256_castps256_ps128(e) + _mm256_extractf128_ps(e, 1);
#elif defined(__AVX2__)
  const __m256 e = a.v[0] + a.v[1];
  __m128 q = _mm256_castps256_ps128(e) + _mm256_extractf128_ps(e, 1);
#else
  __m128 q = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
#endif
  return (q[0] + q[2]) + (q[1] + q[3]);
}
TE_INLINE float reduce_max(vf a) {  // NaN lanes are ignored
  alignas(64) float t[16];
  memcpy(t, &a, 64);
  float m = t[0];
  for (int i = 1; i < 16; i++) m = t[i] > m || m != m ? t[i] : m;
  return m;
}

// Storage types.
struct f16 { uint16_t b; };
struct bf16 { uint16_t b; };
struct e4m3 { uint8_t b; };
struct e5m2 { uint8_t b; };
struct e4m3fnuz { uint8_t b; };
struct e5m2fnuz { uint8_t b; };

// ---- loads: 16 elements to f32, exact ----
TE_INLINE vf load(const float *p) { TE_VF(*(const nf_mem *)(p + p_ * kNative)); }
TE_INLINE vi load_u8(const void *p) {  // 16 bytes to int32 lanes
#if defined(__AVX512F__)
  vi r; r.v[0] = (ni)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); return r;
#elif defined(__AVX2__)
  vi r;
  r.v[0] = (ni)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
  r.v[1] = (ni)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)((const char *)p + 8)));
  return r;
#else
  const __m128i z = _mm_setzero_si128(), b = _mm_loadu_si128((const __m128i *)p), lo = _mm_unpacklo_epi8(b, z), hi = _mm_unpackhi_epi8(b, z);
  vi r;
  r.v[0] = (ni)_mm_unpacklo_epi16(lo, z); r.v[1] = (ni)_mm_unpackhi_epi16(lo, z);
  r.v[2] = (ni)_mm_unpacklo_epi16(hi, z); r.v[3] = (ni)_mm_unpackhi_epi16(hi, z);
  return r;
#endif
}
TE_INLINE vi load_u16(const void *p) {  // 16 halfwords to int32 lanes
#if defined(__AVX512F__)
  vi r; r.v[0] = (ni)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)); return r;
#elif defined(__AVX2__)
  vi r;
  r.v[0] = (ni)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
  r.v[1] = (ni)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)((const char *)p + 16)));
  return r;
#else
  const __m128i z = _mm_setzero_si128(), a = _mm_loadu_si128((const __m128i *)p), b = _mm_loadu_si128((const __m128i *)((const char *)p + 16));
  vi r;
  r.v[0] = (ni)_mm_unpacklo_epi16(a, z); r.v[1] = (ni)_mm_unpackhi_epi16(a, z);
  r.v[2] = (ni)_mm_unpacklo_epi16(b, z); r.v[3] = (ni)_mm_unpackhi_epi16(b, z);
  return r;
#endif
}
#if defined(__AVX512BW__)
// Halfword i of 16 to the upper half of lane i, and back: one permutation each.
TE_INLINE __m512i halves_to_lanes() {
  return _mm512_set_epi32(0xf0000, 0xe0000, 0xd0000, 0xc0000, 0xb0000, 0xa0000, 0x90000, 0x80000, 0x70000, 0x60000, 0x50000, 0x40000, 0x30000, 0x20000, 0x10000, 0);
}
TE_INLINE __m512i lanes_to_halves() {
  return _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0x1f001d, 0x1b0019, 0x170015, 0x130011, 0xf000d, 0xb0009, 0x70005, 0x30001);
}
TE_INLINE vf load(const bf16 *p) {
  vf r;
  r.v[0] = (nf)_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, halves_to_lanes(), _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)p)));
  return r;
}
// encode() in the upper halves.
TE_INLINE __m256i to_bf16(vf x) {
  const __m512i u = (__m512i)x.v[0];
  __m512i r = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
  r = _mm512_mask_add_epi32(r, _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000)), u, _mm512_set1_epi32(0x8000));
  r = _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask((__m512)u, (__m512)u, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
  return _mm512_castsi512_si256(_mm512_permutexvar_epi16(lanes_to_halves(), r));
}
#else
TE_INLINE vf load(const bf16 *p) { return floats(shl<16>(load_u16(p))); }
#endif
// f16 bits in the low halves of 16 lanes to f32.
TE_INLINE vf f16_to_f32(vi h) {
  const vi sign = shl<16>(h & set1i(0x8000)), m = shl<13>(h & set1i(0x7fff));
  // exponent rebias by multiplication handles subnormals; inf and NaN get their exponent put back
  vf f = floats(m) * set1(0x1p112f);
  f = select(m > set1i(0x0f7fffff), floats(m | set1i(0x7f800000)), f);
  f = select(m > set1i(0x0f800000), floats(bits(f) | set1i(0x400000)), f);  // the hardware's conversion quietens NaN
  return floats(bits(f) | sign);
}
TE_INLINE vf load(const f16 *p) {
#if defined(__AVX512F__)
  vf r; r.v[0] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); return r;
#elif defined(__F16C__)
  vf r;
  r.v[0] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
  r.v[1] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const char *)p + 16)));
  return r;
#else
  return f16_to_f32(load_u16(p));
#endif
}
// fp8 decode: the magnitude moved to f32's mantissa position, times 2^rebias; `special` is the code (or least code) that is not a
// number. FNUZ: 0x80 is NaN and there are no infinities.
TE_INLINE vf decode(vi c, e4m3) {
  const vi m = c & set1i(0x7f);
  vf f = floats(shl<20>(m)) * set1(0x1p120f);
  f = select(m == set1i(0x7f), floats(set1i(0x7ff00000)), f);
  return floats(bits(f) | shl<24>(c & set1i(0x80)));
}
TE_INLINE vf decode(vi c, e5m2) {
  const vi m = c & set1i(0x7f);
  vf f = floats(shl<21>(m)) * set1(0x1p112f);
  f = select(m > set1i(0x7b), floats(shl<21>(m) | set1i(0x7f800000)), f);
  f = select(m > set1i(0x7c), floats(bits(f) | set1i(0x400000)), f);  // NaN is quiet, as the hardware's f16 conversion makes it
  return floats(bits(f) | shl<24>(c & set1i(0x80)));
}
TE_INLINE vf decode(vi c, e4m3fnuz) {
  const vf f = floats(shl<20>(c & set1i(0x7f))) * set1(0x1p119f);
  return select(c == set1i(0x80), floats(set1i(0x7fc00000)), floats(bits(f) | shl<24>(c & set1i(0x80))));
}
TE_INLINE vf decode(vi c, e5m2fnuz) {
  const vf f = floats(shl<21>(c & set1i(0x7f))) * set1(0x1p111f);
  return select(c == set1i(0x80), floats(set1i(0x7fc00000)), floats(bits(f) | shl<24>(c & set1i(0x80))));
}
// x = load_unit(p) * kUnit<T>, both exact: a caller that scales anyway multiplies once. E4M3 and E5M2 are f16 with fewer bits,
// E4M3 with an exponent bias 8 smaller.
template <class T> TE_INLINE vf load_unit(const T *p) { return decode(load_u8(p), T{}); }
#if defined(__F16C__)
template <class T> constexpr float kUnit = __is_same(T, e4m3) ? 256.f : 1.f;
TE_INLINE vf from_f16_lanes(__m256i h) {
  vf r;
#if defined(__AVX512F__)
  r.v[0] = _mm512_cvtph_ps(h);
#else
  r.v[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(h));
  r.v[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
#endif
  return r;
}
template <> TE_INLINE vf load_unit(const e4m3 *p) {
  const __m256i c = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
  const __m256i h = _mm256_and_si256(_mm256_slli_epi16(c, 7), _mm256_set1_epi16(int16_t(0xbf80)));
  const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(h, _mm256_set1_epi16(0x3f80)), _mm256_set1_epi16(0x3f80));
  return from_f16_lanes(_mm256_or_si256(h, _mm256_and_si256(nan, _mm256_set1_epi16(0x7c00))));
}
template <> TE_INLINE vf load_unit(const e5m2 *p) {
  return from_f16_lanes(_mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p)), 8));
}
#else
template <class T> constexpr float kUnit = 1.f;
#endif
TE_INLINE vf load(const e4m3 *p) { return kUnit<e4m3> == 1.f ? load_unit(p) : load_unit(p) * set1(kUnit<e4m3>); }
TE_INLINE vf load(const e5m2 *p) { return load_unit(p); }
TE_INLINE vf load(const e4m3fnuz *p) { return load_unit(p); }
TE_INLINE vf load(const e5m2fnuz *p) { return load_unit(p); }

// ---- stores: f32 to 16 elements, round to nearest even; fp8 saturates, NaN stays NaN ----
TE_INLINE void store(float *p, vf a) { TE_PARTS *(nf_mem *)(p + p_ * kNative) = a.v[p_]; }
TE_INLINE void store_u8(void *p, vi a) {  // low bytes of 16 lanes (each 0..255)
#if defined(__AVX512F__)
  _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)a.v[0]));
#elif defined(__AVX2__)
  const __m256i w = _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)a.v[0], (__m256i)a.v[1]), 0xd8);
  _mm_storeu_si128((__m128i *)p, _mm_packus_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
#else
  const __m128i lo = _mm_packs_epi32((__m128i)a.v[0], (__m128i)a.v[1]), hi = _mm_packs_epi32((__m128i)a.v[2], (__m128i)a.v[3]);
  _mm_storeu_si128((__m128i *)p, _mm_packus_epi16(lo, hi));
#endif
}
TE_INLINE void store_u16(void *p, vi a) {  // low halfwords of 16 lanes (each 0..65535)
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16((__m512i)a.v[0]));
#elif defined(__AVX2__)
  _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)a.v[0], (__m256i)a.v[1]), 0xd8));
#else
  // SSE2 has only signed saturation: shift the range by 32768 and back
  TE_PARTS a.v[p_] = (a.v[p_] << 16) >> 16;
  _mm_storeu_si128((__m128i *)p, _mm_packs_epi32((__m128i)a.v[0], (__m128i)a.v[1]));
  _mm_storeu_si128((__m128i *)((char *)p + 16), _mm_packs_epi32((__m128i)a.v[2], (__m128i)a.v[3]));
#endif
}
TE_INLINE vi encode(vf x, bf16) {
  const vi u = bits(x), r = shr<16>(u + set1i(0x7fff) + (shr<16>(u) & set1i(1)));
  return select(is_nan(x), shr<16>(u) | set1i(0x40), r);
}
TE_INLINE vi encode(vf x, f16) {
#if defined(__AVX512F__)
  vi r; r.v[0] = (ni)_mm512_cvtepu16_epi32(_mm512_cvtps_ph(x.v[0], _MM_FROUND_TO_NEAREST_INT)); return r;
#elif defined(__F16C__)
  vi r;
  TE_PARTS r.v[p_] = (ni)_mm256_cvtepu16_epi32(_mm256_cvtps_ph(x.v[p_], _MM_FROUND_TO_NEAREST_INT));
  return r;
#else
  const vi u = bits(x), sign = shr<16>(u) & set1i(0x8000), a = u & set1i(0x7fffffff);
  const vi e = max(a & set1i(0x7f800000), set1i(113 << 23)), m = e + set1i(13 << 23);
  vi c = (bits(floats(a) + floats(m)) - m) + shr<13>(e - set1i(113 << 23));
  c = select(a > set1i(0x477fefff), set1i(0x7c00), c);  // 65520 and up
  c = select(a > set1i(0x7f800000), shr<13>(a & set1i(0x7fffff)) | set1i(0x7e00), c);
  return c | sign;
#endif
}
// Adding 2^(e + 23 - mantissa bits) rounds the magnitude to the format's grid, subnormals included, in one f32 addition.
template <int kMinExponent, int kShift> TE_INLINE vi fp8_code(vf x, float largest) {
  const vf a = min(set1(largest), abs(x));  // operand order keeps NaN
  const vi e = max(bits(a) & set1i(0x7f800000), set1i(kMinExponent << 23)), m = e + set1i(kShift << 23);
  return (bits(a + floats(m)) - m) + shr<kShift>(e - set1i(kMinExponent << 23));
}
TE_INLINE vi encode(vf x, e4m3) {
  const vi c = select(is_nan(x), set1i(0x7f), fp8_code<121, 20>(x, 448.f));
  return c | (shr<24>(bits(x)) & set1i(0x80));
}
TE_INLINE vi encode(vf x, e5m2) {
  const vi c = select(is_nan(x), set1i(0x7f), fp8_code<113, 21>(x, 57344.f));
  return c | (shr<24>(bits(x)) & set1i(0x80));
}
// FNUZ: no negative zero, NaN is 0x80 whatever its sign.
TE_INLINE vi fnuz_sign(vi c, vf x) {
  const vi s = c | (shr<24>(bits(x)) & set1i(0x80));
  return select(is_nan(x), set1i(0x80), select(c == set1i(0), c, s));
}
TE_INLINE vi encode(vf x, e4m3fnuz) { return fnuz_sign(fp8_code<120, 20>(x, 240.f), x); }
TE_INLINE vi encode(vf x, e5m2fnuz) { return fnuz_sign(fp8_code<112, 21>(x, 57344.f), x); }
#if defined(__AVX512BW__)
TE_INLINE void store(bf16 *p, vf a) { _mm256_storeu_si256((__m256i *)p, to_bf16(a)); }
#else
TE_INLINE void store(bf16 *p, vf a) { store_u16(p, encode(a, bf16{})); }
#endif
TE_INLINE void store(f16 *p, vf a) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a.v[0], _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  TE_PARTS _mm_storeu_si128((__m128i *)(p + 8 * p_), _mm256_cvtps_ph(a.v[p_], _MM_FROUND_TO_NEAREST_INT));
#else
  store_u16(p, encode(a, f16{}));
#endif
}
// The fast way to fp8 bytes, equal to encode(): minus the code plus a constant in 32-bit lanes (NaN comes out far above), the rest
// on packed 16- and 8-bit lanes.
template <class T> struct Fp8;
template <> struct Fp8<e4m3> { static constexpr int kMinExponent = 121, kShift = 20; static constexpr float kMax = 448.f; };
template <> struct Fp8<e5m2> { static constexpr int kMinExponent = 113, kShift = 21; static constexpr float kMax = 57344.f; };
template <> struct Fp8<e4m3fnuz> { static constexpr int kMinExponent = 120, kShift = 20; static constexpr float kMax = 240.f; };
template <> struct Fp8<e5m2fnuz> { static constexpr int kMinExponent = 112, kShift = 21; static constexpr float kMax = 57344.f; };
template <class T> constexpr bool kIsFp8 = sizeof(T) == 1;
template <class T> constexpr bool kIsFnuz = __is_same(T, e4m3fnuz) || __is_same(T, e5m2fnuz);

#if defined(__AVX512F__)
TE_INLINE ni n_pack32(ni a, ni b) { return (ni)_mm512_packs_epi32((__m512i)a, (__m512i)b); }
TE_INLINE ni n_pack16(ni a, ni b) { return (ni)_mm512_packs_epi16((__m512i)a, (__m512i)b); }
TE_INLINE ni n_packu16(ni a, ni b) { return (ni)_mm512_packus_epi16((__m512i)a, (__m512i)b); }
TE_INLINE ni n_sub16(ni a, ni b) { return (ni)_mm512_sub_epi16((__m512i)a, (__m512i)b); }
TE_INLINE ni n_minu8(ni a, ni b) { return (ni)_mm512_min_epu8((__m512i)a, (__m512i)b); }
TE_INLINE ni n_equal8(ni a, ni b) { return (ni)_mm512_movm_epi8(_mm512_cmpeq_epi8_mask((__m512i)a, (__m512i)b)); }
TE_INLINE ni n_maxpositive(ni a, ni b) { return n_maxi(a, b); }
#elif defined(__AVX2__)
TE_INLINE ni n_pack32(ni a, ni b) { return (ni)_mm256_packs_epi32((__m256i)a, (__m256i)b); }
TE_INLINE ni n_pack16(ni a, ni b) { return (ni)_mm256_packs_epi16((__m256i)a, (__m256i)b); }
TE_INLINE ni n_packu16(ni a, ni b) { return (ni)_mm256_packus_epi16((__m256i)a, (__m256i)b); }
TE_INLINE ni n_sub16(ni a, ni b) { return (ni)_mm256_sub_epi16((__m256i)a, (__m256i)b); }
TE_INLINE ni n_minu8(ni a, ni b) { return (ni)_mm256_min_epu8((__m256i)a, (__m256i)b); }
TE_INLINE ni n_equal8(ni a, ni b) { return (ni)_mm256_cmpeq_epi8((__m256i)a, (__m256i)b); }
TE_INLINE ni n_maxpositive(ni a, ni b) { return n_maxi(a, b); }
#else
TE_INLINE ni n_pack32(ni a, ni b) { return (ni)_mm_packs_epi32((__m128i)a, (__m128i)b); }
TE_INLINE ni n_pack16(ni a, ni b) { return (ni)_mm_packs_epi16((__m128i)a, (__m128i)b); }
TE_INLINE ni n_packu16(ni a, ni b) { return (ni)_mm_packus_epi16((__m128i)a, (__m128i)b); }
TE_INLINE ni n_sub16(ni a, ni b) { return (ni)_mm_sub_epi16((__m128i)a, (__m128i)b); }
TE_INLINE ni n_minu8(ni a, ni b) { return (ni)_mm_min_epu8((__m128i)a, (__m128i)b); }
TE_INLINE ni n_equal8(ni a, ni b) { return (ni)_mm_cmpeq_epi8((__m128i)a, (__m128i)b); }
TE_INLINE ni n_maxpositive(ni a, ni b) { return (ni)_mm_max_ps((__m128)a, (__m128)b); }  // SSE2 has no integer maximum
#endif
TE_INLINE ni n_set8(uint8_t x) { return ni{} + int32_t(x * 0x01010101u); }
TE_INLINE ni n_set16(uint16_t x) { return ni{} + int32_t(x * 0x00010001u); }
// a = |x|, or a NaN without its sign.
template <class T> TE_INLINE ni n_minus_code(nf a) {
  a = n_min(nf{} + Fp8<T>::kMax, a);  // operand order keeps NaN
  const ni e = n_maxpositive((ni)a & 0x7f800000, ni{} + (Fp8<T>::kMinExponent << 23)), m = e + (Fp8<T>::kShift << 23);
  return m - (ni)(a + (nf)m) - (ni)((nu)e >> Fp8<T>::kShift);
}
// Packed 16-bit lanes of n_minus_code to codes; still without sign, NaN 0x7f (FNUZ: 0xff).
template <class T> TE_INLINE ni n_codes16(ni w) {
  return n_sub16(n_set16(uint16_t(-(Fp8<T>::kMinExponent << (23 - Fp8<T>::kShift)))), w);
}
template <class T> TE_INLINE ni n_sign8(ni c, ni s) {  // s: bytes whose top bit is the sign
  s &= n_set8(0x80);
  if constexpr (!kIsFnuz<T>) return n_minu8(c, n_set8(0x7f)) | s;
  // no negative zero, and NaN (0xff so far) is 0x80 whatever its sign
  const ni nan = n_equal8(c, n_set8(0xff));
  return (nan & n_set8(0x80)) | (~nan & (c | (~n_equal8(c, ni{}) & s)));
}
// Bytes of 4 native vectors: a[i] = |x[i]|, s[i] = anything with x[i]'s sign.
template <class T> TE_INLINE ni n_fp8(const nf (&a)[4], const ni (&s)[4]) {
  const ni lo = n_codes16<T>(n_pack32(n_minus_code<T>(a[0]), n_minus_code<T>(a[1])));
  const ni hi = n_codes16<T>(n_pack32(n_minus_code<T>(a[2]), n_minus_code<T>(a[3])));
  const ni c = n_sign8<T>(n_packu16(lo, hi), n_pack16(n_pack32(s[0], s[1]), n_pack32(s[2], s[3])));
  // packing works within 128-bit lanes: put the dwords back in order
#if defined(__AVX512F__)
  return (ni)_mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), (__m512i)c);
#elif defined(__AVX2__)
  return (ni)_mm256_permutevar8x32_epi32((__m256i)c, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
#else
  return c;
#endif
}
template <class T> TE_INLINE void store_fp8(T *p, vf x) {
#if defined(__AVX512F__)
  const ni k = ni{} - (Fp8<T>::kMinExponent << (23 - Fp8<T>::kShift)) - n_minus_code<T>(abs(x).v[0]);  // NaN: huge as unsigned
  __m128i c = _mm512_cvtusepi32_epi8((__m512i)k);
  const __m128i s = _mm_and_si128(_mm512_cvtepi32_epi8(_mm512_srli_epi32((__m512i)x.v[0], 24)), _mm_set1_epi8(-128));
  if constexpr (kIsFnuz<T>) {
    c = _mm_or_si128(c, _mm_maskz_mov_epi8(_mm_test_epi8_mask(c, c), s));
    c = _mm_mask_mov_epi8(c, _mm512_cmp_ps_mask(x.v[0], x.v[0], _CMP_UNORD_Q), _mm_set1_epi8(-128));
  } else {
    c = _mm_or_si128(_mm_min_epu8(c, _mm_set1_epi8(0x7f)), s);
  }
  _mm_storeu_si128((__m128i *)p, c);
#elif defined(__AVX2__)
  const vf a = abs(x);
  const ni w = n_codes16<T>(n_pack32(n_minus_code<T>(a.v[0]), n_minus_code<T>(a.v[1]))), s = n_pack32((ni)x.v[0], (ni)x.v[1]);
  const ni c = n_sign8<T>(n_packu16(w, w), n_pack16(s, s));
  _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(_mm256_permutevar8x32_epi32((__m256i)c, _mm256_setr_epi32(0, 4, 1, 5, 0, 0, 0, 0))));
#else
  const vf a = abs(x);
  const nf av[4] = {a.v[0], a.v[1], a.v[2], a.v[3]};
  const ni s[4] = {(ni)x.v[0], (ni)x.v[1], (ni)x.v[2], (ni)x.v[3]};
  *(ni_mem1 *)p = n_fp8<T>(av, s);
#endif
}
template <class T> TE_INLINE void store(T *p, vf a) { store_fp8(p, a); }

// ---- tails: n in [0, 16] elements; lanes past n load as 0 and are not stored ----
template <class T> TE_INLINE vf load(const T *p, int n) {
  if (n >= 16) return load(p);
  alignas(64) T t[16] = {};
  memcpy(t, p, n * sizeof(T));
  return load((const T *)t);
}
template <class T> TE_INLINE void store(T *p, vf a, int n) {
  if (n >= 16) return store(p, a);
  alignas(64) T t[16];
  store((T *)t, a);
  memcpy(p, t, n * sizeof(T));
}
// a with the lanes past n replaced by `fill`.
TE_INLINE vf keep_first(vf a, int n, float fill) {
  if (n >= 16) return a;
  alignas(64) float t[16];
  memcpy(t, &a, 64);
  for (int i = n < 0 ? 0 : n; i < 16; i++) t[i] = fill;
  return load((const float *)t);
}

// One element, through the same conversions.
template <class T> TE_INLINE float to_f32(T x) {
  alignas(64) T t[16] = {x};
  alignas(64) float f[16];
  store((float *)f, load((const T *)t));
  return f[0];
}
TE_INLINE float to_f32(float x) { return x; }
template <class T> TE_INLINE T from_f32(float x) {
  alignas(64) T t[16];
  store((T *)t, set1(x));
  return t[0];
}

// e^x for every float: 2^n * polynomial, about 1 ulp; 0 below -104, +inf above 88.73, NaN kept.
TE_INLINE vf exp(vf x) {
  const vf n = round(min(max(x * set1(1.44269504f), set1(-160.f)), set1(160.f)));
  const vf r = fma(n, set1(-1.42860677e-6f), fma(n, set1(-0.693145752f), x));  // x - n ln 2 in two pieces
  vf p = set1(1.98412698e-4f);
  p = fma(p, r, set1(1.38888889e-3f));
  p = fma(p, r, set1(8.33333333e-3f));
  p = fma(p, r, set1(4.16666667e-2f));
  p = fma(p, r, set1(1.66666667e-1f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.f));
  p = fma(p, r, set1(1.f));
  // 2^n in two factors, so that subnormal results and n = 128 come out right
  const vi k = to_int(n);
  vi a;
  TE_PARTS a.v[p_] = k.v[p_] >> 1;
  const vi b = k - a;
  p = p * floats(shl<23>(a + set1i(127))) * floats(shl<23>(b + set1i(127)));
  p = select(x < set1(-104.f), zero(), select(x > set1(88.7228394f), floats(set1i(0x7f800000)), p));
  return select(is_nan(x), x, p);
}
TE_INLINE vf sigmoid(vf x) { return set1(1.f) / (set1(1.f) + exp(-x)); }

// parallel() for a lambda.
template <class F> TE_INLINE bool parallel_for(int64_t chunks, int64_t cost, F &&f) {
  struct Body { static void call(void *c, int64_t i) { (*static_cast<__typeof__(&f)>(c))(i); } };
  return parallel(chunks, cost, &Body::call, (void *)&f);
}

// Calls f(T{}) with the storage type of a DLPack dtype; false when it is none of those listed.
template <class F> TE_INLINE bool visit_float(DType t, F &&f) {
  switch (t) {
    case DType::f32: f(float{}); return true;
    case DType::f16: f(f16{}); return true;
    case DType::bf16: f(bf16{}); return true;
    default: return false;
  }
}
template <class F> TE_INLINE bool visit_fp8(DType t, F &&f) {
  switch (t) {
    case DType::e4m3: f(e4m3{}); return true;
    case DType::e5m2: f(e5m2{}); return true;
    case DType::e4m3fnuz: f(e4m3fnuz{}); return true;
    case DType::e5m2fnuz: f(e5m2fnuz{}); return true;
    default: return false;
  }
}
template <class F> TE_INLINE bool visit_any(DType t, F &&f) { return visit_float(t, f) || visit_fp8(t, f); }

}  // namespace
}  // namespace te::cpu::TE_CPU_ISA
