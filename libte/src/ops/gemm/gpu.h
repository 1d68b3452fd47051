// SPDX-License-Identifier: Apache-2.0
// What gpu.hip does for a product that a vendor's library has computed: the rest of nvte_gemm, from f32 sums in memory.
#pragma once
#include "gpu/plugin.h"

namespace te::gemm {

// Bytes of workspace for finish() or operand_sums(), the sums not counted.
size_t finish_bytes(const nvte_gemm_args &a);
// dbias of a call without NVTE_GEMM_DGELU.
nvte_status operand_sums(const nvte_exec &e, const nvte_gemm_args &a, void *space);
// Everything behind the product: scales, alpha, beta, bias, GELU, D in every form, amax, dbias. sums: [M, N] of op(A) op(B), unscaled.
nvte_status finish(const nvte_exec &e, const nvte_gemm_args &a, const float *sums, void *space);

// The kernel that takes every call, or none on this chip and says why.
nvte_status run_gpu(const nvte_exec &e, const nvte_gemm_args &a);

// blaslt.cpp
const char *refuse_blaslt(const nvte_exec *exec, const void *args);
nvte_status workspace_blaslt(const nvte_exec *exec, const void *args, size_t *bytes);
nvte_status run_blaslt(const nvte_exec *exec, const void *args);

}  // namespace te::gemm
