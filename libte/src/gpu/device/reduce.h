// SPDX-License-Identifier: Apache-2.0
// Reductions over a wave and a block. Orders are fixed, so results repeat.
#pragma once
#include "gpu/device/wave.h"

namespace te::device {

struct Add {
  TE_DEVICE float operator()(float a, float b) const { return a + b; }
};
struct Max {  // ignores NaN, the amax rule
  TE_DEVICE float operator()(float a, float b) const { return fmaxf(a, b); }
};

// The result is in every lane. Width: lanes that take part (a power of two up to the wave).
template <int Width = kWave, class Op> TE_DEVICE float wave_reduce(float v, Op op) {
  return combine_lanes<Width>(v, op);
}

// The result is in every thread. Threads: the block's size, a multiple of the wave. Shared memory is reused by the next call, so a
// barrier stands in front.
template <int Threads, class Op> TE_DEVICE float block_reduce(float v, Op op, float identity) {
  constexpr int kWaves = Threads / kWave;
  v = wave_reduce(v, op);
  if constexpr (kWaves > 1) {
    __shared__ float part[Threads / 32];
    __syncthreads();
    if (lane() == 0) part[wave()] = v;
    __syncthreads();
    v = lane() < kWaves ? part[lane()] : identity;
    v = wave_reduce<kWave>(v, op);
  }
  return v;
}

// max into memory that holds a non-negative float: the order of the bits is the order of the numbers.
TE_DEVICE void atomic_max(float *p, float v) { atomicMax(reinterpret_cast<int *>(p), (int)__float_as_uint(v)); }

}  // namespace te::device
