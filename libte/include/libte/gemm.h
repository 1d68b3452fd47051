/* SPDX-License-Identifier: Apache-2.0
 * Matrix multiplication with epilogues. */
#ifndef LIBTE_GEMM_H
#define LIBTE_GEMM_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NVTE_GEMM_TRANS_A 0x1u           /* op(A) = A^T: a is [K, M] */
#define NVTE_GEMM_TRANS_B 0x2u           /* op(B) = B^T: b is [N, K] */
#define NVTE_GEMM_GELU 0x4u              /* d = gelu(.), tanh form; aux receives the value before it */
#define NVTE_GEMM_DGELU 0x8u             /* d = (.) * gelu'(aux) */
#define NVTE_GEMM_SPLIT_ACCUMULATOR 0x10u /* fp8: accurate accumulation; a hint where accumulation is always f32 */

/* Row-major D[M, N]:
 *     v = alpha * op(A)[M, K] op(B)[K, N] * scale_inv_a * scale_inv_b + beta * C;   v += bias[n];
 *     GELU: aux = v, v = gelu(v);  DGELU: v = v * gelu'(aux);   D = v (quantised per d->scaling, amax of v before rounding)
 * Products accumulate in f32. C is not read when beta == 0; c absent means C = D. op() is given by shapes as described by
 * flags: a is [*, K] (leading dimensions fold into M) or, transposed, [*, M] (they fold into K); b is [K..., N] or [N, K].
 * Physical transposes in a->columnwise / b->columnwise serve when data is absent. fp8 types mix freely except E5M2 x E5M2;
 * other types must be equal. K == 0: D = beta * C (+ bias ...).
 * dbias (out): without DGELU, dbias[m] = sum_k op(A)[m, k] * scale_inv_a  (the bias gradient of a weight-gradient GEMM);
 *              with DGELU, dbias[n] = sum_m v[m, n].
 * bias and aux of zero elements count as absent. With GELU, or
 * with d->columnwise, d may not alias aux; with the latter nor c. On a CPU with AVX512_BF16, bf16 products take subnormal operands and subnormal partial
 * sums as 0, and fp8 products subnormal partial sums; everything else keeps subnormals.
 * NVTE_ERR_INVALID_ARGUMENT  shapes or dtypes disagree; GELU with DGELU; DGELU without aux; aux without either; E5M2 x E5M2; an
 *                            output shares memory with another argument
 * NVTE_ERR_UNSUPPORTED       no implementation; the message lists each refusal
 * Since 0.1. */
typedef struct nvte_gemm_args {
  size_t struct_size;
  const nvte_tensor *a;    /* in [...] f32|f16|bf16|e4m3|e5m2|e4m3fnuz|e5m2fnuz quantized rows; left operand */
  const nvte_tensor *b;    /* in [...] f32|f16|bf16|e4m3|e5m2|e4m3fnuz|e5m2fnuz quantized rows; right operand */
  const nvte_tensor *c;    /* in? [...] f32|f16|bf16 rows; addend, D's shape */
  nvte_tensor *d;          /* out [...] f32|f16|bf16|e4m3|e5m2|e4m3fnuz|e5m2fnuz quantized rows; result, may alias c or aux */
  const nvte_tensor *bias; /* in? [...] f32|f16|bf16; [N] */
  nvte_tensor *aux;        /* inout? [...] f32|f16|bf16 rows; [M, N], before GELU */
  nvte_tensor *dbias;      /* out? [...] f32|f16|bf16; [M], with DGELU [N] */
  float alpha;             /* = 1; multiplies the product */
  float beta;              /* = 0; multiplies C */
  uint32_t flags;          /* = 0; NVTE_GEMM_* */
} nvte_gemm_args;
NVTE_API nvte_status nvte_gemm(const nvte_exec *exec, const nvte_gemm_args *args);

#ifdef __cplusplus
}
#endif
#endif
