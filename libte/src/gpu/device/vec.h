// SPDX-License-Identifier: Apache-2.0
// 16-byte accesses and typed packs of values.
#pragma once
#include "gpu/device/convert.h"

namespace te::device {

// N elements moved as one access (N * sizeof(T) a power of two up to 16).
template <class T, int N> struct alignas(N * sizeof(T)) pack {
  T v[N];
};
template <int N, class T> TE_DEVICE pack<T, N> load(const T *p) { return *reinterpret_cast<const pack<T, N> *>(p); }
template <int N, class T> TE_DEVICE void store(T *p, const pack<T, N> &v) { *reinterpret_cast<pack<T, N> *>(p) = v; }

// N consecutive elements as f32.
template <int N, class T> TE_DEVICE void load_f32(const T *p, float (&x)[N]) {
  constexpr int kBytes = N * (int)sizeof(T), kChunk = kBytes > 16 ? 16 / (int)sizeof(T) : N;
#pragma unroll
  for (int i = 0; i < N; i += kChunk) {
    const auto q = load<kChunk>(p + i);
#pragma unroll
    for (int k = 0; k < kChunk; k++) x[i + k] = to_f32(q.v[k]);
  }
}
template <int N, class T> TE_DEVICE void store_f32(T *p, const float (&x)[N]) {
  if constexpr (sizeof(T) == 1 && N % 4 == 0) {
    constexpr int kWords = N / 4, kChunk = kWords > 4 ? 4 : kWords;
#pragma unroll
    for (int i = 0; i < kWords; i += kChunk) {
      pack<unsigned, kChunk> w;
#pragma unroll
      for (int k = 0; k < kChunk; k++) w.v[k] = pack4<T>(x[4 * (i + k)], x[4 * (i + k) + 1], x[4 * (i + k) + 2], x[4 * (i + k) + 3]);
      store<kChunk>(reinterpret_cast<unsigned *>(p) + i, w);
    }
  } else {
    constexpr int kBytes = N * (int)sizeof(T), kChunk = kBytes > 16 ? 16 / (int)sizeof(T) : N;
#pragma unroll
    for (int i = 0; i < N; i += kChunk) {
      pack<T, kChunk> q;
#pragma unroll
      for (int k = 0; k < kChunk; k++) q.v[k] = from_f32<T>(x[i + k]);
      store<kChunk>(p + i, q);
    }
  }
}

}  // namespace te::device
