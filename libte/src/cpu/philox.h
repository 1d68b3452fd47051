// SPDX-License-Identifier: Apache-2.0
// Philox 4x32-10: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
// A counter of four words and a key of two give four random words. Integer arithmetic only: the same words at every level.
#pragma once
#include "cpu/vec.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

constexpr uint32_t kPhiloxM0 = 0xD2511F53, kPhiloxM1 = 0xCD9E8D57;

// The ten round keys of a seed.
struct philox_key {
  uint32_t k[10][2];
};
TE_INLINE philox_key philox_seed(uint64_t seed) {
  philox_key r;
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int i = 0; i < 10; i++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) r.k[i][0] = k0, r.k[i][1] = k1;
  return r;
}

// One draw: w[0..3] from the counter {c0, c1, c2, c3}, lowest word first.
TE_INLINE void philox4(const philox_key &key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t (&w)[4]) {
  for (int i = 0; i < 10; i++) {
    const uint64_t p0 = (uint64_t)kPhiloxM0 * c0, p1 = (uint64_t)kPhiloxM1 * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ key.k[i][0];
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ key.k[i][1];
    c3 = (uint32_t)p0;
  }
  w[0] = c0, w[1] = c1, w[2] = c2, w[3] = c3;
}

// A drawn word keeps its element iff word >= threshold, threshold = floor(p * 2^32); 2^32 (p = 1) keeps none.
TE_INLINE uint64_t philox_threshold(float p) { return (uint64_t)((double)p * 4294967296.0); }

// ---- 16 draws at once ----
// Counters sit in 64-bit lanes, because the 32x32->64 multiply reads only the low halves: then a round needs no shuffles, and what
// is left in the high halves never matters. Lane order is the one from which two unpacks give the words in element order.
constexpr int kWide = kNative / 2;
typedef uint64_t nw __attribute__((vector_size(8 * kWide)));

#if defined(__AVX512F__)
TE_INLINE nw n_mul32(nw a, nw b) { return (nw)_mm512_mul_epu32((__m512i)a, (__m512i)b); }
TE_INLINE nw n_pair32(nw lo, nw hi) { return (nw)_mm512_mask_blend_epi32(0xaaaa, (__m512i)lo, (__m512i)(hi << 32)); }
TE_INLINE ni n_unpack_lo(nw a, nw b) { return (ni)_mm512_unpacklo_epi64((__m512i)a, (__m512i)b); }
TE_INLINE ni n_unpack_hi(nw a, nw b) { return (ni)_mm512_unpackhi_epi64((__m512i)a, (__m512i)b); }
constexpr nw kWideLane = {0, 4, 1, 5, 2, 6, 3, 7};
#elif defined(__AVX2__)
TE_INLINE nw n_mul32(nw a, nw b) { return (nw)_mm256_mul_epu32((__m256i)a, (__m256i)b); }
TE_INLINE nw n_pair32(nw lo, nw hi) { return (nw)_mm256_blend_epi32((__m256i)lo, (__m256i)(hi << 32), 0xaa); }
TE_INLINE ni n_unpack_lo(nw a, nw b) { return (ni)_mm256_unpacklo_epi64((__m256i)a, (__m256i)b); }
TE_INLINE ni n_unpack_hi(nw a, nw b) { return (ni)_mm256_unpackhi_epi64((__m256i)a, (__m256i)b); }
constexpr nw kWideLane = {0, 2, 1, 3};
#else
TE_INLINE nw n_mul32(nw a, nw b) { return (nw)_mm_mul_epu32((__m128i)a, (__m128i)b); }
TE_INLINE nw n_pair32(nw lo, nw hi) { return (lo & 0xffffffffu) | (hi << 32); }
TE_INLINE ni n_unpack_lo(nw a, nw b) { return (ni)_mm_unpacklo_epi64((__m128i)a, (__m128i)b); }
TE_INLINE ni n_unpack_hi(nw a, nw b) { return (ni)_mm_unpackhi_epi64((__m128i)a, (__m128i)b); }
constexpr nw kWideLane = {0, 1};
#endif

TE_INLINE void philox_wide(const philox_key &key, nw c0, nw c1, nw c2, nw c3, ni *out) {
  const nw m0 = nw{} + kPhiloxM0, m1 = nw{} + kPhiloxM1;
  for (int i = 0; i < 10; i++) {
    const nw p0 = n_mul32(c0, m0), p1 = n_mul32(c2, m1);
    c0 = (p1 >> 32) ^ c1 ^ (nw{} + key.k[i][0]);
    c1 = p1;
    c2 = (p0 >> 32) ^ c3 ^ (nw{} + key.k[i][1]);
    c3 = p0;
  }
  const nw w01 = n_pair32(c0, c1), w23 = n_pair32(c2, c3);
  out[0] = n_unpack_lo(w01, w23);
  out[1] = n_unpack_hi(w01, w23);
}

// The 64 words of the 16 draws with counters c, c + 1, ... c + 15 (128 bits: high, low), in order: word j of draw i is element
// 4 i + j, element e is lane e % 16 of out[e / 16].
TE_INLINE void philox64(const philox_key &key, uint64_t low, uint64_t high, vi (&out)[4]) {
  if (low > UINT64_MAX - 15) {  // the carry into the high half, once in 2^64
    for (int i = 0; i < 16; i++) {
      const uint64_t l = low + i, h = high + (l < low);
      uint32_t w[4];
      philox4(key, (uint32_t)l, (uint32_t)(l >> 32), (uint32_t)h, (uint32_t)(h >> 32), w);
      memcpy((char *)out + 16 * i, w, 16);
    }
    return;
  }
  ni *words = &out[0].v[0];
  const nw c2 = nw{} + (uint32_t)high, c3 = nw{} + (high >> 32);
  for (int g = 0; g < 16 / kWide; g++) {
    const nw l = nw{} + (low + g * kWide) + kWideLane;
    philox_wide(key, l, l >> 32, c2, c3, words + 2 * g);
  }
}
// The same with the counters {c0, c1, c2 + i, c3}, i = 0..15 (c2 wraps at 2^32): consecutive keys of an attention row.
TE_INLINE void philox64_word2(const philox_key &key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, vi (&out)[4]) {
  ni *words = &out[0].v[0];
  for (int g = 0; g < 16 / kWide; g++)
    philox_wide(key, nw{} + c0, nw{} + c1, nw{} + (uint64_t)(c2 + (uint32_t)(g * kWide)) + kWideLane, nw{} + c3, words + 2 * g);
}

// -1 where the word keeps its element.
TE_INLINE vi philox_keep(vi word, uint64_t threshold) {
  if (threshold >> 32) return set1i(0);
  const vi top = set1i(INT32_MIN);  // unsigned comparison through the sign bit
  return ~((set1i((int32_t)threshold) ^ top) > (word ^ top));
}

}  // namespace
}  // namespace te::cpu::TE_CPU_ISA
