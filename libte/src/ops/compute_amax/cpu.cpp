// SPDX-License-Identifier: Apache-2.0
#include "libte/quantize.h"

#include "cpu/vec.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

// The order of the bits of non-negative floats is the order of the numbers.
void merge(uint32_t *top, float v) {
  uint32_t u, old = __atomic_load_n(top, __ATOMIC_RELAXED);
  memcpy(&u, &v, 4);
  while (u > old && !__atomic_compare_exchange_n(top, &old, u, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

template <class T> float row_amax(const T *p, int64_t n) {
  vf a = zero(), b = zero(), c = zero(), d = zero();
  int64_t j = 0;
  for (; j + 64 <= n; j += 64) {
    a = amax(a, load(p + j));
    b = amax(b, load(p + j + 16));
    c = amax(c, load(p + j + 32));
    d = amax(d, load(p + j + 48));
  }
  for (; j < n; j += 16) a = amax(a, load(p + j, n - j < 16 ? int(n - j) : 16));
  return reduce_max(max(max(a, b), max(c, d)));
}

}  // namespace

nvte_status compute_amax(const nvte_exec &, const nvte_compute_amax_args &a) {
  if (noop_set(a.noop)) return NVTE_OK;
  const DLTensor &x = a.x->data;
  const RowIndex index = row_index(x);
  // one long row where memory is one piece, so that chunks are even
  const bool flat = is_contiguous(x);
  const int64_t m = flat ? 1 : te::rows(x), k = flat ? numel(x) : te::columns(x), kSpan = 1 << 16, spans = (k + kSpan - 1) / kSpan;
  uint32_t top = 0;
  const bool ok = parallel_for(m * spans, numel(x), [&](int64_t c) {
    const int64_t row = c / spans, j = c % spans * kSpan, n = k - j < kSpan ? k - j : kSpan;
    visit_float(dtype_of(x.dtype), [&](auto t) { merge(&top, row_amax(address_as<const decltype(t)>(x) + index(row) + j, n)); });
  });
  if (!ok) return fail(NVTE_ERR_INTERNAL, "a worker failed");
  float v;
  memcpy(&v, &top, 4);
  auto *out = address_as<float>(a.amax->data);
  *out = (a.flags & NVTE_COMPUTE_AMAX_ACCUMULATE) && *out > v ? *out : v;
  return NVTE_OK;
}

}  // namespace te::cpu::TE_CPU_ISA
