// SPDX-License-Identifier: Apache-2.0
#include "libte/loss.h"

#include "core/tensor.h"
#include "cpu/isa.h"

namespace te {
TE_CPU_KERNELS_3(cross_entropy_forward)
TE_CPU_KERNELS_3(cross_entropy_backward)

static bool given(const nvte_tensor *t) { return t && present(t->data); }
static bool is_one(const DLTensor &t) { return t.ndim == 0 || (t.ndim == 1 && t.shape[0] == 1); }
template <class Args> static int64_t classes(const Args &a) { return a.vocab_size ? a.vocab_size : a.logits->data.shape[1]; }

template <class Args> static nvte_status check_scalars(const Args &a) {
  if (!(a.label_smoothing >= 0 && a.label_smoothing < 1))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "label_smoothing must be in [0, 1), got %g", (double)a.label_smoothing);
  if (a.reduction < NVTE_REDUCTION_NONE || a.reduction > NVTE_REDUCTION_MEAN)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "reduction must be one of NVTE_REDUCTION_* (0 to 2), got %d", a.reduction);
  const int64_t columns = a.logits->data.shape[1], vocabulary = classes(a);
  if (a.vocab_start < 0 || a.vocab_start > vocabulary - columns)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "vocab_start + V must be <= the vocabulary's %lld, got %lld + %lld", (long long)vocabulary,
                (long long)a.vocab_start, (long long)columns);
  return NVTE_OK;
}

// loss and dloss: [T] for NONE, else [1] (rank 0 will do).
template <class Args> static nvte_status check_reduced(const char *name, const DLTensor &t, const Args &a) {
  const int64_t tokens = a.logits->data.shape[0];
  if (a.reduction == NVTE_REDUCTION_NONE && !(t.ndim == 1 && t.shape[0] == tokens))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "%s must be [T], T = logits.shape[0] = %lld, without reduction; got rank %d with %lld entries",
                name, (long long)tokens, t.ndim, (long long)numel(t));
  if (a.reduction != NVTE_REDUCTION_NONE && !is_one(t))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "%s must be [1] with SUM and MEAN, got rank %d with %lld entries", name, t.ndim,
                (long long)numel(t));
  return NVTE_OK;
}

static nvte_status validate_forward(const nvte_exec *, const void *p) {
  const auto &a = *static_cast<const nvte_cross_entropy_forward_args *>(p);
  if (nvte_status e = check_scalars(a)) return e;
  if (given(a.partials) && given(a.loss))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "loss must be absent when partials are asked for: the shards have to be combined first");
  if (classes(a) != a.logits->data.shape[1] && !given(a.partials))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "partials is needed when logits are %lld columns of a vocabulary of %lld",
                (long long)a.logits->data.shape[1], (long long)classes(a));
  if (!given(a.partials) && !given(a.loss)) return fail(NVTE_ERR_INVALID_ARGUMENT, "one of loss and partials must be given");
  return given(a.loss) ? check_reduced("loss", a.loss->data, a) : NVTE_OK;
}
static nvte_status validate_backward(const nvte_exec *, const void *p) {
  const auto &a = *static_cast<const nvte_cross_entropy_backward_args *>(p);
  if (nvte_status e = check_scalars(a)) return e;
  return check_reduced("dloss", a.dloss->data, a);
}

static nvte_status infer_forward(void *p) {
  const auto &a = *static_cast<const nvte_cross_entropy_forward_args *>(p);
  if (!a.loss) return NVTE_OK;
  a.loss->data.ndim = 1;
  a.loss->data.shape[0] = a.reduction == NVTE_REDUCTION_NONE ? a.logits->data.shape[0] : 1;
  return NVTE_OK;
}

// Before anything is written: a stray target would index outside its row.
template <class Args, nvte_status (*kRun)(const nvte_exec *, const void *)>
static nvte_status run(const nvte_exec *exec, const void *p) {
  const Args &a = *static_cast<const Args *>(p);
  const int64_t *target = address_as<const int64_t>(a.target->data), tokens = a.logits->data.shape[0], vocabulary = classes(a);
  for (int64_t t = 0; t < tokens; t++)
    if (target[t] != a.ignore_index && (target[t] < 0 || target[t] >= vocabulary))
      return fail(NVTE_ERR_INVALID_ARGUMENT, "target[%lld] must be in [0, %lld) or ignore_index = %lld, got %lld", (long long)t,
                  (long long)vocabulary, (long long)a.ignore_index, (long long)target[t]);
  return kRun(exec, p);
}

static const nvte_implementation forward[] = {{sizeof(nvte_implementation), "cross_entropy_forward", "cpu", 0, 0, nullptr, nullptr,
                                               run<nvte_cross_entropy_forward_args, run_cpu_cross_entropy_forward>}};
static const nvte_implementation backward[] = {{sizeof(nvte_implementation), "cross_entropy_backward", "cpu", 0, 0, nullptr, nullptr,
                                                run<nvte_cross_entropy_backward_args, run_cpu_cross_entropy_backward>}};
TE_OP(cross_entropy_forward) = {validate_forward, infer_forward, forward, 1};
TE_OP(cross_entropy_backward) = {validate_backward, nullptr, backward, 1};
}  // namespace te
