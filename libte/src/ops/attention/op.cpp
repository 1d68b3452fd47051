// SPDX-License-Identifier: Apache-2.0
#include "cpu/isa.h"
#include "ops/attention/problem.h"

namespace te {
TE_CPU_KERNELS_4(attention_forward)
TE_CPU_KERNELS_4(attention_backward)

typedef long long ll;

static nvte_status bad(const char *rule, ll got) { return fail(NVTE_ERR_INVALID_ARGUMENT, "%s, got %lld", rule, got); }

// The logical sizes, from q, k and v. `b` of THD is the number of sequences.
struct Counts { int64_t b, s_q, s_kv, h_q, h_kv, d, d_v; };

static nvte_status check_rank(const char *name, const nvte_tensor *t, int32_t format) {
  const int rank = format == NVTE_FORMAT_THD ? 3 : 4;
  if (t->data.ndim == rank) return NVTE_OK;
  return fail(NVTE_ERR_INVALID_ARGUMENT, "%s must have rank %d in this format, got %d", name, rank, t->data.ndim);
}
static int64_t size_at(const nvte_tensor *t, int axis) { return axis < 0 ? 1 : t->data.shape[axis]; }

// `t` must have these sizes along the format's axes.
static nvte_status check_sizes(const char *name, const nvte_tensor *t, int32_t format, int64_t b, int64_t s, int64_t h, int64_t d) {
  if (nvte_status e = check_rank(name, t, format)) return e;
  const Axes x = axes_of(format);
  const struct { const char *what; int axis; int64_t want; } rules[] = {{"batch", x.b, b}, {"length", x.s, s}, {"heads", x.h, h}, {"channels", x.d, d}};
  for (const auto &r : rules)
    if (r.axis >= 0 && t->data.shape[r.axis] != r.want)
      return fail(NVTE_ERR_INVALID_ARGUMENT, "%s must have %s %lld (dimension %d), got %lld", name, r.what, (ll)r.want, r.axis,
                  (ll)t->data.shape[r.axis]);
  return NVTE_OK;
}

static nvte_status check_vector(const char *name, const nvte_tensor *t, int64_t n, const char *meaning) {
  if (!given(t) || (t->data.ndim == 1 && t->data.shape[0] == n)) return NVTE_OK;
  return fail(NVTE_ERR_INVALID_ARGUMENT, "%s must be [%lld] (%s), got rank %d with %lld entries", name, (ll)n, meaning, t->data.ndim,
              (ll)numel(t->data));
}

// bias and mask. THD: lengths of the longest sequences, checked with the contents of cu_seqlens.
static nvte_status check_grid(const char *name, const nvte_tensor *t, const Counts &n, bool thd) {
  if (!given(t)) return NVTE_OK;
  const DLTensor &d = t->data;
  if (d.ndim != 4) return fail(NVTE_ERR_INVALID_ARGUMENT, "%s must be [b|1, h|1, s_q|1, s_kv], got rank %d", name, d.ndim);
  const int64_t want[4] = {n.b, n.h_q, n.s_q, n.s_kv};
  for (int i = 0; i < 4; i++) {
    if (thd && i >= 2) continue;
    if (d.shape[i] != want[i] && !(i < 3 && d.shape[i] == 1))
      return fail(NVTE_ERR_INVALID_ARGUMENT, "%s must be [b|1, h|1, s_q|1, s_kv]: dimension %d must be %lld%s, got %lld", name, i, (ll)want[i],
                  i < 3 ? " or 1" : "", (ll)d.shape[i]);
  }
  return NVTE_OK;
}

template <class Args> static nvte_status check_format(const Args &a) {
  if (a.format < NVTE_FORMAT_SBHD || a.format > NVTE_FORMAT_BHSD) return bad("format must be one of NVTE_FORMAT_* (0 to 3)", a.format);
  if (nvte_status e = check_rank("q", a.q, a.format)) return e;
  if (nvte_status e = check_rank("k", a.k, a.format)) return e;
  return check_rank("v", a.v, a.format);
}

// What forward and backward share; fills *out.
template <class Args> static nvte_status check_inputs(const Args &a, Counts *out) {
  if (nvte_status e = check_format(a)) return e;
  if (a.mask_kind < NVTE_MASK_NONE || a.mask_kind > NVTE_MASK_CAUSAL_BOTTOM_RIGHT)
    return bad("mask_kind must be one of NVTE_MASK_* (0 to 2)", a.mask_kind);
  if (a.bias_kind < NVTE_BIAS_POST_SCALE || a.bias_kind > NVTE_BIAS_PRE_SCALE) return bad("bias_kind must be one of NVTE_BIAS_* (0 or 1)", a.bias_kind);
  if (a.softmax_kind < NVTE_SOFTMAX_VANILLA || a.softmax_kind > NVTE_SOFTMAX_LEARNABLE)
    return bad("softmax_kind must be one of NVTE_SOFTMAX_* (0 to 2)", a.softmax_kind);
  if (a.flags & ~NVTE_ATTENTION_WINDOW_BOTTOM_RIGHT) return bad("flags: only NVTE_ATTENTION_WINDOW_BOTTOM_RIGHT (1) is known", a.flags);

  const bool thd = a.format == NVTE_FORMAT_THD;
  const Axes x = axes_of(a.format);
  Counts n = {size_at(a.q, x.b), size_at(a.q, x.s), size_at(a.k, x.s), size_at(a.q, x.h), size_at(a.k, x.h), size_at(a.q, x.d), size_at(a.v, x.d)};
  if (n.d < 1) return bad("q must have at least 1 channel", n.d);
  if (n.d_v < 1) return bad("v must have at least 1 channel", n.d_v);
  if (n.h_kv < 1 || n.h_q % n.h_kv)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "q's heads must be a multiple of k's: %lld is none of %lld", (ll)n.h_q, (ll)n.h_kv);
  if (nvte_status e = check_sizes("k", a.k, a.format, n.b, n.s_kv, n.h_kv, n.d)) return e;
  if (nvte_status e = check_sizes("v", a.v, a.format, n.b, n.s_kv, n.h_kv, n.d_v)) return e;

  if (thd && !(given(a.cu_seqlens_q) && given(a.cu_seqlens_kv)))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "%s is needed with NVTE_FORMAT_THD", given(a.cu_seqlens_q) ? "cu_seqlens_kv" : "cu_seqlens_q");
  if (thd) {
    const DLTensor &cu = a.cu_seqlens_q->data;
    if (cu.ndim != 1 || cu.shape[0] < 1) return bad("cu_seqlens_q must be [b + 1] with at least 1 entry; entries", (ll)numel(cu));
    n.b = cu.shape[0] - 1;
  }
  const struct { const char *name; const nvte_tensor *t; bool padded; } lengths[] = {{"cu_seqlens_q", a.cu_seqlens_q, false},
                                                                                    {"cu_seqlens_kv", a.cu_seqlens_kv, false},
                                                                                    {"cu_seqlens_q_padded", a.cu_seqlens_q_padded, true},
                                                                                    {"cu_seqlens_kv_padded", a.cu_seqlens_kv_padded, true}};
  for (const auto &l : lengths) {
    if (l.padded && !thd && given(l.t)) return fail(NVTE_ERR_INVALID_ARGUMENT, "%s goes with NVTE_FORMAT_THD only", l.name);
    if (nvte_status e = check_vector(l.name, l.t, n.b + 1, "b + 1")) return e;
  }
  if (nvte_status e = check_grid("bias", a.bias, n, thd)) return e;
  if (nvte_status e = check_grid("mask", a.mask, n, thd)) return e;

  if (!(a.dropout >= 0 && a.dropout < 1)) return fail(NVTE_ERR_INVALID_ARGUMENT, "dropout must be in [0, 1), got %g", (double)a.dropout);
  if (a.dropout > 0 && !given(a.rng_state)) return fail(NVTE_ERR_INVALID_ARGUMENT, "rng_state is needed with dropout > 0, got dropout %g", (double)a.dropout);
  const bool learnable = a.softmax_kind == NVTE_SOFTMAX_LEARNABLE;
  if (learnable != given(a.softmax_offset))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "softmax_offset goes with softmax_kind NVTE_SOFTMAX_LEARNABLE (2) and with no other, got kind %d and %s offset",
                a.softmax_kind, learnable ? "no" : "an");
  if (nvte_status e = check_vector("softmax_offset", a.softmax_offset, n.h_q, "q's heads")) return e;
  if (nvte_status e = check_vector("alibi_slopes", a.alibi_slopes, n.h_q, "q's heads")) return e;
  *out = n;
  return NVTE_OK;
}

static nvte_status check_stats(const nvte_tensor *t, const Counts &n, bool thd) {
  const DLTensor &d = t->data;
  const bool fits = thd ? d.ndim == 2 && d.shape[0] == n.h_q && d.shape[1] == n.s_q
                        : d.ndim == 3 && d.shape[0] == n.b && d.shape[1] == n.h_q && d.shape[2] == n.s_q;
  if (fits) return NVTE_OK;
  if (thd)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "stats must be [h, t] = [%lld, %lld], got rank %d with %lld entries", (ll)n.h_q, (ll)n.s_q, d.ndim, (ll)numel(d));
  return fail(NVTE_ERR_INVALID_ARGUMENT, "stats must be [b, h, s_q] = [%lld, %lld, %lld], got rank %d with %lld entries", (ll)n.b, (ll)n.h_q,
              (ll)n.s_q, d.ndim, (ll)numel(d));
}

static nvte_status validate_forward(const nvte_exec *, const void *p) {
  const auto &a = *static_cast<const nvte_attention_forward_args *>(p);
  Counts n;
  if (nvte_status e = check_inputs(a, &n)) return e;
  if (nvte_status e = check_sizes("o", a.o, a.format, n.b, n.s_q, n.h_q, n.d_v)) return e;
  return given(a.stats) ? check_stats(a.stats, n, a.format == NVTE_FORMAT_THD) : NVTE_OK;
}

static nvte_status validate_backward(const nvte_exec *, const void *p) {
  const auto &a = *static_cast<const nvte_attention_backward_args *>(p);
  Counts n;
  if (nvte_status e = check_inputs(a, &n)) return e;
  if (nvte_status e = check_sizes("d_o", a.d_o, a.format, n.b, n.s_q, n.h_q, n.d_v)) return e;
  if (nvte_status e = check_sizes("o", a.o, a.format, n.b, n.s_q, n.h_q, n.d_v)) return e;
  if (nvte_status e = check_stats(a.stats, n, a.format == NVTE_FORMAT_THD)) return e;
  if (nvte_status e = check_sizes("dq", a.dq, a.format, n.b, n.s_q, n.h_q, n.d)) return e;
  if (nvte_status e = check_sizes("dk", a.dk, a.format, n.b, n.s_kv, n.h_kv, n.d)) return e;
  if (nvte_status e = check_sizes("dv", a.dv, a.format, n.b, n.s_kv, n.h_kv, n.d_v)) return e;
  if (given(a.dbias)) {
    if (!given(a.bias)) return fail(NVTE_ERR_INVALID_ARGUMENT, "dbias was asked for, but there is no bias");
    const DLTensor &d = a.dbias->data, &b = a.bias->data;
    bool same = d.ndim == 4;
    for (int i = 0; i < 4 && same; i++) same = d.shape[i] == b.shape[i];
    if (!same)
      return fail(NVTE_ERR_INVALID_ARGUMENT, "dbias must have bias's shape [%lld, %lld, %lld, %lld], got rank %d with %lld entries", (ll)b.shape[0],
                  (ll)b.shape[1], (ll)b.shape[2], (ll)b.shape[3], d.ndim, (ll)numel(d));
  }
  if (given(a.dsoftmax_offset) && !given(a.softmax_offset))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "dsoftmax_offset was asked for, but there is no softmax_offset");
  return check_vector("dsoftmax_offset", a.dsoftmax_offset, n.h_q, "q's heads");
}

static const char *refuse_forward(const nvte_exec *, const void *p) {
  return given(static_cast<const nvte_attention_forward_args *>(p)->page_table) ? "page_table: paged key/value caches are not built" : nullptr;
}

// Contents of the cumulative lengths (CPU memory), before anything is read or written through them.
static nvte_status check_lengths(const char *name, const nvte_tensor *cu, const char *padded_name, const nvte_tensor *padded, bool thd, int64_t limit,
                                 int64_t *longest) {
  *longest = limit;
  if (!given(cu)) return NVTE_OK;
  const int32_t *c = address_as<const int32_t>(cu->data), *pad = given(padded) ? address_as<const int32_t>(padded->data) : nullptr;
  const int64_t b = numel(cu->data) - 1;
  *longest = 0;
  if (c[0] < 0) return fail(NVTE_ERR_INVALID_ARGUMENT, "%s[0] must be >= 0, got %d", name, c[0]);
  if (pad && pad[0] < 0) return fail(NVTE_ERR_INVALID_ARGUMENT, "%s[0] must be >= 0, got %d", padded_name, pad[0]);
  for (int64_t i = 0; i < b; i++) {
    const int64_t length = (int64_t)c[i + 1] - c[i];
    if (length < 0) return fail(NVTE_ERR_INVALID_ARGUMENT, "%s must not fall: entry %lld is %d after %d", name, (ll)i + 1, c[i + 1], c[i]);
    if (!thd && length > limit)
      return fail(NVTE_ERR_INVALID_ARGUMENT, "%s: sequence %lld has length %lld, the tensor's is %lld", name, (ll)i, (ll)length, (ll)limit);
    if (pad) {
      // the last entry is the end of the last sequence's room
      if ((int64_t)pad[i] + length > pad[i + 1])
        return fail(NVTE_ERR_INVALID_ARGUMENT, "%s: sequence %lld of length %lld does not fit between %d and %d", padded_name, (ll)i, (ll)length,
                    pad[i], pad[i + 1]);
    }
    if (length > *longest) *longest = length;
  }
  const int64_t end = pad ? pad[b] : c[b];
  if (thd && end > limit)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "%s must end at or before the tensor's %lld tokens, got %lld", pad ? padded_name : name, (ll)limit, (ll)end);
  return NVTE_OK;
}

static nvte_status check_longest(const char *name, const nvte_tensor *grid, int64_t longest_q, int64_t longest_kv) {
  if (!given(grid)) return NVTE_OK;
  const DLTensor &d = grid->data;
  if (d.shape[3] < longest_kv || (d.shape[2] != 1 && d.shape[2] < longest_q))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "%s must cover the longest sequences: [.., %lld or 1, %lld] at least, got [.., %lld, %lld]", name,
                (ll)longest_q, (ll)longest_kv, (ll)d.shape[2], (ll)d.shape[3]);
  return NVTE_OK;
}

template <class Args, nvte_status (*kRun)(const nvte_exec *, const void *)> static nvte_status run(const nvte_exec *exec, const void *p) {
  const Args &a = *static_cast<const Args *>(p);
  const Axes x = axes_of(a.format);
  const bool thd = a.format == NVTE_FORMAT_THD;
  int64_t longest_q, longest_kv;
  if (nvte_status e = check_lengths("cu_seqlens_q", a.cu_seqlens_q, "cu_seqlens_q_padded", a.cu_seqlens_q_padded, thd, size_at(a.q, x.s), &longest_q))
    return e;
  if (nvte_status e = check_lengths("cu_seqlens_kv", a.cu_seqlens_kv, "cu_seqlens_kv_padded", a.cu_seqlens_kv_padded, thd, size_at(a.k, x.s), &longest_kv))
    return e;
  if (thd) {
    if (nvte_status e = check_longest("bias", a.bias, longest_q, longest_kv)) return e;
    if (nvte_status e = check_longest("mask", a.mask, longest_q, longest_kv)) return e;
  }
  return kRun(exec, p);
}

static void copy_shape(nvte_tensor *to, const nvte_tensor *from) {
  if (!to) return;
  to->data.ndim = from->data.ndim;
  for (int i = 0; i < from->data.ndim; i++) to->data.shape[i] = from->data.shape[i];
}

static nvte_status infer_forward(void *p) {
  const auto &a = *static_cast<const nvte_attention_forward_args *>(p);
  if (nvte_status e = check_format(a)) return e;
  const Axes x = axes_of(a.format);
  copy_shape(a.o, a.q);
  if (a.o) a.o->data.shape[x.d] = a.v->data.shape[x.d];
  if (a.stats) {
    DLTensor &s = a.stats->data;
    s.ndim = 0;
    if (x.b >= 0) s.shape[s.ndim++] = size_at(a.q, x.b);
    s.shape[s.ndim++] = size_at(a.q, x.h);
    s.shape[s.ndim++] = size_at(a.q, x.s);
  }
  return NVTE_OK;
}
static nvte_status infer_backward(void *p) {
  const auto &a = *static_cast<const nvte_attention_backward_args *>(p);
  if (nvte_status e = check_format(a)) return e;
  copy_shape(a.dq, a.q);
  copy_shape(a.dk, a.k);
  copy_shape(a.dv, a.v);
  if (a.bias) copy_shape(a.dbias, a.bias);
  if (a.dsoftmax_offset) {
    a.dsoftmax_offset->data.ndim = 1;
    a.dsoftmax_offset->data.shape[0] = size_at(a.q, axes_of(a.format).h);
  }
  return NVTE_OK;
}

static const nvte_implementation forward[] = {{sizeof(nvte_implementation), "attention_forward", "cpu", 0, 0, refuse_forward, nullptr,
                                               run<nvte_attention_forward_args, run_cpu_attention_forward>}};
static const nvte_implementation backward[] = {{sizeof(nvte_implementation), "attention_backward", "cpu", 0, 0, nullptr, nullptr,
                                                run<nvte_attention_backward_args, run_cpu_attention_backward>}};
TE_OP(attention_forward) = {validate_forward, infer_forward, forward, 1};
TE_OP(attention_backward) = {validate_backward, infer_backward, backward, 1};
}  // namespace te
