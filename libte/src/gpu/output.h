// SPDX-License-Identifier: Apache-2.0
// What operators over rows share. Device side: eight neighbouring numbers of any dtype in and out, for a kernel that knows its dtypes when
// compiled (Known: the usual ones, aligned; at 4 TB/s an element has 30 instructions, and loads wait for no branch) or not (Any: a branch that a
// whole grid takes alike). Host side: workspace plans and Output, which finishes a `quantized` tensor: amax, scale_inv, and the column-wise
// copy made from the rows.
#pragma once
#include "gpu/quantized.h"
#include "gpu/transpose.h"

namespace te::gpu {
using device::Rows;
using device::rows_of;

// A tensor that a kernel reads: element (r, c) at rows(r) + c. wide: groups of eight numbers can be moved by 16-byte accesses.
struct Input {
  const char *base;  // absent: null
  DType dtype;
  bool wide;
  Rows rows;
};
// What a kernel writes, contiguous [M, K].
struct Target {
  char *base;
  DType dtype;
  bool wide;
  Quantised q;
};

inline int bytes_of(DType t) { return t == DType::f32 ? 4 : t == DType::f16 || t == DType::bf16 ? 2 : 1; }
inline bool wide_rows(const void *p, DType t, int64_t columns, const Rows &rows) {
  const int64_t group = 8 * bytes_of(t) > 16 ? 16 : 8 * bytes_of(t);
  if (columns % 8 || !aligned(p, (size_t)group)) return false;
  if (rows.n == 0) return rows.stride * bytes_of(t) % group == 0;
  for (int i = 0; i < rows.n; i++)
    if (rows.step[i] * bytes_of(t) % group) return false;
  return true;
}
// `columns`: a divisor of every column index at which a group of eight begins (the row length, or a half of it).
inline Input input_of(const nvte_tensor *t, int64_t columns) {
  if (!t || !present(t->data)) return {nullptr, DType::f32, true, {}};
  Input i = {address_as<const char>(t->data), dtype_of(t->data.dtype), false, rows_of(t->data)};
  i.wide = wide_rows(i.base, i.dtype, columns, i.rows);
  return i;
}

template <DType T> struct Stored;
template <> struct Stored<DType::f32> { using type = float; };
template <> struct Stored<DType::f16> { using type = device::f16; };
template <> struct Stored<DType::bf16> { using type = device::bf16; };
template <> struct Stored<DType::e4m3> { using type = device::e4m3; };
template <> struct Stored<DType::e5m2> { using type = device::e5m2; };
// Known: every input of dtype X, the output of dtype Y, eight whole and wide numbers each time, rows of one stride.
template <DType X, DType Y> struct Known {
  static constexpr bool known = true;
  static constexpr DType x = X, y = Y;
};
struct Any {
  static constexpr bool known = false;
};
// Calls f(Known{}) for the usual dtypes, f(Any{}) for others or where something is not wide. Fp8: the output may be fp8.
template <bool Fp8, class F> void with_types(bool wide, DType x, DType y, F &&f) {
  if (wide && x == DType::bf16 && y == DType::bf16) return f(Known<DType::bf16, DType::bf16>{});
  if constexpr (Fp8)
    if (wide && x == DType::bf16 && y == DType::e4m3) return f(Known<DType::bf16, DType::e4m3>{});
  if (wide && x == DType::f16 && y == DType::f16) return f(Known<DType::f16, DType::f16>{});
  if (wide && x == DType::f32 && y == DType::f32) return f(Known<DType::f32, DType::f32>{});
  f(Any{});
}
// Whether an input (if it is there) fits a Known kernel whose first input has dtype x.
inline bool knowable(const Input &i, DType x) { return !i.base || (i.wide && i.dtype == x && i.rows.n == 0); }

// n: 1 to 8, below 8 only where the row ends; what lies beyond reads as 0.
__device__ __forceinline__ void load8(const char *base, DType t, bool wide, int64_t at, int n, float (&v)[8]) {
  if (wide) {
    if (t == DType::bf16) device::load_f32<8>(reinterpret_cast<const device::bf16 *>(base) + at, v);
    else if (t == DType::f32) device::load_f32<8>(reinterpret_cast<const float *>(base) + at, v);
    else device::load_f32<8>(reinterpret_cast<const device::f16 *>(base) + at, v);
    return;
  }
  device::per_lane(n);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int64_t k = at + (i < n ? i : 0);  // the first one again rather than a branch
    if (t == DType::bf16) v[i] = device::to_f32(reinterpret_cast<const device::bf16 *>(base)[k]);
    else if (t == DType::f32) v[i] = reinterpret_cast<const float *>(base)[k];
    else v[i] = device::to_f32(reinterpret_cast<const device::f16 *>(base)[k]);
    if (i >= n) v[i] = 0.f;
  }
}
__device__ __forceinline__ void load8(const Input &x, int64_t row, int64_t column, int n, float (&v)[8]) {
  load8(x.base, x.dtype, x.wide, x.rows(row) + column, n, v);
}
// Eight numbers as they come from memory: loads that are issued long before they are used take few registers.
template <class K, bool = K::known> struct Eight {
  float v[8];
  __device__ __forceinline__ void load(const Input &x, int64_t row, int64_t column, int n) { load8(x, row, column, n, v); }
  __device__ __forceinline__ void floats(float (&out)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; i++) out[i] = v[i];
  }
  // Numbers of the dtype, exactly.
  __device__ __forceinline__ void set(const float (&in)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = in[i];
  }
  __device__ __forceinline__ void forget() {}
};
template <class K> struct Eight<K, true> {
  using T = typename Stored<K::x>::type;
  static constexpr int kWords = 2 * (int)sizeof(T);
  unsigned w[kWords];
  __device__ __forceinline__ void load(const Input &x, int64_t row, int64_t column, int) {
    const auto *at = reinterpret_cast<const unsigned *>(reinterpret_cast<const T *>(x.base) + (row * x.rows.stride + column));
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      const auto p = device::load<4>(at + i);
#pragma unroll
      for (int k = 0; k < 4; k++) w[i + k] = p.v[k];
    }
  }
  __device__ __forceinline__ void floats(float (&out)[8]) const {
#pragma unroll
    for (int i = 0; i < kWords; i++) {
      if constexpr (sizeof(T) == 4) out[i] = device::from_bits(w[i]);
      else out[2 * i] = device::to_f32(T{(unsigned short)w[i]}), out[2 * i + 1] = device::to_f32(T{(unsigned short)(w[i] >> 16)});
    }
  }
  __device__ __forceinline__ void set(const float (&in)[8]) {
#pragma unroll
    for (int i = 0; i < kWords; i++) {
      if constexpr (sizeof(T) == 4) w[i] = device::bits(in[i]);
      else w[i] = device::pack2<T>(in[2 * i], in[2 * i + 1]);
    }
  }
  __device__ __forceinline__ void forget() {
#pragma unroll
    for (int i = 0; i < kWords; i++) device::opaque(w[i]);
  }
};
template <class T> __device__ __forceinline__ void store8_as(char *base, bool wide, int64_t at, int n, const float (&v)[8]) {
  T *p = reinterpret_cast<T *>(base) + at;
  if (wide) return device::store_f32<8>(p, v);
  device::per_lane(n);
#pragma unroll
  for (int i = 0; i < 8; i++)
    if (i < n) p[i] = device::from_f32<T>(v[i]);
}
// Numbers of 16 or 32 bits, as they are.
__device__ __forceinline__ void store8(char *base, DType t, bool wide, int64_t at, int n, const float (&v)[8]) {
  if (t == DType::bf16) store8_as<device::bf16>(base, wide, at, n, v);
  else if (t == DType::f32) store8_as<float>(base, wide, at, n, v);
  else store8_as<device::f16>(base, wide, at, n, v);
}
// The rule of fused outputs: fp8 gets v * scale and the amax of v, others get v and the amax of what is stored. v is changed.
__device__ __forceinline__ void put8(const Target &y, int64_t at, int n, float scale, float (&v)[8], float &amax) {
  const bool fp8 = y.dtype >= DType::e4m3 && y.dtype <= DType::e5m2fnuz;
  if (y.dtype == DType::bf16) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = device::to_f32(device::from_f32<device::bf16>(v[i]));
  } else if (y.dtype == DType::f16) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = device::to_f32(device::from_f32<device::f16>(v[i]));
  }
  int valid = n;
  device::per_lane(valid);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    if (i < valid) amax = fmaxf(amax, fabsf(v[i]));
    if (fp8) v[i] *= scale;
  }
  switch (y.dtype) {
    case DType::e4m3: return store8_as<device::e4m3>(y.base, y.wide, at, n, v);
    case DType::e5m2: return store8_as<device::e5m2>(y.base, y.wide, at, n, v);
    case DType::e4m3fnuz: return store8_as<device::e4m3fnuz>(y.base, y.wide, at, n, v);
    case DType::e5m2fnuz: return store8_as<device::e5m2fnuz>(y.base, y.wide, at, n, v);
    default: return store8(y.base, y.dtype, y.wide, at, n, v);
  }
}

template <class K> __device__ __forceinline__ void put8_as(const Target &y, int64_t at, int n, float scale, float (&v)[8], float &amax) {
  if constexpr (!K::known) {
    put8(y, at, n, scale, v, amax);
  } else {
    using T = typename Stored<K::y>::type;
    constexpr bool kFp8 = sizeof(T) == 1;
    if (kFp8 || y.q.block_amax || y.q.atomic_amax) {
#pragma unroll
      for (int i = 0; i < 8; i++) {
        if (!kFp8) v[i] = device::to_f32(device::from_f32<T>(v[i]));
        amax = fmaxf(amax, fabsf(v[i]));
        if (kFp8) v[i] *= scale;
      }
    }
    device::store_f32<8>(reinterpret_cast<T *>(y.base) + at, v);
  }
}

// Parts of a call's workspace; with no base it only counts, so that one function serves workspace() and run().
class Space {
 public:
  explicit Space(void *base) : base_(static_cast<char *>(base)) {}
  template <class T> T *take(int64_t n) {
    const size_t at = used_;
    used_ += ((size_t)n * sizeof(T) + 255) / 256 * 256;
    return base_ ? reinterpret_cast<T *>(base_ + at) : nullptr;
  }
  size_t used() const { return used_; }

 private:
  char *base_;
  size_t used_ = 0;
};

// A quantised or plain output written row by row. plan() before the kernel, finish() after it.
struct Output {
  const nvte_tensor *y;
  Target target;
  int64_t m, k;
  int blocks;
  float *maxima;

  // blocks: of the kernel that writes it, each ending in gpu::finish.
  Output(const nvte_tensor &t, int64_t blocks_, Space &space) : y(&t), m(te::rows(t.data)), k(te::columns(t.data)), blocks((int)blocks_) {
    target.dtype = dtype_of(present(t.data) ? t.data.dtype : t.columnwise.dtype);
    target.base = present(t.data) ? address_as<char>(t.data) : space.take<char>(m * k * bytes_of(target.dtype));
    const int64_t group = 8 * bytes_of(target.dtype) > 16 ? 16 : 8 * bytes_of(target.dtype);
    target.wide = k % 8 == 0 && aligned(target.base, (size_t)group);
    maxima = present(t.amax) ? space.take<float>(blocks > 0 ? blocks : 1) : nullptr;
  }
  nvte_status begin(const nvte_exec &e) { return prepare(e, *y, blocks, maxima, &target.q); }
  nvte_status finish(const nvte_exec &e) {
    if (const nvte_status s = launched("kernel")) return s;
    if (const nvte_status s = finish_amax(e, *y, target.q, blocks)) return s;
    if (!present(y->columnwise) || m == 0 || k == 0) return NVTE_OK;
    return transpose(e, bytes_of(target.dtype), target.base, Rows{k, 0, {}, {}}, address_as<char>(y->columnwise), m, k, nullptr);
  }
};

// The table row of an operator whose folder defines, for its args struct,
//     Call plan(const Args &, Space &);                                what it takes of the workspace
//     nvte_status launch(const nvte_exec &, const Args &, Call &);     everything else
#define TE_GPU_PLANNED(op)                                                                                                   \
  {                                                                                                                          \
    sizeof(nvte_implementation), #op, "gpu", 0, 0, nullptr,                                                                  \
        [](const nvte_exec *, const void *p, size_t *bytes) -> nvte_status {                                                 \
          gpu::Space space(nullptr);                                                                                         \
          (void)plan(*static_cast<const nvte_##op##_args *>(p), space);                                                      \
          *bytes = space.used();                                                                                             \
          return NVTE_OK;                                                                                                    \
        },                                                                                                                   \
        [](const nvte_exec *e, const void *p) -> nvte_status {                                                               \
          return gpu::guarded(e, [&]() -> nvte_status {                                                                      \
            const auto &a = *static_cast<const nvte_##op##_args *>(p);                                                       \
            gpu::Space space(e->workspace);                                                                                  \
            auto call = plan(a, space);                                                                                      \
            return launch(*e, a, call);                                                                                      \
          });                                                                                                                \
        }                                                                                                                    \
  }

}  // namespace te::gpu
