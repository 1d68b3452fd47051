// SPDX-License-Identifier: Apache-2.0
// The composite on GPUs: the operators of ops/composite.h called through the host's table, in the caller's workspace.
#include "ops/composite.h"

#include "gpu/plugin.h"

namespace te {
namespace {

linear::Back back() { return {gpu::host().call_op, gpu::host().workspace, true, linear::quantize_together}; }

template <class Args, void (*Body)(linear::Steps &, const Args &)> nvte_status run(const nvte_exec *e, const void *p) {
  return linear::run_steps<Args, Body>(back(), e, p);
}
template <class Args, void (*Body)(linear::Steps &, const Args &)> nvte_status workspace(const nvte_exec *e, const void *p, size_t *bytes) {
  return linear::query_steps<Args, Body>(back(), e, p, bytes);
}

const nvte_implementation table[] = {
    {sizeof(nvte_implementation), "norm_linear_forward", "gpu", 0, 0, nullptr, workspace<nvte_norm_linear_forward_args, linear::norm_forward>, run<nvte_norm_linear_forward_args, linear::norm_forward>}};
}  // namespace
namespace gpu {
TE_GPU_IMPLEMENTATIONS(norm_linear) = {table, 1};
}
}  // namespace te
