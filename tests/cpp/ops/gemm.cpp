// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "harness/op_test.h"

namespace te::test {
namespace {

// The tanh form and its derivative, as include/libte/activation.h defines it.
template <class T> T gelu(T x) { return x * ((T)0.5 + (T)0.5 * std::tanh(x * ((T)0.79788456 + (T)0.03567741 * x * x))); }
template <class T> T dgelu(T x) {
  const T t = std::tanh(x * ((T)0.79788456 + (T)0.03567741 * x * x));
  return (T)0.5 + (T)0.5 * t + (T)0.5 * x * (1 - t * t) * ((T)0.79788456 + 3 * (T)0.03567741 * x * x);
}

struct Gemm {
  static constexpr const char *op = "gemm", *cases = "gemm";
  static void build(const Case &c, Problem &p) {
    const int64_t m = c.i("m"), n = c.i("n"), k = c.i("k");
    const bool ta = c.flag("ta"), tb = c.flag("tb");
    const DType a = c.dtype("a"), b = c.dtype("b", a), d = c.dtype("d", DType::f32);
    Arg &x = p.in("a", ta ? Shape{k, m} : Shape{m, k}, a), &y = p.in("b", tb ? Shape{n, k} : Shape{k, n}, b);
    if (is_fp8(a)) x.scaled(0.5f);
    if (is_fp8(b)) y.scaled(2.f);
    const double beta = c.f("beta", 0);
    p.set("alpha", c.f("alpha", 1));
    p.set("beta", beta);
    uint32_t flags = (ta ? NVTE_GEMM_TRANS_A : 0) | (tb ? NVTE_GEMM_TRANS_B : 0);
    if (c.flag("gelu")) flags |= NVTE_GEMM_GELU;
    if (c.flag("dgelu")) flags |= NVTE_GEMM_DGELU;
    p.set("flags", flags);
    if (c.has("c")) {
      Arg &addend = p.in("c", {m, n}, c.dtype("c"));
      if (beta == 0)  // G03: must not be read
        for (double &v : addend.values) v = NAN;
    }
    if (c.has("bias")) p.in("bias", {n}, c.dtype("bias"));
    Arg &out = beta != 0 && !c.has("c") ? p.inout("d", {m, n}, d) : p.out("d", {m, n}, d);
    if (is_fp8(d)) out.scaled((float)c.f("scale")).amax();
    if (c.has("aux")) {
      if (c.flag("gelu")) p.out("aux", {m, n}, c.dtype("aux"));
      else p.in("aux", {m, n}, c.dtype("aux"));
    }
    if (c.has("dbias")) p.out("dbias", {c.flag("dgelu") ? n : m}, c.dtype("dbias"));
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const Shape &sd = p.find("d")->shape;
    const uint32_t flags = (uint32_t)p.scalar("flags");
    const bool ta = flags & NVTE_GEMM_TRANS_A, tb = flags & NVTE_GEMM_TRANS_B;
    const int64_t m = sd[0], n = sd[1], k = p.find("a")->shape[ta ? 0 : 1];
    const std::vector<T> &a = v["a"], &b = v["b"];
    std::vector<T> &d = v.out("d"), &aux = v.out("aux", m * n), &dbias = v.out("dbias", m > n ? m : n);
    const T alpha = (T)p.scalar("alpha"), beta = (T)p.scalar("beta");
    for (int64_t i = 0; i < m; i++) {
      if (!(flags & NVTE_GEMM_DGELU))
        for (int64_t l = 0; l < k; l++) dbias[i] += ta ? a[l * m + i] : a[i * k + l];
      for (int64_t j = 0; j < n; j++) {
        T s = 0;
        for (int64_t l = 0; l < k; l++) s += (ta ? a[l * m + i] : a[i * k + l]) * (tb ? b[j * k + l] : b[l * n + j]);
        s *= alpha;
        if (beta != 0) s += beta * (v.has("c") ? v["c"][i * n + j] : v["d"][i * n + j]);
        if (v.has("bias")) s += v["bias"][j];
        if (flags & NVTE_GEMM_GELU) aux[i * n + j] = s, s = gelu(s);
        if (flags & NVTE_GEMM_DGELU) s *= dgelu(v["aux"][i * n + j]), dbias[j] += s;
        d[i * n + j] = s;
      }
    }
  }
  static double flops(const Problem &p) {
    const Arg &a = *p.find("a");
    return 2.0 * (double)a.size() * (double)p.find("d")->shape[1];
  }
};
TE_TEST(Gemm);

}  // namespace
}  // namespace te::test
