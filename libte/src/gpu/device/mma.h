// SPDX-License-Identifier: Apache-2.0
// The matrix word: a wave multiplies 16 rows of A by 16 columns of B (both stored with k contiguous, in shared memory) and adds to 256 f32
// in its registers. f32, f16 and bf16; mma.sync on NVIDIA (f32 by fused multiply-adds, since TF32 is no f32), MFMA on AMD.
#pragma once
#include "gpu/device/convert.h"

namespace te::device {

// The k of one word: 16 numbers of 16 bits, 4 of 32.
template <class T> inline constexpr int kStep = sizeof(T) == 2 ? 16 : 4;

// A 16 x 16 piece of f32 results: element i of a lane is at (row(i), column(i)). Elements of one slot(i) share their row.
inline constexpr int kPiece = 256 / kWave;
struct Piece {
  float v[kPiece];
};

#if defined(TE_VENDOR_HIP)

inline constexpr int kRowSlots = kPiece, kLanesPerRow = 16;
TE_DEVICE int piece_row(int i) { return 4 * (lane() / 16) + i; }
TE_DEVICE int piece_column(int) { return lane() % 16; }
TE_DEVICE constexpr int piece_slot(int i) { return i; }
TE_DEVICE int slot_row(int slot) { return 4 * (lane() / 16) + slot; }
// op over the lanes that hold the same row.
template <class Op> TE_DEVICE float across_columns(float v, Op op) {
#pragma unroll
  for (int m = 1; m < 16; m <<= 1) v = op(v, shfl_xor(v, m));
  return v;
}

typedef float te_f32x4 __attribute__((vector_size(16)));
typedef short te_i16x4 __attribute__((vector_size(8)));
typedef _Float16 te_f16x4 __attribute__((vector_size(8)));
// Word by word: the host's pass, where a wave has 32 lanes, looks at this too.
TE_DEVICE te_f32x4 words(const Piece &c) { return te_f32x4{c.v[0], c.v[1], c.v[2], c.v[3]}; }
TE_DEVICE void set(Piece &c, te_f32x4 r) {
#pragma unroll
  for (int i = 0; i < 4; i++) c.v[i] = r[i];
}
template <class T> struct Fragment {
  uint2 r;
};
template <> struct Fragment<float> {
  float r;
};
template <class T> using FragmentA = Fragment<T>;
template <class T> using FragmentB = Fragment<T>;
// p: first element of 16 rows (of B: columns) that lie ld elements apart.
template <class T> TE_DEVICE void load_fragment(Fragment<T> &f, const T *p, int ld) {
  f.r = *reinterpret_cast<const uint2 *>(p + (lane() % 16) * ld + lane() / 16 * 4);
}
TE_DEVICE void load_fragment(Fragment<float> &f, const float *p, int ld) { f.r = p[(lane() % 16) * ld + lane() / 16]; }
template <class T> TE_DEVICE void load_a(Fragment<T> &f, const T *p, int ld) { load_fragment(f, p, ld); }
template <class T> TE_DEVICE void load_b(Fragment<T> &f, const T *p, int ld) { load_fragment(f, p, ld); }
TE_DEVICE void mma(Piece &c, const Fragment<bf16> &a, const Fragment<bf16> &b) {
  const te_f32x4 r = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(te_i16x4, a.r), __builtin_bit_cast(te_i16x4, b.r),
                                                               words(c), 0, 0, 0);
  set(c, r);
}
TE_DEVICE void mma(Piece &c, const Fragment<f16> &a, const Fragment<f16> &b) {
  const te_f32x4 r = __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(te_f16x4, a.r), __builtin_bit_cast(te_f16x4, b.r),
                                                           words(c), 0, 0, 0);
  set(c, r);
}
TE_DEVICE void mma(Piece &c, const Fragment<float> &a, const Fragment<float> &b) {
  const te_f32x4 r = __builtin_amdgcn_mfma_f32_16x16x4f32(a.r, b.r, words(c), 0, 0, 0);
  set(c, r);
}

typedef float te_f32x16 __attribute__((vector_size(64)));
typedef __bf16 te_bf16x8 __attribute__((vector_size(16)));
typedef _Float16 te_f16x8 __attribute__((vector_size(16)));
// c += A^T B over 16 of k: of a lane's 8 numbers the first 4 are k = 4 * (lane / 32).., the others 8 further on (in any order, if both agree).
TE_DEVICE te_f32x16 mfma_32x32(uint4 a, uint4 b, te_f32x16 c, bf16) {
#if defined(__gfx950__)
  return __builtin_amdgcn_mfma_f32_32x32x16_bf16(__builtin_bit_cast(te_bf16x8, a), __builtin_bit_cast(te_bf16x8, b), c, 0, 0, 0);
#else
  c = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_bit_cast(te_i16x4, uint2{a.x, a.y}), __builtin_bit_cast(te_i16x4, uint2{b.x, b.y}), c, 0, 0, 0);
  return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_bit_cast(te_i16x4, uint2{a.z, a.w}), __builtin_bit_cast(te_i16x4, uint2{b.z, b.w}), c, 0, 0, 0);
#endif
}
TE_DEVICE te_f32x16 mfma_32x32(uint4 a, uint4 b, te_f32x16 c, f16) {
#if defined(__gfx950__)
  return __builtin_amdgcn_mfma_f32_32x32x16_f16(__builtin_bit_cast(te_f16x8, a), __builtin_bit_cast(te_f16x8, b), c, 0, 0, 0);
#else
  c = __builtin_amdgcn_mfma_f32_32x32x8f16(__builtin_bit_cast(te_f16x4, uint2{a.x, a.y}), __builtin_bit_cast(te_f16x4, uint2{b.x, b.y}), c, 0, 0, 0);
  return __builtin_amdgcn_mfma_f32_32x32x8f16(__builtin_bit_cast(te_f16x4, uint2{a.z, a.w}), __builtin_bit_cast(te_f16x4, uint2{b.z, b.w}), c, 0, 0, 0);
#endif
}
#else

// sm_90a: four waves multiply tiles in shared memory (strip.h has the words). Host code asks for what that takes, which is the most.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TE_WGMMA 1
#endif
#if defined(__CUDA_ARCH__) && !defined(TE_WGMMA)
inline constexpr bool kWgmma = false;
#else
inline constexpr bool kWgmma = true;
#endif

inline constexpr int kRowSlots = 2, kLanesPerRow = 4;
TE_DEVICE int piece_row(int i) { return lane() / 4 + 8 * (i / 2 % 2); }
TE_DEVICE int piece_column(int i) { return 8 * (i / 4) + lane() % 4 * 2 + i % 2; }
TE_DEVICE constexpr int piece_slot(int i) { return i / 2 % 2; }
TE_DEVICE int slot_row(int slot) { return lane() / 4 + 8 * slot; }
template <class Op> TE_DEVICE float across_columns(float v, Op op) {
  v = op(v, shfl_xor(v, 1));
  return op(v, shfl_xor(v, 2));
}

template <class T> struct FragmentA {
  unsigned r[4];
};
template <class T> struct FragmentB {
  unsigned r[4];
};
template <> struct FragmentA<float> {
  float4 r[2];
};
template <> struct FragmentB<float> {
  float4 r[4];
};
// Four 8 x 8 matrices of 16-bit numbers; lane l gives the address of row l % 8 of matrix l / 8.
TE_DEVICE void load_matrices(unsigned (&r)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"((unsigned)__cvta_generic_to_shared(row))
               : "memory");
}
// The same, each matrix transposed.
TE_DEVICE void load_transposed(unsigned (&r)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"((unsigned)__cvta_generic_to_shared(row))
               : "memory");
}
template <class T> TE_DEVICE void load_a(FragmentA<T> &f, const T *p, int ld) { load_matrices(f.r, p + lane() % 16 * ld + lane() / 16 * 8); }
template <class T> TE_DEVICE void load_b(FragmentB<T> &f, const T *p, int ld) {
  load_matrices(f.r, p + (lane() % 8 + lane() / 16 * 8) * ld + lane() / 8 % 2 * 8);
}
TE_DEVICE void load_a(FragmentA<float> &f, const float *p, int ld) {
#pragma unroll
  for (int i = 0; i < 2; i++) f.r[i] = *reinterpret_cast<const float4 *>(p + (lane() / 4 + 8 * i) * ld);
}
TE_DEVICE void load_b(FragmentB<float> &f, const float *p, int ld) {
#pragma unroll
  for (int i = 0; i < 4; i++) f.r[i] = *reinterpret_cast<const float4 *>(p + (8 * (i / 2) + lane() % 4 * 2 + i % 2) * ld);
}
TE_DEVICE void mma_m16n8k16(float *c, const unsigned *a, const unsigned *b, bf16) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
TE_DEVICE void mma_m16n8k16(float *c, const unsigned *a, const unsigned *b, f16) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <class T> TE_DEVICE void mma(Piece &c, const FragmentA<T> &a, const FragmentB<T> &b) {
  mma_m16n8k16(c.v, a.r, b.r, T{});
  mma_m16n8k16(c.v + 4, a.r, b.r + 2, T{});
}
TE_DEVICE void mma(Piece &c, const FragmentA<float> &a, const FragmentB<float> &b) {
#pragma unroll
  for (int i = 0; i < kPiece; i++) {
    const float4 x = a.r[i / 2 % 2], y = b.r[i / 4 * 2 + i % 2];
    c.v[i] = fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, c.v[i]))));
  }
}

#endif

}  // namespace te::device
