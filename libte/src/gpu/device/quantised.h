// SPDX-License-Identifier: Apache-2.0
// Device side of a quantised output: the scale on the way in, amax and scale_inv on the way out.
#pragma once
#include "gpu/device/convert.h"
#include "gpu/device/reduce.h"

namespace te::gpu {

// How to write one quantised tensor.
struct Quantised {
  const float *scale;   // absent: 1
  float *scale_inv;     // absent: not written
  float *columnwise_scale_inv;
  float *block_amax;    // workspace, one value a block; absent: no amax
  float *atomic_amax;   // instead of block_amax
};

TE_DEVICE float scale_of(const Quantised &q) { return q.scale ? *q.scale : 1.f; }

// Called by every thread of every block at its end, with the thread's own maximum and the scale in use.
template <int Threads> TE_DEVICE void finish(const Quantised &q, float amax, int block, float scale) {
  if (q.block_amax || q.atomic_amax) {
    amax = device::block_reduce<Threads>(amax, device::Max{}, 0.f);
    if (threadIdx.x == 0) {
      if (q.block_amax) q.block_amax[block] = amax;
      else device::atomic_max(q.atomic_amax, amax);
    }
  }
  if (block == 0 && threadIdx.x == 0) {
    if (q.scale_inv) *q.scale_inv = device::divide(1.f, scale);
    if (q.columnwise_scale_inv) *q.columnwise_scale_inv = device::divide(1.f, scale);
  }
}
template <int Threads> TE_DEVICE void finish(const Quantised &q, float amax, int block) { finish<Threads>(q, amax, block, scale_of(q)); }

}  // namespace te::gpu
