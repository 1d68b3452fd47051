// SPDX-License-Identifier: Apache-2.0
// What kernels with a quantised output share: the scale on the way in, amax and scale_inv on the way out, dtype visits, column sums.
// amax is reduced in two stages by default (block maxima in workspace, then one block); NVTE_USE_ATOMIC_AMAX=1 takes atomics, and so does an amax
// that a few blocks merge into: a second launch would cost more than their kernel.
#pragma once
#include "gpu/device/quantised.h"
#include "gpu/device/vec.h"
#include "gpu/plugin.h"

namespace te::gpu {

// Second stage: amax = max over blocks (and over what it held, when accumulating).
static __global__ void __launch_bounds__(1024) reduce_amax(const float *part, int n, float *amax, int accumulate, const float *noop) {
  device::await_previous();
  device::let_next_begin();
  if (noop && *noop == 1.f) return;
  float m = 0.f;
  for (int i = (int)threadIdx.x; i < n; i += 1024) m = fmaxf(m, part[i]);
  m = device::block_reduce<1024>(m, device::Max{}, 0.f);
  if (threadIdx.x == 0) *amax = accumulate ? fmaxf(m, *amax) : m;
}

inline bool atomic_amax() {
  static const bool on = [] {
    char text[8] = "";
    return host().config_get("NVTE_USE_ATOMIC_AMAX", text, sizeof text, nullptr) == NVTE_OK && text[0] == '1';
  }();
  return on;
}

constexpr int kFewBlocks = 64;

// Host side: fills q for a tensor that `blocks` blocks write; amax_space is workspace for `blocks` floats.
inline nvte_status prepare(const nvte_exec &e, const nvte_tensor &y, int blocks, float *amax_space, Quantised *q, const nvte_tensor *noop = nullptr) {
  q->scale = present(y.scale) ? address_as<const float>(y.scale) : nullptr;
  q->scale_inv = present(y.scale_inv) ? address_as<float>(y.scale_inv) : nullptr;
  q->columnwise_scale_inv = present(y.columnwise_scale_inv) ? address_as<float>(y.columnwise_scale_inv) : nullptr;
  q->block_amax = q->atomic_amax = nullptr;
  if (!present(y.amax)) return NVTE_OK;
  const bool merges = (y.flags & NVTE_TENSOR_AMAX_ACCUMULATE) != 0;
  if (blocks == 1 && !merges && !noop && numel(y.data) > 0) {
    q->block_amax = address_as<float>(y.amax);
    return NVTE_OK;
  }
  if (!atomic_amax() && !(merges && blocks <= kFewBlocks)) {
    q->block_amax = amax_space;
    return NVTE_OK;
  }
  q->atomic_amax = address_as<float>(y.amax);
  // with a noop tensor the old value must survive, so it cannot be cleared from here: merge instead
  if (!merges && !noop) return check(hipMemsetAsync(q->atomic_amax, 0, sizeof(float), stream_of(e)), "amax");
  return NVTE_OK;
}
inline nvte_status finish_amax(const nvte_exec &e, const nvte_tensor &y, const Quantised &q, int blocks, const float *noop = nullptr) {
  if (!q.block_amax || q.block_amax == address_as<float>(y.amax)) return NVTE_OK;
  launch_behind(e, reduce_amax, 1, 1024, q.block_amax, blocks, address_as<float>(y.amax), (y.flags & NVTE_TENSOR_AMAX_ACCUMULATE) != 0, noop);
  return launched("amax reduction");
}

// Column sums, second stage: out[j] = sum over row blocks of part[b, j], of one matrix or two; kColumns a block, few where there are few
// columns and so many row blocks, one fixed order.
constexpr int kSumThreads = 512;
template <class T> struct ColumnSums {
  const float *part;
  T *out;
};
template <class T, int kColumns> static __global__ void __launch_bounds__(kSumThreads) reduce_columns(
    ColumnSums<T> one, ColumnSums<T> two, int64_t blocks, int64_t columns, const float *noop) {
  constexpr int kDown = kSumThreads / kColumns;
  __shared__ float s[kDown][kColumns + 1];
  if (noop && *noop == 1.f) return;
  const ColumnSums<T> c = blockIdx.y ? two : one;
  const int tx = (int)threadIdx.x % kColumns, ty = (int)threadIdx.x / kColumns;
  const int64_t j = (int64_t)blockIdx.x * kColumns + tx;
  float sum = 0.f;
  if (j < columns) {
#pragma unroll 8
    for (int64_t b = ty; b < blocks; b += kDown) sum += c.part[b * columns + j];
  }
#pragma unroll
  for (int half = kDown / 2; half; half /= 2) {
    s[ty][tx] = sum;
    __syncthreads();
    if (ty < half) sum += s[ty + half][tx];
    __syncthreads();
  }
  if (ty == 0 && j < columns) c.out[j] = device::from_f32<T>(sum);
}

// Calls f(T{}) with the device storage type.
template <class F> bool visit_float(DType t, F &&f) {
  switch (t) {
    case DType::f32: f(float{}); return true;
    case DType::f16: f(device::f16{}); return true;
    case DType::bf16: f(device::bf16{}); return true;
    default: return false;
  }
}
template <class F> bool visit_fp8(DType t, F &&f) {
  switch (t) {
    case DType::e4m3: f(device::e4m3{}); return true;
    case DType::e5m2: f(device::e5m2{}); return true;
    case DType::e4m3fnuz: f(device::e4m3fnuz{}); return true;
    case DType::e5m2fnuz: f(device::e5m2fnuz{}); return true;
    default: return false;
  }
}
template <class F> bool visit_any(DType t, F &&f) { return visit_float(t, f) || visit_fp8(t, f); }

// out2: absent, or summed in the same launch, of out's dtype.
inline nvte_status sum_columns(const nvte_exec &e, const float *part, int64_t blocks, int64_t columns, const DLTensor &out, const float *noop = nullptr,
                               const float *part2 = nullptr, const DLTensor *out2 = nullptr) {
  if (columns == 0) return NVTE_OK;
  visit_float(dtype_of(out.dtype), [&](auto t) {
    using T = decltype(t);
    const ColumnSums<T> one = {part, address_as<T>(out)}, two = out2 ? ColumnSums<T>{part2, address_as<T>(*out2)} : one;
    const unsigned both = out2 ? 2 : 1;
    if (columns < 4096) reduce_columns<T, 8><<<dim3((unsigned)ceil_div(columns, 8), both), kSumThreads, 0, stream_of(e)>>>(one, two, blocks, columns, noop);
    else reduce_columns<T, 32><<<dim3((unsigned)ceil_div(columns, 32), both), kSumThreads, 0, stream_of(e)>>>(one, two, blocks, columns, noop);
  });
  return launched("column sums");
}

}  // namespace te::gpu
