// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <gtest/gtest.h>

#include "harness/op_test.h"

namespace te::test {
namespace {

Shape shape_of(const Case &c) {
  Shape s = c.s("m").empty() ? Shape{} : c.shape("m");
  s.push_back(c.i("h"));
  return s;
}
void weights(const Case &c, Problem &p, bool beta) {
  if (c.s("w") != "none") p.in("gamma", {c.i("gamma_h", c.i("h"))}, c.dtype("w"), c.flag("gamma_zero") ? Fill::zero : Fill::normal);
  if (beta && c.s("beta", c.s("w")) != "none") p.in("beta", {c.i("h")}, c.dtype(c.has("beta") ? "beta" : "w"));
  if (c.flag("zero_centered")) p.set("flags", NVTE_NORM_ZERO_CENTERED);
  if (c.has("flags")) p.set("flags", c.f("flags"));
  if (c.has("bad")) p.must_fail(NVTE_ERR_INVALID_ARGUMENT, c.s("bad").c_str());
}
template <class T> T weight(const Problem &p, const Values<T> &v, int64_t j) {
  return v.has("gamma") ? v["gamma"][j] + (p.scalar("flags") != 0 ? 1 : 0) : 1;
}

struct Forward {
  static constexpr const char *op = "layernorm_forward", *cases = "layernorm";
  static void build(const Case &c, Problem &p) {
    const Shape s = shape_of(c);
    const DType t = c.dtype("dtype");
    Arg &x = p.in("x", s, t);
    // N06: squares overflow f16, and f32 from 0x1p64 on; differences of +-3e38 overflow f32 themselves
    for (size_t i = 0; c.has("big") && i < x.values.size(); i++) x.values[i] = (i % 2 ? -1 : 1) * c.f("big");
    // a large common offset: the variance has to be centred
    for (size_t i = 0; c.has("offset") && i < x.values.size(); i++) x.values[i] = decode(t, encode(t, x.values[i] + c.f("offset")));
    weights(c, p, true);
    if (c.flag("residual")) p.in("residual", s, t);
    if (c.flag("residual") || c.flag("stray_sum")) p.out("residual_out", s, t).exact();
    Arg &y = p.out("y", s, c.dtype("y", t));
    if (is_fp8(y.dtype)) y.scaled((float)c.f("scale")).amax();
    else if (c.flag("amax")) y.amax();
    if (c.s("part", "row") != "row") y.columnwise();
    if (c.s("part", "row") == "column") y.columnwise_only();
    p.out("mu", leading(s), DType::f32);
    p.out("rstd", leading(s), DType::f32);
    p.set("epsilon", c.f("epsilon", 1e-5));
    if (!c.flag("residual") && y.dtype == t) p.may_alias("y", "x");
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const Arg &x = *p.find("x");
    const int64_t h = last(x.shape), m = count(leading(x.shape));
    std::vector<T> s = v["x"];
    if (v.has("residual"))  // rounded to x's dtype before it is normalised
      for (size_t i = 0; i < s.size(); i++) s[i] = (T)decode(x.dtype, encode(x.dtype, (double)(float)(s[i] + v["residual"][i])));
    v.out("residual_out", x.size()) = s;
    std::vector<T> &y = v.out("y"), &mu = v.out("mu", m), &rstd = v.out("rstd", m);
    for (int64_t i = 0; i < m; i++) {
      T sum = 0, square = 0;
      for (int64_t j = 0; j < h; j++) sum += s[i * h + j];
      mu[i] = sum / (T)h;
      for (int64_t j = 0; j < h; j++) square += (s[i * h + j] - mu[i]) * (s[i * h + j] - mu[i]);
      rstd[i] = 1 / std::sqrt(square / (T)h + (T)p.scalar("epsilon"));
      for (int64_t j = 0; j < h; j++) y[i * h + j] = (s[i * h + j] - mu[i]) * rstd[i] * weight(p, v, j) + (v.has("beta") ? v["beta"][j] : 0);
    }
  }
};
TE_TEST(Forward);

struct Backward {
  static constexpr const char *op = "layernorm_backward", *cases = "layernorm";
  static constexpr Gradient gradient = {"layernorm_forward", {{"x", "dx"}, {"gamma", "dgamma"}, {"beta", "dbeta"}}, {{"y", "dy"}}};
  static void build(const Case &c, Problem &p) {
    const Shape s = shape_of(c);
    const DType t = c.dtype("dtype");
    const int64_t h = c.i("h"), m = count(leading(s));
    p.in("dy", s, c.dtype("dy", t));
    const std::vector<double> x = p.in("x", s, t).values;
    weights(c, p, false);
    std::vector<double> mu((size_t)m), rstd((size_t)m);
    for (int64_t i = 0; i < m; i++) {
      double sum = 0, square = 0;
      for (int64_t j = 0; j < h; j++) sum += x[i * h + j];
      mu[i] = sum / (double)h;
      for (int64_t j = 0; j < h; j++) square += (x[i * h + j] - mu[i]) * (x[i * h + j] - mu[i]);
      rstd[i] = 1 / std::sqrt(square / (double)h + (double)1e-5f);
    }
    p.in("mu", leading(s), DType::f32).set(mu);
    p.in("rstd", leading(s), DType::f32).set(rstd);
    if (c.flag("add")) p.in("add", s, c.dtype("add_dtype", t));
    if (c.flag("add") || c.flag("residual")) p.no_gradient();
    p.out("dx", s, t);
    if (c.s("w") != "none") p.out("dgamma", {h}, c.dtype("w"));
    const std::string beta = c.s("beta", c.s("w"));
    if (beta != "none") p.out("dbeta", {h}, parse_dtype(beta));
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const Shape &s = p.find("x")->shape;
    const int64_t h = last(s), m = count(leading(s));
    const std::vector<T> &x = v["x"], &dy = v["dy"], &mu = v["mu"], &rstd = v["rstd"];
    std::vector<T> &dx = v.out("dx"), &dgamma = v.out("dgamma", h), &dbeta = v.out("dbeta", h);
    for (int64_t i = 0; i < m; i++) {
      T dn = 0, d = 0;
      for (int64_t j = 0; j < h; j++) {
        const T n = (x[i * h + j] - mu[i]) * rstd[i], e = dy[i * h + j] * weight(p, v, j);
        dn += e * n;
        d += e;
        dgamma[j] += dy[i * h + j] * n;
        dbeta[j] += dy[i * h + j];
      }
      for (int64_t j = 0; j < h; j++) {
        const T n = (x[i * h + j] - mu[i]) * rstd[i];
        dx[i * h + j] = rstd[i] * (dy[i * h + j] * weight(p, v, j) - n * (dn / (T)h) - d / (T)h) + (v.has("add") ? v["add"][i * h + j] : 0);
      }
    }
  }
};
TE_TEST(Backward);

// One row through both norms, forward and backward, gamma 1 and beta 1/2: what the harness cannot ask, because its naive f32
// evaluation overflows.
struct Row {
  std::vector<float> x, y, dx;
  float mu = NAN, rstd = NAN;
};
Row run_row(bool mean, const std::vector<float> &x, float epsilon) {
  Row r = {x, std::vector<float>(x.size(), NAN), std::vector<float>(x.size(), NAN)};
  int64_t h = (int64_t)x.size(), one = 1;
  std::vector<float> beta(x.size(), mean ? 0.5f : 0.f), dy(x.size());
  for (size_t i = 0; i < x.size(); i++) dy[i] = i % 3 ? 1.f : -2.f;
  const auto tensor = [](float *p, int64_t *shape) {
    nvte_tensor t = {};
    t.struct_size = sizeof t;
    t.data = {p, {kDLCPU, 0}, 1, dl(DType::f32), shape, nullptr, 0};
    return t;
  };
  nvte_tensor tx = tensor(r.x.data(), &h), tb = tensor(beta.data(), &h), ty = tensor(r.y.data(), &h), td = tensor(dy.data(), &h),
              tdx = tensor(r.dx.data(), &h), tm = tensor(&r.mu, &one), tr = tensor(&r.rstd, &one);
  tm.data.ndim = tr.data.ndim = 0;
  if (mean) {
    nvte_layernorm_forward_args f = {};
    f.struct_size = sizeof f, f.x = &tx, f.beta = &tb, f.y = &ty, f.mu = &tm, f.rstd = &tr, f.epsilon = epsilon;
    EXPECT_EQ(nvte_layernorm_forward(nullptr, &f), NVTE_OK) << nvte_last_error();
    nvte_layernorm_backward_args b = {};
    b.struct_size = sizeof b, b.dy = &td, b.x = &tx, b.mu = &tm, b.rstd = &tr, b.dx = &tdx;
    EXPECT_EQ(nvte_layernorm_backward(nullptr, &b), NVTE_OK) << nvte_last_error();
  } else {
    nvte_rmsnorm_forward_args f = {};
    f.struct_size = sizeof f, f.x = &tx, f.y = &ty, f.rstd = &tr, f.epsilon = epsilon;
    EXPECT_EQ(nvte_rmsnorm_forward(nullptr, &f), NVTE_OK) << nvte_last_error();
    nvte_rmsnorm_backward_args b = {};
    b.struct_size = sizeof b, b.dy = &td, b.x = &tx, b.rstd = &tr, b.dx = &tdx;
    EXPECT_EQ(nvte_rmsnorm_backward(nullptr, &b), NVTE_OK) << nvte_last_error();
  }
  return r;
}
// Against the formula in double, from the saved f32 mu and rstd for the gradient.
void check_row(bool mean, const std::vector<float> &x, float epsilon) {
  const Row r = run_row(mean, x, epsilon);
  const double h = (double)x.size();
  double mu = 0, square = 0, dn = 0, d = 0;
  for (float v : x) mu += mean ? v / h : 0;
  for (float v : x) square += (v - mu) * (v - mu) / h;
  const double rstd = 1 / std::sqrt(square + epsilon);
  const auto dy = [](size_t i) { return i % 3 ? 1. : -2.; };
  const double saved_mu = mean ? r.mu : 0;
  for (size_t i = 0; i < x.size(); i++) dn += dy(i) * (x[i] - saved_mu) * r.rstd / h, d += mean ? dy(i) / h : 0;
  for (size_t i = 0; i < x.size(); i++) {
    const double y = (x[i] - mu) * rstd + (mean ? 0.5 : 0), dx = r.rstd * (dy(i) - (x[i] - saved_mu) * r.rstd * dn - d);
    EXPECT_LE(std::fabs(r.y[i] - y), 2 * ulp(DType::f32, y)) << mean << " y[" << i << "] " << x[i];
    EXPECT_LE(std::fabs(r.dx[i] - dx), 2 * ulp(DType::f32, dx)) << mean << " dx[" << i << "] " << x[i];
  }
}

// N06: sums of squares, and differences from the mean, beyond the range of f32.
TEST(Norm, N06_near_the_largest_f32) {
  for (const bool mean : {true, false})
    for (const size_t h : {1u, 3u, 64u, 77u}) {
      std::vector<float> x(h);
      for (size_t i = 0; i < h; i++) x[i] = (i % 2 ? -1 : 1) * (3e38f - (float)(i % 7) * 1e37f);
      if (h > 1 || !mean) check_row(mean, x, 1e-5f);
    }
}
// epsilon 0 is real: subnormal rows normalise, rows of zeros (and for LayerNorm of any one value) give beta.
TEST(Norm, N06_epsilon_zero) {
  for (const bool mean : {true, false}) {
    check_row(mean, {1e-30f, -2e-30f, 3e-30f, 5e-31f}, 0);
    const Row tiny = run_row(mean, {1e-44f, -1e-44f, 1e-44f, -1e-44f}, 0), zeros = run_row(mean, std::vector<float>(20, 0.f), 0);
    for (int i = 0; i < 4; i++) EXPECT_EQ(tiny.y[i], (i % 2 ? -1 : 1) + (mean ? 0.5f : 0)) << i;
    for (float v : zeros.y) EXPECT_EQ(v, mean ? 0.5f : 0);
  }
  for (float v : run_row(true, std::vector<float>(20, 3.f), 0).y) EXPECT_EQ(v, 0.5f);
}

}  // namespace
}  // namespace te::test
