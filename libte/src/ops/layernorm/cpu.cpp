// SPDX-License-Identifier: Apache-2.0
// LayerNorm on the CPU; the rows are in cpu/norm.h.
#include "libte/norm.h"

#include "cpu/norm.h"

namespace te::cpu::TE_CPU_ISA {

nvte_status layernorm_forward(const nvte_exec &, const nvte_layernorm_forward_args &a) {
  return norm_forward<true>({a.x, a.gamma, a.beta, a.residual, a.y, a.residual_out, a.mu, a.rstd, a.epsilon, a.flags});
}
nvte_status layernorm_backward(const nvte_exec &, const nvte_layernorm_backward_args &a) {
  return norm_backward<true>({a.dy, a.x, a.gamma, a.mu, a.rstd, a.add, a.dx, a.dgamma, a.dbeta, a.flags});
}

}  // namespace te::cpu::TE_CPU_ISA
