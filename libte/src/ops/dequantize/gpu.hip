// SPDX-License-Identifier: Apache-2.0
// Dequantise on GPUs. Where only the column-wise codes are there they are transposed through shared memory on the way.
#include "gpu/output.h"

namespace te {
namespace {
using namespace device;
constexpr int kThreads = 256, kTile = 64, kAhead = 8;

// Aligned: kAhead loads of eight codes in flight a thread.
template <class T, class Y> __global__ void __launch_bounds__(kThreads) wide_kernel(const T *x, const float *scale_inv, Y *y, int64_t groups) {
  const float s = *scale_inv;
  const int64_t first = (int64_t)blockIdx.x * (kThreads * kAhead) + threadIdx.x;
  uint2 codes[kAhead];
#pragma unroll
  for (int u = 0; u < kAhead; u++)
    if (first + u * kThreads < groups) codes[u] = reinterpret_cast<const uint2 *>(x)[first + u * kThreads];
#pragma unroll
  for (int u = 0; u < kAhead; u++) {
    if (first + u * kThreads >= groups) break;
    float v[8], lo[4], hi[4];
    unpack4<T>(codes[u].x, lo), unpack4<T>(codes[u].y, hi);
#pragma unroll
    for (int c = 0; c < 4; c++) v[c] = lo[c] * s, v[c + 4] = hi[c] * s;
    store_f32<8>(y + (first + u * kThreads) * 8, v);
  }
}
// Eight codes a thread.
template <class T> __global__ void __launch_bounds__(kThreads) flat_kernel(const T *x, const float *scale_inv, char *y, DType out, bool wide, int64_t n) {
  const float s = *scale_inv;
  for (int64_t i = ((int64_t)blockIdx.x * kThreads + threadIdx.x) * 8; i < n; i += (int64_t)gridDim.x * kThreads * 8) {
    const int left = i + 8 <= n ? 8 : (int)(n - i);
    float v[8];
    if (wide && left == 8) {
      load_f32<8>(x + i, v);
    } else {
#pragma unroll
      for (int c = 0; c < 8; c++) v[c] = c < left ? to_f32(x[i + c]) : 0.f;
    }
#pragma unroll
    for (int c = 0; c < 8; c++) v[c] *= s;
    gpu::store8(y, out, wide && left == 8, i, left, v);
  }
}

// x is [k, m], y is [m, k].
template <class T> __global__ void __launch_bounds__(kThreads) transposed_kernel(
    const T *x, int64_t ldx, const float *scale_inv, char *y, DType out, bool wide, int64_t m, int64_t k, int across) {
  __shared__ unsigned char tile[kTile][kTile + 4];
  const int64_t m0 = (int64_t)(blockIdx.x / (unsigned)across) * kTile, k0 = (int64_t)(blockIdx.x % (unsigned)across) * kTile;
  const float s = *scale_inv;
  for (int i = (int)threadIdx.x; i < kTile * kTile; i += kThreads) {
    const int r = i / kTile, c = i % kTile;
    if (k0 + r < k && m0 + c < m) tile[r][c] = x[(k0 + r) * ldx + m0 + c].b;
  }
  __syncthreads();
  for (int i = (int)threadIdx.x; i < kTile * kTile / 8; i += kThreads) {
    const int r = i / (kTile / 8), c = i % (kTile / 8) * 8;  // row of y, first of eight columns
    const int64_t left = k - (k0 + c);
    if (m0 + r >= m || left <= 0) continue;
    const int n = left < 8 ? (int)left : 8;
    float v[8];
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = j < n ? to_f32(T{tile[c + j][r]}) * s : 0.f;
    gpu::store8(y, out, wide && n == 8, (m0 + r) * k + k0 + c, n, v);
  }
}

nvte_status run(const nvte_exec *e, const void *p) {
  const auto &a = *static_cast<const nvte_dequantize_args *>(p);
  return gpu::guarded(e, [&]() -> nvte_status {
    const bool row = present(a.x->data);
    const DLTensor &x = row ? a.x->data : a.x->columnwise, &y = a.y->data;
    const float *scale_inv = address_as<const float>(!row && present(a.x->columnwise_scale_inv) ? a.x->columnwise_scale_inv : a.x->scale_inv);
    const int64_t m = rows(a.x->data), k = columns(a.x->data), n = m * k;
    if (n == 0) return NVTE_OK;
    gpu::visit_fp8(dtype_of(x.dtype), [&](auto t) {
      using T = decltype(t);
      const T *codes = address_as<const T>(x);
      const bool aligned = gpu::aligned(codes, 8) && gpu::aligned(address(y), 16);
      if (row && aligned && n % 8 == 0 && n / 8 <= (int64_t)INT32_MAX * kThreads) {
        gpu::visit_float(dtype_of(y.dtype), [&](auto o) {
          using Y = decltype(o);
          wide_kernel<<<(unsigned)gpu::ceil_div(n / 8, kThreads * kAhead), kThreads, 0, gpu::stream_of(*e)>>>(codes, scale_inv, address_as<Y>(y), n / 8);
        });
      } else if (row) {
        const int64_t need = gpu::ceil_div(n, kThreads * 8);
        flat_kernel<T><<<(unsigned)(need < 65536 ? need : 65536), kThreads, 0, gpu::stream_of(*e)>>>(
            codes, scale_inv, address_as<char>(y), dtype_of(y.dtype), aligned, n);
      } else {
        const int64_t across = gpu::ceil_div(k, kTile);
        transposed_kernel<T><<<(unsigned)(across * gpu::ceil_div(m, kTile)), kThreads, 0, gpu::stream_of(*e)>>>(
            codes, stride_of(x, 0), scale_inv, address_as<char>(y), dtype_of(y.dtype), aligned && k % 8 == 0, m, k, (int)across);
      }
    });
    return gpu::launched("dequantize");
  });
}
const nvte_implementation table[] = {{sizeof(nvte_implementation), "dequantize", "gpu", 0, 0, nullptr, nullptr, run}};
}  // namespace
namespace gpu {
TE_GPU_IMPLEMENTATIONS(dequantize) = {table, 1};
}
}  // namespace te
