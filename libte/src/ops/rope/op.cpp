// SPDX-License-Identifier: Apache-2.0
#include "libte/rope.h"

#include "cpu/isa.h"
#include "ops/rope/geometry.h"

namespace te {
TE_CPU_KERNELS_3(rope_forward)
TE_CPU_KERNELS_3(rope_backward)

static nvte_status bad(const char *what, int64_t got) {
  return fail(NVTE_ERR_INVALID_ARGUMENT, "%s, got %lld", what, (long long)got);
}

static nvte_status check_position(const RopeShape &r, int64_t position, int64_t b, int64_t s) {
  if (position >= 0 && position < r.positions) return NVTE_OK;
  return fail(NVTE_ERR_INVALID_ARGUMENT, "the position of token %lld of batch entry %lld must be in freqs' [0, %lld), got %lld",
              (long long)s, (long long)b, (long long)r.positions, (long long)position);
}

// Of one batch entry, where positions count up: both chunks rise, so their ends are enough.
static nvte_status check_ends(const RopeArgs &a, const RopeShape &r, int64_t b) {
  if (!r.s) return NVTE_OK;
  const int64_t ends[] = {0, (r.s + 1) / 2 - 1, r.s / 2, r.s - 1};
  for (int64_t s : ends)
    if (nvte_status e = check_position(r, rope_position(a, r, b, s, 0), b, s)) return e;
  return NVTE_OK;
}

// Shapes and scalars, on every device.
static nvte_status check_shapes(const RopeArgs &a) {
  if (a.format < NVTE_FORMAT_SBHD || a.format > NVTE_FORMAT_BHSD) return bad("format must be one of NVTE_FORMAT_* (0 to 3)", a.format);
  const bool ragged = a.format == NVTE_FORMAT_THD;
  const DLTensor &x = a.x->data, &y = a.y->data, &f = a.freqs->data;
  if (x.ndim != (ragged ? 3 : 4))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "%s must have rank %d in this format, got %d", a.x_name, ragged ? 3 : 4, x.ndim);
  if (y.ndim != x.ndim) return fail(NVTE_ERR_INVALID_ARGUMENT, "%s must have %s's rank %d, got %d", a.y_name, a.x_name, x.ndim, y.ndim);
  for (int i = 0; i < x.ndim; i++)
    if (y.shape[i] != x.shape[i])
      return fail(NVTE_ERR_INVALID_ARGUMENT, "%s must have %s's shape: dimension %d is %lld, got %lld", a.y_name, a.x_name, i,
                  (long long)x.shape[i], (long long)y.shape[i]);
  if (f.ndim != 2 && !(f.ndim == 4 && f.shape[1] == 1 && f.shape[2] == 1))
    return bad("freqs must be [P, d2] or [P, 1, 1, d2]; rank", f.ndim);
  const RopeShape r = rope_shape(a);
  if (r.d2 % 2) return bad("freqs: d2 must be even", r.d2);
  if (r.d2 > r.d) return fail(NVTE_ERR_INVALID_ARGUMENT, "freqs: d2 must be <= d = %lld, got %lld", (long long)r.d, (long long)r.d2);
  if (ragged && !given(a.cu_seqlens)) return fail(NVTE_ERR_INVALID_ARGUMENT, "cu_seqlens is needed with NVTE_FORMAT_THD");
  if (!ragged && given(a.cu_seqlens)) return fail(NVTE_ERR_INVALID_ARGUMENT, "cu_seqlens goes with NVTE_FORMAT_THD only");
  if (ragged && numel(a.cu_seqlens->data) < 1) return bad("cu_seqlens must have b + 1 >= 1 entries", 0);
  if (given(a.start_positions) && given(a.positions))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "give positions or start_positions, not both");
  const int64_t batch = ragged ? r.sequences : r.b;
  if (given(a.start_positions) && numel(a.start_positions->data) != batch)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "start_positions must be [b], b = %lld, got [%lld]", (long long)batch,
                (long long)numel(a.start_positions->data));
  if (given(a.positions)) {
    const DLTensor &p = a.positions->data;
    if (ragged ? p.ndim != 1 || p.shape[0] != r.s : p.ndim != 2 || p.shape[0] != r.b || p.shape[1] != r.s)
      return fail(NVTE_ERR_INVALID_ARGUMENT, "positions must be %s = [%lld, %lld], got rank %d with %lld entries",
                  ragged ? "[t]" : "[b, s]", (long long)r.b, (long long)r.s, p.ndim, (long long)numel(p));
  }
  if (a.cp_rank >= a.cp_size)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "cp_rank must be < cp_size = %d, got %d", a.cp_size, a.cp_rank);
  if (a.cp_size > 1 && !ragged && r.s % 2) return bad("context parallelism needs an even local sequence length", r.s);
  if (!ragged && !given(a.positions) && !given(a.start_positions) && r.b && r.h && r.d) return check_ends(a, r, 0);
  return NVTE_OK;
}

// Values that live in (CPU) memory: everything is looked at before the kernel writes.
static nvte_status check_values(const RopeArgs &a) {
  const RopeShape r = rope_shape(a);
  if (r.h == 0 || r.d == 0) return NVTE_OK;
  if (a.format != NVTE_FORMAT_THD) {
    for (int64_t b = 0; b < r.b; b++) {
      if (given(a.positions)) {
        for (int64_t s = 0; s < r.s; s++)
          if (nvte_status e = check_position(r, rope_position(a, r, b, s, 0), b, s)) return e;
      } else if (given(a.start_positions)) {
        if (nvte_status e = check_ends(a, r, b)) return e;
      }
    }
    return NVTE_OK;
  }
  const int32_t *cu = address_as<const int32_t>(a.cu_seqlens->data);
  if (cu[0]) return bad("cu_seqlens[0] must be 0", cu[0]);
  for (int64_t i = 0; i < r.sequences; i++) {
    if (cu[i + 1] < cu[i])
      return fail(NVTE_ERR_INVALID_ARGUMENT, "cu_seqlens must not fall: entry %lld is %d after %d", (long long)i + 1, cu[i + 1], cu[i]);
    const int64_t length = (int64_t)cu[i + 1] - cu[i];
    if (a.cp_size > 1 && length % (2 * (int64_t)a.cp_size))
      return fail(NVTE_ERR_INVALID_ARGUMENT, "context parallelism needs sequence lengths that are multiples of 2 * cp_size = %lld, got %lld",
                  2 * (long long)a.cp_size, (long long)length);
  }
  if (r.sequences && rope_end(a, r.sequences - 1) > r.s)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "cu_seqlens must end at or before the %lld tokens of %s, got %lld", (long long)r.s, a.x_name,
                (long long)rope_end(a, r.sequences - 1));
  for (int64_t i = 0; i < r.sequences; i++)
    for (int64_t s = rope_end(a, i - 1); s < rope_end(a, i); s++)
      if (nvte_status e = check_position(r, rope_position(a, r, 0, s, i), i, s)) return e;
  return NVTE_OK;
}

template <class Args> static nvte_status validate(const nvte_exec *, const void *p) {
  return check_shapes(rope_args(*static_cast<const Args *>(p)));
}
template <class Args> static nvte_status infer(void *p) {
  const RopeArgs a = rope_args(*static_cast<const Args *>(p));
  if (!a.y) return NVTE_OK;
  DLTensor &y = a.y->data;
  y.ndim = a.x->data.ndim;
  for (int i = 0; i < y.ndim; i++) y.shape[i] = a.x->data.shape[i];
  return NVTE_OK;
}
template <class Args, nvte_status (*kRun)(const nvte_exec *, const void *)>
static nvte_status run(const nvte_exec *exec, const void *p) {
  if (nvte_status e = check_values(rope_args(*static_cast<const Args *>(p)))) return e;
  return kRun(exec, p);
}

static const nvte_implementation forward[] = {{sizeof(nvte_implementation), "rope_forward", "cpu", 0, 0, nullptr, nullptr,
                                               run<nvte_rope_forward_args, run_cpu_rope_forward>}};
static const nvte_implementation backward[] = {{sizeof(nvte_implementation), "rope_backward", "cpu", 0, 0, nullptr, nullptr,
                                                run<nvte_rope_backward_args, run_cpu_rope_backward>}};
TE_OP(rope_forward) = {validate<nvte_rope_forward_args>, infer<nvte_rope_forward_args>, forward, 1};
TE_OP(rope_backward) = {validate<nvte_rope_backward_args>, infer<nvte_rope_backward_args>, backward, 1};
}  // namespace te
