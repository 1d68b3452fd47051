// SPDX-License-Identifier: Apache-2.0
#include "libte/quantize.h"

#include "cpu/vec.h"
#include "scaling/tensor.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

// 2^-margin is exact, so largest * 2^-margin / a is rounded once.
float shifted(float largest, int margin) {
  for (; margin > 0; margin--) largest *= 0.5f;
  for (; margin < 0; margin++) largest *= 2.f;
  return largest;
}

}  // namespace

nvte_status amax_and_scale_update(const nvte_exec &, const nvte_amax_and_scale_update_args &a) {
  const float largest = shifted(fp8_max(dtype_of(a.dtype)), a.margin);
  const float *reduced = a.amax && present(a.amax->data) ? address_as<const float>(a.amax->data) : nullptr;
  for (size_t e = 0; e < a.n; e++) {
    const int64_t len = a.history[e]->data.shape[0], k = a.history[e]->data.shape[1];
    const auto *history = address_as<const float>(a.history[e]->data), *scale = address_as<const float>(a.scale[e]->data);
    auto *new_history = address_as<float>(a.new_history[e]->data), *new_scale = address_as<float>(a.new_scale[e]->data);
    for (int64_t j = 0; j < k; j++) {
      const float last = reduced && reduced[j] != 0.f ? reduced[j] : history[j];
      if (last == 0.f) {  // not used in this step
        for (int64_t i = 0; i < len; i++) new_history[i * k + j] = history[i * k + j];
        new_scale[j] = scale[j];
        continue;
      }
      // row i + 1 is read before row i + 1 is written, so both may be one memory
      float top = last;
      for (int64_t i = 0; i + 1 < len; i++) {
        const float h = history[(i + 1) * k + j];
        if (h > top || h != h) top = h;
        new_history[i * k + j] = h;
      }
      new_history[(len - 1) * k + j] = last;
      new_history[j] = 0.f;
      new_scale[j] = scaling::delayed(a.algorithm == NVTE_AMAX_MAX ? top : last, largest, scale[j]);
    }
    if (reduced) reduced += k;
  }
  return NVTE_OK;
}

}  // namespace te::cpu::TE_CPU_ISA
