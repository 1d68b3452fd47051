// SPDX-License-Identifier: Apache-2.0
// An operand of the product, whichever orientation is in memory: n rows of op(A), or n columns of op(B), by k.
#pragma once
#include "cpu/gemm_kernel.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

struct Operand {
  const char *data;
  DType dtype;
  int64_t n, k;
  bool k_unit;     // k is the contiguous dimension: element (i, k) at index(i) + k; else at index(k) + i
  RowIndex index;
  float scale_inv;
};

// `k_last`: k is the last dimension of the tensor's logical shape. The columnwise part is the physical transpose.
static inline Operand operand(const nvte_tensor &t, bool k_last) {
  const bool transposed = !present(t.data) && present(t.columnwise);
  const DLTensor &d = transposed ? t.columnwise : t.data;
  const DLTensor &s = transposed && present(t.columnwise_scale_inv) ? t.columnwise_scale_inv : t.scale_inv;
  Operand o;
  o.data = present(d) ? address_as<const char>(d) : nullptr;
  o.dtype = dtype_of(d.dtype);
  o.k_unit = k_last != transposed;
  o.n = k_last ? te::rows(t.data) : te::columns(t.data);
  o.k = k_last ? te::columns(t.data) : te::rows(t.data);
  o.index = row_index(d);
  o.scale_inv = t.scaling == NVTE_SCALING_TENSOR && present(s) ? *address_as<const float>(s) : 1.f;
  return o;
}

// Calls f with the storage type; a kernel on pairs never meets f32 or f16.
template <bool kPairs, class F> TE_INLINE void visit_operand(DType t, F &&f) {
  if constexpr (kPairs) {
    if (t == DType::bf16) f(bf16{});
    else visit_fp8(t, f);
  } else {
    visit_any(t, f);
  }
}

// Packs rows [r0, r0 + rows) by k [k0, k0 + k) into consecutive panels of width W.
template <int W, bool kPairs> static void pack(const Operand &o, int64_t r0, int64_t rows, int64_t k0, int64_t k, word *out) {
  // Strided k goes in blocks of a few rows of memory, so that a cache line is read once for the panels that share it.
  constexpr int64_t kBlock = kPairs ? 16 : 8, kPer = kPairs ? 2 : 1;
  const int64_t step = W * words<kPairs>(k);
  visit_operand<kPairs>(o.dtype, [&](auto t) {
    const auto *src = (const decltype(t) *)o.data;
    for (int64_t j = 0; j < k; j += o.k_unit ? k : kBlock) {
      const int64_t left = o.k_unit || k - j < kBlock ? k - j : kBlock;
      word *panel = out + j / kPer * W;
      for (int64_t r = 0; r < rows; r += W, panel += step) {
        const int n = int(rows - r < W ? rows - r : W);
        if (o.k_unit) pack_k_unit<W, kPairs>(src, o.index, r0 + r, n, k0, k, panel);
        else pack_k_strided<W, kPairs>(src, o.index, r0 + r, n, o.n - r0 - r, k0 + j, left, j + left < k, panel);
      }
    }
  });
}

}  // namespace
}  // namespace te::cpu::TE_CPU_ISA
