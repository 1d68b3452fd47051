// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "harness/op_test.h"
#include "ops/view.h"

namespace te::test {
namespace {

constexpr float kScaleX = 32, kScaleW = 64;

// The numbers that codes of v stand for.
template <class T> std::vector<T> through(const std::vector<T> &v, DType type, float scale) {
  std::vector<T> r(v.size());
  for (size_t i = 0; i < v.size(); i++) r[i] = (T)decode(type, encode(type, (double)((float)v[i] * scale))) * (T)(1.0f / scale);
  return r;
}

struct Forward {
  static constexpr const char *op = "norm_linear_forward", *cases = "norm_linear";
  static void build(const Case &c, Problem &p) {
    Shape sx = c.shape("m"), sy = sx;
    const Shape tokens = sx;
    const int64_t n = c.i("n"), k = c.i("k");
    sx.push_back(k), sy.push_back(n);
    const DType type = c.dtype("dtype");
    const bool rms = c.flag("rms"), codes = c.has("codes");
    Arg &x = p.in("x", sx, type);
    if (c.i("gamma", 1)) {
      Arg &gamma = p.in("gamma", {k}, type);
      if (codes) {  // mean 0, variance 1, no epsilon: the norm is gamma's values with a sign, which are codes; nothing is rounded
        std::vector<double> v(x.values.size()), g((size_t)k);
        for (size_t i = 0; i < v.size(); i++) v[i] = ((int64_t)i % k + (p.expand ? 0 : (int64_t)i / k)) % 2 ? -1 : 1;
        for (size_t j = 0; j < g.size(); j++) g[j] = (double)(j % 7) * 0.25 - 0.5;
        x.set(v), gamma.set(g);
      }
    }
    if (!rms && c.i("gamma", 1)) p.in("beta", {k}, type, codes ? Fill::zero : Fill::normal);
    p.in("weight", {n, k}, type);
    if (c.has("bias")) p.in("bias", {n}, c.dtype("bias"));
    if (codes) {
      for (auto [field, shape, scale] : {std::tuple("x_quantized", sx, kScaleX), std::tuple("weight_quantized", Shape{n, k}, kScaleW)}) {
        Arg &q = p.out(field, shape, c.dtype("codes")).scaled(scale).exact().columnwise().amax().keep();
        if (c.i("columnwise", 1) == 2) q.columnwise_only();
      }
    }
    if (!codes || c.flag("keep")) p.out("normalized", sx, type).keep();
    if (!rms) p.out("mu", tokens, DType::f32);
    p.out("rstd", tokens, DType::f32);
    p.out("y", sy, c.dtype("y", type));
    p.set("norm", rms ? NVTE_NORM_RMS : NVTE_NORM_LAYER);
    p.set("epsilon", c.f("epsilon", 1e-5));
    p.set("norm_flags", c.flag("centred") ? NVTE_NORM_ZERO_CENTERED : 0);
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const Shape &sx = p.find("x")->shape;
    const int64_t k = last(sx), m = count(leading(sx)), n = last(p.find("y")->shape);
    const DType type = p.find("x")->dtype;
    const T epsilon = (T)(float)p.scalar("epsilon"), one = p.scalar("norm_flags") != 0 ? 1 : 0;
    const bool codes = p.has("x_quantized");
    const std::vector<T> w = codes ? through(v["weight"], p.find("x_quantized")->dtype, kScaleW) : v["weight"];
    if (codes) v.out("weight_quantized") = v["weight"];
    std::vector<T> &normal = v.out("normalized", m * k), &mu = v.out("mu", m), &rstd = v.out("rstd", m), &y = v.out("y");
    for (int64_t i = 0; i < m; i++) {
      const T *x = v["x"].data() + i * k;
      T sum = 0, square = 0;
      if (p.scalar("norm") == NVTE_NORM_LAYER)
        for (int64_t j = 0; j < k; j++) sum += x[j];
      mu[(size_t)i] = k ? sum / (T)k : 0;
      for (int64_t j = 0; j < k; j++) square += (x[j] - mu[(size_t)i]) * (x[j] - mu[(size_t)i]);
      rstd[(size_t)i] = 1 / std::sqrt((k ? square / (T)k : 0) + epsilon);
      for (int64_t j = 0; j < k; j++) {
        T z = (x[j] - mu[(size_t)i]) * rstd[(size_t)i];
        if (v.has("gamma")) z *= v["gamma"][(size_t)j] + one;
        if (v.has("beta")) z += v["beta"][(size_t)j];
        normal[(size_t)(i * k + j)] = z;
      }
      if (codes) {
        std::copy_n(normal.begin() + i * k, k, v.out("x_quantized").begin() + i * k);
      }
      // the GEMM reads what was stored; at 16 bits that rounding belongs to the formula
      for (int64_t o = 0; o < n; o++) {
        T s = 0;
        for (int64_t j = 0; j < k; j++) {
          const T z = normal[(size_t)(i * k + j)];
          s += (codes || type == DType::f32 ? z : (T)decode(type, encode(type, (double)z))) * w[(size_t)(o * k + j)];
        }
        y[(size_t)(i * n + o)] = s + (v.has("bias") ? v["bias"][(size_t)o] : 0);
      }
    }
  }
};
TE_TEST(Forward);

// ---- quantised: the composite is its parts, bit for bit ----

struct Fp8 {
  std::vector<uint8_t> data, column;
  float scale, scale_inv = -1, column_inv = -1, amax = -1;
  View v;
  Fp8(int64_t m, int64_t k, float scale) : data((size_t)(m * k), 0xee), column((size_t)(m * k), 0xee), scale(scale), v(data.data(), DType::e4m3, {m, k}) {
    v.scaled(&this->scale, &scale_inv).columnwise(column.data(), DType::e4m3, {k, m}, &column_inv).amax(&amax);
  }
  bool operator==(const Fp8 &o) const {
    return data == o.data && column == o.column && scale == o.scale && scale_inv == o.scale_inv && column_inv == o.column_inv && amax == o.amax;
  }
};
std::vector<uint8_t> numbers(DType type, size_t n, uint64_t seed) {
  std::vector<double> v(n);
  for (size_t i = 0; i < n; i++) v[i] = ((double)(int64_t)(mix(seed, i) % 20001) - 10000) / 3000;
  return stored(type, v);
}
void norm(bool rms, nvte_tensor *x, nvte_tensor *gamma, nvte_tensor *beta, nvte_tensor *y, nvte_tensor *mu, nvte_tensor *rstd) {
  if (rms) {
    nvte_rmsnorm_forward_args a = NVTE_RMSNORM_FORWARD_ARGS_INIT;
    a.x = x, a.gamma = gamma, a.y = y, a.rstd = rstd;
    ASSERT_EQ(nvte_rmsnorm_forward(nullptr, &a), NVTE_OK) << nvte_last_error();
  } else {
    nvte_layernorm_forward_args a = NVTE_LAYERNORM_FORWARD_ARGS_INIT;
    a.x = x, a.gamma = gamma, a.beta = beta, a.y = y, a.mu = mu, a.rstd = rstd;
    ASSERT_EQ(nvte_layernorm_forward(nullptr, &a), NVTE_OK) << nvte_last_error();
  }
}
void quantize(nvte_tensor *x, DType type, Fp8 &q, bool current) {
  if (current) {
    View amax(&q.amax, DType::f32, {1}), scale(&q.scale, DType::f32, {1});
    nvte_compute_amax_args c = NVTE_COMPUTE_AMAX_ARGS_INIT;
    c.x = x, c.amax = amax;
    ASSERT_EQ(nvte_compute_amax(nullptr, &c), NVTE_OK);
    nvte_compute_scale_args s = NVTE_COMPUTE_SCALE_ARGS_INIT;
    s.amax = amax, s.scale = scale, s.dtype = dl(type);
    ASSERT_EQ(nvte_compute_scale(nullptr, &s), NVTE_OK);
  }
  nvte_quantize_args a = NVTE_QUANTIZE_ARGS_INIT;
  a.x = x, a.y = q.v;
  ASSERT_EQ(nvte_quantize(nullptr, &a), NVTE_OK) << nvte_last_error();
}

TEST(NormLinear, equals_its_parts) {
  const int64_t m = 11, n = 20, k = 70;
  for (bool current : {false, true})
    for (bool rms : {false, true})
      for (bool keep : {false, true})
        for (DType type : {DType::f32, DType::bf16}) {
          std::vector<uint8_t> x = numbers(type, m * k, 1), w = numbers(type, n * k, 2), g = numbers(type, k, 3), b = numbers(type, k, 4);
          std::vector<uint8_t> y((size_t)(m * n) * 4, 1), y2((size_t)(m * n) * 4, 2), z(x.size(), 3), z2(x.size(), 4);
          std::vector<float> mu(m), rstd(m), mu2(m), rstd2(m);
          Fp8 xq(m, k, 50), wq(n, k, 7), xq2(m, k, 50), wq2(n, k, 7);
          View tx(x.data(), type, {m, k}), tw(w.data(), type, {n, k}), tg(g.data(), type, {k}), tb(b.data(), type, {k}), ty(y.data(), DType::f32, {m, n}), ty2(y2.data(), DType::f32, {m, n});
          View tz(z.data(), type, {m, k}), tz2(z2.data(), type, {m, k}), tmu(mu.data(), DType::f32, {m}), trstd(rstd.data(), DType::f32, {m}), tmu2(mu2.data(), DType::f32, {m}), trstd2(rstd2.data(), DType::f32, {m});
          nvte_norm_linear_forward_args f = NVTE_NORM_LINEAR_FORWARD_ARGS_INIT;
          f.x = tx, f.gamma = tg, f.weight = tw, f.rstd = trstd, f.x_quantized = xq.v, f.weight_quantized = wq.v, f.y = ty;
          if (!rms) f.beta = tb, f.mu = tmu;
          if (keep) f.normalized = tz;
          f.norm = rms ? NVTE_NORM_RMS : NVTE_NORM_LAYER;
          f.flags = current ? NVTE_LINEAR_CURRENT_SCALING : 0;

          nvte_exec e = {};
          e.struct_size = sizeof e;
          e.device = {kDLCPU, 0};
          size_t bytes = 0;
          ASSERT_EQ(nvte_workspace("norm_linear_forward", &e, &f, &bytes), NVTE_OK) << nvte_last_error();
          EXPECT_EQ(bytes > 0, current && !keep);
          std::vector<uint64_t> memory(bytes / 8 + 9);
          e.workspace = (void *)(((uintptr_t)memory.data() + 63) / 64 * 64);
          if (bytes) {
            e.workspace_size = bytes - 1;
            EXPECT_EQ(nvte_norm_linear_forward(&e, &f), NVTE_ERR_WORKSPACE);
            EXPECT_NE(strstr(nvte_last_error(), std::to_string(bytes).c_str()), nullptr) << nvte_last_error();
            EXPECT_EQ(xq.data[0], 0xee);
          }
          e.workspace_size = bytes;
          ASSERT_EQ(nvte_norm_linear_forward(&e, &f), NVTE_OK) << nvte_last_error();

          if (current) {
            norm(rms, tx, tg, tb, tz2, tmu2, trstd2);
            quantize(tz2, DType::e4m3, xq2, true);
          } else {
            norm(rms, tx, tg, tb, xq2.v, tmu2, trstd2);
            norm(rms, tx, tg, tb, tz2, nullptr, nullptr);
          }
          quantize(tw, DType::e4m3, wq2, current);
          nvte_gemm_args q = NVTE_GEMM_ARGS_INIT;
          q.a = xq2.v, q.b = wq2.v, q.d = ty2, q.flags = NVTE_GEMM_TRANS_B;
          ASSERT_EQ(nvte_gemm(nullptr, &q), NVTE_OK) << nvte_last_error();
          EXPECT_TRUE(xq == xq2 && wq == wq2);
          EXPECT_EQ(y, y2);
          EXPECT_EQ(rstd, rstd2);
          if (!rms) { EXPECT_EQ(mu, mu2); }
          if (keep) { EXPECT_EQ(z, z2); }
        }
}

TEST(NormLinear, refuses) {
  float x[8] = {1, 2, 3, 4}, w[8] = {}, y[4] = {77, 77, 77, 77}, mu[2];
  View tx(x, DType::f32, {2, 4}), tw(w, DType::f32, {2, 4}), ty(y, DType::f32, {2, 2}), tmu(mu, DType::f32, {2}), beta(w, DType::f32, {4});
  nvte_norm_linear_forward_args f = NVTE_NORM_LINEAR_FORWARD_ARGS_INIT;
  auto bad = [&](const char *word, auto change) {
    f = NVTE_NORM_LINEAR_FORWARD_ARGS_INIT;
    f.x = tx, f.weight = tw, f.y = ty;
    change();
    EXPECT_EQ(nvte_norm_linear_forward(nullptr, &f), NVTE_ERR_INVALID_ARGUMENT) << word;
    EXPECT_NE(strstr(nvte_last_error(), word), nullptr) << nvte_last_error();
  };
  bad("normalized is missing", [&] {});
  bad("norm must be", [&] { f.norm = 5; });
  bad("beta must be absent", [&] { f.norm = NVTE_NORM_RMS, f.beta = beta; });
  bad("mu must be absent", [&] { f.norm = NVTE_NORM_RMS, f.mu = tmu; });
  bad("INPUT_READY", [&] { f.flags = NVTE_LINEAR_INPUT_READY; });
  for (float v : y) EXPECT_EQ(v, 77.f);
}

}  // namespace
}  // namespace te::test
