// SPDX-License-Identifier: Apache-2.0
#include "core/tensor.h"
#include "cpu/isa.h"
#include "libte/quantize.h"

namespace te {
TE_CPU_KERNELS_3(compute_amax)

static const nvte_implementation table[] = {TE_CPU_IMPLEMENTATION(compute_amax)};
TE_OP(compute_amax) = {nullptr, nullptr, table, 1};
}  // namespace te
