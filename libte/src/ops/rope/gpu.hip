// SPDX-License-Identifier: Apache-2.0
// Rotary embedding on GPUs: a block owns a token; the cosines and sines of its angles are made once in shared memory and used by every head.
// Positions live in device memory, so one outside freqs cannot be an error here: its token is written as NaN.
#include "gpu/plugin.h"
#include "gpu/device/convert.h"
#include "ops/rope/geometry.h"

namespace te {
namespace {
using namespace device;
constexpr int kThreads = 256, kMaxAngles = 1024;

// What of RopeArgs the kernel needs (geometry.h's functions run on the host's descriptors).
struct Call {
  RopeShape r;
  const void *x;
  void *y;
  const float *freqs;
  const int *start, *cu;
  const void *positions;
  bool wide_positions, ragged, interleaved, backward;
  int cp_size, cp_rank;
};

__device__ int64_t end_of(const Call &p, int64_t i) { return p.cu[i + 1] / p.cp_size; }
// As rope_local and rope_position. -1: the token belongs to no sequence.
__device__ int64_t position_of(const Call &p, int64_t b, int64_t s) {
  int64_t begin = 0, length = p.r.s, entry = b;
  if (p.ragged) {
    int64_t lo = 0, hi = p.r.sequences;  // the first sequence that ends past s
    while (lo < hi) {
      const int64_t mid = lo + (hi - lo) / 2;
      if (end_of(p, mid) > s) hi = mid;
      else lo = mid + 1;
    }
    if (lo == p.r.sequences) return -1;
    entry = lo, begin = end_of(p, lo - 1), length = end_of(p, lo) - begin;
  }
  if (p.positions) {
    const int64_t i = b * p.r.s + s;
    return p.wide_positions ? static_cast<const long long *>(p.positions)[i] : static_cast<const int *>(p.positions)[i];
  }
  int64_t at = s - begin;
  if (p.cp_size > 1) {
    const int64_t half = length / 2;
    at = at < half ? p.cp_rank * half + at : length * p.cp_size - (p.cp_rank + 1) * half + (at - half);
  }
  return at + (p.start ? p.start[entry] : 0);
}

template <class T> __global__ void __launch_bounds__(kThreads) rope_kernel(Call p) {
  __shared__ float cosine[kMaxAngles], sine[kMaxAngles];
  const int64_t b = blockIdx.x / (uint64_t)p.r.s, s = blockIdx.x % (uint64_t)p.r.s, position = position_of(p, b, s);
  const int d2 = (int)p.r.d2, m = d2 / 2;
  const bool inside = position >= 0 && position < p.r.positions, unused = p.ragged && position == -1 && !p.positions;
  bool lost = false;
  if (p.ragged) lost = s >= (p.r.sequences ? end_of(p, p.r.sequences - 1) : 0);
  for (int i = (int)threadIdx.x; i < d2; i += kThreads) {
    const double angle = inside ? (double)p.freqs[position * d2 + i] : 0.0;
    cosine[i] = inside ? (float)cos(angle) : NAN;
    sine[i] = inside ? (float)sin(angle) : NAN;
  }
  __syncthreads();
  const T *xs = static_cast<const T *>(p.x) + b * p.r.xb + s * p.r.xs;
  T *ys = static_cast<T *>(p.y) + b * p.r.yb + s * p.r.ys;
  const int d = (int)p.r.d;
  const int64_t pairs = m + (d - d2);  // a head's pairs, then what is copied
  for (int64_t i = threadIdx.x; i < p.r.h * pairs; i += kThreads) {
    const int64_t head = i / pairs;
    const int k = (int)(i % pairs);
    const T *x = xs + head * p.r.xh;
    T *y = ys + head * p.r.yh;
    if (k >= m) {
      const int c = d2 + k - m;
      y[c] = lost || unused ? from_f32<T>(0.f) : x[c * p.r.xd];
      continue;
    }
    const int one = p.interleaved ? 2 * k : k, two = p.interleaved ? 2 * k + 1 : k + m;
    if (lost || unused) {
      y[one] = y[two] = from_f32<T>(0.f);
      continue;
    }
    const float a = to_f32(x[one * p.r.xd]), c = to_f32(x[two * p.r.xd]);
    // forward: each of a pair has its own angle; backward: the partner's sine, signs reversed
    const float s1 = p.backward ? sine[two] : -sine[one], s2 = p.backward ? -sine[one] : sine[two];
    y[one] = from_f32<T>(fmaf(a, cosine[one], c * s1));
    y[two] = from_f32<T>(fmaf(c, cosine[two], a * s2));
  }
}

const char *refuse(const RopeArgs &a) {
  const RopeShape r = rope_shape(a);
  if (r.d2 > kMaxAngles) return "d2 is above 1024";
  return r.b * r.s > INT32_MAX ? "more than 2^31 - 1 tokens" : nullptr;
}
nvte_status run(const nvte_exec *e, const RopeArgs &a) {
  return gpu::guarded(e, [&]() -> nvte_status {
    Call p = {};
    p.r = rope_shape(a);
    if (p.r.b * p.r.s * p.r.h * p.r.d == 0) return NVTE_OK;
    p.x = address(a.x->data), p.y = address(a.y->data), p.freqs = address_as<const float>(a.freqs->data);
    p.start = given(a.start_positions) ? address_as<const int>(a.start_positions->data) : nullptr;
    p.cu = given(a.cu_seqlens) ? address_as<const int>(a.cu_seqlens->data) : nullptr;
    p.positions = given(a.positions) ? address(a.positions->data) : nullptr;
    p.wide_positions = p.positions && dtype_of(a.positions->data.dtype) == DType::i64;
    p.ragged = a.format == NVTE_FORMAT_THD, p.interleaved = a.interleaved, p.backward = a.backward, p.cp_size = a.cp_size, p.cp_rank = a.cp_rank;
    const unsigned blocks = (unsigned)(p.r.b * p.r.s);
    switch (dtype_of(a.x->data.dtype)) {
      case DType::f32: rope_kernel<float><<<blocks, kThreads, 0, gpu::stream_of(*e)>>>(p); break;
      case DType::f16: rope_kernel<f16><<<blocks, kThreads, 0, gpu::stream_of(*e)>>>(p); break;
      default: rope_kernel<bf16><<<blocks, kThreads, 0, gpu::stream_of(*e)>>>(p); break;
    }
    return gpu::launched("rope");
  });
}
template <class Args> const char *refuse_args(const nvte_exec *, const void *p) { return refuse(rope_args(*static_cast<const Args *>(p))); }
template <class Args> nvte_status run_args(const nvte_exec *e, const void *p) { return run(e, rope_args(*static_cast<const Args *>(p))); }

const nvte_implementation table[] = {
    {sizeof(nvte_implementation), "rope_forward", "gpu", 0, 0, refuse_args<nvte_rope_forward_args>, nullptr, run_args<nvte_rope_forward_args>},
    {sizeof(nvte_implementation), "rope_backward", "gpu", 0, 0, refuse_args<nvte_rope_backward_args>, nullptr, run_args<nvte_rope_backward_args>}};
}  // namespace
namespace gpu {
TE_GPU_IMPLEMENTATIONS(rope) = {table, 2};
}
}  // namespace te
