// SPDX-License-Identifier: Apache-2.0
// The boundary: nothing is thrown across it, and a failure's message names the public function.
#pragma once
#include <new>
#include <stdexcept>

#include "core/status.h"

namespace te {

// f() with exceptions turned into statuses.
template <class F> nvte_status caught(F &&f) {
  try {
    return f();
  } catch (const std::bad_alloc &) {
    return fail(NVTE_ERR_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception &e) {
    return fail(NVTE_ERR_INTERNAL, "unexpected exception: %s", e.what());
  } catch (...) {
    return fail(NVTE_ERR_INTERNAL, "unexpected exception");
  }
}

template <class F> nvte_status guard(const char *function, F &&f) {
  const nvte_status status = caught(f);
  if (status != NVTE_OK) prefix_error(function);
  return status;
}

}  // namespace te
