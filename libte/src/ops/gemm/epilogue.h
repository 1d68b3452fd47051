// SPDX-License-Identifier: Apache-2.0
// What happens to a tile of A B while it is in the cache: scales, beta C, bias, GELU or its derivative, column sums, D.
#pragma once
#include <math.h>

#include "cpu/math.h"
#include "cpu/writer.h"
#include "libte/gemm.h"
#include "ops/gemm/operand.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

constexpr int kMaxColumns = 256;  // of a tile

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
static inline const nvte_tensor *given(const nvte_tensor *t) { return t && present(t->data) && numel(t->data) ? t : nullptr; }

// A matrix read or written element by element.
struct Matrix {
  char *data = nullptr;
  DType dtype = DType::f32;
  RowIndex index = {};
  explicit Matrix(const nvte_tensor *t) {
    if (!t) return;
    data = address_as<char>(t->data);
    dtype = dtype_of(t->data.dtype);
    index = row_index(t->data);
  }
};

// f(j, v) for v = columns [j, j + 16) of a row of floats, stored back; the row is padded to 16.
template <class F> TE_INLINE void each(float *row, int64_t n, F &&f) {
  for (int64_t j = 0; j < n; j += 16) store(row + j, f(j, load(row + j)));
}
TE_INLINE int lanes(int64_t left) { return left < 16 ? int(left) : 16; }

struct Epilogue {
  Output out;
  Matrix c, aux;
  const nvte_tensor *bias, *dbias;
  bool gelu, dgelu;
  float scale[2];  // their product is alpha * scale_inv_a * scale_inv_b; two where one f32 cannot hold it
  float beta;
  float *sums;  // DGELU: column sums a row of tiles, [row_tiles, N]
  int64_t row_tiles;

  Epilogue(const nvte_gemm_args &args, double factor)
      : out(*args.d), c(args.beta != 0 ? (given(args.c) ? args.c : args.d) : nullptr), aux(given(args.aux)),
        bias(given(args.bias)), dbias(given(args.dbias)), gelu(args.flags & NVTE_GEMM_GELU), dgelu(args.flags & NVTE_GEMM_DGELU),
        beta(args.beta), sums(nullptr), row_tiles(0) {
    scale[0] = float(factor);
    scale[1] = 1.f;
    const double size = factor < 0 ? -factor : factor;
    if (size != 0 && size <= 1.7e308 && !(size >= 0x1p-126 && size < 0x1p127)) {
      int exponent;
      const double mantissa = frexp(factor, &exponent);
      // 2^(e/2) twice: neither factor leaves the range, nor does a product on the way to a result that does not
      const int half = exponent / 2;
      scale[0] = float(ldexp(mantissa, exponent - half));
      scale[1] = float(ldexp(1.0, half));
    }
  }

  // The number of row tiles that apply() will be called with; false when memory is out.
  bool reserve(int64_t tiles) {
    if (!dgelu || !dbias) return true;
    row_tiles = tiles;
    sums = (float *)scratch(5, size_t(tiles * out.K * 4));
    return sums != nullptr;
  }

  // Fetches the lines of D that will be written soon.
  TE_INLINE void expect(int64_t m0, int rows, int64_t n0, int columns) const {
    if (!out.data || !out.index.uniform) return;
    for (int i = 0; i < rows; i++) {
      const char *p = out.data + ((m0 + i) * out.index.stride + n0) * out.bytes;
      for (int j = 0; j < columns * out.bytes; j += 64) __builtin_prefetch(p + j, 1, 2);
    }
  }

  // acc[rows, ld] holds A B for rows from m0 and columns from n0; columns <= kMaxColumns, ld >= columns rounded up to 16.
  void apply(int64_t m0, int64_t rows, int64_t n0, int64_t columns, float *acc, int64_t ld, int64_t row_tile) {
    Block block = out.begin(m0, rows, n0, columns);
    if (!block.ok) return;
    alignas(64) float bias_row[kMaxColumns], sum_row[kMaxColumns];
    if (bias)
      visit_float(dtype_of(bias->data.dtype), [&](auto t) {
        const auto *p = address_as<const decltype(t)>(bias->data) + n0;
        for (int64_t j = 0; j < columns; j += 16) store(bias_row + j, load(p + j, lanes(columns - j)));
      });
    if (sums) memset(sum_row, 0, sizeof sum_row);
    for (int64_t i = 0; i < rows; i++) {
      float *v = acc + i * ld;
      if (scale[0] != 1.f) each(v, columns, [&](int64_t, vf x) { return x * set1(scale[0]); });
      if (scale[1] != 1.f) each(v, columns, [&](int64_t, vf x) { return x * set1(scale[1]); });
      if (c.data)
        visit_any(c.dtype, [&](auto t) {
          const auto *p = (const decltype(t) *)c.data + c.index(m0 + i) + n0;
          each(v, columns, [&](int64_t j, vf x) { return x + set1(beta) * load(p + j, lanes(columns - j)); });
        });
      if (bias) each(v, columns, [&](int64_t j, vf x) { return x + load(bias_row + j); });
      if (aux.data && (gelu || dgelu))
        visit_float(aux.dtype, [&](auto t) {
          auto *p = (decltype(t) *)aux.data + aux.index(m0 + i) + n0;
          if (gelu) for (int64_t j = 0; j < columns; j += 16) store(p + j, load(v + j), lanes(columns - j));
          else each(v, columns, [&](int64_t j, vf x) { return x * Gelu::slope(load(p + j, lanes(columns - j))); });
        });
      if (gelu) each(v, columns, [&](int64_t, vf x) { return Gelu::value(x); });
      if (sums) for (int64_t j = 0; j < columns; j += 16) store(sum_row + j, load(sum_row + j) + load(v + j));
      block.write(i, 0, v, columns);
    }
    if (sums) memcpy(sums + row_tile * out.K + n0, sum_row, columns * 4);
    out.end(block);
  }

  // Adds up the column sums (row tiles in order) and finishes D.
  nvte_status finish() {
    if (dgelu && dbias)
      visit_float(dtype_of(dbias->data.dtype), [&](auto t) {
        auto *p = address_as<decltype(t)>(dbias->data);
        for (int64_t j = 0; j < out.K; j += 16) {
          const int n = lanes(out.K - j);
          vf s = zero();
          for (int64_t i = 0; i < row_tiles; i++) s = s + load(sums + i * out.K + j, n);
          store(p + j, s, n);
        }
      });
    return out.finish();
  }
};

}  // namespace
}  // namespace te::cpu::TE_CPU_ISA
