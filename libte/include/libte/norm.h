/* SPDX-License-Identifier: Apache-2.0
 * LayerNorm and RMSNorm over the last dimension. */
#ifndef LIBTE_NORM_H
#define LIBTE_NORM_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NVTE_NORM_ZERO_CENTERED 0x1u /* gamma is stored as gamma - 1 */

/* Root-mean-square normalisation over the last dimension:
 *     s[i,j]  = x[i,j] + residual[i,j]   (rounded to x's dtype; s = x without residual)
 *     rstd[i] = 1 / sqrt(mean_j s[i,j]^2 + epsilon)
 *     y[i,j]  = s[i,j] * rstd[i] * g[j],  g = gamma + (flags & NVTE_NORM_ZERO_CENTERED ? 1 : 0), 1 without gamma
 * Sums are f32 or wider. If y is quantised (y->scaling != NONE), codes, scale_inv and amax come from the
 * unrounded f32 value, written in the same pass; if y is 16- or 32-bit, amax is of the stored value.
 * NVTE_ERR_INVALID_ARGUMENT  shapes disagree; epsilon < 0; residual_out without residual
 * NVTE_ERR_UNSUPPORTED       no implementation; the message lists each refusal
 * Since 0.1. */
typedef struct nvte_rmsnorm_forward_args {
  size_t struct_size;
  const nvte_tensor *x;        /* in [*, H] f32|f16|bf16 rows; input */
  const nvte_tensor *gamma;    /* in? [H] f32|f16|bf16; weight */
  const nvte_tensor *residual; /* in? [*, H] x.dtype rows; added to x first */
  nvte_tensor *y;              /* out [*, H] x.dtype|f32|f16|bf16|e4m3|e5m2|e4m3fnuz|e5m2fnuz quantized; result, may alias x */
  nvte_tensor *residual_out;   /* out? [*, H] x.dtype; s, the sum that was normalised */
  nvte_tensor *rstd;           /* out? [*] f32; saved for backward */
  float epsilon;               /* = 1e-5, >= 0; added to the mean square */
  uint32_t flags;              /* = 0; NVTE_NORM_* */
} nvte_rmsnorm_forward_args;
NVTE_API nvte_status nvte_rmsnorm_forward(const nvte_exec *exec, const nvte_rmsnorm_forward_args *args);

/* With n = x * rstd and d = dy * g:
 *     dx = rstd * (d - n * mean_j(d * n)) + add;   dgamma[j] = sum_i dy[i,j] * n[i,j]
 * x is the tensor that was normalised (s above). add (the gradient that reached s by another way) is added in f32 before the
 * one rounding. dgamma of no rows is 0. Column sums go in fixed row blocks, then a fixed tree.
 * NVTE_ERR_INVALID_ARGUMENT  shapes disagree
 * Since 0.1. */
typedef struct nvte_rmsnorm_backward_args {
  size_t struct_size;
  const nvte_tensor *dy;    /* in [*, H] f32|f16|bf16 rows; gradient of y */
  const nvte_tensor *x;     /* in [*, H] f32|f16|bf16 rows; what was normalised */
  const nvte_tensor *gamma; /* in? [H] f32|f16|bf16; weight */
  const nvte_tensor *rstd;  /* in [*] f32; from forward */
  const nvte_tensor *add;   /* in? [*, H] f32|f16|bf16 rows; added to dx */
  nvte_tensor *dx;          /* out [*, H] x.dtype; gradient of x */
  nvte_tensor *dgamma;      /* out? [H] f32|f16|bf16; gradient of gamma */
  uint32_t flags;           /* = 0; NVTE_NORM_* */
} nvte_rmsnorm_backward_args;
NVTE_API nvte_status nvte_rmsnorm_backward(const nvte_exec *exec, const nvte_rmsnorm_backward_args *args);

/* Layer normalisation over the last dimension:
 *     s = x + residual (as in rmsnorm);  mu[i] = mean_j s[i,j];  rstd[i] = 1 / sqrt(mean_j (s[i,j] - mu[i])^2 + epsilon)
 *     y[i,j] = (s[i,j] - mu[i]) * rstd[i] * g[j] + beta[j]
 * The variance is biased and two-pass. Fused residual, quantised output and amax as in rmsnorm_forward.
 * NVTE_ERR_INVALID_ARGUMENT  shapes disagree; epsilon < 0; residual_out without residual
 * NVTE_ERR_UNSUPPORTED       no implementation; the message lists each refusal
 * Since 0.1. */
typedef struct nvte_layernorm_forward_args {
  size_t struct_size;
  const nvte_tensor *x;        /* in [*, H] f32|f16|bf16 rows; input */
  const nvte_tensor *gamma;    /* in? [H] f32|f16|bf16; weight */
  const nvte_tensor *beta;     /* in? [H] f32|f16|bf16; bias */
  const nvte_tensor *residual; /* in? [*, H] x.dtype rows; added to x first */
  nvte_tensor *y;              /* out [*, H] x.dtype|f32|f16|bf16|e4m3|e5m2|e4m3fnuz|e5m2fnuz quantized; result, may alias x */
  nvte_tensor *residual_out;   /* out? [*, H] x.dtype; s, the sum that was normalised */
  nvte_tensor *mu;             /* out? [*] f32; saved for backward */
  nvte_tensor *rstd;           /* out? [*] f32; saved for backward */
  float epsilon;               /* = 1e-5, >= 0; added to the variance */
  uint32_t flags;              /* = 0; NVTE_NORM_* */
} nvte_layernorm_forward_args;
NVTE_API nvte_status nvte_layernorm_forward(const nvte_exec *exec, const nvte_layernorm_forward_args *args);

/* With n = (x - mu) * rstd and d = dy * g:
 *     dx = rstd * (d - n * mean_j(d * n) - mean_j d) + add;  dgamma[j] = sum_i dy * n;  dbeta[j] = sum_i dy
 * Otherwise as rmsnorm_backward.
 * NVTE_ERR_INVALID_ARGUMENT  shapes disagree
 * Since 0.1. */
typedef struct nvte_layernorm_backward_args {
  size_t struct_size;
  const nvte_tensor *dy;    /* in [*, H] f32|f16|bf16 rows; gradient of y */
  const nvte_tensor *x;     /* in [*, H] f32|f16|bf16 rows; what was normalised */
  const nvte_tensor *gamma; /* in? [H] f32|f16|bf16; weight */
  const nvte_tensor *mu;    /* in [*] f32; from forward */
  const nvte_tensor *rstd;  /* in [*] f32; from forward */
  const nvte_tensor *add;   /* in? [*, H] f32|f16|bf16 rows; added to dx */
  nvte_tensor *dx;          /* out [*, H] x.dtype; gradient of x */
  nvte_tensor *dgamma;      /* out? [H] f32|f16|bf16; gradient of gamma */
  nvte_tensor *dbeta;       /* out? [H] f32|f16|bf16; gradient of beta */
  uint32_t flags;           /* = 0; NVTE_NORM_* */
} nvte_layernorm_backward_args;
NVTE_API nvte_status nvte_layernorm_backward(const nvte_exec *exec, const nvte_layernorm_backward_args *args);

#ifdef __cplusplus
}
#endif
#endif
