// SPDX-License-Identifier: Apache-2.0
// Activations on GPUs: y = f(x) and dx = dy * f'(x), one pass.
#include "gpu/device/activation.h"
#include "gpu/map.h"

namespace te {
namespace {
using gpu::Input;

struct Forward {
  static constexpr int kOutputs = 1;
  Input x;
  int activation;
  __device__ void operator()(int64_t row, int64_t column, int n, float (&v)[1][8]) const {
    gpu::load8(x, row, column, n, v[0]);
    device::visit_activation(activation, [&](auto f) {
#pragma unroll
      for (int i = 0; i < 8; i++) v[0][i] = f.value(v[0][i]);
    });
  }
};
struct Backward {
  static constexpr int kOutputs = 1;
  Input dy, x;
  int activation;
  __device__ void operator()(int64_t row, int64_t column, int n, float (&v)[1][8]) const {
    float d[8];
    gpu::load8(x, row, column, n, v[0]);
    gpu::load8(dy, row, column, n, d);
    device::visit_activation(activation, [&](auto f) {
#pragma unroll
      for (int i = 0; i < 8; i++) v[0][i] = d[i] * f.both(v[0][i]).slope;
    });
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
