// SPDX-License-Identifier: Apache-2.0
#include "core/tensor.h"
#include "cpu/isa.h"
#include "libte/quantize.h"

namespace te {
TE_CPU_KERNELS_3(transpose)

static nvte_status validate(const nvte_exec *, const void *p) {
  const DLDataType t = static_cast<const nvte_transpose_args *>(p)->x->data.dtype;
  const int bits = t.bits * t.lanes;
  if (bits != 8 && bits != 16 && bits != 32 && bits != 64)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "x must have elements of 1, 2, 4 or 8 bytes, got %d bits", bits);
  return NVTE_OK;
}

static const nvte_implementation table[] = {TE_CPU_IMPLEMENTATION(transpose)};
TE_OP(transpose) = {validate, nullptr, table, 1};
}  // namespace te
