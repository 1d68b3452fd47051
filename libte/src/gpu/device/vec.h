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
// Into global memory. nvcc makes several 4-byte accesses of the assignment.
template <int N, class T> TE_DEVICE void store(T *p, const pack<T, N> &v) {
#if !defined(TE_VENDOR_HIP)
  if constexpr (sizeof v == 16) {
    unsigned w[4];
    memcpy(w, &v, 16);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
    return;
  } else if constexpr (sizeof v == 8) {
    unsigned w[2];
    memcpy(w, &v, 8);
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(p)), "r"(w[0]), "r"(w[1]) : "memory");
    return;
  }
#endif
  *reinterpret_cast<pack<T, N> *>(p) = v;
}

// N consecutive elements as f32.
template <int N, class T> TE_DEVICE void load_f32(const T *p, float (&x)[N]) {
  if constexpr (sizeof(T) == 1 && N % 4 == 0) {
    const auto w = load<N / 4>(reinterpret_cast<const unsigned *>(p));
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      float v[4];
      unpack4<T>(w.v[i / 4], v);
      x[i] = v[0], x[i + 1] = v[1], x[i + 2] = v[2], x[i + 3] = v[3];
    }
    return;
  }
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
  } else if constexpr (sizeof(T) == 2 && N == 8) {
    store<4>(reinterpret_cast<unsigned *>(p), pack<unsigned, 4>{{pack2<T>(x[0], x[1]), pack2<T>(x[2], x[3]), pack2<T>(x[4], x[5]), pack2<T>(x[6], x[7])}});
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
