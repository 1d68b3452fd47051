// SPDX-License-Identifier: Apache-2.0
#include "libte/dropout.h"

#include "cpu/isa.h"

namespace te {
TE_CPU_KERNELS_3(dropout_forward)
TE_CPU_KERNELS_3(dropout_backward)

template <class Args> static nvte_status validate(const nvte_exec *, const void *p) {
  const Args &a = *static_cast<const Args *>(p);
  if (!(a.p >= 0 && a.p <= 1)) return fail(NVTE_ERR_INVALID_ARGUMENT, "p must be in [0, 1], got %g", (double)a.p);
  return NVTE_OK;
}

static const nvte_implementation forward[] = {TE_CPU_IMPLEMENTATION(dropout_forward)};
static const nvte_implementation backward[] = {TE_CPU_IMPLEMENTATION(dropout_backward)};
TE_OP(dropout_forward) = {validate<nvte_dropout_forward_args>, nullptr, forward, 1};
TE_OP(dropout_backward) = {validate<nvte_dropout_backward_args>, nullptr, backward, 1};
}  // namespace te
