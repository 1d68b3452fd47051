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

// exp(a), a <= 0, for a result of dtype y; one of 16 bits hides the error of the hardware's.
__device__ __forceinline__ float power(float a, DType y) { return y == DType::f32 ? expf(a) : device::exp2_fast(a * 1.4426950409f); }

template <class S, class K> __global__ void __launch_bounds__(S::kBlock) forward_kernel(Forward p) {
  const int t = (int)threadIdx.x % S::kThreads;
  const int64_t row = (int64_t)blockIdx.x * S::kRows + threadIdx.x / S::kThreads, width = row < p.rows ? p.width : 0;
  const int64_t hi = p.causal ? row % p.queries + 1 + p.diagonal : p.width;
  const unsigned char *mask = p.mask.base && width ? p.mask.base + p.mask.rows(row) : nullptr;
  float v[S::kGroups][8];
  unsigned kept[S::kGroups] = {};
  gpu::Eight<K> in[S::kGroups];
  const auto load = [&](int g, int64_t j, int n) { in[g].load(p.x, row, j, n); };
  const auto widen = [&](int g, int64_t j, int n) {
    in[g].floats(v[g]);
    const int64_t left = hi - j;
    const int first = left < 0 ? 0 : left < n ? (int)left : n;  // of these are before hi
    kept[g] = (1u << first) - 1u;
    if (mask) {
#pragma unroll
      for (int i = 0; i < 8; i++)
        if (i < first && mask[(j + i) * p.mask.step]) kept[g] &= ~(1u << i);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) v[g][i] *= p.scale;
    if (kept[g] == 0xffu) return;
#pragma unroll
    for (int i = 0; i < 8; i++) v[g][i] = kept[g] >> i & 1u ? v[g][i] : -INFINITY;
  };
  const auto fetch = [&](int g, int64_t j, int n) { load(g, j, n), widen(g, j, n); };
  float best = -INFINITY, sum = 0.f;
  if (S::kHeld) each_group<S>(t, width, load);
  each_group<S>(t, width, [&](int g, int64_t j, int n) {
    if (S::kHeld) widen(g, j, n);
    else fetch(g, j, n);
#pragma unroll
    for (int i = 0; i < 8; i++) best = fmaxf(best, v[g][i]);  // skips NaN
  });
  best = gpu::row_reduce<S>(best, device::Max{}, -INFINITY);
  DType y = p.y.dtype;
  if constexpr (K::known) y = K::y;
  const auto powers = [&](int g) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[g][i] = power(v[g][i] - best, y);
    if (kept[g] == 0xffu) return;
#pragma unroll
    for (int i = 0; i < 8; i++) v[g][i] = kept[g] >> i & 1u ? v[g][i] : 0.f;
  };
  each_group<S>(t, width, [&](int g, int64_t j, int n) {
    if (!S::kHeld) fetch(g, j, n);
    powers(g);
#pragma unroll
    for (int i = 0; i < 8; i++) sum += v[g][i];
  });
  // nothing but NaN and -inf is kept: NaN there; a NaN anywhere makes the kept ones NaN
  const float total = gpu::row_reduce<S>(sum, device::Add{}, 0.f), inverse = best > -INFINITY ? device::divide(1.f, total) : NAN;
  each_group<S>(t, width, [&](int g, int64_t j, int n) {
    if (!S::kHeld) fetch(g, j, n), powers(g);
    float amax = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) v[g][i] *= inverse;
    if (kept[g] != 0xffu) {
#pragma unroll
      for (int i = 0; i < 8; i++) v[g][i] = kept[g] >> i & 1u ? v[g][i] : 0.f;  // inverse may be NaN
    }
    gpu::put8_as<K>(p.y, row * p.width + j, n, 1.f, v[g], amax);
  });
}

struct Backward {
  Input dy, y;
  gpu::Target dx;
  int64_t rows, width;
  float scale;
};
template <class S, class K> __global__ void __launch_bounds__(S::kBlock) backward_kernel(Backward p) {
  const int t = (int)threadIdx.x % S::kThreads;
  const int64_t row = (int64_t)blockIdx.x * S::kRows + threadIdx.x / S::kThreads, width = row < p.rows ? p.width : 0;
  float dot = 0.f;
  gpu::Eight<K> ys[S::kGroups], ds[S::kGroups];
  const auto fetch = [&](int g, int64_t j, int n) { ys[g].load(p.y, row, j, n), ds[g].load(p.dy, row, j, n); };
  if (S::kHeld) each_group<S>(t, width, fetch);
  each_group<S>(t, width, [&](int g, int64_t j, int n) {
    float y[8], d[8];
    if (!S::kHeld) fetch(g, j, n);
    ys[g].floats(y), ds[g].floats(d);
#pragma unroll
    for (int i = 0; i < 8; i++) dot = fmaf(y[i], d[i], dot);
  });
  dot = gpu::row_reduce<S>(dot, device::Add{}, 0.f);
  each_group<S>(t, width, [&](int g, int64_t j, int n) {
    float y[8], d[8], v[8], amax = 0.f;
    if (!S::kHeld) fetch(g, j, n);
    ys[g].floats(y), ds[g].floats(d);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = p.scale * (y[i] * (d[i] - dot));
    gpu::put8_as<K>(p.dx, row * p.width + j, n, 1.f, v, amax);
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
      gpu::with_row_types<S, false>(p.y.wide && gpu::knowable(p.x, p.x.dtype), p.x.dtype, p.y.dtype, [&](auto k) {
        forward_kernel<S, decltype(k)><<<(unsigned)gpu::ceil_div(p.rows, S::kRows), S::kBlock, 0, gpu::stream_of(*e)>>>(p);
      });
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
      const bool known = p.dx.wide && gpu::knowable(p.y, p.y.dtype) && gpu::knowable(p.dy, p.y.dtype);
      gpu::with_row_types<S, false>(known, p.y.dtype, p.dx.dtype, [&](auto k) {
        backward_kernel<S, decltype(k)><<<(unsigned)gpu::ceil_div(p.rows, S::kRows), S::kBlock, 0, gpu::stream_of(*e)>>>(p);
      });
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
