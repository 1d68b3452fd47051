// SPDX-License-Identifier: Apache-2.0
// A tensor's rows for kernels: host side of offsets.h.
#pragma once
#include "core/tensor.h"
#include "gpu/device/offsets.h"

namespace te::device {

static_assert(kMaxLeading == NVTE_MAX_DIMS, "room for every leading dimension");
inline Rows rows_of(const DLTensor &t) {
  const RowIndex x = row_index(t);
  Rows r = {x.stride, 0, {}, {}};
  if (x.uniform) return r;
  r.n = t.ndim - 1;
  for (int i = 0; i < r.n; i++) r.size[i] = t.shape[i], r.step[i] = stride_of(t, i);
  return r;
}

}  // namespace te::device
