// SPDX-License-Identifier: Apache-2.0
#include "cpu/isa.h"
#include "libte/quantize.h"

namespace te {
TE_CPU_KERNELS_3(quantize)

static const nvte_implementation impls[] = {TE_CPU_IMPLEMENTATION(quantize)};
TE_OP(quantize) = {nullptr, nullptr, impls, 1};
}  // namespace te
