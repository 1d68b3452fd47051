// SPDX-License-Identifier: Apache-2.0
// Products of 16-bit tiles by strips: a wave owns a few rows of a result in registers, where a result, packed to 16 bits, is the left operand of
// the next product, with no way through shared memory. wgmma on sm_90a (four waves at once, asynchronous), mma.sync on other NVIDIA chips, MFMA on
// AMD with both operands exchanged, since its results then lie as its operands do. Blocks have 256 threads and 128 rows everywhere.
#pragma once
#include "gpu/device/mma.h"
#include "gpu/device/vec.h"

namespace te::device {

inline constexpr int kStripThreads = 256, kStripBlock = 128;

// Columns of a result come in groups of 8, four elements of a lane each: element e is in row strip_row(e % 4 / kRun) and column
// 8 * (e / 4) + run_start() + e % kRun. Word 2 * g + i of a packed strip holds elements 4 * g + 2 * i and the next.
// kStages: tiles of one operand in shared memory. kRowsInRegisters: a strip of the left operand is read once and its tile's place is free then.
#if defined(TE_VENDOR_HIP)
inline constexpr int kStripRows = 32, kStripSlots = 1, kRun = 4, kStages = 1;
inline constexpr bool kRowsInRegisters = true;
TE_DEVICE int strip_row(int) { return lane() % 32; }
TE_DEVICE int run_start() { return lane() / 32 * 4; }
template <class Op> TE_DEVICE float across_strip(float v, Op op) { return op(v, shfl_xor(v, 32)); }
TE_DEVICE bool first_of_row() { return lane() < 32; }
#define TE_TILES(name, bytes) __shared__ __attribute__((aligned(1024))) unsigned char name[bytes]
inline constexpr bool kDynamicTiles = false;  // a block's tiles are declared by the kernel, or asked for by the launch
#else
inline constexpr int kStripRows = 16, kStripSlots = 2, kRun = 2, kStages = 2;
inline constexpr bool kRowsInRegisters = false;
TE_DEVICE int strip_row(int slot) { return lane() / 4 + 8 * slot; }
TE_DEVICE int run_start() { return lane() % 4 * 2; }
template <class Op> TE_DEVICE float across_strip(float v, Op op) { return across_columns(v, op); }
TE_DEVICE bool first_of_row() { return lane() % 4 == 0; }
#define TE_TILES(name, bytes) extern __shared__ __align__(1024) unsigned char name[]
inline constexpr bool kDynamicTiles = true;
#endif
// Rows of a tile of D channels that a block streams: its registers hold the scores of one such tile beside one result of D channels (one_score),
// or of two beside two. resident: blocks that share a multiprocessor's. Host code takes the most.
struct StripSizes {
  int one_score, two_scores, resident;
};
#if defined(TE_VENDOR_HIP)
template <int D> inline constexpr StripSizes kSizes = {64, 64, 1};
#else
template <int D> inline constexpr StripSizes kSizes = kWgmma ? StripSizes{D, D == 64 ? 128 : 64, D == 64 ? 2 : 1} : StripSizes{64, D == 64 ? 64 : 32, 1};
#endif
TE_DEVICE constexpr int strip_slot(int e) { return e % 4 / kRun; }
TE_DEVICE int strip_column(int e) { return 8 * (e / 4) + run_start() + e % kRun; }

template <class T, int N> TE_DEVICE void pack_strip(unsigned (&w)[N / 4], const float (&s)[N / 2]) {
#pragma unroll
  for (int i = 0; i < N / 4; i++) w[i] = pack2<T>(s[2 * i], s[2 * i + 1]);
}

// ---- tiles: slabs of 64 columns, whose rows of 128 bytes hold their 16-byte chunks in an order that depends on the row, so that neither rows nor
// columns meet in a bank. Bases are aligned to 1024 bytes.

template <int Rows> TE_DEVICE int tile_chunk(int row, int chunk) { return ((chunk / 8 * Rows + row) * 8 + (chunk % 8 ^ row % 8)) * 8; }
template <int Rows> TE_DEVICE int tile_at(int row, int column) { return tile_chunk<Rows>(row, column / 8) + column % 8; }

// 16-bit rows in global memory: `stride` bytes apart, their numbers `unit`. What is past `rows` or `width` is 0 in a tile. Wide: the unit is 2, the
// width a multiple of 8, and everything aligned to 16 bytes; else numbers are moved one by one.
struct TileRows {
  char *base;
  int64_t stride, unit;
  int rows, width;
  TE_DEVICE char *at(int row, int column) const { return base + row * stride + column * unit; }
  template <bool Wide> TE_DEVICE uint4 get(int row, int column) const {
    if (row >= rows || column >= width) return uint4{0, 0, 0, 0};
    if constexpr (Wide) return *reinterpret_cast<const uint4 *>(at(row, column));
    unsigned w[4] = {};
#pragma unroll 1
    for (int i = 0; i < 8 && column + i < width; i++) {
      const unsigned x = *reinterpret_cast<const unsigned short *>(at(row, column + i));
#pragma unroll
      for (int k = 0; k < 4; k++) w[k] |= i / 2 == k ? x << 16 * (i % 2) : 0u;
    }
    return uint4{w[0], w[1], w[2], w[3]};
  }
  template <bool Wide> TE_DEVICE void put(int row, int column, const uint4 &x) const {
    if (row >= rows || column >= width) return;
    if constexpr (Wide) {
      store<4>(reinterpret_cast<unsigned *>(at(row, column)), pack<unsigned, 4>{{x.x, x.y, x.z, x.w}});
    } else {
      const unsigned w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int i = 0; i < 8; i++)
        if (column + i < width) *reinterpret_cast<unsigned short *>(at(row, column + i)) = (unsigned short)(w[i / 2] >> 16 * (i % 2));
    }
  }
};
// fetch() starts a copy, land() comes when nobody reads the tile any more, tiles_ready() when all have landed.
template <class T, int Rows, int D, bool Wide> struct TileCopy {
  static constexpr int kPerRow = D / 8, kStep = kStripThreads / kPerRow, kChunks = Rows / kStep;
#if defined(TE_VENDOR_HIP)
  uint4 r[kChunks];
#endif
  TE_DEVICE void fetch([[maybe_unused]] T *tile, const TileRows &x, int first) {
    const int row = (int)threadIdx.x / kPerRow, chunk = (int)threadIdx.x % kPerRow;
#if defined(TE_VENDOR_HIP)
#pragma unroll
    for (int i = 0; i < kChunks; i++) r[i] = x.template get<Wide>(first + row + i * kStep, chunk * 8);
#else
    if constexpr (!Wide) {
#pragma unroll 1
      for (int i = 0; i < kChunks; i++)
        *reinterpret_cast<uint4 *>(tile + tile_chunk<Rows>(row + i * kStep, chunk)) = x.template get<false>(first + row + i * kStep, chunk * 8);
      return;
    }
    const char *from = x.base + (first + row) * x.stride + chunk * 16;
#pragma unroll
    for (int i = 0; i < kChunks; i++, from += kStep * x.stride) {
      const bool in = first + row + i * kStep < x.rows && chunk * 8 < x.width;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(tile + tile_chunk<Rows>(row + i * kStep, chunk))),
                   "l"(from), "r"(in ? 16 : 0)  // of 0 bytes nothing is read
                   : "memory");
    }
#endif
  }
  TE_DEVICE void land([[maybe_unused]] T *tile) const {
#if defined(TE_VENDOR_HIP)
    const int row = (int)threadIdx.x / kPerRow, chunk = (int)threadIdx.x % kPerRow;
#pragma unroll
    for (int i = 0; i < kChunks; i++) *reinterpret_cast<uint4 *>(tile + tile_chunk<Rows>(row + i * kStep, chunk)) = r[i];
#endif
  }
};
TE_DEVICE void tiles_ready() {
#if !defined(TE_VENDOR_HIP)
  asm volatile("cp.async.wait_all;" ::: "memory");
#if defined(TE_WGMMA)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
#endif
  __syncthreads();
}
// What is infinite or NaN in this thread's share of a tile becomes 0 where kClean; returns whether there is any.
template <class T, int Rows, int D, bool kClean> TE_DEVICE bool not_finite(T *tile) {
  constexpr unsigned kTop = __is_same(T, bf16) ? 0x7f80u : 0x7c00u;  // exponent bits
  bool any = false;
#pragma unroll 1
  for (int i = (int)threadIdx.x; i < Rows * D / 8; i += kStripThreads) {
    const uint4 x = reinterpret_cast<const uint4 *>(tile)[i];
    unsigned w[4] = {x.x, x.y, x.z, x.w};
    bool here = false;
#pragma unroll
    for (unsigned &v : w) {
      const bool low = (v & kTop) == kTop, high = (v >> 16 & kTop) == kTop;
      here |= low || high;
      if (kClean) v &= (low ? 0xffff0000u : ~0u) & (high ? 0xffffu : ~0u);
    }
    any |= here;
    if (kClean && here) reinterpret_cast<uint4 *>(tile)[i] = uint4{w[0], w[1], w[2], w[3]};
  }
  return any;
}

// ---- products. They start in order; products_done<n>() waits for all but the last n and hands over the results it names. Until then nobody
// touches a result, a packed operand or a tile of theirs.

// The strip of each wave as left operand, from a tile of kStripBlock rows.
template <class T, int D> struct StripRows {
#if defined(TE_VENDOR_HIP)
  uint4 r[D / 16];
  TE_DEVICE void load(const T *tile) {
#pragma unroll
    for (int t = 0; t < D / 16; t++)
      r[t] = *reinterpret_cast<const uint4 *>(tile + tile_chunk<kStripBlock>(wave() * kStripRows + lane() % 32, 2 * t + lane() / 32));
  }
#else
  const T *tile;
  TE_DEVICE void load(const T *from) { tile = from; }
#endif
};

#if defined(TE_VENDOR_HIP)

// s = A B^T over D channels; the N rows of the tile b are the columns of s.
template <class T, int N, int D> TE_DEVICE void multiply_rows(float (&s)[N / 2], const StripRows<T, D> &a, const T *b) {
#pragma unroll
  for (int n = 0; n < N / 32; n++) {
    te_f32x16 c = {};
#pragma unroll
    for (int t = 0; t < D / 16; t++)
      c = mfma_32x32(*reinterpret_cast<const uint4 *>(b + tile_chunk<N>(n * 32 + lane() % 32, 2 * t + lane() / 32)), a.r[t], c, T{});
#pragma unroll
    for (int i = 0; i < 16; i++) s[n * 16 + i] = c[i];
  }
}
// Column of a result of multiply_columns: a lane reads D / 32 neighbours of a row at once, each of which goes to a product of its own.
template <int D> TE_DEVICE int result_column(int e) { return (8 * (e % 16 / 4) + 4 * (lane() / 32) + e % 4) * (D / 32) + e / 16; }
// o += W B, the packed strip w [., K] times the tile b [K, D].
template <class T, int D, int K> TE_DEVICE void multiply_columns(float (&o)[D / 2], const unsigned (&w)[K / 4], const T *b) {
  constexpr int kParts = D / 32;
  te_f32x16 c[kParts];
#pragma unroll
  for (int p = 0; p < kParts; p++)
#pragma unroll
    for (int i = 0; i < 16; i++) c[p][i] = o[p * 16 + i];
#pragma unroll
  for (int t = 0; t < K / 16; t++) {
    pack<unsigned, kParts / 2> x[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
      x[i] = *reinterpret_cast<const pack<unsigned, kParts / 2> *>(b + tile_at<K>(t * 16 + i / 4 * 8 + lane() / 32 * 4 + i % 4, lane() % 32 * kParts));
#pragma unroll
    for (int p = 0; p < kParts; p++) {
      const unsigned select = p % 2 ? 0x07060302u : 0x05040100u;  // halves of two rows
      const auto two = [&](int i) { return __builtin_amdgcn_perm(x[i + 1].v[p / 2], x[i].v[p / 2], select); };
      c[p] = mfma_32x32(uint4{two(0), two(2), two(4), two(6)}, uint4{w[4 * t], w[4 * t + 1], w[4 * t + 2], w[4 * t + 3]}, c[p], T{});
    }
  }
#pragma unroll
  for (int p = 0; p < kParts; p++)
#pragma unroll
    for (int i = 0; i < 16; i++) o[p * 16 + i] = c[p][i];
}
// The results of multiply_columns, as T, into the block's rows from `first` on.
template <class T, int D, bool Wide> TE_DEVICE void store_strip(const TileRows &x, int first, const float (&o)[D / 2]) {
  constexpr int kParts = D / 32;
  const int row = first + wave() * kStripRows + strip_row(0);
#pragma unroll
  for (int g = 0; g < 4; g++)
#pragma unroll
    for (int h = 0; h < kParts / 2; h++) {  // 8 columns: elements 8 / kParts of each part
      const auto two = [&](int i) {
        const auto at = [&](int k) { return o[k % kParts * 16 + g * 4 + h * (8 / kParts) + k / kParts]; };
        return pack2<T>(at(2 * i), at(2 * i + 1));
      };
      x.template put<Wide>(row, (8 * g + 4 * (lane() / 32)) * kParts + h * 8, uint4{two(0), two(1), two(2), two(3)});
    }
}

#else

template <int D> TE_DEVICE int result_column(int e) { return strip_column(e); }
template <class T, int D, bool Wide> TE_DEVICE void store_strip(const TileRows &x, int first, const float (&o)[D / 2]) {
  const bool odd = lane() % 2, upper = lane() / 2 % 2;
  const auto exchange = [](unsigned &a, unsigned &b, bool second, int mask) {  // a of the second for b of the first
    const unsigned got = shfl_xor(second ? a : b, mask);
    (second ? a : b) = got;
  };
#pragma unroll
  for (int slot = 0; slot < kStripSlots; slot++)
#pragma unroll
    for (int g = 0; g < D / 8; g += 4) {  // four lanes share a row: each gathers a group of the four
      unsigned w[4];
#pragma unroll
      for (int i = 0; i < 4; i++) w[i] = pack2<T>(o[4 * (g + i) + 2 * slot], o[4 * (g + i) + 2 * slot + 1]);
      exchange(w[0], w[1], odd, 1), exchange(w[2], w[3], odd, 1);
      exchange(w[0], w[2], upper, 2), exchange(w[1], w[3], upper, 2);
      x.template put<Wide>(first + wave() * kStripRows + strip_row(slot), 8 * (g + lane() % 4), uint4{w[0], w[1], w[2], w[3]});
    }
}

#if defined(TE_WGMMA)

TE_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TE_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> TE_DEVICE void products_done() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
template <int N> TE_DEVICE void hold(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; i += 8)
    asm volatile("" : "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3]), "+f"(x[i + 4]), "+f"(x[i + 5]), "+f"(x[i + 6]), "+f"(x[i + 7])::"memory");
}
// The compiler does not know that results arrive late: nothing may move above this.
template <int N, int M, class... More> TE_DEVICE void products_done(float (&first)[M], More &...more) {
  products_done<N>();
  hold(first);
  (hold(more), ...);
}
// The assembler lets waits and barriers overtake arithmetic, which would then run after the products instead of beside them. A store of all
// its results, which never happens, keeps them back.
template <int N> TE_DEVICE void finish_first(const float (&x)[N], bool never) {
  unsigned all = 0;
#pragma unroll
  for (int i = 0; i < N; i++) all ^= bits(x[i]);
  asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; @p st.shared.u32 [%2], %0;}" ::"r"(all), "r"((unsigned)never), "r"(0) : "memory");
}
// A tile to the tensor core: its address, the distance of slabs (only where columns are the result's) and of 8 rows. Made anew at each use: all
// steps' operands would be kept in registers.
struct WgmmaOperand {
  unsigned low;
  TE_DEVICE WgmmaOperand(const void *p, int slab) : low(((unsigned)__cvta_generic_to_shared(p) & 0x3ffffu) >> 4 | (unsigned)(slab >> 4) << 16) { opaque(low); }
  TE_DEVICE unsigned long long at(int bytes) const { return (unsigned long long)(low + (unsigned)(bytes >> 4)) | (64ull | 1ull << 30) << 32; }
};
#define TE_F4(x, i) "+f"(x[i]), "+f"(x[(i) + 1]), "+f"(x[(i) + 2]), "+f"(x[(i) + 3])
#define TE_F16(x, i) TE_F4(x, i), TE_F4(x, (i) + 4), TE_F4(x, (i) + 8), TE_F4(x, (i) + 12)
#define TE_F32(x) TE_F16(x, 0), TE_F16(x, 16)
#define TE_F64(x) TE_F32(x), TE_F16(x, 32), TE_F16(x, 48)
#define TE_NAMES32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" 
#define TE_NAMES64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63" 
// c[64 rows of four waves, n] = (clear ? 0 : c) + A B. A in shared memory: B's k is contiguous; A in registers: B's columns are. o0.. are the
// operands' numbers.
#define TE_WGMMA_WORDS(n, type, names, floats, o0, o1, o2, o3, o4)                                                                                      \
  TE_DEVICE void wgmma(float(&c)[n / 2], unsigned long long a, unsigned long long b, bool clear, type) {                                         \
    asm volatile("{.reg .pred p; setp.eq.u32 p, %" #o2 ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type                \
                 " {" names "}, %" #o0 ", %" #o1 ", p, 1, 1, 0, 0;}"                                                                             \
                 : floats(c)                                                                                                                     \
                 : "l"(a), "l"(b), "r"((unsigned)clear));                                                                                        \
  }                                                                                                                                              \
  TE_DEVICE void wgmma(float(&c)[n / 2], const unsigned *a, unsigned long long b, type) {                                                        \
    asm volatile("{.reg .pred p; .reg .u32 z; mov.u32 z, 0; setp.eq.u32 p, z, 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type \
                 " {" names "}, {%" #o0 ", %" #o1 ", %" #o2 ", %" #o3 "}, %" #o4 ", p, 1, 1, 1;}"                                                \
                 : floats(c)                                                                                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                                          \
  }
TE_WGMMA_WORDS(64, bf16, TE_NAMES32, TE_F32, 32, 33, 34, 35, 36)
TE_WGMMA_WORDS(64, f16, TE_NAMES32, TE_F32, 32, 33, 34, 35, 36)
TE_WGMMA_WORDS(128, bf16, TE_NAMES64, TE_F64, 64, 65, 66, 67, 68)
TE_WGMMA_WORDS(128, f16, TE_NAMES64, TE_F64, 64, 65, 66, 67, 68)
#undef TE_WGMMA_WORDS

template <class T, int N, int D> TE_DEVICE void multiply_rows(float (&s)[N / 2], const StripRows<T, D> &a, const T *b) {
  const WgmmaOperand left(a.tile + shfl(wave() / 4, 0) * 64 * 64, 16), right(b, 16);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < D; k += 16)
    wgmma(s, left.at(k / 64 * kStripBlock * 128 + k % 64 * 2), right.at(k / 64 * N * 128 + k % 64 * 2), k == 0, T{});
  wgmma_commit();
}
template <class T, int D, int K> TE_DEVICE void multiply_columns(float (&o)[D / 2], const unsigned (&w)[K / 4], const T *b) {
  const WgmmaOperand right(b, K * 128);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < K; k += 16) wgmma(o, w + k / 4, right.at(k * 128), T{});
  wgmma_commit();
}

#else

template <class T, int N, int D> TE_DEVICE void multiply_rows(float (&s)[N / 2], const StripRows<T, D> &a, const T *b) {
#pragma unroll
  for (int i = 0; i < N / 2; i++) s[i] = 0.f;
#pragma unroll
  for (int k = 0; k < D; k += 16) {
    FragmentA<T> x;
    load_matrices(x.r, a.tile + tile_at<kStripBlock>(wave() * 16 + lane() % 16, k + lane() / 16 * 8));
#pragma unroll
    for (int n = 0; n < N; n += 16) {
      unsigned y[4];
      load_matrices(y, b + tile_at<N>(n + lane() % 8 + lane() / 16 * 8, k + lane() / 8 % 2 * 8));
      mma_m16n8k16(s + n / 2, x.r, y, T{});
      mma_m16n8k16(s + n / 2 + 4, x.r, y + 2, T{});
    }
  }
}
template <class T, int D, int K> TE_DEVICE void multiply_columns(float (&o)[D / 2], const unsigned (&w)[K / 4], const T *b) {
#pragma unroll
  for (int k = 0; k < K; k += 16)
#pragma unroll
    for (int n = 0; n < D; n += 16) {
      unsigned y[4];
      load_transposed(y, b + tile_at<K>(k + lane() % 16, n + lane() / 16 * 8));
      mma_m16n8k16(o + n / 2, w + k / 4, y, T{});
      mma_m16n8k16(o + n / 2 + 4, w + k / 4, y + 2, T{});
    }
}

#endif
#endif

#if !defined(TE_WGMMA)
template <int N> TE_DEVICE void finish_first(const float (&)[N], bool) {}
template <int N> TE_DEVICE void products_done() {}
template <int N, int M, class... More> TE_DEVICE void products_done(float (&)[M], More &...) {}
#endif

}  // namespace te::device
