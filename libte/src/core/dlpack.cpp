// SPDX-License-Identifier: Apache-2.0
// DLPack in and out. Strides, byte_offset, the read-only flag and the version are honoured or refused, never ignored.
#include <stdlib.h>
#include <string.h>

#include "core/text.h"

namespace te {
namespace {

nvte_status check_part(const DLTensor &t) {
  if (t.ndim < 0 || t.ndim > NVTE_MAX_DIMS)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "ndim must be 0..%d, got %d", NVTE_MAX_DIMS, (int)t.ndim);
  if (t.ndim && !t.shape) return fail(NVTE_ERR_INVALID_ARGUMENT, "shape is NULL but ndim is %d", (int)t.ndim);
  const int bits = t.dtype.bits;
  if (t.dtype.lanes != 1 || (bits != 8 && bits != 16 && bits != 32 && bits != 64) || t.dtype.code > kDLFloat4_e2m1fn ||
      t.dtype.code == kDLOpaqueHandle)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "dtype must have one lane of 8, 16, 32 or 64 bits, got %s", dtype_name(t.dtype));
  bool empty = false;
  int64_t n = bits / 8;
  for (int i = 0; i < t.ndim; i++) {
    if (t.shape[i] < 0) return fail(NVTE_ERR_INVALID_ARGUMENT, "shape[%d] must be >= 0, got %lld", i, (long long)t.shape[i]);
    if (t.strides && t.strides[i] < 0)
      return fail(NVTE_ERR_INVALID_ARGUMENT, "strides[%d] must be >= 0, got %lld", i, (long long)t.strides[i]);
    empty |= t.shape[i] == 0;
  }
  for (int i = 0; i < t.ndim && !empty; i++)
    if (__builtin_mul_overflow(n, t.shape[i], &n)) return fail(NVTE_ERR_INVALID_ARGUMENT, "shape: the number of bytes overflows 64 bits");
  if (!t.data && !empty) return fail(NVTE_ERR_INVALID_ARGUMENT, "data is NULL but the tensor is not empty");
  return NVTE_OK;
}

nvte_status import(const char *function, const DLTensor &t, uint32_t flags, nvte_tensor *tensor) {
  if (!tensor) return fail(NVTE_ERR_INVALID_ARGUMENT, "%s: tensor is NULL", function);
  if (tensor->struct_size < sizeof(nvte_tensor))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "%s: tensor->struct_size must be at least %zu, got %zu", function, sizeof(nvte_tensor),
                tensor->struct_size);
  if (const nvte_status s = check_part(t)) {
    prefix_error(function);
    return s;
  }
  const size_t size = tensor->struct_size;
  memset(tensor, 0, size);
  tensor->struct_size = size;
  tensor->data = t;
  tensor->flags = flags;
  return NVTE_OK;
}

// The allocation behind an exported tensor.
template <class Managed> struct Exported {
  Managed managed;
  void (*release)(void *);
  void *context;
  int64_t shape[NVTE_MAX_DIMS], strides[NVTE_MAX_DIMS];

  static void drop(Managed *m) {
    auto *e = static_cast<Exported *>(m->manager_ctx);
    if (e->release) e->release(e->context);
    free(e);
  }
};

template <class Managed>
nvte_status make(const char *function, const DLTensor *part, void (*release)(void *), void *context, Managed **managed) {
  if (!part) return fail(NVTE_ERR_INVALID_ARGUMENT, "%s: part is NULL", function);
  if (!managed) return fail(NVTE_ERR_INVALID_ARGUMENT, "%s: managed is NULL", function);
  if (const nvte_status s = check_part(*part)) {
    prefix_error(function);
    return s;
  }
  auto *e = static_cast<Exported<Managed> *>(calloc(1, sizeof(Exported<Managed>)));
  if (!e) return fail(NVTE_ERR_OUT_OF_MEMORY, "%s: no memory for the descriptor", function);
  e->release = release;
  e->context = context;
  e->managed.dl_tensor = *part;
  for (int i = 0; i < part->ndim; i++) {
    e->shape[i] = part->shape[i];
    e->strides[i] = stride_of(*part, i);
  }
  e->managed.dl_tensor.shape = e->shape;
  e->managed.dl_tensor.strides = e->strides;
  e->managed.manager_ctx = e;
  e->managed.deleter = Exported<Managed>::drop;
  *managed = &e->managed;
  return NVTE_OK;
}

}  // namespace
}  // namespace te

extern "C" {

NVTE_API nvte_status nvte_tensor_from_dlpack(const DLManagedTensor *managed, nvte_tensor *tensor) {
  if (!managed) return te::fail(NVTE_ERR_INVALID_ARGUMENT, "nvte_tensor_from_dlpack: managed is NULL");
  return te::import("nvte_tensor_from_dlpack", managed->dl_tensor, 0, tensor);
}

NVTE_API nvte_status nvte_tensor_from_dlpack_versioned(const DLManagedTensorVersioned *managed, nvte_tensor *tensor) {
  const char *function = "nvte_tensor_from_dlpack_versioned";
  if (!managed) return te::fail(NVTE_ERR_INVALID_ARGUMENT, "%s: managed is NULL", function);
  if (managed->version.major != DLPACK_MAJOR_VERSION)
    return te::fail(NVTE_ERR_VERSION, "%s: the tensor is DLPack %u.%u, this build speaks major version %d", function,
                    managed->version.major, managed->version.minor, DLPACK_MAJOR_VERSION);
  return te::import(function, managed->dl_tensor, managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY ? NVTE_TENSOR_READ_ONLY : 0, tensor);
}

NVTE_API nvte_status nvte_tensor_to_dlpack(const DLTensor *part, void (*release)(void *context), void *context,
                                           DLManagedTensor **managed) {
  // Consumers of the legacy struct predate the fp8 codes (DLPack 1.1).
  if (part && part->dtype.code > kDLBool)
    return te::fail(NVTE_ERR_INVALID_ARGUMENT, "nvte_tensor_to_dlpack: %s needs a versioned DLPack tensor", te::dtype_name(part->dtype));
  return te::make("nvte_tensor_to_dlpack", part, release, context, managed);
}

NVTE_API nvte_status nvte_tensor_to_dlpack_versioned(const DLTensor *part, uint64_t flags, void (*release)(void *context),
                                                     void *context, DLManagedTensorVersioned **managed) {
  const uint64_t known = DLPACK_FLAG_BITMASK_READ_ONLY | DLPACK_FLAG_BITMASK_IS_COPIED;
  if (flags & ~known)
    return te::fail(NVTE_ERR_INVALID_ARGUMENT, "nvte_tensor_to_dlpack_versioned: flags must be of DLPACK_FLAG_BITMASK_READ_ONLY | "
                    "IS_COPIED, got %#llx", (unsigned long long)flags);
  const nvte_status s = te::make("nvte_tensor_to_dlpack_versioned", part, release, context, managed);
  if (s != NVTE_OK) return s;
  (*managed)->version.major = DLPACK_MAJOR_VERSION;
  (*managed)->version.minor = DLPACK_MINOR_VERSION;
  (*managed)->flags = flags;
  return NVTE_OK;
}

NVTE_API void nvte_dlpack_release(DLManagedTensor *managed) {
  if (managed && managed->deleter) managed->deleter(managed);
}

NVTE_API void nvte_dlpack_release_versioned(DLManagedTensorVersioned *managed) {
  if (managed && managed->deleter) managed->deleter(managed);
}

}  // extern "C"
