// SPDX-License-Identifier: Apache-2.0
// nvte_compute_scale on GPUs: one thread a scale.
#include "gpu/device/wave.h"
#include "gpu/plugin.h"
#define TE_SCALING __device__
#include "scaling/tensor.h"

namespace te {
namespace {
__global__ void __launch_bounds__(256) scale_kernel(const float *amax, float *scale, float *scale_inv, int64_t n, float largest, float epsilon, bool pow2) {
  device::await_previous();
  device::let_next_begin();
  const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
  if (i >= n) return;
  const float s = scaling::from_amax(amax[i], largest, epsilon, pow2);
  scale[i] = s;
  if (scale_inv) scale_inv[i] = 1.f / s;
}

nvte_status run(const nvte_exec *e, const void *p) {
  const auto &a = *static_cast<const nvte_compute_scale_args *>(p);
  return gpu::guarded(e, [&]() -> nvte_status {
    const int64_t n = numel(a.amax->data);
    if (n == 0) return NVTE_OK;
    gpu::launch_behind(
        *e, scale_kernel, (unsigned)gpu::ceil_div(n, 256), 256, address_as<const float>(a.amax->data), address_as<float>(a.scale->data),
        a.scale_inv && present(a.scale_inv->data) ? address_as<float>(a.scale_inv->data) : nullptr, n, fp8_max(dtype_of(a.dtype)), a.epsilon,
        (a.flags & NVTE_COMPUTE_SCALE_POW2) != 0);
    return gpu::launched("compute_scale");
  });
}
const nvte_implementation table[] = {{sizeof(nvte_implementation), "compute_scale", "gpu", 0, 0, nullptr, nullptr, run}};
}  // namespace
namespace gpu {
TE_GPU_IMPLEMENTATIONS(compute_scale) = {table, 1};
}
}  // namespace te
