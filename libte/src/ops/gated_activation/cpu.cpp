// SPDX-License-Identifier: Apache-2.0
// Gated activations on the CPU: y = f(a) * b with the gate a in the first half of x's columns and b in the second, and the clamped
// SwiGLU of gpt-oss.
#include "cpu/activation.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

struct Clamp { float limit, alpha, offset; };

// value = a' sigmoid(alpha a'), slope = its derivative by a (0 where a is clamped), a' = min(a, limit).
template <class X> void clamped_gate(const Clamp &c, const void *x, float *value, float *slope, int64_t n) {
  for (int64_t j = 0; j < n; j += 16) {
    const vf a = load((const X *)x + j), m = min(set1(c.limit), a), z = set1(c.alpha) * m;
    const Logistic l = logistic_with_slope(z);
    store(value + j, one_nan(max(set1(-0x1.fffffep127f), m) * l.s));  // -inf * 0 is -0, the limit
    // z l.slope is 0 for infinite z, the limit
    const vf tail = clamp(z, kExpZero, -kExpZero) * l.slope;
    store(slope + j, one_nan(select(a > set1(c.limit), zero(), l.s + tail)));
  }
}
// value = clamp(b, -limit, limit) + offset, slope = 1 inside the clamp, else 0.
template <class X> void clamped_linear(const Clamp &c, const void *x, float *value, float *slope, int64_t n) {
  for (int64_t j = 0; j < n; j += 16) {
    const vf b = load((const X *)x + j);
    store(value + j, clamp(b, -c.limit, c.limit) + set1(c.offset));
    store(slope + j, select(abs(b) > set1(c.limit), zero(), set1(1.f)));
  }
}
// y = f(a) * b. n: a multiple of 16.
template <class A, class X, int kDegree> void gated_strip(const void *a, const void *b, float *y, int64_t n) {
#pragma GCC unroll 2
  for (int64_t j = 0; j < n; j += 16) {
    fetch_ahead((const X *)a + j);
    fetch_ahead((const X *)b + j);
    const vf v = load((const X *)a + j), w = load((const X *)b + j);
    store(y + j, kDegree ? quick<kDegree>(A{}, v) * w : one_nan(A::value(v) * w));
  }
}
typedef void (*GatedStrip)(const void *a, const void *b, float *y, int64_t n);
typedef void (*ClampStrip)(const Clamp &c, const void *x, float *value, float *slope, int64_t n);

// f chosen once a call; every function serves strips of any length (see run_strip).
struct Gate {
  bool clamped;
  Clamp clamp;
  ClampStrip gate, linear;
  GatedStrip gated;
  Strip multiply;
  Strip2 both;

  void run(ClampStrip f, const char *x, int64_t bytes, float *v, float *s, int64_t n) const {
    const int64_t whole = n / 16 * 16;
    f(clamp, x, v, s, whole);
    if (whole == n) return;
    alignas(64) char t[64] = {};
    memcpy(t, x + whole * bytes, (n - whole) * bytes);
    f(clamp, t, v + whole, s + whole, 16);
  }
};
template <class Args> Gate gate_of(const Args &a) {
  Gate g = {(a.flags & NVTE_GATED_CLAMPED) != 0, {a.limit, a.alpha, a.offset}, nullptr, nullptr, nullptr, nullptr, nullptr};
  constexpr bool kForward = __is_same(Args, nvte_gated_activation_forward_args);
  int degree = 0;
  if constexpr (kForward) degree = exp_degree(*a.y);
  visit_float(dtype_of(a.x->data.dtype), [&](auto x) {
    using X = decltype(x);
    g.gate = clamped_gate<X>;
    g.linear = clamped_linear<X>;
    g.multiply = multiply_strip<X>;
    visit_activation(a.activation, [&](auto act) {
      using A = decltype(act);
      if constexpr (kForward) g.gated = degree == 4 ? gated_strip<A, X, 4> : degree ? gated_strip<A, X, 6> : gated_strip<A, X, 0>;
      else g.both = both_strip<A, X>;
    });
  });
  return g;
}

}  // namespace

nvte_status gated_activation_forward(const nvte_exec &, const nvte_gated_activation_forward_args &a) {
  const Gate g = gate_of(a);
  Output out(*a.y);
  const int64_t h = out.K, bytes = element_bytes(a.x->data);
  const Walk w = {out.M, h, false};
  const bool stream = can_stream(out, w);
  const RowIndex xi = row_index(a.x->data);
  return walk(out, w, nullptr, [&](Block &b, int64_t i, int64_t row, int64_t j, int64_t n, int64_t at, float *) {
    const char *x = row_of(a.x, xi, row) + j * bytes, *linear = x + h * bytes;
    StripBuffer y, l, unused;
    if (g.clamped) {
      g.run(g.gate, x, bytes, y.v, unused.v, n);
      g.run(g.linear, linear, bytes, l.v, unused.v, n);
      multiply_strip<float>(l.v, y.v, padded(n));
    } else {
      const int64_t whole = n / 16 * 16;
      g.gated(x, linear, y.v, whole);
      if (whole < n) {
        alignas(64) char t[2][64] = {};
        memcpy(t[0], x + whole * bytes, (n - whole) * bytes);
        memcpy(t[1], linear + whole * bytes, (n - whole) * bytes);
        g.gated(t[0], t[1], y.v + whole, 16);
      }
    }
    write_any(b, i, at, y.v, n, stream);
  });
}

nvte_status gated_activation_backward(const nvte_exec &, const nvte_gated_activation_backward_args &a) {
  const Gate g = gate_of(a);
  Strip multiply_dy = nullptr;
  visit_float(dtype_of(a.dy->data.dtype), [&](auto dy) { multiply_dy = multiply_strip<decltype(dy)>; });
  Output out(*a.dx);
  const int64_t h = out.K / 2, bytes = element_bytes(a.x->data), d_bytes = element_bytes(a.dy->data);
  const Walk w = {out.M, h, false};
  const bool stream = can_stream(out, w);
  const RowIndex xi = row_index(a.x->data), di = row_index(a.dy->data);
  return walk(out, w, a.dbias, [&](Block &b, int64_t i, int64_t row, int64_t j, int64_t n, int64_t at, float *sums) {
    const char *x = row_of(a.x, xi, row) + j * bytes, *linear = x + h * bytes, *dy = row_of(a.dy, di, row) + j * d_bytes;
    StripBuffer da, db, l, mask;
    if (g.clamped) g.run(g.gate, x, bytes, db.v, da.v, n);
    else run_strip(g.both, x, bytes, db.v, da.v, n);
    run_strip(multiply_dy, dy, d_bytes, da.v, n);
    run_strip(multiply_dy, dy, d_bytes, db.v, n);
    if (g.clamped) {
      g.run(g.linear, linear, bytes, l.v, mask.v, n);
      multiply_strip<float>(l.v, da.v, padded(n));
      multiply_strip<float>(mask.v, db.v, padded(n));
    } else {
      run_strip(g.multiply, linear, bytes, da.v, n);
    }
    if (sums) {
      add_strip(da.v, sums + j, n);
      // the second half of a row of sums need not start at a whole vector: its last lanes are added one by one
      const int64_t whole = n / 16 * 16;
      add_strip(db.v, sums + h + j, whole);
      for (int64_t k = whole; k < n; k++) sums[h + j + k] += db.v[k];
    }
    write_any(b, i, at, da.v, n, stream);
    write_any(b, i, at + h, db.v, n, stream);
  });
}

}  // namespace te::cpu::TE_CPU_ISA
