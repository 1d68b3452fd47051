// SPDX-License-Identifier: Apache-2.0
#include "cpu/isa.h"
#include "ops/composite.h"

namespace te {
namespace {
using linear::given;

nvte_status validate_forward(const nvte_exec *, const void *p) {
  const auto &a = *static_cast<const nvte_linear_forward_args *>(p);
  if (const nvte_status s = linear::validate_weight(a)) return s;
  const bool ready = (a.flags & NVTE_LINEAR_INPUT_READY) != 0;
  if (ready && !given(a.x_quantized)) return fail(NVTE_ERR_INVALID_ARGUMENT, "x_quantized is missing: NVTE_LINEAR_INPUT_READY says that it holds the codes");
  if (!ready && !given(a.x)) return fail(NVTE_ERR_INVALID_ARGUMENT, "x is missing: only NVTE_LINEAR_INPUT_READY with x_quantized does without it");
  return given(a.x_quantized) ? linear::needs_scale("x_quantized", a.x_quantized, a.flags, ready) : linear::agree("weight", a.weight, "x", a.x);
}

nvte_status validate_backward(const nvte_exec *, const void *p) {
  const auto &a = *static_cast<const nvte_linear_backward_args *>(p);
  if (const nvte_status s = linear::known_flags(a.flags)) return s;
  const bool ready = (a.flags & NVTE_LINEAR_INPUT_READY) != 0;
  if (ready && !given(a.dy_quantized)) return fail(NVTE_ERR_INVALID_ARGUMENT, "dy_quantized is missing: NVTE_LINEAR_INPUT_READY says that it holds the codes");
  if (!ready && !given(a.dy)) return fail(NVTE_ERR_INVALID_ARGUMENT, "dy is missing: only NVTE_LINEAR_INPUT_READY with dy_quantized does without it");
  if (ready && given(a.dbias)) return fail(NVTE_ERR_INVALID_ARGUMENT, "dbias must be absent with NVTE_LINEAR_INPUT_READY: whoever made the codes sums the bias gradient");
  if (given(a.dx) && !given(a.weight)) return fail(NVTE_ERR_INVALID_ARGUMENT, "weight is missing: dx needs it");
  if (given(a.dweight) && !given(a.x)) return fail(NVTE_ERR_INVALID_ARGUMENT, "x is missing: dweight needs it");
  const bool quantised = given(a.dy_quantized);
  const nvte_tensor *dy = quantised ? a.dy_quantized : a.dy;
  const char *name = quantised ? "dy_quantized" : "dy";
  if (given(a.dx))
    if (const nvte_status s = linear::agree("weight", a.weight, name, dy)) return s;
  if (given(a.dweight))
    if (const nvte_status s = linear::agree("x", a.x, name, dy)) return s;
  return quantised ? linear::needs_scale("dy_quantized", a.dy_quantized, a.flags, ready) : NVTE_OK;
}


const linear::Back back = {call_op, nullptr, false, nullptr};

template <class Args, void (*Body)(linear::Steps &, const Args &)> nvte_status run(const nvte_exec *exec, const void *p) {
  return linear::run_steps<Args, Body>(back, exec, p);
}
const nvte_implementation forward_table[] = {
    {sizeof(nvte_implementation), "linear_forward", "cpu", 0, 0, nullptr, nullptr, run<nvte_linear_forward_args, linear::forward>}};
const nvte_implementation backward_table[] = {
    {sizeof(nvte_implementation), "linear_backward", "cpu", 0, 0, nullptr, nullptr, run<nvte_linear_backward_args, linear::backward>}};
}  // namespace
TE_OP(linear_forward) = {validate_forward, nullptr, forward_table, 1};
TE_OP(linear_backward) = {validate_backward, nullptr, backward_table, 1};
}  // namespace te
