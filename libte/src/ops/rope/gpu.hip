// SPDX-License-Identifier: Apache-2.0
// Rotary embedding on GPUs: a block owns a token, or a few short ones; the cosines and sines of their angles are made once in shared memory and
// used by every head. Eight neighbouring channels a thread where the layout allows (wide), else one pair.
// Positions live in device memory, so one outside freqs cannot be an error here: its token is written as NaN.
#include "gpu/plugin.h"
#include "gpu/device/vec.h"
#include "ops/rope/geometry.h"

namespace te {
namespace {
using namespace device;
constexpr int kThreads = 256, kMaxAngles = 1024, kMaxTokens = 8;

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

// A token's place: what its angles come from, or that it is written as zeros. `lost`: past the last sequence, where positions still count for nothing.
struct Place {
  int64_t position;
  bool inside, unused, lost;
};
__device__ Place place_of(const Call &p, unsigned token) {  // fewer than 2^31 tokens: 64-bit division is slow
  const unsigned b = token / (unsigned)p.r.s, s = token % (unsigned)p.r.s;
  const int64_t position = position_of(p, b, s);
  return {position, position >= 0 && position < p.r.positions, p.ragged && position == -1 && !p.positions,
          p.ragged && s >= (p.r.sequences ? end_of(p, p.r.sequences - 1) : 0)};
}
__device__ __forceinline__ void angle_of(const Call &p, const Place &at, int channel, float &cosine, float &sine) {
  double s = 0, c = 0;
  if (at.inside) sincos((double)p.freqs[at.position * p.r.d2 + channel], &s, &c);
  cosine = at.inside ? (float)c : NAN, sine = at.inside ? (float)s : NAN;
}
// Forward: each of a pair has its own angle; backward: the partner's sine, signs reversed.
__device__ __forceinline__ void rotate(const Call &p, float &a, float &c, float cos1, float sin1, float cos2, float sin2) {
  const float s1 = p.backward ? sin2 : -sin1, s2 = p.backward ? -sin1 : sin2, first = a;
  a = fmaf(a, cos1, c * s1);
  c = fmaf(c, cos2, first * s2);
}

template <class T> __global__ void __launch_bounds__(kThreads) rope_kernel(Call p) {
  __shared__ float cosine[kMaxAngles], sine[kMaxAngles];
  const unsigned b = blockIdx.x / (unsigned)p.r.s, s = blockIdx.x % (unsigned)p.r.s;
  const Place at = place_of(p, blockIdx.x);
  const int d2 = (int)p.r.d2, m = d2 / 2;
  for (int i = (int)threadIdx.x; i < d2; i += kThreads) angle_of(p, at, i, cosine[i], sine[i]);
  __syncthreads();
  const T *xs = static_cast<const T *>(p.x) + b * p.r.xb + s * p.r.xs;
  T *ys = static_cast<T *>(p.y) + b * p.r.yb + s * p.r.ys;
  const bool zeros = at.lost || at.unused;
  const int d = (int)p.r.d;
  const int64_t pairs = m + (d - d2);  // a head's pairs, then what is copied
  for (int64_t i = threadIdx.x; i < p.r.h * pairs; i += kThreads) {
    const int64_t head = i / pairs;
    const int k = (int)(i % pairs);
    const T *x = xs + head * p.r.xh;
    T *y = ys + head * p.r.yh;
    if (k >= m) {
      const int c = d2 + k - m;
      y[c] = zeros ? from_f32<T>(0.f) : x[c * p.r.xd];
      continue;
    }
    const int one = p.interleaved ? 2 * k : k, two = p.interleaved ? 2 * k + 1 : k + m;
    if (zeros) {
      y[one] = y[two] = from_f32<T>(0.f);
      continue;
    }
    float a = to_f32(x[one * p.r.xd]), c = to_f32(x[two * p.r.xd]);
    rotate(p, a, c, cosine[one], sine[one], cosine[two], sine[two]);
    y[one] = from_f32<T>(a);
    y[two] = from_f32<T>(c);
  }
}

// Eight numbers as they come from memory.
template <class T> struct Raw {
  static constexpr int kPack = 16 / (int)sizeof(T);
  pack<T, kPack> part[8 / kPack];
  __device__ __forceinline__ void load(const T *x) {
#pragma unroll
    for (int i = 0; i < 8 / kPack; i++) part[i] = device::load<kPack>(x + i * kPack);
  }
  __device__ __forceinline__ void floats(float (&v)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = to_f32(part[i / kPack].v[i % kPack]);
  }
};
// Sixteen channels of a head: the pairs of `one` and `two` (side by side where interleaved), or eight to copy. The same on neighbouring threads
// but for few, as heads have many more rotated channels than others.
struct Item {
  int token, one, two;
  bool pairs;
  int64_t from, to;
};
__device__ __forceinline__ Item item_of(const Call &p, unsigned first, unsigned i) {
  const unsigned d2 = (unsigned)p.r.d2, rotated = d2 / 16, groups = rotated + ((unsigned)p.r.d - d2) / 8;
  const unsigned all = i / groups, k = i % groups, t = all / (unsigned)p.r.h, head = all % (unsigned)p.r.h;
  const unsigned b = (first + t) / (unsigned)p.r.s, s = (first + t) % (unsigned)p.r.s;
  const bool pairs = k < rotated;
  const int one = (int)(!pairs ? d2 + 8 * (k - rotated) : p.interleaved ? 16 * k : 8 * k);
  return {(int)t, one, p.interleaved ? one + 8 : one + (int)d2 / 2, pairs, b * p.r.xb + s * p.r.xs + head * p.r.xh, b * p.r.yb + s * p.r.ys + head * p.r.yh};
}
// A thread's first item is on its way while the angles are made. Tables nearly always give a pair's channels the same angle, which is made once then.
template <class T> __global__ void __launch_bounds__(kThreads, device::kMaxWave == 32 ? 4 : 1) rope_wide_kernel(Call call, int tokens) {
  const Call &p = call;
  __shared__ alignas(16) float cosine[kMaxAngles], sine[kMaxAngles];
  __shared__ bool zeros[kMaxTokens];
  const unsigned first = blockIdx.x * (unsigned)tokens, all = (unsigned)(p.r.b * p.r.s);
  const unsigned d2 = (unsigned)p.r.d2, m = d2 / 2, count = first + (unsigned)tokens <= all ? (unsigned)tokens : all - first;
  const unsigned items = count * (unsigned)p.r.h * (d2 / 16 + ((unsigned)p.r.d - d2) / 8);
  Raw<T> one, two;
  Item at = {};
  const auto fetch = [&](const Call &p, unsigned i) {
    at = item_of(p, first, i);
    const T *x = static_cast<const T *>(p.x) + at.from;
    one.load(x + at.one);
    if (at.pairs) two.load(x + at.two);
  };
  if (threadIdx.x < items) fetch(p, threadIdx.x);
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < count * m; i += kThreads) {
    const Call &p = again(call);
    const unsigned t = i / m, k = i % m, a = p.interleaved ? 2 * k : k, c = p.interleaved ? a + 1 : a + m;
    const Place place = place_of(p, first + t);
    float *const cosines = cosine + t * d2, *const sines = sine + t * d2;
    const float *const freqs = p.freqs + (place.inside ? place.position : 0) * (int64_t)d2;
    const bool same = !place.inside || bits(freqs[a]) == bits(freqs[c]);
#pragma unroll 1
    for (unsigned channel = a;; channel = c) {
      angle_of(p, place, (int)channel, cosines[channel], sines[channel]);
      if (same) cosines[c] = cosines[a], sines[c] = sines[a];
      if (same || channel == c) break;
    }
    if (k == 0) zeros[t] = place.lost || place.unused;
  }
  __syncthreads();
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < items; i += kThreads) {
    const Call &p = again(call);
    if (i != threadIdx.x) fetch(p, i);
    T *y = static_cast<T *>(p.y) + at.to;
    float a[8], c[8];
    one.floats(a), two.floats(c);
    if (zeros[at.token]) {
#pragma unroll
      for (int j = 0; j < 8; j++) a[j] = c[j] = 0.f;
    } else if (at.pairs) {
      const int t1 = at.token * (int)d2 + at.one, t2 = at.token * (int)d2 + at.two;
#pragma unroll
      for (int j = 0; j < 8; j += 4) {
        float w[4][4];
        load_f32<4>(cosine + t1 + j, w[0]), load_f32<4>(sine + t1 + j, w[1]), load_f32<4>(cosine + t2 + j, w[2]), load_f32<4>(sine + t2 + j, w[3]);
        if (p.interleaved) {
#pragma unroll
          for (int k = 0; k < 4; k += 2) {
            rotate(p, a[j + k], a[j + k + 1], w[0][k], w[1][k], w[0][k + 1], w[1][k + 1]);
            rotate(p, c[j + k], c[j + k + 1], w[2][k], w[3][k], w[2][k + 1], w[3][k + 1]);
          }
        } else {
#pragma unroll
          for (int k = 0; k < 4; k++) rotate(p, a[j + k], c[j + k], w[0][k], w[1][k], w[2][k], w[3][k]);
        }
      }
    }
    store_f32<8>(y + at.one, a);
    if (at.pairs) store_f32<8>(y + at.two, c);
  }
}
// Tokens a block of the wide kernel, 0 where the layout needs the other one.
template <class T> int wide_tokens(const Call &p) {
  const RopeShape &r = p.r;
  const int64_t groups = r.d2 / 16 + (r.d - r.d2) / 8;
  bool wide = r.xd == 1 && r.d2 > 0 && r.d2 % 16 == 0 && r.d % 8 == 0 && r.h * groups < 1 << 20 && gpu::aligned(p.x, 16) && gpu::aligned(p.y, 16);
  for (const int64_t stride : {r.xb, r.xs, r.xh}) wide = wide && stride * (int64_t)sizeof(T) % 16 == 0;
  if (!wide) return 0;
  int tokens = kMaxTokens;
  while (tokens > 1 && (tokens * r.d2 > kMaxAngles || tokens * r.h * groups > kThreads)) tokens--;
  return tokens;
}
template <class T> void launch(const Call &p, hipStream_t stream) {
  const int64_t all = p.r.b * p.r.s;
  if (const int tokens = wide_tokens<T>(p)) rope_wide_kernel<T><<<(unsigned)gpu::ceil_div(all, tokens), kThreads, 0, stream>>>(p, tokens);
  else rope_kernel<T><<<(unsigned)all, kThreads, 0, stream>>>(p);
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
    switch (dtype_of(a.x->data.dtype)) {
      case DType::f32: launch<float>(p, gpu::stream_of(*e)); break;
      case DType::f16: launch<f16>(p, gpu::stream_of(*e)); break;
      default: launch<bf16>(p, gpu::stream_of(*e)); break;
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
