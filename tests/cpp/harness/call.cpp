// SPDX-License-Identifier: Apache-2.0
#include "harness/call.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace te::test {
namespace {

Shape compact(const Shape &shape) {
  Shape s(shape.size());
  int64_t n = 1;
  for (size_t i = shape.size(); i-- > 0;) s[i] = n, n *= shape[i];
  return s;
}
int64_t extent(const Shape &shape, const Shape &strides) {  // elements from the first to the last, inclusive
  int64_t n = 1;
  for (size_t i = 0; i < shape.size(); i++) {
    if (shape[i] == 0) return 0;
    n += (shape[i] - 1) * strides[i];
  }
  return n;
}

// Calls f(linear index, element offset) for every element in row-major order.
template <class F> void each(const Shape &shape, const Shape &strides, F &&f) {
  const int64_t n = count(shape);
  Shape at(shape.size(), 0);
  int64_t off = 0;
  for (int64_t i = 0; i < n; i++) {
    f(i, off);
    for (size_t d = shape.size(); d-- > 0;) {
      off += strides[d];
      if (++at[d] < shape[d]) break;
      off -= at[d] * strides[d];
      at[d] = 0;
    }
  }
}

struct Environment {  // XLA's MXCSR bits round a call; notices a callee that does not put them back
#if defined(__SSE__)
  explicit Environment(bool flush) : old(_mm_getcsr()), mine(flush ? old | 0x8040 : old) { _mm_setcsr(mine); }
  ~Environment() { _mm_setcsr(old); }
  bool kept() const { return (_mm_getcsr() & ~0x3fu) == (mine & ~0x3fu); }
  unsigned old, mine;
#else
  explicit Environment(bool) {}
  bool kept() const { return true; }
#endif
};

}  // namespace

const char *name(Layout l) {
  switch (l) {
    case Layout::contiguous: return "contiguous";
    case Layout::explicit_: return "explicit";
    case Layout::rows: return "rows";
    case Layout::transposed: return "transposed";
    case Layout::expand: return "expand";
  }
  return "?";
}

Call::Part &Call::add_part(const std::string &part_name, DLTensor &t, const Shape &shape, DType dtype, const Shape &strides, int64_t offset, bool give_strides) {
  parts_.emplace_back();
  Part &p = parts_.back();
  p.name = part_name;
  p.tensor = &t;
  p.shape = shape;
  p.strides = strides;
  p.offset = offset;
  p.dtype = dtype;
  const size_t size = bytes_of(dtype);
  // room for the compact form too, so that an implementation that ignores strides reads wrong numbers rather than foreign memory
  const int64_t elements = offset + std::max(extent(shape, strides), count(shape));
  p.own = std::make_unique<Buffer>(device_, (size_t)elements * size, options_.poison);
  p.buffer = p.own.get();
  p.shape_store.assign(shape.begin(), shape.end());
  p.stride_store.assign(strides.begin(), strides.end());
  t.data = p.buffer->data();
  t.device = device_.dl();
  t.ndim = (int32_t)shape.size();
  t.dtype = dl(dtype);
  t.shape = p.shape_store.data();
  t.strides = give_strides ? p.stride_store.data() : nullptr;
  t.byte_offset = (uint64_t)offset * size;
  // mark whole runs where the last dimension is dense
  if (!shape.empty() && strides.back() == 1) {
    const Shape lead(shape.begin(), shape.end() - 1), lead_strides(strides.begin(), strides.end() - 1);
    each(lead, lead_strides, [&](int64_t, int64_t off) { p.buffer->mark((size_t)(offset + off) * size, (size_t)shape.back() * size); });
  } else {
    each(shape, strides, [&](int64_t, int64_t off) { p.buffer->mark((size_t)(offset + off) * size, size); });
  }
  return p;
}

void Call::lay_out(const Arg &a, nvte_tensor &t, uint32_t field_flags) {
  const bool strided = field_flags & NVTE_FIELD_STRIDED, may_rows = strided || field_flags & NVTE_FIELD_ROWS;
  Shape strides = compact(a.shape);
  int64_t offset = 0;
  bool give = false;
  const size_t r = a.shape.size();
  const bool bad = options_.bad_layout == a.field;
  auto pad_rows = [&] {  // every dimension but the last grows by a pad of its own
    int64_t n = 1;
    for (size_t i = r; i-- > 0;) {
      strides[i] = n;
      n = n * a.shape[i] + (i + 1 == r ? 5 : 3);
    }
    offset = 2, give = true;
  };
  switch (options_.layout) {
    case Layout::contiguous: break;
    case Layout::explicit_:
      give = true, offset = 1;
      for (size_t i = 0; i < r; i++)
        if (a.shape[i] == 1) strides[i] = 77 + 2 * (int64_t)i;
      break;
    case Layout::rows:
      if (may_rows && r >= 2) pad_rows();
      else if (strided && r == 1) strides[0] = 3, give = true;
      break;
    case Layout::transposed:
      if (strided && r >= 2) {
        int64_t n = 1;
        // attention and the like want a dense last dimension even where they take any strides: `rows` says so
        const size_t kept = field_flags & NVTE_FIELD_ROWS ? r - 1 : r;
        if (kept < r) strides[r - 1] = 1, n = a.shape[r - 1];
        for (size_t i = 0; i < kept; i++) strides[i] = n, n *= a.shape[i];
        give = true;
      }
      break;
    case Layout::expand:
      if (a.broadcast) strides[0] = 0, give = true;
      break;
  }
  if (bad) {
    strides = compact(a.shape);
    if (r >= 2) pad_rows();
    else if (r == 1) strides[0] = 2, give = true;
  }
  if (give && options_.layout != Layout::contiguous) differs_ = true;

  t.struct_size = sizeof(nvte_tensor);
  t.scaling = a.is_scaled ? NVTE_SCALING_TENSOR : NVTE_SCALING_NONE;
  if (a.amax_accumulate) t.flags |= NVTE_TENSOR_AMAX_ACCUMULATE;
  if (options_.read_only == a.field) t.flags |= NVTE_TENSOR_READ_ONLY;
  const bool output = a.role != Role::in;
  auto finish = [&](Part &p, bool out) {
    p.output = out;
    p.must_not_change = (!out || a.untouched) && p.name != options_.alias_in;
    if (p.must_not_change) p.buffer->seal();
    if (p.name.find('.') == std::string::npos || p.name.find(".columnwise") != std::string::npos) bytes_moved_ += (double)(count(p.shape) * (int64_t)bytes_of(p.dtype));
  };
  auto scalar_part = [&](const char *suffix, DLTensor &dst, bool out, bool filled, float value) {
    Part &p = add_part(a.key + suffix, dst, {1}, DType::f32, {1}, 0, false);
    if (filled) memcpy(p.buffer->host(), &value, 4);
    finish(p, out);
  };
  if (a.has_data) {
    Part &p = add_part(a.key, t.data, a.shape, a.dtype, strides, offset, give);
    const size_t size = bytes_of(a.dtype);
    if (!a.values.empty())
      each(a.shape, strides, [&](int64_t i, int64_t off) { write_element(a.dtype, p.buffer->host() + (size_t)(offset + off) * size, a.values[(size_t)i]); });
    finish(p, output);
  } else {  // the logical shape is given all the same
    parts_.emplace_back();
    Part &p = parts_.back();
    p.buffer = nullptr;
    p.shape_store.assign(a.shape.begin(), a.shape.end());
    t.data.device = device_.dl();
    t.data.ndim = (int32_t)r;
    t.data.dtype = dl(a.dtype);
    t.data.shape = p.shape_store.data();
  }
  if (a.has_columnwise) {  // the transpose [K, M]
    const int64_t k = last(a.shape), m = k ? a.size() / k : count(leading(a.shape));
    Part &p = add_part(a.key + ".columnwise", t.columnwise, {k, m}, a.dtype, compact({k, m}), 0, false);
    const size_t size = bytes_of(a.dtype);
    for (int64_t i = 0; i < (int64_t)a.values.size(); i++)
      write_element(a.dtype, p.buffer->host() + (size_t)((i % k) * m + i / k) * size, a.values[(size_t)i]);
    finish(p, output);
  }
  if (a.is_scaled) {
    scalar_part(".scale_inv", t.scale_inv, output, !output || a.role == Role::inout, 1.0f / a.scale);
    if (a.has_columnwise) scalar_part(".columnwise_scale_inv", t.columnwise_scale_inv, output, !output || a.role == Role::inout, 1.0f / a.scale);
    if (output && a.pass_scale) scalar_part(".scale", t.scale, false, true, a.scale);
  }
  if (a.has_amax) scalar_part(".amax", t.amax, output, a.amax_accumulate, a.amax_before);
}

Call::Call(const Problem &p, Device &d, const CallOptions &o) : problem_(p), device_(d), options_(o), args_(p.op->args_size, 0) {
  const nvte_op &op = *p.op;
  auto store = [&](const nvte_field &f, const void *v) { memcpy(args_.data() + f.offset, v, f.size); };
  const size_t size = op.args_size;
  memcpy(args_.data(), &size, sizeof size);
  for (size_t i = 0; i < op.n_fields; i++) {
    const nvte_field &f = op.fields[i];
    if (f.kind == NVTE_FIELD_TENSOR) {
      const Arg *a = p.find(f.name);
      if (!a || o.drop == f.name) continue;
      tensors_.emplace_back();
      lay_out(*a, tensors_.back(), f.flags);
      const nvte_tensor *t = &tensors_.back();
      store(f, &t);
    } else if (f.kind == NVTE_FIELD_TENSOR_LIST) {
      lists_.emplace_back();
      for (const Arg &a : p.args) {
        if (a.field != f.name) continue;
        tensors_.emplace_back();
        lay_out(a, tensors_.back(), f.flags);
        lists_.back().push_back(&tensors_.back());
      }
      nvte_tensor *const *list = lists_.back().empty() ? nullptr : lists_.back().data();
      store(f, &list);
    } else if (f.kind == NVTE_FIELD_DTYPE) {
      const auto it = p.dtypes.find(f.name);
      const DLDataType t = it == p.dtypes.end() ? DLDataType{0, 0, 0} : dl(it->second);
      store(f, &t);
    } else {
      const double v = p.scalar(f.name);
      switch (f.kind) {
        case NVTE_FIELD_F32: { const float x = (float)v; store(f, &x); break; }
        case NVTE_FIELD_I32: { const int32_t x = (int32_t)v; store(f, &x); break; }
        case NVTE_FIELD_U32: { const uint32_t x = (uint32_t)v; store(f, &x); break; }
        case NVTE_FIELD_I64: { const int64_t x = (int64_t)v; store(f, &x); break; }
        case NVTE_FIELD_SIZE: { const size_t x = (size_t)v; store(f, &x); break; }
        default: throw std::runtime_error("field kind");
      }
    }
  }
  if (!o.alias_out.empty()) {
    Part *in = nullptr, *out = nullptr;
    for (Part &q : parts_) {
      if (q.name == o.alias_in) in = &q;
      if (q.name == o.alias_out) out = &q;
    }
    if (!in || !out || in->dtype != out->dtype || in->shape != out->shape) throw std::runtime_error("aliases " + o.alias_out + " and " + o.alias_in + " differ");
    out->buffer = in->buffer;
    out->tensor->data = in->buffer->data();
  }
  exec_ = {};
  exec_.struct_size = sizeof exec_;
  exec_.device = d.dl();
  exec_.stream = d.stream();
  exec_.implementation = o.implementation.empty() ? nullptr : options_.implementation.c_str();
}

nvte_status Call::invoke() {
  const Environment environment(options_.flush);
  const nvte_status status = problem_.op->run(&exec_, args_.data());
  if (status != NVTE_OK) message_ = nvte_last_error();
  if (!environment.kept()) {
    message_ = "the call left another floating-point environment behind";
    return NVTE_ERR_INTERNAL;
  }
  return status;
}

nvte_status Call::run() {
  message_.clear();
  size_t need = 0;
  const nvte_status asked = nvte_workspace(problem_.op->name, &exec_, args_.data(), &need);
  if (asked == NVTE_OK && need) {
    workspace_bytes_ = need;
    const size_t give = need - (options_.short_workspace ? 1 : 0);
    workspace_ = std::make_unique<Buffer>(device_, give, options_.poison);
    workspace_->mark(0, give);
    workspace_->upload();
    exec_.workspace = workspace_->data();
    exec_.workspace_size = give;
  }
  for (Part &p : parts_)
    if (p.own) p.own->upload();
  const nvte_status status = invoke();
  device_.synchronize();
  for (Part &p : parts_)
    if (p.own) p.own->download();
  if (workspace_) workspace_->download();
  if (asked != status && asked != NVTE_OK && status == NVTE_OK) {
    message_ = std::string("nvte_workspace fails where the call succeeds: ") + nvte_last_error();
    return NVTE_ERR_INTERNAL;
  }
  return status;
}

nvte_status Call::run_again() {
  const nvte_status status = invoke();
  device_.synchronize();
  return status;
}

nvte_status Call::explain(std::string &text) {
  char buf[4096];
  const nvte_status status = nvte_explain(problem_.op->name, &exec_, args_.data(), buf, sizeof buf);
  text = status == NVTE_OK ? buf : nvte_last_error();
  return status;
}

std::string Call::check_untouched(bool outputs_too) const {
  for (const Part &p : parts_) {
    if (!p.own) continue;
    const std::string damage = p.own->damage();
    if (!damage.empty()) return p.name + ": " + damage + (p.must_not_change ? " (nothing in it may change)" : "");
    if (outputs_too && p.output && p.own->changed()) return p.name + " was written by a call that must not write";
  }
  if (workspace_ && !workspace_->damage().empty()) return "workspace: " + workspace_->damage();
  return "";
}

Result Call::result() {
  Result r;
  for (Part &p : parts_) {
    if (!p.buffer || !p.output || p.must_not_change) continue;  // an unwritten output (noop) holds the poison
    const size_t size = bytes_of(p.dtype);
    std::vector<uint8_t> &dense = r[p.name];
    dense.resize((size_t)count(p.shape) * size);
    each(p.shape, p.strides, [&](int64_t i, int64_t off) { memcpy(dense.data() + (size_t)i * size, p.buffer->host() + (size_t)(p.offset + off) * size, size); });
  }
  return r;
}

}  // namespace te::test
