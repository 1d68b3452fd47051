// SPDX-License-Identifier: Apache-2.0
#include "libte/quantize.h"

#include "cpu/vec.h"

namespace te::cpu::TE_CPU_ISA {

nvte_status dequantize(const nvte_exec &, const nvte_dequantize_args &a) {
  const bool row = present(a.x->data);
  const DLTensor &codes = row ? a.x->data : a.x->columnwise, &inverse = row || !present(a.x->columnwise_scale_inv) ? a.x->scale_inv : a.x->columnwise_scale_inv;
  const vf s = set1(present(inverse) ? *address_as<const float>(inverse) : 1.f);
  const int64_t m = te::rows(a.y->data), k = te::columns(a.y->data), n = m * k, kSpan = 1 << 14;
  bool ok = true;
  visit_fp8(dtype_of(codes.dtype), [&](auto q) {
    visit_float(dtype_of(a.y->data.dtype), [&](auto t) {
      const auto *in = address_as<const decltype(q)>(codes);
      auto *out = address_as<decltype(t)>(a.y->data);
      if (row) {
        ok = parallel_for((n + kSpan - 1) / kSpan, n, [&](int64_t c) {
          const int64_t end = (c + 1) * kSpan < n ? (c + 1) * kSpan : n;
          int64_t i = c * kSpan;
          for (; i + 16 <= end; i += 16) store(out + i, load(in + i) * s);
          if (i < end) store(out + i, load(in + i, int(end - i)) * s, int(end - i));
        });
      } else {
        ok = parallel_for((m + 63) / 64, n, [&](int64_t c) {
          for (int64_t i = 64 * c; i < m && i < 64 * c + 64; i++)
            for (int64_t j = 0; j < k; j++) out[i * k + j] = from_f32<decltype(t)>(to_f32(in[j * m + i]) * s.v[0][0]);
        });
      }
    });
  });
  return ok ? NVTE_OK : fail(NVTE_ERR_INTERNAL, "a worker failed");
}

}  // namespace te::cpu::TE_CPU_ISA
