// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "harness/op_test.h"
#include "ops/view.h"

namespace te::test {
namespace {

struct ComputeAmax {
  static constexpr const char *op = "compute_amax", *cases = "compute_amax";
  static void build(const Case &c, Problem &p) {
    Shape s = c.shape("m");
    s.push_back(c.i("k"));
    Arg &x = p.in("x", s, c.dtype("dtype"));
    if (c.flag("Q07")) x.set({-5, -1});
    if (c.has("noop")) p.in("noop", {1}, DType::f32, c.flag("noop") ? Fill::one : Fill::zero);
    Arg &amax = p.out("amax", {1}, DType::f32).exact();
    if (c.flag("noop")) amax.not_written();
    if (c.has("bad")) p.set("flags", 2), p.must_fail(NVTE_ERR_INVALID_ARGUMENT, "flags");
  }
  template <class T> static void reference(const Problem &, Values<T> &v) {
    T m = 0;
    for (const T x : v["x"]) m = std::fmax(m, std::fabs(x));  // fmax passes over NaN
    v.out("amax") = {m};
  }
};
TE_TEST(ComputeAmax);

TEST(ComputeAmax, accumulates) {
  float x[3] = {1, -4, 2};
  for (const auto &[before, after] : {std::pair(3.f, 4.f), std::pair(9.f, 9.f), std::pair(NAN, 4.f)}) {
    float amax = before;
    View a(x, DType::f32, {3}), m(&amax, DType::f32, {1});
    nvte_compute_amax_args args = NVTE_COMPUTE_AMAX_ARGS_INIT;
    args.x = a, args.amax = m, args.flags = NVTE_COMPUTE_AMAX_ACCUMULATE;
    ASSERT_EQ(nvte_compute_amax(nullptr, &args), NVTE_OK) << nvte_last_error();
    EXPECT_EQ(amax, after) << before;
  }
}

// A NaN in every lane of a vector, and in all of x.
TEST(ComputeAmax, passes_over_nan) {
  for (size_t at = 0; at < 100; at++) {
    std::vector<float> x(100, 0.25f);
    x[at] = NAN;
    x[(at + 37) % 100] = -7;
    float amax = -1;
    View a(x.data(), DType::f32, {100}), m(&amax, DType::f32, {1});
    nvte_compute_amax_args args = NVTE_COMPUTE_AMAX_ARGS_INIT;
    args.x = a, args.amax = m;
    ASSERT_EQ(nvte_compute_amax(nullptr, &args), NVTE_OK) << nvte_last_error();
    EXPECT_EQ(amax, 7.f) << at;
    std::fill(x.begin(), x.end(), NAN);
    ASSERT_EQ(nvte_compute_amax(nullptr, &args), NVTE_OK) << nvte_last_error();
    EXPECT_EQ(amax, 0.f);
  }
}

}  // namespace
}  // namespace te::test
