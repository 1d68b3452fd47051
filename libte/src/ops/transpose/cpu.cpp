// SPDX-License-Identifier: Apache-2.0
#include "libte/quantize.h"

#include "cpu/vec.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

template <class T> bool run(const nvte_transpose_args &a) {
  const int64_t m = te::rows(a.x->data), k = te::columns(a.x->data), tiles = (k + 63) / 64;
  const RowIndex index = row_index(a.x->data);
  const auto *x = address_as<const T>(a.x->data);
  auto *y = address_as<T>(a.y->data);
  return parallel_for((m + 63) / 64 * tiles, m * k, [&](int64_t c) {
    const int64_t i0 = c / tiles * 64, j0 = c % tiles * 64, i1 = i0 + 64 < m ? i0 + 64 : m, j1 = j0 + 64 < k ? j0 + 64 : k;
    for (int64_t j = j0; j < j1; j++)
      for (int64_t i = i0; i < i1; i++) y[j * m + i] = x[index(i) + j];
  });
}

}  // namespace

nvte_status transpose(const nvte_exec &, const nvte_transpose_args &a) {
  if (noop_set(a.noop)) return NVTE_OK;
  bool ok = false;
  switch (element_bytes(a.x->data)) {
    case 1: ok = run<uint8_t>(a); break;
    case 2: ok = run<uint16_t>(a); break;
    case 4: ok = run<uint32_t>(a); break;
    case 8: ok = run<uint64_t>(a); break;
    default: return fail(NVTE_ERR_INVALID_ARGUMENT, "x must have elements of 1, 2, 4 or 8 bytes, got %lld", (long long)element_bytes(a.x->data));
  }
  return ok ? NVTE_OK : fail(NVTE_ERR_INTERNAL, "a worker failed");
}

}  // namespace te::cpu::TE_CPU_ISA
