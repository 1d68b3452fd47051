// SPDX-License-Identifier: Apache-2.0
#include "cpu/writer.h"
#include "libte/quantize.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

constexpr int64_t kAheadBytes = 2048;

template <class T> void magnitudes(const T *x, int64_t n, vf &max) {
  vf m[4] = {max, max, max, max};
  int64_t j = 0;
  for (; j + 64 <= n; j += 64) {
    for (int o = 0; o < 64 * int(sizeof(T)); o += 64) __builtin_prefetch((const char *)(x + j) + kAheadBytes + o);
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) m[q] = amax(m[q], load(x + j + 16 * q));
  }
  for (; j < n; j += 16) m[0] = amax(m[0], load(x + j, int(n - j < 16 ? n - j : 16)));
  max = te::cpu::TE_CPU_ISA::max(te::cpu::TE_CPU_ISA::max(m[0], m[1]), te::cpu::TE_CPU_ISA::max(m[2], m[3]));
}

}  // namespace

nvte_status compute_amax(const nvte_exec &, const nvte_compute_amax_args &a) {
  if (noop_set(a.noop)) return NVTE_OK;
  const DLTensor &x = a.x->data;
  const RowIndex index = row_index(x);
  // a contiguous x is one long row
  const bool flat = is_contiguous(x);
  const int64_t M = flat ? 1 : rows(x), K = flat ? numel(x) : columns(x), bytes = element_bytes(x);
  uint32_t bits = 0;
  bool ok = true;
  if (M != 0 && K != 0) {
    // chunks of about 64 K elements: parts of a row, or several rows
    constexpr int64_t kChunk = 65536;
    const int64_t across = (K + kChunk - 1) / kChunk, together = K < kChunk ? kChunk / K : 1;
    visit_float(dtype_of(x.dtype), [&](auto t) {
      typedef decltype(t) T;
      ok = parallel_for((M + together - 1) / together * across, M * K * bytes, [&](int64_t c) {
        vf max = zero();
        const int64_t row0 = c / across * together, row1 = row0 + together < M ? row0 + together : M, j = c % across * kChunk;
        for (int64_t i = row0; i < row1; i++)
          magnitudes(address_as<const T>(x) + (flat ? 0 : index(i)) + j, K - j < kChunk ? K - j : kChunk, max);
        merge_max(&bits, max);
      });
    });
  }
  if (!ok) return fail(NVTE_ERR_OUT_OF_MEMORY, "a worker thread failed");
  float m, *amax = address_as<float>(a.amax->data);
  memcpy(&m, &bits, 4);
  if (!(a.flags & NVTE_COMPUTE_AMAX_ACCUMULATE) || !(*amax >= m)) *amax = m;
  return NVTE_OK;
}

}  // namespace te::cpu::TE_CPU_ISA
