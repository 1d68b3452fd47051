// SPDX-License-Identifier: Apache-2.0
// Descriptors over vectors, for tests of the core.
#pragma once
#include <stdint.h>
#include <string.h>

#include <string>
#include <vector>

#include "libte/libte.h"

namespace te::test {

constexpr DLDataType kF32 = {kDLFloat, 32, 1}, kF16 = {kDLFloat, 16, 1}, kBF16 = {kDLBfloat, 16, 1}, kI64 = {kDLInt, 64, 1},
                     kI32 = {kDLInt, 32, 1}, kU8 = {kDLUInt, 8, 1}, kE4M3 = {kDLFloat8_e4m3fn, 8, 1};

// A tensor that owns zeroed memory of its size.
struct Owned {
  std::vector<int64_t> shape, strides;
  std::vector<uint64_t> memory;
  nvte_tensor t = {};

  explicit Owned(DLDataType dtype, std::vector<int64_t> s, std::vector<int64_t> st = {}) : shape(std::move(s)), strides(std::move(st)) {
    int64_t n = 1;
    for (size_t i = 0; i < shape.size(); i++) n *= shape[i] * (strides.empty() ? 1 : 1 + (strides[i] > 0 ? strides[i] : 0));
    memory.assign((size_t)((n > 0 ? n : 0) * dtype.bits / 64 + 1), 0);
    t.struct_size = sizeof t;
    t.data = part(dtype, shape, memory.data());
    if (!strides.empty()) t.data.strides = strides.data();
  }
  Owned(const Owned &) = delete;

  static DLTensor part(DLDataType dtype, std::vector<int64_t> &shape, void *data) {
    return DLTensor{data, {kDLCPU, 0}, (int32_t)shape.size(), dtype, shape.data(), nullptr, 0};
  }
  template <class T> T *as() { return reinterpret_cast<T *>(memory.data()); }
  float *f() { return as<float>(); }
  operator nvte_tensor *() { return &t; }
};

inline std::string error() { return nvte_last_error(); }

}  // namespace te::test
