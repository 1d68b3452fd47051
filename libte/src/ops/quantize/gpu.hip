// SPDX-License-Identifier: Apache-2.0
// nvte_quantize on GPUs: one pass whatever the orientations. A block owns a tile of kTile x kTile numbers; a thread holds 8 x 8 of them, so
// eight 16-byte loads (bf16) are in flight, rows leave in 8-byte pieces that fill whole sectors, and the transpose goes through an
// XOR-swizzled tile in shared memory that both sides touch without bank conflicts.
#include "gpu/device/rows.h"
#include "gpu/quantized.h"

namespace te {
namespace {
using namespace device;
using gpu::Quantised;

constexpr int kTile = 128, kThreads = 256, kSub = 8;
static_assert(kTile / kSub * (kTile / kSub) == kThreads, "one 8 x 8 piece a thread");

template <class Q> __device__ __forceinline__ uint2 encode8(const float (&x)[8]) {
  return uint2{pack4<Q>(x[0], x[1], x[2], x[3]), pack4<Q>(x[4], x[5], x[6], x[7])};
}

// The codes of an 8 x 8 piece, transposed: byte r of out[c] is byte c of in[r].
__device__ __forceinline__ void transpose8x8(const uint2 (&in)[8], uint2 (&out)[8]) {
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

// Where column sums go: part [row tiles, columns] to be added up by another launch, or, where one row of tiles is all, out.
struct Sums {
  float *part;
  char *out;
  DType dtype;
};

// Full: the tile lies inside and everything is aligned for wide accesses.
template <class T, class Q, bool Full> __device__ __forceinline__ float tile(
    const T *__restrict__ x, const Rows &rows, Q *__restrict__ y, Q *__restrict__ yt, int64_t m, int64_t k, float scale, const Sums &to,
    int64_t row0, int64_t col0, unsigned char *shared) {
  const int cg = (int)threadIdx.x % 16, rg = (int)threadIdx.x / 16;
  const int64_t r0 = row0 + rg * kSub, c0 = col0 + cg * kSub;
  float v[8][8];
#pragma unroll
  for (int r = 0; r < 8; r++) {
    if constexpr (Full) {
      load_f32<8>(x + (r0 + r) * rows.stride + c0, v[r]);
    } else {
      const T *line = x + (r0 + r < m ? rows(r0 + r) : 0) + c0;
#pragma unroll
      for (int c = 0; c < 8; c++) v[r][c] = r0 + r < m && c0 + c < k ? to_f32(line[c]) : 0.f;
    }
  }
  float amax = 0.f;
  float sums[8] = {};
  const bool adds = to.part || to.out;
  uint2 codes[8];
#pragma unroll
  for (int r = 0; r < 8; r++) {
    float s[8];
#pragma unroll
    for (int c = 0; c < 8; c++) {
      amax = fmaxf(amax, fabsf(v[r][c]));
      if (adds) sums[c] += v[r][c];
      s[c] = v[r][c] * scale;
    }
    codes[r] = encode8<Q>(s);
    if (y) {
      if constexpr (Full) {
        *reinterpret_cast<uint2 *>(reinterpret_cast<unsigned char *>(y) + (r0 + r) * k + c0) = codes[r];
      } else if (r0 + r < m) {
#pragma unroll
        for (int c = 0; c < 8; c++)
          if (c0 + c < k) y[(r0 + r) * k + c0 + c].b = (unsigned char)((c < 4 ? codes[r].x : codes[r].y) >> 8 * (c & 3));
      }
    }
  }
  if (yt) {
    uint2 t[8];
    transpose8x8(codes, t);
#pragma unroll
    for (int c = 0; c < 8; c++) *reinterpret_cast<uint2 *>(shared + (cg * 8 + c) * kTile + ((rg ^ cg) * 8)) = t[c];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int column = i * 32 + (int)threadIdx.x / 8, pair = (int)threadIdx.x % 8, key = column / 8;
      uint4 w = *reinterpret_cast<const uint4 *>(shared + column * kTile + ((2 * pair) ^ (key & ~1)) * 8);
      if (key & 1) w = uint4{w.z, w.w, w.x, w.y};
      unsigned char *out = reinterpret_cast<unsigned char *>(yt) + (col0 + column) * m + row0 + pair * 16;
      if constexpr (Full) {
        *reinterpret_cast<uint4 *>(out) = w;
      } else if (col0 + column < k) {
        const unsigned words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int b = 0; b < 16; b++)
          if (row0 + pair * 16 + b < m) out[b] = (unsigned char)(words[b / 4] >> 8 * (b % 4));
      }
    }
  }
  if (adds) {  // the 16 threads above one another, in order
    float *s = reinterpret_cast<float *>(shared);
    __syncthreads();
#pragma unroll
    for (int c = 0; c < 8; c++) s[rg * kTile + cg * 8 + c] = sums[c];
    __syncthreads();
    if (threadIdx.x < kTile && col0 + threadIdx.x < k) {
      float total = 0.f;
#pragma unroll
      for (int r = 0; r < 16; r++) total += s[r * kTile + threadIdx.x];
      const int64_t column = col0 + threadIdx.x;
      if (to.part) to.part[row0 / kTile * k + column] = total;
      else if (to.dtype == DType::f32) reinterpret_cast<float *>(to.out)[column] = total;
      else if (to.dtype == DType::bf16) reinterpret_cast<bf16 *>(to.out)[column] = from_f32<bf16>(total);
      else reinterpret_cast<f16 *>(to.out)[column] = from_f32<f16>(total);
    }
  }
  return amax;
}

template <class T, class Q> __global__ void __launch_bounds__(kThreads, sizeof(T) == 2 ? 3 : 1) quantize_kernel(
    const T *__restrict__ x, Rows rows, Q *__restrict__ y, Q *__restrict__ yt, int64_t m, int64_t k, bool wide, Quantised q,
    Sums to, const float *__restrict__ noop) {
  __shared__ __align__(16) unsigned char shared[kTile * kTile];
  if (noop && *noop == 1.f) return;
  const float scale = gpu::scale_of(q);
  const int64_t row0 = (int64_t)blockIdx.y * kTile, col0 = (int64_t)blockIdx.x * kTile;
  float amax;
  if (wide && row0 + kTile <= m && col0 + kTile <= k) amax = tile<T, Q, true>(x, rows, y, yt, m, k, scale, to, row0, col0, shared);
  else amax = tile<T, Q, false>(x, rows, y, yt, m, k, scale, to, row0, col0, shared);
  gpu::finish<kThreads>(q, amax, (int)(blockIdx.y * gridDim.x + blockIdx.x), 0);
}

// Plain casts between f32, f16 and bf16; amax is of the stored value.
template <class T, class Q> __global__ void __launch_bounds__(kThreads) cast_kernel(
    const T *__restrict__ x, Rows rows, Q *__restrict__ y, int64_t m, int64_t k, Quantised q, const float *__restrict__ noop) {
  if (noop && *noop == 1.f) return;
  float amax = 0.f;
  for (int64_t i = (int64_t)blockIdx.x * kThreads + threadIdx.x; i < m * k; i += (int64_t)gridDim.x * kThreads) {
    const Q v = from_f32<Q>(to_f32(x[rows(i / k) + i % k]));
    y[i] = v;
    amax = fmaxf(amax, fabsf(to_f32(v)));
  }
  gpu::finish<kThreads>(q, amax, (int)blockIdx.x, 0);
}

// Column sums of row tiles, for casts.
template <class T> __global__ void __launch_bounds__(kThreads) tile_sums(const T *__restrict__ x, Rows rows, int64_t m, int64_t k, float *__restrict__ part,
                                                                         const float *__restrict__ noop) {
  const int64_t j = (int64_t)blockIdx.x * kThreads + threadIdx.x, first = (int64_t)blockIdx.y * kTile;
  if (j >= k || (noop && *noop == 1.f)) return;
  float sum = 0.f;
  for (int64_t i = first; i < first + kTile && i < m; i++) sum += to_f32(x[rows(i) + j]);
  part[blockIdx.y * k + j] = sum;
}

struct Shape {
  int64_t m, k, tiles_m, tiles_k;
  int blocks;
  explicit Shape(const nvte_quantize_args &a) : m(rows(a.x->data)), k(columns(a.x->data)) {
    tiles_m = gpu::ceil_div(m, kTile), tiles_k = gpu::ceil_div(k, kTile);
    blocks = (int)(tiles_m * tiles_k);
  }
};

const char *refuse(const nvte_exec *, const void *p) {
  const auto &a = *static_cast<const nvte_quantize_args *>(p);
  if (te::rows(a.x->data) > (int64_t)65535 * kTile) return "x has more than 8388480 rows";
  return nullptr;
}

nvte_status workspace(const nvte_exec *, const void *p, size_t *bytes) {
  const auto &a = *static_cast<const nvte_quantize_args *>(p);
  const Shape s(a);
  *bytes = 256 + sizeof(float) * ((size_t)(s.blocks > 4096 ? s.blocks : 4096) + (a.dbias ? (size_t)(s.tiles_m * s.k) : 0));
  return NVTE_OK;
}

nvte_status run(const nvte_exec *e, const void *p) {
  const auto &a = *static_cast<const nvte_quantize_args *>(p);
  return gpu::guarded(e, [&]() -> nvte_status {
    const Shape s(a);
    const float *noop = a.noop ? address_as<const float>(a.noop->data) : nullptr;
    auto *space = static_cast<float *>(e->workspace);
    const DType in = dtype_of(a.x->data.dtype), out = dtype_of(present(a.y->data) ? a.y->data.dtype : a.y->columnwise.dtype);
    // an empty x still sets scale_inv, amax and dbias: one block that finds nothing inside
    const int64_t need = is_fp8(out) ? s.blocks : gpu::ceil_div(s.m * s.k, kThreads);
    const int blocks = (int)(need < 1 ? 1 : is_fp8(out) || need < 4096 ? need : 4096);
    const bool direct = a.dbias && is_fp8(out) && s.tiles_m == 1 && s.blocks;
    float *part = a.dbias && !direct ? space + (s.blocks > 4096 ? s.blocks : 4096) : nullptr;
    const Sums to = {s.blocks ? part : nullptr, direct ? address_as<char>(a.dbias->data) : nullptr, a.dbias ? dtype_of(a.dbias->data.dtype) : DType::f32};
    Quantised q;
    nvte_status status = gpu::prepare(*e, *a.y, blocks, space, &q, a.noop);
    if (status != NVTE_OK) return status;
    const Rows lines = rows_of(a.x->data);
    gpu::visit_float(in, [&](auto t) {
      using T = decltype(t);
      const T *x = address_as<const T>(a.x->data);
      if (is_fp8(out)) {
        gpu::visit_fp8(out, [&](auto c) {
          using Q = decltype(c);
          Q *y = present(a.y->data) ? address_as<Q>(a.y->data) : nullptr, *yt = present(a.y->columnwise) ? address_as<Q>(a.y->columnwise) : nullptr;
          const bool wide = gpu::aligned(x, 16) && lines.n == 0 && lines.stride % (16 / (int64_t)sizeof(T)) == 0 && (!y || (gpu::aligned(y, 8) && s.k % 8 == 0)) &&
                            (!yt || (gpu::aligned(yt, 16) && s.m % 16 == 0));
          const dim3 grid((unsigned)(s.tiles_k > 0 ? s.tiles_k : 1), (unsigned)(s.tiles_m > 0 ? s.tiles_m : 1));
          quantize_kernel<T, Q><<<grid, kThreads, 0, gpu::stream_of(*e)>>>(x, lines, y, yt, s.m, s.k, wide, q, to, noop);
        });
      } else {
        gpu::visit_float(out, [&](auto c) {
          using Q = decltype(c);
          cast_kernel<T, Q><<<blocks, kThreads, 0, gpu::stream_of(*e)>>>(x, lines, address_as<Q>(a.y->data), s.m, s.k > 0 ? s.k : 1, q, noop);
        });
        if (part && s.blocks) tile_sums<T><<<dim3((unsigned)gpu::ceil_div(s.k, kThreads), (unsigned)s.tiles_m), kThreads, 0, gpu::stream_of(*e)>>>(x, lines, s.m, s.k, part, noop);
      }
    });
    if ((status = gpu::launched("quantize")) != NVTE_OK) return status;
    if ((status = gpu::finish_amax(*e, *a.y, q, blocks, noop)) != NVTE_OK || !part) return status;
    return gpu::sum_columns(*e, part, s.tiles_m, s.k, a.dbias->data, noop);
  });
}

const nvte_implementation table[] = {{sizeof(nvte_implementation), "quantize", "gpu", 0, 0, refuse, workspace, run}};
}  // namespace
namespace gpu {
TE_GPU_IMPLEMENTATIONS(quantize) = {table, 1};
}
}  // namespace te
