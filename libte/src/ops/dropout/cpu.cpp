// SPDX-License-Identifier: Apache-2.0
#include "cpu/philox.h"
#include "libte/dropout.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

constexpr int64_t kChunk = 1 << 16;  // elements a task; a multiple of the 64 that one group of 16 draws decides

// Bit i = lane i of the mask.
TE_INLINE uint32_t lane_bits(vi mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)mask.v[0]);
#elif defined(__AVX2__)
  return _mm256_movemask_ps((__m256)mask.v[0]) | _mm256_movemask_ps((__m256)mask.v[1]) << 8;
#else
  return _mm_movemask_ps((__m128)mask.v[0]) | _mm_movemask_ps((__m128)mask.v[1]) << 4 | _mm_movemask_ps((__m128)mask.v[2]) << 8 |
         _mm_movemask_ps((__m128)mask.v[3]) << 12;
#endif
}
// The inverse: lanes are -1 where the bit is set.
TE_INLINE vi bits_to_lanes(uint32_t bits) {
  alignas(64) static const int32_t weight[16] = {1,      1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
                                                 1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
  vi w;
  memcpy(&w, weight, 64);
  return (set1i((int32_t)bits) & w) == w;
}

// x / (1 - p) where kept, else +0 (whatever x is).
TE_INLINE vf drop(vf x, vi keep, vf q) { return floats(bits(x / q) & keep); }

struct Forward {
  philox_key key;
  uint64_t offset, threshold;
  float q;
  uint8_t *mask;
  int64_t n;

  template <class T> TE_INLINE void chunk(const T *x, T *y, int64_t begin) const {
    const int64_t end = begin + kChunk < n ? begin + kChunk : n;
    const vf q16 = set1(q);
    for (int64_t i = begin; i < end; i += 64) {
      vi word[4], keep[4];
      if (threshold == 0 || threshold >> 32) {
        for (int j = 0; j < 4; j++) keep[j] = set1i(threshold ? 0 : -1);
      } else {
        const uint64_t low = offset + (uint64_t)(i / 4);
        philox64(key, low, low < offset, word);
        for (int j = 0; j < 4; j++) keep[j] = philox_keep(word[j], threshold);
      }
      if (end - i >= 64) {
        for (int j = 0; j < 4; j++) store(y + i + 16 * j, drop(load(x + i + 16 * j), keep[j], q16));
      } else {
        for (int j = 0; j < 4; j++) {
          const int left = (int)(end - i) - 16 * j, m = left < 0 ? 0 : left < 16 ? left : 16;
          store(y + i + 16 * j, drop(load(x + i + 16 * j, m), keep[j], q16), m);
        }
      }
      if (!mask) continue;
      uint64_t kept = 0;
      for (int j = 0; j < 4; j++) kept |= (uint64_t)lane_bits(keep[j]) << (16 * j);
      if (end - i >= 64) {
        memcpy(mask + i / 8, &kept, 8);
      } else {
        kept &= ((uint64_t)1 << (end - i)) - 1;
        memcpy(mask + i / 8, &kept, (end - i + 7) / 8);
      }
    }
  }
};

template <class T> TE_INLINE void backward_chunk(const T *dy, T *dx, const uint8_t *mask, float q, int64_t begin, int64_t n) {
  const int64_t end = begin + kChunk < n ? begin + kChunk : n;
  const vf q16 = set1(q);
  int64_t i = begin;
  for (; i + 16 <= end; i += 16) {
    uint16_t kept;
    memcpy(&kept, mask + i / 8, 2);
    store(dx + i, drop(load(dy + i), bits_to_lanes(kept), q16));
  }
  if (i < end) {
    uint16_t kept = 0;
    memcpy(&kept, mask + i / 8, (end - i + 7) / 8);
    store(dx + i, drop(load(dy + i, (int)(end - i)), bits_to_lanes(kept), q16), (int)(end - i));
  }
}

nvte_status outcome(bool ran) { return ran ? NVTE_OK : fail(NVTE_ERR_INTERNAL, "a worker failed"); }

}  // namespace

nvte_status dropout_forward(const nvte_exec &, const nvte_dropout_forward_args &a) {
  const int64_t *rng = address_as<const int64_t>(a.rng_state->data);
  const bool saves = a.mask && present(a.mask->data);
  const Forward f = {philox_seed((uint64_t)rng[0]), (uint64_t)rng[1],           philox_threshold(a.p),
                     1.0f - a.p,                    saves ? address_as<uint8_t>(a.mask->data) : nullptr, numel(a.x->data)};
  bool ran = true;
  visit_float(dtype_of(a.x->data.dtype), [&](auto zero) {
    using T = decltype(zero);
    const T *x = address_as<const T>(a.x->data);
    T *y = address_as<T>(a.y->data);
    ran = parallel_for((f.n + kChunk - 1) / kChunk, f.n * 8, [&](int64_t c) { f.chunk(x, y, c * kChunk); });
  });
  return outcome(ran);
}

nvte_status dropout_backward(const nvte_exec &, const nvte_dropout_backward_args &a) {
  const int64_t n = numel(a.dy->data);
  const uint8_t *mask = address_as<const uint8_t>(a.mask->data);
  bool ran = true;
  visit_float(dtype_of(a.dy->data.dtype), [&](auto zero) {
    using T = decltype(zero);
    const T *dy = address_as<const T>(a.dy->data);
    T *dx = address_as<T>(a.dx->data);
    ran = parallel_for((n + kChunk - 1) / kChunk, n * 8, [&](int64_t c) { backward_chunk(dy, dx, mask, 1.0f - a.p, c * kChunk, n); });
  });
  return outcome(ran);
}

}  // namespace te::cpu::TE_CPU_ISA
