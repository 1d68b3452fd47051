// SPDX-License-Identifier: Apache-2.0
// Operators that reduce along rows: how many threads own a row. Up to kHeldColumns a thread keeps its eight numbers of the row in registers
// between the passes, so memory is read once; longer rows are read again in each pass by 1024 threads.
#pragma once
#include "gpu/output.h"

namespace te::gpu {

constexpr int64_t kHeldColumns = 8192;
template <int R, int B, bool H> struct RowShape {
  static constexpr int kThreads = R;  // of a row: a part of a wave, or the whole block
  static constexpr int kBlock = B, kRows = B / R;
  static constexpr bool kHeld = H;
};
// Calls f(RowShape{}) for rows of h numbers.
template <class F> void with_row_shape(int64_t h, F &&f) {
  if (h <= 256) f(RowShape<32, 256, true>{});
  else if (h <= 1024) f(RowShape<128, 128, true>{});
  else if (h <= 2048) f(RowShape<256, 256, true>{});
  else if (h <= 4096) f(RowShape<512, 512, true>{});
  else if (h <= kHeldColumns) f(RowShape<1024, 1024, true>{});
  else f(RowShape<1024, 1024, false>{});
}
inline int64_t row_blocks(int64_t rows, int64_t h) {
  int64_t blocks = 0;
  with_row_shape(h, [&](auto s) { blocks = ceil_div(rows, s.kRows); });
  return blocks > 0 ? blocks : 1;
}
template <class S, class Op> __device__ __forceinline__ float row_reduce(float v, Op op, float identity) {
  if constexpr (S::kThreads == 32) return device::wave_reduce<32>(v, op);
  else return device::block_reduce<S::kBlock>(v, op, identity);
}
// For a row's thread t: f(first column, numbers of it), once where the row is held.
template <class S, class F> __device__ __forceinline__ void each_group(int t, int64_t h, F &&f) {
#pragma unroll 1
  for (int64_t j = (int64_t)t * 8; j < h; j += S::kThreads * 8) f(j, j + 8 <= h ? 8 : (int)(h - j));
}

}  // namespace te::gpu
