// SPDX-License-Identifier: Apache-2.0
#include "libte/norm.h"

#include "core/tensor.h"
#include "cpu/isa.h"

namespace te {
TE_CPU_KERNELS_3(rmsnorm_forward)
TE_CPU_KERNELS_3(rmsnorm_backward)

static bool given(const nvte_tensor *t) { return t && present(t->data); }

static nvte_status check_flags(uint32_t flags) {
  if (flags & ~NVTE_NORM_ZERO_CENTERED) return fail(NVTE_ERR_INVALID_ARGUMENT, "flags must be NVTE_NORM_*, got 0x%x", flags);
  return NVTE_OK;
}
static nvte_status validate_forward(const nvte_exec *, const void *p) {
  const auto &a = *static_cast<const nvte_rmsnorm_forward_args *>(p);
  if (given(a.residual_out) && !given(a.residual))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "residual_out must be absent without residual: it is the sum x + residual");
  return check_flags(a.flags);
}
static nvte_status validate_backward(const nvte_exec *, const void *p) {
  return check_flags(static_cast<const nvte_rmsnorm_backward_args *>(p)->flags);
}

static const nvte_implementation forward[] = {TE_CPU_IMPLEMENTATION(rmsnorm_forward)};
static const nvte_implementation backward[] = {TE_CPU_IMPLEMENTATION(rmsnorm_backward)};
TE_OP(rmsnorm_forward) = {validate_forward, nullptr, forward, 1};
TE_OP(rmsnorm_backward) = {validate_backward, nullptr, backward, 1};
}  // namespace te
