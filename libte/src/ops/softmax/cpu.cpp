// SPDX-License-Identifier: Apache-2.0
// Softmax: a row of logits is read once into an f32 buffer that stays in cache, and written once.
#include "cpu/exp2.h"
#include "cpu/rows.h"
#include "libte/softmax.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

constexpr int64_t kTaskElements = 1 << 14;
constexpr float kMinusInf = -__builtin_inff();

TE_INLINE int at_most_16(int64_t n) { return (int)(n < 16 ? n : 16); }

// Where the mask's row of a row of x begins: leading dimensions of 1, and those that the mask lacks, are broadcast.
struct MaskRows {
  const char *base;
  int n;
  int64_t step;  // of the last dimension
  int64_t shape[NVTE_MAX_DIMS], stride[NVTE_MAX_DIMS];  // of x's leading dimensions, last first
  const char *row(int64_t r) const {
    const char *p = base;
    for (int i = 0; i < n; i++) {
      p += r % shape[i] * stride[i];
      r /= shape[i];
    }
    return p;
  }
};
MaskRows mask_rows(const DLTensor &x, const nvte_tensor *mask) {
  MaskRows m = {};
  if (!mask || !present(mask->data)) return m;
  const DLTensor &t = mask->data;
  m.base = (const char *)address(t);
  m.step = stride_of(t, t.ndim - 1);
  for (int i = x.ndim - 2; i >= 0; i--) {
    const int own = i - (x.ndim - t.ndim);
    m.shape[m.n] = x.shape[i];
    m.stride[m.n++] = own < 0 || t.shape[own] == 1 ? 0 : stride_of(t, own);
  }
  return m;
}
// -1 where a key of columns [j, j + n) is kept.
TE_INLINE vi kept_lanes(const char *mask, int64_t step, int64_t j, int n) {
  alignas(16) uint8_t m[16] = {};
  if (step == 1 && n == 16) return load_u8(mask + j) == set1i(0);
  for (int i = 0; i < n; i++) m[i] = (uint8_t)mask[(j + i) * step];
  return load_u8(m) == set1i(0);
}

// row[0, hi) = scale * x, -inf where masked out and up to the next multiple of 16; returns the largest (NaN skipped).
template <class X>
__attribute__((noinline)) float load_logits(const X *x, int64_t hi, float scale, const char *mask, int64_t step, float *row) {
  const vf scales = set1(scale);
  vf top = set1(kMinusInf), top2 = top;
  int64_t j = 0;
  if (!mask)
    for (; j + 32 <= hi; j += 32) {
      fetch_ahead(x + j);
      const vf a = load(x + j) * scales, b = load(x + j + 16) * scales;
      top = max(a, top);  // in this order NaN is skipped
      top2 = max(b, top2);
      store(row + j, a);
      store(row + j + 16, b);
    }
  for (; j < hi; j += 16) {
    const int n = at_most_16(hi - j);
    vf a = keep_first(load(x + j, n) * scales, n, kMinusInf);
    if (mask) a = select(kept_lanes(mask, step, j, n), a, set1(kMinusInf));
    top = max(a, top);
    store(row + j, a);
  }
  return highest(max(top, top2));
}

// row = e^(row - best), the polynomial of degree kDegree; returns the sum.
template <int kDegree> __attribute__((noinline)) float exponentials(float *row, int64_t hi, float best) {
  const vf largest = set1(best), log2e = set1(kLog2e);
  vf sum = zero(), sum2 = zero();
  int64_t j = 0;
  for (; j + 32 <= hi; j += 32) {
    const vf a = exp2_fast<kDegree>((load((const float *)row + j) - largest) * log2e), b = exp2_fast<kDegree>((load((const float *)row + j + 16) - largest) * log2e);
    store(row + j, a);
    store(row + j + 16, b);
    sum = sum + a;
    sum2 = sum2 + b;
  }
  for (; j < hi; j += 16) {
    const vf a = exp2_fast<kDegree>((load((const float *)row + j) - largest) * log2e);
    store(row + j, a);
    sum = sum + a;
  }
  return reduce_add(sum + sum2);
}

// y = row / total, 0 past hi. kStream: past the caches; y is aligned to 64 bytes.
template <bool kStream, class Y>
__attribute__((noinline)) void store_row(Y *y, int64_t columns, int64_t hi, const char *mask, int64_t step, const float *row, float total) {
  const vf inverse = set1(1.f / total);
  int64_t j = 0;
  if (total == total)
    for (; j + 16 <= hi; j += 16) {
      const vf v = load(row + j) * inverse;
      if (kStream) store_stream(y + j, v);
      else store(y + j, v);
    }
  // a NaN anywhere makes the kept ones NaN; 0 * NaN must not do it to the dropped ones
  for (; j < hi; j += 16) {
    const int n = at_most_16(hi - j);
    vf a = load(row + j) * inverse;
    if (mask) a = select(kept_lanes(mask, step, j, n), a, zero());
    store(y + j, a, n);
  }
  memset((void *)(y + hi), 0, (size_t)(columns - hi) * sizeof(Y));
}

nvte_status forward(const nvte_softmax_forward_args &a) {
  const DLTensor &xt = a.x->data, &yt = a.y->data;
  const int64_t n = rows(xt), width = columns(xt), queries = xt.shape[xt.ndim - 2];
  if (n == 0 || width == 0) return NVTE_OK;
  const int64_t each = kTaskElements / width + 1, tasks = (n + each - 1) / each, x_bytes = element_bytes(xt), y_bytes = element_bytes(yt);
  const DType x_type = dtype_of(xt.dtype), y_type = dtype_of(yt.dtype);
  const RowIndex index = row_index(xt);
  const MaskRows masks = mask_rows(xt, a.mask);
  const char *x = (const char *)address(xt);
  char *y = (char *)address(yt);
  const bool stream = n * width * y_bytes >= kStreamBytes && (uintptr_t)y % 64 == 0 && width * y_bytes % 64 == 0;
  int failed = 0;
  const bool ran = parallel_for(tasks, n * width * 8, [&](int64_t task) {
    float *row = (float *)scratch(1, (size_t)(width + 16) * 4);
    if (!row) return __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
    for (int64_t r = task * each; r < n && r < (task + 1) * each; r++) {
      int64_t hi = width;  // keys [0, hi) may be kept
      if (a.mask_kind != NVTE_MASK_NONE) hi = r % queries + 1 + (a.mask_kind == NVTE_MASK_CAUSAL_BOTTOM_RIGHT ? width - queries : 0);
      hi = hi < 0 ? 0 : hi > width ? width : hi;
      const char *mask = masks.base ? masks.row(r) : nullptr, *in = x + index(r) * x_bytes;
      float best = kMinusInf, total;
      visit_float(x_type, [&](auto t) { best = load_logits((const decltype(t) *)in, hi, a.scale, mask, masks.step, row); });
      if (best > kMinusInf) total = y_bytes == 2 ? exponentials<4>(row, hi, best) : exponentials<6>(row, hi, best);
      else {  // nothing is kept: 0; or nothing but NaN and -inf: NaN
        total = __builtin_nanf("");
        for (int64_t j = 0; j < hi; j++) row[j] = mask && mask[j * masks.step] ? 0.f : 1.f;
      }
      visit_float(y_type, [&](auto t) {
        auto *to = (decltype(t) *)(y + r * width * y_bytes);
        if (stream) store_row<true>(to, width, hi, mask, masks.step, row, total);
        else store_row<false>(to, width, hi, mask, masks.step, row, total);
      });
    }
    if (stream) _mm_sfence();
  });
  return ran && !failed ? NVTE_OK : fail(NVTE_ERR_OUT_OF_MEMORY, "no memory for a row of %lld numbers", (long long)width);
}

// dx may be dy or y: every element is read before it is written.
template <class D, class Y, class O> TE_INLINE void gradient_row(const D *dy, const Y *y, O *dx, int64_t width, float scale) {
  vf sum = zero(), sum2 = zero();
  int64_t j = 0;
  for (; j + 32 <= width; j += 32) {
    sum = fma(load(y + j), load(dy + j), sum);
    sum2 = fma(load(y + j + 16), load(dy + j + 16), sum2);
  }
  for (; j < width; j += 16) sum = fma(load(y + j, at_most_16(width - j)), load(dy + j, at_most_16(width - j)), sum);
  const vf dot = set1(reduce_add(sum + sum2)), s = set1(scale);
  for (j = 0; j + 16 <= width; j += 16) store(dx + j, s * (load(y + j) * (load(dy + j) - dot)));
  if (j < width) {
    const int left = (int)(width - j);
    store(dx + j, s * (load(y + j, left) * (load(dy + j, left) - dot)), left);
  }
}
void widen_row(DType t, const void *from, int64_t width, float *to) {
  visit_float(t, [&](auto z) {
    for (int64_t j = 0; j < width; j += 16) store(to + j, load((const decltype(z) *)from + j, at_most_16(width - j)), at_most_16(width - j));
  });
}
void narrow_row(DType t, const float *from, int64_t width, void *to) {
  visit_float(t, [&](auto z) {
    for (int64_t j = 0; j < width; j += 16) store((decltype(z) *)to + j, load(from + j, at_most_16(width - j)), at_most_16(width - j));
  });
}

nvte_status backward(const nvte_softmax_backward_args &a) {
  const DLTensor &dt = a.dy->data, &yt = a.y->data, &ot = a.dx->data;
  const int64_t n = rows(dt), width = columns(dt);
  if (n == 0 || width == 0) return NVTE_OK;
  const int64_t each = kTaskElements / width + 1, tasks = (n + each - 1) / each, wide = (width + 15) / 16 * 16;
  const RowIndex d_index = row_index(dt), y_index = row_index(yt);
  const DType d_type = dtype_of(dt.dtype), y_type = dtype_of(yt.dtype), o_type = dtype_of(ot.dtype);
  const bool alike = d_type == y_type && d_type == o_type;  // mixed dtypes go through f32 rows
  int failed = 0;
  const bool ran = parallel_for(tasks, n * width * 8, [&](int64_t task) {
    float *buffer = alike ? nullptr : (float *)scratch(1, (size_t)wide * 2 * 4);
    if (!alike && !buffer) return __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
    for (int64_t r = task * each; r < n && r < (task + 1) * each; r++) {
      const char *dy = (const char *)address(dt) + d_index(r) * element_bytes(dt), *y = (const char *)address(yt) + y_index(r) * element_bytes(yt);
      char *dx = (char *)address(ot) + r * width * element_bytes(ot);
      if (alike) {
        visit_float(d_type, [&](auto t) { gradient_row((const decltype(t) *)dy, (const decltype(t) *)y, (decltype(t) *)dx, width, a.scale); });
      } else {
        widen_row(d_type, dy, width, buffer);
        widen_row(y_type, y, width, buffer + wide);
        gradient_row((const float *)buffer, (const float *)buffer + wide, buffer, width, a.scale);
        narrow_row(o_type, buffer, width, dx);
      }
    }
  });
  return ran && !failed ? NVTE_OK : fail(NVTE_ERR_OUT_OF_MEMORY, "no memory for rows of %lld numbers", (long long)width);
}

}  // namespace

nvte_status softmax_forward(const nvte_exec &, const nvte_softmax_forward_args &a) { return forward(a); }
nvte_status softmax_backward(const nvte_exec &, const nvte_softmax_backward_args &a) { return backward(a); }

}  // namespace te::cpu::TE_CPU_ISA
