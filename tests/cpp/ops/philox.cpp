// SPDX-License-Identifier: Apache-2.0
// The generator under dropout: known answers of Random123 1.09 (kat_vectors, philox4x32-10), and 16 draws against one at a time.
#define TE_CPU_ISA base
#include <gtest/gtest.h>

#include "cpu/philox.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

struct Known {
  uint32_t counter[4], key[2], word[4];
};
const Known kKnown[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
uint64_t join(uint32_t low, uint32_t high) { return low | (uint64_t)high << 32; }

TEST(Philox, KnownAnswers) {
  for (const Known &k : kKnown) {
    const philox_key key = philox_seed(join(k.key[0], k.key[1]));
    uint32_t w[4];
    philox4(key, k.counter[0], k.counter[1], k.counter[2], k.counter[3], w);
    EXPECT_EQ(memcmp(w, k.word, sizeof w), 0);
    vi wide[4];
    philox64(key, join(k.counter[0], k.counter[1]), join(k.counter[2], k.counter[3]), wide);
    EXPECT_EQ(memcmp(wide, k.word, sizeof w), 0);
    philox64_word2(key, k.counter[0], k.counter[1], k.counter[2], k.counter[3], wide);
    EXPECT_EQ(memcmp(wide, k.word, sizeof w), 0);
  }
}

TEST(Philox, SixteenDrawsAreSixteenDraws) {
  const philox_key key = philox_seed(0x123456789abcdef0);
  // across the carries out of word 0, and out of word 1
  for (uint64_t low : {(uint64_t)0, (uint64_t)0xfffffff9, ~(uint64_t)0 - 15, ~(uint64_t)0 - 6}) {
    vi wide[4], word2[4];
    philox64(key, low, 7, wide);
    philox64_word2(key, 1, 2, (uint32_t)low, 3, word2);
    for (uint32_t i = 0; i < 16; i++) {
      const uint64_t l = low + i, h = 7 + (l < low);
      uint32_t w[4];
      philox4(key, (uint32_t)l, (uint32_t)(l >> 32), (uint32_t)h, (uint32_t)(h >> 32), w);
      EXPECT_EQ(memcmp((const char *)wide + 16 * i, w, 16), 0) << low << " + " << i;
      philox4(key, 1, 2, (uint32_t)low + i, 3, w);
      EXPECT_EQ(memcmp((const char *)word2 + 16 * i, w, 16), 0) << low << " + " << i;
    }
  }
}

TEST(Philox, Threshold) {
  EXPECT_EQ(philox_threshold(0), 0u);
  EXPECT_EQ(philox_threshold(0.25f), 0x40000000u);
  EXPECT_EQ(philox_threshold(1), (uint64_t)1 << 32);
  alignas(64) const int32_t words[16] = {0, 1, 0x3fffffff, 0x40000000, 0x40000001, INT32_MAX, INT32_MIN, -1};
  vi w;
  memcpy(&w, words, sizeof w);
  for (uint64_t threshold : {(uint64_t)0, (uint64_t)1, (uint64_t)0x40000000, (uint64_t)0x80000000, (uint64_t)0xffffffff, (uint64_t)1 << 32}) {
    const vi keep = philox_keep(w, threshold);
    for (int i = 0; i < 16; i++) EXPECT_EQ(((const int32_t *)&keep)[i], (uint32_t)words[i] >= threshold ? -1 : 0) << threshold << " " << words[i];
  }
}

}  // namespace
}  // namespace te::cpu::TE_CPU_ISA
