// SPDX-License-Identifier: Apache-2.0
// The HIP runtime at run time: each entry that libte_hip.so uses is a trampoline into the copy that the process has already (a framework's),
// else into libamdhip64. So the plug-in names no runtime, opens on a machine without one, and a process never holds two.
#include <dlfcn.h>
#include <hip/hip_runtime_api.h>
#include <link.h>
#include <cstring>

// name, parameters, arguments; all return hipError_t. A new call of the plug-in is a row here, or its link fails (-z defs).
#define TE_HIP_CALLS(X)                                                                                                      \
  X(hipGetDeviceCount, (int *a), (a))                                                                                       \
  X(hipGetDevice, (int *a), (a))                                                                                            \
  X(hipSetDevice, (int a), (a))                                                                                             \
  X(hipDeviceGetAttribute, (int *a, hipDeviceAttribute_t b, int c), (a, b, c))                                              \
  X(hipGetDevicePropertiesR0600, (hipDeviceProp_tR0600 * a, int b), (a, b))                                                 \
  X(hipGetLastError, (), ())                                                                                                \
  X(hipPeekAtLastError, (), ())                                                                                             \
  X(hipFuncSetAttribute, (const void *a, hipFuncAttribute b, int c), (a, b, c))                                             \
  X(hipMalloc, (void **a, size_t b), (a, b))                                                                                \
  X(hipFree, (void *a), (a))                                                                                                \
  X(hipMemcpy, (void *a, const void *b, size_t c, hipMemcpyKind d), (a, b, c, d))                                           \
  X(hipMemcpyAsync, (void *a, const void *b, size_t c, hipMemcpyKind d, hipStream_t e), (a, b, c, d, e))                    \
  X(hipMemsetAsync, (void *a, int b, size_t c, hipStream_t d), (a, b, c, d))                                                \
  X(hipStreamCreate, (hipStream_t *a), (a))                                                                                 \
  X(hipStreamDestroy, (hipStream_t a), (a))                                                                                 \
  X(hipStreamSynchronize, (hipStream_t a), (a))                                                                             \
  X(hipStreamWaitEvent, (hipStream_t a, hipEvent_t b, unsigned c), (a, b, c))                                               \
  X(hipStreamIsCapturing, (hipStream_t a, hipStreamCaptureStatus *b), (a, b))                                               \
  X(hipDeviceSynchronize, (), ())                                                                                           \
  X(hipEventCreate, (hipEvent_t *a), (a))                                                                                   \
  X(hipEventDestroy, (hipEvent_t a), (a))                                                                                   \
  X(hipEventRecord, (hipEvent_t a, hipStream_t b), (a, b))                                                                  \
  X(hipEventSynchronize, (hipEvent_t a), (a))                                                                               \
  X(hipEventElapsedTime, (float *a, hipEvent_t b, hipEvent_t c), (a, b, c))                                                 \
  X(hipLaunchKernel, (const void *a, dim3 b, dim3 c, void **d, size_t e, hipStream_t f), (a, b, c, d, e, f))                \
  X(hipModuleLoadData, (hipModule_t *a, const void *b), (a, b))                                                             \
  X(hipModuleUnload, (hipModule_t a), (a))                                                                                  \
  X(hipModuleGetFunction, (hipFunction_t *a, hipModule_t b, const char *c), (a, b, c))                                      \
  X(hipModuleLaunchKernel,                                                                                                  \
    (hipFunction_t a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned g, unsigned h, hipStream_t i, void **j, void **k), \
    (a, b, c, d, e, f, g, h, i, j, k))                                                                                      \
  X(__hipPushCallConfiguration, (dim3 a, dim3 b, size_t c, hipStream_t d), (a, b, c, d))                                    \
  X(__hipPopCallConfiguration, (dim3 * a, dim3 * b, size_t *c, hipStream_t *d), (a, b, c, d))

namespace {

int find(dl_phdr_info *info, size_t, void *name) {
  if (!info->dlpi_name || !strstr(info->dlpi_name, "libamdhip64.so")) return 0;
  *static_cast<const char **>(name) = info->dlpi_name;
  return 1;
}

void *open_runtime() {
  const char *present = nullptr;
  dl_iterate_phdr(find, &present);
  if (present)
    if (void *handle = dlopen(present, RTLD_NOW | RTLD_NOLOAD)) return handle;
  for (const char *name : {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so", "/opt/rocm/lib/libamdhip64.so"})
    if (void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return handle;
  return nullptr;
}
void *runtime() {
  static void *handle = open_runtime();
  return handle;
}
void *symbol(const char *name) { return runtime() ? dlsym(runtime(), name) : nullptr; }
hipError_t absent() { return runtime() ? hipErrorSharedObjectSymbolNotFound : hipErrorSharedObjectInitFailed; }

}  // namespace

#define TE_HIP_TRAMPOLINE(name, parameters, arguments)                            \
  hipError_t name parameters {                                                    \
    static const auto real = reinterpret_cast<hipError_t(*) parameters>(symbol(#name));       \
    return real ? real arguments : absent();                                         \
  }

extern "C" {
#pragma GCC diagnostic ignored "-Wmissing-declarations"
TE_HIP_CALLS(TE_HIP_TRAMPOLINE)

const char *hipGetErrorString(hipError_t error) {
  static const auto f = reinterpret_cast<const char *(*)(hipError_t)>(symbol("hipGetErrorString"));
  if (f) return f(error);
  return error == hipErrorSharedObjectInitFailed ? "the HIP runtime was not found (libamdhip64.so.7, .so.6, .so, /opt/rocm/lib)"
                                                 : "the HIP runtime lacks a function that libte_hip.so needs";
}
// What the compiler calls as the plug-in is loaded and unloaded.
void **__hipRegisterFatBinary(const void *data) {
  static const auto f = reinterpret_cast<void **(*)(const void *)>(symbol("__hipRegisterFatBinary"));
  return f ? f(data) : nullptr;
}
void __hipUnregisterFatBinary(void **modules) {
  static const auto f = reinterpret_cast<void (*)(void **)>(symbol("__hipUnregisterFatBinary"));
  if (f && modules) f(modules);
}
void __hipRegisterFunction(void **modules, const void *host, char *device, const char *name, unsigned threads, void *tid, void *bid, dim3 *block,
                           dim3 *grid, int *size) {
  static const auto f = reinterpret_cast<decltype(&__hipRegisterFunction)>(symbol("__hipRegisterFunction"));
  if (f && modules) f(modules, host, device, name, threads, tid, bid, block, grid, size);
}
void __hipRegisterVar(void **modules, void *var, char *host, char *device, int ext, size_t size, int constant, int global) {
  static const auto f = reinterpret_cast<decltype(&__hipRegisterVar)>(symbol("__hipRegisterVar"));
  if (f && modules) f(modules, var, host, device, ext, size, constant, global);
}
}
