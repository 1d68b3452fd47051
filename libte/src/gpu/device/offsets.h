// SPDX-License-Identifier: Apache-2.0
// Where the rows of a tensor lie, as a kernel parameter.
#pragma once
#include "gpu/device/wave.h"

namespace te::device {

inline constexpr int kMaxLeading = 8;
// Offset of row r of a matrix whose leading dimensions fold (core's RowIndex, by value).
struct Rows {
  int64_t stride;
  int n;  // leading dimensions that do not collapse; 0: `stride` serves
  int64_t size[kMaxLeading], step[kMaxLeading];
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

}  // namespace te::device
