/* SPDX-License-Identifier: Apache-2.0
 * The tensor descriptor, the execution context, and DLPack in and out. */
#ifndef LIBTE_TENSOR_H
#define LIBTE_TENSOR_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How the numbers in `data` are scaled. */
enum {
  NVTE_SCALING_NONE = 0,  /* plain numbers */
  NVTE_SCALING_TENSOR = 1 /* one f32 scale: data = saturate(x * scale), x ~ data * scale_inv; columnwise is the transpose [K, M] */
};

/* nvte_tensor.flags */
#define NVTE_TENSOR_READ_ONLY 0x1u       /* refused where an operator writes */
#define NVTE_TENSOR_AMAX_ACCUMULATE 0x2u /* amax = max(amax, new) instead of being overwritten */

/* A borrowed description of a tensor; libte keeps no reference after a call. A part whose data pointer is NULL is absent,
 * except that data.shape always gives the logical shape [*, K] (M = product of the leading dimensions).
 * Strides NULL = C-contiguous; a stride of 0 may be read but not written; negative strides are refused.
 * Nothing that a call writes (outputs, their scale_inv and amax, the workspace) may share memory with another argument, unless the
 * field's comment says that it may alias one: then element for element the same.
 * Zero-initialise, then set struct_size = sizeof(nvte_tensor). */
typedef struct nvte_tensor {
  size_t struct_size;
  DLTensor data;                 /* row-wise numbers, logical shape */
  DLTensor columnwise;           /* second orientation, in its physical shape */
  DLTensor scale_inv;            /* f32 [1]: multiply data by it to get the numbers back; written by whoever writes data */
  DLTensor columnwise_scale_inv; /* the same for columnwise; may be the same memory as scale_inv */
  DLTensor scale;                /* f32 [1]: the multiplier used when writing; absent = 1 */
  DLTensor amax;                 /* f32 [1]: receives max |x| of what is written, before scaling; NaN is ignored */
  int32_t scaling;               /* NVTE_SCALING_* */
  uint32_t flags;                /* NVTE_TENSOR_* */
} nvte_tensor;

/* nvte_exec.flags */
#define NVTE_EXEC_DETERMINISTIC 0x1u /* refuse implementations whose result depends on timing */

/* Where and how a call runs. A NULL exec means the CPU with no workspace.
 * stream: the device's stream (hipStream_t / cudaStream_t), NULL = its default stream; ignored on the CPU.
 * implementation: NULL = the library chooses; a name ("cpu", "gpu", ...) = that one or an error. */
typedef struct nvte_exec {
  size_t struct_size;
  DLDevice device;
  void *stream;
  void *workspace; /* device memory, 256-byte aligned (CPU: 64), see nvte_workspace */
  size_t workspace_size;
  const char *implementation;
  uint32_t flags; /* NVTE_EXEC_* */
  uint32_t reserved;
} nvte_exec;

/* Fills *tensor (struct_size set by the caller) with a borrowed view of a legacy DLPack tensor; the caller keeps ownership
 * of `managed` and must outlive the view. Checks dtype, rank <= NVTE_MAX_DIMS, shape >= 0, strides >= 0.
 * NVTE_ERR_INVALID_ARGUMENT  a rule is broken; nothing is written. Since 0.1. */
NVTE_API nvte_status nvte_tensor_from_dlpack(const DLManagedTensor *managed, nvte_tensor *tensor);

/* The same for a versioned tensor. A major version other than ours is refused with NVTE_ERR_VERSION without reading a field
 * past `flags`; DLPACK_FLAG_BITMASK_READ_ONLY becomes NVTE_TENSOR_READ_ONLY. Since 0.1. */
NVTE_API nvte_status nvte_tensor_from_dlpack_versioned(const DLManagedTensorVersioned *managed, nvte_tensor *tensor);

/* Makes a managed DLPack tensor (legacy / versioned) from one descriptor part, copying shape and strides (strides are always
 * written). `release(context)` is called once when the consumer drops it; it may be NULL.
 * NVTE_ERR_INVALID_ARGUMENT, NVTE_ERR_OUT_OF_MEMORY. Since 0.1. */
NVTE_API nvte_status nvte_tensor_to_dlpack(const DLTensor *part, void (*release)(void *context), void *context,
                                           DLManagedTensor **managed);
NVTE_API nvte_status nvte_tensor_to_dlpack_versioned(const DLTensor *part, uint64_t flags, void (*release)(void *context),
                                                     void *context, DLManagedTensorVersioned **managed);

/* Calls the deleter of a managed tensor that was imported but not consumed; a NULL tensor or deleter is legal. Since 0.1. */
NVTE_API void nvte_dlpack_release(DLManagedTensor *managed);
NVTE_API void nvte_dlpack_release_versioned(DLManagedTensorVersioned *managed);

#ifdef __cplusplus
}
#endif
#endif
