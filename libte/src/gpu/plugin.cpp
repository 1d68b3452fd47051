// SPDX-License-Identifier: Apache-2.0
// The plug-in's entry and the host words of plugin.h. Loads where there is no driver: device calls then return a status.
#include "gpu/plugin.h"

#include <cstddef>
#include <cstdio>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "gpu/contain.h"

namespace te {
namespace gpu {

static const nvte_host *g_host = nullptr;

extern const Row *const kRows[];
extern const size_t kRowCount;

const nvte_host &host() { return *g_host; }

nvte_status check(hipError_t error, const char *what) {
  if (error == hipSuccess) return NVTE_OK;
  return fail(NVTE_ERR_DEVICE, "%s: %s (" TE_GPU_NAME " error %d)", what, hipGetErrorString(error), static_cast<int>(error));
}

DeviceScope::DeviceScope(const nvte_exec &exec) {
  int now = 0;
  if ((status_ = check(hipGetDevice(&now), "device")) != NVTE_OK) return;
  if (now == exec.device.device_id) return;
  if ((status_ = check(hipSetDevice(exec.device.device_id), "exec.device")) == NVTE_OK) previous_ = now;
}

DeviceScope::~DeviceScope() {
  if (previous_ >= 0) (void)hipSetDevice(previous_);
}

nvte_status contain(nvte_status (*body)(void *context), void *context) noexcept {
  try {
    return body(context);
  } catch (const std::bad_alloc &) {
    return fail(NVTE_ERR_OUT_OF_MEMORY, "out of memory");
  } catch (...) {
    return fail(NVTE_ERR_INTERNAL, "host code of the plug-in threw");
  }
}

// An attribute of a device, read once; `unknown` where it cannot be.
static int attribute(hipDeviceAttribute_t which, int device, int unknown) {
  static std::mutex mutex;
  static std::map<std::pair<int, int>, int> known;
  std::lock_guard<std::mutex> lock(mutex);
  const auto at = known.find({static_cast<int>(which), device});
  if (at != known.end()) return at->second;
  int n = 0;
  if (hipDeviceGetAttribute(&n, which, device) != hipSuccess) return unknown;
  return known[{static_cast<int>(which), device}] = n;
}
int multiprocessors(int device) { return attribute(hipDeviceAttributeMultiprocessorCount, device, 1); }
bool overlaps(const nvte_exec &exec) {
  hipStreamCaptureStatus capture = hipStreamCaptureStatusNone;
  return attribute(hipDeviceAttributeComputeCapabilityMajor, exec.device.device_id, 0) >= kOverlapMajor &&
         hipStreamIsCapturing(stream_of(exec), &capture) == hipSuccess && capture == hipStreamCaptureStatusNone;
}

static nvte_status device_count(int32_t *count) {
  int n = 0;
  const hipError_t e = hipGetDeviceCount(&n);
  *count = e == hipSuccess ? n : 0;
  return e == hipSuccess || e == hipErrorNoDevice ? NVTE_OK : check(e, "device_count");
}

static const nvte_backend *backend() {
  static std::vector<nvte_implementation> all;
  for (size_t i = 0; i < kRowCount; i++) all.insert(all.end(), kRows[i]->implementations, kRows[i]->implementations + kRows[i]->n);
  static const nvte_backend table = {sizeof(nvte_backend), NVTE_ABI_VERSION, TE_GPU_DEVICE_TYPE, TE_GPU_NAME, all.data(), all.size(), device_count, nullptr};
  return &table;
}

}  // namespace gpu
}  // namespace te

extern "C" NVTE_API const nvte_backend *nvte_backend_entry(const nvte_host *host) {
  if (!host || host->struct_size < offsetof(nvte_host, set_error) + sizeof host->set_error) return nullptr;
  if (host->struct_size < sizeof(nvte_host)) {
    char text[128];
    std::snprintf(text, sizeof text, TE_GPU_NAME " plug-in needs a host table of %zu bytes, the library's has %zu", sizeof(nvte_host), host->struct_size);
    host->set_error(NVTE_ERR_VERSION, text);
    return nullptr;
  }
  if (host->abi_version != NVTE_ABI_VERSION) {
    char text[128];
    std::snprintf(text, sizeof text, TE_GPU_NAME " plug-in speaks ABI version %d, the library %u", NVTE_ABI_VERSION, host->abi_version);
    host->set_error(NVTE_ERR_VERSION, text);
    return nullptr;
  }
  te::gpu::g_host = host;
  try {
    static const nvte_backend *table = te::gpu::backend();
    return table;
  } catch (...) {
    host->set_error(NVTE_ERR_OUT_OF_MEMORY, TE_GPU_NAME " plug-in: out of memory");
    return nullptr;
  }
}
