// SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <stdarg.h>
#include <stdio.h>

#include <mutex>

#include "core/config.h"

namespace te {
namespace {
std::mutex &mutex() {
  static std::mutex &m = *new std::mutex;
  return m;
}
nvte_log_fn the_sink = nullptr;
void *the_context = nullptr;
}  // namespace

void set_log_sink(nvte_log_fn sink, void *context) {
  std::lock_guard<std::mutex> lock(mutex());
  the_sink = sink;
  the_context = context;
}

void log_text(int32_t level, const char *text) {
  if (level < config::log_threshold() && !(level == kLogTrace && config::tracing())) return;
  nvte_log_fn sink;
  void *context;
  {
    std::lock_guard<std::mutex> lock(mutex());  // not held in the sink: it may call libte
    sink = the_sink;
    context = the_context;
  }
  static const char *const names[] = {"trace", "info", "warning", "error"};
  if (sink) sink(level, text, context);
  else fprintf(stderr, "libte: %s: %s\n", level >= 0 && level < 4 ? names[level] : "log", text);
}

void log(LogLevel level, const char *format, ...) {
  char text[4096];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  log_text(level, text);
}

}  // namespace te
