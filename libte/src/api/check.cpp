// SPDX-License-Identifier: Apache-2.0
#include "api/check.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/text.h"
#include "scaling/scaling.h"

namespace te {

int64_t dim_add(int64_t a, int64_t b) {
  int64_t r;
  return a < 0 ? a : b < 0 ? b : __builtin_add_overflow(a, b, &r) ? kBad : r;
}
int64_t dim_sub(int64_t a, int64_t b) { return a < 0 ? a : b < 0 ? b : a < b ? kBad : a - b; }
int64_t dim_mul(int64_t a, int64_t b) {
  int64_t r;
  return a < 0 ? a : b < 0 ? b : __builtin_mul_overflow(a, b, &r) ? kBad : r;
}
int64_t dim_div(int64_t a, int64_t b) { return a < 0 ? a : b < 0 ? b : b == 0 || a % b ? kBad : a / b; }
int64_t dim_ceil(int64_t a, int64_t b) { return a < 0 ? a : b < 0 ? b : b == 0 ? kBad : a / b + (a % b != 0); }

int64_t Lead::prod() const {
  if (ndim < 0) return kUnknown;
  int64_t n = 1;
  for (int i = 0; i < ndim; i++) n = dim_mul(n, shape[i]);
  return n;
}

void Checker::refuse(const nvte_field &f, const char *format, ...) {
  char text[2048];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  if (entry >= 0 && f.kind == NVTE_FIELD_TENSOR_LIST) status_ = fail(NVTE_ERR_INVALID_ARGUMENT, "%s[%d]%s", f.name, entry, text);
  else status_ = fail(NVTE_ERR_INVALID_ARGUMENT, "%s%s", f.name, text);
}

// Rank, extents, strides and layout of one part; `part` is "" or ".columnwise", for messages.
bool Checker::layout(const nvte_field &f, const DLTensor &t, const char *part, uint32_t words) {
  if (t.ndim < 0 || t.ndim > NVTE_MAX_DIMS) return refuse(f, "%s: ndim must be 0..%d, got %d", part, NVTE_MAX_DIMS, (int)t.ndim), false;
  if (t.ndim && !t.shape) return refuse(f, "%s: shape is NULL but ndim is %d", part, (int)t.ndim), false;
  bool empty = false;
  for (int i = 0; i < t.ndim; i++) {
    if (t.shape[i] < 0) return refuse(f, "%s.shape[%d] must be >= 0, got %lld", part, i, (long long)t.shape[i]), false;
    empty |= t.shape[i] == 0;
  }
  if (empty) return true;
  int64_t bytes = element_bytes(t);
  for (int i = 0; i < t.ndim; i++)
    if (__builtin_mul_overflow(bytes, t.shape[i], &bytes)) return refuse(f, "%s: the number of bytes overflows 64 bits", part), false;
  if (!t.strides) return true;
  const bool writes = f.flags & NVTE_FIELD_OUT;
  int64_t extent = element_bytes(t);
  for (int i = 0; i < t.ndim; i++) {
    const int64_t s = t.strides[i], n = t.shape[i];
    if (s < 0) return refuse(f, "%s.strides[%d] must be >= 0, got %lld", part, i, (long long)s), false;
    if (n <= 1) continue;  // the stride of such a dimension means nothing
    if (writes && s == 0) return refuse(f, "%s is written but strides[%d] is 0 (%lld elements in one place)", part, i, (long long)n), false;
    int64_t span;
    if (__builtin_mul_overflow(s, (n - 1) * element_bytes(t), &span) || __builtin_add_overflow(extent, span, &extent))
      return refuse(f, "%s: strides reach past 64 bits", part), false;
  }
  if (words & NVTE_FIELD_STRIDED) {
    // fall through to the overlap rule
  } else if (words & NVTE_FIELD_ROWS) {
    if (t.ndim && t.shape[t.ndim - 1] > 1 && t.strides[t.ndim - 1] != 1)
      return refuse(f, "%s must have stride 1 in its last dimension, got %lld", part, (long long)t.strides[t.ndim - 1]), false;
  } else if (!is_contiguous(t)) {
    TextOf<512> s;
    s.shape(t).add(", strides ").shape(t.strides, t.ndim);
    return refuse(f, "%s must be contiguous, got shape %s", part, s.c_str()), false;
  }
  if (writes) {
    // No two elements in one place: sorted by stride, each dimension must step over what the smaller ones span.
    int order[NVTE_MAX_DIMS], n = 0;
    for (int i = 0; i < t.ndim; i++) {
      if (t.shape[i] <= 1) continue;
      int k = n++;
      for (; k > 0 && t.strides[order[k - 1]] > t.strides[i]; k--) order[k] = order[k - 1];
      order[k] = i;
    }
    int64_t span = 0;
    for (int k = 0; k < n; k++) {
      if (t.strides[order[k]] <= span) {
        TextOf<512> s;
        s.shape(t).add(", strides ").shape(t.strides, t.ndim);
        return refuse(f, "%s is written but its elements overlap: shape %s", part, s.c_str()), false;
      }
      span += t.strides[order[k]] * (t.shape[order[k]] - 1);
    }
  }
  return true;
}

bool Checker::memory(const nvte_field &f, const DLTensor &t, const char *part) {
  if (!exec_ || !t.data) return true;
  const DLDevice d = t.device, e = exec_->device;
  // Pinned and managed memory is the host's too.
  const bool host = d.device_type == kDLCPU || d.device_type == kDLCUDAHost || d.device_type == kDLROCMHost || d.device_type == kDLCUDAManaged;
  const bool same = d.device_type == e.device_type && d.device_id == e.device_id;
  if (!same && !(e.device_type == kDLCPU && host) && !(e.device_type == kDLCUDA && d.device_type == kDLCUDAManaged)) {
    char at[48];
    snprintf(at, sizeof at, "%s", device_name(d.device_type));
    refuse(f, "%s must be on the device of exec (%s:%d), is on %s:%d", part, device_name(e.device_type), (int)e.device_id, at, (int)d.device_id);
    return false;
  }
  const int64_t size = element_bytes(t);
  if (size > 1 && (size & (size - 1)) == 0 && ((uintptr_t)address(t) & (uintptr_t)(size - 1))) {
    refuse(f, "%s must be aligned to its element size of %lld bytes, address is %p", part, (long long)size, address(t));
    return false;
  }
  return true;
}

// One of scale_inv, columnwise_scale_inv, scale, amax: one element of `type`.
bool Checker::scale_part(const nvte_field &f, const DLTensor &t, const char *part, DType type, bool needed) {
  if (!present(t)) {
    if (needed) refuse(f, "%s is missing (f32 [1]): scaling is NVTE_SCALING_TENSOR", part);
    return !needed;
  }
  if (type == DType::other) return refuse(f, "%s must be absent: scaling is NVTE_SCALING_NONE", part), false;
  if (dtype_of(t.dtype) != type) return refuse(f, "%s must be f32, got %s", part, dtype_name(t.dtype)), false;
  if (t.ndim < 0 || t.ndim > NVTE_MAX_DIMS || (t.ndim && !t.shape) || numel(t) != 1) {
    TextOf<256> s;
    if (t.shape && t.ndim >= 0 && t.ndim <= NVTE_MAX_DIMS) s.shape(t);
    return refuse(f, "%s must be [1], got %s", part, s.c_str()), false;
  }
  return memory(f, t, part);
}

bool Checker::scaling(const nvte_field &f, const nvte_tensor &t) {
  const Scaling *mode = find_scaling(t.scaling);
  if (!mode) return refuse(f, ".scaling must be %s, got %d", scaling_choices(), (int)t.scaling), false;
  const bool writes = f.flags & NVTE_FIELD_OUT;
  if (!(f.flags & NVTE_FIELD_QUANTIZED)) {
    if (mode->scaled()) return refuse(f, " takes plain numbers, its scaling must be NVTE_SCALING_NONE"), false;
    // Parts that would be left unwritten are refused; those of an input are not looked at.
    const struct { const DLTensor &part; const char *name; } parts[] = {
        {t.columnwise, ".columnwise"}, {t.scale_inv, ".scale_inv"}, {t.columnwise_scale_inv, ".columnwise_scale_inv"},
        {t.scale, ".scale"}, {t.amax, ".amax"}};
    for (const auto &p : parts)
      if (writes && present(p.part)) return refuse(f, "%s must be absent: this operator does not write it", p.name), false;
    return true;
  }
  const DType d = dtype_of(t.data.dtype);
  if (!mode->takes(d))
    return refuse(f, " is %s, its scaling must be %s", dtype_name(t.data.dtype), is_fp8(d) ? "NVTE_SCALING_TENSOR" : "NVTE_SCALING_NONE"), false;
  const bool row = present(t.data), column = present(t.columnwise), one = present(t.scale_inv) || present(t.columnwise_scale_inv);
  const bool needed = mode->scaled() && ((row && numel(t.data) > 0) || (column && !one));
  if (!scale_part(f, t.scale_inv, ".scale_inv", mode->scale, needed)) return false;
  if (!scale_part(f, t.columnwise_scale_inv, ".columnwise_scale_inv", mode->scale, false)) return false;
  if (!scale_part(f, t.scale, ".scale", writes ? mode->scale : DType::f32, false)) return false;
  if (!scale_part(f, t.amax, ".amax", DType::f32, false)) return false;
  if (!column) return true;
  const DLTensor &c = t.columnwise;
  if (c.dtype.code != t.data.dtype.code || c.dtype.bits != t.data.dtype.bits || c.dtype.lanes != t.data.dtype.lanes) {
    char of[64];
    snprintf(of, sizeof of, "%s", dtype_name(t.data.dtype));
    return refuse(f, ".columnwise must have the dtype of data, %s, got %s", of, dtype_name(c.dtype)), false;
  }
  if (!layout(f, c, ".columnwise", f.flags)) return false;
  int64_t want[2];
  mode->columnwise(rows(t.data), columns(t.data), want);
  if (c.ndim != 2 || c.shape[0] != want[0] || c.shape[1] != want[1]) {
    TextOf<256> s;
    return refuse(f, ".columnwise must be [K, M] = [%lld, %lld], got %s", (long long)want[0], (long long)want[1], s.shape(c).c_str()), false;
  }
  return memory(f, c, ".columnwise");
}

const DLTensor *Checker::tensor(const nvte_field &f, const nvte_tensor *t) {
  if (!ok()) return nullptr;
  const bool optional = f.flags & NVTE_FIELD_OPTIONAL, in = f.flags & NVTE_FIELD_IN, out = f.flags & NVTE_FIELD_OUT;
  if (infers()) {
    if (out && !(in && t && t->data.dtype.bits && t->data.ndim > 0)) return nullptr;  // to be filled
    if (!described(t)) {
      if (!optional) refuse(f, " is missing");
      return nullptr;
    }
    return layout(f, t->data, "", f.flags) ? &t->data : nullptr;
  }
  if (!t) {
    if (!optional) refuse(f, " is missing (NULL)");
    return nullptr;
  }
  const bool column = present(t->columnwise);
  if (!present(t->data) && !(column && (f.flags & NVTE_FIELD_QUANTIZED))) {
    if (optional) return nullptr;
    // an empty tensor has no memory; shape is looked at with care, it was not checked yet
    bool empty = false;
    for (int i = 0; t->data.shape && i < t->data.ndim && i < NVTE_MAX_DIMS; i++) empty |= t->data.shape[i] == 0;
    if (!empty) return refuse(f, ".data is missing (NULL)"), nullptr;
  }
  if (t->flags & ~(NVTE_TENSOR_READ_ONLY | NVTE_TENSOR_AMAX_ACCUMULATE))
    return refuse(f, ".flags has bits that this version does not know: %#x", (unsigned)t->flags), nullptr;
  if (out && (t->flags & NVTE_TENSOR_READ_ONLY)) return refuse(f, " is written but flagged NVTE_TENSOR_READ_ONLY"), nullptr;
  // The logical shape of a column-wise-only tensor has no memory and so no layout.
  if (!layout(f, t->data, "", present(t->data) ? f.flags : (uint32_t)NVTE_FIELD_STRIDED | f.flags)) return nullptr;
  if (!memory(f, t->data, "")) return nullptr;
  return scaling(f, *t) ? &t->data : nullptr;
}

size_t Checker::list(const nvte_field &f, const void *entries, size_t n) {
  if (!ok() || (!entries && (f.flags & NVTE_FIELD_OPTIONAL))) return 0;
  if (n && !entries) return refuse(f, " is missing (NULL), %zu entries are counted", n), 0;
  return n;
}

void Checker::dtype(const nvte_field &f, const DLTensor *t, uint32_t allowed, std::initializer_list<const DLTensor *> same) {
  if (!ok() || !t || (allowed & bit(dtype_of(t->dtype)))) return;
  bool open = false;  // an operand that would say is absent
  const DLTensor *other = nullptr;
  for (const DLTensor *s : same) {
    if (!s) {
      open = true;
      continue;
    }
    if (s->dtype.code == t->dtype.code && s->dtype.bits == t->dtype.bits && s->dtype.lanes == t->dtype.lanes) return;
    other = s;
  }
  if (open && !allowed) return;
  if (other) {
    char is[64];
    snprintf(is, sizeof is, "%s", dtype_name(other->dtype));
    refuse(f, " must be %s (= %s), got %s", f.dtypes, is, dtype_name(t->dtype));
  } else {
    refuse(f, " must be %s, got %s", f.dtypes, dtype_name(t->dtype));
  }
}

void Checker::lead(Lead &l, const nvte_field &f, const DLTensor *t, int trailing) {
  if (!t || l.ndim >= 0 || t->ndim < trailing) return;
  l.shape = t->shape;
  l.ndim = t->ndim - trailing;
  l.field = f.name;
  l.trailing = trailing;
}

void Checker::bind(DimName &n, const nvte_field &f, const DLTensor *t, int index, int trailing, bool star) {
  if (!t || n.value != kUnknown || (star ? t->ndim < trailing : t->ndim != trailing)) return;
  n.value = t->shape[index < 0 ? t->ndim + index : index];
  n.field = f.name;
  n.index = index;
  n.entry = f.kind == NVTE_FIELD_TENSOR_LIST ? entry : -1;
}

void Checker::solve(DimName &n, const nvte_field &f, const DLTensor *t, int index, int trailing, bool star, int64_t factor) {
  if (!ok() || !t || n.value != kUnknown || (star ? t->ndim < trailing : t->ndim != trailing)) return;
  const int64_t extent = t->shape[index < 0 ? t->ndim + index : index];
  if (extent % factor)
    return refuse(f, " must be %s, but shape[%d] = %lld is no multiple of %lld", f.dims, index, (long long)extent, (long long)factor);
  n.value = extent / factor;
  n.field = f.name;
  n.index = index;
}

void Checker::shape(const nvte_field &f, const DLTensor *t, const Lead *l, std::initializer_list<int64_t> trailing,
                    std::initializer_list<const DimName *> names) {
  if (!ok() || !t) return;
  const int n = (int)trailing.size(), lead_dims = t->ndim - n;
  bool good = l ? lead_dims >= 0 && (l->ndim < 0 || lead_dims == l->ndim) : lead_dims == 0;
  const bool scalar = !l && n == 1 && *trailing.begin() == 1 && t->ndim == 0;  // [1] also takes rank 0
  for (int i = 0; good && l && l->ndim >= 0 && i < lead_dims; i++) good = t->shape[i] == l->shape[i];
  for (int i = 0; good && i < n; i++) {
    const int64_t want = trailing.begin()[i];
    good = want == kUnknown || t->shape[lead_dims + i] == want;
  }
  if (good || scalar) return;
  TextOf<1024> s;
  s.add(" must be %s", f.dims);
  for (const DimName *name : names) {
    if (name->value == kUnknown) continue;
    s.add(", %s = %s", name->name, name->field);
    if (name->entry >= 0) s.add("[%d]", name->entry);
    s.add(".shape[%d] = %lld", name->index, (long long)name->value);
  }
  if (l && l->ndim >= 0) {
    s.add(", * = %s.shape", l->field);
    if (l->trailing) s.add("[:-%d]", l->trailing);
    s.add(" = ").shape(l->shape, l->ndim);
  }
  s.add(", got ").shape(*t);
  refuse(f, "%s", s.c_str());
}

void Checker::at_least(const nvte_field &f, double value, double bound) {
  if (ok() && !(value >= bound)) refuse(f, " must be >= %g, got %g", bound, value);
}
void Checker::at_most(const nvte_field &f, double value, double bound) {
  if (ok() && !(value <= bound)) refuse(f, " must be <= %g, got %g", bound, value);
}

void Checker::fill(const nvte_field &f, nvte_tensor *t, bool shaped, const Lead *l, std::initializer_list<int64_t> trailing,
                   DLDataType first, uint32_t allowed, std::initializer_list<const DLTensor *> same) {
  if (!ok() || !infers()) return;
  const bool optional = f.flags & NVTE_FIELD_OPTIONAL, in = f.flags & NVTE_FIELD_IN;
  if (!t || !(described(t) || t->columnwise.shape)) {
    if (!optional) refuse(f, " is missing");
    return;
  }
  if (in && t->data.dtype.bits && t->data.ndim > 0) return;  // was read as an input
  DLTensor &d = t->data;
  if (!d.shape) return refuse(f, ".data.shape must point at %d values", NVTE_MAX_DIMS);
  if (d.dtype.bits) dtype(f, &d, allowed, same);
  else if (first.bits) d.dtype = first;
  else return refuse(f, ".data.dtype must be set, the schema lets it be %s", f.dtypes);
  if (!ok()) return;
  d.strides = nullptr;
  if (!shaped) return;
  const int n = (int)trailing.size();
  int at = 0;
  if (l) {
    if (l->ndim < 0) return refuse(f, ": nothing given says what * is");
    if (l->ndim + n > NVTE_MAX_DIMS) return refuse(f, " would have %d dimensions, at most %d are supported", l->ndim + n, NVTE_MAX_DIMS);
    for (; at < l->ndim; at++) d.shape[at] = l->shape[at];
  }
  for (const int64_t extent : trailing) {
    if (extent < 0) return refuse(f, " must be %s: %s", f.dims, extent == kBad ? "a quotient is not whole" : "nothing given says how large");
    d.shape[at++] = extent;
  }
  d.ndim = at;
}

nvte_status finish_infer(const nvte_field &f, nvte_tensor *t) {
  if (!(f.flags & NVTE_FIELD_OUT) || !t || !t->data.shape) return NVTE_OK;
  const DLTensor &d = t->data;
  if (t->columnwise.shape) {
    DLTensor &c = t->columnwise;
    const Scaling *mode = find_scaling(t->scaling);
    if (!mode) return fail(NVTE_ERR_INVALID_ARGUMENT, "%s.scaling must be %s, got %d", f.name, scaling_choices(), (int)t->scaling);
    mode->columnwise(rows(d), columns(d), c.shape);
    c.ndim = 2;
    c.dtype = d.dtype;
    c.strides = nullptr;
  }
  for (DLTensor *p : {&t->scale_inv, &t->columnwise_scale_inv, &t->scale, &t->amax}) {
    if (!p->shape) continue;
    p->shape[0] = 1;
    p->ndim = 1;
    p->dtype = DLDataType{kDLFloat, 32, 1};
    p->strides = nullptr;
  }
  return NVTE_OK;
}

}  // namespace te
