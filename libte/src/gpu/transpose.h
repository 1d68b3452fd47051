// SPDX-License-Identifier: Apache-2.0
// y[k, m] = x[m, k], elements of 1, 2, 4 or 8 bytes. A tile goes through shared memory; both sides move 16 bytes a thread.
#pragma once
#include "gpu/device/rows.h"
#include "gpu/device/vec.h"
#include "gpu/plugin.h"

namespace te::gpu {

constexpr int kTransposeThreads = 256;

// T: an unsigned integer. wide: rows of x and of y allow 16-byte accesses.
template <class T> static __global__ void __launch_bounds__(kTransposeThreads) transpose_kernel(
    const T *x, device::Rows rows, T *y, int64_t m, int64_t k, int tiles_across, bool wide_x, bool wide_y, const float *noop) {
  constexpr int kSide = sizeof(T) == 8 ? 32 : 64, kGroup = 16 / (int)sizeof(T), kAcross = kSide / kGroup, kStep = kTransposeThreads / kAcross;
  // one more 4-byte word a row (8-byte elements: one element), so that a column's elements lie in different banks
  constexpr int kPitch = kSide + (sizeof(T) >= 4 ? 1 : 4 / (int)sizeof(T));
  __shared__ T tile[kSide * kPitch];
  if (noop && *noop == 1.f) return;
  const int64_t r0 = (int64_t)(blockIdx.x / (unsigned)tiles_across) * kSide, c0 = (int64_t)(blockIdx.x % (unsigned)tiles_across) * kSide;
  const int across = (int)threadIdx.x % kAcross * kGroup, down = (int)threadIdx.x / kAcross;
  for (int i = down; i < kSide; i += kStep) {
    if (r0 + i >= m) break;
    const T *p = x + rows(r0 + i) + c0 + across;
    if (wide_x && c0 + across < k) {
      const auto v = device::load<kGroup>(p);
#pragma unroll
      for (int j = 0; j < kGroup; j++) tile[i * kPitch + across + j] = v.v[j];
    } else {
#pragma unroll
      for (int j = 0; j < kGroup; j++)
        if (c0 + across + j < k) tile[i * kPitch + across + j] = p[j];
    }
  }
  __syncthreads();
  for (int i = down; i < kSide; i += kStep) {
    if (c0 + i >= k) break;
    T *p = y + (c0 + i) * m + r0 + across;
    if (wide_y && r0 + across < m) {
      device::pack<T, kGroup> v;
#pragma unroll
      for (int j = 0; j < kGroup; j++) v.v[j] = tile[(across + j) * kPitch + i];
      device::store<kGroup>(p, v);
    } else {
#pragma unroll
      for (int j = 0; j < kGroup; j++)
        if (r0 + across + j < m) p[j] = tile[(across + j) * kPitch + i];
    }
  }
}

// Elements of two bytes, all groups of eight whole and wide, rows of one stride: a thread takes eight rows of eight, turns them in registers, and
// the tile's pieces change places in shared memory, where the XOR keeps both sides free of bank conflicts.
constexpr int kPieceSide = 128;
static __global__ void __launch_bounds__(kTransposeThreads) transpose_pieces_kernel(
    const unsigned short *x, int64_t stride, unsigned short *y, int64_t m, int64_t k, int tiles_across, const float *noop) {
  constexpr int kPieces = kPieceSide / 8;
  static_assert(kPieces * kPieces == kTransposeThreads, "a piece a thread");
  __shared__ uint4 tile[kPieceSide * kPieces];
  if (noop && *noop == 1.f) return;
  const int64_t r0 = (int64_t)(blockIdx.x / (unsigned)tiles_across) * kPieceSide, c0 = (int64_t)(blockIdx.x % (unsigned)tiles_across) * kPieceSide;
  const int across = (int)threadIdx.x % kPieces, down = (int)threadIdx.x / kPieces;
  if (r0 + down * 8 < m && c0 + across * 8 < k) {
    const unsigned short *p = x + (r0 + down * 8) * stride + c0 + across * 8;
    device::pack<unsigned, 4> in[8];
#pragma unroll
    for (int r = 0; r < 8; r++) in[r] = device::load<4>(reinterpret_cast<const unsigned *>(p + r * stride));
#pragma unroll
    for (int c = 0; c < 8; c++) {
      unsigned w[4];
#pragma unroll
      for (int i = 0; i < 4; i++) w[i] = __byte_perm(in[2 * i].v[c / 2], in[2 * i + 1].v[c / 2], c % 2 ? 0x7632 : 0x5410);
      tile[(across * 8 + c) * kPieces + (down ^ across)] = uint4{w[0], w[1], w[2], w[3]};
    }
  }
  __syncthreads();
  const int64_t row = r0 + across * 8;  // of x: eight of its rows are a piece of y's row
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int column = i * kPieces + down;
    if (row < m && c0 + column < k) *reinterpret_cast<uint4 *>(y + (c0 + column) * m + row) = tile[column * kPieces + (across ^ (column / 8))];
  }
}

template <class T> nvte_status transpose_as(const nvte_exec &e, const char *x, const device::Rows &rows, char *y, int64_t m, int64_t k, const float *noop) {
  constexpr int64_t kSide = sizeof(T) == 8 ? 32 : 64, kGroup = 16 / (int64_t)sizeof(T);
  bool wide_x = k % kGroup == 0 && aligned(x, 16) && rows.stride % kGroup == 0;
  for (int i = 0; i < rows.n; i++) wide_x = wide_x && rows.step[i] % kGroup == 0;
  const bool wide_y = m % kGroup == 0 && aligned(y, 16);
  if constexpr (sizeof(T) == 2) {
    if (wide_x && wide_y && rows.n == 0) {
      const int64_t tiles = ceil_div(k, kPieceSide);
      transpose_pieces_kernel<<<(unsigned)(tiles * ceil_div(m, kPieceSide)), kTransposeThreads, 0, stream_of(e)>>>(
          reinterpret_cast<const unsigned short *>(x), rows.stride, reinterpret_cast<unsigned short *>(y), m, k, (int)tiles, noop);
      return launched("transpose");
    }
  }
  const int64_t across = ceil_div(k, kSide);
  transpose_kernel<T><<<(unsigned)(across * ceil_div(m, kSide)), kTransposeThreads, 0, stream_of(e)>>>(
      reinterpret_cast<const T *>(x), rows, reinterpret_cast<T *>(y), m, k, (int)across, wide_x, wide_y, noop);
  return launched("transpose");
}

// rows counts elements of `bytes` bytes.
inline nvte_status transpose(const nvte_exec &e, int bytes, const char *x, const device::Rows &rows, char *y, int64_t m, int64_t k, const float *noop) {
  switch (bytes) {
    case 1: return transpose_as<unsigned char>(e, x, rows, y, m, k, noop);
    case 2: return transpose_as<unsigned short>(e, x, rows, y, m, k, noop);
    case 4: return transpose_as<unsigned>(e, x, rows, y, m, k, noop);
    default: return transpose_as<unsigned long long>(e, x, rows, y, m, k, noop);
  }
}

}  // namespace te::gpu
