/* SPDX-License-Identifier: Apache-2.0
 * Softmax cross-entropy. */
#ifndef LIBTE_LOSS_H
#define LIBTE_LOSS_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { NVTE_REDUCTION_NONE = 0, NVTE_REDUCTION_SUM = 1, NVTE_REDUCTION_MEAN = 2 };

/* Per token t with target y in [0, vocab), lse = ln sum_v exp logits[t, v], smoothing s:
 *     loss[t] = lse - (1 - s) * logits[t, y] - s / vocab * sum_v logits[t, v];   0 for target == ignore_index
 * in f32 whatever the input. SUM and MEAN write loss [1]; MEAN divides by the tokens not ignored (none: 0).
 * Vocabulary-parallel: logits are columns [vocab_start, vocab_start + V) of a larger vocabulary of vocab_size (0 = V); then
 * partials [T, 4] = {max, sum exp(logit - max), logit of the target or 0, sum of logits} is written and loss must be absent: the
 * caller combines the shards.
 * A NaN logit gives NaN loss for its row; -inf logits are legal.
 * NVTE_ERR_INVALID_ARGUMENT  shapes disagree; a target outside the vocabulary that is not ignore_index; smoothing outside [0, 1)
 * Since 0.1. */
typedef struct nvte_cross_entropy_forward_args {
  size_t struct_size;
  const nvte_tensor *logits; /* in [T, V] f32|f16|bf16 rows; logits */
  const nvte_tensor *target; /* in [T] i64; class of each token */
  nvte_tensor *loss;         /* out? [...] f32; [T], or [1] for SUM and MEAN */
  nvte_tensor *lse;          /* out? [T] f32; saved for backward (of this shard when partials are asked for) */
  nvte_tensor *partials;     /* out? [T, 4] f32; vocabulary-parallel partial results */
  float label_smoothing;     /* = 0, >= 0; s */
  int32_t reduction;         /* = NVTE_REDUCTION_MEAN; NVTE_REDUCTION_* */
  int64_t ignore_index;      /* = -100; target value of ignored tokens */
  int64_t vocab_start;       /* = 0, >= 0; first column's class */
  int64_t vocab_size;        /* = 0, >= 0; 0 = V */
} nvte_cross_entropy_forward_args;
NVTE_API nvte_status nvte_cross_entropy_forward(const nvte_exec *exec, const nvte_cross_entropy_forward_args *args);

/* dlogits[t, v] = (exp(logits - lse) - (1 - s) [v == y] - s / vocab) * dloss[t], in f32, rounded once; 0 for ignored tokens.
 * dloss: [1] for SUM and MEAN (MEAN divides it by the count as forward did), [T] for NONE, any stride.
 * NVTE_ERR_INVALID_ARGUMENT  as forward
 * Since 0.1. */
typedef struct nvte_cross_entropy_backward_args {
  size_t struct_size;
  const nvte_tensor *logits; /* in [T, V] f32|f16|bf16 rows; forward's input */
  const nvte_tensor *target; /* in [T] i64; forward's target */
  const nvte_tensor *lse;    /* in [T] f32; ln sum exp over the whole vocabulary */
  const nvte_tensor *dloss;  /* in [...] f32|f16|bf16 strided; [1], or [T] for NONE */
  nvte_tensor *dlogits;      /* out [T, V] logits.dtype|f32 rows; gradient of logits, may alias logits */
  float label_smoothing;     /* = 0, >= 0; s */
  int32_t reduction;         /* = NVTE_REDUCTION_MEAN; NVTE_REDUCTION_* */
  int64_t ignore_index;      /* = -100; target value of ignored tokens */
  int64_t vocab_start;       /* = 0, >= 0; first column's class */
  int64_t vocab_size;        /* = 0, >= 0; 0 = V */
} nvte_cross_entropy_backward_args;
NVTE_API nvte_status nvte_cross_entropy_backward(const nvte_exec *exec, const nvte_cross_entropy_backward_args *args);

#ifdef __cplusplus
}
#endif
#endif
