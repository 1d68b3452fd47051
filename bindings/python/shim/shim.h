/* SPDX-License-Identifier: Apache-2.0
 * The words that the generated shim (pyshim.c) is made of: framework tensors in, one libte call out, without Python.h.
 *
 * An entry point is  int32_t nvte_py_<op>(te_py *context, void *arguments)  where `arguments` is a Python tuple: the operator's
 * slots (libte/schema.py) and then its scalars. One tuple costs one ctypes conversion; a conversion per slot costs more than
 * everything else together. It is called through ctypes.PyDLL, so the GIL is held on entry; it is released round the operator.
 * Every Python function used comes by address from ctypes.pythonapi and is part of the stable ABI.
 *
 * Result: 0; a libte status (> 0, message in nvte_last_error); or a refusal (< 0), see TE_PY_*. No Python exception is left set. */
#ifndef LIBTE_SHIM_H
#define LIBTE_SHIM_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "libte/libte.h"

#define TE_PY_API __attribute__((visibility("default")))

/* Refusals: -(kind * 1000 + index in the tuple). */
enum { TE_PY_NOT_A_TENSOR = 1, TE_PY_NO_DATA = 2, TE_PY_SCALAR = 3, TE_PY_EXCEPTION = 4, TE_PY_MEMORY = 5, TE_PY_COUNT = 6 };
static inline int32_t te_refuse(int kind, int index) { return -(kind * 1000 + index); }

/* Filled by libte/_shim.py: the same layout as its ctypes.Structure. */
typedef struct te_py {
  const DLPackExchangeAPI *api; /* the framework's table; NULL: slots are addresses of DLTensors that libte/_shim.py prepared */
  void *tensor_type;            /* slots must be instances of it */
  void *none;
  ptrdiff_t type_offset; /* of ob_type in an object; -1: not known, ask is_instance */
  int (*is_subtype)(void *type, void *base);
  int (*is_instance)(void *object, void *type);
  void *(*tuple_item)(void *tuple, ptrdiff_t index);
  ptrdiff_t (*tuple_size)(void *tuple);
  double (*as_double)(void *object);
  long long (*as_long)(void *object);
  void *(*as_pointer)(void *object);
  void *(*error_occurred)(void);
  void (*error_clear)(void);
  void *(*save_thread)(void);
  void (*restore_thread)(void *state);
  const char *implementation; /* nvte_exec.implementation */
  void *workspace;            /* device memory of the calling thread; the CPU's is kept here */
  size_t workspace_size;
  void *stream; /* used where the table gives none */
  uint32_t exec_flags;
  uint32_t tensor_flags; /* added to every written tensor that has an amax: NVTE_TENSOR_AMAX_ACCUMULATE */
  size_t needed;         /* out: workspace bytes, when NVTE_ERR_WORKSPACE is returned */
  /* Memory of a device from the framework's allocator, for work on that stream; NULL: there is none. It stays until the same thread asks
   * again for the same device, stream and `captured`. Called with the GIL. */
  void *(*lend)(int32_t device_type, int32_t device_id, void *stream, size_t bytes, int32_t captured);
  int32_t (*is_capturing)(void *stream, int32_t *status); /* the runtime's; NULL: not known, nothing is remembered */
} te_py;

/* What one call needs beside its arguments. */
typedef struct te_call {
  te_py *py;
  void *tuple;
  int32_t status; /* first refusal; later words do nothing */
  nvte_exec exec;
  void *lists; /* memory of list fields, a chain */
} te_call;

static inline void te_begin(te_call *c, te_py *py, void *tuple, ptrdiff_t size) {
  c->py = py;
  c->tuple = tuple;
  c->status = py->tuple_size(tuple) == size ? 0 : te_refuse(TE_PY_COUNT, 0);
  c->exec.struct_size = 0;
  c->lists = NULL;
}

static inline int te_is_tensor(const te_py *py, char *object) {
  if (py->type_offset < 0) return py->is_instance(object, py->tensor_type) == 1;
  void *type = *(void **)(object + py->type_offset);
  return type == py->tensor_type || py->is_subtype(type, py->tensor_type);
}

static inline void te_absent(DLTensor *d) { memset(d, 0, sizeof *d); }

/* A Python function failed. Its exception would name neither operator nor argument, so the caller raises a better one. */
static inline void te_exception(te_call *c, int index) {
  c->py->error_clear();
  c->status = te_refuse(TE_PY_EXCEPTION, index);
}

/* Where calls run: on the device of the first tensor, on the framework's current stream. */
static inline void te_device(te_call *c, DLDevice device, int index) {
  nvte_exec *e = &c->exec;
  const te_py *py = c->py;
  e->struct_size = sizeof *e;
  e->device = device;
  e->stream = py->stream;
  e->workspace = py->workspace;
  e->workspace_size = py->workspace_size;
  e->implementation = py->implementation;
  e->flags = py->exec_flags;
  e->reserved = 0;
  if (device.device_type != kDLCPU && py->api && py->api->current_work_stream &&
      py->api->current_work_stream(device.device_type, device.device_id, &e->stream))
    te_exception(c, index);
}

/* One part of a descriptor from an object: 1 = there, 0 = absent (None) or refused (status set). */
static inline int te_object(te_call *c, void *object, DLTensor *d, int index) {
  /* An empty tensor may have no memory; libte takes NULL for "absent", so it gets an address that is never read. */
  static _Alignas(64) char nothing[64];
  const te_py *py = c->py;
  if (c->status || object == py->none) return te_absent(d), 0;
  if (!py->api) { /* slots are addresses then; with a table an integer is a mistake, not an address */
    *d = *(const DLTensor *)py->as_pointer(object);
  } else if (!te_is_tensor(py, object)) {
    c->status = te_refuse(TE_PY_NOT_A_TENSOR, index);
    return 0;
  } else if (py->api->dltensor_from_py_object_no_sync(object, d)) {
    te_exception(c, index);
    return 0;
  }
  if (!d->data) {
    int empty = 0;
    for (int i = 0; i < d->ndim; i++) empty |= d->shape[i] == 0;
    if (!empty) { /* FakeTensor, meta tensor, wrapper subclass without storage */
      c->status = te_refuse(TE_PY_NO_DATA, index);
      return 0;
    }
    d->data = nothing;
  }
  if (!c->exec.struct_size) te_device(c, d->device, index);
  return !c->status;
}
static inline int te_part(te_call *c, DLTensor *d, int index) { return te_object(c, c->py->tuple_item(c->tuple, index), d, index); }

static inline int32_t te_is_fp8(DLDataType t) { return t.code >= kDLFloat8_e3m4 && t.code <= kDLFloat8_e5m2fnuz; }

/* A plain tensor: everything but `data` is absent. */
static inline nvte_tensor *te_plain(te_call *c, nvte_tensor *t, int index) {
  if (!te_part(c, &t->data, index)) return NULL;
  t->struct_size = sizeof *t;
  memset((char *)t + offsetof(nvte_tensor, columnwise), 0, sizeof *t - offsetof(nvte_tensor, columnwise));
  return t;
}

static inline int te_contiguous(const DLTensor *d) {
  int64_t expect = 1;
  for (int32_t i = d->ndim; d->strides && i-- > 0; expect *= d->shape[i])
    if (d->shape[i] != 1 && d->strides[i] != expect) return 0;
  return 1;
}

/* A tensor with its scaling parts: slots index .. index+5 are data, columnwise, scale_inv, columnwise_scale_inv, scale, amax. */
typedef struct te_scaled {
  nvte_tensor t;
  int64_t shape[NVTE_MAX_DIMS], turned[2];
} te_scaled;
static inline nvte_tensor *te_quantized(te_call *c, te_scaled *q, int index, int written) {
  nvte_tensor *t = &q->t;
  const int row = te_part(c, &t->data, index), column = te_part(c, &t->columnwise, index + 1);
  const int inverse = te_part(c, &t->scale_inv, index + 2), column_inverse = te_part(c, &t->columnwise_scale_inv, index + 3);
  te_part(c, &t->scale, index + 4);
  const int amax = te_part(c, &t->amax, index + 5);
  if (c->status || !(row | column)) return NULL;
  t->struct_size = sizeof *t;
  const DLTensor *codes = row ? &t->data : &t->columnwise;
  t->scaling = te_is_fp8(codes->dtype) ? NVTE_SCALING_TENSOR : NVTE_SCALING_NONE;
  t->flags = written && amax ? c->py->tensor_flags : 0;
  if (column && inverse && !column_inverse) t->columnwise_scale_inv = t->scale_inv;
  const int32_t n = column ? t->columnwise.ndim : 0;
  if (!row && n > 0 && n <= NVTE_MAX_DIMS) { /* [K, M...] is all there is: the logical shape is [M..., K] */
    for (int32_t i = 1; i < n; i++) q->shape[i - 1] = t->columnwise.shape[i];
    q->shape[n - 1] = t->columnwise.shape[0];
    t->data = t->columnwise;
    t->data.data = NULL;
    t->data.byte_offset = 0;
    t->data.shape = q->shape;
    t->data.strides = NULL;
  }
  if (n > 2 && te_contiguous(&t->columnwise)) { /* to libte it is a matrix */
    q->turned[0] = t->columnwise.shape[0];
    q->turned[1] = 1;
    for (int32_t i = 1; i < n; i++) q->turned[1] *= t->columnwise.shape[i];
    t->columnwise.shape = q->turned;
    t->columnwise.strides = NULL;
    t->columnwise.ndim = 2;
  }
  return t;
}

/* A list of plain tensors from a tuple of tensors. */
static inline nvte_tensor **te_list(te_call *c, int index, size_t n) {
  void *list = c->py->tuple_item(c->tuple, index);
  if (c->status || list == c->py->none) return NULL;
  if (c->py->tuple_size(list) != (ptrdiff_t)n) {
    c->status = te_refuse(TE_PY_COUNT, index);
    return NULL;
  }
  char *block = calloc(1, sizeof(void *) + n * (sizeof(nvte_tensor) + sizeof(nvte_tensor *)));
  if (!block) {
    c->status = te_refuse(TE_PY_MEMORY, index);
    return NULL;
  }
  *(void **)block = c->lists;
  c->lists = block;
  nvte_tensor *tensors = (nvte_tensor *)(block + sizeof(void *));
  nvte_tensor **pointers = (nvte_tensor **)(tensors + n);
  for (size_t i = 0; i < n; i++) {
    tensors[i].struct_size = sizeof *tensors;
    pointers[i] = te_object(c, c->py->tuple_item(list, (ptrdiff_t)i), &tensors[i].data, index) ? &tensors[i] : NULL;
  }
  return pointers;
}

static inline int64_t te_int(te_call *c, int index, int64_t low, int64_t high) {
  if (c->status) return 0;
  const long long v = c->py->as_long(c->py->tuple_item(c->tuple, index));
  if (v == -1 && c->py->error_occurred()) te_exception(c, index);
  else if (v < low || v > high) c->status = te_refuse(TE_PY_SCALAR, index);
  return v;
}
static inline float te_float(te_call *c, int index) {
  if (c->status) return 0;
  const double v = c->py->as_double(c->py->tuple_item(c->tuple, index));
  if (v == -1 && c->py->error_occurred()) te_exception(c, index);
  return (float)v;
}
/* code | bits << 8 | lanes << 16 */
static inline DLDataType te_dtype(te_call *c, int index) {
  const int64_t v = te_int(c, index, 0, UINT32_MAX);
  const DLDataType t = {(uint8_t)v, (uint8_t)(v >> 8), (uint16_t)(v >> 16)};
  return t;
}

/* The calling thread's workspaces. The CPU's (the first) is grown on demand and freed when the thread ends; those that a framework lent, one a
 * device and stream, belong to it. A thread's own, since two threads' kernels may interleave on a stream. */
typedef struct te_memory {
  void *data;
  size_t size;
  DLDevice device;
  void *stream;
  struct te_memory *next;
} te_memory;
te_memory *te_thread_workspace(void);

/* The thread's entry of a device and stream, made if need be; NULL under capture, where the graph's pool lends memory to each call. */
static inline te_memory *te_lent(const te_py *py, const nvte_exec *e) {
  int32_t capturing = 0;
  te_memory *m = te_thread_workspace();
  if (!m || !py->is_capturing || (py->is_capturing(e->stream, &capturing) == 0 && capturing)) return NULL;
  for (; m->next; m = m->next)
    if (m->next->device.device_type == e->device.device_type && m->next->device.device_id == e->device.device_id && m->next->stream == e->stream) return m->next;
  if ((m->next = (te_memory *)calloc(1, sizeof *m))) {
    m->next->device = e->device;
    m->next->stream = e->stream;
  }
  return m->next;
}

/* Runs the operator with the GIL released. A call that lacks workspace gets it here: a CPU's from malloc, another device's from the framework.
 * Where the framework lends none, the size is handed up. */
static inline int32_t te_run(te_call *c, const char *op, nvte_status (*run)(const nvte_exec *, const void *), const void *args) {
  int32_t status = c->status;
  if (!status) {
    nvte_exec *e = c->exec.struct_size ? &c->exec : NULL;
    te_memory *memory = NULL;
    const int host = e && e->device.device_type == kDLCPU, lent = e && !host && !e->workspace && c->py->lend;
    if (host && !e->workspace) memory = te_thread_workspace();
    else if (lent) memory = te_lent(c->py, e);
    if (memory) {
      e->workspace = memory->data;
      e->workspace_size = memory->size;
    }
    void *state = c->py->save_thread();
    status = run(e, args);
    size_t bytes = 0;
    if (status == NVTE_ERR_WORKSPACE && nvte_workspace(op, e, args, &bytes) == NVTE_OK) {
      if (lent) {
        c->py->restore_thread(state);
        void *p = c->py->lend(e->device.device_type, e->device.device_id, e->stream, bytes, !memory);
        state = c->py->save_thread();
        if (memory) {
          memory->data = p;
          memory->size = p ? bytes : 0;
        }
        e->workspace = p;
        e->workspace_size = bytes;
        status = p ? (int32_t)run(e, args) : te_refuse(TE_PY_MEMORY, 0);
      } else if (!memory) {
        c->py->needed = bytes;
      } else if (bytes > memory->size) {
        void *grown = aligned_alloc(256, (bytes + 255) / 256 * 256);
        if (grown) {
          free(memory->data);
          e->workspace = memory->data = grown;
          e->workspace_size = memory->size = (bytes + 255) / 256 * 256;
          status = run(e, args);
        } else {
          status = te_refuse(TE_PY_MEMORY, 0);
        }
      }
    }
    c->py->restore_thread(state);
  }
  while (c->lists) {
    void *next = *(void **)c->lists;
    free(c->lists);
    c->lists = next;
  }
  return status;
}

#endif
