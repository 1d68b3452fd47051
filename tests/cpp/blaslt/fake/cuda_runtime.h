// SPDX-License-Identifier: Apache-2.0
// As much of the CUDA runtime as blaslt.cpp takes, on the host: work is done when it is asked for.
#pragma once
using cudaError_t = int;
using cudaStream_t = void *;
using cudaEvent_t = void *;
enum { cudaSuccess = 0, cudaErrorNoDevice = 100, cudaErrorInvalidDevice = 101 };
using cudaDeviceAttr = int;
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
enum { cudaDevAttrMultiProcessorCount, cudaDevAttrMaxSharedMemoryPerBlockOptin, cudaDevAttrComputeCapabilityMajor, cudaDevAttrComputeCapabilityMinor,
       cudaFuncAttributeMaxDynamicSharedMemorySize, cudaMemcpyDeviceToDevice, cudaMemcpyDeviceToHost, cudaMemcpyHostToDevice, cudaMemcpyDefault };
inline cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *s) { return *s = cudaStreamCaptureStatusNone, cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaEventCreate(cudaEvent_t *) { return cudaSuccess; }
inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t) { return *ms = 1, cudaSuccess; }
