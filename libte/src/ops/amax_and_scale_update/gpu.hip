// SPDX-License-Identifier: Apache-2.0
// nvte_amax_and_scale_update on GPUs: a list entry is a block, up to kBatch entries a launch (their addresses are kernel parameters, so nothing is
// copied and the call can be captured; a few entries take few parameters).
#include <cmath>

#include "gpu/plugin.h"
#define TE_SCALING __device__
#include "scaling/tensor.h"

namespace te {
namespace {
constexpr int kThreads = 128, kBatch = 64, kFew = 4;
struct Entry {
  const float *history, *scale, *amax;
  float *new_history, *new_scale;
  int len, k;
};
template <int N> struct Batch {
  Entry entries[N];
};

__device__ __forceinline__ float larger(float a, float b) { return b > a || b != b ? b : a; }  // a NaN stays

// A column for one thread: histories of more columns than threads.
__device__ void update_column(const Entry &t, int64_t j, float largest, bool most_recent) {
  const int64_t k = t.k;
  const float last = t.amax && t.amax[j] != 0.f ? t.amax[j] : t.history[j];
  if (last == 0.f) {  // not used in this step
    for (int i = 0; i < t.len; i++) t.new_history[i * k + j] = t.history[i * k + j];
    t.new_scale[j] = t.scale[j];
    return;
  }
  float top = last;
  for (int i = 0; i + 1 < t.len; i++) {
    const float h = t.history[(i + 1) * k + j];
    top = larger(top, h);
    t.new_history[i * k + j] = h;
  }
  t.new_history[(t.len - 1) * k + j] = last;
  t.new_history[j] = 0.f;
  t.new_scale[j] = scaling::delayed(most_recent ? last : top, largest, t.scale[j]);
}

template <int N> __global__ void __launch_bounds__(kThreads) update_kernel(Batch<N> batch, float largest, bool most_recent) {
  const Entry &t = batch.entries[blockIdx.x];
  const int k = t.k;
  if (k == 0) return;
  if (k * 2 > kThreads) {
    for (int64_t j = threadIdx.x; j < k; j += kThreads) update_column(t, j, largest, most_recent);
    return;
  }
  // As many threads a column as there are; a stretch of the history is read by all before any of it is written, so old and new may be one memory.
  __shared__ float maxima[kThreads];
  const int across = kThreads / k, j = (int)threadIdx.x % k, down = (int)threadIdx.x / k;
  const bool works = down < across;
  const float last = works ? (t.amax && t.amax[j] != 0.f ? t.amax[j] : t.history[j]) : 0.f;
  const int shift = last != 0.f;  // 0: not used in this step
  float top = last;
  __syncthreads();
  constexpr int kEach = 8;
  for (int from = 0; from < t.len; from += across * kEach) {
    float h[kEach];
#pragma unroll
    for (int n = 0; n < kEach; n++) {
      const int i = from + n * across + down;
      if (works && i + shift < t.len) h[n] = t.history[(int64_t)(i + shift) * k + j];
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kEach; n++) {
      const int i = from + n * across + down;
      if (!works || i + shift >= t.len) continue;
      top = larger(top, h[n]);
      t.new_history[(int64_t)i * k + j] = shift && i == 0 ? 0.f : h[n];
    }
  }
  maxima[threadIdx.x] = top;
  __syncthreads();
  if (!works || down != 0) return;
  if (!shift) {
    t.new_scale[j] = t.scale[j];
    return;
  }
  for (int d = 1; d < across; d++) top = larger(top, maxima[d * k + j]);
  t.new_history[(int64_t)(t.len - 1) * k + j] = t.len > 1 ? last : 0.f;
  t.new_scale[j] = scaling::delayed(most_recent ? last : top, largest, t.scale[j]);
}

const char *refuse(const nvte_exec *, const void *p) {
  const auto &a = *static_cast<const nvte_amax_and_scale_update_args *>(p);
  for (size_t i = 0; i < a.n; i++)
    if (numel(a.history[i]->data) > INT32_MAX) return "a history has more than 2^31 - 1 numbers";
  return nullptr;
}
nvte_status run(const nvte_exec *e, const void *p) {
  const auto &a = *static_cast<const nvte_amax_and_scale_update_args *>(p);
  return gpu::guarded(e, [&]() -> nvte_status {
    const float largest = std::ldexp(fp8_max(dtype_of(a.dtype)), -a.margin);
    const float *reduced = a.amax && present(a.amax->data) ? address_as<const float>(a.amax->data) : nullptr;
    Batch<kBatch> batch;
    const bool most_recent = a.algorithm == NVTE_AMAX_MOST_RECENT;
    int n = 0;
    for (size_t i = 0; i < a.n; i++) {
      const DLTensor &h = a.history[i]->data;
      batch.entries[n++] = {address_as<const float>(h), address_as<const float>(a.scale[i]->data), reduced, address_as<float>(a.new_history[i]->data),
                            address_as<float>(a.new_scale[i]->data), (int)h.shape[0], (int)h.shape[1]};
      if (reduced) reduced += h.shape[1];
      if (n < kBatch && i + 1 < a.n) continue;
      if (n <= kFew) {
        Batch<kFew> few = {};
        for (int k = 0; k < n; k++) few.entries[k] = batch.entries[k];
        update_kernel<kFew><<<n, kThreads, 0, gpu::stream_of(*e)>>>(few, largest, most_recent);
      } else {
        update_kernel<kBatch><<<n, kThreads, 0, gpu::stream_of(*e)>>>(batch, largest, most_recent);
      }
      n = 0;
    }
    return gpu::launched("amax_and_scale_update");
  });
}
const nvte_implementation table[] = {{sizeof(nvte_implementation), "amax_and_scale_update", "gpu", 0, 0, refuse, nullptr, run}};
}  // namespace
namespace gpu {
TE_GPU_IMPLEMENTATIONS(amax_and_scale_update) = {table, 1};
}
}  // namespace te
