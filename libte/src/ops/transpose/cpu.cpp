// SPDX-License-Identifier: Apache-2.0
// Transpose: strips of rows that make whole cache lines of y, in blocks small enough for the TLB.
#include "cpu/writer.h"
#include "libte/quantize.h"

namespace te::cpu::TE_CPU_ISA {

nvte_status transpose(const nvte_exec &, const nvte_transpose_args &a) {
  if (noop_set(a.noop)) return NVTE_OK;
  const DLTensor &x = a.x->data;
  const int64_t M = rows(x), K = columns(x);
  if (M == 0 || K == 0) return NVTE_OK;
  const int bytes = int(element_bytes(x));
  const RowIndex index = row_index(x);
  const char *from = (const char *)address(x);
  char *to = (char *)address(a.y->data);
  const int64_t strip = 64 / bytes, height = 8 * strip, width = 1024, across = (K + width - 1) / width;
  const bool stream = M * K * bytes >= kStreamBytes;
  const bool ok = parallel_for((M + height - 1) / height * across, 2 * M * K * bytes, [&](int64_t c) {
    const int64_t row0 = c / across * height, column = c % across * width;
    const int64_t row1 = M - row0 < height ? M : row0 + height, columns = K - column < width ? K - column : width;
    for (int64_t r = row0; r < row1; r += strip) {
      const char *p[64];
      const int n = int(row1 - r < strip ? row1 - r : strip);
      for (int i = 0; i < strip; i++) p[i] = from + (index(i < n ? r + i : r) + column) * bytes;
      transpose_strip_any(bytes, p, n, columns, to + (column * M + r) * bytes, M * bytes, stream);
    }
    if (stream) _mm_sfence();
  });
  return ok ? NVTE_OK : fail(NVTE_ERR_OUT_OF_MEMORY, "a worker thread failed");
}

}  // namespace te::cpu::TE_CPU_ISA
