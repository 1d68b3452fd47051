// SPDX-License-Identifier: Apache-2.0
// What the generated doors call.
#pragma once
#include "api/admit.h"
#include "api/guard.h"
#include "core/op.h"

namespace te {

// nvte_<op>: op is the index into kOps.
nvte_status door(size_t op, const nvte_exec *exec, const void *args);

}  // namespace te
