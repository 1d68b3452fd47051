// SPDX-License-Identifier: Apache-2.0
// The log: one line a call, to standard error or to the sink of nvte_log_set.
#pragma once
#include "core/status.h"

namespace te {

enum LogLevel : int32_t { kLogTrace = 0, kLogInfo = 1, kLogWarning = 2, kLogError = 3 };

// Dropped when below the key log.level, except that LIBTE_TRACE lets trace lines through.
[[gnu::format(printf, 2, 3)]] void log(LogLevel level, const char *format, ...);
void log_text(int32_t level, const char *text);
void set_log_sink(nvte_log_fn sink, void *context);

}  // namespace te
