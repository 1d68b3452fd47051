// SPDX-License-Identifier: Apache-2.0
// nvte_compute_amax on GPUs: block maxima, then one block.
#include "gpu/map.h"

namespace te {
namespace {
using gpu::Input;

constexpr int kThreads = 512, kUnroll = 4;

// K known: x is contiguous, whatever its shape.
template <class K> __global__ void __launch_bounds__(kThreads) amax_kernel(
    Input x, int64_t groups, int64_t k, int64_t across, float *part, const float *noop) {
  device::await_previous();
  device::let_next_begin();
  if (noop && *noop == 1.f) return;
  const int64_t step = (int64_t)gridDim.x * kThreads;
  float amax = 0.f;
  for (int64_t i = (int64_t)blockIdx.x * kThreads + threadIdx.x; i < groups; i += step * kUnroll) {
    gpu::Eight<K> in[kUnroll] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; u++) {
      const int64_t g = i + u * step;
      if (g >= groups) break;
      const int64_t row = K::known ? 0 : g / across, column = (g - row * across) * 8;
      in[u].load(x, row, column, K::known || column + 8 <= k ? 8 : (int)(k - column));
    }
#pragma unroll
    for (int u = 0; u < kUnroll; u++) {
      float v[8];
      in[u].floats(v);
#pragma unroll
      for (int c = 0; c < 8; c++) amax = fmaxf(amax, fabsf(v[c]));
    }
  }
  amax = device::block_reduce<kThreads>(amax, device::Max{}, 0.f);
  if (threadIdx.x == 0) part[blockIdx.x] = amax;
}

struct Call {
  int64_t m, k;
  Input x;
  int blocks;
  float *part;
};
Call plan(const nvte_compute_amax_args &a, gpu::Space &space) {
  Call c = {rows(a.x->data), columns(a.x->data), {}, 1, nullptr};
  if (is_contiguous(a.x->data) && c.k % 8 && c.m * c.k % 8 == 0) c.m = c.m * c.k / 8, c.k = 8;
  c.x = gpu::input_of(a.x, c.k);
  if (c.k != columns(a.x->data)) c.x.rows = {c.k, 0, {}, {}}, c.x.wide = gpu::wide_rows(c.x.base, c.x.dtype, c.k, c.x.rows);
  const int64_t need = gpu::ceil_div(c.m * gpu::ceil_div(c.k, 8), kThreads * kUnroll);
  c.blocks = (int)(need < 1 ? 1 : need < 1024 ? need : 1024);
  c.part = space.take<float>(c.blocks);
  return c;
}
nvte_status launch(const nvte_exec &e, const nvte_compute_amax_args &a, const Call &c) {
  const float *noop = a.noop ? address_as<const float>(a.noop->data) : nullptr;
  const int64_t across = c.k > 0 ? gpu::ceil_div(c.k, 8) : 1;
  gpu::with_types<false>(gpu::knowable(c.x, c.x.dtype) && c.x.rows.stride == c.k, c.x.dtype, c.x.dtype, [&](auto known) {
    gpu::launch_behind(e, amax_kernel<decltype(known)>, c.blocks, kThreads, c.x, c.k > 0 ? c.m * across : 0, c.k, across, c.part, noop);
  });
  gpu::launch_behind(e, gpu::reduce_amax, 1, 1024, c.part, c.blocks, address_as<float>(a.amax->data), (a.flags & NVTE_COMPUTE_AMAX_ACCUMULATE) != 0, noop);
  return gpu::launched("compute_amax");
}
const nvte_implementation table[] = {TE_GPU_PLANNED(compute_amax)};
}  // namespace
namespace gpu {
TE_GPU_IMPLEMENTATIONS(compute_amax) = {table, 1};
}
}  // namespace te
