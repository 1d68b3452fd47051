// SPDX-License-Identifier: Apache-2.0
// In the place of cudnn.cpp where the headers of cuDNN or of its front end were not to be had: the implementation says so.
#include "gpu/plugin.h"

namespace te {
namespace {
const char *refuse(const nvte_exec *, const void *) { return "libte_cuda.so was built without the headers of cuDNN and its front end"; }
nvte_status run(const nvte_exec *e, const void *args) { return fail(NVTE_ERR_UNSUPPORTED, "cudnn: %s", refuse(e, args)); }
const nvte_implementation table[] = {{sizeof(nvte_implementation), "attention_forward", "cudnn", 10, 0, refuse, nullptr, run},
                                     {sizeof(nvte_implementation), "attention_backward", "cudnn", 10, 0, refuse, nullptr, run}};
}  // namespace
namespace gpu {
TE_GPU_IMPLEMENTATIONS(attention_cudnn) = {table, 2};
}
}  // namespace te
