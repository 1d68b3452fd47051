// SPDX-License-Identifier: Apache-2.0
// The tile of a kernel that turns one: as large as leaves every multiprocessor several blocks.
#pragma once
#include <cstdint>

namespace te::gpu::rtc {

// In threads; a thread has a piece of side x side elements.
struct Tile {
  int across, down;
  int64_t wide(int64_t k, int side) const { return (k + (int64_t)across * side - 1) / ((int64_t)across * side); }
  int64_t high(int64_t m, int side) const { return (m + (int64_t)down * side - 1) / ((int64_t)down * side); }
  int64_t blocks(int64_t m, int64_t k, int side) const { return wide(k, side) * high(m, side); }
};
constexpr Tile kTiles[] = {{16, 16}, {8, 16}, {8, 8}};

inline Tile choose_tile(int64_t m, int64_t k, int side, int multiprocessors) {
  for (const Tile &t : kTiles)
    if (t.blocks(m, k, side) >= (int64_t)multiprocessors * 8 * 256 / (t.across * t.down) / 2) return t;
  return kTiles[sizeof kTiles / sizeof kTiles[0] - 1];
}

}  // namespace te::gpu::rtc
