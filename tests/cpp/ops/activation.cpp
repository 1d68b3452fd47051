// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <gtest/gtest.h>

#include "harness/op_test.h"

namespace te::test {
namespace {

template <class T> T sigmoid(T x) { return 1 / (1 + std::exp(-x)); }
// f and f' as libte/activation.h defines them.
template <class T> T value(int a, T x) {
  switch (a) {
    case NVTE_ACTIVATION_GELU: return x * (T(0.5) + T(0.5) * std::tanh(x * (T(0.7978845608028654) + T(0.035677408136300125) * x * x)));
    case NVTE_ACTIVATION_GELU_ERF: return x * (T(0.5) + T(0.5) * std::erf(x * T(0.7071067811865476)));
    case NVTE_ACTIVATION_QGELU: return x * sigmoid(T(1.702) * x);
    case NVTE_ACTIVATION_RELU: return x > 0 ? x : 0;
    case NVTE_ACTIVATION_SRELU: return x > 0 ? x * x : 0;
    case NVTE_ACTIVATION_SILU: return x * sigmoid(x);
    default: return sigmoid(x);
  }
}
template <class T> T slope(int a, T x) {
  switch (a) {
    case NVTE_ACTIVATION_GELU: {
      const T t = std::tanh(x * (T(0.7978845608028654) + T(0.035677408136300125) * x * x));
      return T(0.5) + T(0.5) * t + T(0.5) * x * (1 - t * t) * (T(0.7978845608028654) + T(0.10703222440890037) * x * x);
    }
    case NVTE_ACTIVATION_GELU_ERF:
      return T(0.5) + T(0.5) * std::erf(x * T(0.7071067811865476)) + x * T(0.3989422804014327) * std::exp(T(-0.5) * x * x);
    case NVTE_ACTIVATION_QGELU: {
      const T s = sigmoid(T(1.702) * x);
      return s + T(1.702) * x * s * (1 - s);
    }
    case NVTE_ACTIVATION_RELU: return x > 0 ? 1 : 0;
    case NVTE_ACTIVATION_SRELU: return x > 0 ? 2 * x : 0;
    case NVTE_ACTIVATION_SILU: return sigmoid(x) + x * sigmoid(x) * (1 - sigmoid(x));
    default: return sigmoid(x) * (1 - sigmoid(x));
  }
}

Shape shape_of(const Case &c) {
  Shape s = c.s("m").empty() ? Shape{} : c.shape("m");
  s.push_back(c.i("h"));
  return s;
}
// relu's kink is no place for finite differences: move away from it
void away_from_zero(Arg &x) {
  for (double &v : x.values) v = std::fabs(v) < 0.01 ? 0.5 : v;
}
void output(const Case &c, Arg &y) {
  if (is_fp8(y.dtype)) y.scaled((float)c.f("scale"));
  if (is_fp8(y.dtype) || c.flag("amax")) y.amax();
  if (c.s("part", "row") != "row") y.columnwise();
  if (c.s("part", "row") == "column") y.columnwise_only();
}
void common(const Case &c, Problem &p) {
  p.set("activation", c.f("f"));
  if (c.has("flags")) p.set("flags", c.f("flags"));
  if (c.has("bad")) p.must_fail(NVTE_ERR_INVALID_ARGUMENT, c.s("bad").c_str());
}

struct Forward {
  static constexpr const char *op = "activation_forward", *cases = "activation";
  static void build(const Case &c, Problem &p) {
    const DType t = c.dtype("dtype");
    Arg &x = p.in("x", shape_of(c), t);
    away_from_zero(x);
    for (size_t i = 0; c.flag("V01") && i < x.values.size(); i++) x.values[i] = (float)-2.699;
    common(c, p);
    Arg &y = p.out("y", shape_of(c), c.dtype("y", t));
    output(c, y);
    if (y.dtype == t) p.may_alias("y", "x");
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const std::vector<T> &x = v["x"];
    std::vector<T> &y = v.out("y");
    for (size_t i = 0; i < x.size(); i++) y[i] = value((int)p.scalar("activation"), x[i]);
  }
};
TE_TEST(Forward);

struct Backward {
  static constexpr const char *op = "activation_backward", *cases = "activation";
  static constexpr Gradient gradient = {"activation_forward", {{"x", "dx"}}, {{"y", "dy"}}};
  static void build(const Case &c, Problem &p) {
    const DType t = c.dtype("dtype");
    p.in("dy", shape_of(c), c.dtype("dy", t));
    away_from_zero(p.in("x", shape_of(c), t));
    common(c, p);
    output(c, p.out("dx", shape_of(c), c.dtype("y", t)));
    if (c.has("dbias")) p.out("dbias", {c.i("h")}, c.dtype("dbias"));
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const std::vector<T> &x = v["x"], &dy = v["dy"];
    const int64_t h = last(p.find("x")->shape);
    std::vector<T> &dx = v.out("dx"), &dbias = v.out("dbias", h);
    for (size_t i = 0; i < x.size(); i++) {
      dx[i] = dy[i] * slope((int)p.scalar("activation"), x[i]);
      dbias[i % h] += dx[i];
    }
  }
};
TE_TEST(Backward);

float forward_one(int activation, float x) {
  float y = NAN;
  int64_t one = 1;
  nvte_tensor tx = {}, ty = {};
  tx.struct_size = sizeof tx;
  tx.data = {&x, {kDLCPU, 0}, 1, dl(DType::f32), &one, nullptr, 0};
  ty = tx;
  ty.data.data = &y;
  nvte_activation_forward_args a = {};
  a.struct_size = sizeof a;
  a.x = &tx;
  a.y = &ty;
  a.activation = activation;
  EXPECT_EQ(nvte_activation_forward(nullptr, &a), NVTE_OK) << nvte_last_error();
  return y;
}

// V01: the two GELUs differ most, by 4.7323e-4, at -2.699; each name means its own formula.
TEST(Activation, V01_gelu_names) {
  const float tanh_form = forward_one(NVTE_ACTIVATION_GELU, -2.699f), erf_form = forward_one(NVTE_ACTIVATION_GELU_ERF, -2.699f);
  const double step = ulp(DType::f32, 0.01);
  EXPECT_LE(std::fabs(tanh_form - value<double>(NVTE_ACTIVATION_GELU, -2.699f)), 16 * step);
  EXPECT_LE(std::fabs(erf_form - value<double>(NVTE_ACTIVATION_GELU_ERF, -2.699f)), 16 * step);
  EXPECT_EQ(std::round((tanh_form - erf_form) * 1e8), 47323);
}

// Infinities give the limits; NaN stays.
TEST(Activation, limits) {
  for (int f = NVTE_ACTIVATION_GELU; f <= NVTE_ACTIVATION_SIGMOID; f++) {
    EXPECT_EQ(forward_one(f, INFINITY), f == NVTE_ACTIVATION_SIGMOID ? 1 : INFINITY) << f;
    EXPECT_EQ(forward_one(f, -INFINITY), 0) << f;
    EXPECT_EQ(forward_one(f, -3e38f), 0) << f;
    EXPECT_TRUE(std::isnan(forward_one(f, NAN))) << f;
  }
}

}  // namespace
}  // namespace te::test
