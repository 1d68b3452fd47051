// SPDX-License-Identifier: Apache-2.0
// Cross-lane words. kWave is the device's wave width (64 on gfx9, 32 on gfx10+ and NVIDIA): a compile-time constant in device code only.
#pragma once
#include "gpu/vendor/gpu.h"

#define TE_DEVICE __device__ __forceinline__

namespace te::device {

#if defined(TE_RTC)  // run-time compilation has no C headers
using int64_t = long long;
#endif
#if defined(TE_VENDOR_HIP)
#if defined(__GFX9__) || !defined(__AMDGCN__)  // the host's pass only parses device code
inline constexpr int kWave = 64;
#else
inline constexpr int kWave = 32;
#endif
// Host code sizes blocks for the widest wave.
inline constexpr int kMaxWave = 64;
#else
inline constexpr int kWave = 32;
inline constexpr int kMaxWave = 32;
#endif

template <class T> TE_DEVICE T shfl_xor(T v, int mask) {
#if defined(TE_VENDOR_HIP)
  return __shfl_xor(v, mask, kWave);
#else
  return __shfl_xor_sync(0xffffffffu, v, mask);
#endif
}
template <class T> TE_DEVICE T shfl(T v, int lane) {
#if defined(TE_VENDOR_HIP)
  return __shfl(v, lane, kWave);
#else
  return __shfl_sync(0xffffffffu, v, lane);
#endif
}
// Rare address arithmetic on numbers that a wave has in common: AMD's compiler would give all of it scalar registers and run out of them.
// For a bound that many comparisons share: makes them anew, where their masks would be kept in scalar registers.
template <class T> TE_DEVICE void per_lane(T &v) {
#if defined(TE_VENDOR_HIP) && defined(__AMDGCN__)
  asm("" : "+v"(v));
#else
  (void)v;
#endif
}
// Hides where a word came from, so that what is made of it is made anew rather than kept in registers.
TE_DEVICE void opaque(unsigned &v) {
#if defined(TE_VENDOR_HIP) && defined(__AMDGCN__)
  asm volatile("" : "+v"(v));
#elif !defined(TE_VENDOR_HIP)
  asm volatile("" : "+r"(v));
#else
  (void)v;
#endif
}
// x where bit i of a word is set, else 0. AMD: no comparison's mask in scalar registers.
TE_DEVICE float where_bit(unsigned word, int i, float x) {
#if defined(TE_VENDOR_HIP) && defined(__AMDGCN__)
  return __builtin_bit_cast(float, __builtin_bit_cast(int, x) & __builtin_amdgcn_sbfe((int)word, (unsigned)i, 1u));
#else
  return word >> i & 1 ? x : 0.f;
#endif
}
// The kernel's first parameter, read anew from here on: AMD's compiler would keep all of a large one in scalar registers from the start, and has
// too few of them. P: its type.
template <class P> TE_DEVICE const P &again(const P &p) {
#if defined(TE_VENDOR_HIP) && defined(__AMDGCN__)
  auto at = (const __attribute__((address_space(4))) P *)__builtin_amdgcn_kernarg_segment_ptr();
  asm volatile("" : "+s"(at));
  (void)p;
  return *(const P *)at;
#else
  return p;
#endif
}
template <bool Again, class P> TE_DEVICE const P &again_if(const P &p) {
  if constexpr (Again) return again(p);
  else return p;
}
// How often loops over rows are unrolled; AMD has no scalar registers to spare for it.
#if defined(TE_VENDOR_HIP)
inline constexpr int kUnrollRows = 1;
#else
inline constexpr int kUnrollRows = 4;
#endif
// Threads of a grid whose blocks walk over rows: about one round of a large chip, and the same on every chip, since sums depend on it.
#if defined(TE_VENDOR_HIP)
inline constexpr int kResidentThreads = 304 * 512;
#else
inline constexpr int kResidentThreads = 132 * 512;
#endif
// A kernel of gpu::launch_behind may be resident before the one in front of it ends: it waits here before it touches memory.
TE_DEVICE void await_previous() {
#if defined(TE_VENDOR_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// From here on (once every block came here) the kernel behind may become resident.
TE_DEVICE void let_next_begin() {
#if defined(TE_VENDOR_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
TE_DEVICE int lane() { return (int)(threadIdx.x % kWave); }
TE_DEVICE int wave() { return (int)(threadIdx.x / kWave); }

// What op makes of the values of Width lanes (a power of two), in every one of them; the order is fixed. AMD: DPP inside rows of 16 lanes (once
// groups of 4 or 8 are alike, a mirror is as good as an exchange), scalar reads of one lane a row above.
template <int Width, class Op> TE_DEVICE float combine_lanes(float v, Op op) {
#if defined(TE_VENDOR_HIP) && defined(__AMDGCN__)
#define TE_DPP(ctrl) v = op(v, __builtin_bit_cast(float, __builtin_amdgcn_mov_dpp(__builtin_bit_cast(int, v), ctrl, 0xf, 0xf, true)))
  if constexpr (Width >= 2) TE_DPP(0xb1);    // quad_perm [1,0,3,2]
  if constexpr (Width >= 4) TE_DPP(0x4e);    // quad_perm [2,3,0,1]
  if constexpr (Width >= 8) TE_DPP(0x141);   // row_half_mirror
  if constexpr (Width >= 16) TE_DPP(0x140);  // row_mirror
#undef TE_DPP
  if constexpr (Width >= 32) {
    const auto row = [&](int lane) { return __builtin_bit_cast(float, __builtin_amdgcn_readlane(__builtin_bit_cast(int, v), lane)); };
    const float low = op(row(0), row(16));
    if constexpr (kWave == 32) return low;
    const float high = op(row(32), row(48));
    return Width == 64 ? op(low, high) : threadIdx.x % 64 < 32 ? low : high;
  }
#else
#pragma unroll
  for (int m = 1; m < Width; m *= 2) v = op(v, shfl_xor(v, m));
#endif
  return v;
}

}  // namespace te::device
