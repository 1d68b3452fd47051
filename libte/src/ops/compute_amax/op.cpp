// SPDX-License-Identifier: Apache-2.0
#include "cpu/isa.h"
#include "libte/quantize.h"

namespace te {
TE_CPU_KERNELS_3(compute_amax)

static nvte_status validate(const nvte_exec *, const void *p) {
  const auto &a = *static_cast<const nvte_compute_amax_args *>(p);
  if (a.flags & ~NVTE_COMPUTE_AMAX_ACCUMULATE) return fail(NVTE_ERR_INVALID_ARGUMENT, "flags must be NVTE_COMPUTE_AMAX_*, got 0x%x", a.flags);
  return NVTE_OK;
}

static const nvte_implementation table[] = {TE_CPU_IMPLEMENTATION(compute_amax)};
TE_OP(compute_amax) = {validate, nullptr, table, 1};
}  // namespace te
