// SPDX-License-Identifier: Apache-2.0
// te::fail of a plug-in: the message goes to the core through the host table. Left out where core and plug-in are one program.
#include <cstdarg>
#include <cstdio>

#include "gpu/plugin.h"

namespace te {

nvte_status fail(nvte_status status, const char *format, ...) {
  char text[2048];
  va_list list;
  va_start(list, format);
  std::vsnprintf(text, sizeof text, format, list);
  va_end(list);
  return gpu::host().set_error(status, text);
}

}  // namespace te
