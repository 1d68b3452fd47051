// SPDX-License-Identifier: Apache-2.0
// The rule that what a call writes lies apart from everything else it touches, or exactly on an input that the header lets it replace.
#pragma once
#include "core/op.h"

namespace te {

// True where the two have a byte in common. Exact for slices of one buffer that interleave (packed QKV, columns of a matrix); what is too
// tangled to tell counts as shared.
bool shares_memory(const DLTensor &x, const DLTensor &y);

// args has passed the schema's check; `workspace`: the bytes of exec->workspace that the call uses, since a caller within the library may keep
// arguments behind them. NVTE_ERR_INVALID_ARGUMENT names both arguments.
nvte_status check_overlap(const Op &op, const nvte_exec *exec, const void *args, size_t workspace);

}  // namespace te
