// SPDX-License-Identifier: Apache-2.0
// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011): the words of the CPU's cpu/philox.h.
#pragma once
#include "gpu/device/wave.h"

namespace te::device {

// nvcc adds a zero to the upper half of a product that is written in C.
TE_DEVICE unsigned long long wide_product(unsigned a, unsigned b) {
#if defined(TE_VENDOR_HIP)
  return (unsigned long long)a * b;
#else
  unsigned long long p;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(p) : "r"(a), "r"(b));
  return p;
#endif
}
// w[0..3] for the counter {c0, c1, c2, c3}, lowest word first.
TE_DEVICE void philox4(unsigned long long seed, unsigned c0, unsigned c1, unsigned c2, unsigned c3, unsigned (&w)[4]) {
  unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
#pragma unroll
  for (int i = 0; i < 10; i++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const unsigned long long p0 = wide_product(0xD2511F53u, c0), p1 = wide_product(0xCD9E8D57u, c2);
    c0 = (unsigned)(p1 >> 32) ^ c1 ^ k0;
    c1 = (unsigned)p1;
    c2 = (unsigned)(p0 >> 32) ^ c3 ^ k1;
    c3 = (unsigned)p0;
  }
  w[0] = c0, w[1] = c1, w[2] = c2, w[3] = c3;
}

}  // namespace te::device
