// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "cpu/vec.h"
#include "libte/loss.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();
constexpr int64_t kBlock = 1024;      // columns whose maximum is taken before their exponentials
constexpr int64_t kWork = 64 * 1024;  // elements a task

bool given(const nvte_tensor *t) { return t && present(t->data); }
int64_t rows_a_task(int64_t columns) { return columns < kWork ? kWork / (columns < 64 ? 64 : columns) : 1; }

TE_INLINE float lane0(vf a) {
  float r;
  memcpy(&r, &a, 4);
  return r;
}

// e^x for x <= 0 where a term of 1 is in the same sum: below -86 it is as good as 0. NaN is kept.
TE_INLINE vf exp_term(vf x) {
  x = max(set1(-86.f), x);  // operand order keeps NaN
  const vf n = round(x * set1(1.44269504f));
  const vf r = fma(n, set1(-1.42860677e-6f), fma(n, set1(-0.693145752f), x));
  vf p = set1(1.98412698e-4f);
  p = fma(p, r, set1(1.38888889e-3f));
  p = fma(p, r, set1(8.33333333e-3f));
  p = fma(p, r, set1(4.16666667e-2f));
  p = fma(p, r, set1(1.66666667e-1f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.f));
  p = fma(p, r, set1(1.f));
  return p * floats(shl<23>(to_int(n) + set1i(127)));  // -124 <= n <= 0: a normal factor
}

struct RowSums {
  float max;   // NaN is ignored here and shows in the sum
  float sum;   // of exp(x - max)
  double all;  // of x
};

// Online over blocks (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018): the running sum is rescaled when
// a block has a new maximum.
template <bool kAll, class T> TE_INLINE RowSums scan(const T *x, int64_t n) {
  RowSums r = {kMinusInfinity, 0, 0};
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = begin + kBlock < n ? begin + kBlock : n, whole = begin + (end - begin) / 64 * 64;
    const auto part = [&](int64_t i, float fill) {
      const int left = end - i < 16 ? (int)(end - i) : 16;
      return keep_first(load(x + i, left), left, fill);
    };
    vf m[4], s[4];
    for (int j = 0; j < 4; j++) m[j] = set1(kMinusInfinity), s[j] = zero();
    int64_t i = begin;
    for (; i < whole; i += 64)
      for (int j = 0; j < 4; j++) {
        const vf v = load(x + i + 16 * j);
        m[j] = max(v, m[j]);
        if (kAll) s[j] = s[j] + v;
      }
    for (; i < end; i += 16) {
      m[0] = max(part(i, kMinusInfinity), m[0]);
      if (kAll) s[0] = s[0] + part(i, 0);
    }
    if (kAll) r.all += reduce_add((s[0] + s[1]) + (s[2] + s[3]));
    const float block_max = reduce_max(max(max(m[0], m[1]), max(m[2], m[3])));
    if (block_max > r.max) {
      r.sum *= ::expf(r.max - block_max);
      r.max = block_max;
    }
    for (int j = 0; j < 4; j++) s[j] = zero();
    if (r.max == kMinusInfinity) {  // nothing finite yet: 0, or NaN where there is one
      for (i = begin; i < end; i += 16) s[0] = s[0] + exp(part(i, kMinusInfinity));
    } else {
      const vf top = set1(r.max);
      for (i = begin; i < whole; i += 64)
        for (int j = 0; j < 4; j++) s[j] = s[j] + exp_term(load(x + i + 16 * j) - top);
      for (; i < end; i += 16) s[0] = s[0] + keep_first(exp_term(part(i, kMinusInfinity) - top), (int)(end - i), 0);
    }
    r.sum += reduce_add((s[0] + s[1]) + (s[2] + s[3]));
  }
  return r;
}

// A token's row: NaN anywhere makes its loss NaN, an ignored token's loss is 0.
template <class T> TE_INLINE void forward_row(const nvte_cross_entropy_forward_args &a, const T *x, int64_t t, float *loss) {
  const int64_t n = a.logits->data.shape[1], target = address_as<const int64_t>(a.target->data)[t];
  const bool ignored = target == a.ignore_index;
  if (ignored && !given(a.lse) && !given(a.partials)) {
    loss[t] = 0;
    return;
  }
  const double smoothing = a.label_smoothing;
  const RowSums r = smoothing != 0 || given(a.partials) ? scan<true>(x, n) : scan<false>(x, n);
  const double lse = r.max == kMinusInfinity && r.sum == 0 ? (double)kMinusInfinity : (double)r.max + ::log((double)r.sum);
  if (given(a.lse)) address_as<float>(a.lse->data)[t] = (float)lse;
  const int64_t column = target - a.vocab_start;
  const float hit = !ignored && column >= 0 && column < n ? to_f32(x[column]) : 0.f;
  if (given(a.partials)) {
    float *p = address_as<float>(a.partials->data) + 4 * t;
    p[0] = r.max, p[1] = r.sum, p[2] = hit, p[3] = (float)r.all;
  } else {
    // 0 * -inf must not enter
    loss[t] = ignored ? 0.f : (float)(lse - (1 - smoothing) * hit - (smoothing != 0 ? smoothing / (double)n * r.all : 0));
  }
}

int64_t count_tokens(const int64_t *target, int64_t tokens, int64_t ignore_index) {
  int64_t count = 0;
  for (int64_t t = 0; t < tokens; t++) count += target[t] != ignore_index;
  return count;
}

nvte_status outcome(bool ran) { return ran ? NVTE_OK : fail(NVTE_ERR_INTERNAL, "a worker failed"); }

// What backward_row needs of a token.
struct Token {
  float lse, gradient, uniform, hit;  // uniform: smoothing / vocabulary, hit: 1 - smoothing
  int64_t column;                     // of the target, -1 elsewhere
};

template <class T, class D> TE_INLINE void backward_row(const T *x, D *dx, int64_t n, const Token &k) {
  const vf lse = set1(k.lse), g = set1(k.gradient), uniform = set1(k.uniform);
  // The target's own entry is made first, since dx may be x.
  D at_target = {};
  if (k.column >= 0) at_target = from_f32<D>((lane0(exp(set1(to_f32(x[k.column]) - k.lse))) - k.hit - k.uniform) * k.gradient);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(dx + i, (exp(load(x + i) - lse) - uniform) * g);
  if (i < n) store(dx + i, (exp(load(x + i, (int)(n - i)) - lse) - uniform) * g, (int)(n - i));
  if (k.column >= 0) dx[k.column] = at_target;
}

}  // namespace

nvte_status cross_entropy_forward(const nvte_exec &, const nvte_cross_entropy_forward_args &a) {
  const DLTensor &logits = a.logits->data;
  const int64_t tokens = logits.shape[0], n = logits.shape[1], step = rows_a_task(n);
  const RowIndex row = row_index(logits);
  const bool reduces = given(a.loss) && a.reduction != NVTE_REDUCTION_NONE;
  float *loss = nullptr;
  if (reduces) {
    loss = (float *)scratch(0, sizeof(float) * (tokens + 1));
    if (!loss) return fail(NVTE_ERR_OUT_OF_MEMORY, "no memory for the losses of %lld tokens", (long long)tokens);
  } else if (given(a.loss)) {
    loss = address_as<float>(a.loss->data);
  }
  bool ran = true;
  visit_float(dtype_of(logits.dtype), [&](auto zero) {
    using T = decltype(zero);
    const T *x = address_as<const T>(logits);
    ran = parallel_for((tokens + step - 1) / step, tokens * n * 8, [&](int64_t c) {
      for (int64_t t = c * step; t < (c + 1) * step && t < tokens; t++) forward_row(a, x + row(t), t, loss);
    });
  });
  if (reduces && ran) {
    double sum = 0;
    for (int64_t t = 0; t < tokens; t++) sum += loss[t];
    if (a.reduction == NVTE_REDUCTION_MEAN) {
      const int64_t count = count_tokens(address_as<const int64_t>(a.target->data), tokens, a.ignore_index);
      sum = count ? sum / (double)count : 0;
    }
    *address_as<float>(a.loss->data) = (float)sum;
  }
  return outcome(ran);
}

nvte_status cross_entropy_backward(const nvte_exec &, const nvte_cross_entropy_backward_args &a) {
  const DLTensor &logits = a.logits->data, &dlogits = a.dlogits->data, &dloss = a.dloss->data;
  const int64_t tokens = logits.shape[0], n = logits.shape[1], step = rows_a_task(n);
  const RowIndex row = row_index(logits), out_row = row_index(dlogits);
  const int64_t *target = address_as<const int64_t>(a.target->data);
  const float *lse = address_as<const float>(a.lse->data);
  const float vocabulary = (float)(a.vocab_size ? a.vocab_size : n);
  const int64_t dloss_stride = a.reduction == NVTE_REDUCTION_NONE ? stride_of(dloss, 0) : 0;
  const float count = a.reduction == NVTE_REDUCTION_MEAN ? (float)count_tokens(target, tokens, a.ignore_index) : 1.f;
  bool ran = true;
  const auto all = [&](auto in, auto out, auto grad) {
    using T = decltype(in);
    using D = decltype(out);
    using G = decltype(grad);
    const T *x = address_as<const T>(logits);
    D *dx = address_as<D>(dlogits);
    const G *g = address_as<const G>(dloss);
    ran = parallel_for((tokens + step - 1) / step, tokens * n * 8, [&](int64_t c) {
      for (int64_t t = c * step; t < (c + 1) * step && t < tokens; t++) {
        if (target[t] == a.ignore_index) {
          memset((void *)(dx + out_row(t)), 0, sizeof(D) * n);
          continue;
        }
        const int64_t column = target[t] - a.vocab_start;
        backward_row(x + row(t), dx + out_row(t), n,
                     {lse[t], to_f32(g[t * dloss_stride]) / count, a.label_smoothing / vocabulary, 1.f - a.label_smoothing,
                      column >= 0 && column < n ? column : -1});
      }
    });
  };
  visit_float(dtype_of(logits.dtype), [&](auto in) {
    visit_float(dtype_of(dloss.dtype), [&](auto grad) {
      if (dtype_of(dlogits.dtype) == DType::f32) all(in, float{}, grad);
      else all(in, in, grad);
    });
  });
  return outcome(ran);
}

}  // namespace te::cpu::TE_CPU_ISA
