// SPDX-License-Identifier: Apache-2.0
// RMSNorm on the CPU; the rows are in cpu/norm.h.
#include "libte/norm.h"

#include "cpu/norm.h"

namespace te::cpu::TE_CPU_ISA {

nvte_status rmsnorm_forward(const nvte_exec &, const nvte_rmsnorm_forward_args &a) {
  return norm_forward<false>({a.x, a.gamma, nullptr, a.residual, a.y, a.residual_out, nullptr, a.rstd, a.epsilon, a.flags});
}
nvte_status rmsnorm_backward(const nvte_exec &, const nvte_rmsnorm_backward_args &a) {
  return norm_backward<false>({a.dy, a.x, a.gamma, nullptr, a.rstd, a.add, a.dx, a.dgamma, nullptr, a.flags});
}

}  // namespace te::cpu::TE_CPU_ISA
