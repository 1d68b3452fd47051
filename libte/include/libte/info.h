/* SPDX-License-Identifier: Apache-2.0
 * Reflection over operators, and the questions one may ask about a call without running it. */
#ifndef LIBTE_INFO_H
#define LIBTE_INFO_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Kinds of a field of an args struct. */
enum {
  NVTE_FIELD_TENSOR = 0,      /* const nvte_tensor * or nvte_tensor * */
  NVTE_FIELD_TENSOR_LIST = 1, /* nvte_tensor *const *, its count in another field */
  NVTE_FIELD_F32 = 2,
  NVTE_FIELD_I32 = 3,
  NVTE_FIELD_U32 = 4,
  NVTE_FIELD_I64 = 5,
  NVTE_FIELD_SIZE = 6,
  NVTE_FIELD_DTYPE = 7 /* DLDataType */
};

/* nvte_field.flags */
#define NVTE_FIELD_IN 0x1u
#define NVTE_FIELD_OUT 0x2u
#define NVTE_FIELD_OPTIONAL 0x4u
#define NVTE_FIELD_QUANTIZED 0x8u /* columnwise, scale_inv, scale, amax of the tensor are used */
#define NVTE_FIELD_ROWS 0x10u     /* unit stride in the last dimension, any other strides */
#define NVTE_FIELD_STRIDED 0x20u  /* any non-negative strides */

/* One field of an args struct, from the header comment beside it. */
typedef struct nvte_field {
  const char *name;
  int32_t kind;         /* NVTE_FIELD_TENSOR ... */
  uint32_t flags;       /* NVTE_FIELD_IN ... */
  uint32_t offset;      /* in the args struct */
  uint32_t size;        /* sizeof the field */
  uint32_t count;       /* lists: offset of the size_t field with the number of entries; else 0 */
  uint32_t reserved;    /* 0 */
  const char *dims;     /* "[*, H]"; "" for scalars; "[...]" = see the operator's comment */
  const char *dtypes;   /* "f32|f16|bf16", "x.dtype"; "" for scalars */
  double default_value; /* scalars: what NVTE_<OP>_ARGS_INIT sets */
  const char *help;
} nvte_field;

/* One operator. */
typedef struct nvte_op {
  size_t struct_size;
  const char *name; /* "rmsnorm_forward" */
  size_t args_size;
  const nvte_field *fields;
  size_t n_fields;
  const char *help; /* the header comment */
  nvte_status (*run)(const nvte_exec *exec, const void *args); /* the public function */
} nvte_op;

/* Number of operators; operator i in header order (NULL past the end); operator by name (NULL if none). Since 0.1. */
NVTE_API size_t nvte_op_count(void);
NVTE_API const nvte_op *nvte_op_at(size_t i);
NVTE_API const nvte_op *nvte_op_find(const char *name);

/* Writes the names of the implementations known for an operator on a device type, best first. *count: in, the room in names;
 * out, how many there are. NVTE_ERR_NOT_FOUND  no such operator. Since 0.1. */
NVTE_API nvte_status nvte_op_implementations(const char *op, int32_t device_type, const char **names, size_t *count);

/* Fills shape, ndim and dtype of every given output from the inputs, without reading data. For each output the caller points
 * data.shape (and the shape of every other part it wants filled) at an array of NVTE_MAX_DIMS; data pointers stay NULL. An
 * output dtype already set (bits != 0) is kept and checked; else the first documented one is taken. Strides become NULL.
 * NVTE_ERR_NOT_FOUND, NVTE_ERR_INVALID_ARGUMENT. Since 0.1. */
NVTE_API nvte_status nvte_infer(const char *op, const void *args);

/* Writes the bytes of exec->workspace that the call would need. Same errors as the call. Data pointers are not read here nor in
 * nvte_explain: where there is no memory yet, any non-NULL multiple of 256 says that a part will be there. Since 0.1. */
NVTE_API nvte_status nvte_workspace(const char *op, const nvte_exec *exec, const void *args, size_t *bytes);

/* Writes a text: which implementation would run and why each better one refuses. Same errors as the call, except that an
 * unsupported call is explained with NVTE_OK. The text is cut to size, and always terminated where size > 0. Since 0.1. */
NVTE_API nvte_status nvte_explain(const char *op, const nvte_exec *exec, const void *args, char *buf, size_t size);

#ifdef __cplusplus
}
#endif
#endif
