// SPDX-License-Identifier: Apache-2.0
// AMD: the names are HIP's own. TE_RTC: run-time compilation has the device built-ins only.
#pragma once
#define TE_VENDOR_HIP 1
#if !defined(TE_RTC)
#include <hip/hip_runtime.h>
constexpr int kOverlapMajor = 1 << 30;  // no chip lets kernels of a stream overlap
#if defined(__HIP__)
#define TE_LAUNCHES 1  // kernels are compiled here, and can be launched
template <class... P, class... A> inline void hipLaunchKernelBehind(void (*kernel)(P...), dim3 grid, dim3 block, hipStream_t stream, A... arguments) {
  kernel<<<grid, block, 0, stream>>>(static_cast<P>(arguments)...);
}
#endif
#endif
#define TE_GPU_NAME "hip"
#define TE_GPU_DEVICE_TYPE kDLROCM
