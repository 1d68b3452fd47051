// SPDX-License-Identifier: Apache-2.0
// nvte_quantize on GPUs: one pass whatever the orientations, see kernel.h.
#include "gpu/device/rows.h"
#include "gpu/quantized.h"
#include "gpu/rtc/rtc.h"
#include "gpu/rtc/tiles.h"
#include "ops/composite.h"
#include "ops/quantize/kernel.h"
#define TE_SCALING __device__
#include "scaling/tensor.h"

namespace te {
namespace {
using namespace device;
using gpu::Quantised;

using Layout = Tiling<16, 16, 8>;
constexpr int kTile = Layout::kWidth, kThreads = Layout::kThreads;
static_assert(Layout::kHeight == kTile, "square tiles");

template <class T, class Q> __global__ void __launch_bounds__(kThreads, sizeof(T) == 2 ? 3 : 1) quantize_kernel(
    const T *__restrict__ x, Rows rows, Q *__restrict__ y, Q *__restrict__ yt, int64_t m, int64_t k, bool wide, Quantised q,
    QuantizeSums to, const float *__restrict__ noop) {
  __shared__ __align__(16) unsigned char shared[kQuantizeBytes<Layout>];
  await_previous();
  let_next_begin();
  if (noop && *noop == 1.f) return;
  const float scale = gpu::scale_of(q);
  const int64_t row0 = (int64_t)blockIdx.y * kTile, col0 = (int64_t)blockIdx.x * kTile;
  float amax;
  if (wide && (m % 8 == 0 || row0 + kTile <= m) && (k % 8 == 0 || col0 + kTile <= k))
    amax = quantize_tile<T, Q, Layout, true>(x, rows, y, yt, m, k, scale, to, row0, col0, shared);
  else amax = quantize_tile<T, Q, Layout, false>(x, rows, y, yt, m, k, scale, to, row0, col0, shared);
  gpu::finish<kThreads>(q, amax, (int)(blockIdx.y * gridDim.x + blockIdx.x));
}

// ---- up to two tensors of few numbers in one launch ----

constexpr int64_t kFewNumbers = 1 << 16;  // what a block may read once more for the amax of current scaling
struct Part {
  const void *x;
  int64_t stride, m, k;
  unsigned char *y, *yt;
  Quantised q;  // current scaling: without scale and amax
  float *amax, *scale;  // which it writes
  void *dbias;
  int dbias_dtype, across, blocks;
  bool wide;
};
struct Parts {
  Part of[2];
};
struct Even {
  int64_t stride;
  TE_DEVICE int64_t operator()(int64_t r) const { return r * stride; }
};

template <class T> TE_DEVICE float amax_of(const Part &p) {
  const T *x = static_cast<const T *>(p.x);
  const int n = (int)(p.m * p.k), k = (int)p.k;
  float amax = 0.f;
  if (p.wide && k % 8 == 0) {
    constexpr int kAhead = 32 / (int)sizeof(T) / 2;
    for (int first = (int)threadIdx.x * 8; first < n; first += kThreads * 8 * kAhead) {
      float v[kAhead][8] = {};
#pragma unroll
      for (int u = 0; u < kAhead; u++) {
        const int i = first + u * kThreads * 8;
        if (i < n) load_f32<8>(x + i / k * p.stride + i % k, v[u]);
      }
#pragma unroll
      for (int u = 0; u < kAhead; u++)
#pragma unroll
        for (int c = 0; c < 8; c++) amax = fmaxf(amax, fabsf(v[u][c]));
    }
  } else {
    for (int i = (int)threadIdx.x; i < n; i += kThreads) amax = fmaxf(amax, fabsf(to_f32(x[i / k * p.stride + i % k])));
  }
  return block_reduce<kThreads>(amax, Max{}, 0.f);
}

// largest: of the codes, for current scaling, where every block finds the tensor's amax by itself; 0: scales as they are given.
template <class T, class Q> __global__ void __launch_bounds__(kThreads) together_kernel(Parts parts, float largest, bool pow2) {
  __shared__ __align__(16) unsigned char shared[kQuantizeBytes<Layout>];
  await_previous();
  let_next_begin();
  const bool second = (int)blockIdx.x >= parts.of[0].blocks;
  const Part &p = parts.of[second];
  const int block = (int)blockIdx.x - (second ? parts.of[0].blocks : 0);
  float scale = gpu::scale_of(p.q);
  if (largest != 0.f) {
    const float amax = amax_of<T>(p);
    scale = scaling::from_amax(amax, largest, 0.f, pow2);
    if (block == 0 && threadIdx.x == 0) *p.amax = amax, *p.scale = scale;
  }
  const int64_t row0 = (int64_t)(block / p.across) * kTile, col0 = (int64_t)(block % p.across) * kTile;
  const QuantizeSums to = {nullptr, static_cast<char *>(p.dbias), p.dbias_dtype};
  const T *x = static_cast<const T *>(p.x);
  Q *y = reinterpret_cast<Q *>(p.y), *yt = reinterpret_cast<Q *>(p.yt);
  float amax;
  if (p.wide && (p.m % 8 == 0 || row0 + kTile <= p.m) && (p.k % 8 == 0 || col0 + kTile <= p.k))
    amax = quantize_tile<T, Q, Layout, true>(x, Even{p.stride}, y, yt, p.m, p.k, scale, to, row0, col0, shared);
  else amax = quantize_tile<T, Q, Layout, false>(x, Even{p.stride}, y, yt, p.m, p.k, scale, to, row0, col0, shared);
  gpu::finish<kThreads>(p.q, amax, block, scale);
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
  gpu::finish<kThreads>(q, amax, (int)blockIdx.x);
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
  explicit Shape(const nvte_quantize_args &a, int64_t height = kTile, int64_t width = kTile) : Shape(a.x->data, height, width) {}
  explicit Shape(const DLTensor &x, int64_t height = kTile, int64_t width = kTile) : m(rows(x)), k(columns(x)) {
    tiles_m = gpu::ceil_div(m, height), tiles_k = gpu::ceil_div(k, width);
    blocks = (int)(tiles_m * tiles_k);
  }
};
DType out_dtype(const nvte_quantize_args &a) { return dtype_of(present(a.y->data) ? a.y->data.dtype : a.y->columnwise.dtype); }
bool wide(const DLTensor &x, const nvte_tensor &y, const Shape &s) {
  const RowIndex lines = row_index(x);
  return gpu::aligned(address(x), 16) && lines.uniform && lines.stride % (16 / element_bytes(x)) == 0 &&
         (!present(y.data) || (gpu::aligned(address(y.data), 8) && s.k % 8 == 0)) &&
         (!present(y.columnwise) || (gpu::aligned(address(y.columnwise), 16) && s.m % 16 == 0));
}
bool wide(const nvte_quantize_args &a, const Shape &s) { return wide(a.x->data, *a.y, s); }

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
    const DType in = dtype_of(a.x->data.dtype), out = out_dtype(a);
    // an empty x still sets scale_inv, amax and dbias: one block that finds nothing inside
    const int64_t need = is_fp8(out) ? s.blocks : gpu::ceil_div(s.m * s.k, kThreads);
    const int blocks = (int)(need < 1 ? 1 : is_fp8(out) || need < 4096 ? need : 4096);
    const bool direct = a.dbias && is_fp8(out) && s.tiles_m == 1 && s.blocks;
    float *part = a.dbias && !direct ? space + (s.blocks > 4096 ? s.blocks : 4096) : nullptr;
    const QuantizeSums to = {s.blocks ? part : nullptr, direct ? address_as<char>(a.dbias->data) : nullptr, a.dbias ? (int)dtype_of(a.dbias->data.dtype) : 0};
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
          const dim3 grid((unsigned)(s.tiles_k > 0 ? s.tiles_k : 1), (unsigned)(s.tiles_m > 0 ? s.tiles_m : 1));
          gpu::launch_behind(*e, quantize_kernel<T, Q>, grid, kThreads, x, lines, y, yt, s.m, s.k, wide(a, s), q, to, noop);
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

// ---- compiled at run time ----

const gpu::rtc::Program kProgram = {
    "ops/quantize/rtc.h", "te_quantize", {"TE_IN", "TE_OUT", "TE_OUTPUTS", "TE_WIDE", "TE_SUMS", "TE_ACROSS", "TE_DOWN", "TE_BLOCKS"}};
static_assert((int)DType::f32 == 0 && (int)DType::bf16 == 2 && (int)DType::e4m3 == 3 && (int)DType::e5m2fnuz == 6, "the numbers of device::Numbered");

struct RtcCall {
  gpu::rtc::Tile tile;
  Shape s;
  RtcCall(const nvte_exec *e, const nvte_quantize_args &a)
      : tile(gpu::rtc::choose_tile(rows(a.x->data), columns(a.x->data), 8, gpu::multiprocessors(e->device.device_id))), s(a, tile.down * 8, tile.across * 8) {}
  int blocks() const { return s.blocks > 0 ? s.blocks : 1; }  // an empty x still sets scale_inv, amax and dbias
  int sums_at(const nvte_quantize_args &a) const { return present(a.y->amax) ? (blocks() + 63) / 64 * 64 : 0; }  // floats of workspace in front
  const char *kernel(const nvte_exec *e, const nvte_quantize_args &a, void **out) const {
    const int in = (int)dtype_of(a.x->data.dtype), threads = tile.across * tile.down, outputs = (present(a.y->data) ? 1 : 0) | (present(a.y->columnwise) ? 2 : 0);
    // blocks a multiprocessor, as registers allow; AMD's compiler takes the number for waves, and needs no such bound
    const int together = kMaxWave > 32 ? 1 : (in == (int)DType::f32 ? 512 : 768) / threads;
    return gpu::rtc::find(*e, kProgram, {in, (int)out_dtype(a), outputs, wide(a, s) && s.m % 8 == 0 && s.k % 8 == 0, a.dbias != nullptr, tile.across, tile.down, together}, out);
  }
};
const char *refuse_rtc(const nvte_exec *e, const void *p) {
  const auto &a = *static_cast<const nvte_quantize_args *>(p);
  if (!is_fp8(out_dtype(a))) return "y is not fp8";
  const RtcCall call(e, a);
  if (call.s.tiles_m > 65535) return "x has too many rows";
  void *kernel;
  return call.kernel(e, a, &kernel);
}
nvte_status workspace_rtc(const nvte_exec *e, const void *p, size_t *bytes) {
  const auto &a = *static_cast<const nvte_quantize_args *>(p);
  const RtcCall call(e, a);
  *bytes = sizeof(float) * ((size_t)call.sums_at(a) + (a.dbias ? (size_t)(call.s.tiles_m * call.s.k) : 0));
  return NVTE_OK;
}
nvte_status run_rtc(const nvte_exec *e, const void *p) {
  const auto &a = *static_cast<const nvte_quantize_args *>(p);
  return gpu::guarded(e, [&]() -> nvte_status {
    const RtcCall call(e, a);
    const Shape &s = call.s;
    void *kernel;
    if (const char *why = call.kernel(e, a, &kernel)) return fail(NVTE_ERR_UNSUPPORTED, "rtc: %s", why);
    const float *noop = a.noop ? address_as<const float>(a.noop->data) : nullptr;
    auto *space = static_cast<float *>(e->workspace);
    const bool direct = a.dbias && s.tiles_m == 1 && s.blocks;
    float *part = a.dbias && !direct ? space + call.sums_at(a) : nullptr;
    const QuantizeSums to = {s.blocks ? part : nullptr, direct ? address_as<char>(a.dbias->data) : nullptr, a.dbias ? (int)dtype_of(a.dbias->data.dtype) : 0};
    Quantised q;
    nvte_status status = gpu::prepare(*e, *a.y, call.blocks(), space, &q, a.noop);
    if (status != NVTE_OK) return status;
    const auto address_or_null = [](const DLTensor &t) { return present(t) ? address(t) : nullptr; };
    const dim3 grid((unsigned)(s.tiles_k > 0 ? s.tiles_k : 1), (unsigned)(s.tiles_m > 0 ? s.tiles_m : 1));
    status = gpu::rtc::launch(*e, kernel, grid, call.tile.across * call.tile.down, "quantize", (const void *)address(a.x->data), rows_of(a.x->data),
                              address_or_null(a.y->data), address_or_null(a.y->columnwise), s.m, s.k, q, to, noop);
    if (status == NVTE_OK) status = gpu::finish_amax(*e, *a.y, q, call.blocks(), noop);
    return status != NVTE_OK || !part ? status : gpu::sum_columns(*e, part, s.tiles_m, s.k, a.dbias->data, noop);
  });
}

const DLTensor &codes(const nvte_tensor &y) { return present(y.data) ? y.data : y.columnwise; }

// false: not for together_kernel.
bool part_of(const linear::Quantization &of, bool current, Part *p) {
  const DLTensor &x = of.x->data;
  const nvte_tensor &y = *of.q;
  const Shape s(x);
  const RowIndex lines = row_index(x);
  // sums in the order of the other kernels: theirs of one row of tiles
  if (!lines.uniform || s.blocks == 0 || s.m * s.k > kFewNumbers || (of.dbias && s.m > 64)) return false;
  *p = {address(x), lines.stride, s.m, s.k, present(y.data) ? address_as<unsigned char>(y.data) : nullptr,
        present(y.columnwise) ? address_as<unsigned char>(y.columnwise) : nullptr, {}, nullptr, nullptr, of.dbias ? address(of.dbias->data) : nullptr,
        of.dbias ? (int)dtype_of(of.dbias->data.dtype) : 0, (int)s.tiles_k, s.blocks, wide(x, y, s)};
  p->q.scale_inv = present(y.scale_inv) ? address_as<float>(y.scale_inv) : nullptr;
  p->q.columnwise_scale_inv = present(y.columnwise_scale_inv) ? address_as<float>(y.columnwise_scale_inv) : nullptr;
  if (current) {
    p->amax = address_as<float>(y.amax), p->scale = address_as<float>(y.scale);
    return true;
  }
  p->q.scale = present(y.scale) ? address_as<const float>(y.scale) : nullptr;
  if (!present(y.amax)) return true;
  if (y.flags & NVTE_TENSOR_AMAX_ACCUMULATE) p->q.atomic_amax = address_as<float>(y.amax);
  else p->q.block_amax = address_as<float>(y.amax);
  return p->q.atomic_amax ? s.blocks <= gpu::kFewBlocks : s.blocks == 1;
}

const nvte_implementation table[] = {{sizeof(nvte_implementation), "quantize", "gpu", 0, 0, refuse, workspace, run},
                                     {sizeof(nvte_implementation), "quantize", "rtc", 10, 0, refuse_rtc, workspace_rtc, run_rtc}};
}  // namespace
namespace gpu {
TE_GPU_IMPLEMENTATIONS(quantize) = {table, 2};
}

bool linear::quantize_together(const nvte_exec *e, const Quantization *of, int n, uint32_t flags, nvte_status *status) {
  const bool current = (flags & NVTE_LINEAR_CURRENT_SCALING) != 0;
  const DType in = dtype_of(of[0].x->data.dtype), out = dtype_of(codes(*of[0].q).dtype);
  Parts parts = {};
  int blocks = 0;
  for (int i = 0; i < n; i++) {
    if (dtype_of(of[i].x->data.dtype) != in || dtype_of(codes(*of[i].q).dtype) != out || !part_of(of[i], current, &parts.of[i])) return false;
    blocks += parts.of[i].blocks;
  }
  *status = gpu::guarded(e, [&]() -> nvte_status {
    gpu::visit_float(in, [&](auto t) {
      gpu::visit_fp8(out, [&](auto c) {
        gpu::launch_behind(*e, together_kernel<decltype(t), decltype(c)>, (unsigned)blocks, kThreads, parts, current ? fp8_max(out) : 0.f, (flags & NVTE_LINEAR_POW2_SCALES) != 0);
      });
    });
    return gpu::launched("quantize");
  });
  return true;
}
}  // namespace te
