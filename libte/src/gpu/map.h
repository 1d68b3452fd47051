// SPDX-License-Identifier: Apache-2.0
// Elementwise operators over rows: a block owns kMapRows rows of 32 x 8 columns at a time (more where column sums are asked for), eight
// neighbouring numbers a thread. F gives the numbers; the rest, dtypes, amax, scales and sums, is here.
#pragma once
#include "gpu/output.h"

namespace te::gpu {

constexpr int kMapThreads = 256, kMapColumns = 256, kMapHeight = 8, kMapRows = 32, kSumRows = 128;

// Rows whose loads are in flight together: 64 to 96 bytes a thread.
template <class K> constexpr int rows_ahead(int inputs) {
  if constexpr (K::known) return device::kUnrollRows == 1 ? 1 : inputs == 1 && K::x != DType::f32 ? 4 : inputs == 3 && K::x == DType::f32 ? 1 : 2;
  else return 1;
}
// F: static constexpr int kInputs, kOutputs (1, or 2: y is two maps of k columns side by side);
//    kSums: column sums may be asked for;
//    load(row, column, n, Eight<K> (&)[kInputs]), what it reads;
//    visit(f), which calls f(what) of a choice that a grid takes alike; apply(what, const float (&)[kInputs][8], float (&)[kOutputs][8]).
// part: [row blocks, kOutputs * k] column sums of the unrounded numbers, or absent.
template <class K, class F> static __global__ void __launch_bounds__(kMapThreads, F::kOutputs == 1 ? 4 : 3) map_kernel(
    F all, Target y, int64_t m, int64_t k, int across, int rows_a_block, float *part) {
  const int64_t block_row = blockIdx.x / (unsigned)across, column = (int64_t)(blockIdx.x % (unsigned)across) * kMapColumns + threadIdx.x % 32 * 8;
  constexpr int kOutputs = F::kOutputs;
  const int down = (int)threadIdx.x / 32;
  const int64_t begin = block_row * rows_a_block, end = begin + rows_a_block < m ? begin + rows_a_block : m;
  const int n = column + 8 <= k ? 8 : (int)(k - column);
  const float scale = scale_of(y.q);
  float amax = 0.f, sums[kOutputs][8] = {};
  if (n > 0) {
    constexpr int kAhead = rows_ahead<K>(F::kInputs);
#pragma unroll 1
    for (int64_t first = begin + down; first < end; first += kMapHeight * kAhead) {
      const F &f = device::again_if<!K::known>(all);
      Eight<K> in[kAhead][F::kInputs];
#pragma unroll
      for (int u = 0; u < kAhead; u++)
        if (first + u * kMapHeight < end) f.load(first + u * kMapHeight, column, n, in[u]);
      const auto put = [&](int64_t row, float (&v)[kOutputs][8]) {
#pragma unroll
        for (int o = 0; o < kOutputs; o++) {
          if (F::kSums && part) {
#pragma unroll
            for (int i = 0; i < 8; i++) sums[o][i] += v[o][i];
          }
          put8_as<K>(y, (row * kOutputs + o) * k + column, n, scale, v[o], amax);
        }
      };
      float v[kOutputs][8];
      f.visit([&](auto what) {
#pragma unroll
        for (int u = 0; u < kAhead; u++) {
          float x[F::kInputs][8];
#pragma unroll
          for (int i = 0; i < F::kInputs; i++) in[u][i].floats(x[i]);
          f.apply(what, x, v);
          if (K::known && first + u * kMapHeight < end) put(first + u * kMapHeight, v);
        }
      });
      if (!K::known) put(first, v);
    }
  }
  if (F::kSums && part && begin < m) {  // the kMapHeight threads above one another, in order
    __shared__ float s[kMapHeight][kMapColumns];
    const int64_t c = (int64_t)(blockIdx.x % (unsigned)across) * kMapColumns + threadIdx.x;
#pragma unroll
    for (int o = 0; o < kOutputs; o++) {
      if (o) __syncthreads();
#pragma unroll
      for (int i = 0; i < 8; i++) s[down][threadIdx.x % 32 * 8 + i] = sums[o][i];
      __syncthreads();
      float total = 0.f;
#pragma unroll
      for (int i = 0; i < kMapHeight; i++) total += s[i][threadIdx.x];
      if (c < k) part[(block_row * kOutputs + o) * k + c] = total;
    }
  }
  finish<kMapThreads>(y.q, amax, (int)blockIdx.x);
}

// The launch of a map over y [m, k]: flat tensors are cut into rows of a better length.
struct MapShape {
  int64_t m, k;
  int across, rows_a_block;
  int64_t blocks;
  MapShape(int64_t m_, int64_t k_, bool flat, bool sums) : m(m_), k(k_) {
    if (flat && !sums && m * k > 0)
      for (int64_t row = kMapColumns; row >= 8; row /= 2)  // short rows: a block's numbers lie side by side
        if (m * k % row == 0) {
          m = m * k / row, k = row;
          break;
        }
    rows_a_block = sums ? kSumRows : kMapRows;
    across = (int)(k > 0 ? ceil_div(k, kMapColumns) : 1);
    const int64_t down = ceil_div(m, rows_a_block);
    blocks = across * (down > 0 ? down : 1);  // an empty tensor still has an amax, a scale_inv and sums
  }
  int64_t row_blocks() const { return m > 0 ? ceil_div(m, rows_a_block) : 0; }
};

// What such a call needs of its workspace, and its run.
struct MapCall {
  MapShape shape;
  Output y;
  float *part;
  const nvte_tensor *sums;
  int outputs;
  MapCall(const nvte_tensor &out, const nvte_tensor *sums_, bool flat, Space &space, int outputs_ = 1)
      : shape(te::rows(out.data), te::columns(out.data) / outputs_, flat, sums_ && present(sums_->data)), y(out, shape.blocks, space), part(nullptr),
        sums(sums_ && present(sums_->data) ? sums_ : nullptr), outputs(outputs_) {
    if (sums) part = space.take<float>(shape.row_blocks() * shape.k * outputs);
    if (shape.k % 8) y.target.wide = false;
    if (shape.k % 8 == 0 && y.k % 8) y.target.wide = aligned(y.target.base, 16);
  }
  template <class F> nvte_status run(const nvte_exec &e, const F &f) {
    if (const nvte_status s = y.begin(e)) return s;
    with_types<true>(y.target.wide && f.knowable(), f.dtype(), y.target.dtype, [&](auto known) {
      map_kernel<decltype(known)><<<(unsigned)shape.blocks, kMapThreads, 0, stream_of(e)>>>(f, y.target, shape.m, shape.k, shape.across, shape.rows_a_block,
                                                                                         part);
    });
    if (const nvte_status s = y.finish(e)) return s;
    return sums ? sum_columns(e, part, shape.row_blocks(), shape.k * outputs, sums->data) : NVTE_OK;
  }
};
// x as the map sees it: contiguous tensors of y's element count take the map's row length.
inline Input map_input(const nvte_tensor *t, const MapShape &s, int64_t columns) {
  Input i = input_of(t, columns);
  if (columns == s.k || !i.base) return i;
  i.rows = {s.k, 0, {}, {}};
  i.wide = wide_rows(i.base, i.dtype, s.k, i.rows);
  return i;
}

}  // namespace te::gpu
