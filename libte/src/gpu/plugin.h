// SPDX-License-Identifier: Apache-2.0
// Host side of a GPU operator: what src/ops/<op>/gpu.hip and its vendor peers define, and the words for launching.
#pragma once
#include "core/status.h"
#include "core/tensor.h"
#include "gpu/vendor/gpu.h"
#include "libte/libte.h"

namespace te::gpu {

// One folder's implementations: TE_GPU_IMPLEMENTATIONS(rmsnorm) = {table, count}. build/gen/gpu_table.cpp lists every folder that
// has a gpu.hip, so a missing one is a link error. Not const: clang would give device code a copy of a constant, and its host functions with it.
struct Row {
  const nvte_implementation *implementations;
  size_t n;
};
#define TE_GPU_IMPLEMENTATIONS(folder)           \
  extern ::te::gpu::Row gpu_##folder##_row;       \
  ::te::gpu::Row gpu_##folder##_row

// What the plug-in got from the core.
const nvte_host &host();

inline hipStream_t stream_of(const nvte_exec &e) { return static_cast<hipStream_t>(e.stream); }

// Sets the call's device for its lifetime and restores the thread's (autograd threads have none of their own). Also turns a sticky
// launch error into a status: `return done(op)`.
class DeviceScope {
 public:
  explicit DeviceScope(const nvte_exec &exec);
  ~DeviceScope();
  DeviceScope(const DeviceScope &) = delete;
  DeviceScope &operator=(const DeviceScope &) = delete;
  nvte_status status() const { return status_; }

 private:
  int previous_ = -1;
  nvte_status status_ = NVTE_OK;
};

// NVTE_OK, or NVTE_ERR_DEVICE with the runtime's text.
nvte_status check(hipError_t error, const char *what);
// The error of the launches since the last look.
inline nvte_status launched(const char *what) { return check(hipGetLastError(), what); }

// Multiprocessors of a device (cached).
int multiprocessors(int device);
// Whether kernels of the call's stream may overlap (gpu::launch_behind): the chip can, and no graph is being captured, whose users may not know such edges.
bool overlaps(const nvte_exec &exec);

// Catches what host code may throw: the body of every run().
template <class F> nvte_status guarded(const nvte_exec *exec, F &&body) noexcept {
  DeviceScope scope(*exec);
  if (scope.status() != NVTE_OK) return scope.status();
  return body();
}

#if defined(TE_LAUNCHES)
// Launches a kernel that begins with device::await_previous(), so that its start is hidden behind the end of the kernel in front of it.
template <class... P, class... A> void launch_behind(const nvte_exec &exec, void (*kernel)(P...), dim3 grid, int threads, A... arguments) {
  if (overlaps(exec)) hipLaunchKernelBehind(kernel, grid, dim3((unsigned)threads), stream_of(exec), arguments...);
  else kernel<<<grid, (unsigned)threads, 0, stream_of(exec)>>>(static_cast<P>(arguments)...);
}
#endif

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline bool aligned(const void *p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

}  // namespace te::gpu
