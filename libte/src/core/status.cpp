// SPDX-License-Identifier: Apache-2.0
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

namespace te {
namespace {
constexpr size_t kRoom = 4096;  // fixed: failing must not fail for want of memory
thread_local char message[kRoom];
thread_local bool came;
}  // namespace

nvte_status fail(nvte_status status, const char *format, ...) {
  char text[kRoom];  // the arguments may point into `message`
  va_list list;
  va_start(list, format);
  vsnprintf(text, kRoom, format, list);
  va_end(list);
  memcpy(message, text, strlen(text) + 1);
  came = true;
  return status;
}

const char *last_error() { return message; }
void await_error() { came = false; }
bool error_came() { return came; }

void prefix_error(const char *name) { (void)fail(NVTE_OK, "%s: %s", name, message); }

}  // namespace te

extern "C" {

NVTE_API uint32_t nvte_version(void) {
  return (uint32_t)NVTE_VERSION_MAJOR << 16 | (uint32_t)NVTE_VERSION_MINOR << 8 | (uint32_t)NVTE_VERSION_PATCH;
}

NVTE_API const char *nvte_status_name(nvte_status status) {
  switch (status) {
    case NVTE_OK: return "NVTE_OK";
    case NVTE_ERR_INVALID_ARGUMENT: return "NVTE_ERR_INVALID_ARGUMENT";
    case NVTE_ERR_VERSION: return "NVTE_ERR_VERSION";
    case NVTE_ERR_CONFIG: return "NVTE_ERR_CONFIG";
    case NVTE_ERR_WORKSPACE: return "NVTE_ERR_WORKSPACE";
    case NVTE_ERR_UNSUPPORTED: return "NVTE_ERR_UNSUPPORTED";
    case NVTE_ERR_NOT_FOUND: return "NVTE_ERR_NOT_FOUND";
    case NVTE_ERR_OUT_OF_MEMORY: return "NVTE_ERR_OUT_OF_MEMORY";
    case NVTE_ERR_DEVICE: return "NVTE_ERR_DEVICE";
    case NVTE_ERR_IO: return "NVTE_ERR_IO";
    case NVTE_ERR_INTERNAL: return "NVTE_ERR_INTERNAL";
    default: return "NVTE_ERR_UNKNOWN";
  }
}

NVTE_API const char *nvte_last_error(void) { return te::last_error(); }

}  // extern "C"
