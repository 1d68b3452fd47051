// SPDX-License-Identifier: Apache-2.0
// Dropout on GPUs: eight elements, two draws and one byte of the mask a thread.
#include "gpu/device/philox.h"
#include "gpu/output.h"

namespace te {
namespace {
using namespace device;
constexpr int kThreads = 256;

// Division by q = 1 - p, correctly rounded: the product with 1/q, then one correction by its remainder, where that is a normal number. The
// remainder is taken the other way round, so that a zero keeps its sign.
struct Ratio {
  float q, inverse;
  // Eight quotients; `small`: of f16, which are never too near to zero.
  __device__ __forceinline__ void divide(float (&v)[8], bool small) const {
    float y[8], high = 0.f;
    unsigned low = ~0u;  // of twice the bits less 1: a zero counts as large
#pragma unroll
    for (int i = 0; i < 8; i++) {
      y[i] = v[i] * inverse;
      high = fmaxf(high, fabsf(y[i])), low = umin_of(low, 2 * bits(y[i]) - 1);
      y[i] = fmaf(-fmaf(q, y[i], -v[i]), inverse, y[i]);
    }
    if ((small || low > 2 * kLeast) && high < 0x1p120f) {
#pragma unroll
      for (int i = 0; i < 8; i++) v[i] = y[i];
    } else {
#pragma unroll
      for (int i = 0; i < 8; i++) v[i] = device::divide(v[i], q);
    }
  }
  static constexpr unsigned kLeast = (127 - 100) << 23;  // 2^-100
  static __device__ __forceinline__ unsigned umin_of(unsigned a, unsigned b) { return a < b ? a : b; }
};
Ratio ratio_of(float p) { return {1.f - p, 1.f / (1.f - p)}; }

// x / q where kept, else +0 (whatever x is).
__device__ __forceinline__ void drop(float (&v)[8], unsigned kept, Ratio by, DType dtype) {
  by.divide(v, dtype == DType::f16);
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = kept >> i & 1u ? v[i] : 0.f;
}

// K: its tensors are read and written eight at a time, and n divides by it.
struct Call {
  gpu::Input x;
  char *y;
  const unsigned char *mask;
  int64_t n;
  Ratio by;
};
template <class K> __device__ __forceinline__ DType dtype_in(const Call &p) {
  if constexpr (K::known) return K::x;
  else return p.x.dtype;
}
template <class K> __device__ __forceinline__ void write(const Call &p, int64_t i, int left, const float (&v)[8]) {
  if constexpr (K::known) store_f32<8>(reinterpret_cast<typename gpu::Stored<K::x>::type *>(p.y) + i, v);
  else gpu::store8(p.y, p.x.dtype, p.x.wide && left == 8, i, left, v);
}
template <class K> __device__ __forceinline__ int fetch(const Call &p, gpu::Eight<K> &in, int64_t i) {
  const int left = K::known || i + 8 <= p.n ? 8 : (int)(p.n - i);
  if constexpr (K::known) in.load(p.x, 0, i, 8);
  else gpu::load8(p.x.base, p.x.dtype, p.x.wide && left == 8, i, left, in.v);
  return left;
}

template <class K> __global__ void __launch_bounds__(kThreads) forward_kernel(Call p, const long long *rng, unsigned char *mask, unsigned long long threshold) {
  const unsigned long long seed = (unsigned long long)rng[0], offset = (unsigned long long)rng[1];
  for (int64_t i = ((int64_t)blockIdx.x * kThreads + threadIdx.x) * 8; i < p.n; i += (int64_t)gridDim.x * kThreads * 8) {
    gpu::Eight<K> in;
    const int left = fetch(p, in, i);
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
    in.floats(v);
    drop(v, kept, p.by, dtype_in<K>(p));
    write<K>(p, i, left, v);
    if (mask) mask[i / 8] = (unsigned char)(kept & ((1u << left) - 1u));
  }
}
template <class K> __global__ void __launch_bounds__(kThreads) backward_kernel(Call p) {
  for (int64_t i = ((int64_t)blockIdx.x * kThreads + threadIdx.x) * 8; i < p.n; i += (int64_t)gridDim.x * kThreads * 8) {
    gpu::Eight<K> in;
    const int left = fetch(p, in, i);
    float v[8];
    in.floats(v);
    drop(v, p.mask[i / 8], p.by, dtype_in<K>(p));
    write<K>(p, i, left, v);
  }
}
unsigned blocks_of(int64_t n) {
  const int64_t need = gpu::ceil_div(n, kThreads * 8);
  return (unsigned)(need < 65536 ? need : 65536);
}

Call call_of(const nvte_tensor *x, const nvte_tensor *y, float p) {
  Call c = {{address_as<const char>(x->data), dtype_of(x->data.dtype), false, {}}, address_as<char>(y->data), nullptr, numel(x->data), ratio_of(p)};
  c.x.wide = gpu::aligned(c.x.base, 16) && gpu::aligned(c.y, 16);
  return c;
}
template <class F> void with_dtype(const Call &c, F &&f) { gpu::with_types<false>(c.x.wide && c.n % 8 == 0, c.x.dtype, c.x.dtype, f); }

nvte_status run_forward(const nvte_exec *e, const void *args) {
  const auto &a = *static_cast<const nvte_dropout_forward_args *>(args);
  return gpu::guarded(e, [&]() -> nvte_status {
    const Call c = call_of(a.x, a.y, a.p);
    if (c.n == 0) return NVTE_OK;
    with_dtype(c, [&](auto k) {
      forward_kernel<decltype(k)><<<blocks_of(c.n), kThreads, 0, gpu::stream_of(*e)>>>(
          c, address_as<const long long>(a.rng_state->data), a.mask && present(a.mask->data) ? address_as<unsigned char>(a.mask->data) : nullptr,
          (unsigned long long)((double)a.p * 4294967296.0));
    });
    return gpu::launched("dropout_forward");
  });
}
nvte_status run_backward(const nvte_exec *e, const void *args) {
  const auto &a = *static_cast<const nvte_dropout_backward_args *>(args);
  return gpu::guarded(e, [&]() -> nvte_status {
    Call c = call_of(a.dy, a.dx, a.p);
    c.mask = address_as<const unsigned char>(a.mask->data);
    if (c.n == 0) return NVTE_OK;
    with_dtype(c, [&](auto k) { backward_kernel<decltype(k)><<<blocks_of(c.n), kThreads, 0, gpu::stream_of(*e)>>>(c); });
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
