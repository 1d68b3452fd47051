// SPDX-License-Identifier: Apache-2.0
#include "core/ranges.h"

#include <dlfcn.h>
#include <stdio.h>

#include <string>

#include "core/config.h"
#include "core/log.h"

namespace te::ranges {

std::atomic<bool> enabled{false};

namespace {

// Both vendors' functions look alike.
struct Library {
  int (*push)(const char *) = nullptr;
  int (*pop)() = nullptr;
};
constexpr const char *kNames[] = {"libnvToolsExt.so.1", "libnvtx3interop.so.1", "librocprofiler-sdk-roctx.so.1", "libroctx64.so.4"};
constexpr const char *kFunctions[][2] = {{"nvtxRangePushA", "nvtxRangePop"}, {"roctxRangePushA", "roctxRangePop"}};

void *open(const std::string &named) {
  if (!named.empty()) return dlopen(named.c_str(), RTLD_NOW | RTLD_LOCAL);
  // a copy that the process or its profiler has brought comes first
  for (const int mode : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL})
    for (const char *name : kNames)
      if (void *handle = dlopen(name, mode)) return handle;
  return nullptr;
}

Library find() {
  std::string named;
  Library found;
  if (config::text(config::kRangesLibrary, &named) != NVTE_OK) return found;
  void *handle = open(named);
  if (!handle) {
    log(kLogWarning, "NVTE_NVTX_ENABLED is 1, but no library for ranges was found (%s): LIBTE_RANGES_LIBRARY names one", dlerror());
    return found;
  }
  for (const auto &pair : kFunctions) {
    const auto push = reinterpret_cast<int (*)(const char *)>(dlsym(handle, pair[0]));
    const auto pop = reinterpret_cast<int (*)()>(dlsym(handle, pair[1]));
    if (push && pop) return {push, pop};
  }
  log(kLogWarning, "NVTE_NVTX_ENABLED is 1, but '%s' has neither nvtxRangePushA nor roctxRangePushA", named.c_str());
  return found;
}

const Library &library() {
  static const Library l = find();
  return l;
}

}  // namespace

void push(const char *name) {
  if (library().push) (void)library().push(name);
}
void pop() {
  if (library().pop) (void)library().pop();
}

void OfCall::begin(const char *op) {
  char name[96];
  snprintf(name, sizeof name, "nvte_%s", op);
  push(name);
}

}  // namespace te::ranges
