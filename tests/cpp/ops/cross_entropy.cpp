// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <sstream>

#include "harness/op_test.h"
#include "libte/init.h"

namespace te::test {
namespace {

std::vector<double> list(const Case &c, const char *key) {
  std::vector<double> v;
  std::stringstream in(c.s(key));
  for (std::string n; std::getline(in, n, ',');) v.push_back(std::stod(n));
  return v;
}
// Logits and targets, the same in both directions; targets of the whole vocabulary.
void common(const Case &c, Problem &p) {
  const int64_t t = c.i("t"), v = c.i("v"), vocab = c.i("vocab", v), ignore = c.i("ignore", -100), every = c.i("ignored", 0);
  Arg &x = p.in("logits", {t, v}, c.dtype("dtype"));
  if (c.has("logits")) x.set(list(c, "logits"));
  std::vector<double> target((size_t)t);
  for (int64_t i = 0; i < t; i++)
    target[(size_t)i] = every && i % every == 0 ? (double)ignore : (double)(mix(p.seed, (uint64_t)i) % (uint64_t)vocab);
  if (c.has("target")) target = list(c, "target");
  p.in("target", {t}, DType::i64).set(target);
  p.set("label_smoothing", c.f("s", 0));
  p.set("reduction", (double)c.i("red", 2));
  p.set("ignore_index", (double)ignore);
  p.set("vocab_start", (double)c.i("start", 0));
  p.set("vocab_size", (double)c.i("vocab", 0));
  if (c.has("logits") || c.has("fill")) p.no_gradient();  // not finite, or too large to differentiate numerically
  if (c.has("bad")) p.must_fail(NVTE_ERR_INVALID_ARGUMENT, c.s("bad").c_str());
}
int64_t loss_size(const Case &c) { return c.i("loss_n", c.i("red", 2) == 0 ? c.i("t") : 1); }

template <class T> struct Row {
  T max, sum, all, lse;  // max ignores NaN; sum of exp(x - max)
};
template <class T> Row<T> row_of(const std::vector<T> &x, int64_t t, int64_t n) {
  Row<T> r = {(T)-INFINITY, 0, 0, 0};
  bool nan = false;
  for (int64_t j = 0; j < n; j++) {
    const T v = x[(size_t)(t * n + j)];
    nan |= std::isnan(v);
    if (v > r.max) r.max = v;
    r.all += v;
  }
  const bool nothing = std::isinf(r.max) && r.max < 0;
  for (int64_t j = 0; j < n; j++) r.sum += nothing ? 0 : std::exp(x[(size_t)(t * n + j)] - r.max);
  if (nan) r.sum = (T)NAN;
  r.lse = nothing && !nan ? (T)-INFINITY : r.max + std::log(r.sum);
  return r;
}
template <class T> int64_t live_tokens(const Problem &p, const Values<T> &v) {
  int64_t n = 0;
  for (T t : v["target"]) n += (double)t != p.scalar("ignore_index");
  return n;
}

struct Forward {
  static constexpr const char *op = "cross_entropy_forward", *cases = "cross_entropy";
  static void build(const Case &c, Problem &p) {
    common(c, p);
    const bool partials = (c.has("vocab") || c.flag("partials")) && !c.flag("no_partials");
    if (partials) p.out("partials", {c.i("t"), 4}, DType::f32).keep();
    if (!partials || c.flag("loss")) p.out("loss", {loss_size(c)}, DType::f32).keep();
    p.out("lse", {c.i("t")}, DType::f32);
    if (partials) p.no_gradient();
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const Shape &s = p.find("logits")->shape;
    const std::vector<T> &x = v["logits"];
    std::vector<T> &loss = v.out("loss", p.scalar("reduction") == NVTE_REDUCTION_NONE ? s[0] : 1), &lse = v.out("lse", s[0]), &partials = v.out("partials", 4 * s[0]);
    const T smoothing = (T)p.scalar("label_smoothing");
    T sum = 0;
    for (int64_t t = 0; t < s[0]; t++) {
      const Row<T> r = row_of(x, t, s[1]);
      const bool ignored = (double)v["target"][t] == p.scalar("ignore_index");
      const int64_t column = (int64_t)v["target"][t] - (int64_t)p.scalar("vocab_start");
      const T hit = !ignored && column >= 0 && column < s[1] ? x[t * s[1] + column] : 0;
      lse[t] = r.lse;
      partials[4 * t] = r.max, partials[4 * t + 1] = r.sum, partials[4 * t + 2] = hit, partials[4 * t + 3] = r.all;
      T one = r.lse - (1 - smoothing) * hit;
      if (smoothing > 0) one -= smoothing / (T)s[1] * r.all;
      if (ignored) one = 0;
      if (p.scalar("reduction") == NVTE_REDUCTION_NONE) loss[t] = one;
      sum += one;
    }
    if (p.scalar("reduction") == NVTE_REDUCTION_SUM) loss[0] = sum;
    if (p.scalar("reduction") == NVTE_REDUCTION_MEAN) loss[0] = live_tokens(p, v) ? sum / (T)live_tokens(p, v) : 0;
  }
};
TE_TEST(Forward);

struct Backward {
  static constexpr const char *op = "cross_entropy_backward", *cases = "cross_entropy";
  static constexpr Gradient gradient = {"cross_entropy_forward", {{"logits", "dlogits"}}, {{"loss", "dloss"}}};
  static void build(const Case &c, Problem &p) {
    common(c, p);
    const Arg &x = *p.find("logits");
    const int64_t t = c.i("t"), v = c.i("v");
    std::vector<double> lse((size_t)t);
    for (int64_t i = 0; i < t; i++) {
      const double other = c.i("vocab", v) > v ? 1.5 : 0;  // the other shards' share
      lse[(size_t)i] = row_of(x.values, i, v).lse + other;
    }
    p.in("lse", {t}, DType::f32).set(lse);
    Arg &dloss = p.in("dloss", {loss_size(c)}, c.dtype("dloss", DType::f32));
    if (c.has("list")) dloss.set(list(c, "list"));
    p.out("dlogits", {t, v}, c.dtype("dx", x.dtype));
    p.may_alias("dlogits", "logits");
    if (c.has("vocab")) p.no_gradient();
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const Shape &s = p.find("logits")->shape;
    const std::vector<T> &x = v["logits"];
    std::vector<T> &dx = v.out("dlogits");
    const T smoothing = (T)p.scalar("label_smoothing"), vocab = (T)(p.scalar("vocab_size") != 0 ? p.scalar("vocab_size") : (double)s[1]);
    for (int64_t t = 0; t < s[0]; t++) {
      if ((double)v["target"][t] == p.scalar("ignore_index")) continue;
      T g = v["dloss"][p.scalar("reduction") == NVTE_REDUCTION_NONE ? t : 0];
      if (p.scalar("reduction") == NVTE_REDUCTION_MEAN) g /= (T)live_tokens(p, v);
      for (int64_t j = 0; j < s[1]; j++) {
        const bool hit = j + (int64_t)p.scalar("vocab_start") == (int64_t)v["target"][t];
        dx[t * s[1] + j] = (std::exp(x[t * s[1] + j] - v["lse"][t]) - (hit ? 1 - smoothing : 0) - smoothing / vocab) * g;
      }
    }
  }
};
TE_TEST(Backward);

// ---- rows of bugs.md with numbers of their own, and what the cases cannot say ----

struct View {
  std::vector<int64_t> shape, strides;
  nvte_tensor t;
  View(const void *data, DType type, Shape s, Shape st = {}) : shape(s), strides(st) {
    memset(&t, 0, sizeof t);
    t.struct_size = sizeof t;
    t.data.data = const_cast<void *>(data);
    t.data.device = {kDLCPU, 0};
    t.data.dtype = dl(type);
    t.data.ndim = (int32_t)shape.size();
    t.data.shape = shape.data();
    t.data.strides = strides.empty() ? nullptr : strides.data();
  }
};
struct Options {
  int reduction = NVTE_REDUCTION_NONE;
  float smoothing = 0;
  int64_t start = 0, vocab = 0;
};
nvte_status forward(const View &x, const View &target, View *loss, View *lse, View *partials, const Options &o) {
  nvte_cross_entropy_forward_args a = NVTE_CROSS_ENTROPY_FORWARD_ARGS_INIT;
  a.logits = &x.t, a.target = &target.t, a.reduction = o.reduction, a.label_smoothing = o.smoothing, a.vocab_start = o.start, a.vocab_size = o.vocab;
  if (loss) a.loss = &loss->t;
  if (lse) a.lse = &lse->t;
  if (partials) a.partials = &partials->t;
  return nvte_cross_entropy_forward(nullptr, &a);
}
nvte_status backward(const View &x, const View &target, const View &lse, const View &dloss, View &dx, const Options &o) {
  nvte_cross_entropy_backward_args a = NVTE_CROSS_ENTROPY_BACKWARD_ARGS_INIT;
  a.logits = &x.t, a.target = &target.t, a.lse = &lse.t, a.dloss = &dloss.t, a.dlogits = &dx.t;
  a.reduction = o.reduction, a.label_smoothing = o.smoothing, a.vocab_start = o.start, a.vocab_size = o.vocab;
  return nvte_cross_entropy_backward(nullptr, &a);
}

TEST(CrossEntropy, L02_gradient_is_rounded_once_and_logits_survive) {
  const uint16_t logits[4][3] = {};
  uint16_t dx[4][3];
  const int64_t target[4] = {0, 1, 2, -100};
  const float dloss[4] = {0.01f, 0.03f, 0.1f, 0.7f};
  float lse[4], loss[4], loss_f32[4];
  const float logits_f32[4][3] = {};
  View x(logits, DType::bf16, {4, 3}), y(target, DType::i64, {4}), l(loss, DType::f32, {4}), s(lse, DType::f32, {4}), g(dloss, DType::f32, {4}),
      d(dx, DType::bf16, {4, 3}), x32(logits_f32, DType::f32, {4, 3}), l32(loss_f32, DType::f32, {4});
  ASSERT_EQ(forward(x32, y, &l32, nullptr, nullptr, {}), NVTE_OK) << nvte_last_error();
  ASSERT_EQ(forward(x, y, &l, &s, nullptr, {}), NVTE_OK) << nvte_last_error();
  ASSERT_EQ(backward(x, y, s, g, d, {}), NVTE_OK) << nvte_last_error();
  for (int t = 0; t < 4; t++) EXPECT_EQ(loss[t], loss_f32[t]);
  EXPECT_EQ(loss[3], 0);
  auto value = [&](int t, int v) { return decode(DType::bf16, dx[t][v]); };
  EXPECT_EQ(value(0, 0), -0.00665283203125);
  EXPECT_EQ(value(0, 1), 0.003326416015625);
  EXPECT_EQ(value(0, 2), 0.003326416015625);
  for (int v = 0; v < 3; v++) EXPECT_EQ(dx[3][v], 0);
  for (auto &row : logits)
    for (uint16_t v : row) EXPECT_EQ(v, 0);
}

// L04: the target in the other shard of 10 columns; L05: smoothing over the whole vocabulary. Shards combined = unsharded.
TEST(CrossEntropy, L04_L05_shards_combine_to_the_whole) {
  constexpr int kTokens = 5, kVocab = 20, kShard = 10;
  for (float smoothing : {0.f, 0.1f}) {
    float logits[kTokens][kVocab], loss[kTokens], lse[kTokens], dx[kTokens][kVocab];
    int64_t target[kTokens] = {3, 17, 9, 10, 19};
    for (int t = 0; t < kTokens; t++)
      for (int v = 0; v < kVocab; v++) logits[t][v] = std::sin(1.f + (float)(t * kVocab + v)) * 3 + (v >= kShard ? 40.f * (float)(t % 2) : 0);
    logits[2][0] = logits[2][1] = -INFINITY;
    if (smoothing == 0)  // a shard with nothing in it
      for (int v = kShard; v < kVocab; v++) logits[0][v] = -INFINITY;
    const float ones[1] = {1};
    View x(logits, DType::f32, {kTokens, kVocab}), y(target, DType::i64, {kTokens}), l(loss, DType::f32, {kTokens}), s(lse, DType::f32, {kTokens}),
        g(ones, DType::f32, {kTokens}, {0}), d(dx, DType::f32, {kTokens, kVocab});
    Options o;
    o.smoothing = smoothing;
    ASSERT_EQ(forward(x, y, &l, &s, nullptr, o), NVTE_OK) << nvte_last_error();
    ASSERT_EQ(backward(x, y, s, g, d, o), NVTE_OK) << nvte_last_error();

    float part[2][kTokens][4], shard_dx[kTokens][kVocab];
    for (int r = 0; r < 2; r++) {
      View xs(&logits[0][r * kShard], DType::f32, {kTokens, kShard}, {kVocab, 1}), ps(part[r], DType::f32, {kTokens, 4});
      o.start = r * kShard, o.vocab = kVocab;
      ASSERT_EQ(forward(xs, y, nullptr, nullptr, &ps, o), NVTE_OK) << nvte_last_error();
    }
    for (int t = 0; t < kTokens; t++) {
      const float *a = part[0][t], *b = part[1][t], top = std::fmax(a[0], b[0]);
      const double sum = a[1] * std::exp((double)a[0] - top) + b[1] * std::exp((double)b[0] - top), whole = top + std::log(sum);
      double combined = whole - (1 - (double)smoothing) * ((double)a[2] + b[2]);
      if (smoothing > 0) combined -= (double)smoothing / kVocab * ((double)a[3] + b[3]);
      EXPECT_FLOAT_EQ((float)whole, lse[t]);
      EXPECT_FLOAT_EQ((float)combined, loss[t]) << "token " << t << ", smoothing " << smoothing;
      if (t == 2 && smoothing > 0) EXPECT_TRUE(std::isinf(loss[t]));
      else EXPECT_TRUE(std::isfinite(loss[t]));
    }
    for (int r = 0; r < 2; r++) {
      View xs(&logits[0][r * kShard], DType::f32, {kTokens, kShard}, {kVocab, 1}), ds(&shard_dx[0][r * kShard], DType::f32, {kTokens, kShard}, {kVocab, 1});
      o.start = r * kShard, o.vocab = kVocab;
      ASSERT_EQ(backward(xs, y, s, g, ds, o), NVTE_OK) << nvte_last_error();
    }
    EXPECT_EQ(memcmp(dx, shard_dx, sizeof dx), 0);
  }
}

TEST(CrossEntropy, L06_masked_class_and_nan) {
  const float logits[2][3] = {{0, -INFINITY, 1}, {NAN, 0, 1}}, ones[2] = {1, 1};
  const int64_t target[2] = {2, 2};
  float loss[2], lse[2], dx[2][3];
  View x(logits, DType::f32, {2, 3}), y(target, DType::i64, {2}), l(loss, DType::f32, {2}), s(lse, DType::f32, {2}), g(ones, DType::f32, {2}),
      d(dx, DType::f32, {2, 3});
  ASSERT_EQ(forward(x, y, &l, &s, nullptr, {}), NVTE_OK);
  ASSERT_EQ(backward(x, y, s, g, d, {}), NVTE_OK);
  EXPECT_FLOAT_EQ(loss[0], 0.31326169f);
  EXPECT_FLOAT_EQ(dx[0][0], 0.26894142f);
  EXPECT_EQ(dx[0][1], 0);
  EXPECT_FLOAT_EQ(dx[0][2], -0.26894142f);
  EXPECT_TRUE(std::isnan(loss[1]));
}

// A dloss of any stride: every second of a column, backwards in nothing.
TEST(CrossEntropy, L01_dloss_of_any_stride) {
  float logits[3][4] = {{1, 2, 3, 4}, {0, 0, 1, 0}, {5, 4, 3, 2}}, loss[3], lse[3], a[3][4], b[3][4];
  const int64_t target[3] = {3, 1, 0};
  const float dense[3] = {1, 0, 2}, sparse[9] = {1, 9, 9, 0, 9, 9, 2, 9, 9};
  View x(logits, DType::f32, {3, 4}), y(target, DType::i64, {3}), l(loss, DType::f32, {3}), s(lse, DType::f32, {3}), g(dense, DType::f32, {3}),
      gs(sparse, DType::f32, {3}, {3}), da(a, DType::f32, {3, 4}), db(b, DType::f32, {3, 4});
  ASSERT_EQ(forward(x, y, &l, &s, nullptr, {}), NVTE_OK);
  ASSERT_EQ(backward(x, y, s, g, da, {}), NVTE_OK);
  ASSERT_EQ(backward(x, y, s, gs, db, {}), NVTE_OK) << nvte_last_error();
  EXPECT_EQ(memcmp(a, b, sizeof a), 0);
  for (float v : a[1]) EXPECT_EQ(v, 0);
}

// M11, O02: row offsets beyond 2^31 elements, in address space that is never filled.
TEST(CrossEntropy, M11_offsets_have_64_bits) {
  const int64_t stride = ((int64_t)1 << 31) + 64;
  const size_t bytes = (size_t)(stride + 64) * 2;
  void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  uint16_t *x = (uint16_t *)memory;
  x[stride + 1] = 0x3f80;  // 1
  const int64_t target[2] = {0, 1};
  float loss[2];
  View tx(x, DType::bf16, {2, 2}, {stride, 1}), y(target, DType::i64, {2}), l(loss, DType::f32, {2});
  const nvte_status status = forward(tx, y, &l, nullptr, nullptr, {});
  munmap(memory, bytes);
  ASSERT_EQ(status, NVTE_OK) << nvte_last_error();
  EXPECT_FLOAT_EQ(loss[0], 0.69314718f);
  EXPECT_FLOAT_EQ(loss[1], 0.31326169f);
}

}  // namespace
}  // namespace te::test
