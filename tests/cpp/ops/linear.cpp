// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "harness/op_test.h"
#include "ops/view.h"

namespace te::test {
namespace {

constexpr float kScaleX = 32, kScaleW = 64, kScaleDy = 1024;

// The numbers that codes of v stand for.
template <class T> std::vector<T> through(const std::vector<T> &v, DType type, float scale) {
  std::vector<T> r(v.size());
  for (size_t i = 0; i < v.size(); i++) r[i] = (T)decode(type, encode(type, (double)((float)v[i] * scale))) * (T)(1.0f / scale);
  return r;
}
// Rounded to codes already, as a forward pass leaves them.
void quantised_values(Arg &a) {
  std::vector<double> v = a.values;
  for (double &x : v) x *= a.scale;
  a.set(v);
}

struct Forward {
  static constexpr const char *op = "linear_forward", *cases = "linear";
  static void build(const Case &c, Problem &p) {
    Shape sx = c.shape("m"), sy = sx;
    const int64_t n = c.i("n"), k = c.i("k");
    sx.push_back(k), sy.push_back(n);
    const DType type = c.dtype("dtype");
    const bool ready = c.flag("ready"), codes = c.has("codes");
    if (!ready) p.in("x", sx, type);
    if (!ready) p.in("weight", {n, k}, type);
    if (c.has("bias")) p.in("bias", {n}, c.dtype("bias"));
    if (codes) {
      const DType t = c.dtype("codes");
      for (auto [field, shape, scale] : {std::tuple("x_quantized", sx, kScaleX), std::tuple("weight_quantized", Shape{n, k}, kScaleW)}) {
        if (ready) {
          quantised_values(p.in(field, shape, t).scaled(scale));
          continue;
        }
        Arg &q = p.out(field, shape, t).scaled(scale).exact().amax().keep();
        if (c.i("columnwise", 1)) q.columnwise();
        if (c.i("columnwise", 1) == 2) q.columnwise_only();
      }
      p.no_gradient();
    }
    p.out("y", sy, c.dtype("y", type));
    p.set("flags", (ready ? NVTE_LINEAR_INPUT_READY | NVTE_LINEAR_WEIGHT_READY : 0) | (c.flag("split") ? NVTE_LINEAR_SPLIT_ACCUMULATOR : 0));
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    std::vector<T> x, w;
    if (p.has("x")) {
      x = v["x"], w = v["weight"];
      if (p.has("x_quantized")) {
        v.out("x_quantized") = x, v.out("weight_quantized") = w;
        x = through(x, p.find("x_quantized")->dtype, kScaleX), w = through(w, p.find("x_quantized")->dtype, kScaleW);
      }
    } else {
      x = v["x_quantized"], w = v["weight_quantized"];
    }
    std::vector<T> &y = v.out("y");
    const int64_t n = last(p.find("y")->shape), m = count(leading(p.find("y")->shape)), k = last(p.find(p.has("x") ? "x" : "x_quantized")->shape);
    for (int64_t i = 0; i < m; i++)
      for (int64_t j = 0; j < n; j++) {
        T s = 0;
        for (int64_t l = 0; l < k; l++) s += x[(size_t)(i * k + l)] * w[(size_t)(j * k + l)];
        y[(size_t)(i * n + j)] = s + (v.has("bias") ? v["bias"][(size_t)j] : 0);
      }
  }
};
TE_TEST(Forward);

struct Backward {
  static constexpr const char *op = "linear_backward", *cases = "linear";
  static constexpr Gradient gradient = {"linear_forward", {{"x", "dx"}, {"weight", "dweight"}, {"bias", "dbias"}}, {{"y", "dy"}}};
  static void build(const Case &c, Problem &p) {
    Shape sx = c.shape("m"), sy = sx;
    const int64_t n = c.i("n"), k = c.i("k");
    sx.push_back(k), sy.push_back(n);
    const DType type = c.dtype("dtype");
    p.in("dy", sy, type);
    if (c.has("codes")) {
      quantised_values(p.in("x", sx, c.dtype("codes")).scaled(kScaleX).columnwise());
      quantised_values(p.in("weight", {n, k}, c.dtype("codes")).scaled(kScaleW).columnwise());
      Arg &q = p.out("dy_quantized", sy, c.dtype("grad", DType::e4m3)).scaled(kScaleDy).exact().columnwise().amax().keep();
      if (c.i("columnwise", 1) == 2) q.columnwise_only();
      p.no_gradient();
    } else {
      p.in("x", sx, type);
      p.in("weight", {n, k}, type);
    }
    const std::string want = c.s("want", "xwb");
    if (want.find('x') != want.npos) p.out("dx", sx, type);
    const bool add = c.flag("accumulate");
    if (want.find('w') != want.npos) add ? p.inout("dweight", {n, k}, c.dtype("dweight", type)) : p.out("dweight", {n, k}, c.dtype("dweight", type));
    if (want.find('b') != want.npos) p.out("dbias", {n}, c.dtype("bias", type));
    if (add) p.no_gradient();
    p.set("flags", add ? NVTE_LINEAR_ACCUMULATE : 0);
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const Shape &sy = p.find("dy")->shape;
    const int64_t n = last(sy), m = count(leading(sy)), k = last(p.find("x")->shape);
    std::vector<T> dy = v["dy"];
    std::vector<T> &dx = v.out("dx", m * k), &dw = v.out("dweight", n * k), &db = v.out("dbias", n);
    for (int64_t i = 0; i < m; i++)
      for (int64_t j = 0; j < n; j++) db[(size_t)j] += dy[(size_t)(i * n + j)];
    if (p.has("dy_quantized")) {
      v.out("dy_quantized") = dy;
      dy = through(dy, p.find("dy_quantized")->dtype, kScaleDy);
    }
    for (int64_t i = 0; i < m; i++)
      for (int64_t l = 0; l < k; l++) {
        T s = 0;
        for (int64_t j = 0; j < n; j++) s += dy[(size_t)(i * n + j)] * v["weight"][(size_t)(j * k + l)];
        dx[(size_t)(i * k + l)] = s;
      }
    for (int64_t j = 0; j < n; j++)
      for (int64_t l = 0; l < k; l++) {
        T s = 0;
        for (int64_t i = 0; i < m; i++) s += dy[(size_t)(i * n + j)] * v["x"][(size_t)(i * k + l)];
        if (p.scalar("flags") != 0) s += v["dweight"][(size_t)(j * k + l)];
        dw[(size_t)(j * k + l)] = s;
      }
  }
};
TE_TEST(Backward);

// ---- the composite is its parts, bit for bit ----

struct Fp8 {  // a quantised tensor with everything in it
  std::vector<uint8_t> data, column;
  float scale, scale_inv = -1, column_inv = -1, amax = -1;
  View v;
  Fp8(DType type, int64_t m, int64_t k, float scale) : data((size_t)(m * k), 0xee), column((size_t)(m * k), 0xee), scale(scale), v(data.data(), type, {m, k}) {
    v.scaled(&this->scale, &scale_inv).columnwise(column.data(), type, {k, m}, &column_inv).amax(&amax);
  }
  bool operator==(const Fp8 &o) const {
    return data == o.data && column == o.column && scale == o.scale && scale_inv == o.scale_inv && column_inv == o.column_inv && amax == o.amax;
  }
};
std::vector<float> numbers(size_t n, uint64_t seed) {
  std::vector<float> v(n);
  for (size_t i = 0; i < n; i++) v[i] = (float)((double)(int64_t)(mix(seed, i) % 20001) - 10000) / 3000;
  return v;
}
void current(std::vector<float> &x, int64_t m, int64_t k, DType type, Fp8 &q, bool pow2) {
  View a(x.data(), DType::f32, {m, k}), amax(&q.amax, DType::f32, {1}), scale(&q.scale, DType::f32, {1});
  nvte_compute_amax_args c = NVTE_COMPUTE_AMAX_ARGS_INIT;
  c.x = a, c.amax = amax;
  ASSERT_EQ(nvte_compute_amax(nullptr, &c), NVTE_OK);
  nvte_compute_scale_args s = NVTE_COMPUTE_SCALE_ARGS_INIT;
  s.amax = amax, s.scale = scale, s.dtype = dl(type), s.flags = pow2 ? NVTE_COMPUTE_SCALE_POW2 : 0;
  ASSERT_EQ(nvte_compute_scale(nullptr, &s), NVTE_OK);
}
void quantize(std::vector<float> &x, int64_t m, int64_t k, Fp8 &q, View *dbias = nullptr) {
  View a(x.data(), DType::f32, {m, k});
  nvte_quantize_args s = NVTE_QUANTIZE_ARGS_INIT;
  s.x = a, s.y = q.v, s.dbias = dbias ? &dbias->t : nullptr;
  ASSERT_EQ(nvte_quantize(nullptr, &s), NVTE_OK) << nvte_last_error();
}
void gemm(nvte_tensor *a, nvte_tensor *b, nvte_tensor *d, nvte_tensor *bias, uint32_t flags) {
  nvte_gemm_args g = NVTE_GEMM_ARGS_INIT;
  g.a = a, g.b = b, g.d = d, g.bias = bias, g.flags = flags;
  ASSERT_EQ(nvte_gemm(nullptr, &g), NVTE_OK) << nvte_last_error();
}

TEST(Linear, equals_its_parts) {
  const int64_t m = 19, n = 33, k = 70;
  for (bool now : {false, true})
    for (bool pow2 : {false, true})
      for (DType type : {DType::e4m3, DType::e4m3fnuz}) {
        if (pow2 && !now) continue;
        std::vector<float> x = numbers(m * k, 1), w = numbers(n * k, 2), b = numbers(n, 3), y((size_t)(m * n)), y2 = y;
        Fp8 xq(type, m, k, 5), wq(type, n, k, 7), xq2(type, m, k, 5), wq2(type, n, k, 7);
        View tx(x.data(), DType::f32, {m, k}), tw(w.data(), DType::f32, {n, k}), tb(b.data(), DType::f32, {n}), ty(y.data(), DType::f32, {m, n}), ty2(y2.data(), DType::f32, {m, n});
        nvte_linear_forward_args f = NVTE_LINEAR_FORWARD_ARGS_INIT;
        f.x = tx, f.weight = tw, f.bias = tb, f.x_quantized = xq.v, f.weight_quantized = wq.v, f.y = ty;
        f.flags = (now ? NVTE_LINEAR_CURRENT_SCALING : 0) | (pow2 ? NVTE_LINEAR_POW2_SCALES : 0);
        ASSERT_EQ(nvte_linear_forward(nullptr, &f), NVTE_OK) << nvte_last_error();
        if (now) current(x, m, k, type, xq2, pow2), current(w, n, k, type, wq2, pow2);
        quantize(x, m, k, xq2);
        quantize(w, n, k, wq2);
        gemm(xq2.v, wq2.v, ty2, tb, NVTE_GEMM_TRANS_B);
        EXPECT_TRUE(xq == xq2 && wq == wq2) << now << pow2;
        EXPECT_EQ(y, y2);
        EXPECT_EQ(xq.scale != 5, now);
        if (pow2) {
          int e;
          EXPECT_EQ(std::frexp(xq.scale, &e), 0.5f);
        }

        // the weight's codes are kept for a second call, which must not touch them
        const std::vector<uint8_t> kept = wq.data;
        f.weight = nullptr, f.flags |= NVTE_LINEAR_WEIGHT_READY;
        ASSERT_EQ(nvte_linear_forward(nullptr, &f), NVTE_OK) << nvte_last_error();
        EXPECT_EQ(wq.data, kept);
        EXPECT_EQ(y, y2);

        std::vector<float> dy = numbers(m * n, 4), dx((size_t)(m * k)), dw((size_t)(n * k)), db((size_t)n), dx2 = dx, dw2 = dw, db2 = db;
        Fp8 dq(type, m, n, 9), dq2(type, m, n, 9);
        View tdy(dy.data(), DType::f32, {m, n}), tdx(dx.data(), DType::f32, {m, k}), tdw(dw.data(), DType::f32, {n, k}), tdb(db.data(), DType::f32, {n});
        View tdx2(dx2.data(), DType::f32, {m, k}), tdw2(dw2.data(), DType::f32, {n, k}), tdb2(db2.data(), DType::f32, {n});
        nvte_linear_backward_args g = NVTE_LINEAR_BACKWARD_ARGS_INIT;
        g.dy = tdy, g.x = xq.v, g.weight = wq.v, g.dy_quantized = dq.v, g.dx = tdx, g.dweight = tdw, g.dbias = tdb, g.flags = f.flags & ~NVTE_LINEAR_WEIGHT_READY;
        ASSERT_EQ(nvte_linear_backward(nullptr, &g), NVTE_OK) << nvte_last_error();
        if (now) current(dy, m, n, type, dq2, pow2);
        quantize(dy, m, n, dq2, &tdb2);
        gemm(dq2.v, wq.v, tdx2, nullptr, 0);
        gemm(dq2.v, xq.v, tdw2, nullptr, NVTE_GEMM_TRANS_A);
        EXPECT_TRUE(dq == dq2);
        EXPECT_EQ(dx, dx2);
        EXPECT_EQ(dw, dw2);
        EXPECT_EQ(db, db2);
      }
}

// Names the argument and writes nothing.
TEST(Linear, refuses) {
  const int64_t m = 4, n = 3, k = 8;
  std::vector<float> x = numbers(m * k, 1), w = numbers(n * k, 2), y((size_t)(m * n), 77);
  Fp8 xq(DType::e4m3, m, k, 5), wq(DType::e4m3, n, k, 7);
  View tx(x.data(), DType::f32, {m, k}), tw(w.data(), DType::f32, {n, k}), ty(y.data(), DType::f32, {m, n});
  nvte_linear_forward_args f = NVTE_LINEAR_FORWARD_ARGS_INIT;
  auto bad = [&](const char *word, auto change) {
    f.x = tx, f.weight = tw, f.x_quantized = xq.v, f.weight_quantized = wq.v, f.y = ty, f.flags = 0;
    change();
    EXPECT_EQ(nvte_linear_forward(nullptr, &f), NVTE_ERR_INVALID_ARGUMENT) << word;
    EXPECT_NE(strstr(nvte_last_error(), word), nullptr) << nvte_last_error();
  };
  bad("weight_quantized", [&] { f.weight_quantized = nullptr; });
  bad("x_quantized", [&] { f.x_quantized = nullptr; });
  bad("x is missing", [&] { f.x = nullptr; });
  bad("weight is missing", [&] { f.weight = nullptr; });
  bad("x_quantized is missing", [&] { f.x_quantized = f.weight_quantized = nullptr, f.flags = NVTE_LINEAR_INPUT_READY; });
  bad("flags", [&] { f.flags = 0x400; });
  bad("x_quantized must have scale and amax", [&] {
    static Fp8 bare(DType::e4m3, m, k, 5);
    bare.v.t.amax.data = nullptr;
    f.x_quantized = bare.v, f.flags = NVTE_LINEAR_CURRENT_SCALING;
  });
  for (float v : y) EXPECT_EQ(v, 77.f);
  EXPECT_EQ(xq.data[0], 0xee);
}

}  // namespace
}  // namespace te::test
