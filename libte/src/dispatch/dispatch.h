// SPDX-License-Identifier: Apache-2.0
// The switchboard: device -> ordered implementations -> the first that does not refuse. It knows descriptors, not operators.
#pragma once
#include "core/op.h"
#include "core/text.h"

namespace te {

// One look at an operator's implementations.
struct Choice {
  const nvte_implementation *implementation = nullptr;
  TextOf<2048> refusals;  // "gpu: reason; rtc: reason"
};

// Chooses by exec->device and exec->implementation. NVTE_ERR_UNSUPPORTED lists each refusal; `choice` is filled either way.
nvte_status choose(const Op &op, const nvte_exec *exec, const void *args, Choice *choice);

// Bytes of workspace that a chosen implementation needs.
nvte_status workspace_bytes(const Choice &choice, const nvte_exec *exec, const void *args, size_t *bytes);

// Schema check, validate, choose, workspace check, run. exec and args are admitted.
nvte_status dispatch(const Op &op, const nvte_exec *exec, const void *args, Choice *choice);
// The part of it that comes before the choice.
nvte_status check(const Op &op, const nvte_exec *exec, const void *args);
// Logs the call (LIBTE_TRACE=1). nested: made by a composite.
void trace(const Op &op, const nvte_exec *exec, const void *args, const Choice &choice, nvte_status status, bool nested);

}  // namespace te
