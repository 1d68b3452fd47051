// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/cudnn.h"

#define TE_ATTENTION_FN __host__ __device__
#include "ops/attention/problem.h"

#include "gpu/device/wave.h"

namespace te::attention {
namespace {
using namespace device;

constexpr int kThreads = 256, kRows = kThreads / kWave;

// Lengths come from device memory, where nothing has looked at them: out of range they are cut, so that no access leaves a tensor.
__device__ Sequence sequence_of(const Problem &p, int64_t b) {
  const auto cut = [](int64_t x, int64_t most) { return x < 0 ? 0 : x > most ? most : x; };
  Sequence s = p.sequence(b);
  s.q0 = cut(s.q0, p.s_q);
  s.k0 = cut(s.k0, p.s_kv);
  s.len_q = cut(s.len_q, p.s_q - s.q0);
  s.len_k = cut(s.len_k, p.s_kv - s.k0);
  return s;
}

struct TokenStrides {
  int64_t q, k, v, o, stats, d_o, dq, dk, dv;
};
__global__ void lengths_kernel(Problem p, TokenStrides strides, Lengths out) {
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i <= p.b; i += (int64_t)gridDim.x * blockDim.x) {
    Sequence s = i < p.b ? sequence_of(p, i) : Sequence{p.s_q, p.s_kv, 0, 0};
    if (i < p.b) out.len_q[i] = (int32_t)s.len_q, out.len_k[i] = (int32_t)s.len_k;
    if (!p.thd) continue;
    const auto put = [&](int64_t *to, int64_t at, int64_t stride) {
      if (to) to[i] = at * stride;
    };
    put(out.at_q, s.q0, strides.q);
    put(out.at_k, s.k0, strides.k);
    put(out.at_v, s.k0, strides.v);
    put(out.at_o, s.q0, strides.o);
    put(out.at_do, s.q0, strides.d_o);
    put(out.at_dq, s.q0, strides.dq);
    put(out.at_dk, s.k0, strides.dk);
    put(out.at_dv, s.k0, strides.dv);
    put(out.at_stats, s.q0, strides.stats);
  }
}

// The sequence that has memory position `at` of batch entry `b` (THD: of all), as its index; -1: none.
__device__ int64_t owner(const Problem &p, int64_t b, int64_t at, bool keys) {
  if (!p.thd) {
    const Sequence s = sequence_of(p, b);
    return at < (keys ? s.len_k : s.len_q) ? b : -1;
  }
  int found = -1;
  for (int64_t i = lane(); i < p.b; i += kWave) {
    const Sequence s = sequence_of(p, i);
    const int64_t from = keys ? s.k0 : s.q0, n = keys ? s.len_k : s.len_q;
    if (at >= from && at < from + n) found = (int)i;
  }
  for (int step = kWave / 2; step > 0; step /= 2) {
    const int other = shfl_xor(found, step);
    found = other > found ? other : found;
  }
  return found;
}
__device__ bool keeps_nothing(const Problem &p, int64_t b, int64_t at) {
  const int64_t i = owner(p, b, at, false);
  if (i < 0) return true;
  const Sequence s = sequence_of(p, i);
  int64_t lo, hi;
  p.keys_of(s, at - s.q0, &lo, &hi);
  return lo >= hi;
}
__device__ bool has_no_query(const Problem &p, int64_t b, int64_t at) {
  const int64_t i = owner(p, b, at, true);
  return i < 0 || sequence_of(p, i).len_q == 0;
}
// 16-bit elements.
__device__ void clear_row(const View &v, int64_t b, int64_t at, int64_t heads, int64_t width) {
  for (int64_t h = 0; h < heads; h++)
    for (int64_t c = lane(); c < width; c += kWave) reinterpret_cast<uint16_t *>(v.row(b, at, h))[c] = 0;
}
__device__ int64_t row_index() { return (int64_t)blockIdx.x * kRows + threadIdx.x / kWave; }

__global__ void __launch_bounds__(kThreads) clear_results_kernel(Problem p, View o, float *stats) {
  const int64_t row = row_index(), b = row / p.s_q, at = row % p.s_q;
  if (row >= (p.thd ? 1 : p.b) * p.s_q || !keeps_nothing(p, b, at)) return;
  clear_row(o, b, at, p.h_q, p.d_v);
  for (int64_t h = lane(); stats && h < p.h_q; h += kWave) stats[((p.thd ? 0 : b * p.h_q) + h) * p.s_q + at] = -__builtin_inff();
}
__global__ void __launch_bounds__(kThreads) clear_gradients_kernel(Problem p, View dq, View dk, View dv) {
  int64_t row = row_index();
  const int64_t entries = p.thd ? 1 : p.b, queries = entries * p.s_q;
  if (row < queries) {
    if (keeps_nothing(p, row / p.s_q, row % p.s_q)) clear_row(dq, row / p.s_q, row % p.s_q, p.h_q, p.d);
    return;
  }
  row -= queries;
  if (row >= entries * p.s_kv || !has_no_query(p, row / p.s_kv, row % p.s_kv)) return;
  clear_row(dk, row / p.s_kv, row % p.s_kv, p.h_kv, p.d);
  clear_row(dv, row / p.s_kv, row % p.s_kv, p.h_kv, p.d_v);
}
__global__ void guard_stats_kernel(Problem p, const float *stats, float *out) {
  const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i >= (p.thd ? 1 : p.b) * p.h_q * p.s_q) return;
  out[p.thd ? i % p.s_q * p.h_q + i / p.s_q : i] = stats[i] == -__builtin_inff() ? __builtin_inff() : stats[i];
}
// 16 bytes a lane: channels are a multiple of 8.
__device__ void copy_row(const View &from, int64_t b, int64_t at, int64_t heads, int64_t width, bool keep, char *to) {
  const int64_t pieces = width / 8;
  for (int64_t i = lane(); i < heads * pieces; i += kWave) {
    const uint4 x = keep ? reinterpret_cast<const uint4 *>(from.row(b, at, i / pieces))[i % pieces] : uint4{0, 0, 0, 0};
    reinterpret_cast<uint4 *>(to)[i] = x;
  }
}
// Whether some query keeps the key: the queries' intervals grow together.
__device__ bool is_kept(const Problem &p, int64_t b, int64_t at) {
  const int64_t i = owner(p, b, at, true);
  if (i < 0) return false;
  const Sequence s = sequence_of(p, i);
  int64_t lo, hi, ignored;
  p.interval(s, 0, &lo, &ignored);
  p.interval(s, s.len_q - 1, &ignored, &hi);
  return s.len_q > 0 && at - s.k0 >= lo && at - s.k0 < hi;
}
struct Copy {
  View from;
  int64_t rows, heads, width;  // rows of a batch entry
  bool keys;
  char *to;
};
__global__ void __launch_bounds__(kThreads) copy_kernel(Problem p, Copy c) {
  const int64_t row = row_index(), b = row / c.rows, at = row % c.rows;
  if (row >= (p.thd ? 1 : p.b) * c.rows) return;
  copy_row(c.from, b, at, c.heads, c.width, c.keys ? is_kept(p, b, at) : !keeps_nothing(p, b, at), c.to + row * c.heads * c.width * 2);
}

unsigned blocks_of(int64_t n, int64_t each) { return (unsigned)gpu::ceil_div(n, each); }
int64_t queries_of(const Problem &p) { return (p.thd ? 1 : p.b) * p.s_q; }
int64_t keys_in(const Problem &p) { return (p.thd ? 1 : p.b) * p.s_kv; }
void copy(const Problem &p, const View &from, bool keys, int64_t width, void *to, hipStream_t stream) {
  if (!to) return;
  const Copy c = {from, keys ? p.s_kv : p.s_q, keys ? p.h_kv : p.h_q, width, keys, static_cast<char *>(to)};
  copy_kernel<<<blocks_of(keys ? keys_in(p) : queries_of(p), kRows), kThreads, 0, stream>>>(p, c);
}
void before(const Problem &p, TokenStrides strides, const Lengths &out, hipStream_t stream) {
  strides.k = out.k ? p.h_kv * p.d : p.k.s;
  strides.v = out.v ? p.h_kv * p.d_v : p.v.s;
  lengths_kernel<<<blocks_of(p.b + 1, kThreads), kThreads, 0, stream>>>(p, strides, out);
  copy(p, p.k, true, p.d, out.k, stream);
  copy(p, p.v, true, p.d_v, out.v, stream);
}

}  // namespace

void before_cudnn(const nvte_attention_forward_args &a, const Lengths &out, hipStream_t stream) {
  const Problem p = problem_of(a);
  TokenStrides strides = {};
  strides.q = p.q.s, strides.o = view_of(a.o, axes_of(a.format)).s, strides.stats = 1;
  before(p, strides, out, stream);
}
void before_cudnn(const nvte_attention_backward_args &a, const Lengths &out, hipStream_t stream) {
  const Problem p = problem_of(a);
  const auto view = [&](const nvte_tensor *t) { return view_of(t, axes_of(a.format)); };
  before(p, {p.q.s, 0, 0, view(a.o).s, p.h_q, view(a.d_o).s, view(a.dq).s, view(a.dk).s, view(a.dv).s}, out, stream);
  copy(p, p.q, false, p.d, out.q, stream);
  copy(p, view(a.d_o), false, p.d_v, out.d_o, stream);
  guard_stats_kernel<<<blocks_of(queries_of(p) * p.h_q, kThreads), kThreads, 0, stream>>>(p, address_as<const float>(a.stats->data), out.stats);
}
void after_cudnn(const nvte_attention_forward_args &a, hipStream_t stream) {
  const Problem p = problem_of(a);
  clear_results_kernel<<<blocks_of(queries_of(p), kRows), kThreads, 0, stream>>>(p, view_of(a.o, axes_of(a.format)),
                                                                                 given(a.stats) ? address_as<float>(a.stats->data) : nullptr);
}
void after_cudnn(const nvte_attention_backward_args &a, hipStream_t stream) {
  const Problem p = problem_of(a);
  const Axes x = axes_of(a.format);
  clear_gradients_kernel<<<blocks_of(queries_of(p) + keys_in(p), kRows), kThreads, 0, stream>>>(p, view_of(a.dq, x), view_of(a.dk, x),
                                                                                                               view_of(a.dv, x));
}

}  // namespace te::attention
