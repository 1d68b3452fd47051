// SPDX-License-Identifier: Apache-2.0
// Softmax on GPUs, with any mask, forward and backward.
#include "gpu/rows.h"

namespace te {
namespace {
using gpu::Input;
using gpu::each_group;

// Where the mask's row of a row of x begins: leading dimensions of 1, and those that the mask lacks, are broadcast.
struct Mask {
  const unsigned char *base;  // absent: null
  int64_t step;               // of the last dimension
  device::Rows rows;
};
Mask mask_of(const DLTensor &x, const nvte_tensor *mask) {
  Mask m = {nullptr, 0, {}};
  if (!mask || !present(mask->data)) return m;
  const DLTensor &t = mask->data;
  m.base = address_as<const unsigned char>(t);
  m.step = stride_of(t, t.ndim - 1);
  m.rows.n = x.ndim - 1;
  for (int i = 0; i + 1 < x.ndim; i++) {
    const int own = i - (x.ndim - t.ndim);
    m.rows.size[i] = x.shape[i];
    m.rows.step[i] = own < 0 || t.shape[own] == 1 ? 0 : stride_of(t, own);
  }
  return m;
}

struct Forward {
  Input x;
  Mask mask;
  gpu::Target y;
  int64_t rows, width, queries, diagonal;  // causal: keys [0, row % queries + 1 + diagonal) are kept
  bool causal;
  float scale;
};

template <class S> __global__ void __launch_bounds__(S::kBlock) forward_kernel(Forward p) {
  const int t = (int)threadIdx.x % S::kThreads;
  const int64_t row = (int64_t)blockIdx.x * S::kRows + threadIdx.x / S::kThreads, width = row < p.rows ? p.width : 0;
  const int64_t hi = p.causal ? row % p.queries + 1 + p.diagonal : p.width;
  const unsigned char *mask = p.mask.base && width ? p.mask.base + p.mask.rows(row) : nullptr;
  float v[8];
  unsigned kept = 0;
  const auto fetch = [&](int64_t j, int n) {
    gpu::load8(p.x, row, j, n, v);
    kept = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const bool keep = i < n && j + i < hi && !(mask && mask[(j + i) * p.mask.step]);
      kept |= (keep ? 1u : 0u) << i;
      v[i] = keep ? v[i] * p.scale : -INFINITY;
    }
  };
  float best = -INFINITY, sum = 0.f;
  each_group<S>(t, width, [&](int64_t j, int n) {
    fetch(j, n);
#pragma unroll
    for (int i = 0; i < 8; i++) best = fmaxf(best, v[i]);  // skips NaN
  });
  best = gpu::row_reduce<S>(best, device::Max{}, -INFINITY);
  each_group<S>(t, width, [&](int64_t j, int n) {
    if (!S::kHeld) fetch(j, n);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      v[i] = kept >> i & 1u ? expf(v[i] - best) : 0.f;
      sum += v[i];
    }
  });
  // nothing but NaN and -inf is kept: NaN there; a NaN anywhere makes the kept ones NaN
  const float total = gpu::row_reduce<S>(sum, device::Add{}, 0.f), inverse = best > -INFINITY ? device::divide(1.f, total) : NAN;
  each_group<S>(t, width, [&](int64_t j, int n) {
    if (!S::kHeld) {
      fetch(j, n);
#pragma unroll
      for (int i = 0; i < 8; i++) v[i] = expf(v[i] - best);
    }
    float amax = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = kept >> i & 1u ? v[i] * inverse : 0.f;
    gpu::put8(p.y, row * p.width + j, n, 1.f, v, amax);
  });
}

struct Backward {
  Input dy, y;
  gpu::Target dx;
  int64_t rows, width;
  float scale;
};
template <class S> __global__ void __launch_bounds__(S::kBlock) backward_kernel(Backward p) {
  const int t = (int)threadIdx.x % S::kThreads;
  const int64_t row = (int64_t)blockIdx.x * S::kRows + threadIdx.x / S::kThreads, width = row < p.rows ? p.width : 0;
  float y[8], d[8], dot = 0.f;
  each_group<S>(t, width, [&](int64_t j, int n) {
    gpu::load8(p.y, row, j, n, y);
    gpu::load8(p.dy, row, j, n, d);
#pragma unroll
    for (int i = 0; i < 8; i++) dot = fmaf(y[i], d[i], dot);
  });
  dot = gpu::row_reduce<S>(dot, device::Add{}, 0.f);
  each_group<S>(t, width, [&](int64_t j, int n) {
    if (!S::kHeld) {
      gpu::load8(p.y, row, j, n, y);
      gpu::load8(p.dy, row, j, n, d);
    }
    float v[8], amax = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = p.scale * (y[i] * (d[i] - dot));
    gpu::put8(p.dx, row * p.width + j, n, 1.f, v, amax);
  });
}

gpu::Target target_of(const DLTensor &t) {
  gpu::Target y = {address_as<char>(t), dtype_of(t.dtype), false, {}};
  y.wide = columns(t) % 8 == 0 && gpu::aligned(y.base, 16);
  return y;
}

nvte_status run_forward(const nvte_exec *e, const void *args) {
  const auto &a = *static_cast<const nvte_softmax_forward_args *>(args);
  return gpu::guarded(e, [&]() -> nvte_status {
    const DLTensor &x = a.x->data;
    Forward p = {gpu::input_of(a.x, columns(x)), mask_of(x, a.mask), target_of(a.y->data), rows(x), columns(x), x.shape[x.ndim - 2], 0,
                 a.mask_kind != NVTE_MASK_NONE, a.scale};
    if (p.rows == 0 || p.width == 0) return NVTE_OK;
    if (a.mask_kind == NVTE_MASK_CAUSAL_BOTTOM_RIGHT) p.diagonal = p.width - p.queries;
    gpu::with_row_shape(p.width, [&](auto s) {
      using S = decltype(s);
      forward_kernel<S><<<(unsigned)gpu::ceil_div(p.rows, S::kRows), S::kBlock, 0, gpu::stream_of(*e)>>>(p);
    });
    return gpu::launched("softmax_forward");
  });
}
nvte_status run_backward(const nvte_exec *e, const void *args) {
  const auto &a = *static_cast<const nvte_softmax_backward_args *>(args);
  return gpu::guarded(e, [&]() -> nvte_status {
    const int64_t width = columns(a.dy->data);
    const Backward p = {gpu::input_of(a.dy, width), gpu::input_of(a.y, width), target_of(a.dx->data), rows(a.dy->data), width, a.scale};
    if (p.rows == 0 || p.width == 0) return NVTE_OK;
    gpu::with_row_shape(p.width, [&](auto s) {
      using S = decltype(s);
      backward_kernel<S><<<(unsigned)gpu::ceil_div(p.rows, S::kRows), S::kBlock, 0, gpu::stream_of(*e)>>>(p);
    });
    return gpu::launched("softmax_backward");
  });
}
const nvte_implementation table[] = {{sizeof(nvte_implementation), "softmax_forward", "gpu", 0, 0, nullptr, nullptr, run_forward},
                                     {sizeof(nvte_implementation), "softmax_backward", "gpu", 0, 0, nullptr, nullptr, run_backward}};
}  // namespace
namespace gpu {
TE_GPU_IMPLEMENTATIONS(softmax) = {table, 2};
}
}  // namespace te
