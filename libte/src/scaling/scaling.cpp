// SPDX-License-Identifier: Apache-2.0
#include "scaling/scaling.h"

namespace te {
namespace {

void transposed(int64_t m, int64_t k, int64_t shape[2]) {
  shape[0] = k;
  shape[1] = m;
}

const Scaling kModes[] = {
    {NVTE_SCALING_NONE, "NVTE_SCALING_NONE", DType::other, [](DType d) { return !is_fp8(d); }, transposed},
    {NVTE_SCALING_TENSOR, "NVTE_SCALING_TENSOR", DType::f32, is_fp8, transposed},
};

}  // namespace

const Scaling *find_scaling(int32_t mode) {
  for (const Scaling &s : kModes)
    if (s.mode == mode) return &s;
  return nullptr;
}

const char *scaling_choices() { return "NVTE_SCALING_NONE (0) or NVTE_SCALING_TENSOR (1)"; }

}  // namespace te
