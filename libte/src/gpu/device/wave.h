// SPDX-License-Identifier: Apache-2.0
// Cross-lane words. kWave is the device's wave width (64 on gfx9, 32 on gfx10+ and NVIDIA): a compile-time constant in device code only.
#pragma once

#define TE_DEVICE __device__ __forceinline__

namespace te::device {

#if defined(TE_VENDOR_HIP)
#if defined(__GFX9__)
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
TE_DEVICE int lane() { return (int)(threadIdx.x % kWave); }
TE_DEVICE int wave() { return (int)(threadIdx.x / kWave); }

}  // namespace te::device
