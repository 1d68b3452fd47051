// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>

#include "harness/device.h"
#include "harness/op_test.h"
#include "ops/view.h"

namespace te::test {
namespace {

// The tanh form and its derivative, as include/libte/activation.h defines it.
template <class T> T gelu(T x) { return x * ((T)0.5 + (T)0.5 * std::tanh(x * ((T)0.79788456 + (T)0.03567741 * x * x))); }
template <class T> T dgelu(T x) {
  const T t = std::tanh(x * ((T)0.79788456 + (T)0.03567741 * x * x));
  return (T)0.5 + (T)0.5 * t + (T)0.5 * x * (1 - t * t) * ((T)0.79788456 + 3 * (T)0.03567741 * x * x);
}

// The rule that gemm.h documents: vdpbf16ps takes subnormal operands and sums as 0. (Only products that are blocked use it.)
bool flushes(const Problem &p) {
#if defined(__x86_64__)
  char level[32] = "";
  if (default_device() != "cpu" || p.find("a")->dtype != DType::bf16 || p.find("b")->dtype != DType::bf16 || nvte_config_get("cpu.isa", level, sizeof level, nullptr) != NVTE_OK) return false;
  return !strcmp(level, "avx512bf16") || (!strcmp(level, "auto") && __builtin_cpu_supports("avx512bf16"));
#else
  return (void)p, false;
#endif
}
template <class T> T flushed(T v) { return std::fabs(v) < (T)0x1p-126 ? (T)0 : v; }

struct Gemm {
  static constexpr const char *op = "gemm", *cases = "gemm";
  static void build(const Case &c, Problem &p) {
    const int64_t m = c.i("m"), n = c.i("n"), k = c.i("k");
    const bool ta = c.flag("ta"), tb = c.flag("tb");
    const DType a = c.dtype("a"), b = c.flag("same") && !is_fp8(a) ? a : c.dtype("b", a), d = c.dtype("d", DType::f32);
    const Shape lead = c.has("lead") ? c.shape("lead") : Shape{ta ? k : m};  // a's leading dimensions: product M, transposed K
    const auto with = [&](Shape s, int64_t last) { s.push_back(last); return s; };
    const Shape result = ta ? Shape{m, n} : with(lead, n);
    Arg &x = p.in("a", with(lead, ta ? m : k), a);
    Arg &y = p.in("b", tb ? Shape{n, c.i("kb", k)} : Shape{c.i("kb", k), n}, b);
    if (c.flag("tiny")) {  // G13: subnormal times large
      for (double &v : x.values) v = a == DType::f16 ? 0x1p-24 : (double)1e-40f;
      for (double &v : y.values) v = a == DType::f16 ? 0x1p15 : (double)1e30f;
    }
    if (is_fp8(a)) x.scaled((float)c.f("sa", 0.5));
    if (is_fp8(b)) y.scaled((float)c.f("sb", 2));
    if (c.flag("ac")) x.columnwise_only();
    if (c.flag("bc")) y.columnwise_only();
    const double beta = c.f("beta", 0);
    p.set("alpha", c.f("alpha", 1));
    p.set("beta", beta);
    uint32_t flags = (ta ? NVTE_GEMM_TRANS_A : 0) | (tb ? NVTE_GEMM_TRANS_B : 0) | (uint32_t)c.i("flags", 0);
    if (c.flag("gelu")) flags |= NVTE_GEMM_GELU;
    if (c.flag("dgelu")) flags |= NVTE_GEMM_DGELU;
    p.set("flags", flags);
    if (c.has("c")) {
      Arg &addend = p.in("c", result, c.dtype("c"));
      if (beta == 0)  // G03: must not be read
        for (double &v : addend.values) v = NAN;
      else if (addend.dtype == d && !c.flag("dc")) p.may_alias("d", "c");
    }
    if (c.has("bias")) p.in("bias", {c.i("bias_n", n)}, c.dtype("bias"));
    const Shape shape = c.has("dn") ? Shape{m, c.i("dn")} : result;
    Arg &out = beta != 0 && !c.has("c") ? p.inout("d", shape, d) : p.out("d", shape, d);
    if (is_fp8(d)) out.scaled((float)c.f("scale"));
    if (is_fp8(d) || c.flag("amax")) out.amax();
    if (c.has("amax_before")) out.accumulate_amax((float)c.f("amax_before"));
    if (c.i("dc", 0) == 1) out.columnwise();
    if (c.i("dc", 0) == 2) out.columnwise_only();
    if (c.has("aux")) {
      if (c.flag("dgelu")) p.inout("aux", result, c.dtype("aux")).exact().keep();  // read only: comes out as it went in
      else p.out("aux", result, c.dtype("aux"));
    }
    if (c.has("dbias")) p.out("dbias", {c.flag("dgelu") ? n : m}, c.dtype("dbias"));
    if (c.has("bad")) p.must_fail(NVTE_ERR_INVALID_ARGUMENT, c.s("bad").c_str());
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const Shape &sd = p.find("d")->shape;
    const uint32_t flags = (uint32_t)p.scalar("flags");
    const bool ta = flags & NVTE_GEMM_TRANS_A, tb = flags & NVTE_GEMM_TRANS_B;
    const Shape &sa = p.find("a")->shape;
    const int64_t m = count(leading(sd)), n = last(sd), k = ta ? count(leading(sa)) : last(sa);
    const std::vector<T> &a = v["a"], &b = v["b"];
    std::vector<T> &d = v.out("d"), &aux = v.out("aux", m * n), &dbias = v.out("dbias", flags & NVTE_GEMM_DGELU ? n : m);
    const T alpha = (T)p.scalar("alpha"), beta = (T)p.scalar("beta");
    const bool flush = flushes(p);
    for (int64_t i = 0; i < m; i++) {
      if (!(flags & NVTE_GEMM_DGELU))
        for (int64_t l = 0; l < k; l++) dbias[i] += ta ? a[l * m + i] : a[i * k + l];
      for (int64_t j = 0; j < n; j++) {
        T s = 0;
        for (int64_t l = 0; l < k; l++) {
          const T x = ta ? a[l * m + i] : a[i * k + l], y = tb ? b[j * k + l] : b[l * n + j];
          s = flush ? flushed(s + flushed(x) * flushed(y)) : s + x * y;
        }
        s *= alpha;
        if (beta != 0) s += beta * (v.has("c") ? v["c"][i * n + j] : v["d"][i * n + j]);
        if (v.has("bias") && !v["bias"].empty()) s += v["bias"][j];
        if (flags & NVTE_GEMM_GELU) aux[i * n + j] = s, s = gelu(s);
        if (flags & NVTE_GEMM_DGELU) aux[i * n + j] = v["aux"][i * n + j], s *= dgelu(aux[i * n + j]), dbias[j] += s;
        d[i * n + j] = s;
      }
    }
  }
  static double flops(const Problem &p) {
    const Arg &a = *p.find("a");
    return 2.0 * (double)a.size() * (double)last(p.find("d")->shape);
  }
};
TE_TEST(Gemm);

// ---- what the cases cannot say ----

// The message of a refused call, which must not have written d.
std::string refusal(nvte_gemm_args &g) {
  EXPECT_EQ(nvte_gemm(nullptr, &g), NVTE_ERR_INVALID_ARGUMENT);
  return nvte_last_error();
}

// G04: no memory for a result that is not empty. G06: the reason names both sizes.
TEST(Gemm, G04_G06_messages) {
  std::vector<float> x(768 * 2), y(768 * 2), z(4, 7);
  View a(x.data(), DType::f32, {2, 768}), b(y.data(), DType::f32, {2, 767}), whole(y.data(), DType::f32, {2, 768});
  View d(z.data(), DType::f32, {2, 2}), none(nullptr, DType::f32, {2, 2});
  nvte_gemm_args g = NVTE_GEMM_ARGS_INIT;
  g.flags = NVTE_GEMM_TRANS_B;
  g.a = a, g.b = b, g.d = d;
  EXPECT_NE(refusal(g).find("b has K = 767, a has K = 768"), std::string::npos) << nvte_last_error();
  g.b = whole, g.d = none;
  EXPECT_NE(refusal(g).find("d"), std::string::npos) << nvte_last_error();
  EXPECT_EQ(z[0], 7);
}

TEST(Gemm, refuses_shared_memory) {
  std::vector<float> memory(64, 1), other(64, 1);
  View a(memory.data(), DType::f32, {4, 4}), b(other.data(), DType::f32, {4, 4}), d(memory.data() + 4, DType::f32, {4, 4});
  View aux(other.data() + 15, DType::f32, {4, 4}), apart(other.data() + 32, DType::f32, {4, 4});
  View sums(other.data() + 47, DType::f32, {4});
  nvte_gemm_args g = NVTE_GEMM_ARGS_INIT;
  g.a = a, g.b = b, g.d = d;
  EXPECT_NE(refusal(g).find("d must not share memory with a"), std::string::npos) << nvte_last_error();
  g.d = apart, g.aux = aux, g.flags = NVTE_GEMM_GELU;
  EXPECT_NE(refusal(g).find("aux must not share memory with b"), std::string::npos) << nvte_last_error();
  g.aux = nullptr, g.dbias = sums, g.flags = 0;
  EXPECT_NE(refusal(g).find("d must not share memory with dbias"), std::string::npos) << nvte_last_error();
  for (float v : memory) ASSERT_EQ(v, 1);
  for (float v : other) ASSERT_EQ(v, 1);
}

// Column slices of one buffer interleave without sharing an element: legal.
TEST(Gemm, slices_of_one_buffer) {
  std::vector<float> memory(4 * 8, 1), y(4 * 4, 1);
  View a(memory.data(), DType::f32, {4, 4}), b(y.data(), DType::f32, {4, 4}), d(memory.data() + 4, DType::f32, {4, 4});
  int64_t strides[2] = {8, 1};
  a.t.data.strides = d.t.data.strides = strides;
  nvte_gemm_args g = NVTE_GEMM_ARGS_INIT;
  g.a = a, g.b = b, g.d = d;
  ASSERT_EQ(nvte_gemm(nullptr, &g), NVTE_OK) << nvte_last_error();
  for (int i = 0; i < 32; i++) EXPECT_EQ(memory[(size_t)i], i % 8 < 4 ? 1 : 4);
}

// G07: offsets beyond 2^31 elements, in every operand and the result. Only the pages that hold elements exist.
TEST(Gemm, G07_far_rows) {
  const int64_t m = 10, n = 20, k = 12, far = 398016ll * 6144;  // 2,445,410,304 elements
  const size_t bytes = (size_t)(far * m + 64) * 4;
  const auto map = [&] {
    return (float *)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  };
  float *const x = map(), *const y = map(), *const z = map();
  if (x == MAP_FAILED || y == MAP_FAILED || z == MAP_FAILED) GTEST_SKIP() << "no 300 GB of addresses";
  std::vector<float> w((size_t)(k * n));
  for (int64_t i = 0; i < k * n; i++) w[(size_t)i] = (float)(i % 7 - 3);
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < k; j++) x[i * far + j] = (float)(i - j);
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) y[i * far + j] = (float)(i + j);
  View a(x, DType::f32, {m, k}), b(w.data(), DType::f32, {k, n}), c(y, DType::f32, {m, n}), d(z, DType::f32, {m, n});
  int64_t strides[2] = {far, 1};
  a.t.data.strides = c.t.data.strides = d.t.data.strides = strides;
  nvte_gemm_args g = NVTE_GEMM_ARGS_INIT;
  g.a = a, g.b = b, g.c = c, g.d = d, g.beta = 1;
  ASSERT_EQ(nvte_gemm(nullptr, &g), NVTE_OK) << nvte_last_error();
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      float want = (float)(i + j);
      for (int64_t l = 0; l < k; l++) want += (float)(i - l) * w[(size_t)(l * n + j)];
      EXPECT_EQ(z[i * far + j], want);
    }
  munmap(x, bytes), munmap(y, bytes), munmap(z, bytes);
}

// G13: the same call twenty times gives the same bits.
TEST(Gemm, G13_repeats) {
  const int64_t m = 230, n = 76, k = 409;
  std::vector<double> v((size_t)(m * k)), w((size_t)(n * k));
  for (size_t i = 0; i < v.size(); i++) v[i] = (double)(mix(1, i) % 1000) / 500 - 1;
  for (size_t i = 0; i < w.size(); i++) w[i] = (double)(mix(2, i) % 1000) / 500 - 1;
  std::vector<uint8_t> x = stored(DType::e4m3, v), y = stored(DType::e4m3, w), first((size_t)(m * n) * 2), again(first.size());
  float inverse = 0.125f;
  View a(x.data(), DType::e4m3, {m, k}), b(y.data(), DType::e4m3, {n, k});
  View d(first.data(), DType::bf16, {m, n}), e(again.data(), DType::bf16, {m, n});
  a.scaled(nullptr, &inverse), b.scaled(nullptr, &inverse);
  nvte_gemm_args g = NVTE_GEMM_ARGS_INIT;
  g.a = a, g.b = b, g.d = d, g.flags = NVTE_GEMM_TRANS_B;
  ASSERT_EQ(nvte_gemm(nullptr, &g), NVTE_OK) << nvte_last_error();
  g.d = e;
  for (int i = 1; i < 20; i++) {
    ASSERT_EQ(nvte_gemm(nullptr, &g), NVTE_OK) << nvte_last_error();
    ASSERT_EQ(memcmp(first.data(), again.data(), first.size()), 0) << "run " << i;
  }
}

}  // namespace
}  // namespace te::test
