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
void gamma(const Case &c, Problem &p) {
  if (c.s("w") != "none") p.in("gamma", {c.i("gamma_h", c.i("h"))}, c.dtype("w"));
  if (c.flag("zero_centered")) p.set("flags", NVTE_NORM_ZERO_CENTERED);
  if (c.has("bad")) p.must_fail(NVTE_ERR_INVALID_ARGUMENT, c.s("bad").c_str());
}
template <class T> T weight(const Problem &p, const Values<T> &v, int64_t j) {
  const T zero_centered = p.scalar("flags") != 0 ? 1 : 0;
  return v.has("gamma") ? v["gamma"][j] + zero_centered : 1;
}

struct Forward {
  static constexpr const char *op = "rmsnorm_forward", *cases = "rmsnorm";
  static void build(const Case &c, Problem &p) {
    const Shape s = shape_of(c);
    const DType t = c.dtype("dtype");
    Arg &x = p.in("x", s, t);
    if (c.flag("big"))  // N06: squares overflow f16, sums of squares nearly f32
      for (size_t i = 0; i < x.values.size(); i++) x.values[i] = (i % 2 ? -1 : 1) * (t == DType::f16 ? 1e4 : 0x1p60);
    gamma(c, p);
    if (c.flag("residual")) {
      p.in("residual", s, t);
      p.out("residual_out", s, t).exact();
    }
    Arg &y = p.out("y", s, c.dtype("y", t));
    if (is_fp8(y.dtype)) y.scaled((float)c.f("scale")).amax();
    else if (c.flag("amax")) y.amax();
    if (c.flag("columnwise")) y.columnwise();
    p.out("rstd", leading(s), DType::f32);
    p.set("epsilon", c.f("epsilon", 1e-5));
    if (!c.flag("residual")) p.may_alias("y", "x");
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const Arg &x = *p.find("x");
    const int64_t h = last(x.shape), m = count(leading(x.shape));
    std::vector<T> s = v["x"];
    if (v.has("residual"))  // rounded to x's dtype before it is normalised
      for (size_t i = 0; i < s.size(); i++) s[i] = (T)decode(x.dtype, encode(x.dtype, (double)(float)(s[i] + v["residual"][i])));
    v.out("residual_out", x.size()) = s;
    std::vector<T> &y = v.out("y"), &rstd = v.out("rstd", m);
    for (int64_t i = 0; i < m; i++) {
      T sum = 0;
      for (int64_t j = 0; j < h; j++) sum += s[i * h + j] * s[i * h + j];
      rstd[i] = 1 / std::sqrt(sum / (T)h + (T)p.scalar("epsilon"));
      for (int64_t j = 0; j < h; j++) y[i * h + j] = s[i * h + j] * rstd[i] * weight(p, v, j);
    }
  }
};
TE_TEST(Forward);

struct Backward {
  static constexpr const char *op = "rmsnorm_backward", *cases = "rmsnorm";
  static constexpr Gradient gradient = {"rmsnorm_forward", {{"x", "dx"}, {"gamma", "dgamma"}}, {{"y", "dy"}}};
  static void build(const Case &c, Problem &p) {
    const Shape s = shape_of(c);
    const DType t = c.dtype("dtype");
    const int64_t h = c.i("h"), m = count(leading(s));
    p.in("dy", s, t);
    const std::vector<double> x = p.in("x", s, t).values;
    gamma(c, p);
    std::vector<double> rstd((size_t)m);
    for (int64_t i = 0; i < m; i++) {
      double sum = 0;
      for (int64_t j = 0; j < h; j++) sum += x[i * h + j] * x[i * h + j];
      rstd[i] = 1 / std::sqrt(sum / (double)h + (double)1e-5f);
    }
    p.in("rstd", leading(s), DType::f32).set(rstd);
    if (c.flag("add")) p.in("add", s, t);
    if (c.flag("add") || c.flag("residual")) p.no_gradient();
    p.out("dx", s, t);
    if (c.s("w") != "none") p.out("dgamma", {h}, c.dtype("w"));
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const Shape &s = p.find("x")->shape;
    const int64_t h = last(s), m = count(leading(s));
    const std::vector<T> &x = v["x"], &dy = v["dy"], &rstd = v["rstd"];
    std::vector<T> &dx = v.out("dx"), &dgamma = v.out("dgamma", h);
    for (int64_t i = 0; i < m; i++) {
      T sum = 0;
      for (int64_t j = 0; j < h; j++) sum += dy[i * h + j] * weight(p, v, j) * x[i * h + j] * rstd[i];
      for (int64_t j = 0; j < h; j++) {
        const T n = x[i * h + j] * rstd[i];
        dx[i * h + j] = rstd[i] * (dy[i * h + j] * weight(p, v, j) - n * (sum / (T)h)) + (v.has("add") ? v["add"][i * h + j] : 0);
        dgamma[j] += dy[i * h + j] * n;
      }
    }
  }
};
TE_TEST(Backward);

}  // namespace
}  // namespace te::test
