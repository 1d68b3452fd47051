/* SPDX-License-Identifier: Apache-2.0
 * One XLA FFI handler for every operator. It decodes the call frame itself, by the operator's field table, and is built against the
 * headers of the oldest supported jaxlib: a runtime takes handlers of its own minor version or an older one.
 *
 * Attributes: op (string); `inputs` and `results` (i64), bit s = slot s (numbered as libte.schema does) is the next argument / result,
 * both bits = the result's memory, which XLA has aliased to the argument; `wide` (i64), bit s = the slot's i32 [..., 2] is an i64 [...],
 * since JAX has no 64-bit integers by default; `workspace` (i64), 1 = the last result is scratch memory; and each scalar by its name. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "libte/info.h"
#include "libte/tensor.h"
#include "xla/ffi/api/c_api.h"

#define EXPORT __attribute__((visibility("default")))
enum { MAX_TENSORS = 32, MAX_ARGS = 512, PARTS = 6 };

/* Refusals of the frame itself; those of the operator carry its own message. */
static XLA_FFI_Error *fail(const XLA_FFI_Api *api, XLA_FFI_Error_Code code, const char *message) {
  XLA_FFI_Error_Create_Args a;
  memset(&a, 0, sizeof a);
  a.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  a.message = message;
  a.errc = code;
  return api->XLA_FFI_Error_Create(&a);
}

static XLA_FFI_Error *bad(const XLA_FFI_Api *api, const nvte_op *op, const char *what, const char *name, size_t length) {
  char text[256];
  snprintf(text, sizeof text, "libte XLA call of %s: %s %.*s", op ? op->name : "?", what, (int)length, name);
  return fail(api, XLA_FFI_Error_Code_INVALID_ARGUMENT, text);
}

static DLDataType dtype_of(XLA_FFI_DataType t) {
  DLDataType d = {0, 0, 1};
  switch ((int)t) {
    case XLA_FFI_DataType_F32: d.code = kDLFloat, d.bits = 32; break;
    case XLA_FFI_DataType_F16: d.code = kDLFloat, d.bits = 16; break;
    case XLA_FFI_DataType_F64: d.code = kDLFloat, d.bits = 64; break;
    case XLA_FFI_DataType_BF16: d.code = kDLBfloat, d.bits = 16; break;
    case XLA_FFI_DataType_F8E4M3FN: d.code = kDLFloat8_e4m3fn, d.bits = 8; break;
    case XLA_FFI_DataType_F8E5M2: d.code = kDLFloat8_e5m2, d.bits = 8; break;
    case XLA_FFI_DataType_F8E4M3FNUZ: d.code = kDLFloat8_e4m3fnuz, d.bits = 8; break;
    case XLA_FFI_DataType_F8E5M2FNUZ: d.code = kDLFloat8_e5m2fnuz, d.bits = 8; break;
    case XLA_FFI_DataType_PRED: d.code = kDLBool, d.bits = 8; break;
    case XLA_FFI_DataType_U8: d.code = kDLUInt, d.bits = 8; break;
    case XLA_FFI_DataType_S8: d.code = kDLInt, d.bits = 8; break;
    case XLA_FFI_DataType_S16: d.code = kDLInt, d.bits = 16; break;
    case XLA_FFI_DataType_S32: d.code = kDLInt, d.bits = 32; break;
    case XLA_FFI_DataType_S64: d.code = kDLInt, d.bits = 64; break;
    default: break;
  }
  return d;
}

static bool is_fp8(DLDataType d) {
  return d.code == kDLFloat8_e4m3fn || d.code == kDLFloat8_e5m2 || d.code == kDLFloat8_e4m3fnuz || d.code == kDLFloat8_e5m2fnuz;
}

static char nothing[64]; /* where empty tensors point: NULL would mean absent */

static bool describe(DLTensor *t, const XLA_FFI_Buffer *b, int32_t device, bool wide) {
  t->dtype = dtype_of(b->dtype);
  t->ndim = (int32_t)b->rank;
  t->shape = (int64_t *)b->dims;
  t->data = b->data ? b->data : nothing;
  t->device.device_type = (DLDeviceType)device;
  if (wide) {
    if (t->ndim < 1 || t->shape[t->ndim - 1] != 2 || t->dtype.code != kDLInt || t->dtype.bits != 32) return false;
    t->ndim--;
    t->dtype.bits = 64;
  }
  return t->dtype.bits != 0;
}

static bool named(const XLA_FFI_ByteSpan *s, const char *name) { return strlen(name) == s->len && !memcmp(s->ptr, name, s->len); }

typedef struct {
  int64_t inputs, results, wide, workspace;
} Masks;

static int64_t *mask_of(Masks *m, const XLA_FFI_ByteSpan *name) {
  return named(name, "inputs") ? &m->inputs : named(name, "results") ? &m->results : named(name, "wide") ? &m->wide
         : named(name, "workspace") ? &m->workspace : NULL;
}

static bool store(unsigned char *args, const nvte_field *f, const XLA_FFI_Scalar *s) {
  XLA_FFI_DataType want[] = {
      [NVTE_FIELD_F32] = XLA_FFI_DataType_F32, [NVTE_FIELD_I32] = XLA_FFI_DataType_S32, [NVTE_FIELD_U32] = XLA_FFI_DataType_U32,
      [NVTE_FIELD_I64] = XLA_FFI_DataType_S64, [NVTE_FIELD_SIZE] = XLA_FFI_DataType_S64, [NVTE_FIELD_DTYPE] = XLA_FFI_DataType_U32};
  if (s->dtype != want[f->kind]) return false;
  memcpy(args + f->offset, s->value, f->size); /* a DLDataType is code | bits << 8 | lanes << 16 */
  return true;
}

static XLA_FFI_Error *attributes(const XLA_FFI_CallFrame *f, const nvte_op *op, unsigned char *args, Masks *masks) {
  for (size_t i = 0; i < op->n_fields; i++) { /* the documented defaults */
    const nvte_field *d = &op->fields[i];
    unsigned char *at = args + d->offset;
    float f32 = (float)d->default_value;
    int32_t i32 = (int32_t)d->default_value;
    int64_t i64 = (int64_t)d->default_value;
    if (d->kind == NVTE_FIELD_F32) memcpy(at, &f32, 4);
    if (d->kind == NVTE_FIELD_I32 || d->kind == NVTE_FIELD_U32) memcpy(at, &i32, 4);
    if (d->kind == NVTE_FIELD_I64 || d->kind == NVTE_FIELD_SIZE) memcpy(at, &i64, 8);
  }
  for (int64_t i = 0; i < f->attrs.size; i++) {
    const XLA_FFI_ByteSpan *name = f->attrs.names[i];
    if (named(name, "op")) continue;
    if (f->attrs.types[i] != XLA_FFI_AttrType_SCALAR) return bad(f->api, op, "not a scalar: attribute", name->ptr, name->len);
    const XLA_FFI_Scalar *s = f->attrs.attrs[i];
    int64_t *mask = mask_of(masks, name);
    if (mask) {
      if (s->dtype != XLA_FFI_DataType_S64) return bad(f->api, op, "must be int64: attribute", name->ptr, name->len);
      memcpy(mask, s->value, 8);
      continue;
    }
    size_t k = 0;
    while (k < op->n_fields && (op->fields[k].kind < NVTE_FIELD_F32 || !named(name, op->fields[k].name))) k++;
    if (k == op->n_fields) return bad(f->api, op, "unknown attribute", name->ptr, name->len);
    if (!store(args, &op->fields[k], s)) return bad(f->api, op, "wrong type of attribute", name->ptr, name->len);
  }
  return NULL;
}

/* Codes without row-wise memory still state the logical shape: columnwise [K, M...] is of [M..., K]. */
static void logical_shape(nvte_tensor *t, int64_t *room) {
  DLTensor *d = &t->data, *c = &t->columnwise;
  if (d->data || !c->data || c->ndim < 1 || c->ndim > NVTE_MAX_DIMS) return;
  for (int32_t i = 1; i < c->ndim; i++) room[i - 1] = c->shape[i];
  room[c->ndim - 1] = c->shape[0];
  d->shape = room;
  d->ndim = c->ndim;
  d->dtype = c->dtype;
  d->device = c->device;
}

static XLA_FFI_Error *run(XLA_FFI_CallFrame *f, int32_t device) {
  const nvte_op *op = NULL;
  for (int64_t i = 0; i < f->attrs.size && !op; i++) {
    if (!named(f->attrs.names[i], "op") || f->attrs.types[i] != XLA_FFI_AttrType_STRING) continue;
    const XLA_FFI_ByteSpan *s = f->attrs.attrs[i];
    char name[64];
    size_t length = s->len < sizeof name ? s->len : sizeof name - 1;
    memcpy(name, s->ptr, length); /* snprintf took a tenth of a small call */
    name[length] = 0;
    op = nvte_op_find(name);
    if (!op) return bad(f->api, NULL, "no such operator:", name, strlen(name));
  }
  if (!op) return bad(f->api, NULL, "no string attribute", "op", 2);
  _Alignas(16) unsigned char args[MAX_ARGS];
  if (op->args_size > sizeof args) return bad(f->api, op, "arguments too large", "", 0);
  memset(args, 0, op->args_size);
  *(size_t *)args = op->args_size;
  Masks masks = {0, 0, 0, 0};
  XLA_FFI_Error *error = attributes(f, op, args, &masks);
  if (error) return error;

  nvte_tensor tensors[MAX_TENSORS];
  nvte_tensor *pointers[MAX_TENSORS];
  int64_t room[MAX_TENSORS][NVTE_MAX_DIMS];
  int64_t a = 0, r = 0, n_results = f->rets.size - (masks.workspace != 0);
  int n = 0, slot = 0;
  for (size_t k = 0; k < op->n_fields; k++) {
    const nvte_field *d = &op->fields[k];
    if (d->kind > NVTE_FIELD_TENSOR_LIST) continue;
    int parts = d->flags & NVTE_FIELD_QUANTIZED ? PARTS : 1;
    int64_t here = ((masks.inputs | masks.results) >> slot) & ((1 << parts) - 1);
    if (!here) {
      slot += parts;
      continue;
    }
    if (n == MAX_TENSORS) return bad(f->api, op, "too many tensors", "", 0);
    nvte_tensor *t = &tensors[n];
    memset(t, 0, sizeof *t);
    t->struct_size = sizeof *t;
    DLTensor *part[PARTS] = {&t->data, &t->columnwise, &t->scale_inv, &t->columnwise_scale_inv, &t->scale, &t->amax};
    for (int p = 0; p < parts; p++, slot++) {
      const XLA_FFI_Buffer *b = NULL;
      if (masks.inputs >> slot & 1) {
        if (a == f->args.size) return bad(f->api, op, "too few arguments, missing", d->name, strlen(d->name));
        b = f->args.args[a++];
      }
      if (masks.results >> slot & 1) {
        if (r >= n_results) return bad(f->api, op, "too few results, missing", d->name, strlen(d->name));
        const XLA_FFI_Buffer *w = f->rets.rets[r++];
        if (b && b->data != w->data) return bad(f->api, op, "the result must alias the argument", d->name, strlen(d->name));
        b = w;
      } else if (b && p == 0 && !(d->flags & NVTE_FIELD_OUT)) {
        t->flags |= NVTE_TENSOR_READ_ONLY;
      }
      if (b && !describe(part[p], b, device, masks.wide >> slot & 1)) return bad(f->api, op, "no dtype of libte's:", d->name, strlen(d->name));
    }
    logical_shape(t, room[n]);
    if (is_fp8(t->data.dtype)) t->scaling = NVTE_SCALING_TENSOR;
    if (d->kind == NVTE_FIELD_TENSOR_LIST) { /* lists of one */
      size_t one = 1;
      pointers[n] = t;
      memcpy(args + d->count, &one, sizeof one);
      *(nvte_tensor ***)(args + d->offset) = &pointers[n];
    } else {
      *(nvte_tensor **)(args + d->offset) = t;
    }
    n++;
  }
  if (a != f->args.size || r != n_results) return bad(f->api, op, "more buffers than", "slots", 5);

  nvte_exec e;
  memset(&e, 0, sizeof e);
  e.struct_size = sizeof e;
  e.device.device_type = (DLDeviceType)device;
  if (masks.workspace) {
    const XLA_FFI_Buffer *w = f->rets.rets[r];
    e.workspace = w->data;
    e.workspace_size = w->rank == 1 && w->data ? (size_t)w->dims[0] : 0;
  }
  if (device != kDLCPU) {
    XLA_FFI_Stream_Get_Args s;
    memset(&s, 0, sizeof s);
    s.struct_size = XLA_FFI_Stream_Get_Args_STRUCT_SIZE;
    s.ctx = f->ctx;
    error = f->api->XLA_FFI_Stream_Get(&s);
    if (error) return error;
    e.stream = s.stream;
  }
  nvte_status status = op->run(&e, args);
  if (!status) return NULL;
  XLA_FFI_Error_Code code = status < 32 ? XLA_FFI_Error_Code_INVALID_ARGUMENT
                            : status < 64 ? XLA_FFI_Error_Code_UNIMPLEMENTED
                            : status == NVTE_ERR_OUT_OF_MEMORY ? XLA_FFI_Error_Code_RESOURCE_EXHAUSTED : XLA_FFI_Error_Code_INTERNAL;
  return fail(f->api, code, nvte_last_error());
}

static XLA_FFI_Error *call(XLA_FFI_CallFrame *f, int32_t device) {
  if (f->extension_start && f->extension_start->type == XLA_FFI_Extension_Metadata) { /* asked once, when it is registered */
    XLA_FFI_Metadata *m = ((XLA_FFI_Metadata_Extension *)f->extension_start)->metadata;
    m->api_version.major_version = XLA_FFI_API_MAJOR;
    m->api_version.minor_version = XLA_FFI_API_MINOR;
    m->traits = device == kDLCPU ? 0 : XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE; /* kernels go on the given stream only */
    return NULL;
  }
  return f->stage == XLA_FFI_ExecutionStage_EXECUTE ? run(f, device) : NULL;
}

EXPORT XLA_FFI_Error *libte_xla_cpu(XLA_FFI_CallFrame *f) { return call(f, kDLCPU); }
EXPORT XLA_FFI_Error *libte_xla_cuda(XLA_FFI_CallFrame *f) { return call(f, kDLCUDA); }
EXPORT XLA_FFI_Error *libte_xla_rocm(XLA_FFI_CallFrame *f) { return call(f, kDLROCM); }

/* The FFI version that this file was built for: a runtime's minor must not be older. */
EXPORT int libte_xla_api_major(void) { return XLA_FFI_API_MAJOR; }
EXPORT int libte_xla_api_minor(void) { return XLA_FFI_API_MINOR; }
