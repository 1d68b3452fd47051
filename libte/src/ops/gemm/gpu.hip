// SPDX-License-Identifier: Apache-2.0
// nvte_gemm by a kernel of our own: every dtype, layout, size and epilogue, for whatever the vendor's library refuses. fp8 numbers are
// widened to bf16 (which holds every one of them), f32 is f32 all the way, and sums of 16-bit products are moved out of the matrix unit
// every kPromote numbers, because it may truncate where an addition rounds.
#include "gpu/device/activation.h"
#include "gpu/device/tile.h"
#include "gpu/quantized.h"
#include "ops/gemm/gpu.h"

namespace te {
namespace {
using namespace device;
using gpu::Quantised;
using Operand = Source<Rows>;

constexpr int kTile = 128, kThreads = 256, kPromote = 128;
template <class T> constexpr int kTileK = 64 / (int)sizeof(T);
constexpr int kWavesM = 2, kWaves = kThreads / kWave, kWaveM = kTile / kWavesM, kWaveN = kTile / (kWaves / kWavesM);

// A matrix that the epilogue reads or writes.
struct Matrix {
  char *base;
  DType dtype;
  Rows rows;
};

struct Call {
  Operand a, b;
  int64_t m, n, k, tiles_m, tiles_n;
  float alpha, beta;
  const float *scale_a, *scale_b;  // absent: 1
  Matrix d, columnwise, c, aux;    // no base: absent. columnwise is [N, M]
  const char *bias;
  DType bias_dtype;
  bool gelu, dgelu;
  float *sums;  // DGELU with dbias: column sums a row of tiles, [tiles_m, N]
  Quantised q;
};

// `count` sums of one column, `step` apart, become elements of D from `row` on.
constexpr int kSlab = kWaveN + 4;
static_assert(kWaveN == kWave, "a lane owns a column of the wave's tile");
__device__ __forceinline__ void finish_rows(const Call &g, const float *sums, int64_t step, int64_t row, int count, int64_t column, double factor, float scale,
                                            float &amax, float &down) {
  const DType t = g.d.dtype;
  const bool fp8 = t >= DType::e4m3;
  const float bias = g.bias ? load_one(g.bias, g.bias_dtype, column) : 0.f;
#pragma unroll 1
  for (int i = 0; i < count; i++) {
    float v = sums[i * step];
    // in double: the three factors may leave f32's range on the way to a result that does not
    if (factor != 1.0) v = (float)((double)v * factor);
    if (g.c.base) v += g.beta * load_one(g.c.base, g.c.dtype, g.c.rows(row + i) + column);
    if (g.bias) v += bias;
    if (g.gelu) {
      if (g.aux.base) store_one(g.aux.base, g.aux.dtype, g.aux.rows(row + i) + column, v);
      v = Gelu::value(v);
    }
    if (g.dgelu) v *= Gelu::both(load_one(g.aux.base, g.aux.dtype, g.aux.rows(row + i) + column)).slope;
    const float x = fp8 ? v * scale : v;
    float stored = x;
    if (g.d.base) stored = store_one(g.d.base, t, g.d.rows(row + i) + column, x);
    if (g.columnwise.base) stored = store_one(g.columnwise.base, t, g.columnwise.rows(column) + row + i, x);
    amax = fmaxf(amax, fabsf(fp8 ? v : stored));
    down += v;
  }
}

template <class T> __global__ void __launch_bounds__(kThreads) gemm_kernel(Call all) {
  const Call &g = all;
  constexpr int kK = kTileK<T>, kLd = padded<T>(kK), kM = kWaveM / 16, kN = kWaveN / 16;
  using Load = Loader<T, kTile, kK, kThreads, true>;
  __shared__ __align__(16) T tiles[2][2][kTile * kLd];
  // 8 tiles down share the columns of B in the cache
  int64_t tile_m = 0, tile_n = 0;
  if (g.tiles_m > 0 && g.tiles_n > 0) {
    const int64_t id = (int64_t)blockIdx.x, band = 8 * g.tiles_n, first = id / band * 8, height = g.tiles_m - first < 8 ? g.tiles_m - first : 8;
    tile_m = first + id % band % height, tile_n = id % band / height;
  }
  const int64_t m0 = tile_m * kTile, n0 = tile_n * kTile;
  const int wave_m = wave() % kWavesM, wave_n = wave() / kWavesM;
  Piece sum[kM][kN];
  clear(sum);
  if (g.k > 0) {
    Load a, b;
    a.load(g.a, m0, 0);
    b.load(g.b, n0, 0);
    a.template store<false>(g.a, tiles[0][0], kLd);
    b.template store<false>(g.b, tiles[0][1], kLd);
    __syncthreads();
    const auto multiply = [&](Piece(&to)[kM][kN], int which) {
      product<T, kWaveM, kWaveN, kK>(to, tiles[which][0] + wave_m * kWaveM * kLd, kLd, tiles[which][1] + wave_n * kWaveN * kLd, kLd);
    };
    [[maybe_unused]] Piece part[kM][kN];
    if constexpr (sizeof(T) == 2) clear(part);
    const int64_t steps = (g.k + kK - 1) / kK;
    for (int64_t t = 0; t < steps; t++) {
      const Call &g = again(all);
      const int now = (int)(t & 1);
      if (t + 1 < steps) {
        a.load(g.a, m0, (t + 1) * kK);
        b.load(g.b, n0, (t + 1) * kK);
      }
      if constexpr (sizeof(T) == 4) {
        multiply(sum, now);
      } else {
        multiply(part, now);
        if ((t + 1) % (kPromote / kK) == 0 || t + 1 == steps) {
#pragma unroll
          for (int i = 0; i < kM; i++)
#pragma unroll
            for (int j = 0; j < kN; j++)
#pragma unroll
              for (int e = 0; e < kPiece; e++) sum[i][j].v[e] += part[i][j].v[e], part[i][j].v[e] = 0.f;
        }
      }
      if (t + 1 < steps) {
        a.template store<false>(g.a, tiles[now ^ 1][0], kLd);
        b.template store<false>(g.b, tiles[now ^ 1][1], kLd);
      }
      __syncthreads();
    }
  }
  const double factor = (double)g.alpha * (g.scale_a ? *g.scale_a : 1.f) * (g.scale_b ? *g.scale_b : 1.f);
  const float scale = gpu::scale_of(g.q);
  // 16 rows at a time through shared memory, so that a lane owns a column and a wave writes whole rows
  float amax = 0.f, down = 0.f;
  float *const slab = reinterpret_cast<float *>(tiles) + wave() * 16 * kSlab;
  const int64_t column = n0 + wave_n * kWaveN + lane();
#pragma unroll
  for (int i = 0; i < kM; i++) {
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kN; j++)
#pragma unroll
      for (int e = 0; e < kPiece; e++) slab[piece_row(e) * kSlab + j * 16 + piece_column(e)] = sum[i][j].v[e];
    __syncthreads();
    const int64_t row = m0 + wave_m * kWaveM + i * 16;
    const Call &g = again(all);
    if (column < g.n) finish_rows(g, slab + lane(), kSlab, row, g.m - row < 16 ? (int)(g.m - row) : 16, column, factor, scale, amax, down);
  }
  if (g.sums) {  // columns of a tile: the waves above one another, in order
    float *share = reinterpret_cast<float *>(tiles);
    __syncthreads();
    share[wave_m * kTile + wave_n * kWaveN + lane()] = down;
    __syncthreads();
    if (threadIdx.x < kTile && n0 + threadIdx.x < g.n) {
      float total = 0.f;
#pragma unroll
      for (int w = 0; w < kWavesM; w++) total += share[w * kTile + threadIdx.x];
      g.sums[tile_m * g.n + n0 + threadIdx.x] = total;
    }
  }
  gpu::finish<kThreads>(g.q, amax, (int)blockIdx.x);
}

// The same from sums in memory: a tile a block, half of its rows a thread.
__global__ void __launch_bounds__(kThreads) finish_kernel(Call all, const float *sums) {
  const Call &g = all;
  __shared__ float share[2][kTile];
  const int64_t tile_m = g.tiles_n > 0 ? (int64_t)blockIdx.x / g.tiles_n : 0, tile_n = g.tiles_n > 0 ? (int64_t)blockIdx.x % g.tiles_n : 0;
  const int half = (int)threadIdx.x / kTile, x = (int)threadIdx.x % kTile;
  const int64_t row = tile_m * kTile + half * (kTile / 2), column = tile_n * kTile + x;
  const double factor = (double)g.alpha * (g.scale_a ? *g.scale_a : 1.f) * (g.scale_b ? *g.scale_b : 1.f);
  float amax = 0.f, down = 0.f;
  if (column < g.n && row < g.m) {
    const Call &g = again(all);
    const int count = g.m - row < kTile / 2 ? (int)(g.m - row) : kTile / 2;
    finish_rows(g, sums + row * g.n + column, g.n, row, count, column, factor, gpu::scale_of(g.q), amax, down);
  }
  if (g.sums) {
    share[half][x] = down;
    __syncthreads();
    if (half == 0 && column < g.n) g.sums[tile_m * g.n + column] = share[0][x] + share[1][x];
  }
  gpu::finish<kThreads>(g.q, amax, (int)blockIdx.x);
}

// ---- dbias of a weight gradient: sums of op(A) over k ----

constexpr int64_t kSumBlock = 1024;  // k of a partial sum where k is strided
inline int64_t sum_parts(const Operand &a) { return a.k_unit ? 1 : gpu::ceil_div(a.k, kSumBlock); }

__global__ void __launch_bounds__(kThreads) row_sums(Operand a, const float *scale, float *out) {
  const int64_t m = (int64_t)blockIdx.x, at = a.rows(m);
  float s = 0.f;
  for (int64_t k = threadIdx.x; k < a.k; k += kThreads) s += load_one(a.base, a.dtype, at + k * a.unit);
  s = block_reduce<kThreads>(s, Add{}, 0.f);
  if (threadIdx.x == 0) out[m] = scale ? s * *scale : s;
}
__global__ void __launch_bounds__(kThreads) column_sums(Operand a, const float *scale, float *out) {
  __shared__ float share[kThreads / 32][32];
  const int tx = (int)threadIdx.x % 32, ty = (int)threadIdx.x / 32;
  const int64_t m = (int64_t)blockIdx.x * 32 + tx, k0 = (int64_t)blockIdx.y * kSumBlock, end = k0 + kSumBlock < a.k ? k0 + kSumBlock : a.k;
  float s = 0.f;
  if (m < a.n)
    for (int64_t k = k0 + ty; k < end; k += kThreads / 32) s += load_one(a.base, a.dtype, a.rows(k) + m * a.unit);
  share[ty][tx] = s;
  __syncthreads();
  if (ty != 0 || m >= a.n) return;
  s = 0.f;
#pragma unroll
  for (int i = 0; i < kThreads / 32; i++) s += share[i][tx];
  out[(int64_t)blockIdx.y * a.n + m] = scale ? s * *scale : s;
}

// ---- host ----

bool given(const nvte_tensor *t) { return t && present(t->data) && numel(t->data) > 0; }

// `k_last`: k is the last dimension of the logical shape. The columnwise part is the physical transpose.
Operand source(const nvte_tensor &t, bool k_last, const float **scale) {
  const bool transposed = !present(t.data) && present(t.columnwise);
  const DLTensor &d = transposed ? t.columnwise : t.data;
  const DLTensor &s = transposed && present(t.columnwise_scale_inv) ? t.columnwise_scale_inv : t.scale_inv;
  *scale = t.scaling == NVTE_SCALING_TENSOR && present(s) ? address_as<const float>(s) : nullptr;
  Operand r = {present(d) ? address_as<const char>(d) : nullptr, dtype_of(d.dtype), k_last != transposed, false, rows(t.data), columns(t.data), 1, rows_of(d)};
  if (!k_last) r.n = columns(t.data), r.k = rows(t.data);
  const int64_t bytes = element_bytes(d), unit = bytes == 1 ? 8 : 16;  // 8 codes of fp8 become 8 numbers of 16 bits
  r.wide = gpu::aligned(r.base, (size_t)unit) && (r.rows.n > 0 || r.rows.stride * bytes % unit == 0);
  for (int i = 0; i < r.rows.n; i++) r.wide = r.wide && r.rows.step[i] * bytes % unit == 0;
  return r;
}
Matrix matrix(const DLTensor &t) {
  return present(t) ? Matrix{address_as<char>(t), dtype_of(t.dtype), rows_of(t)} : Matrix{nullptr, dtype_of(t.dtype), {}};
}
Matrix matrix(const nvte_tensor *t) { return given(t) ? matrix(t->data) : Matrix{}; }

struct Space {
  int64_t blocks, amax, sums;  // floats of workspace: block maxima, partial sums of dbias
  explicit Space(const nvte_gemm_args &a) {
    const float *ignored;
    const Operand s = source(*a.a, !(a.flags & NVTE_GEMM_TRANS_A), &ignored);
    const int64_t n = columns(a.d->data), tiles_m = gpu::ceil_div(s.n, kTile), tiles = tiles_m * gpu::ceil_div(n, kTile);
    blocks = tiles > 0 ? tiles : 1;
    amax = present(a.d->amax) ? (blocks + 63) / 64 * 64 : 0;
    sums = !given(a.dbias) ? 0 : a.flags & NVTE_GEMM_DGELU ? tiles_m * n : sum_parts(s) * s.n;
  }
};

const char *refuse(const nvte_exec *, const void *p) {
  return Space(*static_cast<const nvte_gemm_args *>(p)).blocks > INT32_MAX ? "d has more than 2^31 - 1 tiles of 128 x 128" : nullptr;
}

nvte_status workspace(const nvte_exec *, const void *p, size_t *bytes) {
  const Space s(*static_cast<const nvte_gemm_args *>(p));
  *bytes = sizeof(float) * (size_t)(s.amax + s.sums);
  return NVTE_OK;
}

nvte_status sum_operand(const nvte_exec &e, const Operand &a, const float *scale, float *part, const DLTensor &out) {
  const int64_t parts = sum_parts(a);
  if (a.k_unit) row_sums<<<(unsigned)a.n, kThreads, 0, gpu::stream_of(e)>>>(a, scale, part);
  else if (parts > 0) column_sums<<<dim3((unsigned)gpu::ceil_div(a.n, 32), (unsigned)parts), kThreads, 0, gpu::stream_of(e)>>>(a, scale, part);
  if (const nvte_status s = gpu::launched("gemm dbias")) return s;
  return gpu::sum_columns(e, part, parts, a.n, out);
}

// Fills g and, around launch(blocks), does what is left: dbias, amax.
template <class F> nvte_status with_call(const nvte_exec &e, const nvte_gemm_args &a, void *memory, F &&launch) {
  const Space space(a);
  Call g = {};
  g.a = source(*a.a, !(a.flags & NVTE_GEMM_TRANS_A), &g.scale_a);
  g.b = source(*a.b, a.flags & NVTE_GEMM_TRANS_B, &g.scale_b);
  g.m = g.a.n, g.n = g.b.n, g.k = g.a.k;
  g.tiles_m = gpu::ceil_div(g.m, kTile), g.tiles_n = gpu::ceil_div(g.n, kTile);
  g.alpha = a.alpha, g.beta = a.beta;
  g.d = matrix(a.d->data);
  g.columnwise = matrix(a.d->columnwise);
  if (!g.d.base) g.d.dtype = g.columnwise.dtype;
  if (a.beta != 0) g.c = given(a.c) ? matrix(a.c) : matrix(a.d);
  g.aux = matrix(a.aux);
  g.bias = given(a.bias) ? address_as<const char>(a.bias->data) : nullptr;
  g.bias_dtype = g.bias ? dtype_of(a.bias->data.dtype) : DType::f32;
  g.gelu = a.flags & NVTE_GEMM_GELU;
  g.dgelu = a.flags & NVTE_GEMM_DGELU;
  auto *floats = static_cast<float *>(memory);
  nvte_status status = gpu::prepare(e, *a.d, (int)space.blocks, floats, &g.q);
  if (status != NVTE_OK) return status;
  float *part = floats + space.amax;
  if (given(a.dbias) && !g.dgelu && (status = sum_operand(e, g.a, g.scale_a, part, a.dbias->data)) != NVTE_OK) return status;
  if (given(a.dbias) && g.dgelu && g.tiles_m > 0) g.sums = part;
  launch(g, (unsigned)space.blocks);
  if ((status = gpu::launched("gemm")) != NVTE_OK) return status;
  if ((status = gpu::finish_amax(e, *a.d, g.q, (int)space.blocks)) != NVTE_OK) return status;
  return given(a.dbias) && g.dgelu ? gpu::sum_columns(e, part, g.tiles_m, g.n, a.dbias->data) : NVTE_OK;
}

nvte_status run(const nvte_exec *e, const void *p) {
  const auto &a = *static_cast<const nvte_gemm_args *>(p);
  return gpu::guarded(e, [&]() -> nvte_status {
    return with_call(*e, a, e->workspace, [&](const Call &g, unsigned blocks) {
      const auto launch = [&](auto kernel) { kernel<<<blocks, kThreads, 0, gpu::stream_of(*e)>>>(g); };
      switch (g.a.dtype) {
        case DType::f32: launch(gemm_kernel<float>); break;
        case DType::f16: launch(gemm_kernel<f16>); break;
        default: launch(gemm_kernel<bf16>);
      }
    });
  });
}

const nvte_implementation table[] = {
    {sizeof(nvte_implementation), "gemm", "gpu", 0, 0, refuse, workspace, run},
    {sizeof(nvte_implementation), "gemm", "blaslt", 10, 0, gemm::refuse_blaslt, gemm::workspace_blaslt, gemm::run_blaslt}};
}  // namespace
namespace gemm {
nvte_status run_gpu(const nvte_exec &e, const nvte_gemm_args &a) {
  const char *reason = refuse(&e, &a);
  return reason ? fail(NVTE_ERR_UNSUPPORTED, "gpu: %s", reason) : run(&e, &a);
}
size_t finish_bytes(const nvte_gemm_args &a) {
  const Space s(a);
  return sizeof(float) * (size_t)(s.amax + s.sums);
}
nvte_status operand_sums(const nvte_exec &e, const nvte_gemm_args &a, void *space) {
  const float *scale;
  const Operand s = source(*a.a, !(a.flags & NVTE_GEMM_TRANS_A), &scale);
  return sum_operand(e, s, scale, static_cast<float *>(space), a.dbias->data);
}
nvte_status finish(const nvte_exec &e, const nvte_gemm_args &a, const float *sums, void *space) {
  return with_call(e, a, space, [&](const Call &g, unsigned blocks) { finish_kernel<<<blocks, kThreads, 0, gpu::stream_of(e)>>>(g, sums); });
}
}  // namespace gemm
namespace gpu {
TE_GPU_IMPLEMENTATIONS(gemm) = {table, 2};
}
}  // namespace te
