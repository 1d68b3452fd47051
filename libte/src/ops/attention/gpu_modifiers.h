// SPDX-License-Identifier: Apache-2.0
// What strips of scores (gpu/device/strip.h) need beside a scale and an interval: bias, ALiBi slopes, a boolean mask, dropout. kKeys: the strip's
// rows are keys and its columns queries, else the other way round. `row`, `column`: the wave's first row and the tile's first column in their
// sequences.
#pragma once
#include "ops/attention/gpu.h"

#include "gpu/device/philox.h"
#include "gpu/device/strip.h"

namespace te {
namespace {

// Bit e % 32 of word e / 32: whether dropout keeps element e of a lane's N / 2.
template <int N> struct Kept {
  static constexpr int kWords = N > 64 ? N / 64 : 1, kGroups = N > 64 ? 8 : N / 8;  // groups of 8 columns in a word
  unsigned w[kWords];
  TE_DEVICE float of(int e, float x) const { return where_bit(w[e / 32], e % 32, x); }
};
template <int N> TE_DEVICE void drop_strip(float (&s)[N / 2], const Kept<N> &kept) {
#pragma unroll
  for (int e = 0; e < N / 2; e++) s[e] = kept.of(e, s[e]);
}
TE_DEVICE float rest_of(const Problem &p) { return 1.f - p.dropout; }

// Draws at a time, so that none waits for itself; where registers are short, another wave fills the gap.
#if defined(TE_VENDOR_HIP)
inline constexpr int kDraws = 2;
#else
inline constexpr int kDraws = kWgmma ? 2 : 1;
#endif
// Draws are a query's and four neighbouring keys'. A lane makes one for each group of four elements: where its keys are neighbours that is all, else
// it makes the one of its place among the lanes that share them, and they exchange bits.
template <int N, bool kKeys> TE_DEVICE void keep_strip(Kept<N> &kept, const Problem &p, int64_t head, int row, int column) {
  const unsigned long long seed = (unsigned long long)p.rng[0], offset = (unsigned long long)p.rng[1];
  const unsigned threshold = (unsigned)(p.dropout * 4294967296.f);  // exact: a power of two
  const unsigned c0 = (unsigned)(offset + (unsigned long long)head), c3 = (unsigned)(offset >> 32);
  unsigned zero = 0;
  opaque(zero);  // no number of these outlives a tile: registers are short
  row += (int)zero, column += (int)zero;
  constexpr int kStride = kStripSlots == 2 ? 4 : 1;  // of the lanes whose keys are neighbours, if rows are keys
  const int mine = kKeys ? lane() / kStride % 4 : kStripSlots == 2 ? lane() % 2 : 0;
  const int query = kKeys ? column + run_start() + mine % kRun : row + strip_row(mine);
  const int four = (kKeys ? row + strip_row(mine / kRun) : column + run_start()) / 4;
#pragma unroll
  for (int i = 0; i < Kept<N>::kWords; i++) {
    unsigned own = 0;
#pragma unroll 1
    for (int g = 0; g < Kept<N>::kGroups; g += kDraws) {
      unsigned four_draws = 0;
      unsigned low = (unsigned)seed, high = (unsigned)(seed >> 32);
      opaque(low), opaque(high);  // ten rounds' keys would stay in registers
      const unsigned long long key = (unsigned long long)high << 32 | low;
#pragma unroll
      for (int k = 0; k < kDraws; k++) {
        const int group = 8 * i + g + k;
        unsigned w[4];
        philox4(key, c0, (unsigned)(kKeys ? query + 8 * group : query), (unsigned)(kKeys ? four : four + 2 * group), c3, w);
#pragma unroll
        for (int j = 0; j < 4; j++) four_draws |= w[j] >= threshold ? 1u << (4 * k + j) : 0u;
      }
      own |= four_draws << 4 * g;
    }
    if constexpr (kKeys) {
      const int first = lane() - mine * kStride;
      unsigned all = 0;
#pragma unroll
      for (int k = 0; k < 4; k++) all |= (shfl(own, first + k * kStride) >> mine & 0x11111111u) << k;
      own = all;
    } else if constexpr (kStripSlots == 2) {
      constexpr unsigned kLow = 0x33333333u;
      const unsigned got = shfl_xor(own, 1);
      own = mine ? (own & ~kLow) | (got >> 2 & kLow) : (own & kLow) | (got << 2 & ~kLow);
    }
    kept.w[i] = own;
  }
}

// Whether scores become logits in modify_strip() already.
TE_DEVICE bool makes_logits(const Problem &p) { return p.bias.base || p.slopes || !(p.scale > 0); }
TE_DEVICE bool modifies(const Problem &p) { return makes_logits(p) || p.mask.base; }

// Loads stay on their side of this: all of a strip's at once would take as many registers.
TE_DEVICE void few_loads() { asm volatile("" ::: "memory"); }
// f(element, number of the grid) for a strip. Past a sequence's end stands what is at its end. `runs`: kRun neighbouring keys are read at once.
template <class T, int N, bool kKeys, class F>
TE_DEVICE void visit_grid(const View &v, bool runs, const Sequence &seq, int64_t b, int64_t head, int row, int column, F &&f) {
  const int rows = (int)(kKeys ? seq.len_k : seq.len_q), columns = (int)(kKeys ? seq.len_q : seq.len_k);
  unsigned zero = 0;
  opaque(zero);
  row += (int)zero, column += (int)zero;
  const char *at[kStripSlots];
#pragma unroll
  for (int i = 0; i < kStripSlots; i++) {
    const int r = row + strip_row(i) < rows ? row + strip_row(i) : rows - 1;
    at[i] = v.base + (b * v.b + head * v.h + r * (kKeys ? v.d : v.s)) * (int64_t)sizeof(T);
  }
  if (!kKeys && runs && column + N <= columns) {
#pragma unroll
    for (int g = 0; g < N / 8; g++)
#pragma unroll
      for (int i = 0; i < kStripSlots; i++) {
        if (i == 0 && g % 2 == 0) few_loads();
        const auto x = load<kRun>(reinterpret_cast<const T *>(at[i]) + column + run_start() + 8 * g);
#pragma unroll
        for (int k = 0; k < kRun; k++) f(4 * g + i * kRun + k, x.v[k]);
      }
    return;
  }
  const int64_t step = ((kKeys ? v.s : v.d) + (int)zero) * (int64_t)sizeof(T);
#pragma unroll
  for (int e = 0; e < N / 2; e++) {
    if (e % 4 == 0) few_loads();
    const int c = column + strip_column(e) < columns ? column + strip_column(e) : columns - 1;
    f(e, *reinterpret_cast<const T *>(at[strip_slot(e)] + c * step));
  }
}

// Products of queries and keys become what the softmax takes: logits (makes_logits), -inf where the mask hides a key.
template <class T, int N, bool kKeys>
TE_DEVICE void modify_strip(float (&s)[N / 2], const Problem &p, bool runs, const Sequence &seq, int64_t b, int64_t head, int row, int column) {
  if (p.bias.base) {
    const float scale = p.scale, factor = p.bias_kind == NVTE_BIAS_PRE_SCALE ? scale : 1.f;
    const auto add = [&](int e, auto x) { s[e] = fmaf(s[e], scale, to_f32(x) * factor); };
    if (p.bias.dtype == DType::f32) visit_grid<float, N, kKeys>(p.bias, false, seq, b, head, row, column, add);
    else visit_grid<T, N, kKeys>(p.bias, runs, seq, b, head, row, column, add);
  } else if (makes_logits(p)) {
#pragma unroll
    for (int e = 0; e < N / 2; e++) s[e] *= p.scale;
  }
  if (p.slopes) {
    const float slope = p.slopes[head], sign = kKeys ? -slope : slope;
    unsigned zero = 0;
    opaque(zero);
    float from[kStripSlots];
#pragma unroll
    for (int i = 0; i < kStripSlots; i++) {
      const int far = column + (int)zero + run_start() - row - strip_row(i), shift = (int)p.aligned(seq, 0);
      from[i] = (float)(kKeys ? far + shift : far - shift);
    }
#pragma unroll
    for (int e = 0; e < N / 2; e++) s[e] = fmaf(sign, from[strip_slot(e)] + (float)(8 * (e / 4) + e % kRun), s[e]);
  }
  if (p.mask.base)
    visit_grid<unsigned char, N, kKeys>(p.mask, runs, seq, b, head, row, column,
                                        [&](int e, unsigned char hidden) { s[e] = hidden ? kMinusInf : s[e]; });
}

// Whether a boolean mask, if there is one, leaves a key to a query.
TE_DEVICE bool mask_keeps(const Problem &p, int64_t b, int64_t head, int64_t query, int64_t key) {
  return !p.mask.base || p.mask.row(b, query, head)[key * p.mask.d] == 0;
}

}  // namespace
}  // namespace te
