// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "harness/op_test.h"
#include "ops/view.h"

namespace te::test {
namespace {

// x=b,h,Q,Kv (any rank from 2); mask=1,0,1: which of its dimensions before the last are full, the others are 1.
Shape mask_shape(const Case &c, const Shape &x) {
  const Shape full = c.shape("mask");
  Shape s(x.end() - (int)full.size() - 1, x.end());
  for (size_t i = 0; i < full.size(); i++)
    if (!full[i]) s[i] = 1;
  if (c.flag("bad_mask")) s[s.size() - 1]++;
  return s;
}

struct Forward {
  static constexpr const char *op = "softmax_forward", *cases = "softmax";
  static void build(const Case &c, Problem &p) {
    const Shape x = c.shape("x");
    p.in("x", x, c.dtype("dtype"));
    if (c.has("mask")) {
      Arg &m = p.in("mask", mask_shape(c, x), c.dtype("mask_dtype", DType::boolean), Fill::zero);
      std::vector<double> bits(m.values.size());
      const size_t repeat = p.expand && m.shape[0] ? bits.size() / (size_t)m.shape[0] : bits.size();  // equal rows, if they must be
      for (size_t i = 0; i < bits.size(); i++) bits[i] = mix(p.seed, repeat ? i % repeat : 0) % 100 < (uint64_t)c.i("masked", 40);
      m.set(bits);
    }
    p.out("y", x, c.dtype("y", c.dtype("dtype")));
    p.may_alias("y", "x");
    p.set("scale", (double)(float)c.f("scale", 1));
    p.set("mask_kind", (double)c.i("causal", 0));
    if (c.has("bad")) p.must_fail(NVTE_ERR_INVALID_ARGUMENT, c.s("bad").c_str());
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const Shape &s = p.find("x")->shape;
    const int64_t k = last(s), q = s[s.size() - 2], n = count(leading(s));
    const T scale = (T)(float)p.scalar("scale");
    const std::vector<T> &x = v["x"];
    std::vector<T> &y = v.out("y");
    const int kind = (int)p.scalar("mask_kind");
    for (int64_t r = 0; r < n; r++) {
      int64_t mask_row = 0;
      if (v.has("mask")) {  // the row of x in the mask's dimensions, which align right
        const Shape &m = p.find("mask")->shape;
        int64_t rest = r, step = 1;
        for (int i = (int)m.size() - 2, j = (int)s.size() - 2; i >= 0; i--, j--) {
          if (m[i] != 1) mask_row += rest % s[j] * step;
          rest /= s[j], step *= m[i];
        }
      }
      auto kept = [&](int64_t j) {
        if (kind == NVTE_MASK_CAUSAL && j > r % q) return false;
        if (kind == NVTE_MASK_CAUSAL_BOTTOM_RIGHT && j > r % q + k - q) return false;
        return !v.has("mask") || v["mask"][(size_t)(mask_row * k + j)] == 0;
      };
      bool any = false;
      T top = 0, sum = 0;
      for (int64_t j = 0; j < k; j++)
        if (kept(j) && (!any || !(scale * x[r * k + j] <= top))) any = true, top = scale * x[r * k + j];
      for (int64_t j = 0; j < k; j++)
        if (kept(j)) sum += std::exp(scale * x[r * k + j] - top);
      for (int64_t j = 0; j < k; j++)
        if (kept(j)) y[r * k + j] = std::exp(scale * x[r * k + j] - top) / sum;
    }
  }
};
TE_TEST(Forward);

struct Backward {
  static constexpr const char *op = "softmax_backward", *cases = "softmax";
  static constexpr Gradient gradient = {"softmax_forward", {{"x", "dx"}}, {{"y", "dy"}}};
  static void build(const Case &c, Problem &p) {
    const Shape x = c.shape("x");
    p.in("dy", x, c.dtype("dtype"));
    Problem f(nvte_op_find("softmax_forward"), c, 0, p.expand);
    f.seed = p.seed;
    Forward::build(c, f);
    Values<double> v(f);
    Forward::reference(f, v);
    p.in("y", x, c.dtype("y", c.dtype("dtype"))).set(v.out("y"));
    p.out("dx", x, c.dtype("dtype"));
    p.may_alias("dx", "dy");
    p.may_alias("dx", "y");
    p.set("scale", (double)(float)c.f("scale", 1));
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const int64_t k = last(p.find("y")->shape), n = count(leading(p.find("y")->shape));
    const std::vector<T> &y = v["y"], &dy = v["dy"];
    std::vector<T> &dx = v.out("dx");
    for (int64_t r = 0; r < n; r++) {
      T dot = 0;
      for (int64_t j = 0; j < k; j++) dot += y[r * k + j] * dy[r * k + j];
      for (int64_t j = 0; j < k; j++) dx[r * k + j] = (T)(float)p.scalar("scale") * (y[r * k + j] * (dy[r * k + j] - dot));
    }
  }
};
TE_TEST(Backward);
}  // namespace
}  // namespace te::test
