// SPDX-License-Identifier: Apache-2.0
// The matrix product on the CPU. Levels base, avx2 and avx512 convert every dtype to f32 while packing; avx512bf16 multiplies
// bf16 and fp8 (every fp8 value is a bf16) in pairs by vdpbf16ps, which takes subnormal bf16 operands and subnormal f32 sums as
// 0. The other levels keep subnormals. NVTE_GEMM_SPLIT_ACCUMULATOR changes nothing here: sums are always f32.
#include "ops/gemm/blocked.h"
#include "ops/gemm/skinny.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

// sums[m] = scale_inv * sum over k of op(A)[m, k]: blocks of 128 k, their sums added in order.
bool row_sums(const Operand &a, const nvte_tensor &out) {
  constexpr int64_t kRows = 64, kBlock = 128;
  return parallel_for(ceil_div(a.n, kRows), a.n * a.k, [&](int64_t chunk) {
    const int64_t m0 = chunk * kRows, rows = a.n - m0 < kRows ? a.n - m0 : kRows;
    alignas(64) float total[kRows] = {};
    visit_any(a.dtype, [&](auto t) {
      const auto *src = (const decltype(t) *)a.data;
      for (int64_t k0 = 0; k0 < a.k; k0 += kBlock) {
        const int64_t k1 = k0 + kBlock < a.k ? k0 + kBlock : a.k;
        if (a.k_unit) {
          for (int64_t i = 0; i < rows; i++) {
            vf s = zero();
            for (int64_t k = k0; k < k1; k += 16) s = s + load(src + a.index(m0 + i) + k, lanes(k1 - k));
            total[i] += reduce_add(s);
          }
        } else {
          for (int64_t i = 0; i < rows; i += 16) {
            vf s = zero();
            for (int64_t k = k0; k < k1; k++) s = s + load(src + a.index(k) + m0 + i, lanes(rows - i));
            store(total + i, load(total + i) + s);
          }
        }
      }
    });
    visit_float(dtype_of(out.data.dtype), [&](auto t) {
      auto *p = address_as<decltype(t)>(out.data) + m0;
      for (int64_t i = 0; i < rows; i += 16) store(p + i, load(total + i) * set1(a.scale_inv), lanes(rows - i));
    });
  });
}

bool product(const Operand &a, const Operand &b, Epilogue &e) {
  if (a.n <= kSkinny || b.n <= kSkinny) return skinny(a, b, e);
  if constexpr (kHasPairs)
    if (a.dtype != DType::f32 && a.dtype != DType::f16) return blocked<true>(a, b, e);
  return blocked<false>(a, b, e);
}

}  // namespace

nvte_status gemm(const nvte_exec &, const nvte_gemm_args &args) {
  const Operand a = operand(*args.a, !(args.flags & NVTE_GEMM_TRANS_A)), b = operand(*args.b, args.flags & NVTE_GEMM_TRANS_B);
  Epilogue e(args, double(args.alpha) * a.scale_inv * b.scale_inv);
  bool ok = true;
  if (e.dbias && !e.dgelu) ok = row_sums(a, *e.dbias);
  if (ok && a.n && b.n) ok = product(a, b, e);
  if (!ok)
    return fail(NVTE_ERR_OUT_OF_MEMORY, "no scratch memory for M = %lld, N = %lld, K = %lld", (long long)a.n, (long long)b.n,
                (long long)a.k);
  return e.finish();
}

}  // namespace te::cpu::TE_CPU_ISA
