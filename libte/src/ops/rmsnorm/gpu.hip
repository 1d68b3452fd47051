// SPDX-License-Identifier: Apache-2.0
// RMSNorm on GPUs; the rows are in gpu/norm.h.
#include "gpu/norm.h"

namespace te {
namespace {
using Forward = nvte_rmsnorm_forward_args;
using Backward = nvte_rmsnorm_backward_args;
auto plan(const Forward &a, gpu::Space &space) { return gpu::norm_forward_plan<true>(a, space); }
auto plan(const Backward &a, gpu::Space &space) { return gpu::norm_backward_plan<true>(a, space); }
nvte_status launch(const nvte_exec &e, const Forward &, gpu::NormForwardCall<Forward> &c) { return gpu::norm_forward_launch<true>(e, c); }
nvte_status launch(const nvte_exec &e, const Backward &a, const gpu::NormBackwardCall &c) { return gpu::norm_backward_launch<true>(e, c, a.dgamma, nullptr); }

const nvte_implementation table[] = {TE_GPU_PLANNED(rmsnorm_forward), TE_GPU_PLANNED(rmsnorm_backward)};
}  // namespace
namespace gpu {
TE_GPU_IMPLEMENTATIONS(rmsnorm) = {table, 2};
}
}  // namespace te
