// SPDX-License-Identifier: Apache-2.0
// LayerNorm and RMSNorm on GPUs, forward and backward: one body for both.
#pragma once
#include "gpu/rows.h"

namespace te::gpu {

constexpr float kLargest = 3.402823466e38f;
// 2^-80: squares and sums of the largest floats stay finite.
constexpr float kShrink = 0x1p-80f;

struct NormForward {
  Input x, residual, gamma, beta;
  Target y;
  char *sum_out;
  float *mu, *rstd;
  int64_t rows, h;
  float epsilon, plus;
};

// a += plus, which is 0 nearly always: a branch of the whole grid is cheaper than the additions.
__device__ __forceinline__ void add_to(float (&a)[8], float plus) {
  if (plus == 0.f) return;
#pragma unroll
  for (int i = 0; i < 8; i++) a[i] += plus;
}

template <class S, class K, bool Rms> static __global__ void __launch_bounds__(S::kBlock, (row_blocks_together<S, K>(1024))) norm_forward_kernel(NormForward all) {
  const NormForward &p = all;
  const int t = (int)threadIdx.x % S::kThreads;
  int64_t row = (int64_t)blockIdx.x * S::kRows + threadIdx.x / S::kThreads;
  device::per_lane(row);
  const int64_t h = row < p.rows ? p.h : 0;
  const float inverse = 1.f / (float)p.h, scale = scale_of(p.y.q);
  Eight<K> in[S::kGroups];
  const auto fetch = [&](int g, int64_t j, int n) { in[g].load(p.x, row, j, n); };
  const auto add = [&](int g, int64_t j, int n) {
    Eight<K> other;
    float v[8], r[8];
    other.load(p.residual, row, j, n);
    in[g].floats(v), other.floats(r);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      v[i] += r[i];
      if (p.x.dtype == DType::bf16) v[i] = device::to_f32(device::from_f32<device::bf16>(v[i]));
      else if (p.x.dtype == DType::f16) v[i] = device::to_f32(device::from_f32<device::f16>(v[i]));
    }
    in[g].set(v);
  };
  if constexpr (S::kHeld) {
    each_group<S>(t, h, fetch);
    if (p.residual.base) each_group<S>(t, h, add);
  }
  // sum over the row by f(number, sum so far), numbers fetched again where they are not held. Multiply-adds are written out: nvcc is told not
  // to make any, and the kernel is short of issue slots.
  bool first = true;
  int turn = 0;
  const auto total = [&](auto f) {
    float s = 0.f, none = 0.f;
    each_group<S>(t, h, [&](int g, int64_t j, int n) {
      if constexpr (!S::kHeld) {
        fetch(g, j, n);
        if (p.residual.base) add(g, j, n);
      }
      float v[8];
      in[g].forget();
      in[g].floats(v);
      if (first && p.sum_out) store8(p.sum_out, p.x.dtype, p.x.wide, row * p.h + j, n, v);
      device::per_lane(n);
#pragma unroll
      for (int i = 0; i < 8; i++)
        if (K::known || i < n) s = f(v[i], s);
    });
    first = false;
    row_sums<S, false>(s, none, turn);
    turn ^= 1;
    return s;
  };
  float mean = 0.f;
  if constexpr (!Rms) {
    mean = total([](float a, float s) { return s + a; }) * inverse;
    if (!(fabsf(mean) <= kLargest)) mean = total([](float a, float s) { return fmaf(a, kShrink, s); }) * inverse * (1.f / kShrink);
  }
  const auto centred = [&](float a) { return Rms ? a : a - mean; };
  float r = total([&](float a, float s) { return fmaf(centred(a), centred(a), s); });
  if (r <= kLargest) {
    r = device::divide(1.f, device::root(r * inverse + p.epsilon));
  } else {
    r = total([&](float a, float s) { return fmaf(centred(a) * kShrink, centred(a) * kShrink, s); });
    r = device::divide(kShrink, device::root(r * inverse + p.epsilon * kShrink * kShrink));
  }
  if (h && t == 0) {
    if (p.rstd) p.rstd[row] = r;
    if (!Rms && p.mu) p.mu[row] = mean;
  }
  float amax = 0.f;
  each_group<S>(t, h, [&](int g, int64_t j, int n) {
    const NormForward &p = device::again_if<!K::known>(all);
    if constexpr (!S::kHeld) {
      fetch(g, j, n);
      if (p.residual.base) add(g, j, n);
    }
    Eight<K> gamma, beta;
    float v[8], a[8], b[8], w[8];
    const bool has_gamma = K::known || p.gamma.base, has_beta = !Rms && (K::known || p.beta.base);
    if (has_gamma) gamma.load(p.gamma, 0, j, n);
    if (has_beta) beta.load(p.beta, 0, j, n);
    in[g].forget();
    in[g].floats(v);
    if (has_gamma) gamma.floats(a);
    if (has_beta) beta.floats(b);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      w[i] = centred(v[i]) * r;
      const float gain = has_gamma ? a[i] + p.plus : 1.f;
      w[i] = has_beta ? fmaf(w[i], gain, b[i]) : w[i] * gain;
    }
    put8_as<K>(p.y, row * p.h + j, n, scale, w, amax);
  });
  finish<S::kBlock>(p.y.q, amax, (int)blockIdx.x);
}

struct NormBackward {
  Input dy, x, gamma, add;
  const float *mu, *rstd;
  Target dx;
  float *dgamma_part, *dbeta_part;  // [slots, h], or absent
  int64_t rows, h;
  float plus;
};

// Shapes of the backward pass: fewer numbers a thread, since there are five of each.
template <class F> void with_sum_shape(int64_t h, F &&f) {
  if (h <= 256) f(RowShape<32, 256, 1>{});
  else if (h <= 1024) f(RowShape<64, 64, 2>{});
  else if (h <= 2048) f(RowShape<128, 128, 2>{});
  else if (h <= 4096) f(RowShape<256, 256, 2>{});
  else if (h <= kHeldColumns) f(RowShape<512, 512, 2>{});
  else f(RowShape<1024, 1024, 1, false>{});
}
// A block walks rows blockIdx.x, blockIdx.x + gridDim.x, ... and keeps its column sums in registers where rows are held; then the next row is
// on its way while this one is worked on.
template <class S, class K, bool Rms> static __global__ void __launch_bounds__(S::kBlock, (row_blocks_together<S, K>(512))) norm_backward_kernel(NormBackward all) {
  const NormBackward &p = all;
  constexpr int kGroups = S::kGroups;
  const int t = (int)threadIdx.x % S::kThreads, group = (int)threadIdx.x / S::kThreads;
  const float inverse = 1.f / (float)p.h;
  float dg[kGroups][8] = {}, db[kGroups][8] = {};
  Eight<K> gamma[kGroups], x[kGroups], dy[kGroups], next_x[kGroups], next_dy[kGroups];
  const auto weights = [&](int g, int64_t j, int count) {
    if (K::known || p.gamma.base) gamma[g].load(p.gamma, 0, j, count);
  };
  if constexpr (S::kHeld) each_group<S>(t, p.h, weights);
  const int64_t stride = (int64_t)gridDim.x * S::kRows, steps = (p.rows + stride - 1) / stride;
  float next_m = 0.f, next_r = 0.f;
  int64_t row = (int64_t)blockIdx.x * S::kRows + group;
  device::per_lane(row);
  const auto begin = [&](int64_t to) {
    if (to >= p.rows) return;
    next_m = Rms ? 0.f : p.mu[to], next_r = p.rstd[to];
    if constexpr (S::kHeld) each_group<S>(t, p.h, [&](int g, int64_t j, int count) { next_x[g].load(p.x, to, j, count), next_dy[g].load(p.dy, to, j, count); });
  };
  begin(row);
  for (int64_t k = 0; k < steps; k++, row += stride) {  // every thread takes every step: there are barriers inside
    const NormBackward &p = device::again_if<!K::known>(all);
    const int64_t h = row < p.rows ? p.h : 0;
    const float m = next_m, r = next_r;
    float n[8], d[8], w[8], s1 = 0.f, s2 = 0.f;
    // d, n = normalised x, w = d times the weight; twice, since holding them costs more than making them
    const auto fetch = [&](const NormBackward &p, int g, int64_t j, int count) {
      if constexpr (!S::kHeld) x[g].load(p.x, row, j, count), dy[g].load(p.dy, row, j, count), weights(g, j, count);
      x[g].forget(), dy[g].forget(), gamma[g].forget();
      x[g].floats(n), dy[g].floats(d);
      if (K::known || p.gamma.base) gamma[g].floats(w), add_to(w, p.plus);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        n[i] = (Rms ? n[i] : n[i] - m) * r;
        w[i] = K::known || p.gamma.base ? d[i] * w[i] : d[i];
      }
    };
#pragma unroll
    for (int g = 0; g < kGroups; g++) x[g] = next_x[g], dy[g] = next_dy[g];
    begin(row + stride);
    each_group<S>(t, h, [&](int g, int64_t j, int count) {
      fetch(p, g, j, count);
      device::per_lane(count);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        if (!K::known && i >= count) continue;
        dg[g][i] = fmaf(d[i], n[i], dg[g][i]);
        if (!Rms) db[g][i] += d[i];
        s1 = fmaf(w[i], n[i], s1);
        if (!Rms) s2 += w[i];
      }
    });
    row_sums<S, !Rms>(s1, s2, (int)(k & 1));
    s1 *= inverse, s2 *= inverse;
    each_group<S>(t, h, [&](int g, int64_t j, int count) {
      const NormBackward &p = device::again_if<!K::known>(all);
      Eight<K> add;
      float a[8], out[8];
      if (p.add.base) add.load(p.add, row, j, count);
      fetch(p, g, j, count);
      if (p.add.base) add.floats(a);
#pragma unroll
      for (int i = 0; i < 8; i++) out[i] = fmaf(r, fmaf(-n[i], s1, Rms ? w[i] : w[i] - s2), p.add.base ? a[i] : 0.f);
      if constexpr (K::known) device::store_f32<8>(reinterpret_cast<typename Stored<K::x>::type *>(p.dx.base) + row * p.h + j, out);
      else store8(p.dx.base, p.dx.dtype, p.dx.wide, row * p.h + j, count, out);
    });
  }
  if constexpr (S::kHeld) {
    const NormBackward &p = device::again_if<!K::known>(all);
    const int64_t slot = (int64_t)blockIdx.x * S::kRows + group;
    each_group<S>(t, p.h, [&](int g, int64_t j, int count) {
      if constexpr (K::known) {
        if (p.dgamma_part) device::store_f32<8>(p.dgamma_part + slot * p.h + j, dg[g]);
        if (!Rms && p.dbeta_part) device::store_f32<8>(p.dbeta_part + slot * p.h + j, db[g]);
      } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
          if (i >= count) continue;
          if (p.dgamma_part) p.dgamma_part[slot * p.h + j + i] = dg[g][i];
          if (!Rms && p.dbeta_part) p.dbeta_part[slot * p.h + j + i] = db[g][i];
        }
      }
    });
  }
}

// Column sums of rows that are not held: a thread a column, kSumBlock rows a block.
constexpr int kSumBlock = 64;
template <bool Rms> static __global__ void __launch_bounds__(256) norm_columns_kernel(NormBackward p) {
  const int64_t j = (int64_t)blockIdx.x * 256 + threadIdx.x, begin = (int64_t)blockIdx.y * kSumBlock;
  if (j >= p.h) return;
  const int64_t end = begin + kSumBlock < p.rows ? begin + kSumBlock : p.rows;
  float dg = 0.f, db = 0.f;
  for (int64_t row = begin; row < end; row++) {
    float x[8], d[8];
    load8(p.x.base, p.x.dtype, false, p.x.rows(row) + j, 1, x);
    load8(p.dy.base, p.dy.dtype, false, p.dy.rows(row) + j, 1, d);
    dg += d[0] * ((x[0] - (Rms ? 0.f : p.mu[row])) * p.rstd[row]);
    db += d[0];
  }
  if (p.dgamma_part) p.dgamma_part[blockIdx.y * p.h + j] = dg;
  if (!Rms && p.dbeta_part) p.dbeta_part[blockIdx.y * p.h + j] = db;
}

// ---- host ----
// Known kernels have their weights without asking.
inline bool given(const Input &i, DType x) { return i.base && knowable(i, x); }

template <class Args> struct NormForwardCall {
  Output y;
  NormForward p;
};
template <bool Rms, class Args> NormForwardCall<Args> norm_forward_plan(const Args &a, Space &space) {
  const int64_t m = te::rows(a.x->data), h = te::columns(a.x->data);
  NormForwardCall<Args> c = {Output(*a.y, row_blocks(m, h), space), {}};
  NormForward &p = c.p;
  p.rows = m, p.h = h, p.epsilon = a.epsilon, p.plus = a.flags & NVTE_NORM_ZERO_CENTERED ? 1.f : 0.f;
  p.x = input_of(a.x, h), p.residual = input_of(a.residual, h), p.gamma = input_of(a.gamma, h);
  p.sum_out = a.residual_out && present(a.residual_out->data) ? address_as<char>(a.residual_out->data) : nullptr;
  p.x.wide = p.x.wide && aligned(p.sum_out, 16);
  p.rstd = a.rstd && present(a.rstd->data) ? address_as<float>(a.rstd->data) : nullptr;
  if constexpr (!Rms) {
    p.beta = input_of(a.beta, h);
    p.mu = a.mu && present(a.mu->data) ? address_as<float>(a.mu->data) : nullptr;
  }
  return c;
}
template <bool Rms, class Args> nvte_status norm_forward_launch(const nvte_exec &e, NormForwardCall<Args> &c) {
  if (const nvte_status s = c.y.begin(e)) return s;
  c.p.y = c.y.target;
  const NormForward &p = c.p;
  const DType x = p.x.dtype;
  const bool known = p.y.wide && knowable(p.x, x) && knowable(p.residual, x) && given(p.gamma, x) && (Rms || given(p.beta, x));
  with_row_shape(p.h, [&](auto s) {
    using S = decltype(s);
    with_row_types<S, true>(known, x, p.y.dtype, [&](auto k) {
      norm_forward_kernel<S, decltype(k), Rms><<<(unsigned)c.y.blocks, S::kBlock, 0, stream_of(e)>>>(p);
    });
  });
  return c.y.finish(e);
}

struct NormBackwardCall {
  NormBackward p;
  int64_t blocks, slots;
};
template <bool Rms, class Args> NormBackwardCall norm_backward_plan(const Args &a, Space &space) {
  const int64_t m = te::rows(a.x->data), h = te::columns(a.x->data);
  NormBackwardCall c = {};
  NormBackward &p = c.p;
  p.rows = m, p.h = h, p.plus = a.flags & NVTE_NORM_ZERO_CENTERED ? 1.f : 0.f;
  p.dy = input_of(a.dy, h), p.x = input_of(a.x, h), p.gamma = input_of(a.gamma, h), p.add = input_of(a.add, h);
  p.rstd = address_as<const float>(a.rstd->data);
  p.dx.base = address_as<char>(a.dx->data);
  p.dx.dtype = dtype_of(a.dx->data.dtype);
  p.dx.wide = h % 8 == 0 && aligned(p.dx.base, 16);
  with_sum_shape(h, [&](auto s) {
    const int64_t most = device::kResidentThreads / s.kBlock, need = ceil_div(m, s.kRows);  // a function of the shape only
    c.blocks = need < 1 ? 1 : need < most ? need : most;
    c.slots = m == 0 ? 0 : s.kHeld ? c.blocks * s.kRows : ceil_div(m, kSumBlock);
  });
  if (a.dgamma && present(a.dgamma->data)) p.dgamma_part = space.take<float>(c.slots * h);
  if constexpr (!Rms) {
    p.mu = address_as<const float>(a.mu->data);
    if (a.dbeta && present(a.dbeta->data)) p.dbeta_part = space.take<float>(c.slots * h);
  }
  return c;
}
template <bool Rms> nvte_status norm_backward_launch(const nvte_exec &e, const NormBackwardCall &c, const nvte_tensor *dgamma, const nvte_tensor *dbeta) {
  const NormBackward &p = c.p;
  if (p.rows > 0 && p.h > 0) {
    if (p.h > kHeldColumns && (p.dgamma_part || p.dbeta_part)) {  // before dx, which may be dy or x
      if (c.slots > 65535) return fail(NVTE_ERR_UNSUPPORTED, "x has more than %d rows of more than %d numbers", 65535 * kSumBlock, (int)kHeldColumns);
      norm_columns_kernel<Rms><<<dim3((unsigned)ceil_div(p.h, 256), (unsigned)c.slots), 256, 0, stream_of(e)>>>(p);
    }
    const DType x = p.x.dtype;
    const bool known = p.dx.wide && knowable(p.x, x) && knowable(p.dy, x) && given(p.gamma, x) && knowable(p.add, x);
    with_sum_shape(p.h, [&](auto s) {
      using S = decltype(s);
      with_row_types<S, false>(known, x, p.dx.dtype, [&](auto k) {
        norm_backward_kernel<S, decltype(k), Rms><<<(unsigned)c.blocks, S::kBlock, 0, stream_of(e)>>>(p);
      });
    });
    if (const nvte_status s = launched("norm backward")) return s;
  }
  const bool dg = dgamma && present(dgamma->data), db = dbeta && present(dbeta->data);
  const bool together = dg && db && dtype_of(dgamma->data.dtype) == dtype_of(dbeta->data.dtype);
  if (dg)
    if (const nvte_status s = sum_columns(e, p.dgamma_part, c.slots, p.h, dgamma->data, nullptr, p.dbeta_part, together ? &dbeta->data : nullptr)) return s;
  return db && !together ? sum_columns(e, p.dbeta_part, c.slots, p.h, dbeta->data) : NVTE_OK;
}

}  // namespace te::gpu
