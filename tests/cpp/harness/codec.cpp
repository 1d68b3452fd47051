// SPDX-License-Identifier: Apache-2.0
#include "harness/codec.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace te::test {
namespace {

// A binary floating-point format: sign, exponent, mantissa. Value of a normal code = 2^(e - bias) * (1 + m / 2^mantissa).
struct Format {
  int exponent, mantissa, bias;
  enum { kIeee, kFn, kFnuz } special;  // FN: only all-ones is NaN, no infinity. FNUZ: only "negative zero" is NaN
  double max;
};
const Format *format_of(DType t) {
  static const Format f16 = {5, 10, 15, Format::kIeee, 65504}, bf16 = {8, 7, 127, Format::kIeee, 0x1.fep127},
                      f32 = {8, 23, 127, Format::kIeee, 0x1.fffffep127}, e4m3 = {4, 3, 7, Format::kFn, 448},
                      e5m2 = {5, 2, 15, Format::kIeee, 57344}, e4m3fnuz = {4, 3, 8, Format::kFnuz, 240},
                      e5m2fnuz = {5, 2, 16, Format::kFnuz, 57344};
  switch (t) {
    case DType::f16: return &f16;
    case DType::bf16: return &bf16;
    case DType::f32: return &f32;
    case DType::e4m3: return &e4m3;
    case DType::e5m2: return &e5m2;
    case DType::e4m3fnuz: return &e4m3fnuz;
    case DType::e5m2fnuz: return &e5m2fnuz;
    default: return nullptr;
  }
}

struct Named {
  DType t;
  const char *name;
  DLDataType dl;
};
const Named kNames[] = {{DType::f32, "f32", {kDLFloat, 32, 1}},
                        {DType::f16, "f16", {kDLFloat, 16, 1}},
                        {DType::bf16, "bf16", {kDLBfloat, 16, 1}},
                        {DType::e4m3, "e4m3", {kDLFloat8_e4m3fn, 8, 1}},
                        {DType::e5m2, "e5m2", {kDLFloat8_e5m2, 8, 1}},
                        {DType::e4m3fnuz, "e4m3fnuz", {kDLFloat8_e4m3fnuz, 8, 1}},
                        {DType::e5m2fnuz, "e5m2fnuz", {kDLFloat8_e5m2fnuz, 8, 1}},
                        {DType::e8m0, "e8m0", {kDLFloat8_e8m0fnu, 8, 1}},
                        {DType::u8, "u8", {kDLUInt, 8, 1}},
                        {DType::i8, "i8", {kDLInt, 8, 1}},
                        {DType::i16, "i16", {kDLInt, 16, 1}},
                        {DType::i32, "i32", {kDLInt, 32, 1}},
                        {DType::i64, "i64", {kDLInt, 64, 1}},
                        {DType::boolean, "bool", {kDLBool, 8, 1}},
                        {DType::f64, "f64", {kDLFloat, 64, 1}}};
const Named &named(DType t) {
  for (const Named &n : kNames)
    if (n.t == t) return n;
  throw std::runtime_error("dtype without a name");
}

// 2^e, and floor(log2 a) of a positive normal double; below that range the least exponent, which is all that encode needs.
double pow2(int e) {
  const uint64_t u = (uint64_t)(e + 1023) << 52;
  double d;
  memcpy(&d, &u, 8);
  return d;
}
int exponent_of(double a) {
  uint64_t u;
  memcpy(&u, &a, 8);
  return (int)(u >> 52 & 2047) - 1023;
}

int64_t sign_extend(uint64_t bits, int width) { return (int64_t)(bits << (64 - width)) >> (64 - width); }

}  // namespace

DLDataType dl(DType t) { return named(t).dl; }
const char *name(DType t) { return named(t).name; }
DType parse_dtype(const std::string &s) {
  for (const Named &n : kNames)
    if (s == n.name) return n.t;
  throw std::runtime_error("unknown dtype '" + s + "'");
}

namespace {
double decode_slowly(DType t, uint64_t bits) {
  if (const Format *f = format_of(t)) {
    const int width = 1 + f->exponent + f->mantissa;
    const double sign = bits >> (width - 1) & 1 ? -1 : 1;
    const int e = bits >> f->mantissa & ((1 << f->exponent) - 1);
    const uint64_t ones = (1ull << f->mantissa) - 1, m = bits & ones;
    if (f->special == Format::kFnuz && sign < 0 && e == 0 && m == 0) return NAN;
    if (e == (1 << f->exponent) - 1) {
      if (f->special == Format::kIeee) return m ? std::copysign(NAN, sign) : sign * INFINITY;
      if (f->special == Format::kFn && m == ones) return std::copysign(NAN, sign);
    }
    const double fraction = std::ldexp((double)m, -f->mantissa);
    return sign * (e ? std::ldexp(1 + fraction, e - f->bias) : std::ldexp(fraction, 1 - f->bias));
  }
  switch (t) {
    case DType::e8m0: return (bits & 255) == 255 ? NAN : std::ldexp(1.0, (int)(bits & 255) - 127);
    case DType::u8: case DType::boolean: return (double)(bits & 255);
    case DType::i8: return (double)sign_extend(bits, 8);
    case DType::i16: return (double)sign_extend(bits, 16);
    case DType::i32: return (double)sign_extend(bits, 32);
    case DType::i64: return (double)(int64_t)bits;
    case DType::f64: { double d; memcpy(&d, &bits, 8); return d; }
    default: throw std::runtime_error("decode: dtype");
  }
}

// Every value of an 8- or 16-bit type.
const std::vector<double> &table(DType t) {
  static std::vector<double> tables[16];
  std::vector<double> &v = tables[(int)t];
  if (v.empty()) {
    std::vector<double> all((size_t)1 << (8 * bytes_of(t)));
    for (size_t i = 0; i < all.size(); i++) all[i] = decode_slowly(t, i);
    v.swap(all);
  }
  return v;
}
}  // namespace

double decode(DType t, uint64_t bits) {
  const size_t size = bytes_of(t);
  return size <= 2 ? table(t)[bits & ((1u << (8 * size)) - 1)] : decode_slowly(t, bits);
}

uint64_t encode(DType t, double x) {
  const Format *f = format_of(t);
  if (!f) {
    if (t == DType::f64) { uint64_t u; memcpy(&u, &x, 8); return u; }
    if (t == DType::e8m0) return std::isnan(x) ? 255 : (uint64_t)(std::ilogb(x) + 127);
    return (uint64_t)(int64_t)x;
  }
  const int width = 1 + f->exponent + f->mantissa;
  const bool fp8 = width == 8;
  const uint64_t sign = (std::signbit(x) ? 1ull : 0ull) << (width - 1);
  const uint64_t all_ones = (1ull << (width - 1)) - 1, infinity = (uint64_t)((1 << f->exponent) - 1) << f->mantissa;
  if (std::isnan(x)) {
    if (f->special == Format::kFnuz) return 0x80;
    return sign | (fp8 ? all_ones : infinity | 1ull << (f->mantissa - 1));
  }
  double a = std::fabs(x);
  if (fp8 && a > f->max) a = f->max;
  if (std::isinf(a)) return sign | infinity;
  // the grid around a has step 2^(exponent - mantissa); below the least normal number it stays constant
  int e = exponent_of(a);
  if (e < 1 - f->bias) e = 1 - f->bias;
  const double steps = a * pow2(f->mantissa - e);  // exact
  uint64_t n = (uint64_t)steps;
  const double rest = steps - (double)n;
  if (rest > 0.5 || (rest == 0.5 && n % 2 == 1)) n += 1;
  const double rounded = (double)n * pow2(e - f->mantissa);
  if (rounded > f->max) return sign | infinity;  // fp8 cannot get here
  // n counts steps from 0, so carries into the next binade fall out of the addition
  const uint64_t code = n + ((uint64_t)(e - (1 - f->bias)) << f->mantissa);
  if (f->special == Format::kFnuz && code == 0) return 0;
  return sign | code;
}

double ulp(DType t, double x) {
  const Format *f = format_of(t);
  if (!f) return 0;
  const double a = std::fabs(x);
  int e = std::isnan(a) ? 1 - f->bias : exponent_of(a > f->max ? f->max : a);
  if (e < 1 - f->bias) e = 1 - f->bias;
  return pow2(e - f->mantissa);
}

double largest(DType t) {
  const Format *f = format_of(t);
  return f ? f->max : std::numeric_limits<double>::max();
}

double read_element(DType t, const void *p) {
  if (t == DType::f32) {
    float f;
    memcpy(&f, p, 4);
    return f;
  }
  uint64_t u = 0;
  memcpy(&u, p, bytes_of(t));
  return decode(t, u);
}
void write_element(DType t, void *p, double x) {
  const uint64_t u = encode(t, x);
  memcpy(p, &u, bytes_of(t));
}

std::string text(const Shape &s) {
  std::string r = "[";
  for (size_t i = 0; i < s.size(); i++) r += (i ? ", " : "") + std::to_string(s[i]);
  return r + "]";
}

}  // namespace te::test
