// SPDX-License-Identifier: Apache-2.0
#include "libte/activation.h"

#include "cpu/isa.h"

namespace te {
TE_CPU_KERNELS_3(gated_activation_forward)
TE_CPU_KERNELS_3(gated_activation_backward)

template <class Args> static nvte_status validate(const nvte_exec *, const void *p) {
  const auto &a = *static_cast<const Args *>(p);
  if (a.activation < NVTE_ACTIVATION_GELU || a.activation > NVTE_ACTIVATION_SIGMOID)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "activation must be one of NVTE_ACTIVATION_* (0 to 6), got %d", a.activation);
  if (a.flags & ~NVTE_GATED_CLAMPED) return fail(NVTE_ERR_INVALID_ARGUMENT, "flags must be NVTE_GATED_*, got 0x%x", a.flags);
  if ((a.flags & NVTE_GATED_CLAMPED) && a.activation != NVTE_ACTIVATION_SILU)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "activation must be NVTE_ACTIVATION_SILU with NVTE_GATED_CLAMPED, got %d", a.activation);
  return NVTE_OK;
}

static const nvte_implementation forward[] = {TE_CPU_IMPLEMENTATION(gated_activation_forward)};
static const nvte_implementation backward[] = {TE_CPU_IMPLEMENTATION(gated_activation_backward)};
TE_OP(gated_activation_forward) = {validate<nvte_gated_activation_forward_args>, nullptr, forward, 1};
TE_OP(gated_activation_backward) = {validate<nvte_gated_activation_backward_args>, nullptr, backward, 1};
}  // namespace te
