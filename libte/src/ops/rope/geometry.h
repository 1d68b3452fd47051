// SPDX-License-Identifier: Apache-2.0
// What rope's two directions share: the four formats as one index space (batch, token, head, channel), and where positions come
// from. Static over C types, so both op.cpp and the per-ISA kernels may include it.
#pragma once
#include "core/tensor.h"
#include "libte/rope.h"

namespace te {
namespace {

// The tensors of either direction under one set of names.
struct RopeArgs {
  const nvte_tensor *x, *freqs, *start_positions, *positions, *cu_seqlens;
  nvte_tensor *y;
  int32_t format, cp_size, cp_rank;
  bool interleaved, backward;
  const char *x_name, *y_name;
};
inline RopeArgs rope_args(const nvte_rope_forward_args &a) {
  return {a.x, a.freqs, a.start_positions, a.positions, a.cu_seqlens, a.y, a.format, a.cp_size, a.cp_rank,
          (a.flags & NVTE_ROPE_INTERLEAVED) != 0, false, "x", "y"};
}
inline RopeArgs rope_args(const nvte_rope_backward_args &a) {
  return {a.dy, a.freqs, a.start_positions, a.positions, a.cu_seqlens, a.dx, a.format, a.cp_size, a.cp_rank,
          (a.flags & NVTE_ROPE_INTERLEAVED) != 0, true, "dy", "dx"};
}
inline bool given(const nvte_tensor *t) { return t && present(t->data); }

// Sizes and element strides. THD is one batch entry of t tokens, cut into `sequences` by cu_seqlens.
struct RopeShape {
  int64_t b, s, h, d;
  int64_t xb, xs, xh, xd;  // x's strides; y is contiguous in the same order of dimensions
  int64_t yb, ys, yh;
  int64_t positions, d2;   // freqs [positions, d2]
  int64_t sequences;       // THD
};
inline RopeShape rope_shape(const RopeArgs &a) {
  const DLTensor &x = a.x->data, &f = a.freqs->data;
  RopeShape r = {1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  int ib = -1, is = 0, ih = 1, id = 2;  // dimension of each index
  if (a.format == NVTE_FORMAT_SBHD) is = 0, ib = 1, ih = 2, id = 3;
  if (a.format == NVTE_FORMAT_BSHD) ib = 0, is = 1, ih = 2, id = 3;
  if (a.format == NVTE_FORMAT_BHSD) ib = 0, ih = 1, is = 2, id = 3;
  r.s = x.shape[is], r.h = x.shape[ih], r.d = x.shape[id];
  r.xs = stride_of(x, is), r.xh = stride_of(x, ih), r.xd = stride_of(x, id);
  r.yh = r.d, r.ys = r.h * r.d;
  if (ib >= 0) {
    r.b = x.shape[ib];
    r.xb = stride_of(x, ib);
    r.yb = r.s * r.h * r.d;
    if (a.format == NVTE_FORMAT_SBHD) r.yb = r.h * r.d, r.ys = r.b * r.h * r.d;
    if (a.format == NVTE_FORMAT_BHSD) r.yh = r.s * r.d, r.ys = r.d;
  }
  r.positions = f.shape[0];
  r.d2 = f.shape[f.ndim - 1];
  r.sequences = a.format == NVTE_FORMAT_THD && given(a.cu_seqlens) ? numel(a.cu_seqlens->data) - 1 : 0;
  return r;
}

inline int64_t integer_at(const DLTensor &t, int64_t i) {
  return dtype_of(t.dtype) == DType::i32 ? (int64_t)address_as<const int32_t>(t)[i] : address_as<const int64_t>(t)[i];
}

// Position of token s of a sequence of `length` local tokens: itself, or the dual chunks of context parallelism (load balance of
// causal attention: rank r holds chunks r and 2 * size - 1 - r).
inline int64_t rope_local(const RopeArgs &a, int64_t s, int64_t length) {
  if (a.cp_size == 1) return s;
  const int64_t half = length / 2;
  return s < half ? a.cp_rank * half + s : length * a.cp_size - (a.cp_rank + 1) * half + (s - half);
}

// One past the last token of sequence i in this rank's THD tensor; -1 for the start of the first.
inline int64_t rope_end(const RopeArgs &a, int64_t i) { return address_as<const int32_t>(a.cu_seqlens->data)[i + 1] / a.cp_size; }

// Row of freqs for token s of batch entry b; `sequence` is the THD sequence that holds s.
inline int64_t rope_position(const RopeArgs &a, const RopeShape &r, int64_t b, int64_t s, int64_t sequence) {
  const bool ragged = a.format == NVTE_FORMAT_THD;
  if (given(a.positions)) return integer_at(a.positions->data, b * r.s + s);
  const int64_t begin = ragged ? rope_end(a, sequence - 1) : 0, length = ragged ? rope_end(a, sequence) - begin : r.s;
  const int64_t start = given(a.start_positions) ? address_as<const int32_t>(a.start_positions->data)[ragged ? sequence : b] : 0;
  return start + rope_local(a, s - begin, length);
}

}  // namespace
}  // namespace te
