// SPDX-License-Identifier: Apache-2.0
#include "libte/gemm.h"

#include <initializer_list>

#include "core/tensor.h"
#include "core/text.h"
#include "cpu/isa.h"

namespace te {
TE_CPU_KERNELS_4(gemm)

namespace {

// An optional tensor: NULL, no data, or no elements.
bool given(const nvte_tensor *t) { return t && present(t->data) && numel(t->data) > 0; }
const char *name_of(const DLTensor &t) { return dtype_name(t.dtype); }

struct Problem {
  int64_t m, n, k;
};
Problem problem(const nvte_gemm_args &a) {
  const bool ta = a.flags & NVTE_GEMM_TRANS_A, tb = a.flags & NVTE_GEMM_TRANS_B;
  const DLTensor &x = a.a->data, &y = a.b->data;
  return {ta ? columns(x) : rows(x), tb ? rows(y) : columns(y), ta ? rows(x) : columns(x)};
}

// A matrix that must be [M, N], leading dimensions folded.
nvte_status is_result(const char *name, const DLTensor &t, const Problem &p) {
  if (rows(t) == p.m && columns(t) == p.n) return NVTE_OK;
  TextOf<160> shape;
  shape.shape(t);
  return fail(NVTE_ERR_INVALID_ARGUMENT, "%s must be [M, N] = [%lld, %lld], got %s", name, (long long)p.m, (long long)p.n,
              shape.c_str());
}
nvte_status is_vector(const char *name, const nvte_tensor *t, const char *what, int64_t n) {
  if (!t || !present(t->data) || numel(t->data) == 0 || numel(t->data) == n) return NVTE_OK;
  return fail(NVTE_ERR_INVALID_ARGUMENT, "%s must be [%s], %s = %lld, got %lld elements", name, what, what, (long long)n,
              (long long)numel(t->data));
}

nvte_status validate(const nvte_exec *, const void *args) {
  const auto &a = *static_cast<const nvte_gemm_args *>(args);
  if (a.flags & ~0x1fu) return fail(NVTE_ERR_INVALID_ARGUMENT, "flags must be NVTE_GEMM_*, got 0x%x", a.flags);
  const bool gelu = a.flags & NVTE_GEMM_GELU, dgelu = a.flags & NVTE_GEMM_DGELU;
  if (gelu && dgelu) return fail(NVTE_ERR_INVALID_ARGUMENT, "flags must not have both NVTE_GEMM_GELU and NVTE_GEMM_DGELU");
  const DType x = dtype_of(a.a->data.dtype), y = dtype_of(a.b->data.dtype);
  if (is_fp8(x) != is_fp8(y) || (!is_fp8(x) && x != y))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "b must have a's dtype, or both must be fp8: a is %s, b is %s", name_of(a.a->data),
                name_of(a.b->data));
  const auto wide_range = [](DType t) { return t == DType::e5m2 || t == DType::e5m2fnuz; };
  if (wide_range(x) && wide_range(y))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "a and b must not both be E5M2, got %s and %s", name_of(a.a->data),
                name_of(a.b->data));
  const Problem p = problem(a);
  const int64_t k_of_b = a.flags & NVTE_GEMM_TRANS_B ? columns(a.b->data) : rows(a.b->data);
  if (k_of_b != p.k) return fail(NVTE_ERR_INVALID_ARGUMENT, "b has K = %lld, a has K = %lld", (long long)k_of_b, (long long)p.k);
  if (const nvte_status s = is_result("d", a.d->data, p)) return s;
  if (a.beta != 0 && given(a.c))
    if (const nvte_status s = is_result("c", a.c->data, p)) return s;
  if (a.beta != 0 && !given(a.c) && numel(a.d->data) > 0 && (is_fp8(dtype_of(a.d->data.dtype)) || !present(a.d->data)))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "c is missing: beta = %g needs an addend, and d holds codes", (double)a.beta);
  if (const nvte_status s = is_vector("bias", a.bias, "N", p.n)) return s;
  if (const nvte_status s = is_vector("dbias", a.dbias, dgelu ? "N" : "M", dgelu ? p.n : p.m)) return s;
  if (dgelu && !given(a.aux) && p.m * p.n > 0)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "aux is missing: NVTE_GEMM_DGELU multiplies by gelu'(aux)");
  if (!gelu && !dgelu && given(a.aux))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "aux must be absent: flags have neither NVTE_GEMM_GELU nor NVTE_GEMM_DGELU");
  if (given(a.aux))
    if (const nvte_status s = is_result("aux", a.aux->data, p)) return s;
  const auto in_place = [&](const nvte_tensor *t) { return given(t) && address(t->data) == address(a.d->data); };
  if (gelu && in_place(a.aux)) return fail(NVTE_ERR_INVALID_ARGUMENT, "d must not share memory with aux, which NVTE_GEMM_GELU writes");
  if (present(a.d->columnwise) && ((a.beta != 0 && in_place(a.c)) || in_place(a.aux)))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "d must not share memory with c or aux where d.columnwise is written too");
  return NVTE_OK;
}

// d and aux keep a's leading dimensions where they are M; else they are [M, N].
nvte_status infer(void *args) {
  const auto &a = *static_cast<const nvte_gemm_args *>(args);
  const Problem p = problem(a);
  for (nvte_tensor *t : {a.d, a.aux}) {
    if (!t || !t->data.shape) continue;
    const bool keep = !(a.flags & NVTE_GEMM_TRANS_A) && a.a->data.ndim >= 2;
    t->data.ndim = keep ? a.a->data.ndim : 2;
    t->data.shape[0] = p.m;
    for (int i = 0; keep && i + 1 < t->data.ndim; i++) t->data.shape[i] = a.a->data.shape[i];
    t->data.shape[t->data.ndim - 1] = p.n;
  }
  if (a.dbias && a.dbias->data.shape) {
    a.dbias->data.ndim = 1;
    a.dbias->data.shape[0] = a.flags & NVTE_GEMM_DGELU ? p.n : p.m;
  }
  return NVTE_OK;
}

const nvte_implementation table[] = {TE_CPU_IMPLEMENTATION(gemm)};
}  // namespace
TE_OP(gemm) = {validate, infer, table, 1};
}  // namespace te
