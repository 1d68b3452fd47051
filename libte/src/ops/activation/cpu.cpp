// SPDX-License-Identifier: Apache-2.0
// Activations on the CPU: y = f(x) and dx = dy * f'(x).
#include "cpu/activation.h"

namespace te::cpu::TE_CPU_ISA {

nvte_status activation_forward(const nvte_exec &, const nvte_activation_forward_args &a) {
  Strip f = nullptr;
  const int degree = exp_degree(*a.y);
  visit_float(dtype_of(a.x->data.dtype), [&](auto x) {
    visit_activation(a.activation, [&](auto act) {
      using A = decltype(act);
      using X = decltype(x);
      f = degree == 4 ? value_strip<A, X, 4> : degree ? value_strip<A, X, 6> : value_strip<A, X, 0>;
    });
  });
  Output out(*a.y);
  const Walk w = walk_of(out, is_contiguous(a.x->data), nullptr);
  const bool stream = can_stream(out, w);
  const RowIndex xi = row_index(a.x->data);
  const int64_t bytes = element_bytes(a.x->data);
  return walk(out, w, nullptr, [&](Block &b, int64_t i, int64_t row, int64_t j, int64_t n, int64_t at, float *) {
    StripBuffer y;
    run_strip(f, row_of(a.x, xi, row) + j * bytes, bytes, y.v, n);
    write_any(b, i, at, y.v, n, stream);
  });
}

nvte_status activation_backward(const nvte_exec &, const nvte_activation_backward_args &a) {
  Strip slope = nullptr, multiply = nullptr;
  visit_float(dtype_of(a.x->data.dtype), [&](auto x) {
    visit_activation(a.activation, [&](auto act) { slope = slope_strip<decltype(act), decltype(x)>; });
  });
  visit_float(dtype_of(a.dy->data.dtype), [&](auto dy) { multiply = multiply_strip<decltype(dy)>; });
  Output out(*a.dx);
  const Walk w = walk_of(out, is_contiguous(a.x->data) && is_contiguous(a.dy->data), a.dbias);
  const bool stream = can_stream(out, w);
  const RowIndex xi = row_index(a.x->data), di = row_index(a.dy->data);
  const int64_t x_bytes = element_bytes(a.x->data), d_bytes = element_bytes(a.dy->data);
  return walk(out, w, a.dbias, [&](Block &b, int64_t i, int64_t row, int64_t j, int64_t n, int64_t at, float *sums) {
    StripBuffer dx;
    run_strip(slope, row_of(a.x, xi, row) + j * x_bytes, x_bytes, dx.v, n);
    run_strip(multiply, row_of(a.dy, di, row) + j * d_bytes, d_bytes, dx.v, n);
    if (sums) add_strip(dx.v, sums + j, n);
    write_any(b, i, at, dx.v, n, stream);
  });
}

}  // namespace te::cpu::TE_CPU_ISA
