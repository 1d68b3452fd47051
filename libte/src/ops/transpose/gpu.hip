// SPDX-License-Identifier: Apache-2.0
// nvte_transpose on GPUs.
#include "gpu/transpose.h"

namespace te {
namespace {
nvte_status run(const nvte_exec *e, const void *p) {
  const auto &a = *static_cast<const nvte_transpose_args *>(p);
  return gpu::guarded(e, [&]() -> nvte_status {
    const DLTensor &x = a.x->data;
    const int64_t m = rows(x), k = columns(x);
    if (m == 0 || k == 0) return NVTE_OK;
    return gpu::transpose(*e, (int)element_bytes(x), address_as<const char>(x), device::rows_of(x), address_as<char>(a.y->data), m, k,
                          a.noop ? address_as<const float>(a.noop->data) : nullptr);
  });
}
const nvte_implementation table[] = {{sizeof(nvte_implementation), "transpose", "gpu", 0, 0, nullptr, nullptr, run}};
}  // namespace
namespace gpu {
TE_GPU_IMPLEMENTATIONS(transpose) = {table, 1};
}
}  // namespace te
