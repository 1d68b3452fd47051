// SPDX-License-Identifier: Apache-2.0
// LayerNorm and RMSNorm on GPUs, forward and backward: one body for both. A row is owned by kRowThreads threads (a wave or more) that keep it
// in registers between the passes, so memory is read once. Rows that do not fit are read again.
#pragma once
#include "gpu/quantized.h"

namespace te::gpu {
using namespace device;

// Threads of one row, chunks of kN elements a thread holds. RowThreads == block size, or a wave with several rows a block.
template <int RowThreads, class Op> __device__ __forceinline__ float row_reduce(float v, Op op) {
  if constexpr (RowThreads <= kWave) return wave_reduce<RowThreads>(v, op);
  else return block_reduce<RowThreads>(v, op, 0.f);
}

// 2^-80: squares and sums of the largest floats stay finite.
constexpr float kShrink = 0x1p-80f;

template <class T, class Q, class G, int RowThreads, int Block, int N, int Chunks, bool Rms> __global__ void __launch_bounds__(Block) norm_forward_kernel(
    const T *__restrict__ x, int64_t ldx, const T *__restrict__ residual, int64_t ldr, const G *__restrict__ gamma, const G *__restrict__ beta,
    Q *__restrict__ y, T *__restrict__ sum_out, float *__restrict__ mu, float *__restrict__ rstd, int64_t rows, int h, float eps, float plus, Quantised q) {
  constexpr int kRows = Block / RowThreads;
  const int t = (int)threadIdx.x % RowThreads;
  const int64_t row = (int64_t)blockIdx.x * kRows + threadIdx.x / RowThreads;
  const bool live = row < rows;
  const float scale = scale_of(q), inverse = 1.f / (float)h;
  float v[Chunks][N];
  float s = 0.f;
#pragma unroll
  for (int c = 0; c < Chunks; c++) {
    const int j = (c * RowThreads + t) * N;
    if (live && j < h) {
      load_f32<N>(x + row * ldx + j, v[c]);
      if (residual) {
        float r[N];
        load_f32<N>(residual + row * ldr + j, r);
#pragma unroll
        for (int i = 0; i < N; i++) v[c][i] = to_f32(from_f32<T>(v[c][i] + r[i]));
        if (sum_out) store_f32<N>(sum_out + row * h + j, v[c]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; i++) v[c][i] = 0.f;
    }
#pragma unroll
    for (int i = 0; i < N; i++) s += Rms ? v[c][i] * v[c][i] : v[c][i];
  }
  float mean = 0.f, r;
  s = row_reduce<RowThreads>(s, Add{});
  if constexpr (!Rms) {
    if (!(fabsf(s) <= 3.4e38f)) {  // the sum overflowed: add shrunk values
      s = 0.f;
#pragma unroll
      for (int c = 0; c < Chunks; c++)
#pragma unroll
        for (int i = 0; i < N; i++) s += v[c][i] * kShrink;
      mean = row_reduce<RowThreads>(s, Add{}) * inverse * (1.f / kShrink);
    } else {
      mean = s * inverse;
    }
    s = 0.f;
#pragma unroll
    for (int c = 0; c < Chunks; c++) {
      const int j = (c * RowThreads + t) * N;
#pragma unroll
      for (int i = 0; i < N; i++) {
        v[c][i] = live && j < h ? v[c][i] - mean : 0.f;
        s += v[c][i] * v[c][i];
      }
    }
    s = row_reduce<RowThreads>(s, Add{});
  }
  if (s <= 3.4e38f) {
    r = 1.f / sqrtf(s * inverse + eps);
  } else {
    s = 0.f;
#pragma unroll
    for (int c = 0; c < Chunks; c++)
#pragma unroll
      for (int i = 0; i < N; i++) s += v[c][i] * kShrink * (v[c][i] * kShrink);
    r = kShrink / sqrtf(row_reduce<RowThreads>(s, Add{}) * inverse + eps * kShrink * kShrink);
  }
  if (live && t == 0) {
    if (rstd) rstd[row] = r;
    if (!Rms && mu) mu[row] = mean;
  }
  float amax = 0.f;
#pragma unroll
  for (int c = 0; c < Chunks; c++) {
    const int j = (c * RowThreads + t) * N;
    if (!live || j >= h) continue;
    float g[N], b[N];
    if (gamma) load_f32<N>(gamma + j, g);
    if (!Rms && beta) load_f32<N>(beta + j, b);
#pragma unroll
    for (int i = 0; i < N; i++) {
      float w = v[c][i] * r * (gamma ? g[i] + plus : 1.f);
      if (!Rms && beta) w += b[i];
      if constexpr (sizeof(Q) == 1) {
        amax = fmaxf(amax, fabsf(w));
        w *= scale;
      } else {
        w = to_f32(from_f32<Q>(w));
        amax = fmaxf(amax, fabsf(w));
      }
      v[c][i] = w;
    }
    store_f32<N>(y + row * h + j, v[c]);
  }
  finish<Block>(q, amax, (int)blockIdx.x, 0);
}

// A block walks rows blockIdx.x, blockIdx.x + gridDim.x, ... and keeps its column sums in registers; part: [gridDim.x * kRows, h].
template <class T, class D, class G, int RowThreads, int Block, int N, int Chunks, bool Rms> __global__ void __launch_bounds__(Block) norm_backward_kernel(
    const D *__restrict__ dy, int64_t ldd, const T *__restrict__ x, int64_t ldx, const G *__restrict__ gamma, const float *__restrict__ mu,
    const float *__restrict__ rstd, const D *__restrict__ add, int64_t lda, T *__restrict__ dx, float *__restrict__ dgamma_part,
    float *__restrict__ dbeta_part, int64_t rows, int h, float plus) {
  constexpr int kRows = Block / RowThreads;
  const int t = (int)threadIdx.x % RowThreads, group = (int)threadIdx.x / RowThreads;
  const float inverse = 1.f / (float)h;
  float dg[Chunks][N], db[Rms ? 1 : Chunks][N], w[Chunks][N];
#pragma unroll
  for (int c = 0; c < Chunks; c++) {
    const int j = (c * RowThreads + t) * N;
#pragma unroll
    for (int i = 0; i < N; i++) {
      dg[c][i] = 0.f;
      w[c][i] = 1.f;
      if constexpr (!Rms) db[c][i] = 0.f;
    }
    if (gamma && j < h) {
      load_f32<N>(gamma + j, w[c]);
#pragma unroll
      for (int i = 0; i < N; i++) w[c][i] += plus;
    }
  }
  const int64_t steps = (rows + (int64_t)gridDim.x * kRows - 1) / ((int64_t)gridDim.x * kRows);
  for (int64_t k = 0; k < steps; k++) {  // every thread takes every step: there are barriers inside
    const int64_t row = (k * gridDim.x + blockIdx.x) * kRows + group;
    const bool live = row < rows;
    const float m = live && !Rms ? mu[row] : 0.f, r = live ? rstd[row] : 0.f;
    float n[Chunks][N], d[Chunks][N], s1 = 0.f, s2 = 0.f;
#pragma unroll
    for (int c = 0; c < Chunks; c++) {
      const int j = (c * RowThreads + t) * N;
      if (live && j < h) {
        load_f32<N>(x + row * ldx + j, n[c]);
        load_f32<N>(dy + row * ldd + j, d[c]);
      } else {
#pragma unroll
        for (int i = 0; i < N; i++) n[c][i] = m, d[c][i] = 0.f;
      }
    }
#pragma unroll
    for (int c = 0; c < Chunks; c++)
#pragma unroll
      for (int i = 0; i < N; i++) {
        n[c][i] = (n[c][i] - m) * r;
        dg[c][i] += d[c][i] * n[c][i];
        if constexpr (!Rms) db[c][i] += d[c][i];
        d[c][i] *= w[c][i];
        s1 += d[c][i] * n[c][i];
        if constexpr (!Rms) s2 += d[c][i];
      }
    s1 = row_reduce<RowThreads>(s1, Add{}) * inverse;
    if constexpr (!Rms) s2 = row_reduce<RowThreads>(s2, Add{}) * inverse;
#pragma unroll
    for (int c = 0; c < Chunks; c++) {
      const int j = (c * RowThreads + t) * N;
      if (!live || j >= h) continue;
      float a[N];
      if (add) load_f32<N>(add + row * lda + j, a);
#pragma unroll
      for (int i = 0; i < N; i++) d[c][i] = r * (d[c][i] - n[c][i] * s1 - s2) + (add ? a[i] : 0.f);
      store_f32<N>(dx + row * h + j, d[c]);
    }
  }
  const int64_t slot = (int64_t)blockIdx.x * kRows + group;
#pragma unroll
  for (int c = 0; c < Chunks; c++) {
    const int j = (c * RowThreads + t) * N;
    if (j >= h) continue;
    if (dgamma_part) store_f32<N>(dgamma_part + slot * h + j, dg[c]);
    if constexpr (!Rms)
      if (dbeta_part) store_f32<N>(dbeta_part + slot * h + j, db[c]);
  }
}

// Calls f with the launch shape for h: constants RowThreads, Block, N, Chunks. vector: rows and pointers allow 8-element accesses.
template <int R, int B, int V, int C> struct NormShape {
  static constexpr int kRowThreads = R, kBlock = B, kN = V, kChunks = C;
};
constexpr int kMaxHidden = 65536;
template <class F> bool with_norm_shape(int64_t h, bool vector, F &&f) {
  if (vector && h <= 512) f(NormShape<kMaxWave, 256, 8, 512 / (kMaxWave * 8)>{});
  else if (vector && h <= 1024) f(NormShape<128, 128, 8, 1>{});
  else if (vector && h <= 2048) f(NormShape<256, 256, 8, 1>{});
  else if (vector && h <= 4096) f(NormShape<512, 512, 8, 1>{});
  else if (vector && h <= 8192) f(NormShape<1024, 1024, 8, 1>{});
  else if (vector && h <= 16384) f(NormShape<1024, 1024, 8, 2>{});
  else if (h <= 256) f(NormShape<kMaxWave, 256, 1, 256 / kMaxWave>{});
  else if (h <= 2048) f(NormShape<256, 256, 1, 8>{});
  else if (h <= 16384) f(NormShape<1024, 1024, 1, 16>{});
  else return false;
  return true;
}

}  // namespace te::gpu
