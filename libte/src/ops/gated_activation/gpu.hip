// SPDX-License-Identifier: Apache-2.0
// Gated activations on GPUs: y = f(a) * b with the gate a in the first half of x's columns and b in the second, and the clamped form.
#include "gpu/device/activation.h"
#include "gpu/map.h"

namespace te {
namespace {
using gpu::Input;

// The clamped form, as visit() hands it over.
struct Clamped {
  float limit, alpha, offset;
  __device__ float linear(float b) const { return device::at_most(limit, device::at_least(-limit, b)) + offset; }
};
struct Gate {
  int activation;
  bool clamped;
  Clamped form;
  template <class V> __device__ void visit(V &&f) const {
    if (clamped) f(form);
    else device::visit_activation(activation, f);
  }
};
template <class Args> Gate gate_of(const Args &a) { return {a.activation, (a.flags & NVTE_GATED_CLAMPED) != 0, {a.limit, a.alpha, a.offset}}; }

struct Forward {
  static constexpr int kInputs = 2, kOutputs = 1;
  static constexpr bool kSums = false;
  Input x;
  Gate gate;
  int64_t h;
  DType dtype() const { return x.dtype; }
  bool knowable() const { return gpu::knowable(x, x.dtype); }
  template <class In> __device__ void load(int64_t row, int64_t column, int n, In (&in)[2]) const {
    in[0].load(x, row, column, n);
    in[1].load(x, row, column + h, n);
  }
  template <class V> __device__ void visit(V &&f) const { gate.visit(f); }
  template <class A> __device__ static void apply(A f, const float (&in)[2][8], float (&v)[1][8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[0][i] = f.value(in[0][i]) * in[1][i];
  }
  __device__ static void apply(Clamped f, const float (&in)[2][8], float (&v)[1][8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[0][i] = device::swish(device::at_most(f.limit, in[0][i]), f.alpha) * f.linear(in[1][i]);
  }
};
struct Backward {
  static constexpr int kInputs = 3, kOutputs = 2;
  static constexpr bool kSums = true;
  Input dy, x;
  Gate gate;
  int64_t h;
  DType dtype() const { return x.dtype; }
  bool knowable() const { return gpu::knowable(x, x.dtype) && gpu::knowable(dy, x.dtype); }
  template <class In> __device__ void load(int64_t row, int64_t column, int n, In (&in)[3]) const {
    in[0].load(x, row, column, n);
    in[1].load(x, row, column + h, n);
    in[2].load(dy, row, column, n);
  }
  template <class V> __device__ void visit(V &&f) const { gate.visit(f); }
  template <class A> __device__ static void apply(A f, const float (&in)[3][8], float (&v)[2][8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const device::ValueAndSlope s = f.both(in[0][i]);
      v[0][i] = s.slope * in[2][i] * in[1][i];
      v[1][i] = s.value * in[2][i];
    }
  }
  __device__ static void apply(Clamped f, const float (&in)[3][8], float (&v)[2][8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float a = in[0][i], b = in[1][i], d = in[2][i];
      const device::ValueAndSlope s = device::swish_both(device::at_most(f.limit, a), f.alpha);
      v[0][i] = a > f.limit ? 0.f : s.slope * d * f.linear(b);
      v[1][i] = fabsf(b) > f.limit ? 0.f : s.value * d;
    }
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
