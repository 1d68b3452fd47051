// SPDX-License-Identifier: Apache-2.0
#include "ops/composite.h"

#include "core/op.h"

namespace te {
namespace {
using linear::given;

nvte_status validate(const nvte_exec *, const void *p) {
  const auto &a = *static_cast<const nvte_norm_linear_forward_args *>(p);
  if (a.norm != NVTE_NORM_LAYER && a.norm != NVTE_NORM_RMS)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "norm must be NVTE_NORM_LAYER (0) or NVTE_NORM_RMS (1), got %d", a.norm);
  if (a.norm == NVTE_NORM_RMS && (given(a.beta) || given(a.mu)))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "%s must be absent with NVTE_NORM_RMS", given(a.beta) ? "beta" : "mu");
  if (a.flags & NVTE_LINEAR_INPUT_READY)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "flags must not have NVTE_LINEAR_INPUT_READY: the input's codes are made here");
  if (const nvte_status s = linear::validate_weight(a)) return s;
  if (!given(a.x_quantized)) {
    if (!given(a.normalized)) return fail(NVTE_ERR_INVALID_ARGUMENT, "normalized is missing: it is the GEMM's operand where nothing is quantised");
    return linear::agree("weight", a.weight, "normalized", a.normalized);
  }
  return linear::needs_scale("x_quantized", a.x_quantized, a.flags, false);
}

const linear::Back back = {call_op, nullptr, false, nullptr};

nvte_status run(const nvte_exec *exec, const void *p) { return linear::run_steps<nvte_norm_linear_forward_args, linear::norm_forward>(back, exec, p); }
nvte_status workspace(const nvte_exec *exec, const void *p, size_t *bytes) {
  return linear::query_steps<nvte_norm_linear_forward_args, linear::norm_forward>(back, exec, p, bytes);
}

const nvte_implementation table[] = {{sizeof(nvte_implementation), "norm_linear_forward", "cpu", 0, 0, nullptr, workspace, run}};
}  // namespace
TE_OP(norm_linear_forward) = {validate, nullptr, table, 1};
}  // namespace te
