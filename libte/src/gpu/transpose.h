// SPDX-License-Identifier: Apache-2.0
// y[k, m] = x[m, k], elements of 1, 2, 4 or 8 bytes. A tile goes through shared memory; both sides move 16 bytes a thread.
#pragma once
#include "gpu/device/rows.h"
#include "gpu/device/turn.h"
#include "gpu/plugin.h"

namespace te::gpu {

// T: an unsigned integer. wide: rows of x and of y allow 16-byte accesses.
template <class T> static __global__ void __launch_bounds__(device::kSquareThreads) transpose_kernel(
    const T *x, device::Rows rows, T *y, int64_t m, int64_t k, int tiles_across, bool wide_x, bool wide_y, const float *noop) {
  __shared__ T tile[device::kSquareElements<T>];
  device::await_previous();
  device::let_next_begin();
  if (noop && *noop == 1.f) return;
  constexpr int kSide = device::kSquareSide<T>;
  device::transpose_square(x, rows, y, m, k, (int64_t)(blockIdx.x / (unsigned)tiles_across) * kSide, (int64_t)(blockIdx.x % (unsigned)tiles_across) * kSide,
                           wide_x, wide_y, tile);
}

// Wide on both sides, rows of one stride.
template <class T> using PieceLayout = device::Tiling<16, 16, sizeof(T) == 1 ? 8 : 16 / (int)sizeof(T)>;
template <class T> static __global__ void __launch_bounds__(PieceLayout<T>::kThreads) transpose_pieces_kernel(
    const T *x, int64_t stride, T *y, int64_t m, int64_t k, int tiles_across, const float *noop) {
  using L = PieceLayout<T>;
  __shared__ uint4 tile[device::kTransposeBytes<T, L> / 16];
  device::await_previous();
  device::let_next_begin();
  if (noop && *noop == 1.f) return;
  device::transpose_tile<T, L>(x, stride, y, m, k, (int64_t)(blockIdx.x / (unsigned)tiles_across) * L::kHeight,
                               (int64_t)(blockIdx.x % (unsigned)tiles_across) * L::kWidth, tile);
}

// Whether rows of x and of y allow 16-byte accesses.
struct WideRows {
  bool x, y;
  WideRows(int64_t bytes, const void *from, const device::Rows &rows, const void *to, int64_t m, int64_t k)
      : x(k * bytes % 16 == 0 && aligned(from, 16) && rows.stride * bytes % 16 == 0), y(m * bytes % 16 == 0 && aligned(to, 16)) {
    for (int i = 0; i < rows.n; i++) x = x && rows.step[i] * bytes % 16 == 0;
  }
};

template <class T> nvte_status transpose_as(const nvte_exec &e, const char *x, const device::Rows &rows, char *y, int64_t m, int64_t k, const float *noop) {
  const WideRows wide(sizeof(T), x, rows, y, m, k);
  const bool pieces = wide.x && wide.y && rows.n == 0;
  const int64_t height = pieces ? PieceLayout<T>::kHeight : device::kSquareSide<T>, width = pieces ? PieceLayout<T>::kWidth : device::kSquareSide<T>;
  const int64_t across = ceil_div(k, width);
  const dim3 grid((unsigned)(across * ceil_div(m, height)));
  const auto *from = reinterpret_cast<const T *>(x);
  auto *to = reinterpret_cast<T *>(y);
  if (pieces) launch_behind(e, transpose_pieces_kernel<T>, grid, PieceLayout<T>::kThreads, from, rows.stride, to, m, k, (int)across, noop);
  else launch_behind(e, transpose_kernel<T>, grid, device::kSquareThreads, from, rows, to, m, k, (int)across, wide.x, wide.y, noop);
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
