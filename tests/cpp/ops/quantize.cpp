// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <sstream>

#include "harness/op_test.h"

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

}  // namespace
}  // namespace te::test
