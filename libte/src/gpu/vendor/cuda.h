// SPDX-License-Identifier: Apache-2.0
// NVIDIA: HIP's spelling of the CUDA runtime. TE_RTC: run-time compilation has the device built-ins only.
#pragma once
#define TE_VENDOR_CUDA 1
#if !defined(TE_RTC)
#include <cuda_runtime.h>

using hipError_t = cudaError_t;
using hipStream_t = cudaStream_t;
using hipEvent_t = cudaEvent_t;
using hipDeviceAttribute_t = cudaDeviceAttr;
using hipStreamCaptureStatus = cudaStreamCaptureStatus;
constexpr auto hipSuccess = cudaSuccess;
constexpr auto hipErrorNoDevice = cudaErrorNoDevice;
constexpr auto hipErrorInvalidDevice = cudaErrorInvalidDevice;
constexpr auto hipStreamCaptureStatusNone = cudaStreamCaptureStatusNone;
constexpr auto hipDeviceAttributeMultiprocessorCount = cudaDevAttrMultiProcessorCount;
constexpr auto hipDeviceAttributeMaxSharedMemoryPerBlock = cudaDevAttrMaxSharedMemoryPerBlockOptin;
constexpr auto hipDeviceAttributeComputeCapabilityMajor = cudaDevAttrComputeCapabilityMajor;
constexpr auto hipDeviceAttributeComputeCapabilityMinor = cudaDevAttrComputeCapabilityMinor;
constexpr auto hipFuncAttributeMaxDynamicSharedMemorySize = cudaFuncAttributeMaxDynamicSharedMemorySize;
constexpr auto hipMemcpyDeviceToDevice = cudaMemcpyDeviceToDevice;
constexpr auto hipMemcpyDeviceToHost = cudaMemcpyDeviceToHost;
constexpr auto hipMemcpyHostToDevice = cudaMemcpyHostToDevice;
constexpr auto hipMemcpyDefault = cudaMemcpyDefault;
#define hipGetDeviceCount cudaGetDeviceCount
#define hipGetDevice cudaGetDevice
#define hipSetDevice cudaSetDevice
#define hipDeviceGetAttribute cudaDeviceGetAttribute
#define hipGetErrorString cudaGetErrorString
#define hipGetLastError cudaGetLastError
#define hipPeekAtLastError cudaPeekAtLastError
#define hipFuncSetAttribute cudaFuncSetAttribute
#define hipMemcpyAsync cudaMemcpyAsync
#define hipMemcpy cudaMemcpy
#define hipMemsetAsync cudaMemsetAsync
#define hipMalloc cudaMalloc
#define hipFree cudaFree
#define hipStreamCreate cudaStreamCreate
#define hipStreamDestroy cudaStreamDestroy
#define hipStreamWaitEvent cudaStreamWaitEvent
#define hipStreamSynchronize cudaStreamSynchronize
#define hipDeviceSynchronize cudaDeviceSynchronize
#define hipStreamIsCapturing cudaStreamIsCapturing
#define hipEventCreate cudaEventCreate
#define hipEventDestroy cudaEventDestroy
#define hipEventRecord cudaEventRecord
#define hipEventSynchronize cudaEventSynchronize
#define hipEventElapsedTime cudaEventElapsedTime
// The launch attribute behind gpu::launch_behind: the kernel may become resident while the one in front of it ends.
constexpr int kOverlapMajor = 9;  // the first compute capability that has it
#if defined(__CUDACC__)
#define TE_LAUNCHES 1  // kernels are compiled here, and can be launched
template <class... P, class... A> inline void hipLaunchKernelBehind(void (*kernel)(P...), dim3 grid, dim3 block, hipStream_t stream, A... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid, config.blockDim = block, config.stream = stream, config.attrs = &attribute, config.numAttrs = 1;
  (void)cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...);
}
#endif
#endif
#define TE_GPU_NAME "cuda"
#define TE_GPU_DEVICE_TYPE kDLCUDA
