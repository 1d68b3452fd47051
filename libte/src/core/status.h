// SPDX-License-Identifier: Apache-2.0
// Failing: a status and a thread-local message. Callable from every layer, the per-ISA kernels included (nothing inline).
#pragma once
#include "libte/base.h"

namespace te {

// Sets the calling thread's last error (printf format) and returns `status`, so that `return fail(...)` reads well. The door
// prefixes the name of the public function.
[[gnu::format(printf, 2, 3)]] nvte_status fail(nvte_status status, const char *format, ...);

// The message set by the last fail() on this thread.
const char *last_error();

// Whether fail() was called on this thread since the last await_error(): a callee that fails without a word must not leave an older
// call's text standing.
void await_error();
bool error_came();

// Puts "name: " before the last error of this thread; the door's and call_op's.
void prefix_error(const char *name);

// Runs f(context); false if it threw. Defined in src/api, the only place that catches.
bool call_guarded(void (*f)(void *context), void *context);

}  // namespace te
