// SPDX-License-Identifier: Apache-2.0
// Quantisations of a composite in one launch, where the tensors are so small that a launch costs more than its kernel (ops/quantize/gpu.hip).
#pragma once
#include "gpu/plugin.h"
#include "ops/composite.h"

namespace te::gpu {

// linear::Back's `together`.
bool quantize_together(const nvte_exec *exec, const linear::Quantization *of, int n, uint32_t flags, nvte_status *status);

}  // namespace te::gpu
