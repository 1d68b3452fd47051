// SPDX-License-Identifier: Apache-2.0
#include "cpu/isa.h"
#include "libte/quantize.h"

namespace te {
TE_CPU_KERNELS_3(dequantize)

static const nvte_implementation table[] = {TE_CPU_IMPLEMENTATION(dequantize)};
TE_OP(dequantize) = {nullptr, nullptr, table, 1};
}  // namespace te
