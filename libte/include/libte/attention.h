/* SPDX-License-Identifier: Apache-2.0
 * Fused attention: flash kernels that never form the S x S matrix. */
#ifndef LIBTE_ATTENTION_H
#define LIBTE_ATTENTION_H

#include "rope.h"    /* NVTE_FORMAT_* */
#include "softmax.h" /* NVTE_MASK_* */

#ifdef __cplusplus
extern "C" {
#endif

enum { NVTE_BIAS_POST_SCALE = 0, NVTE_BIAS_PRE_SCALE = 1 };
enum {
  NVTE_SOFTMAX_VANILLA = 0,
  NVTE_SOFTMAX_OFF_BY_ONE = 1, /* denominator + 1 (an extra logit 0) */
  NVTE_SOFTMAX_LEARNABLE = 2   /* denominator + exp(softmax_offset[h]) */
};

/* For each batch entry and query head h (key/value head h / (h_q / h_kv)):
 *     P = scale * Q K^T + bias + alibi_slopes[h] * (k - q')   (bias_kind PRE_SCALE: scale * (Q K^T + bias))
 *     masked entries of P = -inf;  S = softmax(P);  O = dropout(S) V;  stats = ln sum exp P (+ the softmax kind's term)
 * Kept entries: key k of query q is kept iff it passes all of
 *     lengths:  q < len_q, k < len_kv (cu_seqlens_q / cu_seqlens_kv [b+1] where given, else the tensors' lengths)
 *     mask_kind: CAUSAL k <= q;  CAUSAL_BOTTOM_RIGHT k <= q + len_kv - len_q
 *     window:   q' - window_left <= k <= q' + window_right, -1 = unlimited; q' = q, with CAUSAL_BOTTOM_RIGHT (or
 *               NVTE_ATTENTION_WINDOW_BOTTOM_RIGHT) q + len_kv - len_q
 *     mask:     bool or u8, true = masked out (torch's SDPA has the reverse)
 * A row with nothing kept gives O = 0, stats = -inf and gradient 0; values at masked keys are never read into the result, NaN
 * and infinity included (by `cudnn` they may be, where another query keeps the key). Rows past len_q are written 0.
 * Layout: q [b, s, h, d] with dimensions in the order of `format`, read through strides (last dimension unit stride), so packed
 * qkv are views. THD: [t, h, d], cu_seqlens_* give the lengths, cu_seqlens_*_padded (where given) the memory offsets; rows of no
 * sequence are written 0. d_v may differ from d. h_q must be a multiple of h_kv.
 * Dropout: keep = philox4x32_10(key = seed, counter = {offset + (b*h_q + h), q, k / 4, offset high}) word k % 4 >= p * 2^32,
 * kept entries are divided by 1 - p.
 * stats: f32 [b, h, s_q], THD [h, t_q].
 * NVTE_ERR_INVALID_ARGUMENT  shapes, dtypes or counts disagree (the numbers are named)
 * NVTE_ERR_UNSUPPORTED       a feature no implementation has; the message lists each refusal
 * Since 0.1. */
#define NVTE_ATTENTION_WINDOW_BOTTOM_RIGHT 0x1u

typedef struct nvte_attention_forward_args {
  size_t struct_size;
  const nvte_tensor *q;                    /* in [...] f32|f16|bf16 strided; queries */
  const nvte_tensor *k;                    /* in [...] q.dtype strided; keys */
  const nvte_tensor *v;                    /* in [...] q.dtype strided; values */
  nvte_tensor *o;                          /* out [...] q.dtype|f32 strided; result, q's format with d_v */
  nvte_tensor *stats;                      /* out? [...] f32; [b, h, s_q] or THD [h, t_q] */
  const nvte_tensor *bias;                 /* in? [...] f32|f16|bf16 strided; [b|1, h|1, s_q|1, s_kv] */
  const nvte_tensor *mask;                 /* in? [...] bool|u8 strided; [b|1, h|1, s_q|1, s_kv], true = masked out */
  const nvte_tensor *cu_seqlens_q;         /* in? [...] i32; [b+1] */
  const nvte_tensor *cu_seqlens_kv;        /* in? [...] i32; [b+1] */
  const nvte_tensor *cu_seqlens_q_padded;  /* in? [...] i32; [b+1], THD only */
  const nvte_tensor *cu_seqlens_kv_padded; /* in? [...] i32; [b+1], THD only */
  const nvte_tensor *rng_state;            /* in? [2] i64; {seed, offset}, needed when dropout > 0 */
  const nvte_tensor *softmax_offset;       /* in? [...] f32; [h], LEARNABLE only */
  const nvte_tensor *alibi_slopes;         /* in? [...] f32; [h] */
  const nvte_tensor *page_table;           /* in? [...] i32; [b, pages]: refused until paged caches are built */
  float scale;                             /* = 1; multiplies Q K^T */
  float dropout;                           /* = 0, >= 0; probability of dropping, < 1 */
  int32_t format;                          /* = NVTE_FORMAT_BSHD; NVTE_FORMAT_* */
  int32_t mask_kind;                       /* = NVTE_MASK_NONE; NVTE_MASK_* */
  int32_t bias_kind;                       /* = NVTE_BIAS_POST_SCALE; NVTE_BIAS_* */
  int32_t softmax_kind;                    /* = NVTE_SOFTMAX_VANILLA; NVTE_SOFTMAX_* */
  int64_t window_left;                     /* = -1, >= -1; -1 = unlimited */
  int64_t window_right;                    /* = -1, >= -1; -1 = unlimited */
  uint32_t flags;                          /* = 0; NVTE_ATTENTION_* */
} nvte_attention_forward_args;
NVTE_API nvte_status nvte_attention_forward(const nvte_exec *exec, const nvte_attention_forward_args *args);

/* With S as in forward, D the dropped-out S and r = rowsum(dO * O):
 *     dV = D^T dO;  dS = S * (dropout(dO V^T) - r);  dQ = scale * dS K;  dK = scale * dS^T Q
 *     dbias = dS summed over the dimensions that bias broadcasts (times scale for PRE_SCALE)
 *     dsoftmax_offset[h] = - sum over rows of exp(offset - stats) * r
 * Gradients of heads and keys that nothing attends to are 0, and so are rows outside every sequence. Each (batch, key/value
 * head) is owned by one worker and sums in a fixed order (`cudnn`: with NVTE_EXEC_DETERMINISTIC; else dQ and doffset vary).
 * NVTE_ERR_INVALID_ARGUMENT, NVTE_ERR_UNSUPPORTED  as forward
 * Since 0.1. */
typedef struct nvte_attention_backward_args {
  size_t struct_size;
  const nvte_tensor *d_o;                  /* in [...] f32|f16|bf16 strided; gradient of o */
  const nvte_tensor *q;                    /* in [...] f32|f16|bf16 strided; queries */
  const nvte_tensor *k;                    /* in [...] q.dtype strided; keys */
  const nvte_tensor *v;                    /* in [...] q.dtype strided; values */
  const nvte_tensor *o;                    /* in [...] f32|f16|bf16 strided; forward's result */
  const nvte_tensor *stats;                /* in [...] f32; from forward */
  nvte_tensor *dq;                         /* out [...] q.dtype|f32 strided; gradient of q */
  nvte_tensor *dk;                         /* out [...] q.dtype|f32 strided; gradient of k */
  nvte_tensor *dv;                         /* out [...] q.dtype|f32 strided; gradient of v */
  nvte_tensor *dbias;                      /* out? [...] f32|f16|bf16; bias's shape */
  nvte_tensor *dsoftmax_offset;            /* out? [...] f32; [h] */
  const nvte_tensor *bias;                 /* in? [...] f32|f16|bf16 strided; as forward */
  const nvte_tensor *mask;                 /* in? [...] bool|u8 strided; as forward */
  const nvte_tensor *cu_seqlens_q;         /* in? [...] i32; as forward */
  const nvte_tensor *cu_seqlens_kv;        /* in? [...] i32; as forward */
  const nvte_tensor *cu_seqlens_q_padded;  /* in? [...] i32; as forward */
  const nvte_tensor *cu_seqlens_kv_padded; /* in? [...] i32; as forward */
  const nvte_tensor *rng_state;            /* in? [2] i64; as forward */
  const nvte_tensor *softmax_offset;       /* in? [...] f32; as forward */
  const nvte_tensor *alibi_slopes;         /* in? [...] f32; as forward */
  float scale;                             /* = 1; as forward */
  float dropout;                           /* = 0, >= 0; as forward */
  int32_t format;                          /* = NVTE_FORMAT_BSHD; NVTE_FORMAT_* */
  int32_t mask_kind;                       /* = NVTE_MASK_NONE; NVTE_MASK_* */
  int32_t bias_kind;                       /* = NVTE_BIAS_POST_SCALE; NVTE_BIAS_* */
  int32_t softmax_kind;                    /* = NVTE_SOFTMAX_VANILLA; NVTE_SOFTMAX_* */
  int64_t window_left;                     /* = -1, >= -1; -1 = unlimited */
  int64_t window_right;                    /* = -1, >= -1; -1 = unlimited */
  uint32_t flags;                          /* = 0; NVTE_ATTENTION_* */
} nvte_attention_backward_args;
NVTE_API nvte_status nvte_attention_backward(const nvte_exec *exec, const nvte_attention_backward_args *args);

#ifdef __cplusplus
}
#endif
#endif
