// SPDX-License-Identifier: Apache-2.0
#include "core/tensor.h"
#include "cpu/isa.h"
#include "libte/quantize.h"

namespace te {
TE_CPU_KERNELS_3(amax_and_scale_update)

static nvte_status validate(const nvte_exec *, const void *p) {
  const auto &a = *static_cast<const nvte_amax_and_scale_update_args *>(p);
  if (!is_fp8(dtype_of(a.dtype)))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "dtype must be e4m3, e5m2, e4m3fnuz or e5m2fnuz, got code %d with %d bits", a.dtype.code, a.dtype.bits);
  if (a.algorithm != NVTE_AMAX_MAX && a.algorithm != NVTE_AMAX_MOST_RECENT)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "algorithm must be NVTE_AMAX_MAX (0) or NVTE_AMAX_MOST_RECENT (1), got %d", a.algorithm);
  if (a.margin < -64 || a.margin > 64) return fail(NVTE_ERR_INVALID_ARGUMENT, "margin must be in [-64, 64], got %d", a.margin);
  int64_t total = 0;
  for (size_t i = 0; i < a.n; i++) {
    const DLTensor &h = a.history[i]->data;
    if (h.shape[0] < 1) return fail(NVTE_ERR_INVALID_ARGUMENT, "history[%zu] must have at least one row, got [0, %lld]", i, (long long)h.shape[1]);
    total += h.shape[1];
  }
  if (a.amax && present(a.amax->data) && numel(a.amax->data) != total)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "amax must be [total], the sum of k over the list = %lld, got [%lld]", (long long)total,
                (long long)numel(a.amax->data));
  return NVTE_OK;
}

static const nvte_implementation table[] = {TE_CPU_IMPLEMENTATION(amax_and_scale_update)};
TE_OP(amax_and_scale_update) = {validate, nullptr, table, 1};
}  // namespace te
