// SPDX-License-Identifier: Apache-2.0
// Tiles of matrices in shared memory, with k contiguous whatever the order in global memory, and products of them by waves. A row of a tile
// is padded by 16 bytes, so that neither fragments nor transposed stores meet in a bank.
#pragma once
#include "gpu/device/rows.h"
#include "gpu/device/mma.h"
#include "gpu/device/vec.h"

namespace te::device {

// One element of any float type as f32, and back.
TE_DEVICE float load_one(const char *base, DType t, int64_t i) {
  switch (t) {
    case DType::f32: return reinterpret_cast<const float *>(base)[i];
    case DType::f16: return to_f32(reinterpret_cast<const f16 *>(base)[i]);
    case DType::bf16: return to_f32(reinterpret_cast<const bf16 *>(base)[i]);
    case DType::e4m3: return to_f32(reinterpret_cast<const e4m3 *>(base)[i]);
    case DType::e5m2: return to_f32(reinterpret_cast<const e5m2 *>(base)[i]);
    case DType::e4m3fnuz: return to_f32(reinterpret_cast<const e4m3fnuz *>(base)[i]);
    default: return to_f32(reinterpret_cast<const e5m2fnuz *>(base)[i]);
  }
}
// The same without fp8 where there is none: less code.
template <bool kCodes> TE_DEVICE float load_any(const char *base, DType t, int64_t i) {
  if constexpr (kCodes) return load_one(base, t, i);
  if (t == DType::f32) return reinterpret_cast<const float *>(base)[i];
  return t == DType::f16 ? to_f32(reinterpret_cast<const f16 *>(base)[i]) : to_f32(reinterpret_cast<const bf16 *>(base)[i]);
}
TE_DEVICE void store_float(char *base, DType t, int64_t i, float v) {
  if (t == DType::f32) reinterpret_cast<float *>(base)[i] = v;
  else if (t == DType::f16) reinterpret_cast<f16 *>(base)[i] = from_f32<f16>(v);
  else reinterpret_cast<bf16 *>(base)[i] = from_f32<bf16>(v);
}
// Returns the value as stored.
TE_DEVICE float store_one(char *base, DType t, int64_t i, float v) {
  const auto put = [&](auto code) {
    reinterpret_cast<decltype(code) *>(base)[i] = code;
    return to_f32(code);
  };
  switch (t) {
    case DType::f32: return put(v);
    case DType::f16: return put(from_f32<f16>(v));
    case DType::bf16: return put(from_f32<bf16>(v));
    case DType::e4m3: return put(from_f32<e4m3>(v));
    case DType::e5m2: return put(from_f32<e5m2>(v));
    case DType::e4m3fnuz: return put(from_f32<e4m3fnuz>(v));
    default: return put(from_f32<e5m2fnuz>(v));
  }
}

template <class T> inline constexpr DType kDType = sizeof(T) == 4 ? DType::f32 : DType::bf16;
template <> inline constexpr DType kDType<f16> = DType::f16;

// A matrix op(X)[n, k] in global memory: element (i, k) at rows(i) + unit * k where k is the last dimension (k_unit), else at
// rows(k) + unit * i. wide: 16-byte accesses (8-byte ones of fp8 codes) are aligned.
template <class R> struct Source {
  const char *base;
  DType dtype;
  bool k_unit, wide;
  int64_t n, k, unit;
  R rows;
};
struct Stride {
  int64_t stride;
  TE_DEVICE int64_t operator()(int64_t r) const { return r * stride; }
};

// Elements a row of a tile takes with its padding.
template <class T> inline constexpr int padded(int k) { return k + 16 / (int)sizeof(T); }

// Codes of 8 fp8 numbers as bf16, which holds every one of them.
struct Fp8Format {
  int shift;         // of the code's magnitude to f32's exponent
  float factor;      // then times this
  unsigned special;  // least magnitude that is infinity or NaN
  bool fnuz;         // the one NaN is 0x80
};
TE_DEVICE Fp8Format fp8_format(DType t) {
  switch (t) {
    case DType::e4m3: return {20, 0x1p120f, 0x7f, false};
    case DType::e5m2: return {21, 0x1p112f, 0x7c, false};
    case DType::e4m3fnuz: return {20, 0x1p119f, 0x80, true};
    default: return {21, 0x1p111f, 0x80, true};
  }
}
TE_DEVICE unsigned fp8_as_bf16(unsigned code, const Fp8Format &f) {
  const unsigned m = code & 0x7fu, wide = m << f.shift;
  unsigned r = m >= f.special ? wide | 0x7f800000u : bits(from_bits(wide) * f.factor);
  if (f.fnuz && code == 0x80u) r = 0x7fc00000u;
  return r >> 16 | (code & 0x80u) << 8;
}

// 16 bytes of numbers of T.
template <class T> TE_DEVICE T chunk_at(const uint4 &w, int j) {
  const unsigned words[4] = {w.x, w.y, w.z, w.w};
  if constexpr (sizeof(T) == 4) return __builtin_bit_cast(T, words[j]);
  else return T{(unsigned short)(words[j / 2] >> 16 * (j % 2))};
}

// N rows by K of a Source, moved by Threads threads: load() into registers, store() into shared memory. Tiles that allow no wide accesses wait
// for store() and go number by number. kCodes: the source may hold fp8, which becomes bf16.
template <class T, int N, int K, int Threads, bool kCodes> struct Loader {
  static constexpr int kV = 16 / (int)sizeof(T), kChunks = N * K / kV / Threads, kPerRow = K / kV, kPairs = K / 2;
  static_assert(kChunks % 2 == 0 && kChunks * kV * Threads == N * K, "each thread moves pairs of chunks");
  uint4 r[kChunks];
  int64_t n0, k0;
  bool fast;

  TE_DEVICE static uint4 fetch(const char *base, DType t, int64_t at) {
    if constexpr (kCodes && sizeof(T) == 2) {
      if (t != kDType<T>) {
        const uint2 codes = *reinterpret_cast<const uint2 *>(base + at);
        const Fp8Format f = fp8_format(t);
        const auto two = [&](unsigned word, int shift) { return fp8_as_bf16(word >> shift & 0xffu, f) | fp8_as_bf16(word >> (shift + 8) & 0xffu, f) << 16; };
        return uint4{two(codes.x, 0), two(codes.x, 16), two(codes.y, 0), two(codes.y, 16)};
      }
    }
    return *reinterpret_cast<const uint4 *>(base + at * (int64_t)sizeof(T));
  }
  template <class R> TE_DEVICE void load(const Source<R> &s, int64_t first_n, int64_t first_k) {
    n0 = first_n, k0 = first_k;
    const int64_t left = s.k_unit ? s.k - k0 : s.n - n0;
    fast = s.wide && (left >= (s.k_unit ? K : N) || left % kV == 0);
    if (!fast) return;
    if (s.k_unit) {
#pragma unroll
      for (int i = 0; i < kChunks; i++) {
        const int q = i * Threads + (int)threadIdx.x;
        const int64_t n = n0 + q / kPerRow, k = k0 + q % kPerRow * kV;
        r[i] = n < s.n && k < s.k ? fetch(s.base, s.dtype, s.rows(n) + k) : uint4{0, 0, 0, 0};
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kChunks; i++) {
      const int q = i / 2 * Threads + (int)threadIdx.x;
      const int64_t n = n0 + group(q) * kV, k = k0 + pair(q) * 2 + i % 2;
      r[i] = n < s.n && k < s.k ? fetch(s.base, s.dtype, s.rows(k) + n) : uint4{0, 0, 0, 0};
    }
  }
  // kTaint: whether a number of this thread is infinite or NaN.
  template <bool kTaint, class R> TE_DEVICE bool store(const Source<R> &s, T *tile, int ld) const {
    bool bad = false;
    if (!fast) {
#pragma unroll 1
      for (int q = (int)threadIdx.x; q < N * K; q += Threads) {
        const int i = s.k_unit ? q / K : q % N, j = s.k_unit ? q % K : q / N;
        float x = 0.f;
        const int64_t n = n0 + i, k = k0 + j;
        if (n < s.n && k < s.k) x = load_any<kCodes>(s.base, s.dtype, s.k_unit ? s.rows(n) + k * s.unit : s.rows(k) + n * s.unit);
        if (kTaint) bad |= !(x - x == 0.f);
        tile[i * ld + j] = from_f32<T>(x);
      }
      return bad;
    }
    if (s.k_unit) {
#pragma unroll
      for (int i = 0; i < kChunks; i++) {
        const int q = i * Threads + (int)threadIdx.x;
        *reinterpret_cast<uint4 *>(tile + q / kPerRow * ld + q % kPerRow * kV) = r[i];
      }
    } else {
#pragma unroll
      for (int i = 0; i < kChunks; i += 2) {
        const int q = i / 2 * Threads + (int)threadIdx.x;
        T *p = tile + group(q) * kV * ld + pair(q) * 2;
#pragma unroll
        for (int j = 0; j < kV; j++) *reinterpret_cast<pack<T, 2> *>(p + j * ld) = pack<T, 2>{{chunk_at<T>(r[i], j), chunk_at<T>(r[i + 1], j)}};
      }
    }
    if constexpr (kTaint) {
#pragma unroll
      for (int i = 0; i < kChunks; i++)
#pragma unroll
        for (int j = 0; j < kV; j++) bad |= not_finite(chunk_at<T>(r[i], j));
    }
    return bad;
  }

 private:
  TE_DEVICE static bool not_finite(float x) { return (bits(x) & 0x7f800000u) == 0x7f800000u; }
  TE_DEVICE static bool not_finite(bf16 x) { return (x.b & 0x7f80u) == 0x7f80u; }
  TE_DEVICE static bool not_finite(f16 x) { return (x.b & 0x7c00u) == 0x7c00u; }
  // Two neighbours share a sector of 32 bytes, the others walk along k.
  TE_DEVICE static int group(int q) { return q / (2 * kPairs) * 2 + q % 2; }
  TE_DEVICE static int pair(int q) { return q / 2 % kPairs; }
};

// c[M / 16][N / 16] += A[M, K] B[N, K]^T of one wave; a and b point at its first rows.
template <class T, int M, int N, int K> TE_DEVICE void product(Piece (&c)[M / 16][N / 16], const T *a, int lda, const T *b, int ldb) {
#pragma unroll
  for (int k = 0; k < K; k += kStep<T>) {
    FragmentA<T> fa[M / 16];
    FragmentB<T> fb[N / 16];
#pragma unroll
    for (int i = 0; i < M / 16; i++) load_a(fa[i], a + i * 16 * lda + k, lda);
#pragma unroll
    for (int j = 0; j < N / 16; j++) load_b(fb[j], b + j * 16 * ldb + k, ldb);
#pragma unroll
    for (int i = 0; i < M / 16; i++)
#pragma unroll
      for (int j = 0; j < N / 16; j++) mma(c[i][j], fa[i], fb[j]);
  }
}
// The same where B may hold infinity or NaN in places that a 0 of A masks: those products are left out.
template <class T, int M, int N, int K> TE_DEVICE void careful_product(Piece (&c)[M / 16][N / 16], const T *a, int lda, const T *b, int ldb) {
  for (int k = 0; k < K; k++)
#pragma unroll
    for (int i = 0; i < M / 16; i++)
#pragma unroll
      for (int j = 0; j < N / 16; j++)
#pragma unroll
        for (int e = 0; e < kPiece; e++) {
          const float x = to_f32(a[(i * 16 + piece_row(e)) * lda + k]), y = to_f32(b[(j * 16 + piece_column(e)) * ldb + k]);
          if (x != 0.f) c[i][j].v[e] = fmaf(x, y, c[i][j].v[e]);
        }
}
template <int M, int N> TE_DEVICE void clear(Piece (&c)[M][N]) {
#pragma unroll
  for (int i = 0; i < M; i++)
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
      for (int e = 0; e < kPiece; e++) c[i][j].v[e] = 0.f;
}

}  // namespace te::device
