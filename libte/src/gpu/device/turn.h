// SPDX-License-Identifier: Apache-2.0
// A block turns a tile: each thread holds a square piece, turns it in registers, and the pieces change places in shared memory, where an XOR keeps
// both sides free of bank conflicts.
#pragma once
#include "gpu/device/offsets.h"
#include "gpu/device/vec.h"

namespace te::device {

// Across x Down threads with a piece of Side x Side elements each.
template <int Across, int Down, int Side> struct Tiling {
  static constexpr int kAcross = Across, kDown = Down, kThreads = Across * Down, kWidth = Across * Side, kHeight = Down * Side;
  static_assert(Down >= 8 && Across >= 4, "the swizzles below count on it");
};

template <int Bytes> struct Unsigned;
template <> struct Unsigned<1> { using type = unsigned char; };
template <> struct Unsigned<2> { using type = unsigned short; };
template <> struct Unsigned<4> { using type = unsigned; };
template <> struct Unsigned<8> { using type = unsigned long long; };
// A row of a piece whose elements have `Bytes` bytes: 8 bytes of 1, 16 of 2, 4 or 8.
template <int Bytes> struct Piece { using type = uint4; };
template <> struct Piece<1> { using type = uint2; };

// ---- pieces of 8 x 8 bytes ----

template <class L> inline constexpr int kTurnedBytes = L::kWidth * L::kHeight;

// Byte r of out[c] is byte c of in[r].
TE_DEVICE void turn_piece(const uint2 (&in)[8], uint2 (&out)[8]) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    unsigned a[8];
#pragma unroll
    for (int r = 0; r < 8; r++) a[r] = half ? in[r].y : in[r].x;
#pragma unroll
    for (int g = 0; g < 2; g++) {  // 4 rows at a time: two rounds of byte merges
      const unsigned r0 = a[4 * g], r1 = a[4 * g + 1], r2 = a[4 * g + 2], r3 = a[4 * g + 3];
      const unsigned t0 = __byte_perm(r0, r1, 0x5140), t1 = __byte_perm(r2, r3, 0x5140);
      const unsigned t2 = __byte_perm(r0, r1, 0x7362), t3 = __byte_perm(r2, r3, 0x7362);
      const unsigned c[4] = {__byte_perm(t0, t1, 0x5410), __byte_perm(t0, t1, 0x7632), __byte_perm(t2, t3, 0x5410), __byte_perm(t2, t3, 0x7632)};
#pragma unroll
      for (int k = 0; k < 4; k++) {
        if (g) out[half * 4 + k].y = c[k];
        else out[half * 4 + k].x = c[k];
      }
    }
  }
}

// What a column group's addresses are XORed with: 16 threads write 16 different 8-byte words of 128 bytes.
template <class L> TE_DEVICE int swizzle8(int across) { return L::kAcross >= 16 ? across % 16 : across * (16 / L::kAcross); }
// Where 8 bytes of a column lie: rows down * 8 and on. A column of 64 bytes shares 128 with its neighbour.
template <class L> TE_DEVICE int place8(int column, int down, int s) {
  if constexpr (L::kDown == 8) return (column ^ (s >> 3)) * L::kHeight + ((down ^ s) & 7) * 8;
  else return column * L::kHeight + (down ^ s) * 8;
}
// codes: this thread's piece, rows of x. put(column, row, w): 16 elements of column `column`, from row `row` on. shared: kTurnedBytes, 16-byte aligned.
template <class L, class F> TE_DEVICE void turn_bytes(const uint2 (&codes)[8], unsigned char *shared, F &&put) {
  const int across = (int)threadIdx.x % L::kAcross, down = (int)threadIdx.x / L::kAcross;
  uint2 t[8];
  turn_piece(codes, t);
#pragma unroll
  for (int c = 0; c < 8; c++) *reinterpret_cast<uint2 *>(shared + place8<L>(across * 8 + c, down, swizzle8<L>(across))) = t[c];
  __syncthreads();
  constexpr int kPairs = L::kHeight / 16;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int column = i * (L::kThreads / kPairs) + (int)threadIdx.x / kPairs, pair = (int)threadIdx.x % kPairs, s = swizzle8<L>(column / 8);
    uint4 w = *reinterpret_cast<const uint4 *>(shared + place8<L>(column, 2 * pair, s & ~1));
    if (s & 1) w = uint4{w.z, w.w, w.x, w.y};
    put(column, pair * 16, w);
  }
}

// ---- pieces whose rows are 16 bytes: T of 2, 4 or 8 bytes ----

template <class T> inline constexpr int kSide16 = 16 / (int)sizeof(T);

// Row c of out, elements r, are element c of rows r of in.
template <class T> TE_DEVICE void turn_piece(const uint4 (&in)[kSide16<T>], uint4 (&out)[kSide16<T>]) {
  constexpr int kSide = kSide16<T>;
  unsigned a[kSide][4], b[kSide][4];
#pragma unroll
  for (int r = 0; r < kSide; r++) a[r][0] = in[r].x, a[r][1] = in[r].y, a[r][2] = in[r].z, a[r][3] = in[r].w;
#pragma unroll
  for (int c = 0; c < kSide; c++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if constexpr (sizeof(T) == 2) b[c][i] = __byte_perm(a[2 * i][c / 2], a[2 * i + 1][c / 2], c % 2 ? 0x7632 : 0x5410);
      else if constexpr (sizeof(T) == 4) b[c][i] = a[i][c];
      else b[c][i] = a[i / 2][2 * c + i % 2];
    }
    out[c] = uint4{b[c][0], b[c][1], b[c][2], b[c][3]};
  }
}
template <class L> TE_DEVICE int place16(int column, int down, int across) {
  return column * L::kDown + (down ^ (L::kAcross >= 8 ? across % 8 : across * (8 / L::kAcross)));
}
// As turn_bytes; shared: kWidth * kDown of uint4.
template <class T, class L, class F> TE_DEVICE void turn_rows(const uint4 (&in)[kSide16<T>], uint4 *shared, F &&put) {
  constexpr int kSide = kSide16<T>;
  const int across = (int)threadIdx.x % L::kAcross, down = (int)threadIdx.x / L::kAcross;
  uint4 t[kSide];
  turn_piece<T>(in, t);
#pragma unroll
  for (int c = 0; c < kSide; c++) shared[place16<L>(across * kSide + c, down, across)] = t[c];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSide; i++) {
    const int column = i * L::kAcross + (int)threadIdx.x / L::kDown, piece = (int)threadIdx.x % L::kDown;
    put(column, piece * kSide, shared[place16<L>(column, piece, column / kSide)]);
  }
}

// ---- a whole tile ----

template <class T, class L> inline constexpr int kTransposeBytes = L::kWidth * L::kHeight * (int)sizeof(T);

// The tile of y = x^T whose first element is (row0, col0) of x. m and k are multiples of a piece's side, rows of x have one stride; T: an unsigned
// integer, one byte: 8-byte accesses to x, else 16 bytes on both sides. y's rows begin at multiples of 16 bytes.
template <class T, class L> TE_DEVICE void transpose_tile(const T *x, int64_t stride, T *y, int64_t m, int64_t k, int64_t row0, int64_t col0, uint4 *shared) {
  constexpr int kSide = L::kWidth / L::kAcross;
  const int64_t r0 = row0 + (int)threadIdx.x / L::kAcross * kSide, c0 = col0 + (int)threadIdx.x % L::kAcross * kSide;
  const auto put = [&](int column, int row, const uint4 &w) {
    if (col0 + column < k && row0 + row < m) *reinterpret_cast<uint4 *>(y + (col0 + column) * m + row0 + row) = w;
  };
  using Word = typename Piece<sizeof(T)>::type;
  Word in[kSide] = {};
  if (r0 < m && c0 < k) {
#pragma unroll
    for (int r = 0; r < kSide; r++) in[r] = *reinterpret_cast<const Word *>(x + (r0 + r) * stride + c0);
  }
  if constexpr (sizeof(T) == 1) turn_bytes<L>(in, reinterpret_cast<unsigned char *>(shared), put);
  else turn_rows<T, L>(in, shared, put);
}

// ---- the same for any rows: element by element where they are not wide ----

inline constexpr int kSquareThreads = 256;
template <class T> inline constexpr int kSquareSide = sizeof(T) == 8 ? 32 : 64;
// One more 4-byte word a row (8-byte elements: one element), so that a column's elements lie in different banks.
template <class T> inline constexpr int kSquarePitch = kSquareSide<T> + (sizeof(T) >= 4 ? 1 : 4 / (int)sizeof(T));
template <class T> inline constexpr int kSquareElements = kSquareSide<T> * kSquarePitch<T>;

// wide_x, wide_y: rows of x and of y allow 16-byte accesses.
template <class T> TE_DEVICE void transpose_square(const T *x, const Rows &rows, T *y, int64_t m, int64_t k, int64_t r0, int64_t c0, bool wide_x, bool wide_y,
                                                   T *tile) {
  constexpr int kSide = kSquareSide<T>, kPitch = kSquarePitch<T>, kGroup = 16 / (int)sizeof(T), kAcross = kSide / kGroup, kStep = kSquareThreads / kAcross;
  const int across = (int)threadIdx.x % kAcross * kGroup, down = (int)threadIdx.x / kAcross;
  for (int i = down; i < kSide; i += kStep) {
    if (r0 + i >= m) break;
    const T *p = x + rows(r0 + i) + c0 + across;
    if (wide_x && c0 + across < k) {
      const auto v = load<kGroup>(p);
#pragma unroll
      for (int j = 0; j < kGroup; j++) tile[i * kPitch + across + j] = v.v[j];
    } else {
#pragma unroll
      for (int j = 0; j < kGroup; j++)
        if (c0 + across + j < k) tile[i * kPitch + across + j] = p[j];
    }
  }
  __syncthreads();
  for (int i = down; i < kSide; i += kStep) {
    if (c0 + i >= k) break;
    T *p = y + (c0 + i) * m + r0 + across;
    if (wide_y && r0 + across < m) {
      pack<T, kGroup> v;
#pragma unroll
      for (int j = 0; j < kGroup; j++) v.v[j] = tile[(across + j) * kPitch + i];
      store<kGroup>(p, v);
    } else {
#pragma unroll
      for (int j = 0; j < kGroup; j++)
        if (r0 + across + j < m) p[j] = tile[(across + j) * kPitch + i];
    }
  }
}

}  // namespace te::device
