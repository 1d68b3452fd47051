// SPDX-License-Identifier: Apache-2.0
// nvte_amax_and_scale_update on GPUs: a list entry is a block, kBatch entries a launch (their addresses are kernel parameters, so nothing is
// copied and the call can be captured).
#include <cmath>

#include "gpu/plugin.h"
#define TE_SCALING __device__
#include "scaling/tensor.h"

namespace te {
namespace {
constexpr int kThreads = 128, kBatch = 64;
struct Entry {
  const float *history, *scale, *amax;
  float *new_history, *new_scale;
  int len, k;
};
struct Batch {
  Entry entries[kBatch];
};

__global__ void __launch_bounds__(kThreads) update_kernel(Batch batch, float largest, bool most_recent) {
  const Entry &t = batch.entries[blockIdx.x];
  const int64_t k = t.k;
  for (int64_t j = threadIdx.x; j < k; j += kThreads) {  // a column is one thread's, so old and new may be one memory
    const float last = t.amax && t.amax[j] != 0.f ? t.amax[j] : t.history[j];
    if (last == 0.f) {  // not used in this step
      for (int i = 0; i < t.len; i++) t.new_history[i * k + j] = t.history[i * k + j];
      t.new_scale[j] = t.scale[j];
      continue;
    }
    float top = last;
    for (int i = 0; i + 1 < t.len; i++) {
      const float h = t.history[(i + 1) * k + j];
      if (h > top || h != h) top = h;
      t.new_history[i * k + j] = h;
    }
    t.new_history[(t.len - 1) * k + j] = last;
    t.new_history[j] = 0.f;
    t.new_scale[j] = scaling::delayed(most_recent ? last : top, largest, t.scale[j]);
  }
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
    Batch batch;
    int n = 0;
    for (size_t i = 0; i < a.n; i++) {
      const DLTensor &h = a.history[i]->data;
      batch.entries[n++] = {address_as<const float>(h), address_as<const float>(a.scale[i]->data), reduced, address_as<float>(a.new_history[i]->data),
                            address_as<float>(a.new_scale[i]->data), (int)h.shape[0], (int)h.shape[1]};
      if (reduced) reduced += h.shape[1];
      if (n < kBatch && i + 1 < a.n) continue;
      update_kernel<<<n, kThreads, 0, gpu::stream_of(*e)>>>(batch, largest, a.algorithm == NVTE_AMAX_MOST_RECENT);
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
