// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <sstream>

#include "harness/op_test.h"
#include "ops/view.h"

namespace te::test {
namespace {

struct Quantize {
  static constexpr const char *op = "quantize", *cases = "quantize";
  static void build(const Case &c, Problem &p) {
    Shape s = c.shape("m");
    s.push_back(c.i("k"));
    Arg &x = p.in("x", s, c.dtype("dtype"));
    if (c.has("list")) {
      std::vector<double> v;
      std::stringstream in(c.s("list"));
      for (std::string n; std::getline(in, n, ',');) v.push_back(std::stod(n));
      x.set(v);
    }
    const bool noop = c.flag("noop");
    if (c.has("noop")) p.in("noop", {1}, DType::f32, noop ? Fill::one : Fill::zero);
    Arg &y = p.out("y", s, c.dtype("y")).exact();
    const std::string part = c.s("part", "row");
    if (is_fp8(y.dtype)) y.scaled((float)c.f("scale"));
    if (part != "row") y.columnwise();
    if (part == "column") y.columnwise_only();
    if (c.flag("amax")) y.amax();
    if (c.has("accumulate")) y.accumulate_amax((float)c.f("accumulate"));
    if (noop) y.not_written();
    if (c.has("dbias")) p.out("dbias", {c.i("k")}, c.dtype("dbias"));
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const Shape &s = p.find("x")->shape;
    const int64_t k = last(s), m = count(leading(s));
    const std::vector<T> &x = v["x"];
    std::vector<T> &dbias = v.out("dbias", k);
    v.out("y") = x;
    for (int64_t i = 0; i < m; i++)
      for (int64_t j = 0; j < k; j++) dbias[j] += x[i * k + j];
  }
};
TE_TEST(Quantize);

// ---- what the cases cannot say ----

constexpr DType kFp8[] = {DType::e4m3, DType::e5m2, DType::e4m3fnuz, DType::e5m2fnuz};

// n numbers, as stored in `type`, to codes; both orientations, which must agree.
std::vector<uint8_t> codes(const void *x, DType type, int64_t n, DType to, float scale, float *amax = nullptr, float *scale_inv = nullptr) {
  std::vector<uint8_t> y((size_t)n, 0xee), column((size_t)n, 0xee);
  const int64_t k = n % 16 ? 1 : 16;
  float inverse, top;
  View a(const_cast<void *>(x), type, {n / k, k}), b(y.data(), to, {n / k, k});
  b.scaled(&scale, scale_inv ? scale_inv : &inverse).columnwise(column.data(), to, {k, n / k}, nullptr).amax(amax ? amax : &top);
  nvte_quantize_args q = NVTE_QUANTIZE_ARGS_INIT;
  q.x = a, q.y = b;
  EXPECT_EQ(nvte_quantize(nullptr, &q), NVTE_OK) << nvte_last_error();
  for (int64_t i = 0; i < n; i++) {
    if (column[(size_t)(i % k * (n / k) + i / k)] == y[(size_t)i]) continue;
    ADD_FAILURE() << "columnwise differs from data at " << i;
    break;
  }
  return y;
}

// Every 16-bit number, and f32 numbers round every tie of every format, against the codec written from the formats' definitions.
TEST(Quantize, every_16_bit_number) {
  for (DType type : {DType::f16, DType::bf16}) {
    std::vector<uint16_t> x(65536);
    for (size_t i = 0; i < x.size(); i++) x[i] = (uint16_t)i;
    for (DType to : kFp8)
      for (float scale : {1.f, 24.f, 0x1p-10f}) {
        const std::vector<uint8_t> y = codes(x.data(), type, 65536, to, scale);
        size_t wrong = 0;
        for (size_t i = 0; i < x.size(); i++) wrong += y[i] != encode(to, (double)((float)decode(type, x[i]) * scale));
        EXPECT_EQ(wrong, 0u) << name(type) << " to " << name(to) << ", scale " << scale;
      }
  }
}
TEST(Quantize, ties_and_random_f32) {
  for (DType to : kFp8) {
    std::vector<float> x;
    auto pattern = [&](uint32_t u) {
      float f;
      memcpy(&f, &u, 4);
      x.push_back(f);
    };
    for (int c = 0; c < 0x7f; c++) {  // half way between neighbouring codes, exactly and one bit to either side
      const double low = decode(to, (uint64_t)c), high = decode(to, (uint64_t)c + 1);
      if (!(high > low)) continue;
      const float tie = (float)((low + high) / 2);
      for (float v : {std::nextafter(tie, 0.f), tie, std::nextafter(tie, 1e30f), (float)low, (float)high}) x.push_back(v), x.push_back(-v);
    }
    for (uint64_t i = 0; i < 100000; i++) pattern((uint32_t)mix(7, i));
    while (x.size() % 16) x.push_back(0);
    const std::vector<uint8_t> y = codes(x.data(), DType::f32, (int64_t)x.size(), to, 1.f);
    size_t wrong = 0;
    for (size_t i = 0; i < x.size(); i++) wrong += y[i] != encode(to, (double)x[i]);
    EXPECT_EQ(wrong, 0u) << name(to);
  }
}

// Q11: the values past the maximum, as literal codes.
TEST(Quantize, Q11_saturates) {
  const float x[8] = {448, 449, 464, 465, 1e4f, INFINITY, -INFINITY, NAN};
  const uint8_t want[8] = {0x7e, 0x7e, 0x7e, 0x7e, 0x7e, 0x7e, 0xfe, 0x7f};
  const std::vector<uint8_t> y = codes(x, DType::f32, 8, DType::e4m3, 1.f);
  for (int i = 0; i < 8; i++) EXPECT_EQ(y[(size_t)i], want[i]) << x[i];
}

// Q01: FLT_MAX as scale leaves a scale_inv that is finite and not zero, with flush-to-zero set by the caller or not (the harness
// runs every case with it). Q02, Q03: zeros quantise to zero bytes and come back as exact zeros.
TEST(Quantize, Q01_Q03_largest_scale) {
  const float x[16] = {0};
  float amax = -1, scale_inv = -1;
  const std::vector<uint8_t> y = codes(x, DType::f32, 16, DType::e4m3, 3.402823466e38f, &amax, &scale_inv);
  for (uint8_t c : y) EXPECT_EQ(c, 0);
  EXPECT_EQ(amax, 0.f);
  EXPECT_GT(scale_inv, 0.f);
  EXPECT_EQ(scale_inv, 1.f / 3.402823466e38f);
}

// Scales no recipe makes: the formula holds for them too.
TEST(Quantize, odd_scales) {
  const float x[16] = {0.f, 1.f, -1.f, 3e38f, -3e38f, INFINITY, -INFINITY, NAN, 1e-45f, -1e-45f, 448.f, 2.f, -0.f, 5.f, 7.f, -9.f};
  for (float scale : {0.f, -2.f, INFINITY, -INFINITY, 1e-45f, 3.402823466e38f})
    for (DType to : kFp8) {
      const std::vector<uint8_t> y = codes(x, DType::f32, 16, to, scale);
      for (size_t i = 0; i < 16; i++) {
        const float v = x[i] * scale;
        const uint64_t want = encode(to, (double)v);
        // the sign of the NaN that 0 * inf gives is the processor's
        if (v != v) EXPECT_TRUE(std::isnan(decode(to, y[i]))) << x[i] << " * " << scale;
        else EXPECT_EQ(y[i], want) << x[i] << " * " << scale << " to " << name(to);
      }
    }
}

// Q12: a 16-bit output's amax is that of the numbers stored. 1 + 2^-8 + 2^-20 rounds up to 1 + 2^-7.
TEST(Quantize, Q12_amax_of_what_is_stored) {
  const float x[2] = {1.00390720367f, 0.5f};
  uint16_t y[2];
  float amax = 0;
  View a(const_cast<float *>(x), DType::f32, {2}), b(y, DType::bf16, {2});
  b.amax(&amax);
  nvte_quantize_args q = NVTE_QUANTIZE_ARGS_INIT;
  q.x = a, q.y = b;
  ASSERT_EQ(nvte_quantize(nullptr, &q), NVTE_OK) << nvte_last_error();
  EXPECT_EQ(y[0], 0x3f81);
  EXPECT_EQ(amax, 1.0078125f);
}

TEST(Quantize, refuses) {
  float x[4] = {1, 2, 3, 4}, inverse = 0;
  uint8_t y[4] = {9, 9, 9, 9};
  nvte_quantize_args q = NVTE_QUANTIZE_ARGS_INIT;
  View a(x, DType::f32, {4}), none(nullptr, DType::e4m3, {4}), plain(y, DType::e4m3, {4}), other(y, DType::e4m3, {2, 2});
  none.scaled(nullptr, &inverse);
  other.scaled(nullptr, &inverse);
  for (nvte_tensor *bad : {(nvte_tensor *)none, (nvte_tensor *)plain, (nvte_tensor *)other}) {
    q.x = a, q.y = bad;
    EXPECT_EQ(nvte_quantize(nullptr, &q), NVTE_ERR_INVALID_ARGUMENT);
    EXPECT_NE(strstr(nvte_last_error(), "y"), nullptr) << nvte_last_error();
  }
  EXPECT_EQ(y[0], 9);
}

}  // namespace
}  // namespace te::test
