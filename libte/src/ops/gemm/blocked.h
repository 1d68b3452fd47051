// SPDX-License-Identifier: Apache-2.0
// The general product. op(A) and op(B) are packed once, in parallel; then tiles of D are handed out, each running over the whole
// of K with its f32 sums in the cache, and the epilogue follows at once. Every size below is a function of the shape alone, so
// results do not depend on the number of threads.
#pragma once
#include "ops/gemm/epilogue.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

// Words of k a block: a panel of B (kNR wide) stays in the first-level cache while panels of A stream past it.
constexpr int64_t kBlockWords = kNative == 16 ? 192 : 256;
// Largest tile: its sums and blocks of A and B fit the second-level cache together.
constexpr int64_t kTileRows = kNative == 16 ? 8 * kMR : 16 * kMR, kTileColumns = kMaxColumns;
constexpr int64_t kSmallTile = 512 * 1024;         // products; smaller tiles are not worth handing out
constexpr int64_t kPanelRows = 2048;               // about the rows of A, and columns of B, packed at a time
constexpr int64_t kPackedBytes = int64_t(32) << 20;  // of both, unless one block of k needs more

// Cuts n into equal tiles of at most `largest`, multiples of `unit`.
static inline int64_t equal_tile(int64_t n, int64_t largest, int64_t unit) {
  return round_up(ceil_div(n, ceil_div(n, largest)), unit);
}

struct Tiling {
  int64_t tm, tn, mt, nt;  // tile size, number of tiles
  int64_t kw, kc, kb;      // words of k, words a block, blocks
  int64_t mb, nb;          // tiles packed at a time
  int64_t slab;            // blocks of k packed at a time
};

static inline Tiling tile(int64_t m, int64_t n, int64_t kw) {
  Tiling t;
  t.tm = equal_tile(m, kTileRows, kMR);
  t.tn = equal_tile(n, kTileColumns, kNR);
  const int64_t k = kw > 0 ? kw : 1;
  while (ceil_div(m, t.tm) * ceil_div(n, t.tn) < 32 && t.tm * t.tn * k > kSmallTile) {
    if (t.tn >= 2 * t.tm && t.tn > 2 * kNR) t.tn = equal_tile(n, t.tn / 2, kNR);
    else if (t.tm > 2 * kMR) t.tm = equal_tile(m, round_up(t.tm / 2, kMR), kMR);
    else if (t.tn > 2 * kNR) t.tn = equal_tile(n, t.tn / 2, kNR);
    else break;
  }
  t.mt = ceil_div(m, t.tm);
  t.nt = ceil_div(n, t.tn);
  t.kw = kw;
  t.kc = kw ? equal_tile(kw, kBlockWords, 8) : 8;
  t.kb = ceil_div(kw, t.kc);
  const int64_t rows = t.mt * t.tm, columns = t.nt * t.tn;
  t.mb = ceil_div(t.mt, rows > 3 * kPanelRows / 2 ? ceil_div(rows, kPanelRows) : 1);
  t.nb = ceil_div(t.nt, columns > 3 * kPanelRows / 2 ? ceil_div(columns, kPanelRows) : 1);
  t.slab = kPackedBytes / ((t.mb * t.tm + t.nb * t.tn) * t.kc * 4);
  t.slab = t.slab < 1 ? 1 : t.slab > t.kb ? t.kb : t.slab;
  return t;
}

template <bool kPairs> struct Blocked {
  const Operand &a, &b;
  Epilogue &e;
  Tiling t;
  word *pa, *pb;  // packed operands; null: a tile packs its own, nobody else needs it
  float *sums;    // unfinished tiles, where K takes several slabs

  // Elements of k in block `kb`, from element k0.
  int64_t elements(int64_t kb, int64_t *k0) const {
    constexpr int64_t per = kPairs ? 2 : 1;
    *k0 = kb * t.kc * per;
    const int64_t left = a.k - *k0;
    return left < t.kc * per ? left : t.kc * per;
  }
  void pack_a(int64_t tile, int64_t kb, word *out) const {
    int64_t k0, k = elements(kb, &k0), r0 = tile * t.tm, left = a.n - r0;
    pack<kMR, kPairs>(a, r0, left < t.tm ? left : t.tm, k0, k, out);
  }
  void pack_b(int64_t tile, int64_t kb, word *out) const {
    int64_t k0, k = elements(kb, &k0), r0 = tile * t.tn, left = b.n - r0;
    pack<kNR, kPairs>(b, r0, left < t.tn ? left : t.tn, k0, k, out);
  }
  int64_t a_words() const { return t.tm * t.kc; }
  int64_t b_words() const { return t.tn * t.kc; }

  // Tiles [m0, m1) x [n0, n1) over blocks [k0, k1) of k.
  bool slab(int64_t m0, int64_t m1, int64_t n0, int64_t n1, int64_t k0, int64_t k1, bool need_a, bool need_b) {
    const int64_t blocks = k1 - k0, mt = m1 - m0, nt = n1 - n0;
    const int64_t a_chunks = pa && need_a ? mt * blocks : 0, b_chunks = pb && need_b ? nt * blocks : 0;
    const int64_t packed = a_chunks * a_words() + b_chunks * b_words();
    if (packed && !parallel_for(a_chunks + b_chunks, packed, [&](int64_t i) {
          if (i < a_chunks) pack_a(m0 + i / blocks, k0 + i % blocks, pa + i * a_words());
          else i -= a_chunks, pack_b(n0 + i / blocks, k0 + i % blocks, pb + i * b_words());
        }))
      return false;
    bool ok = true;
    const bool ran = parallel_for(mt * nt, a.n * b.n * (a.k + 1), [&](int64_t i) {
      if (!run_tile(m0 + i % mt, i % mt, n0 + i / mt, i / mt, mt, k0, k1)) __atomic_store_n(&ok, false, __ATOMIC_RELAXED);
    });
    return ran && ok;
  }

  bool run_tile(int64_t tile_m, int64_t im, int64_t tile_n, int64_t in, int64_t mt, int64_t k0, int64_t k1) {
    const int64_t m = tile_m * t.tm, n0 = tile_n * t.tn;
    const int64_t ld = t.tn + 16;  // rows a power of two apart would share cache sets
    const int64_t rows = a.n - m < t.tm ? a.n - m : t.tm, columns = b.n - n0 < t.tn ? b.n - n0 : t.tn;
    float *acc = sums ? sums + (in * mt + im) * t.tm * ld : (float *)scratch(2, size_t(t.tm * ld * 4));
    word *own_a = pa ? nullptr : (word *)scratch(3, size_t(a_words() * 4));
    word *own_b = pb ? nullptr : (word *)scratch(4, size_t(b_words() * 4));
    if (!acc || (!pa && !own_a) || (!pb && !own_b)) return false;
    if (k1 == k0) memset(acc, 0, size_t(rows * ld * 4));
    for (int64_t kb = k0; kb < k1; kb++) {
      if (own_a) pack_a(tile_m, kb, own_a);
      if (own_b) pack_b(tile_n, kb, own_b);
      const word *ap = own_a ? own_a : pa + (im * (k1 - k0) + kb - k0) * a_words();
      const word *bp = own_b ? own_b : pb + (in * (k1 - k0) + kb - k0) * b_words();
      int64_t first;
      const int64_t kw = words<kPairs>(elements(kb, &first));
      // Packed memory lies in the order of use: the first calls of a panel of B fetch the next panel, those of the last panel go
      // on to the next block of A.
      const int64_t line_words = kw / kAheadSteps * 16;
      for (int64_t j = 0; j < columns; j += kNR) {
        const word *panel = bp + j * kw, *ahead = panel + kNR * kw, *end = ahead + kNR * kw, *after = ap + a_words();
        for (int64_t i = 0; i < rows; i += kMR) {
          if (ahead >= end) {
            ahead = j + kNR < columns ? end - line_words : after;
            after += line_words;
          }
          const int n = int(rows - i < kMR ? rows - i : kMR);
          if (kb + 1 == t.kb) e.expect(m + i, n, n0 + j, kNR);
          multiply<kPairs>(n, ap + i * kw, panel, kw, acc + i * ld + j, ld, kb > 0, ahead);
          ahead += line_words;
        }
      }
    }
    if (k1 == t.kb) e.apply(m, rows, n0, columns, acc, ld, tile_m);
    return true;
  }

  bool run() {
    t = tile(a.n, b.n, words<kPairs>(a.k));
    if (!e.reserve(t.mt)) return false;
    const bool share_a = t.nt > 1 && t.kb, share_b = t.mt > 1 && t.kb, slabs = t.slab < t.kb;
    pa = share_a ? (word *)scratch(0, size_t(t.mb * t.slab * a_words() * 4)) : nullptr;
    pb = share_b ? (word *)scratch(1, size_t(t.nb * t.slab * b_words() * 4)) : nullptr;
    sums = slabs ? (float *)scratch(6, size_t(t.mb * t.nb * t.tm * (t.tn + 16) * 4)) : nullptr;
    if ((share_a && !pa) || (share_b && !pb) || (slabs && !sums)) return false;
    for (int64_t n0 = 0; n0 < t.nt; n0 += t.nb) {
      const int64_t n1 = n0 + t.nb < t.nt ? n0 + t.nb : t.nt;
      for (int64_t m0 = 0; m0 < t.mt; m0 += t.mb) {
        const int64_t m1 = m0 + t.mb < t.mt ? m0 + t.mb : t.mt;
        const bool need_a = slabs || t.mb < t.mt || n0 == 0, need_b = slabs || m0 == 0;
        int64_t k0 = 0;
        do {
          const int64_t k1 = k0 + t.slab < t.kb ? k0 + t.slab : t.kb;
          if (!slab(m0, m1, n0, n1, k0, k1, need_a, need_b)) return false;
          k0 = k1;
        } while (k0 < t.kb);
      }
    }
    return true;
  }
};

template <bool kPairs> static bool blocked(const Operand &a, const Operand &b, Epilogue &e) {
  Blocked<kPairs> g = {a, b, e, {}, nullptr, nullptr, nullptr};
  return g.run();
}

}  // namespace
}  // namespace te::cpu::TE_CPU_ISA
