// SPDX-License-Identifier: Apache-2.0
// What the GPU kernels of attention share.
#pragma once
#define TE_ATTENTION_FN __host__ __device__
#include "ops/attention/problem.h"

#include "gpu/device/reduce.h"
#include "gpu/plugin.h"

namespace te {
namespace {
using namespace device;

constexpr float kLog2e = 1.44269504f, kLog2eRest = 1.92596299e-8f, kLn2 = 0.693147181f, kMinusInf = -__builtin_inff();

// 2^x for x up to 127, 0 below -126: the same polynomial as the CPU's (cpu/exp2.h), 2e-9 off before rounding. The hardware's exponential is 2 ulp
// off, to one side, which a log-sum-exp over few keys shows.
TE_DEVICE float exp2_near(float x) {
  const float t = x < -127.f ? -127.f : x, magic = 0x1.8p23f + 127.f, z = t + magic, f = t - (z - magic);  // NaN stays
  float p = fmaf(1.534581242592868e-4f, f, 1.3399930903688073e-3f);
  p = fmaf(p, f, 9.618489071726799e-3f);
  p = fmaf(p, f, 5.550328642129898e-2f);
  p = fmaf(p, f, 2.4022646248340607e-1f);
  p = fmaf(p, f, 6.931471824645996e-1f);
  p = fmaf(p, f, 1.f);
  return p * __builtin_bit_cast(float, __builtin_bit_cast(unsigned, z) << 23);
}

// Lengths come from device memory, where nothing has looked at them: out of range they are cut, so that no access leaves a tensor.
__device__ __forceinline__ Sequence sequence_of(const Problem &p, int64_t b) {
  Sequence s = p.sequence(b);
  s.q0 = s.q0 < 0 ? 0 : s.q0 > p.s_q ? p.s_q : s.q0;
  s.k0 = s.k0 < 0 ? 0 : s.k0 > p.s_kv ? p.s_kv : s.k0;
  s.len_q = s.len_q < 0 ? 0 : s.len_q > p.s_q - s.q0 ? p.s_q - s.q0 : s.len_q;
  s.len_k = s.len_k < 0 ? 0 : s.len_k > p.s_kv - s.k0 ? p.s_kv - s.k0 : s.len_k;
  return s;
}
__device__ __forceinline__ int64_t stats_index(const Problem &p, int64_t b, int64_t head, int64_t at) { return (p.thd ? head : b * p.h_q + head) * p.s_q + at; }
// ln of a row's sum of total * 2^m.
TE_DEVICE float stats_of(float m, float total) { return (float)(((double)m + log2((double)total)) * 0.6931471805599453); }

}  // namespace

namespace gpu {
// gpu_flash.hip; false: it takes no such call. lse and delta: workspace, as long as stats; delta is rowsum(dO * O) then. Rows of no sequence (THD),
// dbias and dsoftmax_offset are the caller's.
bool flash_forward(const nvte_exec &e, const nvte_attention_forward_args &a);
bool flash_backward(const nvte_exec &e, const nvte_attention_backward_args &a, float *lse, float *delta);
}  // namespace gpu
}  // namespace te
