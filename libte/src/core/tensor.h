// SPDX-License-Identifier: Apache-2.0
// Words for looking at descriptors. Everything is static inline over C types, so the per-ISA kernels may include it.
#pragma once
#include "libte/tensor.h"

namespace te {

// DLPack dtypes as small integers, for switches.
enum class DType : int { f32, f16, bf16, e4m3, e5m2, e4m3fnuz, e5m2fnuz, e8m0, u8, i8, i16, i32, i64, boolean, f64, other };

static inline DType dtype_of(DLDataType t) {
  if (t.lanes != 1) return DType::other;
  switch (t.code) {
    case kDLFloat: return t.bits == 32 ? DType::f32 : t.bits == 16 ? DType::f16 : t.bits == 64 ? DType::f64 : DType::other;
    case kDLBfloat: return t.bits == 16 ? DType::bf16 : DType::other;
    case kDLFloat8_e4m3fn: return DType::e4m3;
    case kDLFloat8_e5m2: return DType::e5m2;
    case kDLFloat8_e4m3fnuz: return DType::e4m3fnuz;
    case kDLFloat8_e5m2fnuz: return DType::e5m2fnuz;
    case kDLFloat8_e8m0fnu: return DType::e8m0;
    case kDLUInt: return t.bits == 8 ? DType::u8 : DType::other;
    case kDLInt:
      return t.bits == 8 ? DType::i8 : t.bits == 16 ? DType::i16 : t.bits == 32 ? DType::i32 : t.bits == 64 ? DType::i64 : DType::other;
    case kDLBool: return t.bits == 8 ? DType::boolean : DType::other;
    default: return DType::other;
  }
}
static inline bool is_fp8(DType t) { return t >= DType::e4m3 && t <= DType::e5m2fnuz; }
static inline bool is_float(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }
// Largest finite value of an fp8 format; 0 for others.
static inline float fp8_max(DType t) {
  return t == DType::e4m3 ? 448.f : t == DType::e4m3fnuz ? 240.f : t == DType::e5m2 || t == DType::e5m2fnuz ? 57344.f : 0.f;
}

static inline bool present(const DLTensor &t) { return t.data != nullptr; }
static inline void *address(const DLTensor &t) { return (char *)t.data + t.byte_offset; }
template <class T> static inline T *address_as(const DLTensor &t) { return (T *)address(t); }
static inline int64_t element_bytes(const DLTensor &t) { return (t.dtype.bits * t.dtype.lanes + 7) / 8; }

static inline int64_t numel(const DLTensor &t) {
  int64_t n = 1;
  for (int i = 0; i < t.ndim; i++) n *= t.shape[i];
  return n;
}
// Size and element stride of dimension i (C-contiguous when strides are absent).
static inline int64_t stride_of(const DLTensor &t, int i) {
  if (t.strides) return t.strides[i];
  int64_t s = 1;
  for (int k = t.ndim - 1; k > i; k--) s *= t.shape[k];
  return s;
}
// The last dimension (1 for rank 0) and the product of the others: the flat 2-D view nearly every kernel uses.
static inline int64_t columns(const DLTensor &t) { return t.ndim ? t.shape[t.ndim - 1] : 1; }
static inline int64_t rows(const DLTensor &t) {
  int64_t n = 1;
  for (int i = 0; i + 1 < t.ndim; i++) n *= t.shape[i];
  return n;
}
// Contiguous ignoring dimensions of size 1 (their strides mean nothing) and empty tensors.
static inline bool is_contiguous(const DLTensor &t) {
  if (!t.strides) return true;
  int64_t expect = 1;
  for (int i = t.ndim - 1; i >= 0; i--) {
    if (t.shape[i] == 0) return true;
    if (t.shape[i] != 1) {
      if (t.strides[i] != expect) return false;
      expect *= t.shape[i];
    }
  }
  return true;
}

// Element offset of row r of the flat 2-D view, whatever the leading strides; O(1) where they collapse to one stride.
struct RowIndex {
  int64_t stride;        // used when `uniform`
  bool uniform;
  const DLTensor *t;
  int64_t operator()(int64_t r) const {
    if (uniform) return r * stride;
    int64_t off = 0;
    for (int i = t->ndim - 2; i >= 0; i--) {
      const int64_t n = t->shape[i];
      off += (r % n) * stride_of(*t, i);
      r /= n;
    }
    return off;
  }
};
static inline RowIndex row_index(const DLTensor &t) {
  RowIndex x = {columns(t), true, &t};
  if (!t.strides || t.ndim < 2) return x;
  int64_t expect = -1;
  for (int i = t.ndim - 2; i >= 0; i--) {
    if (t.shape[i] == 1) continue;
    if (expect < 0) x.stride = t.strides[i];
    else if (t.strides[i] != expect) { x.uniform = false; return x; }
    expect = t.strides[i] * t.shape[i];
  }
  return x;
}

// True when flags, presence and contents say "do nothing" (the noop scalar of the quantise family, CPU memory).
static inline bool noop_set(const nvte_tensor *noop) {
  return noop && present(noop->data) && *address_as<const float>(noop->data) == 1.0f;
}

}  // namespace te
