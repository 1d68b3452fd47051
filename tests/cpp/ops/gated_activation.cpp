// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <gtest/gtest.h>

#include "harness/op_test.h"

namespace te::test {
namespace {

template <class T> T sigmoid(T x) { return 1 / (1 + std::exp(-x)); }
// The gate and its derivative, as libte/activation.h defines them.
template <class T> void gate(const Problem &p, T x, T &f, T &df) {
  if (p.scalar("flags") != 0) {
    const T limit = (T)p.scalar("limit"), alpha = (T)p.scalar("alpha"), a = x < limit ? x : limit, s = sigmoid(alpha * a);
    f = a * s;
    df = x > limit ? 0 : s + alpha * a * s * (1 - s);
    return;
  }
  switch ((int)p.scalar("activation")) {
    case NVTE_ACTIVATION_GELU: {
      const T t = std::tanh(x * (T(0.7978845608028654) + T(0.035677408136300125) * x * x));
      f = x * (T(0.5) + T(0.5) * t);
      df = T(0.5) + T(0.5) * t + T(0.5) * x * (1 - t * t) * (T(0.7978845608028654) + T(0.10703222440890037) * x * x);
      return;
    }
    case NVTE_ACTIVATION_GELU_ERF: {
      const T c = T(0.5) + T(0.5) * std::erf(x * T(0.7071067811865476));
      f = x * c;
      df = c + x * T(0.3989422804014327) * std::exp(T(-0.5) * x * x);
      return;
    }
    case NVTE_ACTIVATION_QGELU: {
      const T s = sigmoid(T(1.702) * x);
      f = x * s;
      df = s + T(1.702) * x * s * (1 - s);
      return;
    }
    case NVTE_ACTIVATION_RELU: f = x > 0 ? x : 0, df = x > 0; return;
    case NVTE_ACTIVATION_SRELU: f = x > 0 ? x * x : 0, df = x > 0 ? 2 * x : 0; return;
    case NVTE_ACTIVATION_SILU: f = x * sigmoid(x), df = sigmoid(x) + x * sigmoid(x) * (1 - sigmoid(x)); return;
    default: f = sigmoid(x), df = sigmoid(x) * (1 - sigmoid(x));
  }
}
template <class T> void linear(const Problem &p, T b, T &f, T &df) {
  f = b, df = 1;
  if (p.scalar("flags") == 0) return;
  const T limit = (T)p.scalar("limit");
  df = std::fabs(b) > limit ? 0 : 1;
  f = (b > limit ? limit : b < -limit ? -limit : b) + (T)p.scalar("offset");
}

Shape shape_of(const Case &c, int64_t columns) {
  Shape s = c.s("m").empty() ? Shape{} : c.shape("m");
  s.push_back(columns);
  return s;
}
void input(const Case &c, Problem &p) {
  Arg &x = p.in("x", shape_of(c, c.i("x_h", 2 * c.i("h"))), c.dtype("dtype"));
  const double limit = c.f("limit", 7), stretch = c.f("stretch", 1);
  for (double &v : x.values) {
    v = decode(x.dtype, encode(x.dtype, v * stretch));
    // kinks are no place for finite differences
    if (std::fabs(v) < 0.01 || std::fabs(std::fabs(v) - limit) < 0.01) v = 0.5;
  }
  if (c.flag("V02")) {  // every pair of gate and linear part from -9, 0, 9
    std::vector<double> v(18);
    for (int i = 0; i < 9; i++) v[i] = 9 * (i / 3 - 1), v[9 + i] = 9 * (i % 3 - 1);
    x.set(v);
    p.no_gradient();
  }
  if (c.flag("V03")) x.set({1, 2}), p.no_gradient();
  p.set("activation", c.f("f", NVTE_ACTIVATION_SILU));
  p.set("flags", c.f("flags", c.flag("clamped") ? NVTE_GATED_CLAMPED : 0));
  for (const char *name : {"limit", "alpha", "offset"})
    if (c.has(name)) p.set(name, c.f(name));
  if (c.has("bad")) p.must_fail(NVTE_ERR_INVALID_ARGUMENT, c.s("bad").c_str());
}
void output(const Case &c, Arg &y) {
  if (is_fp8(y.dtype)) y.scaled((float)c.f("scale"));
  if (is_fp8(y.dtype) || c.flag("amax")) y.amax();
  if (c.s("part", "row") != "row") y.columnwise();
  if (c.s("part", "row") == "column") y.columnwise_only();
}

struct Forward {
  static constexpr const char *op = "gated_activation_forward", *cases = "gated_activation";
  static void build(const Case &c, Problem &p) {
    input(c, p);
    output(c, p.out("y", shape_of(c, c.i("h")), c.dtype("y", c.dtype("dtype"))));
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const std::vector<T> &x = v["x"];
    std::vector<T> &y = v.out("y");
    const int64_t h = last(p.find("y")->shape);
    for (int64_t k = 0; k < (int64_t)y.size(); k++) {
      T f, l, unused;
      gate(p, x[k / h * 2 * h + k % h], f, unused);
      linear(p, x[k / h * 2 * h + h + k % h], l, unused);
      y[k] = f * l;
    }
  }
};
TE_TEST(Forward);

struct Backward {
  static constexpr const char *op = "gated_activation_backward", *cases = "gated_activation";
  static constexpr Gradient gradient = {"gated_activation_forward", {{"x", "dx"}}, {{"y", "dy"}}};
  static void build(const Case &c, Problem &p) {
    p.in("dy", shape_of(c, c.i("h")), c.dtype("dy", c.dtype("dtype")));
    input(c, p);
    output(c, p.out("dx", shape_of(c, 2 * c.i("h")), c.dtype("y", c.dtype("dtype"))));
    if (c.has("dbias")) p.out("dbias", {2 * c.i("h")}, c.dtype("dbias"));
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const std::vector<T> &x = v["x"], &dy = v["dy"];
    const int64_t h = last(p.find("dy")->shape);
    std::vector<T> &dx = v.out("dx"), &dbias = v.out("dbias", 2 * h);
    for (int64_t k = 0; k < (int64_t)dy.size(); k++) {
      const int64_t j = k % h, a = k / h * 2 * h + j;
      T f, df, l, dl;
      gate(p, x[a], f, df);
      linear(p, x[a + h], l, dl);
      dx[a] = dy[k] * df * l;
      dx[a + h] = dy[k] * f * dl;
      dbias[j] += dx[a];
      dbias[h + j] += dx[a + h];
    }
  }
};
TE_TEST(Backward);

// V03: the gate is the first half: [1, 2] gives 2 silu(1), and nothing else.
TEST(GatedActivation, V03_gate_comes_first) {
  float x[2] = {1, 2}, y = 0;
  int64_t two = 2, one = 1;
  nvte_tensor tx = {}, ty = {};
  tx.struct_size = sizeof tx;
  tx.data = {x, {kDLCPU, 0}, 1, dl(DType::f32), &two, nullptr, 0};
  ty = tx;
  ty.data.data = &y;
  ty.data.shape = &one;
  nvte_gated_activation_forward_args a = {};
  a.struct_size = sizeof a;
  a.x = &tx;
  a.y = &ty;
  a.activation = NVTE_ACTIVATION_SILU;
  ASSERT_EQ(nvte_gated_activation_forward(nullptr, &a), NVTE_OK) << nvte_last_error();
  EXPECT_EQ(std::round(y * 1e5), 146212);  // 2 / (1 + e^-1)
}

}  // namespace
}  // namespace te::test
