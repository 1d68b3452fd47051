// SPDX-License-Identifier: Apache-2.0
// Gated activations on GPUs: y = f(a) * b with the gate a in the first half of x's columns and b in the second, and the clamped form.
#include "gpu/device/activation.h"
#include "gpu/map.h"

namespace te {
namespace {
using gpu::Input;

struct Gate {
  int activation;
  bool clamped;
  float limit, alpha, offset;

  // v = f(a) * b, the clamped form included.
  __device__ void value(const float (&a)[8], const float (&b)[8], float (&v)[8]) const {
    if (clamped) {
#pragma unroll
      for (int i = 0; i < 8; i++)
        v[i] = device::swish(device::at_most(limit, a[i]), alpha) * (device::at_most(limit, device::at_least(-limit, b[i])) + offset);
      return;
    }
    device::visit_activation(activation, [&](auto f) {
#pragma unroll
      for (int i = 0; i < 8; i++) v[i] = f.value(a[i]) * b[i];
    });
  }
  // a = f'(a) * b * d and b = f(a) * d.
  __device__ void slopes(float (&a)[8], float (&b)[8], const float (&d)[8]) const {
    if (clamped) {
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const device::ValueAndSlope f = device::swish_both(device::at_most(limit, a[i]), alpha);
        const float linear = device::at_most(limit, device::at_least(-limit, b[i])) + offset;
        a[i] = a[i] > limit ? 0.f : f.slope * d[i] * linear;
        b[i] = fabsf(b[i]) > limit ? 0.f : f.value * d[i];
      }
      return;
    }
    device::visit_activation(activation, [&](auto f) {
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const device::ValueAndSlope s = f.both(a[i]);
        a[i] = s.slope * d[i] * b[i];
        b[i] = s.value * d[i];
      }
    });
  }
};
template <class Args> Gate gate_of(const Args &a) { return {a.activation, (a.flags & NVTE_GATED_CLAMPED) != 0, a.limit, a.alpha, a.offset}; }

struct Forward {
  static constexpr int kOutputs = 1;
  Input x;
  Gate gate;
  int64_t h;
  __device__ void operator()(int64_t row, int64_t column, int n, float (&v)[1][8]) const {
    float a[8], b[8];
    gpu::load8(x, row, column, n, a);
    gpu::load8(x, row, column + h, n, b);
    gate.value(a, b, v[0]);
  }
};
struct Backward {
  static constexpr int kOutputs = 2;
  Input dy, x;
  Gate gate;
  int64_t h;
  __device__ void operator()(int64_t row, int64_t column, int n, float (&v)[2][8]) const {
    float d[8];
    gpu::load8(x, row, column, n, v[0]);
    gpu::load8(x, row, column + h, n, v[1]);
    gpu::load8(dy, row, column, n, d);
    gate.slopes(v[0], v[1], d);
  }
};

gpu::MapCall plan(const nvte_gated_activation_forward_args &a, gpu::Space &space) { return {*a.y, nullptr, false, space}; }
gpu::MapCall plan(const nvte_gated_activation_backward_args &a, gpu::Space &space) { return {*a.dx, a.dbias, false, space, 2}; }
nvte_status launch(const nvte_exec &e, const nvte_gated_activation_forward_args &a, gpu::MapCall &call) {
  return call.run(e, Forward{gpu::input_of(a.x, call.y.k), gate_of(a), call.y.k});
}
nvte_status launch(const nvte_exec &e, const nvte_gated_activation_backward_args &a, gpu::MapCall &call) {
  const int64_t h = call.shape.k;
  return call.run(e, Backward{gpu::input_of(a.dy, h), gpu::input_of(a.x, h), gate_of(a), h});
}

const nvte_implementation table[] = {TE_GPU_PLANNED(gated_activation_forward), TE_GPU_PLANNED(gated_activation_backward)};
}  // namespace
namespace gpu {
TE_GPU_IMPLEMENTATIONS(gated_activation) = {table, 2};
}
}  // namespace te
