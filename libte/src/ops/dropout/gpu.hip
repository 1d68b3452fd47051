// SPDX-License-Identifier: Apache-2.0
// Dropout on GPUs: eight elements, two draws and one byte of the mask a thread.
#include "gpu/device/philox.h"
#include "gpu/output.h"

namespace te {
namespace {
using namespace device;
constexpr int kThreads = 256;

// Division by q = 1 - p, correctly rounded: the product with 1/q, then one correction by its remainder, where that is a normal number.
struct Ratio {
  float q, inverse;
  __device__ __forceinline__ float quotient(float x) const {
    const float y = x * inverse, size = fabsf(y);
    if (size > 0x1p-100f && size < 0x1p120f) return fmaf(fmaf(-q, y, x), inverse, y);
    return divide(x, q);
  }
};
Ratio ratio_of(float p) { return {1.f - p, 1.f / (1.f - p)}; }

// x / q where kept, else +0 (whatever x is).
__device__ __forceinline__ void drop(float (&v)[8], unsigned kept, Ratio by) {
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = kept >> i & 1u ? by.quotient(v[i]) : 0.f;
}

__global__ void __launch_bounds__(kThreads) forward_kernel(
    const char *x, DType dtype, bool wide, const long long *rng, char *y, unsigned char *mask, int64_t n, unsigned long long threshold, Ratio by) {
  const unsigned long long seed = (unsigned long long)rng[0], offset = (unsigned long long)rng[1];
  for (int64_t i = ((int64_t)blockIdx.x * kThreads + threadIdx.x) * 8; i < n; i += (int64_t)gridDim.x * kThreads * 8) {
    const int left = i + 8 <= n ? 8 : (int)(n - i);
    unsigned kept = threshold == 0 ? 0xffu : 0u;
    if (threshold != 0 && threshold >> 32 == 0) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const unsigned long long low = offset + (unsigned long long)(i / 4 + half), high = low < offset;
        unsigned w[4];
        philox4(seed, (unsigned)low, (unsigned)(low >> 32), (unsigned)high, 0u, w);
#pragma unroll
        for (int j = 0; j < 4; j++) kept |= (w[j] >= (unsigned)threshold ? 1u : 0u) << (4 * half + j);
      }
    }
    float v[8];
    gpu::load8(x, dtype, wide && left == 8, i, left, v);
    drop(v, kept, by);
    gpu::store8(y, dtype, wide && left == 8, i, left, v);
    if (mask) mask[i / 8] = (unsigned char)(kept & ((1u << left) - 1u));
  }
}
__global__ void __launch_bounds__(kThreads) backward_kernel(const char *dy, DType dtype, bool wide, const unsigned char *mask, char *dx, int64_t n, Ratio by) {
  for (int64_t i = ((int64_t)blockIdx.x * kThreads + threadIdx.x) * 8; i < n; i += (int64_t)gridDim.x * kThreads * 8) {
    const int left = i + 8 <= n ? 8 : (int)(n - i);
    float v[8];
    gpu::load8(dy, dtype, wide && left == 8, i, left, v);
    drop(v, mask[i / 8], by);
    gpu::store8(dx, dtype, wide && left == 8, i, left, v);
  }
}
unsigned blocks_of(int64_t n) {
  const int64_t need = gpu::ceil_div(n, kThreads * 8);
  return (unsigned)(need < 65536 ? need : 65536);
}

nvte_status run_forward(const nvte_exec *e, const void *p) {
  const auto &a = *static_cast<const nvte_dropout_forward_args *>(p);
  return gpu::guarded(e, [&]() -> nvte_status {
    const int64_t n = numel(a.x->data);
    if (n == 0) return NVTE_OK;
    const char *x = address_as<const char>(a.x->data);
    char *y = address_as<char>(a.y->data);
    forward_kernel<<<blocks_of(n), kThreads, 0, gpu::stream_of(*e)>>>(
        x, dtype_of(a.x->data.dtype), gpu::aligned(x, 16) && gpu::aligned(y, 16), address_as<const long long>(a.rng_state->data), y,
        a.mask && present(a.mask->data) ? address_as<unsigned char>(a.mask->data) : nullptr, n, (unsigned long long)((double)a.p * 4294967296.0), ratio_of(a.p));
    return gpu::launched("dropout_forward");
  });
}
nvte_status run_backward(const nvte_exec *e, const void *p) {
  const auto &a = *static_cast<const nvte_dropout_backward_args *>(p);
  return gpu::guarded(e, [&]() -> nvte_status {
    const int64_t n = numel(a.dy->data);
    if (n == 0) return NVTE_OK;
    const char *dy = address_as<const char>(a.dy->data);
    char *dx = address_as<char>(a.dx->data);
    backward_kernel<<<blocks_of(n), kThreads, 0, gpu::stream_of(*e)>>>(dy, dtype_of(a.dy->data.dtype), gpu::aligned(dy, 16) && gpu::aligned(dx, 16),
                                                                       address_as<const unsigned char>(a.mask->data), dx, n, ratio_of(a.p));
    return gpu::launched("dropout_backward");
  });
}
const nvte_implementation table[] = {{sizeof(nvte_implementation), "dropout_forward", "gpu", 0, 0, nullptr, nullptr, run_forward},
                                     {sizeof(nvte_implementation), "dropout_backward", "gpu", 0, 0, nullptr, nullptr, run_backward}};
}  // namespace
namespace gpu {
TE_GPU_IMPLEMENTATIONS(dropout) = {table, 2};
}
}  // namespace te
