// SPDX-License-Identifier: Apache-2.0
// Kernels compiled at run time, for the very chip and the tile that suits a shape: the source is in the library, the vendor's compiler (NVRTC,
// hipRTC) is opened at first use, code objects are kept on disk (cache.h). What cannot be compiled is a refusal with its reason, logged once.
#pragma once
#include "gpu/plugin.h"

#include <array>

namespace te::gpu::rtc {

constexpr int kDefines = 8;
// A source whose macros are integers: a kernel for each set of them.
struct Program {
  const char *file;                  // as the library's sources are included
  const char *kernel;                // extern "C"
  const char *defines[kDefines];     // names; NULL: no more
};
using Values = std::array<int, kDefines>;

// NULL with *kernel for the call's device, else why there is none; valid as long as the process lives. During a graph's capture only kernels that
// are loaded already.
const char *find(const nvte_exec &exec, const Program &program, const Values &values, void **kernel);

nvte_status launch_pointers(const nvte_exec &exec, void *kernel, dim3 grid, int threads, const char *what, void **arguments);
// Launches it as gpu::launch_behind does; arguments: of the kernel's very types. To be called in gpu::guarded.
template <class... A> nvte_status launch(const nvte_exec &exec, void *kernel, dim3 grid, int threads, const char *what, A... arguments) {
  void *pointers[] = {&arguments...};
  return launch_pointers(exec, kernel, grid, threads, what, pointers);
}

// The sources in the library, under the names by which they include one another (cmake/gpu.cmake).
struct Embedded {
  const char *name, *text;
};
extern const Embedded kSources[];
extern const size_t kSourceCount;

}  // namespace te::gpu::rtc
