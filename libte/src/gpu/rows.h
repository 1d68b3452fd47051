// SPDX-License-Identifier: Apache-2.0
// Operators that reduce along rows: how many threads own a row. Up to kHeldColumns a thread keeps its numbers of the row, kGroups times eight,
// in registers between the passes, so memory is read once; longer rows are read again in each pass by 1024 threads. Few threads with many
// numbers each: loads are in flight together, several rows share a multiprocessor, and one's barriers are hidden behind another's loads.
#pragma once
#include "gpu/output.h"

namespace te::gpu {

constexpr int64_t kHeldColumns = 8192;
template <int R, int B, int G, bool H = true> struct RowShape {
  static constexpr int kThreads = R;  // of a row: a part of a wave, or the whole block
  static constexpr int kBlock = B, kRows = B / R;
  static constexpr int kGroups = G;
  static constexpr bool kHeld = H;
};
// Calls f(RowShape{}) for rows of h numbers.
template <class F> void with_row_shape(int64_t h, F &&f) {
  if (h <= 256) f(RowShape<32, 256, 1>{});
  else if (h <= 1024) f(RowShape<32, 256, 4>{});
  else if (h <= 2048) f(RowShape<64, 64, 4>{});
  else if (h <= 4096) f(RowShape<128, 128, 4>{});
  else if (h <= kHeldColumns) f(RowShape<256, 256, 4>{});
  else f(RowShape<1024, 1024, 1, false>{});
}
// Of these shapes, the ones that are worth kernels of their own for the usual dtypes.
template <class S, bool Fp8, class F> void with_row_types(bool wide, DType x, DType y, F &&f) {
  if constexpr (S::kGroups > 1) with_types<Fp8>(wide, x, y, f);
  else f(Any{});
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
// a and (Two) b over the row. One barrier: `turn` alternates, so that a wave that is ahead writes where nobody reads.
template <class S, bool Two> __device__ __forceinline__ void row_sums(float &a, float &b, int turn) {
  if constexpr (S::kThreads == 32) {
    a = device::wave_reduce<32>(a, device::Add{});
    if (Two) b = device::wave_reduce<32>(b, device::Add{});
  } else {
    constexpr int kWaves = S::kBlock / device::kWave;
    a = device::wave_reduce(a, device::Add{});
    if (Two) b = device::wave_reduce(b, device::Add{});
    if constexpr (kWaves > 1) {
      __shared__ float2 part[2][S::kBlock / 32];
      if (device::lane() == 0) part[turn][device::wave()] = float2{a, b};
      __syncthreads();
      const float2 all = part[turn][device::lane() % kWaves];
      a = device::wave_reduce<kWaves>(all.x, device::Add{});
      if (Two) b = device::wave_reduce<kWaves>(all.y, device::Add{});
    }
  }
}

// Blocks that a multiprocessor should hold, as the second number of launch bounds: `threads` of them, where registers allow.
template <class S, class K> constexpr int row_blocks_together(int threads) {
  if constexpr (K::known) {
    if (K::x == DType::f32) threads /= 2;
    return device::kMaxWave == 32 && threads > S::kBlock ? threads / S::kBlock : 1;  // AMD has registers to spare, and would spill to keep to this
  }
  return 1;
}
// For a row's thread t: f(group, first column, numbers of it); group is 0 where the row is not held.
template <class S, class F> __device__ __forceinline__ void each_group(int t, int64_t h, F &&f) {
  if constexpr (S::kHeld) {
    const int width = (int)h;
#pragma unroll
    for (int g = 0; g < S::kGroups; g++) {
      const int j = (t + g * S::kThreads) * 8;
      if (j < width) f(g, (int64_t)j, j + 8 <= width ? 8 : width - j);
    }
  } else {
#pragma unroll 1
    for (int64_t j = (int64_t)t * 8; j < h; j += S::kThreads * 8) f(0, j, j + 8 <= h ? 8 : (int)(h - j));
  }
}

}  // namespace te::gpu
