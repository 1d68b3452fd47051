// SPDX-License-Identifier: Apache-2.0
// What libte uses of NVRTC and of hipRTC, which mirror each other, under hipRTC's spelling, and of code objects. The libraries are opened at first use.
#pragma once
#include "gpu/vendor/gpu.h"

#include <stddef.h>

namespace te::gpu::rtc {

#if defined(TE_VENDOR_HIP)
#define TE_RTC_NAME(name) "hiprtc" name
#define TE_RTC_CODE "Code"
constexpr const char *kCompiler = "hiprtc", *kLibrary = "libhiprtc.so";
constexpr const char *kLibraries[] = {"libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so", "/opt/rocm/lib/libhiprtc.so"};
#else
#define TE_RTC_NAME(name) "nvrtc" name
#define TE_RTC_CODE "CUBIN"
constexpr const char *kCompiler = "nvrtc", *kLibrary = "libnvrtc.so";
constexpr const char *kLibraries[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
#endif

struct Functions {
  int (*version)(int *major, int *minor);
  int (*create)(void **program, const char *source, const char *name, int headers, const char *const *texts, const char *const *names);
  int (*destroy)(void **program);
  int (*compile)(void *program, int options, const char *const *option);
  int (*log_size)(void *program, size_t *);
  int (*log)(void *program, char *);
  int (*code_size)(void *program, size_t *);
  int (*code)(void *program, char *);
  const char *(*error)(int);
  const char *missing;  // why the library cannot serve; NULL: it can
};
// Opens the copy that the process has, or one beside the vendor's libraries that it has, else the system's. Once a process.
const Functions &functions();

// A kernel of a code object that was loaded for the thread's device.
using Kernel = void *;
// NULL, or why not. The code object stays loaded as long as the process lives.
const char *load(const void *code, const char *name, Kernel *out);
// behind: gpu::launch_behind's kind of launch. 0, or the runtime's error with its text.
int launch(Kernel kernel, dim3 grid, int threads, hipStream_t stream, void **arguments, bool behind, const char **error);
// "gfx950", "sm_90"; empty where the device does not say.
void chip(int device, char *out, size_t size);

}  // namespace te::gpu::rtc
