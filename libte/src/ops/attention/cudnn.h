// SPDX-License-Identifier: Apache-2.0
// Kernels round a call of cuDNN whose sequences have lengths: before it, these in cuDNN's form; after it, the rows that it leaves to the caller.
#pragma once
#include "gpu/plugin.h"

namespace te::attention {

// Device memory that cuDNN reads in the place of cu_seqlens_*. Offsets are where each sequence of THD begins, in elements of the tensor.
struct Lengths {
  int32_t *len_q, *len_k;                                                         // [b]
  int64_t *at_q, *at_k, *at_v, *at_o, *at_do, *at_dq, *at_dk, *at_dv, *at_stats;  // [b + 1]; NULL: not THD
  // Copies [b, s, h, d] (THD [t, h, d]) with zeros for keys that no query keeps, and backward for queries that keep none: cuDNN multiplies what stands
  // there, NaN too, by 0. NULL: not needed.
  void *k, *v, *q, *d_o;
  float *stats;  // backward: +inf for -inf, so that exp(P - stats) is 0 where nothing is kept; THD: [t, h]
};
void before_cudnn(const nvte_attention_forward_args &a, const Lengths &out, hipStream_t stream);
void before_cudnn(const nvte_attention_backward_args &a, const Lengths &out, hipStream_t stream);

// Results of queries that keep no key, and gradients of keys that no sequence has.
void after_cudnn(const nvte_attention_forward_args &a, hipStream_t stream);
void after_cudnn(const nvte_attention_backward_args &a, hipStream_t stream);

}  // namespace te::attention
