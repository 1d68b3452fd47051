// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "harness/op_test.h"
#include "ops/view.h"

namespace te::test {
namespace {

struct Dequantize {
  static constexpr const char *op = "dequantize", *cases = "dequantize";
  static void build(const Case &c, Problem &p) {
    Shape s = c.shape("m");
    s.push_back(c.i("k"));
    const DType type = c.dtype("dtype");
    Arg &x = p.in("x", s, type).scaled((float)c.f("scale"));
    if (c.flag("table")) {  // every code (NaN in one spelling)
      std::vector<double> v((size_t)x.size());
      for (size_t i = 0; i < v.size(); i++) v[i] = decode(type, i % 256);
      x.set(v);
    }
    const std::string part = c.s("part", "row");
    if (part != "row") x.columnwise();
    if (part == "column") x.columnwise_only();
    p.out("y", s, c.dtype("y")).exact();
  }
  template <class T> static void reference(const Problem &, Values<T> &v) { v.out("y") = v["x"]; }
};
TE_TEST(Dequantize);

void dequantize(const uint8_t *x, DType type, float scale_inv, float *y, int64_t n) {
  View a(const_cast<uint8_t *>(x), type, {n}), b(y, DType::f32, {n});
  a.scaled(nullptr, &scale_inv);
  nvte_dequantize_args d = NVTE_DEQUANTIZE_ARGS_INIT;
  d.x = a, d.y = b;
  ASSERT_EQ(nvte_dequantize(nullptr, &d), NVTE_OK) << nvte_last_error();
}

// Q19: the same bytes are other numbers in the FNUZ types.
TEST(Dequantize, Q19_fnuz_is_not_ocp) {
  const uint8_t bytes[4] = {0x80, 0x7f, 0x78, 0x38};
  const struct { DType type; float want[4]; } rows[] = {{DType::e4m3, {-0.f, NAN, 256.f, 1.f}},
                                                        {DType::e4m3fnuz, {NAN, 240.f, 128.f, 0.5f}},
                                                        {DType::e5m2, {-0.f, NAN, 32768.f, 0.5f}},
                                                        {DType::e5m2fnuz, {NAN, 57344.f, 16384.f, 0.25f}}};
  for (const auto &r : rows) {
    float y[4];
    dequantize(bytes, r.type, 1.f, y, 4);
    for (int i = 0; i < 4; i++) {
      if (std::isnan(r.want[i])) EXPECT_TRUE(std::isnan(y[i])) << name(r.type) << " " << (int)bytes[i];
      else EXPECT_TRUE(y[i] == r.want[i] && std::signbit(y[i]) == std::signbit(r.want[i])) << name(r.type) << " " << (int)bytes[i] << ": " << y[i];
    }
  }
}

// All 256 codes of every type with scales to the ends of f32: one rounding of the product.
TEST(Dequantize, every_code_and_scale) {
  std::vector<uint8_t> x(256);
  for (size_t i = 0; i < 256; i++) x[i] = (uint8_t)i;
  for (DType type : {DType::e4m3, DType::e5m2, DType::e4m3fnuz, DType::e5m2fnuz})
    for (float s : {1.f, 0.37f, 2.9387359e-39f, 1e-45f, 3e38f, 0.f, 0x1p-130f, INFINITY}) {
      std::vector<float> y(256);
      dequantize(x.data(), type, s, y.data(), 256);
      size_t wrong = 0;
      for (size_t i = 0; i < 256; i++) {
        const float want = (float)decode(type, i) * s;
        wrong += !(std::isnan(want) ? std::isnan(y[i]) : y[i] == want && std::signbit(y[i]) == std::signbit(want));
      }
      EXPECT_EQ(wrong, 0u) << name(type) << ", scale_inv " << s;
    }
}

}  // namespace
}  // namespace te::test
