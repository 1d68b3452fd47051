/* SPDX-License-Identifier: Apache-2.0
 * Rotary position embedding. */
#ifndef LIBTE_ROPE_H
#define LIBTE_ROPE_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  NVTE_FORMAT_SBHD = 0,
  NVTE_FORMAT_BSHD = 1,
  NVTE_FORMAT_THD = 2, /* ragged: t tokens of all sequences, cut by cu_seqlens */
  NVTE_FORMAT_BHSD = 3
};

#define NVTE_ROPE_INTERLEAVED 0x1u /* pairs (2j, 2j+1) instead of (j, j + d2/2) */

/* Rotates the first d2 (even, <= d) channels of x by the angles f = freqs[position]; the rest pass through bit for bit:
 *     y = x * cos(f) + rot(x) * sin(f)
 *     rot(x)[i] = -x[i + d2/2] for i < d2/2, x[i - d2/2] for d2/2 <= i < d2       (interleaved: -x[2j+1], x[2j])
 * Position of token s of sequence b: positions[b, s] if given; else start_positions[b] + s. THD: s counts from the start of its
 * sequence, cu_seqlens [b+1] i32, tokens past cu_seqlens[b] are written 0. cp_size > 1 (dual-chunk context parallel): local
 * sequences of even length L; the first half starts at cp_rank*L/2, the second at L*cp_size - (cp_rank+1)*L/2; THD cu_seqlens
 * are global and divided by cp_size.
 * Maths in f32, rounded once; y is contiguous in x's shape.
 * NVTE_ERR_INVALID_ARGUMENT  shapes disagree; d2 odd or > d; THD without cu_seqlens; a position outside freqs; cp rules broken
 * Since 0.1. */
typedef struct nvte_rope_forward_args {
  size_t struct_size;
  const nvte_tensor *x;               /* in [...] f32|f16|bf16 strided; [s,b,h,d], [b,s,h,d], [t,h,d] or [b,h,s,d] by format */
  const nvte_tensor *freqs;           /* in [...] f32; angles in radians, row = position: [P, d2] or [P, 1, 1, d2] */
  const nvte_tensor *start_positions; /* in? [b] i32; added to the position */
  const nvte_tensor *positions;       /* in? [...] i32|i64; [b, s] or THD [t]: the position of each token */
  const nvte_tensor *cu_seqlens;      /* in? [bp1] i32; THD only */
  nvte_tensor *y;                     /* out [...] x.dtype; x's shape */
  int32_t format;                     /* = NVTE_FORMAT_SBHD; NVTE_FORMAT_* */
  uint32_t flags;                     /* = 0; NVTE_ROPE_* */
  int32_t cp_size;                    /* = 1, >= 1; context-parallel size */
  int32_t cp_rank;                    /* = 0, >= 0; context-parallel rank */
} nvte_rope_forward_args;
NVTE_API nvte_status nvte_rope_forward(const nvte_exec *exec, const nvte_rope_forward_args *args);

/* The transposed rotation with the same angles: dx[i] = dy[i] cos f[i] + dy[i+d2/2] sin f[i+d2/2] for i < d2/2, and
 * dy[i] cos f[i] - dy[i-d2/2] sin f[i-d2/2] for the other half (interleaved: pairs alike).
 * NVTE_ERR_INVALID_ARGUMENT  as forward
 * Since 0.1. */
typedef struct nvte_rope_backward_args {
  size_t struct_size;
  const nvte_tensor *dy;              /* in [...] f32|f16|bf16 strided; gradient of y */
  const nvte_tensor *freqs;           /* in [...] f32; as forward */
  const nvte_tensor *start_positions; /* in? [b] i32; as forward */
  const nvte_tensor *positions;       /* in? [...] i32|i64; as forward */
  const nvte_tensor *cu_seqlens;      /* in? [bp1] i32; THD only */
  nvte_tensor *dx;                    /* out [...] dy.dtype; dy's shape */
  int32_t format;                     /* = NVTE_FORMAT_SBHD; NVTE_FORMAT_* */
  uint32_t flags;                     /* = 0; NVTE_ROPE_* */
  int32_t cp_size;                    /* = 1, >= 1; context-parallel size */
  int32_t cp_rank;                    /* = 0, >= 0; context-parallel rank */
} nvte_rope_backward_args;
NVTE_API nvte_status nvte_rope_backward(const nvte_exec *exec, const nvte_rope_backward_args *args);

#ifdef __cplusplus
}
#endif
#endif
