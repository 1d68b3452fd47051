// SPDX-License-Identifier: Apache-2.0
// LayerNorm on GPUs; the rows are in gpu/norm.h.
#include "gpu/norm.h"

namespace te {
namespace {
using Forward = nvte_layernorm_forward_args;
using Backward = nvte_layernorm_backward_args;
auto plan(const Forward &a, gpu::Space &space) { return gpu::norm_forward_plan<false>(a, space); }
auto plan(const Backward &a, gpu::Space &space) { return gpu::norm_backward_plan<false>(a, space); }
nvte_status launch(const nvte_exec &e, const Forward &, gpu::NormForwardCall<Forward> &c) { return gpu::norm_forward_launch<false>(e, c); }
nvte_status launch(const nvte_exec &e, const Backward &a, const gpu::NormBackwardCall &c) { return gpu::norm_backward_launch<false>(e, c, a.dgamma, a.dbeta); }

const nvte_implementation table[] = {TE_GPU_PLANNED(layernorm_forward), TE_GPU_PLANNED(layernorm_backward)};
}  // namespace
namespace gpu {
TE_GPU_IMPLEMENTATIONS(layernorm) = {table, 2};
}
}  // namespace te
