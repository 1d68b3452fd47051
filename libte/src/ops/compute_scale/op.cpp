// SPDX-License-Identifier: Apache-2.0
#include "core/tensor.h"
#include "cpu/isa.h"
#include "libte/quantize.h"

namespace te {
TE_CPU_KERNELS_3(compute_scale)

static nvte_status validate(const nvte_exec *, const void *p) {
  const auto &a = *static_cast<const nvte_compute_scale_args *>(p);
  if (!is_fp8(dtype_of(a.dtype)))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "dtype must be e4m3, e5m2, e4m3fnuz or e5m2fnuz, got code %d with %d bits", a.dtype.code, a.dtype.bits);
  if (a.flags & ~NVTE_COMPUTE_SCALE_POW2) return fail(NVTE_ERR_INVALID_ARGUMENT, "flags must be NVTE_COMPUTE_SCALE_*, got 0x%x", a.flags);
  return NVTE_OK;
}

static const nvte_implementation table[] = {TE_CPU_IMPLEMENTATION(compute_scale)};
TE_OP(compute_scale) = {validate, nullptr, table, 1};
}  // namespace te
