/* SPDX-License-Identifier: Apache-2.0
 * Activations, plain and gated. All maths is f32, rounded once. */
#ifndef LIBTE_ACTIVATION_H
#define LIBTE_ACTIVATION_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  NVTE_ACTIVATION_GELU = 0,     /* x * (1/2 + 1/2 tanh(x * (0.79788456 + 0.03567741 x^2))), the tanh form */
  NVTE_ACTIVATION_GELU_ERF = 1, /* x * (1/2 + 1/2 erf(x / sqrt 2)), the exact form */
  NVTE_ACTIVATION_QGELU = 2,    /* x * sigmoid(1.702 x) */
  NVTE_ACTIVATION_RELU = 3,     /* max(0, x) */
  NVTE_ACTIVATION_SRELU = 4,    /* max(0, x)^2 */
  NVTE_ACTIVATION_SILU = 5,     /* x * sigmoid(x) */
  NVTE_ACTIVATION_SIGMOID = 6   /* 1 / (1 + exp(-x)); gated: GLU */
};

/* y = f(x). If y is quantised, codes, scale_inv and amax come from the unrounded f32 value in the same pass; else amax, if
 * asked for, is of the stored value.
 * NVTE_ERR_INVALID_ARGUMENT  shapes disagree; activation unknown
 * Since 0.1. */
typedef struct nvte_activation_forward_args {
  size_t struct_size;
  const nvte_tensor *x; /* in [*, H] f32|f16|bf16 rows; input */
  nvte_tensor *y;       /* out [*, H] x.dtype|f32|f16|bf16|e4m3|e5m2|e4m3fnuz|e5m2fnuz quantized; result, may alias x */
  int32_t activation;   /* = NVTE_ACTIVATION_GELU; NVTE_ACTIVATION_* */
  uint32_t flags;       /* = 0; none yet */
} nvte_activation_forward_args;
NVTE_API nvte_status nvte_activation_forward(const nvte_exec *exec, const nvte_activation_forward_args *args);

/* dx = dy * f'(x);  dbias[j] = sum_i dx[i,j] (of the unrounded f32 value). dx may be quantised.
 * NVTE_ERR_INVALID_ARGUMENT  shapes disagree; activation unknown
 * Since 0.1. */
typedef struct nvte_activation_backward_args {
  size_t struct_size;
  const nvte_tensor *dy; /* in [*, H] f32|f16|bf16 rows; gradient of y */
  const nvte_tensor *x;  /* in [*, H] f32|f16|bf16 rows; forward's input */
  nvte_tensor *dx;       /* out [*, H] x.dtype|f32|f16|bf16|e4m3|e5m2|e4m3fnuz|e5m2fnuz quantized; gradient of x */
  nvte_tensor *dbias;    /* out? [H] f32|f16|bf16; column sums of dx */
  int32_t activation;    /* = NVTE_ACTIVATION_GELU; NVTE_ACTIVATION_* */
  uint32_t flags;        /* = 0; none yet */
} nvte_activation_backward_args;
NVTE_API nvte_status nvte_activation_backward(const nvte_exec *exec, const nvte_activation_backward_args *args);

#define NVTE_GATED_CLAMPED 0x1u /* use limit, alpha and offset (NVTE_ACTIVATION_SILU only) */

/* With a = x[:, :H] (the gate) and b = x[:, H:] (the linear part):  y = f(a) * b.
 * NVTE_GATED_CLAMPED:  a' = min(a, limit);  b' = clamp(b, -limit, limit) + offset;  y = a' * sigmoid(alpha * a') * b'
 * Quantised output and amax as in activation_forward.
 * NVTE_ERR_INVALID_ARGUMENT  shapes disagree; activation unknown; limit < 0; clamped with another activation than SILU
 * Since 0.1. */
typedef struct nvte_gated_activation_forward_args {
  size_t struct_size;
  const nvte_tensor *x; /* in [*, 2*H] f32|f16|bf16 rows; gate, then linear part */
  nvte_tensor *y;       /* out [*, H] x.dtype|f32|f16|bf16|e4m3|e5m2|e4m3fnuz|e5m2fnuz quantized; result */
  int32_t activation;   /* = NVTE_ACTIVATION_SILU; NVTE_ACTIVATION_* */
  uint32_t flags;       /* = 0; NVTE_GATED_* */
  float limit;          /* = 7, >= 0; clamped only */
  float alpha;          /* = 1.702; clamped only */
  float offset;         /* = 1; clamped only */
} nvte_gated_activation_forward_args;
NVTE_API nvte_status nvte_gated_activation_forward(const nvte_exec *exec, const nvte_gated_activation_forward_args *args);

/* dx[:, :H] = dy * f'(a) * b;  dx[:, H:] = dy * f(a). Clamped: 0 where a > limit, respectively |b| > limit.
 * dbias[j] = sum_i dx[i,j]. dx may be quantised.
 * NVTE_ERR_INVALID_ARGUMENT  as forward
 * Since 0.1. */
typedef struct nvte_gated_activation_backward_args {
  size_t struct_size;
  const nvte_tensor *dy; /* in [*, H] f32|f16|bf16 rows; gradient of y */
  const nvte_tensor *x;  /* in [*, 2*H] f32|f16|bf16 rows; forward's input */
  nvte_tensor *dx;       /* out [*, 2*H] x.dtype|f32|f16|bf16|e4m3|e5m2|e4m3fnuz|e5m2fnuz quantized; gradient of x */
  nvte_tensor *dbias;    /* out? [2*H] f32|f16|bf16; column sums of dx */
  int32_t activation;    /* = NVTE_ACTIVATION_SILU; NVTE_ACTIVATION_* */
  uint32_t flags;        /* = 0; NVTE_GATED_* */
  float limit;           /* = 7, >= 0; clamped only */
  float alpha;           /* = 1.702; clamped only */
  float offset;          /* = 1; clamped only */
} nvte_gated_activation_backward_args;
NVTE_API nvte_status nvte_gated_activation_backward(const nvte_exec *exec, const nvte_gated_activation_backward_args *args);

#ifdef __cplusplus
}
#endif
#endif
