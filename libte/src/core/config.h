// SPDX-License-Identifier: Apache-2.0
// The configuration table: every setting of libte, and upstream's own variables that the adapters honour. config.cpp holds the
// only getenv of the library.
#pragma once
#include <string>

#include "core/status.h"

namespace te::config {

// Rows, in the order of the table in config.cpp.
enum Key : int {
  kNumThreads,
  kCpuIsa,
  kLogLevel,
  kTrace,
  kCacheDir,
  kBackendPath,
  kRangesLibrary,
  kOmpNumThreads,
  kUpstreamFirst  // upstream's variables follow; the adapters read them by name
};

// The value as a number: an int, a bool (0 or 1), or the index of a choice. NVTE_ERR_CONFIG where the environment is bad.
nvte_status number(Key key, int64_t *value);
nvte_status text(Key key, std::string *value);

// Grows with every nvte_config_set, so that derived values can be cached.
unsigned generation();

// NVTE_OK when all that an operator call reads is in order (threads, level, log, trace, ranges); cheap once it is.
nvte_status ready();

// Cached by ready().
bool tracing();
int log_threshold();

// nvte_config_*.
nvte_status get(const char *key, char *buf, size_t size, size_t *length);
nvte_status set(const char *key, const char *value);
const nvte_config_entry *entry(size_t i);
size_t count();

}  // namespace te::config
