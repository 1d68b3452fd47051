// SPDX-License-Identifier: Apache-2.0
// What an attention call asks for, in numbers: where element (batch, position, head, channel) lies, how long each sequence is, and
// the interval of keys that lengths, causality and window leave to a query. Included by op.cpp and once a level by cpu.cpp, so
// everything has internal linkage. A GPU kernel takes a Problem by value; its pointers are the device's then.
#pragma once
#include "core/tensor.h"
#include "libte/attention.h"

#ifndef TE_ATTENTION_FN  // gpu.hip: __host__ __device__
#define TE_ATTENTION_FN
#endif

namespace te {
namespace {

inline bool given(const nvte_tensor *t) { return t && present(t->data); }

// Axis of batch, position, head and channel of a format (-1: none).
struct Axes { int b, s, h, d; };
inline Axes axes_of(int32_t format) {
  switch (format) {
    case NVTE_FORMAT_SBHD: return {1, 0, 2, 3};
    case NVTE_FORMAT_THD: return {-1, 0, 1, 2};
    case NVTE_FORMAT_BHSD: return {0, 2, 1, 3};
    default: return {0, 1, 2, 3};
  }
}

// A tensor seen as [batch, position, head, channel], whatever its order in memory.
struct View {
  char *base;
  DType dtype;
  int64_t bytes, b, s, h, d;  // bytes of an element, strides in elements
  TE_ATTENTION_FN char *row(int64_t ib, int64_t is, int64_t ih) const { return base + (ib * b + is * s + ih * h) * bytes; }
};
inline View view_of(const nvte_tensor *t, const Axes &x) {
  const DLTensor &d = t->data;
  return {(char *)address(d), dtype_of(d.dtype), element_bytes(d), x.b < 0 ? 0 : stride_of(d, x.b), stride_of(d, x.s),
          stride_of(d, x.h), stride_of(d, x.d)};
}
// bias and mask: [b|1, h|1, s_q|1, s_kv], a dimension of 1 is broadcast (stride 0).
inline View grid_of(const nvte_tensor *t) {
  if (!given(t)) return {};
  const DLTensor &d = t->data;
  auto stride = [&](int i) { return d.shape[i] == 1 ? 0 : stride_of(d, i); };
  return {(char *)address(d), dtype_of(d.dtype), element_bytes(d), stride(0), stride(2), stride(1), stride_of(d, 3)};
}

// One batch entry: memory position of its first query and key (THD; else 0) and its real lengths.
struct Sequence { int64_t q0, k0, len_q, len_k; };

struct Problem {
  int64_t b, h_q, h_kv, group, s_q, s_kv, d, d_v;  // group = h_q / h_kv; THD: s_q, s_kv count all tokens
  bool thd, bottom_right_window;
  float scale, dropout;
  int32_t mask_kind, bias_kind, softmax_kind;
  int64_t window_left, window_right;
  const int32_t *cu_q, *cu_k, *cu_q_padded, *cu_k_padded;
  const int64_t *rng;     // seed, offset
  uint64_t seed, offset;  // what rng holds, once read_rng() has looked
  View q, k, v, bias, mask;
  const float *sink, *slopes;  // softmax_offset, alibi_slopes

  TE_ATTENTION_FN Sequence sequence(int64_t ib) const {
    Sequence s = {0, 0, s_q, s_kv};
    if (cu_q) s.len_q = (int64_t)cu_q[ib + 1] - cu_q[ib];
    if (cu_k) s.len_k = (int64_t)cu_k[ib + 1] - cu_k[ib];
    if (thd) {
      s.q0 = cu_q_padded ? cu_q_padded[ib] : cu_q[ib];
      s.k0 = cu_k_padded ? cu_k_padded[ib] : cu_k[ib];
    }
    return s;
  }
  // q' of the header: the query's position on the keys' axis, for window and ALiBi.
  TE_ATTENTION_FN int64_t aligned(const Sequence &s, int64_t iq) const {
    return iq + (mask_kind == NVTE_MASK_CAUSAL_BOTTOM_RIGHT || bottom_right_window ? s.len_k - s.len_q : 0);
  }
  // Keys [lo, hi) that lengths, causality and window leave to query iq; none where lo >= hi. Both grow with iq.
  TE_ATTENTION_FN void interval(const Sequence &s, int64_t iq, int64_t *lo, int64_t *hi) const {
    int64_t l = 0, r = s.len_k;
    const int64_t at = aligned(s, iq);
    if (mask_kind == NVTE_MASK_CAUSAL && iq + 1 < r) r = iq + 1;
    if (mask_kind == NVTE_MASK_CAUSAL_BOTTOM_RIGHT && at + 1 < r) r = at + 1;
    // subtracting from the length first keeps huge windows from overflowing
    if (window_left >= 0 && at > window_left) l = at - window_left;
    if (window_right >= 0 && window_right < r - at - 1) r = at + 1 + window_right;
    *lo = l;
    *hi = r;
  }
  // The same with lo = hi = 0 when none, past the queries too.
  TE_ATTENTION_FN void keys_of(const Sequence &s, int64_t iq, int64_t *lo, int64_t *hi) const {
    interval(s, iq, lo, hi);
    if (iq >= s.len_q || *lo >= *hi) *lo = *hi = 0;
  }
};

// Counts from shapes; Args is either args struct. op.cpp has checked that they agree.
template <class Args> inline Problem problem_of(const Args &a) {
  Problem p = {};
  const Axes x = axes_of(a.format);
  const DLTensor &q = a.q->data, &k = a.k->data, &v = a.v->data;
  p.thd = a.format == NVTE_FORMAT_THD;
  p.b = p.thd ? numel(a.cu_seqlens_q->data) - 1 : q.shape[x.b];
  p.h_q = q.shape[x.h];
  p.h_kv = k.shape[x.h];
  p.group = p.h_kv ? p.h_q / p.h_kv : 0;
  p.s_q = q.shape[x.s];
  p.s_kv = k.shape[x.s];
  p.d = q.shape[x.d];
  p.d_v = v.shape[x.d];
  p.bottom_right_window = a.flags & NVTE_ATTENTION_WINDOW_BOTTOM_RIGHT;
  p.scale = a.scale;
  p.dropout = a.dropout;
  p.mask_kind = a.mask_kind;
  p.bias_kind = a.bias_kind;
  p.softmax_kind = a.softmax_kind;
  p.window_left = a.window_left;
  p.window_right = a.window_right;
  auto ints = [](const nvte_tensor *t) { return given(t) ? address_as<const int32_t>(t->data) : nullptr; };
  auto floats = [](const nvte_tensor *t) { return given(t) ? address_as<const float>(t->data) : nullptr; };
  p.cu_q = ints(a.cu_seqlens_q);
  p.cu_k = ints(a.cu_seqlens_kv);
  p.cu_q_padded = ints(a.cu_seqlens_q_padded);
  p.cu_k_padded = ints(a.cu_seqlens_kv_padded);
  p.rng = given(a.rng_state) ? address_as<const int64_t>(a.rng_state->data) : nullptr;
  p.q = view_of(a.q, x);
  p.k = view_of(a.k, x);
  p.v = view_of(a.v, x);
  p.bias = grid_of(a.bias);
  p.mask = grid_of(a.mask);
  p.sink = a.softmax_kind == NVTE_SOFTMAX_LEARNABLE ? floats(a.softmax_offset) : nullptr;
  p.slopes = floats(a.alibi_slopes);
  return p;
}
TE_ATTENTION_FN inline void read_rng(Problem *p) {
  if (p->rng) p->seed = (uint64_t)p->rng[0], p->offset = (uint64_t)p->rng[1];
}

}  // namespace
}  // namespace te
