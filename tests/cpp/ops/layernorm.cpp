// SPDX-License-Identifier: Apache-2.0
#include <cmath>

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

}  // namespace
}  // namespace te::test
