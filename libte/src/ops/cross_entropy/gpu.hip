// SPDX-License-Identifier: Apache-2.0
// Cross-entropy on GPUs. A block owns a token and reads its logits once: each thread keeps a running maximum and sum (Milakov and Gimelshein,
// "Online normalizer calculation for softmax", 2018). Targets live in device memory, so one outside the vocabulary cannot be an error here; it
// touches no memory: its token counts as one whose class lies in another shard.
#include "gpu/output.h"

namespace te {
namespace {
using gpu::Input;
constexpr int kThreads = 512, kColumns = 4096, kReduceThreads = 1024;

bool given(const nvte_tensor *t) { return t && present(t->data); }

struct Forward {
  Input x;
  const long long *target;
  float *loss, *lse, *partials;
  int64_t n, ignore_index, vocab_start;
  float smoothing;
};

// exp(a), a <= 0: its relative error grows with -a, as fast as its share of a sum shrinks. At 2 bytes an element there are 14 instructions for each.
__device__ __forceinline__ float exp_below(float a) { return device::exp2_fast(a * 1.4426950409f); }

template <class K> __global__ void __launch_bounds__(kThreads) forward_kernel(Forward p) {
  constexpr int kAhead = K::known ? 4 : 1;
  const int64_t token = blockIdx.x, at = p.x.rows(token);
  const bool adds = p.partials || p.smoothing != 0.f;
  float best = -INFINITY, sum = 0.f, all = 0.f;
#pragma unroll 1
  for (int64_t first = (int64_t)threadIdx.x * 8; first < p.n; first += kThreads * 8 * kAhead) {
    gpu::Eight<K> in[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; u++) {
      const int64_t j = first + u * kThreads * 8;
      if (j < p.n) in[u].load(p.x, token, j, j + 8 <= p.n ? 8 : (int)(p.n - j));
    }
#pragma unroll
    for (int u = 0; u < kAhead; u++) {
      const int64_t j = first + u * kThreads * 8;
      if (j >= p.n) break;
      const int n = K::known || j + 8 <= p.n ? 8 : (int)(p.n - j);
      float v[8], top = best;
      in[u].floats(v);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        if (i >= n) v[i] = -INFINITY;
        top = fmaxf(top, v[i]);  // skips NaN, which shows in the sum
      }
      if (adds) {
#pragma unroll
        for (int i = 0; i < 8; i++) all += K::known || i < n ? v[i] : 0.f;
      }
      if (top > best) {
        sum *= exp_below(best - top);
        best = top;
      }
      if (best > -INFINITY) {
#pragma unroll
        for (int i = 0; i < 8; i++) sum += exp_below(v[i] - best);  // beyond n: of -infinity
      } else {
#pragma unroll
        for (int i = 0; i < 8; i++) sum += v[i] == v[i] ? 0.f : v[i];
      }
    }
  }
  const float m = device::block_reduce<kThreads>(best, device::Max{}, -INFINITY);
  sum = device::block_reduce<kThreads>(best > -INFINITY ? sum * expf(best - m) : sum, device::Add{}, 0.f);
  all = device::block_reduce<kThreads>(all, device::Add{}, 0.f);
  if (threadIdx.x != 0) return;
  const bool ignored = p.target[token] == p.ignore_index;
  const double lse = m == -INFINITY && sum == 0.f ? (double)-INFINITY : (double)m + (double)logf(sum);
  const int64_t column = p.target[token] - p.vocab_start;
  float hit[8] = {};
  if (!ignored && column >= 0 && column < p.n) gpu::load8(p.x.base, p.x.dtype, false, at + column, 1, hit);
  if (p.lse) p.lse[token] = (float)lse;
  if (p.partials) {
    float *q = p.partials + 4 * token;
    q[0] = m, q[1] = sum, q[2] = hit[0], q[3] = all;
  }
  if (p.loss) {
    const double s = p.smoothing;  // 0 * -inf must not enter
    p.loss[token] = ignored ? 0.f : (float)(lse - (1 - s) * hit[0] - (s != 0 ? s / (double)p.n * all : 0));
  }
}

// One block: the sum of the losses (absent: not asked for) and the number of tokens that are not ignored.
__global__ void __launch_bounds__(kReduceThreads) reduce_kernel(
    const float *loss, const long long *target, int64_t tokens, int64_t ignore_index, bool mean, float *out, float *count_out) {
  __shared__ double sums[kReduceThreads];
  __shared__ long long counts[kReduceThreads];
  double sum = 0;
  long long count = 0;
  for (int64_t i = threadIdx.x; i < tokens; i += kReduceThreads) {
    if (loss) sum += loss[i];
    count += target[i] != ignore_index;
  }
  sums[threadIdx.x] = sum;
  counts[threadIdx.x] = count;
  for (int half = kReduceThreads / 2; half; half /= 2) {
    __syncthreads();
    if ((int)threadIdx.x < half) {
      sums[threadIdx.x] += sums[threadIdx.x + half];
      counts[threadIdx.x] += counts[threadIdx.x + half];
    }
  }
  if (threadIdx.x != 0) return;
  if (out) *out = (float)(mean ? counts[0] ? sums[0] / (double)counts[0] : 0 : sums[0]);
  if (count_out) *count_out = (float)counts[0];
}

struct Backward {
  Input x, dloss;
  const long long *target;
  const float *lse, *count;  // count: MEAN only
  char *dx;
  DType dtype;
  bool wide;
  device::Rows dx_rows;
  int64_t n, ignore_index, vocab_start, dloss_stride;
  float smoothing, uniform;
  int across;
};
__global__ void __launch_bounds__(kThreads) backward_kernel(Backward p) {
  const int64_t token = blockIdx.x / (unsigned)p.across, begin = (int64_t)(blockIdx.x % (unsigned)p.across) * kColumns;
  const int64_t target = p.target[token], column = target - p.vocab_start;
  const bool ignored = target == p.ignore_index;
  float g[8];
  gpu::load8(p.dloss.base, p.dloss.dtype, false, token * p.dloss_stride, 1, g);
  const float gradient = p.count ? device::divide(g[0], *p.count) : g[0], lse = p.lse[token], hit = 1.f - p.smoothing;
#pragma unroll
  for (int k = 0; k < kColumns / (kThreads * 8); k++) {
    const int64_t j = begin + (int64_t)(k * kThreads + (int)threadIdx.x) * 8;
    if (j >= p.n) continue;
    const int n = j + 8 <= p.n ? 8 : (int)(p.n - j);
    float v[8];
    if (ignored) {
#pragma unroll
      for (int i = 0; i < 8; i++) v[i] = 0.f;
    } else {
      gpu::load8(p.x.base, p.x.dtype, p.x.wide, p.x.rows(token) + j, n, v);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const float e = expf(v[i] - lse);
        v[i] = (j + i == column ? e - hit - p.uniform : e - p.uniform) * gradient;
      }
    }
    gpu::store8(p.dx, p.dtype, p.wide, p.dx_rows(token) + j, n, v);
  }
}

struct ForwardCall {
  float *losses;
};
ForwardCall plan(const nvte_cross_entropy_forward_args &a, gpu::Space &space) {
  return {given(a.loss) && a.reduction != NVTE_REDUCTION_NONE ? space.take<float>(a.logits->data.shape[0] + 1) : nullptr};
}
nvte_status launch(const nvte_exec &e, const nvte_cross_entropy_forward_args &a, const ForwardCall &c) {
  const DLTensor &x = a.logits->data;
  const int64_t tokens = x.shape[0];
  const bool reduces = given(a.loss) && a.reduction != NVTE_REDUCTION_NONE;
  Forward p = {gpu::input_of(a.logits, x.shape[1]), address_as<const long long>(a.target->data),
               reduces ? c.losses : given(a.loss) ? address_as<float>(a.loss->data) : nullptr, given(a.lse) ? address_as<float>(a.lse->data) : nullptr,
               given(a.partials) ? address_as<float>(a.partials->data) : nullptr, x.shape[1], a.ignore_index, a.vocab_start, a.label_smoothing};
  if (tokens)
    gpu::with_types<false>(gpu::knowable(p.x, p.x.dtype), p.x.dtype, p.x.dtype, [&](auto k) {
      forward_kernel<decltype(k)><<<(unsigned)tokens, kThreads, 0, gpu::stream_of(e)>>>(p);
    });
  if (reduces)
    reduce_kernel<<<1, kReduceThreads, 0, gpu::stream_of(e)>>>(p.loss, p.target, tokens, a.ignore_index, a.reduction == NVTE_REDUCTION_MEAN,
                                                               address_as<float>(a.loss->data), nullptr);
  return gpu::launched("cross_entropy_forward");
}

struct BackwardCall {
  float *count;
};
BackwardCall plan(const nvte_cross_entropy_backward_args &a, gpu::Space &space) {
  return {a.reduction == NVTE_REDUCTION_MEAN ? space.take<float>(1) : nullptr};
}
nvte_status launch(const nvte_exec &e, const nvte_cross_entropy_backward_args &a, const BackwardCall &c) {
  const DLTensor &x = a.logits->data, &dx = a.dlogits->data;
  const int64_t tokens = x.shape[0], n = x.shape[1];
  if (tokens == 0 || n == 0) return NVTE_OK;
  const float vocabulary = (float)(a.vocab_size ? a.vocab_size : n);
  Backward p = {gpu::input_of(a.logits, n), gpu::input_of(a.dloss, 1), address_as<const long long>(a.target->data),
                address_as<const float>(a.lse->data), c.count, address_as<char>(dx), dtype_of(dx.dtype), false, device::rows_of(dx), n, a.ignore_index, a.vocab_start,
                a.reduction == NVTE_REDUCTION_NONE ? stride_of(a.dloss->data, 0) : 0, a.label_smoothing, a.label_smoothing / vocabulary,
                (int)gpu::ceil_div(n, kColumns)};
  p.wide = gpu::wide_rows(p.dx, p.dtype, n, p.dx_rows);
  if (c.count)
    reduce_kernel<<<1, kReduceThreads, 0, gpu::stream_of(e)>>>(static_cast<const float *>(nullptr), p.target, tokens, a.ignore_index, false,
                                                               static_cast<float *>(nullptr), c.count);
  backward_kernel<<<(unsigned)(tokens * p.across), kThreads, 0, gpu::stream_of(e)>>>(p);
  return gpu::launched("cross_entropy_backward");
}

const nvte_implementation table[] = {TE_GPU_PLANNED(cross_entropy_forward), TE_GPU_PLANNED(cross_entropy_backward)};
}  // namespace
namespace gpu {
TE_GPU_IMPLEMENTATIONS(cross_entropy) = {table, 2};
}
}  // namespace te
