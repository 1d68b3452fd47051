// SPDX-License-Identifier: Apache-2.0
#include "libte/softmax.h"

#include "core/tensor.h"
#include "cpu/isa.h"

namespace te {
TE_CPU_KERNELS_3(softmax_forward)
TE_CPU_KERNELS_3(softmax_backward)

static nvte_status validate_forward(const nvte_exec *, const void *p) {
  const auto &a = *static_cast<const nvte_softmax_forward_args *>(p);
  if (a.mask_kind < NVTE_MASK_NONE || a.mask_kind > NVTE_MASK_CAUSAL_BOTTOM_RIGHT)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "mask_kind must be one of NVTE_MASK_* (0 to 2), got %d", a.mask_kind);
  if (!a.mask || !present(a.mask->data)) return NVTE_OK;
  const DLTensor &x = a.x->data, &m = a.mask->data;
  if (m.ndim < 1 || m.ndim > x.ndim)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "mask must have between 1 and x's %d dimensions, got %d", x.ndim, m.ndim);
  for (int i = 0; i < m.ndim; i++) {
    const int64_t want = x.shape[x.ndim - m.ndim + i];
    const bool is_last = i == m.ndim - 1;
    if (m.shape[i] != want && (is_last || m.shape[i] != 1))
      return fail(NVTE_ERR_INVALID_ARGUMENT, "mask aligns right with x, [b|1, h|1, Q|1, Kv]: dimension %d must be %lld%s, got %lld", i,
                  (long long)want, is_last ? "" : " or 1", (long long)m.shape[i]);
  }
  return NVTE_OK;
}

static const nvte_implementation forward[] = {TE_CPU_IMPLEMENTATION(softmax_forward)};
static const nvte_implementation backward[] = {TE_CPU_IMPLEMENTATION(softmax_backward)};
TE_OP(softmax_forward) = {validate_forward, nullptr, forward, 1};
TE_OP(softmax_backward) = {nullptr, nullptr, backward, 1};
}  // namespace te
