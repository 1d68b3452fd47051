// SPDX-License-Identifier: Apache-2.0
// Where the rows of a tensor lie, as a kernel parameter.
#pragma once
#include "core/tensor.h"
#include "gpu/device/wave.h"

namespace te::device {

// Offset of row r of a matrix whose leading dimensions fold (core's RowIndex, by value).
struct Rows {
  int64_t stride;
  int n;  // leading dimensions that do not collapse; 0: `stride` serves
  int64_t size[NVTE_MAX_DIMS], step[NVTE_MAX_DIMS];
  TE_DEVICE int64_t operator()(int64_t r) const {
    if (n == 0) return r * stride;
    int64_t at = 0;
    per_lane(r);
#pragma unroll 1
    for (int i = n - 1; i >= 0; i--) {
      at += r % size[i] * step[i];
      r /= size[i];
    }
    return at;
  }
};
inline Rows rows_of(const DLTensor &t) {
  const RowIndex x = row_index(t);
  Rows r = {x.stride, 0, {}, {}};
  if (x.uniform) return r;
  r.n = t.ndim - 1;
  for (int i = 0; i < r.n; i++) r.size[i] = t.shape[i], r.step[i] = stride_of(t, i);
  return r;
}

}  // namespace te::device
