// SPDX-License-Identifier: Apache-2.0
#include "libte/activation.h"

#include "cpu/isa.h"

namespace te {
TE_CPU_KERNELS_3(activation_forward)
TE_CPU_KERNELS_3(activation_backward)

template <class Args> static nvte_status validate(const nvte_exec *, const void *p) {
  const auto &a = *static_cast<const Args *>(p);
  if (a.activation < NVTE_ACTIVATION_GELU || a.activation > NVTE_ACTIVATION_SIGMOID)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "activation must be one of NVTE_ACTIVATION_* (0 to 6), got %d", a.activation);
  if (a.flags) return fail(NVTE_ERR_INVALID_ARGUMENT, "flags must be 0, got 0x%x", a.flags);
  return NVTE_OK;
}

static const nvte_implementation forward[] = {TE_CPU_IMPLEMENTATION(activation_forward)};
static const nvte_implementation backward[] = {TE_CPU_IMPLEMENTATION(activation_backward)};
TE_OP(activation_forward) = {validate<nvte_activation_forward_args>, nullptr, forward, 1};
TE_OP(activation_backward) = {validate<nvte_activation_backward_args>, nullptr, backward, 1};
}  // namespace te
