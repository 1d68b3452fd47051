// SPDX-License-Identifier: Apache-2.0
#include "core/overlap.h"

#include <string.h>

#include <algorithm>
#include <vector>

#include "core/tensor.h"
#include "core/text.h"

namespace te {
namespace {

// The bytes of a tensor: runs of `width`, repeated along dims that step over all that the later ones span.
struct Bytes {
  struct Dim {
    int64_t count, step;
  };
  Dim dims[NVTE_MAX_DIMS];  // largest step first
  int n = 0;
  int64_t width = 0;

  explicit Bytes(const DLTensor &t) {
    width = element_bytes(t);
    for (int i = 0; i < t.ndim; i++) {
      const Dim d = {t.shape[i], stride_of(t, i) * element_bytes(t)};
      if (d.count <= 1 || d.step == 0) continue;
      int k = n++;
      for (; k > 0 && dims[k - 1].step < d.step; k--) dims[k] = dims[k - 1];
      dims[k] = d;
    }
    // From the inside: what touches or overlaps what it steps over is one run, what continues another dimension is one with it.
    int kept = NVTE_MAX_DIMS;
    Dim merged[NVTE_MAX_DIMS];
    int64_t inner = width;
    for (int i = n - 1; i >= 0; i--) {
      const Dim d = dims[i];
      if (d.step < inner || (d.step == inner && kept == NVTE_MAX_DIMS)) {  // only overlapping inputs step by less than they span
        width = inner + (d.count - 1) * d.step;
        kept = NVTE_MAX_DIMS;
      } else if (kept < NVTE_MAX_DIMS && d.step == merged[kept].count * merged[kept].step) {
        merged[kept].count *= d.count;
      } else {
        merged[--kept] = d;
      }
      inner += (d.count - 1) * d.step;
    }
    n = NVTE_MAX_DIMS - kept;
    for (int k = 0; k < n; k++) dims[k] = merged[kept + k];
  }
  int64_t span(int from) const {
    int64_t s = width;
    for (int k = from; k < n; k++) s += (dims[k].count - 1) * dims[k].step;
    return s;
  }
};

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
bool apart(int64_t x, int64_t span_x, int64_t y, int64_t span_y) { return x + span_x <= y || y + span_y <= x; }

// Dims i.. of x that start at `at` against dims j.. of y that start at 0.
bool meet(const Bytes &x, int i, int64_t at, const Bytes &y, int j, int &patience) {
  const int64_t sx = x.span(i), sy = y.span(j);
  if (apart(at, sx, 0, sy)) return false;
  if (i == x.n && j == y.n) return true;
  if (--patience < 0) return true;
  const int64_t px = i < x.n ? x.dims[i].step : 0, py = j < y.n ? y.dims[j].step : 0;
  if (px == py) {  // only the difference d of the two indices matters, and few of its values bring the rest together
    const int64_t rx = x.span(i + 1), ry = y.span(j + 1), low = 1 - y.dims[j].count, high = x.dims[i].count - 1;
    const int64_t from = std::max(low, -floor_div(at + rx - 1, px)), to = std::min(high, floor_div(ry - 1 - at, px));
    for (int64_t d = from; d <= to; d++)
      if (meet(x, i + 1, at + d * px, y, j + 1, patience)) return true;
    return false;
  }
  if (px > py) {
    const int64_t rx = x.span(i + 1), from = std::max<int64_t>(0, -floor_div(at + rx - 1, px)), to = std::min(x.dims[i].count - 1, floor_div(sy - 1 - at, px));
    for (int64_t k = from; k <= to; k++)
      if (meet(x, i + 1, at + k * px, y, j, patience)) return true;
    return false;
  }
  return meet(y, j, -at, x, i, patience);
}

// Element for element in one place.
bool same_place(const DLTensor &x, const DLTensor &y) {
  if (address(x) != address(y) || element_bytes(x) != element_bytes(y)) return false;
  const Bytes a(x), b(y);
  if (a.n != b.n || a.width != b.width) return false;
  for (int i = 0; i < a.n; i++)
    if (a.dims[i].count != b.dims[i].count || a.dims[i].step != b.dims[i].step) return false;
  return true;
}

enum Role : unsigned char { data_part, columnwise_part, scale_inv_part, columnwise_scale_inv_part, scale_part, amax_part, workspace_part };
const char *const kRoleNames[] = {"", ".columnwise", ".scale_inv", ".columnwise_scale_inv", ".scale", ".amax", ""};

struct Part {
  uintptr_t begin, end;
  const DLTensor *t;  // nullptr: the workspace
  const nvte_tensor *owner;
  size_t field;
  int entry;
  Role role;
  bool written;
};

struct Parts {
  Part few[64];
  std::vector<Part> many;  // where they are more
  size_t n = 0;
  Part *begin() { return many.empty() ? few : many.data(); }
  void add(const Part &p) {
    if (n == sizeof few / sizeof *few) many.assign(few, few + n);
    if (n++ < sizeof few / sizeof *few) few[n - 1] = p;
    else many.push_back(p);
  }
  void add(const nvte_tensor *owner, const DLTensor &t, size_t field, int entry, Role role, bool written) {
    if (!present(t)) return;
    int64_t elements = numel(t);
    if (!elements) return;
    if (t.strides) {
      elements = 1;
      for (int i = 0; i < t.ndim; i++) elements += (t.shape[i] - 1) * t.strides[i];
    }
    const uintptr_t at = (uintptr_t)address(t);
    add(Part{at, at + (uintptr_t)(elements * element_bytes(t)), &t, owner, field, entry, role, written});
  }
  void add(const nvte_field &f, const nvte_tensor *t, size_t field, int entry) {
    if (!t) return;
    const bool out = f.flags & NVTE_FIELD_OUT;
    add(t, t->data, field, entry, data_part, out);
    if (!(f.flags & NVTE_FIELD_QUANTIZED)) return;
    add(t, t->columnwise, field, entry, columnwise_part, out);
    add(t, t->scale_inv, field, entry, scale_inv_part, out);
    add(t, t->columnwise_scale_inv, field, entry, columnwise_scale_inv_part, out);
    if (!out) return;
    add(t, t->scale, field, entry, scale_part, false);
    add(t, t->amax, field, entry, amax_part, true);
  }
};

// The header lets `out` take the place of `in` ("may alias").
bool may_coincide(const Op &op, const Part &out, const Part &in) {
  return op.aliases && out.role == data_part && in.role == data_part && (op.aliases[out.field] >> in.field & 1) && out.entry == in.entry;
}
bool is_scale_inv(const Part &p) { return p.role == scale_inv_part || p.role == columnwise_scale_inv_part; }
bool allowed(const Op &op, const Part &x, const Part &y) {
  if (x.owner == y.owner && is_scale_inv(x) && is_scale_inv(y)) return true;
  if (!x.t || !y.t) return false;
  if (may_coincide(op, x, y) || may_coincide(op, y, x))
    if (same_place(*x.t, *y.t)) return true;
  return !shares_memory(*x.t, *y.t);
}

void describe(Text &s, const Op &op, const Part &p) {
  if (!p.t) s.add("exec.workspace");
  else if (p.entry < 0) s.add("%s%s", op.info.fields[p.field].name, kRoleNames[p.role]);
  else s.add("%s[%d]%s", op.info.fields[p.field].name, p.entry, kRoleNames[p.role]);
}

nvte_status refuse(const Op &op, const Part &x, const Part &y) {
  TextOf<128> out, other;
  const bool first = x.written && (!y.written || x.field <= y.field);
  const Part &a = first ? x : y, &b = first ? y : x;
  describe(out, op, a);
  describe(other, op, b);
  const bool exactly = a.t && b.t && (may_coincide(op, a, b) || may_coincide(op, b, a));
  return fail(NVTE_ERR_INVALID_ARGUMENT, "%s must not share memory with %s%s: they start at %p and %p", out.c_str(), other.c_str(),
              exactly ? " unless they are element for element the same" : "", (void *)a.begin, (void *)b.begin);
}

}  // namespace

bool shares_memory(const DLTensor &x, const DLTensor &y) {
  int patience = 4096;
  return meet(Bytes(x), 0, (intptr_t)address(x) - (intptr_t)address(y), Bytes(y), 0, patience);
}

nvte_status check_overlap(const Op &op, const nvte_exec *exec, const void *args, size_t workspace) {
  Parts parts;
  const auto *a = static_cast<const unsigned char *>(args);
  for (size_t i = 0; i < op.info.n_fields; i++) {
    const nvte_field &f = op.info.fields[i];
    if (f.kind != NVTE_FIELD_TENSOR && f.kind != NVTE_FIELD_TENSOR_LIST) continue;
    void *p;
    memcpy(&p, a + f.offset, sizeof p);
    if (f.kind == NVTE_FIELD_TENSOR) {
      parts.add(f, static_cast<const nvte_tensor *>(p), i, -1);
    } else if (p) {
      size_t n;
      memcpy(&n, a + f.count, sizeof n);
      for (size_t k = 0; k < n; k++) parts.add(f, static_cast<const nvte_tensor *const *>(p)[k], i, (int)k);
    }
  }
  if (workspace) {
    const auto w = (uintptr_t)exec->workspace;
    parts.add(Part{w, w + workspace, nullptr, nullptr, op.info.n_fields, -1, workspace_part, true});
  }
  Part *const p = parts.begin(), *const end = p + parts.n;
  std::sort(p, end, [](const Part &x, const Part &y) { return x.begin < y.begin; });
  for (Part *x = p; x < end; x++)
    for (Part *y = x + 1; y < end && y->begin < x->end; y++)
      if ((x->written || y->written) && !allowed(op, *x, *y)) return refuse(op, *x, *y);
  return NVTE_OK;
}

}  // namespace te
