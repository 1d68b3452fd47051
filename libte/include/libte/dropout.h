/* SPDX-License-Identifier: Apache-2.0
 * Dropout with a saved bit mask. */
#ifndef LIBTE_DROPOUT_H
#define LIBTE_DROPOUT_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Element i (row-major) is kept iff word i % 4 of philox4x32_10(key = seed, counter = offset + i / 4, 128 bits) is
 * >= p * 2^32 (rounded down);  y[i] = keep ? x[i] / (1 - p) : 0, f32, rounded once;  bit i % 8 of mask[i / 8] = keep, spare bits 0.
 * p = 0 keeps all, p = 1 none. The same bits on every back end.
 * NVTE_ERR_INVALID_ARGUMENT  shapes disagree; p outside [0, 1]
 * Since 0.1. */
typedef struct nvte_dropout_forward_args {
  size_t struct_size;
  const nvte_tensor *x;         /* in [*] f32|f16|bf16; input */
  const nvte_tensor *rng_state; /* in [2] i64; {seed, offset} */
  nvte_tensor *y;               /* out [*] x.dtype; result, may alias x */
  nvte_tensor *mask;            /* out? [ceil(prod(*)/8)] u8; kept bits */
  float p;                      /* = 0, >= 0; probability of dropping */
} nvte_dropout_forward_args;
NVTE_API nvte_status nvte_dropout_forward(const nvte_exec *exec, const nvte_dropout_forward_args *args);

/* dx[i] = keep ? dy[i] / (1 - p) : 0, with the saved mask.
 * NVTE_ERR_INVALID_ARGUMENT  shapes disagree; p outside [0, 1]
 * Since 0.1. */
typedef struct nvte_dropout_backward_args {
  size_t struct_size;
  const nvte_tensor *dy;   /* in [*] f32|f16|bf16; gradient of y */
  const nvte_tensor *mask; /* in [ceil(prod(*)/8)] u8; from forward */
  nvte_tensor *dx;         /* out [*] dy.dtype; gradient of x, may alias dy */
  float p;                 /* = 0, >= 0; probability of dropping */
} nvte_dropout_backward_args;
NVTE_API nvte_status nvte_dropout_backward(const nvte_exec *exec, const nvte_dropout_backward_args *args);

#ifdef __cplusplus
}
#endif
#endif
