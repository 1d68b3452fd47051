/* SPDX-License-Identifier: Apache-2.0
 * Quantise, dequantise, amax, scales, transpose.
 *
 * Codes are round-to-nearest-even with saturation: finite values beyond the format's maximum become +-maximum, and so does
 * infinity; NaN stays NaN. Maxima: E4M3 448, E5M2 57344, E4M3FNUZ 240, E5M2FNUZ 57344. Zero of the FNUZ formats has no sign. */
#ifndef LIBTE_QUANTIZE_H
#define LIBTE_QUANTIZE_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Casts x to y's dtype, with y's scaling:
 *     data[i,j] = cast(x[i,j] * scale);  scale_inv = 1 / scale;  amax = max |x[i,j]| (NaN ignored)
 *     columnwise[j,i] = data[i,j];       dbias[j] = sum_i x[i,j]
 * The product and the cast are f32; 1 / scale is a correctly rounded division. y may be f32, f16 or bf16 with
 * NVTE_SCALING_NONE (a plain cast; amax may be asked for). Row-wise, column-wise, or both in one pass: an absent part is not
 * written. If noop[0] == 1 nothing is written. Sums are f32 over fixed row blocks.
 * NVTE_ERR_INVALID_ARGUMENT  shapes or dtypes disagree; fp8 output without NVTE_SCALING_TENSOR or scale_inv; neither y.data nor
 *                            y.columnwise given
 * NVTE_ERR_UNSUPPORTED       no implementation; the message lists each refusal
 * Since 0.1. */
typedef struct nvte_quantize_args {
  size_t struct_size;
  const nvte_tensor *x;    /* in [*, K] f32|f16|bf16 rows; the numbers */
  nvte_tensor *y;          /* out [*, K] e4m3|e5m2|e4m3fnuz|e5m2fnuz|f32|f16|bf16 quantized; the codes */
  const nvte_tensor *noop; /* in? [1] f32; 1 = do nothing */
  nvte_tensor *dbias;      /* out? [K] f32|f16|bf16; column sums of x */
} nvte_quantize_args;
NVTE_API nvte_status nvte_quantize(const nvte_exec *exec, const nvte_quantize_args *args);

/* y[i,j] = cast(x[i,j] * scale_inv), the product in f32. Reads x.data, or x.columnwise where data is absent.
 * NVTE_ERR_INVALID_ARGUMENT  shapes disagree; x has no data or no scale_inv
 * Since 0.1. */
typedef struct nvte_dequantize_args {
  size_t struct_size;
  const nvte_tensor *x; /* in [*, K] e4m3|e5m2|e4m3fnuz|e5m2fnuz quantized; the codes */
  nvte_tensor *y;       /* out [*, K] f32|f16|bf16; the numbers */
} nvte_dequantize_args;
NVTE_API nvte_status nvte_dequantize(const nvte_exec *exec, const nvte_dequantize_args *args);

#define NVTE_COMPUTE_AMAX_ACCUMULATE 0x1u /* amax = max(amax, new) */

/* amax[0] = max |x| (NaN ignored, 0 for an empty x). If noop[0] == 1 nothing is written. Since 0.1. */
typedef struct nvte_compute_amax_args {
  size_t struct_size;
  const nvte_tensor *x;    /* in [*, K] f32|f16|bf16 rows; the numbers */
  const nvte_tensor *noop; /* in? [1] f32; 1 = do nothing */
  nvte_tensor *amax;       /* out [1] f32; the largest magnitude */
  uint32_t flags;          /* = 0; NVTE_COMPUTE_AMAX_* */
} nvte_compute_amax_args;
NVTE_API nvte_status nvte_compute_amax(const nvte_exec *exec, const nvte_compute_amax_args *args);

#define NVTE_COMPUTE_SCALE_POW2 0x1u /* round scale down to a power of two */

/* Current scaling, elementwise over n amaxes:
 *     a = max(amax, epsilon);  scale = 1 if a is 0, inf or NaN, else min(dtype_max / a, FLT_MAX) (correctly rounded)
 *     scale_inv = 1 / scale
 * NVTE_ERR_INVALID_ARGUMENT  dtype is not an fp8 type; epsilon < 0
 * Since 0.1. */
typedef struct nvte_compute_scale_args {
  size_t struct_size;
  const nvte_tensor *amax; /* in [n] f32; largest magnitudes */
  nvte_tensor *scale;      /* out [n] f32; multipliers for quantising */
  nvte_tensor *scale_inv;  /* out? [n] f32; their reciprocals */
  DLDataType dtype;        /* the format that will be written */
  float epsilon;           /* = 0, >= 0; lower bound of amax */
  uint32_t flags;          /* = 0; NVTE_COMPUTE_SCALE_* */
} nvte_compute_scale_args;
NVTE_API nvte_status nvte_compute_scale(const nvte_exec *exec, const nvte_compute_scale_args *args);

enum { NVTE_AMAX_MAX = 0, NVTE_AMAX_MOST_RECENT = 1 };

/* Delayed scaling, many tensors in one call. For each list entry and each of its k columns:
 *     last = amax given and non-zero ? amax : history[0]
 *     last == 0: history and scale are copied unchanged (the tensor was not used this step)
 *     else: new_history[i] = history[i+1] for i < len-1, new_history[len-1] = last, then new_history[0] = 0
 *           a = algorithm MAX: max(last, history[1..]); MOST_RECENT: last
 *           new_scale = finite(a) && a > 0 ? min(dtype_max * 2^-margin / a, FLT_MAX) : scale
 * amax, if given, holds one value a column, entries one after another.
 * NVTE_ERR_INVALID_ARGUMENT  list shapes disagree; algorithm unknown; dtype is not an fp8 type
 * Since 0.1. */
typedef struct nvte_amax_and_scale_update_args {
  size_t struct_size;
  const nvte_tensor *const *history; /* in list(n) [len, k] f32; row 0 is the current amax */
  const nvte_tensor *const *scale;   /* in list(n) [k] f32; the scales in use */
  nvte_tensor *const *new_history;   /* out list(n) [len, k] f32; may alias history */
  nvte_tensor *const *new_scale;     /* out list(n) [k] f32; may alias scale */
  size_t n;                          /* = 0; entries of each list */
  const nvte_tensor *amax;           /* in? [total] f32; amaxes reduced over processes, sum of k values */
  DLDataType dtype;                  /* the format whose maximum the scales aim at */
  int32_t margin;                    /* = 0; scale is divided by 2^margin */
  int32_t algorithm;                 /* = NVTE_AMAX_MAX; NVTE_AMAX_* */
} nvte_amax_and_scale_update_args;
NVTE_API nvte_status nvte_amax_and_scale_update(const nvte_exec *exec, const nvte_amax_and_scale_update_args *args);

/* y[j,i] = x[i,j] for x seen as [M, K], M the product of the leading dimensions; an exact copy of 1-, 2-, 4- or 8-byte
 * elements. If noop[0] == 1 nothing is written.
 * NVTE_ERR_INVALID_ARGUMENT  dtypes or shapes disagree
 * Since 0.1. */
typedef struct nvte_transpose_args {
  size_t struct_size;
  const nvte_tensor *x;    /* in [*, K] any rows; the matrix */
  nvte_tensor *y;          /* out [K, prod(*)] x.dtype; its transpose */
  const nvte_tensor *noop; /* in? [1] f32; 1 = do nothing */
} nvte_transpose_args;
NVTE_API nvte_status nvte_transpose(const nvte_exec *exec, const nvte_transpose_args *args);

#ifdef __cplusplus
}
#endif
#endif
