/* SPDX-License-Identifier: Apache-2.0
 * Scaled, masked and causal softmax over the last dimension. */
#ifndef LIBTE_SOFTMAX_H
#define LIBTE_SOFTMAX_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  NVTE_MASK_NONE = 0,
  NVTE_MASK_CAUSAL = 1,             /* keep key k of query q where k <= q (top-left aligned) */
  NVTE_MASK_CAUSAL_BOTTOM_RIGHT = 2 /* keep k <= q + (keys - queries) */
};

/* y = softmax(scale * x) over the keys that are kept; dropped entries are exactly 0; a row with none kept is all 0.
 * mask (bool or u8, true = masked out) has shape [b or 1, h or 1, Q or 1, Kv] for x [b, h, Q, Kv] (fewer dimensions align
 * right). Maths in f32, rounded once.
 * NVTE_ERR_INVALID_ARGUMENT  shapes disagree; mask_kind unknown
 * Since 0.1. */
typedef struct nvte_softmax_forward_args {
  size_t struct_size;
  const nvte_tensor *x;    /* in [*, Q, Kv] f32|f16|bf16 rows; logits */
  const nvte_tensor *mask; /* in? [...] bool|u8 strided; true = masked out */
  nvte_tensor *y;          /* out [*, Q, Kv] x.dtype|f32|f16|bf16; probabilities, may alias x */
  float scale;             /* = 1; multiplies x */
  int32_t mask_kind;       /* = NVTE_MASK_NONE; NVTE_MASK_* */
} nvte_softmax_forward_args;
NVTE_API nvte_status nvte_softmax_forward(const nvte_exec *exec, const nvte_softmax_forward_args *args);

/* dx = scale * y * (dy - sum_k y * dy). Masks need not be given again: y is 0 there.
 * NVTE_ERR_INVALID_ARGUMENT  shapes disagree
 * Since 0.1. */
typedef struct nvte_softmax_backward_args {
  size_t struct_size;
  const nvte_tensor *dy; /* in [*, Q, Kv] f32|f16|bf16 rows; gradient of y */
  const nvte_tensor *y;  /* in [*, Q, Kv] f32|f16|bf16 rows; forward's result */
  nvte_tensor *dx;       /* out [*, Q, Kv] dy.dtype|f32|f16|bf16; gradient of x, may alias dy or y */
  float scale;           /* = 1; forward's scale */
} nvte_softmax_backward_args;
NVTE_API nvte_status nvte_softmax_backward(const nvte_exec *exec, const nvte_softmax_backward_args *args);

#ifdef __cplusplus
}
#endif
#endif
