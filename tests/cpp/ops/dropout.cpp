// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "harness/op_test.h"

namespace te::test {
namespace {

// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011).
struct Draw {
  uint32_t word[4];
};
Draw philox(uint64_t key, uint64_t lo, uint64_t hi) {
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  uint32_t c[4] = {(uint32_t)lo, (uint32_t)(lo >> 32), (uint32_t)hi, (uint32_t)(hi >> 32)};
  for (int round = 0; round < 10; round++) {
    const uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
    const uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
    for (int i = 0; i < 4; i++) c[i] = next[i];
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {{c[0], c[1], c[2], c[3]}};
}
bool kept(uint64_t seed, uint64_t offset, uint64_t i, double p) {
  const uint64_t lo = offset + i / 4;
  const uint32_t w = philox(seed, lo, lo < offset ? 1 : 0).word[i % 4];
  return (double)w >= std::floor(p * 0x1p32);
}
Shape shape_of(const Case &c) { return c.s("x").empty() ? Shape{} : c.shape("x"); }
constexpr double kSeed = 0x123456789abcd;

struct Forward {
  static constexpr const char *op = "dropout_forward", *cases = "dropout";
  static void build(const Case &c, Problem &p) {
    const Shape s = shape_of(c);
    p.in("x", s, c.dtype("dtype"));
    p.in("rng_state", {2}, DType::i64).set({kSeed, (double)c.i("offset", 0)});
    p.out("y", s, c.dtype("dtype")).exact();
    if (c.i("mask", 1)) p.out("mask", {(count(s) + 7) / 8}, DType::u8);
    p.set("p", c.f("p"));
    p.may_alias("y", "x");
    if (c.has("bad")) p.must_fail(NVTE_ERR_INVALID_ARGUMENT, c.s("bad").c_str());
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const int64_t n = p.find("x")->size();
    const double rate = p.scalar("p");
    std::vector<T> &y = v.out("y"), &mask = v.out("mask", (n + 7) / 8);
    for (int64_t i = 0; i < n; i++) {
      if (!kept((uint64_t)v["rng_state"][0], (uint64_t)v["rng_state"][1], (uint64_t)i, rate)) continue;
      y[i] = v["x"][i] / (T)(1.0f - (float)rate);
      mask[i / 8] += (T)(1 << i % 8);
    }
  }
};
TE_TEST(Forward);

struct Backward {
  static constexpr const char *op = "dropout_backward", *cases = "dropout";
  static constexpr Gradient gradient = {"dropout_forward", {{"x", "dx"}}, {{"y", "dy"}}};
  static void build(const Case &c, Problem &p) {
    const Shape s = shape_of(c);
    const int64_t n = count(s);
    p.in("dy", s, c.dtype("dtype"));
    std::vector<double> mask((size_t)(n + 7) / 8);
    for (int64_t i = 0; i < n; i++)
      if (kept((uint64_t)kSeed, (uint64_t)c.i("offset", 0), (uint64_t)i, (double)(float)c.f("p"))) mask[i / 8] += 1 << i % 8;
    p.in("mask", {(n + 7) / 8}, DType::u8).set(mask);
    p.out("dx", s, c.dtype("dtype")).exact();
    p.set("p", c.f("p"));
    p.may_alias("dx", "dy");
    if (c.has("bad")) p.must_fail(NVTE_ERR_INVALID_ARGUMENT, c.s("bad").c_str());
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    std::vector<T> &dx = v.out("dx");
    for (size_t i = 0; i < dx.size(); i++)
      if ((int)v["mask"][i / 8] >> i % 8 & 1) dx[i] = v["dy"][i] / (T)(1.0f - (float)p.scalar("p"));
  }
};
TE_TEST(Backward);

}  // namespace
}  // namespace te::test
