// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "cpu/vec.h"
#include "ops/rope/geometry.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

constexpr int64_t kWork = 64 * 1024;  // elements a task
constexpr double kReducible = 1e6;  // |angle| up to which k = round(angle * 2 / pi) has at most 20 bits

// cos and sin of 16 angles, about 0.6 ulp. The reduction is done in double: pi/2 in three pieces of which the first two have 33
// bits, so that their products with k are exact (Cody and Waite, "Software manual for the elementary functions", 1980). No fma
// there: the quadrant and remainder are the same at every level. Leading terms, r and 1 - r^2/2, are kept in two floats.
TE_INLINE void cos_sin(const float *angle, float *cosine, float *sine) {
  alignas(64) float r1[16], r2[16], u1[16], u2[16];
  alignas(64) int32_t quadrant[16];
  for (int i = 0; i < 16; i++) {
    const double x = angle[i], t = x * 0x1.45f306dc9c883p-1 + 0x1.8p52, k = t - 0x1.8p52;  // t's low bits are k
    const double r = ((x - k * 0x1.921fb544p0) - k * 0x1.0b4611a6p-34) - k * 0x1.3198a2e037073p-69, u = 1 - 0.5 * r * r;
    int64_t b;
    memcpy(&b, &t, 8);
    quadrant[i] = (int32_t)b;
    r1[i] = (float)r, r2[i] = (float)(r - (double)r1[i]);
    u1[i] = (float)u, u2[i] = (float)(u - (double)u1[i]);
  }
  const vf r = load(r1), z = r * r;
  // minimax on [0, (pi/4)^2], relative error 4e-9 and 1e-10
  const vf p = fma(fma(set1(-1.95172612e-4f), z, set1(8.33217788e-3f)), z, set1(-0.166666549f));
  const vf q = fma(fma(set1(2.44384006e-5f), z, set1(-1.38873671e-3f)), z, set1(4.16666469e-2f));
  const vf s = r + fma(r * z, p, load(r2));
  const vf c = load(u1) + fma(z * z, q, load(u2));
  vi n;
  memcpy(&n, quadrant, 64);
  const vi swap = (n & set1i(1)) == set1i(1);
  store(cosine, floats(bits(select(swap, s, c)) ^ shl<30>((n + set1i(1)) & set1i(2))));
  store(sine, floats(bits(select(swap, c, s)) ^ shl<30>(n & set1i(2))));
}

// cos and sin of n angles, n a multiple of 16.
TE_INLINE void cos_sin_all(const float *angle, int64_t n, float *cosine, float *sine) {
  vi near = set1i(-1);
  for (int64_t i = 0; i < n; i += 16) near = near & (abs(load(angle + i)) <= set1((float)kReducible));  // NaN is not
  if (reduce_add(floats(near & set1i(0x3f800000))) == 16.f) {
    for (int64_t i = 0; i < n; i += 16) cos_sin(angle + i, cosine + i, sine + i);
  } else {
    for (int64_t i = 0; i < n; i++) cosine[i] = (float)::cos((double)angle[i]), sine[i] = (float)::sin((double)angle[i]);
  }
}

// Row tables: y[i] = x[i] * c[i] + x[partner of i] * s[i] in both directions. work has room for 3 rows, n floats each.
TE_INLINE void fill_row(const float *f, int64_t d2, int64_t n, bool interleaved, bool backward, float *work, float *c, float *s) {
  const int64_t m = d2 / 2, step = interleaved ? 2 : 1, apart = interleaved ? 1 : m;
  float *angle = work, *cosine = work + n, *sine = work + 2 * n;
  // The first members of the pairs, then the second; these mostly have the same angles.
  for (int64_t j = 0; j < m; j++) angle[j] = f[j * step], angle[m + j] = f[j * step + apart];
  const bool twins = memcmp(angle, angle + m, sizeof(float) * m) == 0;
  const int64_t different = twins ? m : d2, whole = (different + 15) / 16 * 16;
  for (int64_t i = different; i < whole; i++) angle[i] = 0;
  cos_sin_all(angle, whole, cosine, sine);
  const float *cosine2 = twins ? cosine : cosine + m, *sine2 = twins ? sine : sine + m;
  // forward: -sin of its own angle for the first of a pair, + for the second; backward: the partner's angle, signs reversed
  for (int64_t j = 0; j < m; j++) {
    const int64_t first = j * step, second = first + apart;
    c[first] = cosine[j];
    c[second] = cosine2[j];
    s[first] = backward ? sine2[j] : -sine[j];
    s[second] = backward ? -sine[j] : sine2[j];
  }
}

TE_INLINE vf swap_pairs(vf a) {
#if defined(__AVX512F__)
  TE_VF(_mm512_permute_ps(a.v[p_], 0xb1));
#elif defined(__AVX2__)
  TE_VF(_mm256_permute_ps(a.v[p_], 0xb1));
#else
  TE_VF(_mm_shuffle_ps(a.v[p_], a.v[p_], 0xb1));
#endif
}

template <class T> TE_INLINE void rotate_halves(const T *x, T *y, const float *c, const float *s, int64_t m) {
  int64_t i = 0;
  for (; i + 16 <= m; i += 16) {
    const vf a = load(x + i), b = load(x + m + i);
    store(y + i, fma(a, load(c + i), b * load(s + i)));
    store(y + m + i, fma(b, load(c + m + i), a * load(s + m + i)));
  }
  if (i < m) {
    const int n = (int)(m - i);
    const vf a = load(x + i, n), b = load(x + m + i, n);
    store(y + i, fma(a, load(c + i), b * load(s + i)), n);
    store(y + m + i, fma(b, load(c + m + i), a * load(s + m + i)), n);
  }
}
template <class T> TE_INLINE void rotate_pairs(const T *x, T *y, const float *c, const float *s, int64_t d2) {
  int64_t i = 0;
  for (; i + 16 <= d2; i += 16) {
    const vf a = load(x + i);
    store(y + i, fma(a, load(c + i), swap_pairs(a) * load(s + i)));
  }
  if (i < d2) {
    const vf a = load(x + i, (int)(d2 - i));
    store(y + i, fma(a, load(c + i), swap_pairs(a) * load(s + i)), (int)(d2 - i));
  }
}

struct Plan {
  RopeArgs a;
  RopeShape r;
  bool shared;         // every batch entry has the same positions
  int64_t rows;        // tokens whose tables are made together
  int64_t group;       // batch entries that use them
  int64_t row_floats;  // distance of table rows
};

Plan make_plan(const RopeArgs &a) {
  Plan p = {a, rope_shape(a), false, 1, 1, 0};
  const RopeShape &r = p.r;
  p.shared = !given(a.start_positions) && !given(a.positions);
  p.row_floats = (r.d2 + 15) / 16 * 16 + 16;  // vectors at the second half's tail reach past d2
  // Tables of at most 32 KiB, tasks of about 64 Ki elements; SBHD keeps the batch together, since there it lies inside a token.
  const int64_t fit = 4096 / p.row_floats, token = r.h * r.d > 0 ? r.h * r.d : 1;
  p.rows = fit < 1 ? 1 : fit > 64 ? 64 : fit;
  if (p.shared && a.format == NVTE_FORMAT_SBHD) {
    const int64_t few = kWork / (token * (r.b > 0 ? r.b : 1));
    if (p.rows > few) p.rows = few < 1 ? 1 : few;
  }
  if (p.rows > r.s) p.rows = r.s > 0 ? r.s : 1;
  if (p.shared) {
    p.group = (kWork + p.rows * token - 1) / (p.rows * token);
    if (p.group > r.b) p.group = r.b > 0 ? r.b : 1;
  }
  return p;
}

// One task: tables for tokens [s0, s1), then every row of the batch entries [b0, b1). False when memory is out.
template <class T> TE_INLINE bool task(const Plan &p, int64_t b0, int64_t b1, int64_t s0, int64_t s1) {
  const RopeShape &r = p.r;
  const int64_t n = p.row_floats;
  float *table = (float *)scratch(0, sizeof(float) * (2 * n * p.rows + 3 * n));
  T *packed = r.xd == 1 ? nullptr : (T *)scratch(1, sizeof(T) * r.d);
  if (!table || (r.xd != 1 && !packed)) return false;

  const float *freqs = address_as<const float>(p.a.freqs->data);
  int64_t sequence = 0, used = s1;  // tokens from `used` on belong to no sequence
  if (p.a.format == NVTE_FORMAT_THD) {
    int64_t lo = 0, hi = r.sequences;  // the first sequence that ends past s0
    while (lo < hi) {
      const int64_t mid = lo + (hi - lo) / 2;
      if (rope_end(p.a, mid) > s0) hi = mid; else lo = mid + 1;
    }
    sequence = lo;
  }
  for (int64_t s = s0; s < s1; s++) {
    if (p.a.format == NVTE_FORMAT_THD) {
      while (sequence < r.sequences && rope_end(p.a, sequence) <= s) sequence++;
      if (sequence == r.sequences) { used = s; break; }
    }
    float *row = table + 2 * n * (s - s0);
    fill_row(freqs + rope_position(p.a, r, b0, s, sequence) * r.d2, r.d2, n, p.a.interleaved, p.a.backward, table + 2 * n * p.rows,
             row, row + n);
  }

  const T *xs = address_as<const T>(p.a.x->data);
  T *ys = address_as<T>(p.a.y->data);
  const auto rotate = [&](int64_t b, int64_t s, int64_t h) {
    const T *x = xs + b * r.xb + s * r.xs + h * r.xh;
    T *y = ys + b * r.yb + s * r.ys + h * r.yh;
    if (s >= used) {
      memset((void *)y, 0, sizeof(T) * r.d);
      return;
    }
    if (packed) {
      for (int64_t k = 0; k < r.d; k++) packed[k] = x[k * r.xd];
      x = packed;
    }
    const float *c = table + 2 * n * (s - s0);
    if (p.a.interleaved) rotate_pairs(x, y, c, c + n, r.d2);
    else rotate_halves(x, y, c, c + n, r.d2 / 2);
    if (r.d2 < r.d) memcpy((void *)(y + r.d2), (const void *)(x + r.d2), sizeof(T) * (r.d - r.d2));
  };
  // in memory's order
  if (p.a.format == NVTE_FORMAT_SBHD) {
    for (int64_t s = s0; s < s1; s++)
      for (int64_t b = b0; b < b1; b++)
        for (int64_t h = 0; h < r.h; h++) rotate(b, s, h);
  } else if (p.a.format == NVTE_FORMAT_BHSD) {
    for (int64_t b = b0; b < b1; b++)
      for (int64_t h = 0; h < r.h; h++)
        for (int64_t s = s0; s < s1; s++) rotate(b, s, h);
  } else {
    for (int64_t b = b0; b < b1; b++)
      for (int64_t s = s0; s < s1; s++)
        for (int64_t h = 0; h < r.h; h++) rotate(b, s, h);
  }
  return true;
}

nvte_status run(const RopeArgs &a) {
  const Plan p = make_plan(a);
  const RopeShape &r = p.r;
  if (r.b * r.s * r.h * r.d == 0) return NVTE_OK;
  const int64_t blocks = (r.s + p.rows - 1) / p.rows, groups = (r.b + p.group - 1) / p.group;
  bool ran = true, memory = true;
  visit_float(dtype_of(a.x->data.dtype), [&](auto zero) {
    ran = parallel_for(blocks * groups, r.b * r.s * r.h * r.d * 8, [&](int64_t i) {
      const int64_t b0 = i / blocks * p.group, s0 = i % blocks * p.rows;
      const int64_t b1 = b0 + p.group < r.b ? b0 + p.group : r.b, s1 = s0 + p.rows < r.s ? s0 + p.rows : r.s;
      if (!task<decltype(zero)>(p, b0, b1, s0, s1)) __atomic_store_n(&memory, false, __ATOMIC_RELAXED);
    });
  });
  if (!memory) return fail(NVTE_ERR_OUT_OF_MEMORY, "no memory for the tables of %lld angles", (long long)r.d2);
  return ran ? NVTE_OK : fail(NVTE_ERR_INTERNAL, "a worker failed");
}

}  // namespace

nvte_status rope_forward(const nvte_exec &, const nvte_rope_forward_args &a) { return run(rope_args(a)); }
nvte_status rope_backward(const nvte_exec &, const nvte_rope_backward_args &a) { return run(rope_args(a)); }

}  // namespace te::cpu::TE_CPU_ISA
