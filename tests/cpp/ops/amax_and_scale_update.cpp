// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>

#include "harness/op_test.h"
#include "ops/view.h"

namespace te::test {
namespace {

struct Update {
  static constexpr const char *op = "amax_and_scale_update", *cases = "amax_and_scale_update";
  static std::string key(const char *field, size_t i) { return std::string(field) + "[" + std::to_string(i) + "]"; }
  static void build(const Case &c, Problem &p) {
    const Shape columns = c.shape("k"), rows = c.shape("len");  // of each entry
    const double current[] = {3, 0, 1e30, INFINITY, NAN, 1e-45, 7};
    for (size_t e = 0; e < columns.size(); e++) {
      const int64_t len = rows[e % rows.size()], k = columns[e];
      Arg &h = p.in("history", {len, k}, DType::f32, Fill::positive);
      std::vector<double> v = h.values;
      for (int64_t j = 0; j < k && len; j++)
        if (c.flag("special")) v[(size_t)j] = current[(size_t)(j + (int64_t)e) % 7];
      h.set(v);
      p.in("scale", {k}, DType::f32, Fill::positive);
      p.out("new_history", {len, k}, DType::f32).exact();
      p.out("new_scale", {k}, DType::f32).exact();
      p.aliases.push_back({key("new_history", e), key("history", e)});
      p.aliases.push_back({key("new_scale", e), key("scale", e)});
    }
    p.set("n", (double)columns.size());
    if (c.has("amax")) {
      int64_t total = c.i("amax") - 1;  // 1 = as many as there are
      for (int64_t k : columns) total += k;
      Arg &a = p.in("amax", {total}, DType::f32, Fill::positive);
      std::vector<double> v = a.values;
      for (size_t i = 0; i < v.size(); i += 3) v[i] = 0;  // these take history[0]
      a.set(v);
    }
    p.set("dtype", c.dtype("dtype"));
    p.set("margin", c.f("margin", 0));
    p.set("algorithm", c.f("algorithm", 0));
    if (c.has("bad")) p.must_fail(NVTE_ERR_INVALID_ARGUMENT, c.s("bad").c_str());
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    size_t at = 0;
    for (size_t e = 0; p.has(key("history", e).c_str()); e++) {
      const Shape &s = p.find(key("history", e))->shape;
      const size_t len = (size_t)s[0], k = (size_t)s[1];
      const std::vector<T> &h = v[key("history", e)], &scale = v[key("scale", e)];
      std::vector<T> &nh = v.out(key("new_history", e)), &ns = v.out(key("new_scale", e));
      for (size_t j = 0; j < k; j++, at++) {
        T now = h[j];
        if (v.has("amax") && v["amax"][at] != 0) now = v["amax"][at];
        for (size_t i = 0; i < len; i++) nh[i * k + j] = h[i * k + j];
        ns[j] = scale[j];
        if (now == 0) continue;
        T top = now;
        for (size_t i = 1; i < len; i++) nh[(i - 1) * k + j] = h[i * k + j], top = h[i * k + j] > top ? h[i * k + j] : top;
        nh[(len - 1) * k + j] = now;
        nh[j] = 0;
        const double a = (double)(p.scalar("algorithm") == NVTE_AMAX_MAX ? top : now);
        if (!std::isfinite(a) || a <= 0) continue;
        const float q = (float)(largest(p.dtypes.at("dtype")) * std::exp2(-p.scalar("margin")) / a);
        ns[j] = (T)(std::isinf(q) ? FLT_MAX : q);
      }
    }
  }
};
TE_TEST(Update);

struct State {
  std::vector<float> history, scale;
  int64_t len;
  State(int64_t len, float scale) : history((size_t)len), scale{scale}, len(len) {}
  void step(float amax, DType type = DType::e4m3) {
    history[0] = amax;
    View h(history.data(), DType::f32, {len, 1}), s(scale.data(), DType::f32, {1});
    nvte_tensor *hp = h, *sp = s;
    nvte_amax_and_scale_update_args a = NVTE_AMAX_AND_SCALE_UPDATE_ARGS_INIT;
    a.history = &hp, a.scale = &sp, a.new_history = &hp, a.new_scale = &sp, a.n = 1, a.dtype = dl(type);
    ASSERT_EQ(nvte_amax_and_scale_update(nullptr, &a), NVTE_OK) << nvte_last_error();
  }
};
// Q02: amax 0, inf or NaN keeps the scale in use.
TEST(AmaxAndScaleUpdate, Q02_keeps_the_scale) {
  for (float amax : {0.f, INFINITY, NAN}) {
    State s(4, 3.f);
    s.step(amax);
    EXPECT_EQ(s.scale[0], 3.f) << amax;
  }
}
// Q05: an entry that was not used keeps its history as well.
TEST(AmaxAndScaleUpdate, Q05_unused_entry) {
  State s(3, 2.f);
  s.history = {0, 5, 6};
  s.step(0);
  EXPECT_EQ(s.history, (std::vector<float>{0, 5, 6}));
  EXPECT_EQ(s.scale[0], 2.f);
}
// Q06: with a history of one the scale is the last step's.
TEST(AmaxAndScaleUpdate, Q06_length_one) {
  State s(1, 1.f);
  for (float amax : {1.f, 2.f, 4.f, 8.f}) {
    s.step(amax);
    EXPECT_EQ(s.scale[0], 448.f / amax);
    EXPECT_EQ(s.history[0], 0.f);
  }
}
// The window: a peak counts for len steps, then is forgotten.
TEST(AmaxAndScaleUpdate, forgets_after_len_steps) {
  State s(3, 1.f);
  s.step(64);
  for (int i = 0; i < 2; i++) {
    s.step(1);
    EXPECT_EQ(s.scale[0], 7.f) << i;
  }
  s.step(1);
  EXPECT_EQ(s.scale[0], 448.f);
}

}  // namespace
}  // namespace te::test
