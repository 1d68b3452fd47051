// SPDX-License-Identifier: Apache-2.0
// The body of quantize's kernels, compiled into the plug-in (gpu.hip) and at run time (rtc.cpp): a block owns a tile, a thread 8 x 8 numbers of
// it, so eight 16-byte loads (bf16) are in flight and rows leave in 8-byte pieces that fill whole sectors; the transpose turns in shared memory.
#pragma once
#include "gpu/device/quantised.h"
#include "gpu/device/turn.h"

namespace te::device {

// Shared memory of a tile: its codes. A row of column sums a row of pieces, 4 bytes a number, needs half of that.
template <class L> inline constexpr int kQuantizeBytes = kTurnedBytes<L>;

// Where column sums go: part [row tiles, k] to be added up by another launch, or, where one row of tiles is all, out; neither: nowhere.
struct QuantizeSums {
  float *part;
  char *out;
  int dtype;  // of out, core's number
};

// The tile whose first element is (row0, col0); returns the thread's amax. Wide: all is aligned for wide accesses, and a thread's piece lies wholly
// inside or outside. rows(r): offset of row r, of Wide ones r * rows.stride. y, yt: absent, or outputs.
template <class T, class Q, class L, bool Wide, class Rows> TE_DEVICE float quantize_tile(
    const T *__restrict__ x, const Rows &rows, Q *__restrict__ y, Q *__restrict__ yt, int64_t m, int64_t k, float scale, const QuantizeSums &to,
    int64_t row0, int64_t col0, unsigned char *shared) {
  const int cg = (int)threadIdx.x % L::kAcross, rg = (int)threadIdx.x / L::kAcross;
  const int64_t r0 = row0 + rg * 8, c0 = col0 + cg * 8;
  float v[8][8] = {};
  const bool inside = r0 < m && c0 < k;
  if constexpr (Wide) {
    if (inside) {
#pragma unroll
      for (int r = 0; r < 8; r++) load_f32<8>(x + (r0 + r) * rows.stride + c0, v[r]);
    }
  } else {
#pragma unroll
    for (int r = 0; r < 8; r++) {
      const T *line = x + (r0 + r < m ? rows(r0 + r) : 0) + c0;
#pragma unroll
      for (int c = 0; c < 8; c++)
        if (r0 + r < m && c0 + c < k) v[r][c] = to_f32(line[c]);
    }
  }
  const bool adds = to.part || to.out;
  float amax = 0.f;
  float sums[8] = {};
  uint2 codes[8];
#pragma unroll
  for (int r = 0; r < 8; r++) {
    float s[8];
#pragma unroll
    for (int c = 0; c < 8; c++) {
      amax = fmaxf(amax, fabsf(v[r][c]));
      if (adds) sums[c] += v[r][c];
      s[c] = v[r][c] * scale;
    }
    codes[r] = uint2{pack4<Q>(s[0], s[1], s[2], s[3]), pack4<Q>(s[4], s[5], s[6], s[7])};
    if (y) {
      if constexpr (Wide) {
        if (inside) *reinterpret_cast<uint2 *>(reinterpret_cast<unsigned char *>(y) + (r0 + r) * k + c0) = codes[r];
      } else if (r0 + r < m) {
#pragma unroll
        for (int c = 0; c < 8; c++)
          if (c0 + c < k) y[(r0 + r) * k + c0 + c].b = (unsigned char)((c < 4 ? codes[r].x : codes[r].y) >> 8 * (c & 3));
      }
    }
  }
  if (yt)
    turn_bytes<L>(codes, shared, [&](int column, int row, const uint4 &w) {
      if (col0 + column >= k) return;
      unsigned char *out = reinterpret_cast<unsigned char *>(yt) + (col0 + column) * m + row0 + row;
      if constexpr (Wide) {
        if (row0 + row < m) *reinterpret_cast<uint4 *>(out) = w;
      } else {
        const unsigned words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int b = 0; b < 16; b++)
          if (row0 + row + b < m) out[b] = (unsigned char)(words[b / 4] >> 8 * (b % 4));
      }
    });
  if (adds) {  // the threads above one another, in order
    float *s = reinterpret_cast<float *>(shared);
    __syncthreads();
#pragma unroll
    for (int c = 0; c < 8; c++) s[rg * L::kWidth + cg * 8 + c] = sums[c];
    __syncthreads();
    for (int c = (int)threadIdx.x; c < L::kWidth && col0 + c < k; c += L::kThreads) {
      float total = 0.f;
#pragma unroll
      for (int r = 0; r < L::kDown; r++) total += s[r * L::kWidth + c];
      if (to.part) to.part[row0 / L::kHeight * k + col0 + c] = total;
      else if (to.dtype == 0) reinterpret_cast<float *>(to.out)[col0 + c] = total;
      else if (to.dtype == 2) reinterpret_cast<bf16 *>(to.out)[col0 + c] = from_f32<bf16>(total);
      else reinterpret_cast<f16 *>(to.out)[col0 + c] = from_f32<f16>(total);
    }
  }
  return amax;
}

}  // namespace te::device
