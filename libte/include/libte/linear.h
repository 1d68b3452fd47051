/* SPDX-License-Identifier: Apache-2.0
 * Composite operators: quantise + GEMM in one call, so that the host pays once. They call the other operators through the
 * table and give the same bits as those calls made one by one. */
#ifndef LIBTE_LINEAR_H
#define LIBTE_LINEAR_H

#include "gemm.h"
#include "norm.h"
#include "quantize.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NVTE_LINEAR_CURRENT_SCALING 0x1u  /* compute amax and scale of what is quantised here; else its scale is used as given */
#define NVTE_LINEAR_POW2_SCALES 0x2u      /* with CURRENT_SCALING: scales are powers of two */
#define NVTE_LINEAR_WEIGHT_READY 0x4u     /* weight_quantized holds the codes already: it is read, not written */
#define NVTE_LINEAR_INPUT_READY 0x8u      /* x_quantized (backward: dy_quantized) holds the codes already */
#define NVTE_LINEAR_ACCUMULATE 0x10u      /* dweight += instead of = */
#define NVTE_LINEAR_SPLIT_ACCUMULATOR 0x20u

enum { NVTE_NORM_LAYER = 0, NVTE_NORM_RMS = 1 };

/* y[., n] = sum_k x[., k] weight[n, k] + bias[n]. With x_quantized and weight_quantized both are quantised first (row-wise; the
 * column-wise orientation too where given) and the GEMM runs on the codes. With CURRENT_SCALING amax is computed, then scale, then
 * the codes; a tensor that comes without amax and scale has them in libte's own memory.
 * NVTE_ERR_INVALID_ARGUMENT  shapes disagree; only one of x_quantized and weight_quantized; x missing without INPUT_READY
 * NVTE_ERR_WORKSPACE         workspace too small; the message carries the size
 * Since 0.1. */
typedef struct nvte_linear_forward_args {
  size_t struct_size;
  const nvte_tensor *x;          /* in? [*, K] f32|f16|bf16 rows; input */
  const nvte_tensor *weight;     /* in? [N, K] f32|f16|bf16 rows; weight */
  const nvte_tensor *bias;       /* in? [N] f32|f16|bf16; bias */
  nvte_tensor *x_quantized;      /* inout? [*, K] e4m3|e5m2|e4m3fnuz|e5m2fnuz quantized; input's codes, kept for backward */
  nvte_tensor *weight_quantized; /* inout? [N, K] e4m3|e5m2|e4m3fnuz|e5m2fnuz quantized; weight's codes */
  nvte_tensor *y;                /* out [*, N] f32|f16|bf16; result */
  uint32_t flags;                /* = 0; NVTE_LINEAR_* */
} nvte_linear_forward_args;
NVTE_API nvte_status nvte_linear_forward(const nvte_exec *exec, const nvte_linear_forward_args *args);

/* dx = dy weight;  dweight (+)= dy^T x;  dbias[n] = sum dy[., n] (of the unquantised dy). With dy_quantized, dy is quantised
 * first and both GEMMs run on codes (x and weight are then codes too).
 * NVTE_ERR_INVALID_ARGUMENT  shapes disagree; dx without weight; dweight without x; dy missing without INPUT_READY; dbias without dy
 * NVTE_ERR_WORKSPACE         workspace too small; the message carries the size
 * Since 0.1. */
typedef struct nvte_linear_backward_args {
  size_t struct_size;
  const nvte_tensor *dy;     /* in? [*, N] f32|f16|bf16 rows; gradient of y (not needed with INPUT_READY and no dbias) */
  const nvte_tensor *x;      /* in? [*, K] f32|f16|bf16|e4m3|e5m2|e4m3fnuz|e5m2fnuz quantized rows; input or its codes */
  const nvte_tensor *weight; /* in? [N, K] f32|f16|bf16|e4m3|e5m2|e4m3fnuz|e5m2fnuz quantized rows; weight or its codes */
  nvte_tensor *dy_quantized; /* inout? [*, N] e4m3|e5m2|e4m3fnuz|e5m2fnuz quantized; gradient's codes */
  nvte_tensor *dx;           /* out? [*, K] f32|f16|bf16; gradient of x */
  nvte_tensor *dweight;      /* inout? [N, K] f32|f16|bf16; gradient of weight */
  nvte_tensor *dbias;        /* out? [N] f32|f16|bf16; gradient of bias */
  uint32_t flags;            /* = 0; NVTE_LINEAR_* */
} nvte_linear_backward_args;
NVTE_API nvte_status nvte_linear_backward(const nvte_exec *exec, const nvte_linear_backward_args *args);

/* linear_forward of norm(x): the normalised rows go straight to codes where the scale is known. Its backward is
 * linear_backward followed by the norm's backward.
 * NVTE_ERR_INVALID_ARGUMENT, NVTE_ERR_WORKSPACE  as linear_forward; beta or mu with NVTE_NORM_RMS
 * Since 0.1. */
typedef struct nvte_norm_linear_forward_args {
  size_t struct_size;
  const nvte_tensor *x;          /* in [*, K] f32|f16|bf16 rows; input */
  const nvte_tensor *gamma;      /* in? [K] f32|f16|bf16; norm weight */
  const nvte_tensor *beta;       /* in? [K] f32|f16|bf16; norm bias */
  const nvte_tensor *weight;     /* in? [N, K] f32|f16|bf16 rows; weight */
  const nvte_tensor *bias;       /* in? [N] f32|f16|bf16; bias */
  nvte_tensor *normalized;       /* out? [*, K] f32|f16|bf16; norm(x), needed where nothing is quantised */
  nvte_tensor *mu;               /* out? [*] f32; saved for backward */
  nvte_tensor *rstd;             /* out? [*] f32; saved for backward */
  nvte_tensor *x_quantized;      /* out? [*, K] e4m3|e5m2|e4m3fnuz|e5m2fnuz quantized; codes of norm(x) */
  nvte_tensor *weight_quantized; /* inout? [N, K] e4m3|e5m2|e4m3fnuz|e5m2fnuz quantized; weight's codes */
  nvte_tensor *y;                /* out [*, N] f32|f16|bf16; result */
  float epsilon;                 /* = 1e-5, >= 0; the norm's */
  int32_t norm;                  /* = NVTE_NORM_LAYER; NVTE_NORM_LAYER or NVTE_NORM_RMS */
  uint32_t norm_flags;           /* = 0; NVTE_NORM_ZERO_CENTERED */
  uint32_t flags;                /* = 0; NVTE_LINEAR_* */
} nvte_norm_linear_forward_args;
NVTE_API nvte_status nvte_norm_linear_forward(const nvte_exec *exec, const nvte_norm_linear_forward_args *args);

#ifdef __cplusplus
}
#endif
#endif
