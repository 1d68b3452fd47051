// SPDX-License-Identifier: Apache-2.0
// Scaling modes: one row each. What is asked about a mode anywhere in the library is asked of its row; a new mode is a new row (and
// its codec beside it), not a branch elsewhere.
#pragma once
#include "core/tensor.h"

namespace te {

struct Scaling {
  int32_t mode;              // NVTE_SCALING_*
  const char *name;          // "NVTE_SCALING_TENSOR"
  DType scale;               // dtype of scale_inv and scale; DType::other: the mode has none
  bool (*takes)(DType data);  // dtypes of the numbers
  // The physical shape of columnwise for a tensor whose flat logical view is [m, k].
  void (*columnwise)(int64_t m, int64_t k, int64_t shape[2]);

  bool scaled() const { return scale != DType::other; }
};

// nullptr for a number that is no mode of this build.
const Scaling *find_scaling(int32_t mode);
// "NVTE_SCALING_NONE (0) or NVTE_SCALING_TENSOR (1)", for messages.
const char *scaling_choices();

}  // namespace te
