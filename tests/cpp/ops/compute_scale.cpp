// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <sstream>

#include "harness/op_test.h"
#include "ops/view.h"

namespace te::test {
namespace {

// max / amax in double, rounded once: a quotient of two f32 has no double rounding.
float scale_of(float amax, double largest, float epsilon, bool pow2) {
  const float a = amax < epsilon ? epsilon : amax;
  if (!std::isfinite(a) || a == 0) return 1;
  float s = (float)(largest / (double)a);
  if (std::isinf(s)) s = FLT_MAX;
  int e;
  return pow2 ? (std::frexp(s, &e), std::ldexp(1.f, e - 1)) : s;
}

struct ComputeScale {
  static constexpr const char *op = "compute_scale", *cases = "compute_scale";
  static void build(const Case &c, Problem &p) {
    std::vector<double> list;
    if (c.has("amax")) {
      std::stringstream in(c.s("amax"));
      for (std::string n; std::getline(in, n, ',');) list.push_back((double)std::strtof(n.c_str(), nullptr));
    }
    const int64_t n = c.has("n") ? c.i("n") : (int64_t)list.size();
    Arg &amax = p.in("amax", {n}, DType::f32, Fill::positive);
    if (!list.empty()) amax.set(list);
    p.out("scale", {n}, DType::f32).exact();
    if (c.i("inverse", 1)) p.out("scale_inv", {n}, DType::f32).exact();
    p.set("dtype", c.dtype("dtype"));
    p.set("epsilon", c.f("epsilon", 0));
    p.set("flags", c.flag("pow2") ? NVTE_COMPUTE_SCALE_POW2 : 0);
    if (c.has("bad")) p.must_fail(NVTE_ERR_INVALID_ARGUMENT, c.s("bad").c_str());
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const size_t n = v["amax"].size();
    std::vector<T> &scale = v.out("scale"), &inverse = v.out("scale_inv", (int64_t)n);
    for (size_t i = 0; i < n; i++) {
      const float s = scale_of((float)v["amax"][i], largest(p.dtypes.at("dtype")), (float)p.scalar("epsilon"), p.scalar("flags") != 0);
      scale[i] = (T)s;
      inverse[i] = (T)(1 / (double)s);
    }
  }
};
TE_TEST(ComputeScale);

// Q01: on either side of the first amax whose quotient is finite, by bit pattern.
TEST(ComputeScale, Q01_never_infinite) {
  const struct { DType type; uint32_t first; } rows[] = {{DType::e4m3, 0x03e00001}, {DType::e5m2, 0x07600001}, {DType::e4m3fnuz, 0x03700001}};
  for (const auto &r : rows) {
    const uint32_t bits[4] = {1, r.first - 1, r.first, r.first + 0x01000000};
    float amax[4], scale[4], inverse[4];
    memcpy(amax, bits, sizeof amax);
    View a(amax, DType::f32, {4}), s(scale, DType::f32, {4}), i(inverse, DType::f32, {4});
    nvte_compute_scale_args args = NVTE_COMPUTE_SCALE_ARGS_INIT;
    args.amax = a, args.scale = s, args.scale_inv = i, args.dtype = dl(r.type);
    ASSERT_EQ(nvte_compute_scale(nullptr, &args), NVTE_OK) << nvte_last_error();
    EXPECT_EQ(scale[0], FLT_MAX);
    EXPECT_EQ(scale[1], FLT_MAX);
    EXPECT_EQ(scale[2], FLT_MAX);  // the quotient itself is 0x7f7fffff here
    EXPECT_LT(scale[3], FLT_MAX);
    for (float v : inverse) EXPECT_TRUE(std::isfinite(v) && v > 0) << v;
  }
}

}  // namespace
}  // namespace te::test
