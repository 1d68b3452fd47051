// SPDX-License-Identifier: Apache-2.0
#include "libte/quantize.h"

#include "cpu/vec.h"
#include "scaling/tensor.h"

namespace te::cpu::TE_CPU_ISA {

nvte_status compute_scale(const nvte_exec &, const nvte_compute_scale_args &a) {
  const float largest = fp8_max(dtype_of(a.dtype));
  const auto *amax = address_as<const float>(a.amax->data);
  auto *scale = address_as<float>(a.scale->data);
  auto *scale_inv = a.scale_inv && present(a.scale_inv->data) ? address_as<float>(a.scale_inv->data) : nullptr;
  for (int64_t i = 0, n = numel(a.amax->data); i < n; i++) {
    scale[i] = scaling::from_amax(amax[i], largest, a.epsilon, a.flags & NVTE_COMPUTE_SCALE_POW2);
    if (scale_inv) scale_inv[i] = 1.f / scale[i];
  }
  return NVTE_OK;
}

}  // namespace te::cpu::TE_CPU_ISA
