// SPDX-License-Identifier: Apache-2.0
#include "gpu/vendor/rtc.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include <string>
#include <type_traits>
#include <vector>

#if defined(TE_VENDOR_CUDA)
#include <cuda.h>  // types only
#endif

namespace te::gpu::rtc {
namespace {

struct Seen {
  std::string loaded;                // the library itself
  std::vector<std::string> folders;  // of the vendor's other libraries
};
int look(dl_phdr_info *info, size_t, void *out) {
  Seen &seen = *static_cast<Seen *>(out);
  const char *path = info->dlpi_name, *slash = path ? strrchr(path, '/') : nullptr;
  if (!slash) return 0;
  if (strstr(slash, kLibrary)) seen.loaded = path;
  for (const char *other : {"libcublasLt", "libcudart", "libcudnn", "libamdhip64"})
    if (strstr(slash, other)) seen.folders.push_back(std::string(path, slash));
  return 0;
}

void *open_library(std::string *why) {
  Seen seen;
  dl_iterate_phdr(look, &seen);
  if (!seen.loaded.empty())
    if (void *library = dlopen(seen.loaded.c_str(), RTLD_NOW | RTLD_NOLOAD)) return library;
  for (const std::string &folder : seen.folders)
    for (const char *name : kLibraries)
      for (const char *beside : {"/", "/../../cuda_nvrtc/lib/"})
        if (*name != '/')
          if (void *library = dlopen((folder + beside + name).c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  for (const char *name : kLibraries) {
    if (void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
    if (why->empty()) *why = dlerror();
  }
  return nullptr;
}

Functions open() {
  static char text[512];
  Functions f = {};
  std::string why;
  void *library = open_library(&why);
  if (!library) {
    snprintf(text, sizeof text, "%s was not found: %s", kLibrary, why.c_str());
    f.missing = text;
    return f;
  }
  const auto find = [&](auto &to, const char *name) {
    to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(dlsym(library, name));
    if (to || f.missing) return;
    snprintf(text, sizeof text, "%s has no %s", kLibrary, name);
    f.missing = text;
  };
  find(f.version, TE_RTC_NAME("Version"));
  find(f.create, TE_RTC_NAME("CreateProgram"));
  find(f.destroy, TE_RTC_NAME("DestroyProgram"));
  find(f.compile, TE_RTC_NAME("CompileProgram"));
  find(f.log_size, TE_RTC_NAME("GetProgramLogSize"));
  find(f.log, TE_RTC_NAME("GetProgramLog"));
  find(f.code_size, TE_RTC_NAME("Get" TE_RTC_CODE "Size"));
  find(f.code, TE_RTC_NAME("Get" TE_RTC_CODE));
  find(f.error, TE_RTC_NAME("GetErrorString"));
#if defined(TE_VENDOR_CUDA)
  // NVRTC opens its built-ins by bare name, which the loader only finds where they are open already or installed system-wide
  int major = 0, minor = 0;
  Dl_info info;
  const char *slash = f.version && dladdr(reinterpret_cast<void *>(f.version), &info) && info.dli_fname ? strrchr(info.dli_fname, '/') : nullptr;
  if (slash && f.version(&major, &minor) == 0) {
    const std::string beside = std::string(info.dli_fname, slash + 1) + "libnvrtc-builtins.so." + std::to_string(major) + "." + std::to_string(minor);
    (void)dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
#endif
  return f;
}

}  // namespace

const Functions &functions() {
  static const Functions f = open();
  return f;
}

#if defined(TE_VENDOR_HIP)

const char *load(const void *code, const char *name, Kernel *out) {
  hipModule_t module = nullptr;
  hipFunction_t function = nullptr;
  hipError_t e = hipModuleLoadData(&module, code);
  if (e == hipSuccess) e = hipModuleGetFunction(&function, module, name);
  *out = function;
  return e == hipSuccess ? nullptr : hipGetErrorString(e);
}
int launch(Kernel kernel, dim3 grid, int threads, hipStream_t stream, void **arguments, bool, const char **error) {
  const hipError_t e =
      hipModuleLaunchKernel(static_cast<hipFunction_t>(kernel), grid.x, grid.y, grid.z, static_cast<unsigned>(threads), 1, 1, 0, stream, arguments, nullptr);
  if (e != hipSuccess) *error = hipGetErrorString(e);
  return e;
}
void chip(int device, char *out, size_t size) {
  hipDeviceProp_t properties;
  snprintf(out, size, "%s", hipGetDeviceProperties(&properties, device) == hipSuccess ? properties.gcnArchName : "");
}

#else

namespace {
// The driver's part, which the CUDA runtime has opened already where there is one.
struct Driver {
  decltype(&cuModuleLoadData) module_load;
  decltype(&cuModuleGetFunction) module_function;
  decltype(&cuLaunchKernelEx) launch;
  decltype(&cuGetErrorString) error;
  const char *missing;
};
const Driver &driver() {
  static const Driver d = [] {
    Driver f = {};
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const auto find = [&](auto &to, const char *name) {
      to = library ? reinterpret_cast<std::remove_reference_t<decltype(to)>>(dlsym(library, name)) : nullptr;
      if (!to) f.missing = library ? "the driver is too old (before CUDA 11.8)" : "libcuda.so.1 was not found";
    };
    find(f.module_load, "cuModuleLoadData");
    find(f.module_function, "cuModuleGetFunction");
    find(f.launch, "cuLaunchKernelEx");
    find(f.error, "cuGetErrorString");
    return f;
  }();
  return d;
}
const char *text_of(CUresult status) {
  const char *text = nullptr;
  return driver().error(status, &text) == CUDA_SUCCESS && text ? text : "an error that the driver does not name";
}
}  // namespace

const char *load(const void *code, const char *name, Kernel *out) {
  const Driver &d = driver();
  if (d.missing) return d.missing;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUresult status = d.module_load(&module, code);
  if (status == CUDA_SUCCESS) status = d.module_function(&function, module, name);
  *out = function;
  return status == CUDA_SUCCESS ? nullptr : text_of(status);
}
int launch(Kernel kernel, dim3 grid, int threads, hipStream_t stream, void **arguments, bool behind, const char **error) {
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config = {};
  config.gridDimX = grid.x, config.gridDimY = grid.y, config.gridDimZ = grid.z;
  config.blockDimX = static_cast<unsigned>(threads), config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  config.attrs = &attribute, config.numAttrs = behind;
  const CUresult status = driver().launch(&config, static_cast<CUfunction>(kernel), arguments, nullptr);
  if (status != CUDA_SUCCESS) *error = text_of(status);
  return status;
}
void chip(int device, char *out, size_t size) {
  int major = 0, minor = 0;
  *out = 0;
  if (hipDeviceGetAttribute(&major, hipDeviceAttributeComputeCapabilityMajor, device) == hipSuccess &&
      hipDeviceGetAttribute(&minor, hipDeviceAttributeComputeCapabilityMinor, device) == hipSuccess)
    snprintf(out, size, "sm_%d%d", major, minor);
}

#endif

}  // namespace te::gpu::rtc
