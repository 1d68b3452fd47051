// SPDX-License-Identifier: Apache-2.0
// transpose's kernel as it is compiled at run time. TE_BYTES: of an element; TE_WIDE: the tensors suit transpose_tile, of TE_ACROSS x TE_DOWN
// threads; else transpose_square runs.
#include "gpu/device/turn.h"

namespace te::device {
using Element = Unsigned<TE_BYTES>::type;

#if TE_WIDE
using Layout = Tiling<TE_ACROSS, TE_DOWN, (TE_BYTES == 1 ? 8 : 16 / TE_BYTES)>;
extern "C" __global__ void __launch_bounds__(Layout::kThreads) te_transpose(
    const Element *x, Rows rows, Element *y, int64_t m, int64_t k, bool, bool, const float *noop) {
  __shared__ uint4 tile[kTransposeBytes<Element, Layout> / 16];
  await_previous();
  let_next_begin();
  if (noop && *noop == 1.f) return;
  transpose_tile<Element, Layout>(x, rows.stride, y, m, k, (int64_t)blockIdx.y * Layout::kHeight, (int64_t)blockIdx.x * Layout::kWidth, tile);
}
#else
extern "C" __global__ void __launch_bounds__(kSquareThreads) te_transpose(
    const Element *x, Rows rows, Element *y, int64_t m, int64_t k, bool wide_x, bool wide_y, const float *noop) {
  __shared__ Element tile[kSquareElements<Element>];
  await_previous();
  let_next_begin();
  if (noop && *noop == 1.f) return;
  transpose_square(x, rows, y, m, k, (int64_t)blockIdx.y * kSquareSide<Element>, (int64_t)blockIdx.x * kSquareSide<Element>, wide_x, wide_y, tile);
}
#endif
}  // namespace te::device
