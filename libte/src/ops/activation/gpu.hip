// SPDX-License-Identifier: Apache-2.0
// Activations on GPUs: y = f(x) and dx = dy * f'(x), one pass.
#include "gpu/device/activation.h"
#include "gpu/map.h"

namespace te {
namespace {
using gpu::Input;

struct Forward {
  static constexpr int kInputs = 1, kOutputs = 1;
  static constexpr bool kSums = false;
  Input x;
  int activation;
  DType dtype() const { return x.dtype; }
  bool knowable() const { return gpu::knowable(x, x.dtype); }
  template <class In> __device__ void load(int64_t row, int64_t column, int n, In (&in)[1]) const { in[0].load(x, row, column, n); }
  template <class V> __device__ void visit(V &&f) const { device::visit_activation(activation, f); }
  template <class A> __device__ static void apply(A, const float (&in)[1][8], float (&v)[1][8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[0][i] = A::value(in[0][i]);
  }
};
struct Backward {
  static constexpr int kInputs = 2, kOutputs = 1;
  static constexpr bool kSums = true;
  Input dy, x;
  int activation;
  DType dtype() const { return x.dtype; }
  bool knowable() const { return gpu::knowable(x, x.dtype) && gpu::knowable(dy, x.dtype); }
  template <class In> __device__ void load(int64_t row, int64_t column, int n, In (&in)[2]) const {
    in[0].load(x, row, column, n);
    in[1].load(dy, row, column, n);
  }
  template <class V> __device__ void visit(V &&f) const { device::visit_activation(activation, f); }
  template <class A> __device__ static void apply(A, const float (&in)[2][8], float (&v)[1][8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[0][i] = in[1][i] * A::both(in[0][i]).slope;
  }
};

gpu::MapCall plan(const nvte_activation_forward_args &a, gpu::Space &space) { return {*a.y, nullptr, is_contiguous(a.x->data), space}; }
gpu::MapCall plan(const nvte_activation_backward_args &a, gpu::Space &space) {
  return {*a.dx, a.dbias, is_contiguous(a.x->data) && is_contiguous(a.dy->data), space};
}
nvte_status launch(const nvte_exec &e, const nvte_activation_forward_args &a, gpu::MapCall &call) {
  return call.run(e, Forward{gpu::map_input(a.x, call.shape, call.y.k), a.activation});
}
nvte_status launch(const nvte_exec &e, const nvte_activation_backward_args &a, gpu::MapCall &call) {
  return call.run(e, Backward{gpu::map_input(a.dy, call.shape, call.y.k), gpu::map_input(a.x, call.shape, call.y.k), a.activation});
}

const nvte_implementation table[] = {TE_GPU_PLANNED(activation_forward), TE_GPU_PLANNED(activation_backward)};
}  // namespace
namespace gpu {
TE_GPU_IMPLEMENTATIONS(activation) = {table, 2};
}
}  // namespace te
