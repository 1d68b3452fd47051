// SPDX-License-Identifier: Apache-2.0
// NVIDIA: HIP's spelling of the CUDA runtime. TE_RTC: run-time compilation has the device built-ins only.
#pragma once
#define TE_VENDOR_CUDA 1
#if !defined(TE_RTC)
#include <cuda_runtime.h>

using hipError_t = cudaError_t;
using hipStream_t = cudaStream_t;
using hipEvent_t = cudaEvent_t;
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
#endif
#define TE_GPU_NAME "cuda"
#define TE_GPU_DEVICE_TYPE kDLCUDA
